//! The agent and its image for arm64: built here, and started in an emulator of its user space, which has no bpf(2).
//! Guests prove the kernel programs.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{
    build::Profile,
    host::{AARCH64, Arch},
    image,
    setup::QEMU_USER,
    steps::{note, show},
    toolchain::cargo_for,
    workspace::Workspace,
};

/// # Errors
/// The agent does not compile, or does something else than on this machine.
pub(super) fn run(workspace: &Workspace) -> Result<()> {
    let arches = Arch::built()?;
    ensure!(arches.contains(&&AARCH64), "arm64 is cross-built on x86_64 only");
    let mut build = cargo_for("build", &AARCH64);
    build.args(["--locked", "--package=coroner", "--bin=coroner"]);
    show("building the agent for arm64", &mut build)?;
    image::make(workspace, &workspace.target("image/both.tar"), Profile::Dev, &arches)?;

    let [own, arm64] = [Arch::host()?, &AARCH64].map(|arch| image::program_file(workspace, arch));
    let emulator = QEMU_USER.program(workspace, "qemu-aarch64");
    let here = |arguments: &[&str]| answer(Command::new(&own).args(arguments));
    let there = |arguments: &[&str]| answer(Command::new(&emulator).arg(&arm64).args(arguments));
    let (ok, version) = there(&["--version"])?;
    ensure!(ok && version.contains(AARCH64.triple), "`--version` prints {version}");
    // The whole core: equal in every word.
    let recording = workspace.root().join("agent/samples/lab.jsonl.gz");
    let recording = recording.to_str().context("the checkout's path is not UTF-8")?;
    for arguments in [["replay", recording], ["explain", "--sample"]] {
        let (here, there) = (here(&arguments)?, there(&arguments)?);
        ensure!(here.0 && here.1.lines().count() > 10, "{arguments:?} prints {} here", here.1);
        ensure!(here == there, "{arguments:?} prints {} here and {} there", here.1, there.1);
    }
    let (ok, doctor) = there(&["doctor"])?;
    let refused = "cannot load the kernel programs";
    ensure!(!ok && doctor.contains(refused), "`doctor` prints {doctor}, and not {refused:?}");
    note(&format!("arm64: {version}"));
    Ok(())
}

/// Whether it succeeded, and what it wrote to stdout.
fn answer(command: &mut Command) -> Result<(bool, String)> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}
