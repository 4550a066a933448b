//! The benchmarks: build what is shipped and hand over to what measures it.

mod baseline;

use std::{ffi::OsString, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    build::{self, Binaries, Profile},
    cli::Subject,
    root, run, setup,
    workspace::Workspace,
};

/// Runs the benchmarks of `subjects`, each in the lab with its `arguments`: their output is all there is
/// on stdout. Returns those that missed a goal or could not measure.
///
/// # Errors
/// When something is missing, does not build, or the lab cannot be started.
pub(crate) fn run(
    workspace: &Workspace,
    subjects: &[Subject],
    arguments: impl Fn(Subject) -> Vec<OsString>,
    list_only: bool,
) -> Result<Vec<Subject>> {
    if !list_only {
        root::demand()?;
    }
    let more = subjects.iter().flat_map(|subject| subject.needs());
    let needs = [setup::BUILD, setup::LAB].concat().into_iter().chain(more.copied());
    setup::ensure(workspace, &needs.collect::<Vec<_>>(), list_only)?;
    let binaries = build::all(workspace, Profile::Release)?;
    let mut failed = Vec::new();
    for subject in subjects {
        if !measure(workspace, &binaries, *subject, &arguments(*subject))? {
            failed.push(*subject);
        }
    }
    Ok(failed)
}

fn measure(
    workspace: &Workspace,
    binaries: &Binaries,
    subject: Subject,
    arguments: &[OsString],
) -> Result<bool> {
    let status = command(workspace, binaries, subject)?
        .args(arguments)
        .status()
        .with_context(|| format!("cannot start {}", binaries.lab.display()))?;
    Ok(status.success())
}

/// Runs the engine's benchmark beside that of an earlier commit; whether it is fast enough.
///
/// # Errors
/// When something is missing, does not build, or a run fails.
pub(crate) fn compare(
    workspace: &Workspace,
    revision: &str,
    json: bool,
    list_only: bool,
) -> Result<bool> {
    setup::ensure(workspace, &[setup::BUILD, setup::LAB].concat(), list_only)?;
    let binaries = build::all(workspace, Profile::Release)?;
    baseline::compare(workspace, &binaries, revision, json)
}

/// The lab's benchmark of a subject, of these binaries.
///
/// # Errors
/// When this is neither root nor able to become it.
pub(crate) fn command(
    workspace: &Workspace,
    binaries: &Binaries,
    subject: Subject,
) -> Result<Command> {
    run::command(workspace, binaries, &format!("bench {}", subject.name()))
}
