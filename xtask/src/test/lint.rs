//! rustfmt and clippy, of the host's crates and of the kernel programs, which no host build sees; and cargo-deny.

use std::{env, process::Command};

use anyhow::{Result, bail};

use crate::{
    build, fuzz, setup,
    steps::{note, show, step, tee},
    toolchain::cargo,
    workspace::Workspace,
};

/// rustfmt, which needs nothing built.
///
/// # Errors
/// A file is not formatted.
pub(super) fn format(workspace: &Workspace) -> Result<()> {
    show("rustfmt", cargo("fmt").args(["--all", "--check"]))?;
    let folder = workspace.root().join("fuzz");
    show("rustfmt, fuzz targets", cargo("fmt").current_dir(folder).arg("--check"))?;
    Ok(())
}

/// clippy, whose warnings are errors, cargo-deny, and the report's crate for another platform; `long`: also known faults of the dependencies.
///
/// # Errors
/// At the first that complains.
pub(super) fn run(workspace: &Workspace, long: bool) -> Result<()> {
    let deny = || {
        let mut deny = Command::new(setup::cargo_deny(workspace));
        deny.current_dir(workspace.root()).args(["--locked", "check", "--hide-inclusion-graph"]);
        deny
    };
    step("cargo deny", deny().args(["licenses", "bans", "sources"]))?;
    if long {
        let mut advisories = deny();
        advisories.arg("advisories");
        let (success, text) = tee("cargo deny advisories", advisories)?;
        // A workflow that cannot reach the database for months must not look as if it had.
        if text.contains("failed to fetch advisory database") && env::var_os("CI").is_none() {
            note("advisories: not checked: no database");
        } else if !success {
            bail!("cargo deny check advisories:\n{text}");
        }
    }
    show("clippy, kernel programs", &mut programs(workspace))?;
    let mut clippy = cargo("clippy");
    clippy.args(["--workspace", "--all-targets", "--locked", "--", "-Dwarnings"]);
    show("clippy", &mut clippy)?;
    let mut report = cargo("check");
    report.args([
        "--package=coroner-report",
        "--all-features",
        "--locked",
        "--target",
        setup::WINDOWS,
    ]);
    show("the report's crate, for another platform", &mut report)?;
    fuzz::check_lock_file()
}

/// What cargo-clippy does, with the driver of the compiler that builds the programs.
fn programs(workspace: &Workspace) -> Command {
    let mut command = build::bpf_cargo(workspace, "check");
    let clippy = setup::BPF_RUST.folder(workspace).join("bin/clippy-driver");
    command.arg("--all-features").env("RUSTC_WORKSPACE_WRAPPER", clippy);
    command.env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    command
}
