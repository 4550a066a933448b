//! rustfmt and clippy, of the host's crates and of the kernel programs, which no host build sees.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    build,
    progress::step,
    toolchain::{BpfClippy, cargo},
    workspace::Workspace,
};

/// rustfmt, which needs nothing built.
///
/// # Errors
/// When a file is not formatted.
pub(super) fn format(workspace: &Workspace) -> Result<()> {
    step("rustfmt", cargo("fmt").current_dir(workspace.root()).args(["--all", "--check"]))?;
    step(
        "rustfmt, fuzz targets",
        cargo("fmt").current_dir(workspace.root().join("fuzz")).arg("--check"),
    )?;
    Ok(())
}

/// clippy; warnings are errors.
///
/// # Errors
/// At the first that complains.
pub(super) fn clippy(workspace: &Workspace) -> Result<()> {
    step("clippy, kernel programs", &mut programs(workspace)?)?;
    step(
        "clippy",
        cargo("clippy")
            .current_dir(workspace.root())
            .env("PATH", workspace.path())
            .args(["--workspace", "--all-targets", "--locked"])
            .args(["--", "-Dwarnings"]),
    )?;
    Ok(())
}

fn programs(workspace: &Workspace) -> Result<Command> {
    match BpfClippy::find(workspace) {
        Some(BpfClippy::Nightly) => {
            let mut command = build::bpf_cargo(workspace, "clippy")?;
            command.args(["--all-features", "--", "-Dwarnings"]);
            Ok(command)
        }
        // What cargo-clippy does, with the driver of the compiler that builds the programs.
        Some(BpfClippy::Driver(driver)) => {
            let mut command = build::bpf_cargo(workspace, "check")?;
            command
                .arg("--all-features")
                .env("RUSTC_WORKSPACE_WRAPPER", driver)
                .env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
            Ok(command)
        }
        None => bail!("no clippy for the kernel programs: `cargo xtask setup` brings it"),
    }
}
