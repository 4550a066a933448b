//! The guest's whole file system: busybox, one test binary and the agent, all linked statically, what loads an AppArmor
//! profile, and a first process. The same for all guests of an architecture: the kernel's command line tells them apart.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    build,
    host::Arch,
    setup::{APPARMOR, BUSYBOX, BUSYBOX_ARM64},
    steps::{output, step},
    workspace::Workspace,
};

const INIT: &str = include_str!("init.sh");

/// Packs `test` with its arguments, the agent that was built with it, and all that they need; the archive.
///
/// # Errors
/// A file cannot be read or written.
pub(super) fn pack(
    workspace: &Workspace,
    arch: &Arch,
    test: &Path,
    arguments: &[&str],
) -> Result<PathBuf> {
    let root = workspace.target(&format!("vm/{}", arch.debian));
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    for folder in ["bin", "dev", "proc", "sys", "tmp", "run", "root"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(root.join("arguments"), arguments.join(" "))?;
    fs::write(root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    let busybox = if arch.is_host() { &BUSYBOX } else { &BUSYBOX_ARM64 };
    copy(&busybox.file(workspace), &root.join("bin/busybox"))?;
    build::stripped(workspace, arch, test, &root.join("test"))?;
    let agent = workspace.built_for(arch, "debug/coroner");
    build::stripped(workspace, arch, &agent, &root.join("coroner"))?;
    if arch.is_host() {
        // Not linked statically: with what it loads.
        let parser = APPARMOR.file(workspace);
        copy(&parser, &root.join("bin/apparmor_parser"))?;
        copy(&workspace.root().join("deploy/apparmor/coroner"), &root.join("apparmor"))?;
        let listed = output(Command::new("ldd").arg(&parser)).context("ldd fails")?;
        let is_library = |word: &&str| word.starts_with('/') && !word.ends_with(':');
        for library in listed.split_whitespace().filter(is_library) {
            copy(library.as_ref(), &root.join(library.trim_start_matches('/')))?;
        }
    }
    let archive = root.with_extension("cpio");
    let mut cpio = Command::new(BUSYBOX.file(workspace));
    // The shell's arguments: the archive, and busybox itself.
    cpio.args(["sh", "-c", r#""$1" find . | "$1" cpio -o -H newc >"$0""#]).arg(&archive);
    cpio.arg(BUSYBOX.file(workspace)).current_dir(&root);
    step("packing the guests' file system", &mut cpio)?;
    Ok(archive)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}
