//! What each command needs, which of it is missing, and who brings it. Pure, save for [`Need::present`].

use super::{
    python,
    releases::{CONTAINERDS, KUBECTL, PROMETHEUS, PROMTOOL, Release},
};
use crate::{
    host,
    toolchain::{self, BPF_LINKER, BpfCompiler, CARGO_FUZZ},
    workspace::Workspace,
};
use std::path::Path;

/// Something that must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A compiler with `core` for BPF.
    BpfCompiler,
    /// Its clippy.
    BpfClippy,
    /// The linker of the kernel programs.
    BpfLinker,
    /// The compiler of the CRI's protocol.
    Protoc,
    /// The lab's container runtime.
    Containerd,
    /// A program in a version of its own: one that the lab is tested with, or that tests what is deployed.
    Release(&'static Release),
    /// The lab's OCI runtime.
    Runc,
    /// The machine for foreign kernels.
    Qemu,
    /// The user space of that machine.
    Busybox,
    /// What counts the engine's instructions.
    Valgrind,
    /// Grafana's own schemas, of which dashboards must be.
    GrafanaSchemas,
    /// What builds the fuzz targets.
    CargoFuzz,
    /// What builds libFuzzer.
    CxxCompiler,
    /// `cargo fmt`.
    Rustfmt,
    /// `cargo clippy`.
    Clippy,
    /// What coroner is measured beside: traces by scripts.
    Bpftrace,
    /// What coroner is measured beside: sigsnoop and exitsnoop.
    LibbpfTools,
}

/// To build everything.
pub(crate) const BUILD: &[Need] = &[Need::BpfCompiler, Need::BpfLinker, Need::Protoc];
/// To run the lab, beyond the build.
pub(crate) const LAB: &[Need] = &[Need::Containerd, Need::Runc];
/// To test the lab, beyond that.
pub(crate) const VERSIONS: &[Need] = &[
    Need::Release(&CONTAINERDS[0]),
    Need::Release(&CONTAINERDS[1]),
    Need::Release(&CONTAINERDS[2]),
];
/// To test what is deployed, beyond the lab.
pub(crate) const DEPLOY: &[Need] = &[
    Need::Release(&PROMTOOL),
    Need::Release(&PROMETHEUS),
    Need::Release(&KUBECTL),
    Need::GrafanaSchemas,
];
/// To boot a foreign kernel, beyond the build.
pub(crate) const VM: &[Need] = &[Need::Qemu, Need::Busybox];
/// To fuzz, beyond the build.
pub(crate) const FUZZ: &[Need] = &[Need::CargoFuzz, Need::CxxCompiler];
/// To measure what a storm of events costs, beyond the lab.
pub(crate) const STORM: &[Need] = &[Need::Bpftrace, Need::LibbpfTools];
/// To count instructions, beyond the lab.
pub(crate) const INSTRUCTIONS: &[Need] = &[Need::Valgrind];
/// To lint.
pub(crate) const LINT: &[Need] = &[Need::Rustfmt, Need::Clippy, Need::BpfClippy];

impl Need {
    /// Whether it is here, on the machine or among the project's own tools.
    pub(crate) fn present(self, workspace: &Workspace) -> bool {
        let own = |program: &str| {
            host::is_executable(&workspace.tools().join("bin").join(program))
                || host::find_program(program).is_some()
                // Where Debian has some of them, and not everybody looks.
                || host::is_executable(&Path::new("/usr/sbin").join(program))
        };
        match self {
            Self::BpfCompiler => BpfCompiler::find(workspace).is_some(),
            Self::BpfClippy => toolchain::BpfClippy::find(workspace).is_some(),
            Self::BpfLinker => toolchain::bpf_linker(workspace).is_some(),
            Self::Protoc => own("protoc") || std::env::var_os("PROTOC").is_some(),
            Self::Containerd => own("containerd") && own("containerd-shim-runc-v2"),
            Self::Release(release) => release.find(workspace).is_some(),
            Self::Runc => own("runc"),
            Self::Qemu => own("qemu-system-x86_64"),
            Self::Busybox => own("busybox"),
            Self::Valgrind => own("valgrind"),
            Self::GrafanaSchemas => python::present(workspace),
            Self::CargoFuzz => toolchain::cargo_fuzz(workspace).is_some(),
            Self::CxxCompiler => own("c++") || std::env::var_os("CXX").is_some(),
            Self::Rustfmt => host::find_program("cargo-fmt").is_some(),
            Self::Clippy => host::find_program("cargo-clippy").is_some(),
            Self::Bpftrace => own("bpftrace"),
            Self::LibbpfTools => own("sigsnoop") && own("exitsnoop"),
        }
    }

    /// What a person calls it.
    pub(crate) fn title(self) -> String {
        match self {
            Self::BpfCompiler => "a Rust compiler for BPF".to_owned(),
            Self::BpfClippy => "clippy for that compiler".to_owned(),
            Self::BpfLinker => format!("bpf-linker {BPF_LINKER}"),
            Self::Protoc => "protoc".to_owned(),
            Self::Containerd => "containerd".to_owned(),
            Self::Release(release) => release.to_string(),
            Self::Runc => "runc".to_owned(),
            Self::Qemu => "QEMU".to_owned(),
            Self::Busybox => "busybox, static".to_owned(),
            Self::Valgrind => "valgrind".to_owned(),
            Self::GrafanaSchemas => "grafana-foundation-sdk".to_owned(),
            Self::CargoFuzz => format!("cargo-fuzz {CARGO_FUZZ}"),
            Self::CxxCompiler => "a C++ compiler".to_owned(),
            Self::Rustfmt => "rustfmt".to_owned(),
            Self::Clippy => "clippy".to_owned(),
            Self::Bpftrace => "bpftrace".to_owned(),
            Self::LibbpfTools => "sigsnoop and exitsnoop".to_owned(),
        }
    }

    /// The Debian packages that hold it; the first group that this release has is taken.
    pub(crate) fn packages(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::BpfCompiler => {
                &[&["rustc-web", "libstd-rust-web-dev-bpf"], &["rustc", "libstd-rust-dev-bpf"]]
            }
            Self::BpfClippy => &[&["rust-web-clippy"], &["rust-clippy"]],
            Self::Protoc => &[&["protobuf-compiler"]],
            Self::Containerd => &[&["containerd"]],
            Self::Runc => &[&["runc"]],
            Self::Qemu => &[&["qemu-system-x86"]],
            Self::Busybox => &[&["busybox-static"]],
            Self::Bpftrace => &[&["bpftrace"]],
            Self::LibbpfTools => &[&["libbpf-tools"]],
            Self::Valgrind => &[&["valgrind"]],
            Self::Release(_)
            | Self::BpfLinker
            | Self::GrafanaSchemas
            | Self::CargoFuzz
            | Self::CxxCompiler
            | Self::Rustfmt
            | Self::Clippy => &[],
        }
    }

    /// The programs of those packages that coroner calls: path inside the package, name here.
    ///
    /// The compiler gets another name, so that it never stands in for rustup's.
    pub(crate) fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::BpfCompiler => &[("usr/bin/rustc", "bpf-rustc")],
            Self::BpfClippy => &[("usr/bin/clippy-driver", "bpf-clippy-driver")],
            Self::Protoc => &[("usr/bin/protoc", "protoc")],
            Self::Containerd => &[
                ("usr/bin/containerd", "containerd"),
                ("usr/bin/containerd-shim-runc-v2", "containerd-shim-runc-v2"),
                ("usr/bin/ctr", "ctr"),
            ],
            Self::Runc => &[("usr/sbin/runc", "runc")],
            Self::Qemu => &[("usr/bin/qemu-system-x86_64", "qemu-system-x86_64")],
            Self::Busybox => &[("bin/busybox", "busybox"), ("usr/bin/busybox", "busybox")],
            Self::Bpftrace => &[("usr/bin/bpftrace", "bpftrace")],
            Self::LibbpfTools => {
                &[("usr/sbin/sigsnoop", "sigsnoop"), ("usr/sbin/exitsnoop", "exitsnoop")]
            }
            Self::Valgrind => &[("usr/bin/valgrind", "valgrind")],
            Self::Release(_)
            | Self::BpfLinker
            | Self::GrafanaSchemas
            | Self::CargoFuzz
            | Self::CxxCompiler
            | Self::Rustfmt
            | Self::Clippy => &[],
        }
    }

    /// How a person gets it where xtask cannot.
    pub(crate) fn advice(self) -> String {
        let advice = match self {
            Self::Release(release) => return release.advice(),
            Self::BpfCompiler => {
                "rustup toolchain install nightly --profile minimal --component rust-src"
            }
            Self::BpfClippy => "rustup component add clippy --toolchain nightly",
            Self::BpfLinker => "cargo install bpf-linker --version 0.10.4 --locked",
            Self::Protoc => {
                "the package protobuf-compiler (Fedora, SUSE, Alpine: protobuf), or set PROTOC"
            }
            Self::Containerd => "the package containerd (it need not be running)",
            Self::Runc => "the package runc",
            Self::Qemu => "the package with qemu-system-x86_64 (qemu-system-x86)",
            Self::Busybox => "the package busybox-static",
            Self::Bpftrace => "the package bpftrace",
            Self::LibbpfTools => {
                "the package libbpf-tools, or libbpf-tools of \
                 https://github.com/iovisor/bcc: the programs sigsnoop and exitsnoop on PATH"
            }
            Self::Valgrind => "the package valgrind",
            Self::GrafanaSchemas => {
                "python3 -m venv target/tools/python && target/tools/python/bin/pip install \
                 --requirement dashboards/requirements.txt"
            }
            Self::CargoFuzz => "cargo install cargo-fuzz --version 0.13.2 --locked",
            Self::CxxCompiler => "the package g++ (Fedora, SUSE: gcc-c++), or set CXX",
            Self::Rustfmt => "rustup component add rustfmt",
            Self::Clippy => "rustup component add clippy",
        };
        advice.to_owned()
    }
}

/// Who brings what is missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// From the distribution's packages, into the project's own folder.
    pub(crate) apt: Vec<Need>,
    /// From suites of Debian's, each into a folder of its own.
    pub(crate) suites: Vec<&'static Release>,
    /// From crates.io, into the project's own folder.
    pub(crate) cargo: Vec<Need>,
    /// From PyPI, into the project's own folder.
    pub(crate) python: Vec<Need>,
    /// By the person at the keyboard.
    pub(crate) by_hand: Vec<Need>,
}

impl Plan {
    /// Sorts `missing` by who brings it; `apt`: this is a Debian or a relative.
    pub(crate) fn of(missing: &[Need], apt: bool) -> Self {
        let mut plan = Self::default();
        for need in missing {
            match need {
                Need::BpfLinker | Need::CargoFuzz => plan.cargo.push(*need),
                Need::GrafanaSchemas => plan.python.push(*need),
                Need::CxxCompiler | Need::Rustfmt | Need::Clippy => plan.by_hand.push(*need),
                Need::Release(release) if apt => plan.suites.push(release),
                _ if apt => plan.apt.push(*need),
                _ => plan.by_hand.push(*need),
            }
        }
        plan
    }

    /// Whether nothing is missing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debian_brings_all_but_rustup_s_components() {
        let needs = [Need::Protoc, Need::BpfLinker, Need::GrafanaSchemas, Need::Clippy];
        let plan = Plan::of(&needs, true);
        assert_eq!(
            plan,
            Plan {
                apt: vec![Need::Protoc],
                suites: vec![],
                cargo: vec![Need::BpfLinker],
                python: vec![Need::GrafanaSchemas],
                by_hand: vec![Need::Clippy],
            }
        );
    }

    #[test]
    fn other_versions_are_brought_from_their_suites() {
        for needs in [VERSIONS, DEPLOY] {
            let plan = Plan::of(needs, true);
            assert!(plan.apt.is_empty() && plan.by_hand.is_empty());
            let of_suites = |need: &&Need| matches!(need, Need::Release(_));
            let expected: Vec<Need> = needs.iter().filter(of_suites).copied().collect();
            let suites: Vec<_> = plan.suites.into_iter().map(Need::Release).collect();
            assert_eq!(suites, expected);
            assert_eq!(Plan::of(needs, false).by_hand, expected);
        }
    }

    #[test]
    fn elsewhere_packages_are_left_to_the_person() {
        let plan = Plan::of(&[Need::Protoc, Need::BpfLinker], false);
        assert_eq!(plan.by_hand, [Need::Protoc]);
        assert_eq!(plan.cargo, [Need::BpfLinker]);
    }

    #[test]
    fn with_nothing_missing_there_is_nothing_to_do() {
        assert!(Plan::of(&[], true).is_empty());
    }

    #[test]
    fn whatever_apt_brings_has_packages_and_programs() {
        for need in [BUILD, LAB, VM, LINT, STORM].concat() {
            if Plan::of(&[need], true).apt == [need] {
                assert!(!need.packages().is_empty() && !need.programs().is_empty());
            }
        }
    }
}
