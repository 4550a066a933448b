//! More random histories than the gate plays: the example `simulate` of the core, optimised.

use std::{
    hash::{BuildHasher as _, RandomState},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{steps::show, toolchain::cargo, workspace::Workspace};

/// Builds it, and plays so many histories of one fault or of each; whether nothing was wrong.
///
/// # Errors
/// When it does not build or cannot be started.
pub(crate) fn run(
    workspace: &Workspace,
    cases: u32,
    seed: Option<u64>,
    fault: Option<&str>,
    json: bool,
) -> Result<bool> {
    let build = ["--release", "--locked", "--package=coroner-core", "--example=simulate"];
    show("building the simulation", cargo("build").args(build))?;
    // As long as a person would copy.
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 40);
    let program = workspace.built("release/examples/simulate")?;
    let status = Command::new(&program)
        .args([&cases.to_string(), &seed.to_string()])
        .arg(fault.unwrap_or("all"))
        .arg(workspace.failed().join("simulation"))
        .arg(if json { "json" } else { "text" })
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => bail!("{}: {status}", program.display()),
    }
}
