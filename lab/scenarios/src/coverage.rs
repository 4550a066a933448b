//! What the catalogue covers of all that the agent can say. Something new that it can say fails
//! these tests until a scenario shows it, or the reason why none can is written down here.

use super::{Scenario, When, catalogue};
use coroner_core::{
    leak::{BlockedOn, DetectionState, LeakCause, LeakClass},
    types::{Cause, FindingKind, Verdict},
};
use std::{collections::BTreeSet, fmt::Debug};

/// What no machine can be made to show by itself, and why.
type Excluded<T> = &'static [(T, &'static str)];

const VERDICTS: Excluded<Verdict> = &[];
const CAUSES: Excluded<Cause> = &[(
    Cause::Unknown,
    "the log of the lab's kubelet is complete: what is reported without one, replays show",
)];
const FINDINGS: Excluded<FindingKind> = &[
    (
        FindingKind::Contradiction,
        "containerd hears of an end that it slept through from the shim, mostly: only the \
         recording k1.33-containerd1.7/containerd-killed shows what is told where it does not",
    ),
    (
        FindingKind::KubeletRestarted,
        "the lab's kubelet lives in the lab's own process: the engine's tests",
    ),
    (
        FindingKind::UnsupportedRuntime,
        "needs Kata or gVisor as a second runtime, and Kata a machine that can run guests",
    ),
];

const LEAK_CLASSES: Excluded<LeakClass> = &[(
    LeakClass::NotreadySuperseded,
    "the lab's collector removes it within a second, as the real one does within a minute",
)];
const LEAK_CAUSES: Excluded<LeakCause> = &[
    (LeakCause::RuntimeRestarted, "concluded of kubelets without the bugs only: a replay shows it"),
    (LeakCause::VolumeBusy, "the lab's pods have no volumes but the host's paths"),
    (LeakCause::KubeletDown, "the lab's kubelet lives in the lab's own process"),
    (LeakCause::RuntimeFailing, "needs a runtime that cannot kill"),
];
const STUCK_REASONS: Excluded<BlockedOn> = &[
    (BlockedOn::KubeletGone, "the lab's kubelet lives in the lab's own process"),
    (BlockedOn::RuntimeFailing, "needs a runtime that cannot kill"),
    (BlockedOn::VolumeMounted, "the lab's pods have no volumes but the host's paths"),
    (BlockedOn::CgroupBusy, "a process that outlives its container, in the pod's cgroup"),
    (BlockedOn::Unknown, "nothing is arranged so that nobody can tell"),
];
const JUDGEMENTS: Excluded<DetectionState> = &[
    (DetectionState::Starting, "waited for before anything is played"),
    (DetectionState::NoApi, "the lab has an apiserver"),
    (
        DetectionState::NodeUnknown,
        "an apiserver that refuses one request alone: the adapter's tests",
    ),
];

fn check<T: Copy + Ord + Debug>(
    all: &[T],
    excluded: Excluded<T>,
    shown: impl Fn(&Scenario) -> Vec<T>,
) {
    let shown: BTreeSet<T> = catalogue().iter().flat_map(shown).collect();
    let excluded: BTreeSet<T> = excluded.iter().map(|(what, _)| *what).collect();
    let missing: Vec<T> =
        all.iter().filter(|one| !shown.contains(one) && !excluded.contains(one)).copied().collect();
    assert!(missing.is_empty(), "no scenario shows {missing:?}");
    let both: Vec<&T> = shown.intersection(&excluded).collect();
    assert!(both.is_empty(), "shown, though said to be impossible: {both:?}");
}

#[test]
fn every_verdict_is_shown() {
    check(Verdict::ALL, VERDICTS, |scenario| {
        let expected = &scenario.expected;
        let earlier = expected.earlier.iter().map(|earlier| earlier.death.verdict);
        expected.containers.values().map(|death| death.verdict).chain(earlier).collect()
    });
}

#[test]
fn every_cause_is_shown() {
    check(Cause::ALL, CAUSES, |scenario| {
        let expected = &scenario.expected;
        let earlier = expected.earlier.iter().map(|earlier| earlier.cause);
        std::iter::once(expected.cause).chain(earlier).collect()
    });
}

/// docs/causes.md says which scenario shows which reason.
#[test]
fn causes_md_names_every_scenario_of_a_cause() {
    const TABLE: &str = "## Scenarios";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/causes.md");
    let text = std::fs::read_to_string(path).unwrap();
    let section =
        text.split("\n## ").find(|section| TABLE.ends_with(section.lines().next().unwrap()));
    let rows =
        section.unwrap().lines().filter_map(|line| line.rsplit_once(" | ")?.1.strip_suffix(" |"));
    let named: BTreeSet<&str> = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    let all = catalogue();
    let known: BTreeSet<&str> = all.iter().map(|scenario| scenario.name).collect();
    let of_causes = all.iter().filter(|scenario| scenario.group == "causes");
    let of_causes: BTreeSet<&str> = of_causes.map(|scenario| scenario.name).collect();
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "docs/causes.md names no scenario of the catalogue: {unknown:?}");
    let missing: Vec<_> = of_causes.difference(&named).collect();
    assert!(missing.is_empty(), "no row of docs/causes.md names {missing:?}");
}

#[test]
fn every_finding_is_shown() {
    check(FindingKind::ALL, FINDINGS, |scenario| scenario.expected.findings.clone());
}

#[test]
fn everything_that_can_be_left_behind_is() {
    check(LeakClass::ALL, LEAK_CLASSES, |scenario| {
        scenario.expected.leaks.iter().map(|leak| leak.class).collect()
    });
    check(LeakCause::ALL, LEAK_CAUSES, |scenario| {
        scenario.expected.leaks.iter().map(|leak| leak.cause).collect()
    });
    check(BlockedOn::ALL, STUCK_REASONS, |scenario| {
        scenario.expected.leaks.iter().filter_map(|leak| leak.blocked_on).collect()
    });
}

#[test]
fn every_judgement_is_waited_for() {
    check(DetectionState::ALL, JUDGEMENTS, |scenario| {
        let judgement = |when| match when {
            When::Judged(judgement) => Some(judgement),
            _ => None,
        };
        scenario.steps.iter().filter_map(|step| judgement(step.when)).collect()
    });
}
