//! cargo.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    host::Arch,
    steps::{output, step},
    workspace::Workspace,
};

/// The target that the kernel programs are compiled for, on every (little-endian) machine.
pub(crate) const BPF_TARGET: &str = "bpfel-unknown-none";

/// The cargo that runs this xtask.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let workspace = Workspace::here();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg(subcommand).current_dir(workspace.root()).env("PATH", workspace.path());
    // Set by the cargo that runs this xtask. ring is built again, and the agent with it, if they change.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") {
            cargo.env_remove(&name);
        }
    }
    // Whatever the person's environment and configuration say: everything else looks for results there.
    cargo.env("CARGO_TARGET_DIR", workspace.target(""));
    cargo
}

/// The same, building for `arch`, with the project's own compiler of C if that is not the machine's.
pub(crate) fn cargo_for(subcommand: &str, arch: &Arch) -> Command {
    let mut cargo = cargo(subcommand);
    cargo.args(["--target", arch.triple]);
    if !arch.is_host() {
        let variable = arch.triple.to_uppercase().replace('-', "_");
        let linker = format!("{}-gcc", arch.multiarch);
        cargo.env(format!("CARGO_TARGET_{variable}_LINKER"), linker);
    }
    cargo
}

/// What cargo knows of the workspace's packages.
///
/// # Errors
/// cargo fails.
pub(crate) fn metadata(arguments: &[&str]) -> Result<Value> {
    let mut command = cargo("metadata");
    command.args(["--locked", "--format-version=1", "--quiet"]).args(arguments);
    let text = step("reading the packages", &mut command)?;
    serde_json::from_str(&text).context("cargo metadata is no JSON")
}

/// Whether the compiler that cargo calls has the standard library of this target.
pub(crate) fn has_standard_library(target: &str) -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let folder = output(Command::new(rustc).args(["--print", "target-libdir", "--target", target]));
    folder.is_some_and(|folder| Path::new(folder.trim()).is_dir())
}

/// The folder that `variable` names, or else `below` the user's own.
pub(crate) fn home(variable: &str, below: &str) -> Option<PathBuf> {
    let own = || env::var_os("HOME").map(|home| PathBuf::from(home).join(below));
    env::var_os(variable).map(PathBuf::from).or_else(own)
}
