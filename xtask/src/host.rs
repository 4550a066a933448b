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
    /// Debian's name, and Go's, which images have.
    pub(crate) debian: &'static str,
    /// Debian's library folder, and what the names of a cross compiler's programs begin with.
    pub(crate) multiarch: &'static str,
    /// The program that loads a dynamically linked program; of glibc.
    pub(crate) loader: &'static str,
}

/// Intel's and AMD's.
pub(crate) static X86_64: Arch = Arch {
    rust: "x86_64",
    triple: "x86_64-unknown-linux-gnu",
    debian: "amd64",
    multiarch: "x86_64-linux-gnu",
    loader: "/lib64/ld-linux-x86-64.so.2",
};
/// ARM's: from x86_64 it is built for as well.
pub(crate) static AARCH64: Arch = Arch {
    rust: "aarch64",
    triple: "aarch64-unknown-linux-gnu",
    debian: "arm64",
    multiarch: "aarch64-linux-gnu",
    loader: "/lib/ld-linux-aarch64.so.1",
};

impl Arch {
    /// The architecture of this machine.
    pub(crate) fn host() -> Result<&'static Self> {
        match [&X86_64, &AARCH64].into_iter().find(|arch| arch.rust == env::consts::ARCH) {
            Some(arch) => Ok(arch),
            None => bail!("coroner builds on x86_64 and aarch64, this is {}", env::consts::ARCH),
        }
    }

    /// Whether it is this machine's.
    pub(crate) fn is_host(&self) -> bool {
        self.rust == env::consts::ARCH
    }

    /// All that this machine builds for, its own first.
    pub(crate) fn built() -> Result<Vec<&'static Self>> {
        let host = Self::host()?;
        Ok(if *host == X86_64 { vec![host, &AARCH64] } else { vec![host] })
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

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
