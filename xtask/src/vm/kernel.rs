//! Foreign kernels: Debian's, unpacked into the project's folder and never installed.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::{
    host::{AARCH64, Arch, X86_64},
    setup::{ALONE, Tool},
    workspace::Workspace,
};

/// A kernel to boot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// The name on the command line.
    pub(crate) name: &'static str,
    pub(crate) arch: &'static Arch,
    /// The package that has the image.
    pub(crate) package: Tool,
}

const fn kernel(
    name: &'static str,
    folder: &'static str,
    suite: &'static str,
    packages: &'static [&'static str],
) -> Kernel {
    Kernel { name, arch: &X86_64, package: Tool { name: folder, suite, packages, ..ALONE } }
}

const fn for_arm64(kernel: Kernel) -> Kernel {
    Kernel { arch: &AARCH64, package: Tool { foreign: Some(&AARCH64), ..kernel.package }, ..kernel }
}

/// All kernels that the programs are tested on, beside the machine's own; those of an architecture from the oldest.
pub(crate) static KERNELS: [Kernel; 6] = [
    kernel("5.10", "linux-5.10", "bullseye", &["linux-image-5.10.*-cloud-amd64"]),
    kernel("6.1", "linux-6.1", "bookworm", &["linux-image-6.1.*-cloud-amd64"]),
    kernel("6.12", "linux-6.12", "trixie", &["linux-image-6.12.*-cloud-amd64"]),
    kernel("7", "linux-7", "sid", &["linux-binary-*-cloud-amd64"]),
    for_arm64(kernel(
        "5.10-arm64",
        "linux-5.10-arm64",
        "bullseye",
        &["linux-image-5.10.*-cloud-arm64"],
    )),
    // Its pages have 16 KiB.
    for_arm64(kernel("7-arm64-16k", "linux-7-arm64-16k", "sid", &["linux-binary-*-arm64-16k"])),
];

/// The kernels with these names; without a name all, or those of the gate: the oldest and the newest of the machine's
/// architecture.
///
/// # Errors
/// There is no such kernel; the error names all.
pub(crate) fn choose(names: &[String], all: bool) -> Result<Vec<&'static Kernel>> {
    if names.is_empty() {
        return Ok(KERNELS.iter().filter(|one| all || ["5.10", "7"].contains(&one.name)).collect());
    }
    let find = |name: &String| {
        KERNELS.iter().find(|kernel| kernel.name == name).with_context(|| {
            let known: Vec<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
            format!("no kernel {name}; there are: {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

impl Kernel {
    /// `boot/vmlinuz-VERSION`, or since Debian's Linux 7 `usr/lib/modules/VERSION/vmlinuz`.
    ///
    /// # Errors
    /// The package has no image.
    pub(super) fn image(&self, workspace: &Workspace) -> Result<PathBuf> {
        let root = self.package.folder(workspace);
        let paths = |folder| fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        let is_image = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("vmlinuz") && path.is_file()
        };
        let boot = paths("boot").map(|entry| entry.path());
        let modules = paths("usr/lib/modules").map(|entry| entry.path().join("vmlinuz"));
        let found = boot.chain(modules).find(is_image);
        found.with_context(|| format!("the package of Linux {} has no vmlinuz", self.name))
    }
}
