//! Boots a kernel with an initramfs and reads its serial line.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    host::Arch,
    steps::{note, tail},
    workspace::Workspace,
};

/// A guest that writes nothing for so long has stopped. How long it takes altogether is up to the machine around it.
const SILENCE: Duration = Duration::from_secs(600);
/// What the guest's init prints first.
const BEGUN: &str = "guest: Linux ";
/// What the guest's init prints before the test's exit status.
const MARKER: &str = "coroner-vm-exit:";
/// How much of the serial line is shown if the guest does not end as it should.
const TAIL_LINES: usize = 40;

/// A machine to boot.
pub(super) struct Machine<'a> {
    pub(super) arch: &'a Arch,
    pub(super) kernel: &'a Path,
    pub(super) initramfs: &'a Path,
    /// Where the serial line is written to.
    pub(super) log: PathBuf,
}

/// QEMU is killed with the thread that gives up on it.
struct RunningGuest(Child);

impl Drop for RunningGuest {
    fn drop(&mut self) {
        // It is gone already if the guest ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots it, waits for its end, and returns the test's exit status with all that the serial line had; `each` gets the
/// lines as they come. A kernel that dies before its first process prints a line is booted once more: that is the
/// emulator's fault, and no test had begun.
///
/// # Errors
/// QEMU cannot be started, or the guest does not report the test's exit status.
pub(super) fn boot(
    workspace: &Workspace,
    machine: &Machine<'_>,
    each: impl Fn(&str),
) -> Result<(i32, String)> {
    let first = attempt(workspace, machine, &each);
    let log = fs::read_to_string(&machine.log).unwrap_or_default();
    match first {
        Err(error) if !log.contains(BEGUN) => {
            note(&format!("booting again: {error:#}"));
            attempt(workspace, machine, &each)
        }
        result => result,
    }
}

fn attempt(
    workspace: &Workspace,
    machine: &Machine<'_>,
    each: impl Fn(&str),
) -> Result<(i32, String)> {
    let child = qemu(workspace, machine).spawn().context("cannot start QEMU")?;
    let mut running = RunningGuest(child);
    let mut log = fs::File::create(&machine.log)
        .with_context(|| format!("cannot write {}", machine.log.display()))?;
    let serial = running.0.stdout.take().context("QEMU has no serial line")?;
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        for text in BufReader::new(serial).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&text).trim_end().to_owned()).is_err() {
                return;
            }
        }
    });
    let mut text = String::new();
    while let Ok(line) = lines.recv_timeout(SILENCE) {
        writeln!(log, "{line}")?;
        each(&line);
        if let Some(status) = line.trim().strip_prefix(MARKER).and_then(|word| word.parse().ok()) {
            return Ok((status, text));
        }
        text += &line;
        text.push('\n');
    }
    let end = tail(&text, TAIL_LINES);
    bail!(
        "the guest ended, or stopped, without the test's exit status: {}\n{end}",
        machine.log.display()
    );
}

fn qemu(workspace: &Workspace, machine: &Machine<'_>) -> Command {
    // Plain emulation boots in seconds everywhere. A /dev/kvm that opens, makes a virtual CPU and runs the firmware
    // can still fail at an instruction of the kernel's (seen: cmpxchg16b), so KVM is asked for.
    let accelerator = std::env::var("CORONER_VM_ACCEL").unwrap_or_else(|_| "tcg".to_owned());
    let (board, console): (&[&str], _) = match machine.arch.is_host() {
        // QEMU 7.2's own cmpxchg16b leaves garbage in the flags, and sooner or later the kernel takes a double
        // fault in the next slab (seen on 6.12): without that instruction it uses another way.
        true => (&["-cpu", "max,cx16=off"], "ttyS0"),
        // One that knows pages of 16 KiB.
        false => (&["-machine", "virt", "-cpu", "neoverse-n1"], "ttyAMA0"),
    };
    let mut command = Command::new(format!("qemu-system-{}", machine.arch.rust));
    command.env("PATH", workspace.path());
    command.args(["-accel", &accelerator, "-m", "1024", "-smp", "2"]).args(board);
    command.args(["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"]);
    command.args(["-append", &format!("console={console} panic=-1 loglevel=1")]);
    command.arg("-kernel").arg(machine.kernel).arg("-initrd").arg(machine.initramfs);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}
