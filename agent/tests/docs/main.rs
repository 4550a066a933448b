//! The docs are true: what the agent can say is described, what they name exists, every link leads
//! somewhere.

mod kubelet;
mod licence;
mod links;
mod names;
mod pages;
mod paths;
#[path = "../rust_files/mod.rs"]
mod rust_files;

use coroner_core::{
    leak::{BlockedOn, DetectionState, LeakCause, LeakClass},
    types::{Cause, Contradiction, FindingKind, MilestoneKind, PhaseKind, Verdict},
};
use std::{fs, path::Path};

/// Each label is named in this file.
fn names_all(file: &str, labels: &[Vec<&str>]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(file);
    let text = fs::read_to_string(path).unwrap();
    for label in labels.concat() {
        assert!(text.contains(&format!("`{label}`")), "{label} is not in docs/{file}");
    }
}

#[test]
fn deaths_md_names_every_label() {
    let labels = [
        Contradiction::ALL.iter().map(|l| l.as_str()).collect(),
        FindingKind::ALL.iter().map(|l| l.as_str()).collect(),
        MilestoneKind::ALL.iter().map(|l| l.as_str()).collect(),
        PhaseKind::ALL.iter().map(|l| l.as_str()).collect(),
        Verdict::ALL.iter().map(|l| l.as_str()).collect(),
    ];
    names_all("deaths.md", &labels);
}

#[test]
fn causes_md_names_every_label() {
    names_all("causes.md", &[Cause::ALL.iter().map(|l| l.as_str()).collect()]);
}

/// At the beginning of a row: the tables are complete.
#[test]
fn leaks_md_has_a_row_for_every_label() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/leaks.md");
    let text = fs::read_to_string(path).unwrap();
    let rows = |labels: Vec<&str>| {
        for label in labels {
            let mut rows = text.lines().filter(|line| line.starts_with(&format!("| `{label}` |")));
            assert!(rows.next().is_some(), "{label} has no row in docs/leaks.md");
        }
    };
    let causes: Vec<_> = LeakCause::ALL.iter().map(|l| l.as_str()).collect();
    names_all("leaks.md", &[causes]);
    rows(LeakClass::ALL.iter().map(|l| l.as_str()).collect());
    rows(BlockedOn::ALL.iter().map(|l| l.as_str()).collect());
    rows(DetectionState::ALL.iter().map(|l| l.as_str()).collect());
}
