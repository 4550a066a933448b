//! The tour, chaos and the soak: builds what is needed and hands over to the lab.

use std::{ffi::OsString, os::unix::process::CommandExt as _};

use anyhow::{Context as _, Result};

use crate::{
    build::{self, Profile},
    root, setup,
    workspace::Workspace,
};

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
    setup::ensure(workspace, &[setup::BUILD, setup::LAB].concat(), list_only)?;
    let binaries = build::all(workspace, profile)?;
    let mut lab = root::command(workspace, &binaries.lab)?;
    lab.arg(command)
        .arg("--agent")
        .arg(&binaries.agent)
        .arg("--workload")
        .arg(&binaries.workload)
        .args(arguments);
    Err(lab.exec()).with_context(|| format!("cannot start {}", binaries.lab.display()))
}
