//! The benchmarks: build what is shipped and hand over to what measures it.

use std::os::unix::process::CommandExt as _;

use anyhow::{Context as _, Result};

use crate::{
    build::{self, Profile},
    cli::Accuracy,
    root, setup,
    workspace::Workspace,
};

/// Becomes the lab's accuracy benchmark: its output is all there is on stdout, its exit code is ours.
///
/// # Errors
/// When something is missing, does not build, or the lab cannot be started.
pub(crate) fn accuracy(
    workspace: &Workspace,
    parameters: &Accuracy,
) -> Result<std::convert::Infallible> {
    let needs = [setup::BUILD, setup::LAB].concat();
    setup::ensure(workspace, &needs, parameters.install.no_install)?;
    let binaries = build::all(workspace, Profile::Release)?;
    let mut lab = root::command(workspace, &binaries.lab)?;
    lab.args(["bench", "accuracy"])
        .arg("--agent")
        .arg(&binaries.agent)
        .arg("--workload")
        .arg(&binaries.workload)
        .args(["--deaths", &parameters.deaths.to_string()])
        .args(["--seed", &parameters.seed.to_string()]);
    if parameters.json {
        lab.arg("--json");
    }
    if parameters.no_fail {
        lab.arg("--no-fail");
    }
    Err(lab.exec()).with_context(|| format!("cannot start {}", binaries.lab.display()))
}
