//! Boots a kernel with an initramfs and listens to its serial line.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    host::Arch,
    progress::{ProgressLine, note},
    workspace::Workspace,
};

/// A guest that says nothing for so long has stopped working. As long as it says something it may go on:
/// how long it takes is up to the machine around it.
const SILENCE: Duration = Duration::from_secs(600);
/// How often a silent guest is looked after.
const LOOK: Duration = Duration::from_secs(15);
/// What the guest's init prints first.
const BEGUN: &str = "guest: Linux ";
/// What the guest's init prints before the test's exit status.
const MARKER: &str = "coroner-vm-exit:";
/// How much of the serial line is shown when the guest does not end as it should.
const TAIL_LINES: usize = 40;

/// A machine to boot.
pub(super) struct Machine<'a> {
    pub(super) arch: &'a Arch,
    pub(super) kernel: &'a Path,
    pub(super) initramfs: &'a Path,
    /// What its kernel is told beside the console.
    pub(super) arguments: &'a str,
    /// Where the serial line is written to.
    pub(super) log: PathBuf,
}

/// What a guest came to.
pub(super) struct Ended {
    /// The test's exit status.
    pub(super) status: i32,
    /// All that the serial line said.
    pub(super) text: String,
}

/// QEMU is killed with whoever gives up on it.
struct RunningGuest(Child);

impl Drop for RunningGuest {
    fn drop(&mut self) {
        // Already gone is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots it and waits for its end; `line` says what it is at. Once more, if the kernel died before its
/// first process said a word: that is the emulator's doing, and no test had begun.
///
/// # Errors
/// When QEMU cannot be started, or the guest does not report the test's exit status in time.
pub(super) fn boot(
    workspace: &Workspace,
    line: &ProgressLine,
    machine: &Machine<'_>,
) -> Result<Ended> {
    match attempt(workspace, line, machine) {
        Err(error) if !has_begun(&fs::read_to_string(&machine.log).unwrap_or_default()) => {
            note(&format!("   booting again: {error:#}"));
            attempt(workspace, line, machine)
        }
        result => result,
    }
}

/// Whether the guest's first process has spoken.
fn has_begun(log: &str) -> bool {
    log.lines().any(|text| text.contains(BEGUN))
}

fn attempt(workspace: &Workspace, line: &ProgressLine, machine: &Machine<'_>) -> Result<Ended> {
    // Plain emulation boots in seconds everywhere. A /dev/kvm that opens, makes a virtual CPU and runs the
    // firmware can still fail at an instruction of the kernel's (seen: cmpxchg16b), so KVM is asked for.
    let accelerator = std::env::var("CORONER_VM_ACCEL").unwrap_or_else(|_| "tcg".to_owned());
    let (board, console): (&[&str], _) = match machine.arch.is_host() {
        // QEMU 7.2's own cmpxchg16b leaves garbage in the flags, and sooner or later the kernel takes a double
        // fault in the next slab (seen on 6.12): without that instruction it uses another way.
        true => (&["-cpu", "max,cx16=off"], "ttyS0"),
        // One that knows pages of 16 KiB.
        false => (&["-machine", "virt", "-cpu", "neoverse-n1"], "ttyAMA0"),
    };
    let child = qemu(workspace, machine.arch)
        .args(["-accel", &accelerator, "-m", "1024", "-smp", "2"])
        .args(board)
        .args(["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"])
        .args(["-append", &format!("console={console} panic=-1 loglevel=1 {}", machine.arguments)])
        .arg("-kernel")
        .arg(machine.kernel)
        .arg("-initrd")
        .arg(machine.initramfs)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start QEMU: `cargo xtask setup` brings it")?;
    let mut running = RunningGuest(child);
    let mut log = File::create(&machine.log)
        .with_context(|| format!("cannot write {}", machine.log.display()))?;
    let Some(serial) = running.0.stdout.take() else {
        bail!("QEMU has no serial line");
    };
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        for text in BufReader::new(serial).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&text).trim_end().to_owned()).is_err() {
                return;
            }
        }
    });

    let mut heard = Instant::now();
    let mut said: Vec<String> = Vec::new();
    let why = loop {
        match lines.recv_timeout(LOOK) {
            Ok(text) => {
                writeln!(log, "{text}")?;
                line.say(&text);
                said.push(text);
                heard = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {
                line.heartbeat(said.last().map_or("", String::as_str));
            }
            Err(RecvTimeoutError::Disconnected) => {
                break "the guest ended without the test's exit status";
            }
        }
        if let Some(status) = said.last().and_then(|text| exit_status(text)) {
            return Ok(Ended { status, text: said.join("\n") });
        }
        if heard.elapsed() > SILENCE {
            break "the guest says nothing any more";
        }
    };
    let tail = &said[said.len().saturating_sub(TAIL_LINES)..];
    bail!("{why}; all of it is in {}\n{}", machine.log.display(), tail.join("\n"));
}

fn exit_status(line: &str) -> Option<i32> {
    line.trim().strip_prefix(MARKER)?.parse().ok()
}

fn qemu(workspace: &Workspace, arch: &Arch) -> Command {
    let mut command = Command::new(format!("qemu-system-{}", arch.rust));
    command.env("PATH", workspace.path());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_marker_is_an_exit_status() {
        assert_eq!(exit_status("coroner-vm-exit:101\r"), Some(101));
        assert_eq!(exit_status("coroner-vm-exit:"), None);
        assert_eq!(exit_status("ok coroner-vm-exit:0"), None);
    }

    #[test]
    fn the_guest_prints_what_is_listened_for() {
        assert!(has_begun(include_str!("init.sh")));
        assert!(!has_begun("Kernel panic - not syncing\n"));
        assert!(include_str!("init.sh").contains(&format!("\"{MARKER}$status\"")));
    }
}
