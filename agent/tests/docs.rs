//! The reference of what is said of a death names every label there is.

use coroner::domain::observation::{
    Cause, Contradiction, FindingKind, MilestoneKind, PhaseKind, Verdict,
};
use std::{fs, path::Path};

#[test]
fn deaths_md_names_every_label() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/deaths.md");
    let text = fs::read_to_string(path).unwrap();
    let labels = [
        Cause::ALL.iter().map(|l| l.as_str()).collect::<Vec<_>>(),
        Contradiction::ALL.iter().map(|l| l.as_str()).collect(),
        FindingKind::ALL.iter().map(|l| l.as_str()).collect(),
        MilestoneKind::ALL.iter().map(|l| l.as_str()).collect(),
        PhaseKind::ALL.iter().map(|l| l.as_str()).collect(),
        Verdict::ALL.iter().map(|l| l.as_str()).collect(),
    ];
    for label in labels.concat() {
        assert!(text.contains(&format!("`{label}`")), "{label} is not in docs/deaths.md");
    }
}
