//! The compiler of the kernel programs: whichever of the known ways this machine offers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{host, workspace::Workspace};

/// The target that the kernel programs are compiled for, on every (little-endian) host.
pub(crate) const BPF_TARGET: &str = "bpfel-unknown-none";
/// The bpf-linker that fits the LLVM of these compilers; newer ones want a newer rustc.
pub(crate) const BPF_LINKER: &str = "0.10.4";

/// The cargo-fuzz that is known to work with a stable compiler.
pub(crate) const CARGO_FUZZ: &str = "0.13.2";

/// A compiler that has, or can build, `core` for BPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BpfCompiler {
    /// rustup's nightly with `rust-src`: builds `core` itself.
    Nightly,
    /// A `rustc` that comes with `core` for BPF, as Debian's does.
    Prebuilt {
        /// That `rustc`.
        rustc: PathBuf,
    },
}

impl BpfCompiler {
    /// The first that works: rustup's nightly, the machine's `rustc`, the project's own copy of Debian's.
    pub(crate) fn find(workspace: &Workspace) -> Option<Self> {
        if nightly_has_source() {
            return Some(Self::Nightly);
        }
        [PathBuf::from("/usr/bin/rustc"), workspace.tools().join("bin/bpf-rustc")]
            .into_iter()
            .find(|rustc| has_core_for_bpf(rustc))
            .map(|rustc| Self::Prebuilt { rustc })
    }

    /// A `cargo` command that compiles with it; the caller adds the rest.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = match self {
            Self::Nightly => {
                let mut cargo = Command::new("rustup");
                cargo
                    .args(["run", "nightly", "cargo", subcommand, "-Z", "build-std=core"])
                    .env_remove("RUSTC");
                cargo
            }
            Self::Prebuilt { rustc } => {
                let mut cargo = cargo(subcommand);
                cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
        };
        cargo.env_remove("RUSTFLAGS");
        cargo
    }
}

/// The clippy of the compiler for BPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BpfClippy {
    /// rustup's.
    Nightly,
    /// The `clippy-driver` beside a prebuilt compiler.
    Driver(PathBuf),
}

impl BpfClippy {
    /// The one that fits the compiler that [`BpfCompiler::find`] finds.
    pub(crate) fn find(workspace: &Workspace) -> Option<Self> {
        match BpfCompiler::find(workspace)? {
            BpfCompiler::Nightly => {
                output(Command::new("rustup").args(["run", "nightly", "cargo-clippy", "--version"]))
                    .map(|_| Self::Nightly)
            }
            BpfCompiler::Prebuilt { .. } => [
                PathBuf::from("/usr/bin/clippy-driver"),
                workspace.tools().join("bin/bpf-clippy-driver"),
            ]
            .into_iter()
            .find(|driver| output(Command::new(driver).arg("--version")).is_some())
            .map(Self::Driver),
        }
    }
}

/// The cargo that runs this xtask.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg(subcommand);
    cargo
}

/// A bpf-linker of the pinned version: the project's own, or one on `PATH`.
pub(crate) fn bpf_linker(workspace: &Workspace) -> Option<PathBuf> {
    let own = workspace.tools().join("bin/bpf-linker");
    [Some(own), host::find_program("bpf-linker")].into_iter().flatten().find(|linker| {
        output(Command::new(linker).arg("--version"))
            .is_some_and(|text| version(&text) == Some(BPF_LINKER))
    })
}

/// A cargo-fuzz of the pinned version: the project's own, or one on `PATH`.
pub(crate) fn cargo_fuzz(workspace: &Workspace) -> Option<PathBuf> {
    let own = workspace.tools().join("bin/cargo-fuzz");
    [Some(own), host::find_program("cargo-fuzz")].into_iter().flatten().find(|program| {
        output(Command::new(program).args(["fuzz", "--version"]))
            .is_some_and(|text| version(&text) == Some(CARGO_FUZZ))
    })
}

/// The version in what `program --version` prints.
fn version(text: &str) -> Option<&str> {
    text.split_whitespace().nth(1)
}

fn nightly_has_source() -> bool {
    output(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]))
        .is_some_and(|sysroot| {
            Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
        })
}

fn has_core_for_bpf(rustc: &Path) -> bool {
    host::is_executable(rustc)
        && output(Command::new(rustc).args(["--print", "target-libdir", "--target", BPF_TARGET]))
            .is_some_and(|dir| {
                fs::read_dir(dir.trim()).is_ok_and(|mut files| {
                    files.any(|file| {
                        file.is_ok_and(|file| {
                            file.file_name().to_string_lossy().starts_with("libcore-")
                        })
                    })
                })
            })
}

/// What a quick question printed, if it was answered at all.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(std::process::Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_second_word() {
        assert_eq!(version("bpf-linker 0.10.4\n"), Some("0.10.4"));
        assert_eq!(version("bpf-linker"), None);
    }
}
