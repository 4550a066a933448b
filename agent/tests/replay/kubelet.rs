//! The kubelet's own words: what its log and its Events prove, its stages, and that no verdict depends on them.

use super::{
    RECORDINGS, Said, dir,
    import::{self, Words},
    replays_with, run,
};
use coroner_core::{
    input::{Input, KubeletEvent, Received},
    report::{ContainerDeath, KubeletLane, PodTermination},
    time::BootTime,
    types::StageKind as Stage,
};
use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::Path, time::Duration};

const NONE: Words = Words { log: false, events: false };
const LOG: Words = Words { log: true, events: false };
const EVENTS: Words = Words { log: false, events: true };
const BOTH: Words = Words { log: true, events: true };

/// Each container's verdict, by its id: with the evidence of the kernel.
fn verdicts(said: &Said) -> BTreeMap<String, String> {
    let all = said.deaths.values().flatten();
    let proof = |one: &ContainerDeath| format!("{} {:?} {:?}", one.verdict, one.exit, one.proof);
    all.map(|one| (one.id.to_string(), proof(one))).collect()
}

fn each(check: impl Fn(&str) + std::panic::RefUnwindSafe) {
    let failed: Vec<String> = RECORDINGS
        .into_iter()
        .filter_map(|name| {
            let panic = std::panic::catch_unwind(|| check(name)).err()?;
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Some(format!("{name}: {}", text.or(panic.downcast_ref::<&str>().copied())?))
        })
        .collect();
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn with_the_kubelets_words_each_recording_has_the_same_truth_and_verdicts() {
    each(|name| {
        let without = verdicts(&replays_with(name, NONE));
        for words in [LOG, EVENTS, BOTH] {
            assert_eq!(verdicts(&replays_with(name, words)), without, "{words:?}");
        }
    });
}

/// A line per container's own stop and per pod: the cause and who proves it.
fn causes(said: &Said) -> Vec<String> {
    let mut lines = Vec::new();
    for (pod, deaths) in &said.deaths {
        let mut deaths: Vec<_> = deaths.iter().collect();
        deaths.sort_by_key(|death| death.milestones.first().map(|first| first.at));
        for one in deaths {
            let (cause, certainty) = (one.cause, one.cause_certainty);
            lines.push(format!("{pod}/{}: {cause} {certainty} {}", one.name, one.cause_source));
        }
    }
    for end in said.terminations.values().flatten() {
        let (cause, certainty) = (end.cause, end.cause_certainty);
        lines.push(format!("{}: {cause} {certainty} {}", end.pod.name, end.cause_source));
    }
    lines
}

/// The lane as text, in milliseconds after the beginning of the report.
fn lane(text: &mut String, end: &PodTermination) {
    let Some(lane) = &end.kubelet else { return };
    let ms = |at: BootTime| at.signed_since(end.began) / 1_000_000;
    let _ = writeln!(text, "  lane of {} (-v={})", end.pod.name, lane.level.unwrap_or_default());
    for stage in &lane.stages {
        let _ = write!(text, "    {:>7} {}", ms(stage.from), stage.kind);
        if let Some(container) = &stage.container {
            let _ = write!(text, " {container}");
        }
        match stage.to {
            Some(to) if to > stage.from => {
                let _ = write!(text, " to {}", ms(to));
            }
            Some(_) => {}
            None => text.push_str(", end not logged"),
        }
        if stage.failed {
            text.push_str(", failed");
        }
        if let Some(wait) = stage.waited {
            let _ = write!(text, ", {} ms after {}", wait.time.as_millis(), wait.stage);
        }
        text.push('\n');
    }
    if !lane.not_logged.is_empty() {
        let hidden: Vec<_> = lane.not_logged.iter().map(|kind| kind.as_str()).collect();
        let _ = writeln!(text, "    not logged: {}", hidden.join(", "));
    }
    for trouble in &lane.troubles {
        let _ =
            writeln!(text, "    {:>7} ! {} {}", ms(trouble.at), trouble.statement, trouble.count);
    }
    for phase in end.phases.iter().filter(|phase| !phase.parts.is_empty()) {
        let _ = write!(text, "    {}:", phase.kind);
        for part in &phase.parts {
            let until = part.until.map_or("end", |stage| stage.as_str());
            let how = if part.by_its_end { "end of " } else { "" };
            let _ = write!(text, " {how}{until} +{}", part.to.since(part.from).as_millis());
        }
        text.push('\n');
    }
}

/// `kubelet.txt` is the truth of the kubelet's own words: for each recording the causes with log, Events, both and
/// neither, and the stages.
#[test]
fn causes_and_stages_are_those_of_the_truth_file() {
    let mut text = String::new();
    for name in RECORDINGS {
        let _ = writeln!(text, "{name}");
        let with_log = replays_with(name, LOG);
        let ways = [("none", NONE), ("log", LOG), ("events", EVENTS), ("both", BOTH)];
        let all = ways.map(|(way, words)| (way, causes(&replays_with(name, words))));
        for at in 0..all[0].1.len() {
            let mut shown: Vec<(String, &str)> = Vec::new();
            for (way, lines) in &all {
                match shown.iter_mut().find(|(_, line)| *line == lines[at]) {
                    Some((ways, _)) => *ways = format!("{ways}, {way}"),
                    None => shown.push(((*way).to_owned(), &lines[at])),
                }
            }
            for (ways, line) in shown {
                let _ = writeln!(text, "  {line} [{ways}]");
            }
        }
        with_log.terminations.values().flatten().for_each(|end| lane(&mut text, end));
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replay/kubelet.txt");
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(golden).unwrap(), text, "UPDATE_GOLDEN=1 writes it again");
}

#[test]
fn log_and_events_prove_each_cause_of_a_restart_which_is_inferred_or_unknown_without_them() {
    each(|name| {
        if !name.starts_with("k1.36-restarts/") {
            return;
        }
        let [without, with] = [NONE, BOTH].map(|words| causes(&replays_with(name, words)));
        assert_eq!(without.len(), with.len());
        for (without, with) in without.iter().zip(&with) {
            let cause = |line: &str| line.split(' ').nth(1).map(str::to_owned);
            let same = cause(without) == cause(with);
            let unknown = without.contains(": unknown ") && !without.contains(" proven ");
            assert!(with.contains(" proven ") && (same || unknown), "{without}; {with}");
        }
    });
}

fn lane_of(name: &str, pod: &str) -> (PodTermination, KubeletLane) {
    let said = replays_with(name, LOG);
    let end = said.terminations[pod][0].clone();
    let lane = end.kubelet.clone().expect("the log was read");
    (end, lane)
}

/// These stages, in this order. Each begins no earlier than the one before.
fn in_order(lane: &KubeletLane, wanted: &[Stage]) {
    let mut left = lane.stages.iter();
    for kind in wanted {
        assert!(left.any(|stage| stage.kind == *kind), "{kind} does not follow: {lane:#?}");
    }
}

/// Seed 000, and before it seed 001: the mirror is deleted and comes back, and its static pod does not notice. In this
/// recording the mirror pod's status is not written again before it is deleted: step 5 is of the new mirror pod.
#[test]
fn the_eight_steps_of_a_static_pod_and_its_mirror() {
    let (end, lane) = lane_of("k1.36-containerd2.1-systemd/static-and-mirror", "st-sysnode");
    in_order(
        &lane,
        &[
            Stage::MirrorCreate,
            Stage::MirrorRemoved,
            Stage::MirrorDelete,
            Stage::MirrorCreate,
            Stage::StatusUpdate,
            Stage::Noticed,
            Stage::Terminating,
            Stage::PreStop,
            Stage::Kill,
            Stage::Pleg,
            Stage::Terminated,
            Stage::Unmount,
            Stage::Cgroup,
            Stage::Housekeeping,
            Stage::MirrorDelete,
            Stage::MirrorRemoved,
            Stage::GarbageCollection,
        ],
    );
    assert!(lane.not_logged.is_empty() && lane.missing.is_empty(), "{lane:#?}");
    let at = |kind| lane.stages.iter().find(|stage| stage.kind == kind).unwrap();
    let after_end = at(Stage::GarbageCollection).from.since(end.ended);
    assert!(after_end > Duration::from_secs(10), "the collection comes after the report");
    assert_eq!(at(Stage::Terminated).waited.unwrap().stage, Stage::Pleg);
    for (name, pod) in [
        ("k1.33-containerd1.7/static-and-mirror", "st-rsnode"),
        ("k1.36-containerd2.1/static-and-mirror", "st-rsnode"),
    ] {
        let (_, lane) = lane_of(name, pod);
        in_order(&lane, &[Stage::MirrorDelete, Stage::MirrorCreate, Stage::Noticed, Stage::Kill]);
        in_order(&lane, &[Stage::Housekeeping, Stage::MirrorDelete, Stage::MirrorRemoved]);
        for hidden in [Stage::Terminating, Stage::Terminated, Stage::GarbageCollection] {
            assert!(lane.not_logged.contains(&hidden), "{name}: {lane:#?}");
        }
    }
}

/// Seed 003.
#[test]
fn the_stages_of_a_deletion_and_what_waited_for_what() {
    let (_, lane) = lane_of("k1.36-containerd2.1-systemd/prestop-then-handled", "a");
    in_order(
        &lane,
        &[
            Stage::Noticed,
            Stage::Terminating,
            Stage::PreStop,
            Stage::Kill,
            Stage::Terminated,
            Stage::Cgroup,
            Stage::Removed,
            Stage::GarbageCollection,
        ],
    );
    let waited = |kind| lane.stages.iter().find(|stage| stage.kind == kind).unwrap().waited;
    assert_eq!(waited(Stage::Kill).unwrap().stage, Stage::PreStop);
    assert_eq!(waited(Stage::ApiDelete).unwrap().stage, Stage::Terminated);
    assert_eq!(waited(Stage::GarbageCollection).unwrap().stage, Stage::Removed);
}

/// What may happen to a log on its way.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    /// It comes this much later.
    Late(u64),
    /// Each tenth line ends in its middle, and the next one follows without a newline.
    Torn,
    /// The first half was rotated away before it was read.
    Rotated,
    /// It was written a year before, in another boot.
    OtherBoot,
}

fn mishap(name: &str, mishap: Mishap) -> Said {
    let recording = import::load(&dir(name));
    let (anchor, mut inputs) = (recording.anchor, recording.inputs);
    let first = inputs[0].at;
    let mut text = import::unpacked(&dir(name).join("kubelet.log.gz"));
    match mishap {
        Mishap::Late(_) => {}
        Mishap::Torn => {
            let lines = text.split_inclusive(|byte| *byte == b'\n').enumerate();
            let torn = |(at, line): (usize, &[u8])| {
                if at % 10 == 0 { line[..line.len() / 2].to_vec() } else { line.to_vec() }
            };
            text = lines.flat_map(torn).collect();
        }
        Mishap::Rotated => drop(text.drain(..text.len() / 2)),
        Mishap::OtherBoot => {
            let header = |line: &[u8]| {
                let at = line.iter().position(|byte| matches!(byte, b'I' | b'W' | b'E'));
                [&line[..at.unwrap_or(0)], b"I0101", &line[at.unwrap_or(0)..][5.min(line.len())..]]
                    .concat()
            };
            let lines = text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.len() > 40);
            text = lines.flat_map(header).collect();
        }
    }
    let mut said = import::kubelet_log(&text, anchor, first);
    if let Mishap::Late(seconds) = mishap {
        said.iter_mut().for_each(|one| one.at = one.at + Duration::from_secs(seconds));
    }
    if matches!(mishap, Mishap::OtherBoot) {
        let entry = |one: &&Received| matches!(one.input, Input::Kubelet(KubeletEvent::Entry(_)));
        assert_eq!(said.iter().filter(entry).count(), 0, "{name}");
    }
    inputs.extend(said);
    inputs.sort_by_key(|one| one.at);
    run(anchor, inputs)
}

#[test]
fn a_log_that_is_late_torn_rotated_or_of_another_boot_changes_no_verdict() {
    each(|name| {
        let without = verdicts(&replays_with(name, NONE));
        for how in [
            Mishap::Late(1),
            Mishap::Late(20),
            Mishap::Late(600),
            Mishap::Torn,
            Mishap::Rotated,
            Mishap::OtherBoot,
        ] {
            assert_eq!(verdicts(&mishap(name, how)), without, "{how:?}");
        }
    });
}
