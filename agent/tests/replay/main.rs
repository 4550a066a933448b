//! Recordings of real nodes replay to the truth that their makers wrote down.

mod adversities;
mod events;
mod interleavings;
mod leaks;
mod live;
pub(crate) mod recordings;

use crate::random;
use coroner_core::{
    engine::{Engine, Settings},
    input::{ExitStatus, Input, Received},
    output::{Outputs, Report},
    report::{ContainerDeath, PodTermination},
    time::Anchor,
    types::{Cause, FindingKind, MilestoneKind, PhaseKind, Source},
};

use serde_json::Value;
use std::{collections::BTreeMap, fs, time::Duration};

/// The names of all but `k1.36-live`.
fn names() -> Vec<String> {
    let folders = fs::read_dir(recordings::path(".")).unwrap().map(|folder| folder.unwrap().path());
    let files = folders.filter(|path| path.is_dir()).flat_map(|path| fs::read_dir(path).unwrap());
    let name = |file: fs::DirEntry| {
        let path = file.path();
        let set = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        Some(format!("{set}/{}", path.file_name().unwrap().to_str()?.strip_suffix(".jsonl.gz")?))
    };
    let mut names: Vec<_> = files.filter_map(|file| name(file.unwrap())).collect();
    names.sort();
    assert_eq!(names.len(), 55);
    names
}

/// Beyond the last line: enough for the settle window.
const AFTER: Duration = Duration::from_secs(45);

/// What a replay said, by pod.
struct Said {
    terminations: BTreeMap<String, Vec<PodTermination>>,
    deaths: BTreeMap<String, Vec<ContainerDeath>>,
    late: usize,
}

/// Steps the engine through all inputs, with a tick each second between them and for `after` beyond the last one.
fn replay(engine: &mut Engine, inputs: Vec<Received>, after: Duration) -> Outputs {
    let mut out = Outputs::default();
    let (Some(first), Some(last)) = (inputs.first(), inputs.last()) else { return out };
    let (mut tick, end) = (first.at, last.at + after);
    let mut tick_until = |engine: &mut Engine, out: &mut Outputs, until| {
        while tick + Duration::from_secs(1) <= until {
            tick = tick + Duration::from_secs(1);
            out.append(engine.step(Received { at: tick, input: Input::Tick }));
        }
    };
    for input in inputs {
        tick_until(engine, &mut out, input.at);
        out.append(engine.step(input));
    }
    tick_until(engine, &mut out, end);
    out
}

fn run(anchor: Anchor, inputs: Vec<Received>) -> Said {
    let mut engine = Engine::new(Settings::new(anchor));
    collect(replay(&mut engine, inputs, AFTER))
}

fn collect(outputs: Outputs) -> Said {
    let mut said = Said { terminations: BTreeMap::new(), deaths: BTreeMap::new(), late: 0 };
    for report in outputs.reports {
        match report {
            Report::PodTerminated(t) => {
                said.terminations.entry(t.pod.name.clone()).or_default().push(*t);
            }
            Report::PodUpdated(t, change) => {
                said.late += usize::from(change.is_revision());
                let lives = said.terminations.get_mut(&t.pod.name).expect("updates what was said");
                let known = lives.iter_mut().find(|l| l.life == t.life).expect("of that life");
                *known = *t;
            }
            Report::ContainerDied(death) => {
                let pod = death.pod.as_ref().map(|p| p.name.clone()).unwrap_or_default();
                said.deaths.entry(pod).or_default().push(*death);
            }
            _ => {}
        }
    }
    said
}

fn replays_to_its_truth(name: &str) -> Said {
    let recording = recordings::load(name);
    let said = run(recording.anchor, recording.inputs);
    assert_eq!(said.late, 0, "{name}: nothing came later than the settle window");
    let pods = recording.truth["pods"].as_object().unwrap();
    let names: Vec<_> = pods.keys().map(|pod| pod.split_once('/').unwrap().1).collect();
    for (name, truth) in names.iter().zip(pods.values()) {
        let containers = truth["containers"].as_object().unwrap();
        if containers.values().all(|lives| lives.as_array().unwrap().is_empty()) {
            assert!(!said.terminations.contains_key(*name), "{name} still runs");
            continue;
        }
        let lives = said.terminations.get(*name).unwrap_or_else(|| panic!("{name} never ended"));
        let [end] = lives.as_slice() else { panic!("{name} ended {} times", lives.len()) };
        assert!(end.is_final, "all sources have reported what they will: {end:#?}");
        let deaths = &said.deaths[*name];
        check(end, deaths, truth);
        for death in &end.containers {
            let times = deaths.iter().filter(|d| d.id == death.id).count();
            assert_eq!(times, 1, "{} was told once", death.name);
        }
    }
    let others: Vec<_> = said.deaths.keys().filter(|n| !names.contains(&n.as_str())).collect();
    assert!(others.is_empty(), "nothing is told that the truth does not know: {others:?}");
    said
}

/// `deaths`: those that were told by themselves and those that the account tells.
fn check(end: &PodTermination, deaths: &[ContainerDeath], truth: &Value) {
    let shown = format!("{end:#?}");
    assert!(agrees(&truth["cause"], end.cause), "not {}: {shown}", truth["cause"]);
    if let Some(grace) = truth["grace_seconds"].as_i64() {
        assert_eq!(end.grace_seconds, Some(grace), "{shown}");
    }
    let sum: Duration = end.phases.iter().map(|p| p.to.since(p.from)).sum();
    assert_eq!(sum, end.took, "phases are additive: {shown}");
    for (container, lives) in truth["containers"].as_object().unwrap() {
        let mut deaths: Vec<_> = deaths.iter().filter(|c| &c.name == container).collect();
        deaths.sort_by_key(|d| d.milestones.first().map(|m| m.at));
        let lives = lives.as_array().unwrap();
        assert_eq!(deaths.len(), lives.len(), "lives of {container}: {deaths:#?}");
        for (death, life) in deaths.iter().zip(lives) {
            check_death(death, life);
        }
    }
    let findings: Vec<(FindingKind, &str)> = end
        .containers
        .iter()
        .flat_map(|c| &c.findings)
        .chain(&end.findings)
        .map(|f| (f.kind, f.detail.as_str()))
        .collect();
    for expected in truth["findings"].as_array().into_iter().flatten() {
        let expected = expected.as_str().unwrap();
        let kind = expected.split([':', ' ']).next().unwrap();
        assert!(findings.iter().any(|(k, _)| k.as_str() == kind), "{expected}: {findings:?}");
    }
}

/// Where no source states the cause it is not known; `causes.txt` says where that is.
fn agrees(truth: &Value, cause: Cause) -> bool {
    truth == cause.as_str() || matches!(cause, Cause::Restart | Cause::Unknown)
}

fn check_death(death: &ContainerDeath, life: &Value) {
    let shown = format!("{death:#?}");
    assert_eq!(life["verdict"], death.verdict.as_str(), "{shown}");
    if let Some(cause) = life["cause"].as_str() {
        let also = life["cause_also"].as_array().into_iter().flatten();
        let any = also.chain([&life["cause"]]).any(|cause| agrees(cause, death.cause));
        assert!(any, "not {cause}: {shown}");
    }
    if let Some(grace) = life["grace_seconds"].as_i64() {
        let is_known = !matches!(death.cause, Cause::Restart | Cause::Unknown);
        assert_eq!(death.grace_seconds, is_known.then_some(grace), "{shown}");
    }
    if let Some(code) = life["exit_code"].as_u64() {
        assert_eq!(death.exit, Some(ExitStatus::Code(code as u8)), "{shown}");
    }
    if let Some(signal) = life["signal"].as_u64() {
        let ended_by = matches!(
            death.exit,
            Some(ExitStatus::Signal { signal: by, .. }) if u64::from(by) == signal
        );
        assert!(ended_by, "{shown}");
    }
    if let Some(children) = life["children_killed_with_namespace"].as_u64() {
        assert_eq!(u64::from(death.children_killed), children, "{shown}");
    }
    if let Some(seconds) = life["term_to_exit_seconds"].as_f64() {
        let at = |kind| death.milestone(kind).unwrap().at;
        let measured = at(MilestoneKind::Exited).since(at(MilestoneKind::TermSent));
        assert!((measured.as_secs_f64() - seconds).abs() < 0.1, "{measured:?}: {shown}");
    }
}

fn finding(end: &PodTermination, kind: FindingKind) -> Option<&str> {
    let of_containers = end.containers.iter().flat_map(|c| &c.findings);
    end.findings.iter().chain(of_containers).find(|f| f.kind == kind).map(|f| f.detail.as_str())
}

type Check = fn(&PodTermination);

/// What is asked of a pod of a recording beside its truth.
const MORE: [(&str, &str, Check); 11] = [
    ("k1.33-containerd1.7/prestop-then-handled", "a", |end| {
        let death = &end.containers[0];
        let at = |kind| death.milestone(kind).unwrap().at;
        let hook = at(MilestoneKind::PreStopEnded).since(at(MilestoneKind::PreStopBegan));
        assert!((hook.as_secs_f64() - 3.0).abs() < 0.05, "{hook:?}");
        assert_eq!(finding(end, FindingKind::PrestopCutOff), None);
        assert_eq!(death.grace_seconds, Some(15));
        let of_pod = |kind| end.milestone(kind).unwrap().at;
        let (empty, reported) =
            (at(MilestoneKind::CgroupEmpty), of_pod(MilestoneKind::StatusReported));
        assert!(empty < reported && reported < of_pod(MilestoneKind::ObjectGone));
    }),
    ("k1.33-containerd1.7/overrun", "c", |end| {
        let detail = finding(end, FindingKind::ChildrenNotSignalled).expect("it got nothing");
        assert!(detail.contains("(sleep)"), "{detail}");
        assert_eq!(finding(end, FindingKind::DeadlineMissed), None);
    }),
    ("k1.33-containerd1.7/force-delete", "f", |end| {
        let detail = finding(end, FindingKind::OutlivedObject).expect("they outlived it");
        assert!(detail.contains("1.0 s"), "{detail}");
    }),
    ("k1.33-containerd1.7/containerd-killed", "l", |end| {
        let findings = &end.containers[0].findings;
        let says =
            "The API reports exit code 255 and phase Failed, the kernel recorded exit code 0.";
        assert!(findings.iter().any(|one| one.detail == says), "{findings:?}");
    }),
    // Asked for 3 s; the apiserver made it 1 from that moment on, for the 3 s had passed.
    ("k1.33-containerd1.7/grace-shortened", "g", |end| {
        assert_eq!(end.shortened_to_seconds, Some(1));
        let shortened = end.milestone(MilestoneKind::GraceShortened).unwrap();
        assert_eq!(shortened.at.since(end.began).as_secs(), 6);
        // 60 s of the 8 s that it had in the end: 6, and the kubelet's floor of 2.
        let ratio = end.containers[0].grace_ratio.unwrap();
        assert!((7.2..7.7).contains(&ratio), "{ratio}");
        let detail = finding(end, FindingKind::DeadlineMissed).unwrap();
        let says = "It ended 52.8 s after its deadline: a later request";
        assert!(detail.starts_with(says), "{detail}");
    }),
    ("k1.33-containerd1.7/prestop-longer-than-grace", "d", |end| {
        assert!(finding(end, FindingKind::PrestopCutOff).is_some());
        let hook = end.phase(PhaseKind::PreStop).as_secs_f64();
        assert!((hook - 5.0).abs() < 0.2, "the budget is min(preStop, grace): {hook}");
    }),
    ("k1.33-containerd1.7/prestop-sleep-action", "e", |end| {
        assert_eq!(end.phase(PhaseKind::PreStop).as_secs(), 3);
        let reaction = end.phase(PhaseKind::KubeletReaction);
        assert!(reaction.as_secs_f64() < 0.5, "{reaction:?}");
        for kind in [MilestoneKind::PreStopBegan, MilestoneKind::PreStopEnded] {
            assert_eq!(end.milestone(kind).unwrap().source, Source::Inferred);
        }
    }),
    ("k1.33-containerd1.7/sidecar-order", "j", sidecar_waited),
    ("k1.36-containerd2.1/sidecar-order", "j", sidecar_waited),
    ("k1.33-containerd1.7/static-and-mirror", "st-rsnode", eight_steps),
    ("k1.36-containerd2.1/static-and-mirror", "st-rsnode", eight_steps),
];

/// Main took 4 s from its stop signal; the sidecar's came after it.
fn sidecar_waited(end: &PodTermination) {
    let side = end.containers.iter().find(|c| c.name == "side").unwrap();
    assert_eq!(end.critical.as_ref(), Some(&side.id));
    assert_eq!(end.phase(PhaseKind::SidecarWait).as_secs(), 4);
    assert!(side.grace_ratio.unwrap() < 0.3, "it is not late: {side:#?}");
    assert_eq!(finding(end, FindingKind::DeadlineMissed), None);
}

/// The eight steps of a static pod's removal, as far as the three sources show them: the kubelet's
/// own (its decision, its pod worker, PLEG) are in none, and these mirrors went before their status
/// was brought up to date.
fn eight_steps(end: &PodTermination) {
    let order = [
        MilestoneKind::StopBegan,
        MilestoneKind::Exited,
        MilestoneKind::CgroupEmpty,
        MilestoneKind::ContainerExited,
        MilestoneKind::SandboxStopped,
        MilestoneKind::CgroupRemoved,
        MilestoneKind::ObjectGone,
        MilestoneKind::SandboxRemoved,
    ];
    let at = |kind| end.milestone(kind).map(|m| m.at);
    let shown = order.map(at);
    assert!(shown.iter().all(Option::is_some) && shown.is_sorted(), "{shown:?}");
    assert_eq!(at(MilestoneKind::DeleteRequested), None, "nobody asked the apiserver");
}

#[test]
fn each_recording_replays_to_its_truth() {
    let mut more = 0;
    for name in names() {
        println!("{name}"); // the one that fails is the last
        let said = replays_to_its_truth(&name);
        for (_, pod, check) in MORE.iter().filter(|(of, ..)| *of == name) {
            check(&said.terminations[*pod][0]);
            more += 1;
        }
    }
    assert_eq!(more, MORE.len());
}
