//! The benchmarks: builds what is shipped and hands over to the lab, which measures it.

use std::ffi::OsString;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;

use crate::{
    build::{self, Profile},
    cli::Subject,
    run,
    workspace::Workspace,
};

/// Measures `subjects`, one after the other: their output is all there is on stdout.
///
/// # Errors
/// Something does not build, or a subject misses a goal or cannot measure.
pub(crate) fn run(
    workspace: &Workspace,
    subjects: &[Subject],
    is_brief: bool,
    arguments: &[OsString],
) -> Result<()> {
    let binaries = build::all(workspace, Profile::Release)?;
    let mut failed = Vec::new();
    for subject in subjects {
        let mut bench = run::command(workspace, &binaries, &["bench", subject.name()]);
        bench.args(if is_brief { subject.brief() } else { &[] }).args(arguments);
        let status = bench.status().context("cannot start the lab")?;
        failed.extend((!status.success()).then_some(subject.name()));
    }
    ensure!(failed.is_empty(), "missed a goal or could not measure: {}", failed.join(", "));
    Ok(())
}

/// All subjects.
///
/// # Errors
/// The same.
pub(crate) fn all(workspace: &Workspace, is_brief: bool) -> Result<()> {
    run(workspace, Subject::value_variants(), is_brief, &[])
}
