//! The guest's whole file system: busybox, one test binary and the agent with their libraries, and a
//! first process. The same for all guests: the kernel's command line tells them apart.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::newc::Archive;
use crate::{host, progress::step, toolchain::output, workspace::Workspace};

const INIT: &str = include_str!("init.sh");

/// Packs `test`, the agent, and all that they need into an initramfs at `to`; `scratch` is a folder to
/// work in.
///
/// # Errors
/// When a file cannot be read, or `ldd` cannot say which libraries it needs.
pub(super) fn pack(workspace: &Workspace, test: &Path, scratch: &Path, to: &Path) -> Result<()> {
    // Built with the test, which starts it.
    let agent = workspace.target("debug/coroner");
    let mut archive = Archive::default();
    for folder in ["dev", "proc", "sys", "tmp", "run", "root"] {
        archive.folder(folder);
    }
    archive.program("init", INIT.as_bytes());
    archive.program("bin/busybox", &read(&busybox(workspace)?)?);
    let mut needed = BTreeSet::new();
    for (name, program) in [("test", test), ("coroner", &agent)] {
        archive.program(name, &read(&stripped(program, &scratch.join(name))?)?);
        needed.extend(libraries(program)?);
    }
    for library in needed {
        let path = library.display().to_string();
        archive.program(path.trim_start_matches('/'), &read(&library)?);
    }
    fs::write(to, archive.finish()).with_context(|| format!("cannot write {}", to.display()))
}

/// The static busybox: the wrapper's target among our own tools is what the guest needs, not the wrapper.
fn busybox(workspace: &Workspace) -> Result<PathBuf> {
    let root = workspace.tools().join("root");
    [root.join("bin/busybox"), root.join("usr/bin/busybox")]
        .into_iter()
        .find(|file| file.is_file())
        .or_else(|| host::find_program("busybox"))
        .context("no busybox: `cargo xtask setup` brings it")
}

/// A copy without debug information, a tenth of the size: emulation unpacks it byte by byte.
fn stripped(program: &Path, copy: &Path) -> Result<PathBuf> {
    if host::find_program("strip").is_none() {
        return Ok(program.to_path_buf());
    }
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").arg(copy).arg(program);
    step(&format!("stripping {}", program.display()), &mut strip)?;
    Ok(copy.to_path_buf())
}

/// The shared libraries that `program` is loaded with, the loader included.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let Some(text) = output(Command::new("ldd").arg(program)) else {
        bail!("`ldd {}` does not say which libraries it needs", program.display());
    };
    Ok(parse_ldd(&text))
}

fn parse_ldd(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found_and_the_vdso_is_not() {
        let text = "\tlinux-vdso.so.1 (0x00007f)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            parse_ldd(text),
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from)
        );
    }
}
