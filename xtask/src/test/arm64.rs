//! The agent and its image for arm64: built here, and started in an emulator of its user space, which has no
//! bpf(2). The kernel programs are proven in guests (`--long`).

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{
    build::{self, Profile},
    host::{AARCH64, Arch},
    image,
    progress::note,
    setup::QEMU_USER,
    workspace::Workspace,
};

/// # Errors
/// When it does not compile, is not the same twice, or does not do what it does on this machine.
pub(super) fn run(workspace: &Workspace) -> Result<()> {
    let arches = Arch::built()?;
    ensure!(arches.contains(&&AARCH64), "arm64 is cross-built on x86_64 only");
    build::agent_for(workspace, &AARCH64)?;
    let file = workspace.target("image/both.tar");
    let make = || image::make(workspace, &file, Profile::Dev, &arches);
    let [first, second] = [make()?.digest, make()?.digest];
    ensure!(first == second, "equal programs gave the images {first} and {second}");

    let [own, arm64] = [Arch::host()?, &AARCH64].map(|arch| image::program_file(workspace, arch));
    let here = |arguments: &[&str]| said(Command::new(&own).args(arguments));
    let there = |arguments: &[&str]| {
        let emulator = QEMU_USER.program(workspace, "qemu-aarch64");
        said(Command::new(emulator).arg(&arm64).args(arguments))
    };
    let (ok, version) = there(&["version"])?;
    ensure!(ok && version.contains(AARCH64.triple), "`version` says {version}");
    // The whole core: it must say the same, word for word.
    let recording = workspace.root().join("agent/samples/lab.jsonl.gz");
    let recording = recording.to_str().context("the checkout's path is not UTF-8")?;
    for arguments in [["replay", recording], ["explain", "--sample"]] {
        let (here, there) = (here(&arguments)?, there(&arguments)?);
        ensure!(here.0 && here.1.lines().count() > 10, "{arguments:?} says {} here", here.1);
        ensure!(here == there, "{arguments:?} says {} here and {} there", here.1, there.1);
    }
    let (ok, doctor) = there(&["doctor"])?;
    let refused = "cannot load the kernel programs";
    ensure!(!ok && doctor.contains(refused), "`doctor` says {doctor}, and not {refused:?}");
    note(&format!("arm64: {version}"));
    Ok(())
}

/// Whether it succeeded, and what it wrote to stdout.
fn said(command: &mut Command) -> Result<(bool, String)> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}
