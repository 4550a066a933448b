//! The catalogue as a whole: its names, and what it covers of what the agent can report. A new verdict, finding or class
//! of leaks fails these tests until a scenario shows it, or the reason why none can is stated here.

use super::{Scenario, catalogue};
use coroner_core::{
    leak::LeakClass,
    types::{FindingKind, Verdict},
};
use std::{collections::BTreeSet, fmt::Debug};

const EXCLUDED_FINDINGS: [(FindingKind, &str); 3] = [
    (
        FindingKind::Contradiction,
        "containerd mostly learns of an exit that it missed: a recording shows it",
    ),
    (FindingKind::KubeletRestarted, "the driver is in the lab's own process: the engine's tests"),
    (FindingKind::UnsupportedRuntime, "needs Kata or gVisor as a second runtime"),
];
const EXCLUDED_CLASSES: [(LeakClass, &str); 1] =
    [(LeakClass::NotreadySuperseded, "the driver has no restart of a sandbox: the engine's tests")];

fn check<T: Copy + Ord + Debug>(
    all: &[T],
    excluded: &[(T, &str)],
    shows: impl Fn(&Scenario) -> Vec<T>,
) {
    let shown: BTreeSet<T> = catalogue().iter().flat_map(shows).collect();
    let excluded: BTreeSet<T> = excluded.iter().map(|(what, _)| *what).collect();
    let covered: BTreeSet<T> = shown.union(&excluded).copied().collect();
    assert_eq!(covered, all.iter().copied().collect(), "shown by a scenario, or excluded");
    assert!(shown.is_disjoint(&excluded), "shown, although excluded");
}

#[test]
fn every_verdict_finding_and_class_of_leaks_is_shown() {
    check(Verdict::ALL, &[], |scenario| {
        scenario.expected.containers.values().map(|death| death.verdict).collect()
    });
    check(FindingKind::ALL, &EXCLUDED_FINDINGS, |one| one.expected.findings.clone());
    check(LeakClass::ALL, &EXCLUDED_CLASSES, |scenario| {
        scenario.expected.leaks.iter().map(|leak| leak.class).collect()
    });
}

/// The names are those of pods, of tests and of folders.
#[test]
fn names_are_unique_labels() {
    let all = catalogue();
    let names: BTreeSet<&str> = all.iter().map(|one| one.name).collect();
    assert_eq!(names.len(), all.len());
    for name in names {
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
    }
}
