//! The benchmarks: builds what is shipped, and starts the lab's command, which measures it.

use anyhow::{Context as _, Result, ensure};

use crate::{
    build::{self, Profile},
    run,
    workspace::Workspace,
};

pub(crate) const SUBJECTS: [&str; 4] = ["kernel", "storm", "accuracy", "node"];

/// Measures one subject, or all, one after the other: their output is all there is on stdout.
///
/// # Errors
/// Something does not build, or a subject cannot be measured.
pub(crate) fn run(workspace: &Workspace, subject: Option<&str>, is_brief: bool) -> Result<()> {
    let binaries = build::all(workspace, Profile::Release)?;
    let mut failed = Vec::new();
    for name in SUBJECTS.into_iter().filter(|name| subject.is_none_or(|subject| subject == *name)) {
        let mut bench = run::command(workspace, &binaries, &["bench", name]);
        let status = bench.args(is_brief.then_some("--brief")).status();
        failed.extend((!status.context("cannot start the lab")?.success()).then_some(name));
    }
    ensure!(failed.is_empty(), "could not measure: {}", failed.join(", "));
    Ok(())
}
