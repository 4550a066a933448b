//! The kubelet's Events: what they prove, and that no verdict depends on them.

use super::{Said, names, recordings, run};
use coroner_core::{input::Input, report::ContainerDeath};
use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::Path};

/// What a replay says without the Events, and with them.
fn both(name: &str) -> [Said; 2] {
    [false, true].map(|with_events| {
        let mut recording = recordings::load(name);
        recording.inputs.retain(|one| with_events || !matches!(one.input, Input::Events(_)));
        run(recording.anchor, recording.inputs)
    })
}

/// Each container's verdict, by its id: with the evidence of the kernel.
fn verdicts(said: &Said) -> BTreeMap<String, String> {
    let all = said.deaths.values().flatten();
    let proof = |one: &ContainerDeath| format!("{} {:?} {:?}", one.verdict, one.exit, one.proof);
    all.map(|one| (one.id.to_string(), proof(one))).collect()
}

/// A line per container's own stop and per pod: the cause and who proves it.
fn causes(said: &Said) -> Vec<String> {
    let mut lines = Vec::new();
    for (pod, deaths) in &said.deaths {
        let mut deaths: Vec<_> = deaths.iter().collect();
        deaths.sort_by_key(|death| death.milestones.first().map(|first| first.at));
        for one in deaths {
            lines.push(format!("{pod}/{}: {} {}", one.name, one.cause, one.cause_source));
        }
    }
    for end in said.terminations.values().flatten() {
        lines.push(format!("{}: {} {}", end.pod.name, end.cause, end.cause_source));
    }
    lines
}

/// `causes.txt` has the causes of each recording, without its Events and with them.
#[test]
fn events_change_no_verdict_and_prove_the_causes_of_the_truth_file() {
    let mut text = String::new();
    for name in &names() {
        let _ = writeln!(text, "{name}");
        let [without, with] = both(name);
        assert_eq!(verdicts(&without), verdicts(&with), "{name}");
        let (without, with) = (causes(&without), causes(&with));
        assert_eq!(without.len(), with.len(), "{name}");
        for (without, with) in without.iter().zip(&with) {
            let more =
                if without == with { String::new() } else { format!("; with Events {with}") };
            let _ = writeln!(text, "  {without}{more}");
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replay/causes.txt");
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(golden).unwrap(), text, "UPDATE_GOLDEN=1 writes it again");
}
