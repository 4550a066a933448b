//! The tour, chaos and the soak: builds what is needed and hands over to the lab.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    build::{self, Binaries, Profile},
    root, setup,
    workspace::Workspace,
};

/// A command of the lab's, with the binaries of this build.
///
/// # Errors
/// When this is neither root nor able to become it.
pub(crate) fn command(
    workspace: &Workspace,
    binaries: &Binaries,
    command: &str,
) -> Result<Command> {
    let mut lab = root::command(workspace, &binaries.lab)?;
    lab.envs(workspace.for_lab()).env("CORONER_FAILED_DIR", workspace.failed());
    lab.args(command.split(' '))
        .arg("--agent")
        .arg(&binaries.agent)
        .arg("--workload")
        .arg(&binaries.workload);
    Ok(lab)
}

/// Becomes the lab: its output is all there is on stdout, its exit code is ours.
///
/// # Errors
/// When something is missing, does not build, or the lab cannot be started.
pub(crate) fn lab(
    workspace: &Workspace,
    command: &str,
    profile: Profile,
    list_only: bool,
    arguments: &[OsString],
) -> Result<std::convert::Infallible> {
    let shows = |one: &OsString| ["--help", "-h", "--list"].iter().any(|flag| one == flag);
    let shows_only = arguments.iter().any(shows);
    if !list_only && !shows_only {
        root::demand()?;
    }
    setup::ensure(workspace, &[setup::BUILD, setup::LAB].concat(), list_only)?;
    let binaries = build::all(workspace, profile)?;
    let mut lab = match shows_only {
        true => {
            let mut lab = Command::new(&binaries.lab);
            lab.args(command.split(' '));
            lab
        }
        false => self::command(workspace, &binaries, command)?,
    };
    root::give_back(workspace)?;
    Err(lab.args(arguments).exec())
        .with_context(|| format!("cannot start {}", binaries.lab.display()))
}
