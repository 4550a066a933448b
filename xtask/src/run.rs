//! The lab's own commands: builds what they need and hands over to the lab.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    build::{self, Binaries, Profile},
    root, setup,
    workspace::Workspace,
};

/// A command of the lab's, with the binaries of this build.
pub(crate) fn command(workspace: &Workspace, binaries: &Binaries, words: &[&str]) -> Command {
    let mut lab = root::command(workspace, &binaries.lab);
    lab.env("CORONER_LAB_TOOLS", workspace.tools())
        .env("CORONER_FAILED_DIR", workspace.failed())
        .args(words);
    lab.arg("--agent").arg(&binaries.agent).arg("--workload").arg(&binaries.workload);
    lab
}

/// Becomes the lab: its output is all there is on stdout, its exit code is this command's.
///
/// # Errors
/// Something is missing, does not build, or the lab cannot be started.
pub(crate) fn become_the_lab(
    workspace: &Workspace,
    word: &str,
    profile: Profile,
    arguments: &[OsString],
) -> Result<std::convert::Infallible> {
    let shows_only = arguments.iter().any(|one| one == "--help" || one == "-h" || one == "--list");
    if !shows_only {
        root::demand()?;
    }
    setup::ensure(workspace, &[setup::BUILD, setup::LAB].concat())?;
    let binaries = build::all(workspace, profile)?;
    let mut lab = match shows_only {
        true => Command::new(&binaries.lab),
        false => command(workspace, &binaries, &[]),
    };
    root::give_back(workspace)?;
    Err(lab.arg(word).args(arguments).exec())
        .with_context(|| format!("cannot start {}", binaries.lab.display()))
}
