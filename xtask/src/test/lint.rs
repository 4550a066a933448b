//! rustfmt and clippy, of the host's crates and of the kernel programs, which no host build sees; the links of
//! comments; and cargo-deny.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    build, fuzz,
    progress::{capture, note, step},
    setup,
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
    fuzz::check_lock_file(workspace)
}

/// The links of comments to code, those of private items, too.
///
/// # Errors
/// When one leads nowhere.
pub(super) fn links(workspace: &Workspace) -> Result<()> {
    step(
        "links of comments",
        cargo("doc")
            .current_dir(workspace.root())
            .env("PATH", workspace.path())
            .env("RUSTDOCFLAGS", "--deny rustdoc::broken_intra_doc_links")
            .args(["--workspace", "--no-deps", "--document-private-items", "--locked"]),
    )
    .map(|_| ())
}

/// cargo-deny: licences and sources of the dependencies; `advisories`: known faults of theirs, too, where the
/// database can be had.
///
/// # Errors
/// When `deny.toml` does not allow one.
pub(super) fn dependencies(workspace: &Workspace, advisories: bool) -> Result<()> {
    let deny = || {
        let mut deny = Command::new(setup::cargo_deny(workspace));
        deny.current_dir(workspace.root()).args(["--locked", "check", "--hide-inclusion-graph"]);
        deny
    };
    step("cargo deny", deny().args(["licenses", "bans", "sources"]))?;
    if advisories {
        let checked = capture("cargo deny, advisories", deny().arg("advisories"))?;
        let unreachable = checked.text.contains("failed to fetch advisory database");
        // A workflow that cannot reach it for months must not look as if it had.
        if unreachable && std::env::var_os("CI").is_none() {
            note("advisories: not checked: no database");
        } else if !checked.success {
            bail!("cargo deny check advisories:\n{}", checked.text);
        }
    }
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
