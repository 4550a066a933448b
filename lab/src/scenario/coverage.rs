//! What the catalogue covers of all that the agent can say. Something new that it can say fails
//! these tests until a scenario shows it, or the reason why none can is written down here.

use super::{Scenario, catalogue};
use coroner::domain::observation::{Cause, FindingKind, Verdict};
use std::{collections::BTreeSet, fmt::Debug};

/// What no machine can be made to show by itself, and why.
type Excluded<T> = &'static [(T, &'static str)];

const VERDICTS: Excluded<Verdict> = &[];
const CAUSES: Excluded<Cause> = &[];
const FINDINGS: Excluded<FindingKind> = &[
    (
        FindingKind::Contradiction,
        "containerd hears of an end that it slept through from the shim, mostly: only the \
         recording k1.33-containerd1.7/containerd-killed shows what is told where it does not",
    ),
    (
        FindingKind::Unkillable,
        "a process that SIGKILL does not end needs a device or a file system that hangs: the v1 \
         freezer would do, but is not there on a machine that has cgroup v2 alone",
    ),
    (
        FindingKind::UnsupportedRuntime,
        "needs Kata or gVisor as a second runtime, and Kata a machine that can run guests",
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

#[test]
fn every_finding_is_shown() {
    check(FindingKind::ALL, FINDINGS, |scenario| scenario.expected.findings.clone());
}
