//! The guest's whole file system: busybox, one test binary and the agent, all linked statically, what loads an AppArmor
//! profile, and a first process. The same for all guests of an architecture: the kernel's command line tells them apart.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

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
    if arch.is_host() {
        // Not linked statically: with what it loads.
        let parser = setup::apparmor_parser(workspace)
            .context("no apparmor_parser: `cargo xtask setup` brings it")?;
        let listed = Command::new("ldd").arg(&parser).output().context("cannot run ldd")?;
        ensure!(listed.status.success(), "ldd cannot read {}", parser.display());
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
        for library in paths.filter(|path| !path.ends_with(':')) {
            archive.program(library.trim_start_matches('/'), &read(library.as_ref())?);
        }
        archive.program("bin/apparmor_parser", &read(&parser)?);
        archive.program("apparmor", &read(&workspace.root().join("deploy/apparmor/coroner"))?);
    }
    fs::write(to, archive.finish()).with_context(|| format!("cannot write {}", to.display()))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
