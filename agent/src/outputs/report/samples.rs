//! Reports for the tests, most of them those that pin the API's form, and the comparison with golden files.

use coroner_core::{
    ids::PodRef,
    input::{ConnectionEvent, TrafficPeer, Workload},
    leak::Leak,
    report::{Finding, Milestone, OpenConnections, Phase, PodTermination, Traffic, TrafficShare},
    time::{Anchor, BootTime, Moment},
    types::{FindingKind, MilestoneKind, PhaseKind, Source},
};
use serde::de::DeserializeOwned;
use std::{path::Path, time::Duration};

/// Compares with `tests/golden/NAME`; with `UPDATE_GOLDEN` set it writes the file instead.
pub(crate) fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; UPDATE_GOLDEN=1 writes it", path.display()));
    assert!(text == wanted, "{name} differs; UPDATE_GOLDEN=1 accepts this:\n{text}");
}

/// By which the samples are dated.
pub(crate) const CLOCK: Anchor =
    Anchor { boot_ns: 1_000_000_000_000, wall_ns: 1_790_000_000_000_000_000 };

/// One of the examples of the API.
pub(crate) fn example<T: DeserializeOwned>(name: &str) -> T {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("report/tests/golden");
    serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
}

/// Milliseconds after the delete request, at 1000 s of the boot clock.
fn ms(millis: u64) -> Moment {
    Moment::of_boot(BootTime((1_000_000 + millis) * 1_000_000), &CLOCK)
}

fn milestones(all: &[(MilestoneKind, u64, Source)]) -> Vec<Milestone> {
    let uncertainty = |source| match source {
        Source::Cri => Duration::from_millis(250),
        _ => Duration::ZERO,
    };
    all.iter()
        .map(|&(kind, at, source)| Milestone {
            kind,
            at: ms(at),
            uncertainty: uncertainty(source),
            source,
        })
        .collect()
}

fn phases(all: &[(PhaseKind, u64)]) -> Vec<Phase> {
    let mut from = 0;
    all.iter()
        .map(|&(kind, to)| {
            let took = Duration::from_millis(to - from);
            let (from_at, uncertainty) = (ms(from), Duration::ZERO);
            let phase = Phase { kind, from: from_at, to: ms(to), took, uncertainty };
            from = to;
            phase
        })
        .collect()
}

/// preStop 3 s, a handler of 1 s, grace 30.
pub(crate) fn graceful() -> PodTermination {
    use MilestoneKind::*;
    use Source::*;
    let own = [
        (StopBegan, 152, Kernel),
        (PreStopBegan, 152, Kernel),
        (PreStopEnded, 3_161, Kernel),
        (TermSent, 3_174, Kernel),
        (TermHandled, 3_174, Kernel),
        (Exited, 4_177, Kernel),
        (CgroupEmpty, 4_178, Kernel),
    ];
    let mut all = vec![(DeleteRequested, 0, Api)];
    all.extend(own);
    all.extend([(ContainerExited, 4_198, Cri), (SandboxStopped, 4_310, Cri)]);
    all.push((ObjectGone, 5_402, Api));
    let mut account = two_containers();
    account.containers.truncate(1);
    let death = &mut account.containers[0];
    (death.grace_seconds, death.grace_ratio) = (Some(30), Some(0.1342));
    account.critical = Some(death.id.clone());
    account.grace_seconds = Some(30);
    (account.ended, account.took) = (ms(5_402), Duration::from_millis(5_402));
    account.milestones = milestones(&all);
    account.phases = phases(&[
        (PhaseKind::KubeletReaction, 152),
        (PhaseKind::PreStop, 3_161),
        (PhaseKind::StopCall, 3_174),
        (PhaseKind::Shutdown, 4_177),
        (PhaseKind::Reap, 4_178),
        (PhaseKind::RuntimeNotice, 4_198),
        (PhaseKind::SandboxStop, 4_310),
        (PhaseKind::Cleanup, 5_402),
    ]);
    account.findings.clear();
    account.incomplete.clear();
    account
}

/// [`graceful`], of another pod.
pub(crate) fn of(namespace: &str, name: &str, uid: &str, life: u32) -> PodTermination {
    let pod = PodRef { namespace: namespace.into(), name: name.into(), uid: uid.into() };
    PodTermination { pod, life, ..graceful() }
}

/// One is graceful, the other ignores SIGTERM until SIGKILL; evidence was lost.
pub(crate) fn two_containers() -> PodTermination {
    let mut account = sandbox_removed();
    account.milestones.pop();
    account
}

/// The same with its second tail: the kubelet's garbage collection removed the sandbox.
pub(crate) fn sandbox_removed() -> PodTermination {
    PodTermination { node: String::new(), ..example("termination.json") }
}

/// The same, with what it cost its clients: it closed its listener at once, and they kept coming.
pub(crate) fn with_traffic(mut account: PodTermination) -> PodTermination {
    use ConnectionEvent as E;
    use TrafficPeer::{Client, Node};
    let share = |(peer, event, count, first, last)| TrafficShare {
        peer,
        event,
        count,
        first: ms(first),
        last: ms(last),
    };
    let open = |established| Some(OpenConnections { established, listening: vec![8080] });
    let counts = [
        (Client, E::Opened, 31, 40, 3_160),
        (Client, E::ListenerClosed, 1, 3_190, 3_190),
        (Client, E::RefusedAfterStop, 17, 3_204, 4_170),
        (Node, E::RefusedAfterStop, 1, 3_900, 3_900),
        (Client, E::CutIdle, 19, 4_177, 4_177),
        (Client, E::Cut, 4, 4_177, 4_177),
    ];
    account.traffic = Some(Traffic {
        not_visible: None,
        since: ms(9),
        until: ms(4_178),
        stopped: Some(ms(3_174)),
        sees_refusals: true,
        at_begin: open(12),
        at_stop: open(23),
        counts: counts.into_iter().map(share).collect(),
    });
    account.workload = Some(Workload { kind: "Deployment".into(), name: "web".into() });
    account.findings.push(Finding::new(
        FindingKind::ConnectionsCut,
        "The exit of the process cut 4 connection(s) in the middle of a request (the client had sent data last); 19 \
         more were idle.",
    ));
    let at = |kind, at| (kind, at, Source::Kernel);
    account.milestones.extend(milestones(&[
        at(MilestoneKind::LastNewConnection, 3_160),
        at(MilestoneKind::ListenerClosed, 3_190),
    ]));
    account.milestones.sort_by_key(|milestone| milestone.at);
    account
}

/// The watch of the apiserver was away for 90 s, and the object was gone when it was back.
pub(crate) fn gone_in_an_outage() -> PodTermination {
    let mut account = graceful();
    let outage = Duration::from_secs(90);
    account.ended = ms(95_402);
    account.took += outage;
    account.uncertainty = outage;
    let gone = |milestone: &&mut Milestone| milestone.kind == MilestoneKind::ObjectGone;
    let gone = account.milestones.iter_mut().find(gone).expect("it is gone");
    (gone.at, gone.uncertainty) = (account.ended, outage);
    let cleanup = account.phases.last_mut().expect("its clean-up");
    (cleanup.to, cleanup.took, cleanup.uncertainty) =
        (account.ended, cleanup.took + outage, outage);
    account
}

/// Killed at once, of a second life, and its beginning was not seen.
pub(crate) fn second_life() -> PodTermination {
    example("unfinished.json")
}

/// The story of seed 002: stopped, its pod gone, passed by for 92 days.
pub(crate) fn leaked() -> Leak {
    Leak { node: String::new(), ..example("leak.json") }
}

pub(crate) fn stuck() -> Leak {
    example("stuck.json")
}
