//! The guest's whole file system: busybox, one test binary and the agent, all linked statically, and a
//! first process. The same for all guests of an architecture: the kernel's command line tells them apart.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::newc::CpioArchive;
use crate::{build, host::Arch, setup, workspace::Workspace};

const INIT: &str = include_str!("init.sh");

/// Packs `test`, the agent that was built with it, and all that they need into an initramfs at `to`.
///
/// # Errors
/// When a file cannot be read.
pub(super) fn pack(workspace: &Workspace, arch: &Arch, test: &Path, to: &Path) -> Result<()> {
    let agent = workspace.built_for(arch, "debug/coroner");
    let mut archive = CpioArchive::default();
    for folder in ["dev", "proc", "sys", "tmp", "run", "root"] {
        archive.folder(folder);
    }
    archive.program("init", INIT.as_bytes());
    let busybox =
        setup::busybox(workspace, arch).context("no busybox: `cargo xtask setup` brings it")?;
    archive.program("bin/busybox", &read(&busybox)?);
    for (name, program) in [("test", test), ("coroner", &agent)] {
        let copy = workspace.target(&format!("vm/{name}-{}", arch.debian));
        archive.program(name, &read(&build::stripped(workspace, arch, program, &copy)?)?);
    }
    fs::write(to, archive.finish()).with_context(|| format!("cannot write {}", to.display()))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
