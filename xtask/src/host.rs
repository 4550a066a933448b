//! What this machine is: its architecture, its distribution, its programs.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

/// A CPU architecture that coroner builds for, and what its names are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arch {
    /// Rust's name, which is also what aya-ebpf calls it (`bpf_target_arch`).
    pub(crate) rust: &'static str,
    /// The host triple: glibc, because no musl target is installed by default.
    pub(crate) triple: &'static str,
    /// Debian's name.
    pub(crate) debian: &'static str,
    /// Debian's library folder.
    pub(crate) multiarch: &'static str,
    /// The program that loads a dynamically linked program; of glibc.
    pub(crate) loader: &'static str,
}

const ARCHES: [Arch; 2] = [
    Arch {
        rust: "x86_64",
        triple: "x86_64-unknown-linux-gnu",
        debian: "amd64",
        multiarch: "x86_64-linux-gnu",
        loader: "/lib64/ld-linux-x86-64.so.2",
    },
    Arch {
        rust: "aarch64",
        triple: "aarch64-unknown-linux-gnu",
        debian: "arm64",
        multiarch: "aarch64-linux-gnu",
        loader: "/lib/ld-linux-aarch64.so.1",
    },
];

impl Arch {
    /// The architecture of this machine.
    pub(crate) fn host() -> Result<Self> {
        match ARCHES.iter().find(|arch| arch.rust == env::consts::ARCH) {
            Some(arch) => Ok(*arch),
            None => bail!("coroner builds on x86_64 and aarch64, this is {}", env::consts::ARCH),
        }
    }
}

/// Finds `program` as the shell would, then in the folders that a plain user's `PATH` often lacks.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| is_executable(file))
}

/// Whether `file` is a regular file that someone may execute.
pub(crate) fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
