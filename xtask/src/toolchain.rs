//! cargo, and the compiler of the kernel programs.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    host::Arch,
    setup::BPF_RUST,
    steps::{output, step},
    workspace::Workspace,
};

/// The target that the kernel programs are compiled for, on every (little-endian) machine.
pub(crate) const BPF_TARGET: &str = "bpfel-unknown-none";

/// A compiler that has, or can build, `core` for BPF, and its clippy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BpfCompiler {
    /// rustup's nightly with `rust-src`, which builds `core` itself.
    Nightly,
    /// Debian's, which has `core` for BPF.
    Debian { rustc: PathBuf, clippy: PathBuf },
}

impl BpfCompiler {
    /// The project's own, or with `--system-tools` rustup's.
    pub(crate) fn find(workspace: &Workspace) -> Option<Self> {
        let own = |name| BPF_RUST.folder(workspace).join("bin").join(name);
        if BPF_RUST.is_installed(workspace) {
            return Some(Self::Debian { rustc: own("rustc"), clippy: own("clippy-driver") });
        }
        let nightly = ["run", "nightly", "rustc", "--print", "sysroot"];
        let sysroot =
            workspace.system_tools().then(|| output(Command::new("rustup").args(nightly)))??;
        let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs");
        core.is_file().then_some(Self::Nightly)
    }

    /// A `cargo` command that compiles with it; the caller adds the rest.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = match self {
            Self::Nightly => {
                let mut cargo = Command::new("rustup");
                cargo.args(["run", "nightly", "cargo", subcommand, "-Z", "build-std=core"]);
                cargo.env_remove("RUSTC");
                cargo
            }
            Self::Debian { rustc, .. } => {
                let mut cargo = cargo(subcommand);
                cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
        };
        cargo.current_dir(Workspace::here().root()).env_remove("RUSTFLAGS");
        cargo
    }
}

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
