//! The compiler of the kernel programs, and what cargo is called with.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    host::{self, Arch},
    setup::BPF_RUST,
    workspace::Workspace,
};

/// The target that the kernel programs are compiled for, on every (little-endian) host.
pub(crate) const BPF_TARGET: &str = "bpfel-unknown-none";
/// The bpf-linker that fits the LLVM of these compilers; newer ones want a newer rustc.
pub(crate) const BPF_LINKER: &str = "0.10.4";

/// Its program.
pub(crate) const BPF_LINKER_NAME: &str = "bpf-linker";

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
    /// The project's own copy of Debian's; with `--system-tools` also rustup's nightly or the machine's.
    pub(crate) fn find(workspace: &Workspace) -> Option<Self> {
        if BPF_RUST.installed(workspace).is_some() {
            return Some(Self::Prebuilt { rustc: BPF_RUST.program(workspace, "rustc") });
        }
        if !workspace.system_tools() {
            return None;
        }
        if nightly_has_source() {
            return Some(Self::Nightly);
        }
        let rustc = PathBuf::from("/usr/bin/rustc");
        has_core_for_bpf(&rustc).then_some(Self::Prebuilt { rustc })
    }

    /// The compiler's program.
    pub(crate) fn rustc(&self) -> PathBuf {
        match self {
            Self::Nightly => "rustup run nightly rustc".into(),
            Self::Prebuilt { rustc } => rustc.clone(),
        }
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
            BpfCompiler::Prebuilt { rustc } => {
                let driver = rustc.with_file_name("clippy-driver");
                host::is_executable(&driver).then_some(Self::Driver(driver))
            }
        }
    }
}

/// The cargo that runs this xtask.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Whatever the person's environment and configuration say: everything else looks for results there.
    cargo.arg(subcommand).env("CARGO_TARGET_DIR", Workspace::here().target(""));
    cargo
}

/// The same, building for `arch`, with the project's own compiler of C where that is another than this
/// machine's.
pub(crate) fn cargo_for(workspace: &Workspace, subcommand: &str, arch: &Arch) -> Command {
    let mut cargo = cargo(subcommand);
    cargo
        .current_dir(workspace.root())
        .env("PATH", workspace.path())
        .args(["--target", arch.triple]);
    if !arch.is_host() {
        // Build scripts find it by this name by themselves.
        let linker = format!("{}-gcc", arch.multiarch);
        let variable = arch.triple.to_uppercase().replace('-', "_");
        cargo.env(format!("CARGO_TARGET_{variable}_LINKER"), linker);
    }
    cargo
}

/// One of the tools that cargo installs: the project's own, or with `--system-tools` one on `PATH`.
pub(crate) fn cargo_tool(workspace: &Workspace, name: &str) -> Option<PathBuf> {
    let own = workspace.tools().join("bin").join(name);
    let system = || workspace.system_tools().then(|| host::find_program(name)).flatten();
    Some(own).filter(|own| host::is_executable(own)).or_else(system)
}

/// The version that a program says it has.
pub(crate) fn version_of(program: &Path) -> Option<String> {
    version(&output(Command::new(program).arg("--version"))?).map(str::to_owned)
}

/// The version in what `program --version` prints: its first word that begins with a digit.
fn version(text: &str) -> Option<&str> {
    let words = text.split_whitespace().skip(1);
    let mut words = words.map(|word| word.trim_matches(['v', '(', ')', ',']));
    words.find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()))
}

fn nightly_has_source() -> bool {
    output(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]))
        .is_some_and(|sysroot| {
            Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
        })
}

fn has_core_for_bpf(rustc: &Path) -> bool {
    host::is_executable(rustc) && core_for(rustc, BPF_TARGET).is_some()
}

/// The library `core` of the compiler that cargo calls, for this target.
pub(crate) fn standard_library(target: &str) -> Option<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    core_for(Path::new(&rustc), target)
}

fn core_for(rustc: &Path, target: &str) -> Option<PathBuf> {
    let folder = output(Command::new(rustc).args(["--print", "target-libdir", "--target", target]));
    let files = fs::read_dir(folder?.trim()).ok()?.flatten().map(|file| file.path());
    let is_core = |file: &PathBuf| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcore-"))
    };
    files.into_iter().find(is_core)
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
    fn a_version_is_the_first_number() {
        assert_eq!(version("bpf-linker 0.10.4\n"), Some("0.10.4"));
        assert_eq!(version("c++ (Debian 12.2.0-14) 12.2.0\n"), Some("12.2.0-14"));
        assert_eq!(version("containerd github.com/containerd/containerd v2.1.9 1"), Some("2.1.9"));
        assert_eq!(version("bpf-linker"), None);
    }
}
