//! `sigsnoop` and `exitsnoop` of libbpf-tools, run as one runs them: their output goes into a pipe, at whose other end lines
//! are counted.

use crate::{
    agent::die_with_parent,
    bench::{
        load::NAME,
        programs::{self, Statistics},
    },
    containerd,
};
use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io,
    os::unix::process::CommandExt as _,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdout, Command},
    task::JoinHandle,
};

/// How long a tool may take until its program runs.
const TO_START: Duration = Duration::from_secs(60);
/// How long a tool may take to print what it holds and exit.
const TO_EXIT: Duration = Duration::from_secs(20);

/// Events of the load.
#[derive(Clone, Copy, Default)]
pub(super) struct Events {
    pub(super) signals: u64,
    pub(super) exits: u64,
}

/// The running tools. Dropped, they are killed.
pub(super) struct Snoops(Vec<(Child, JoinHandle<Events>)>);

impl Snoops {
    /// Returns when the programs of both run.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let mut tools = Self(Vec::new());
        for name in ["sigsnoop", "exitsnoop"] {
            let path = containerd::tools().join("bin").join(name);
            let mut command = Command::new(if path.exists() { path } else { name.into() });
            command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
            die_with_parent(&mut command);
            see_tracepoints(command.as_std_mut());
            let mut child = command.spawn().with_context(|| {
                format!(
                    "cannot start {name}: `cargo xtask bench` installs it, or install libbpf-tools"
                )
            })?;
            let output = child.stdout.take().context("no pipe")?;
            tools.0.push((child, tokio::spawn(count(output, name == "sigsnoop"))));
        }
        let began = Instant::now();
        loop {
            for (child, _) in &mut tools.0 {
                if let Some(status) = child.try_wait()? {
                    bail!("{child:?} exited at once: {status}");
                }
            }
            // A signal and an exit.
            Command::new("true").status().await?;
            let programs = tools.programs()?;
            if programs.len() == 2 && Statistics::read().have_run(&programs) == 2 {
                return Ok(tools);
            }
            if began.elapsed() > TO_START {
                bail!("the programs of sigsnoop and exitsnoop do not run: {programs:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn programs(&self) -> anyhow::Result<Vec<u32>> {
        let mut all = Vec::new();
        for pid in self.pids() {
            all.extend(programs::of_process(pid)?.into_keys());
        }
        Ok(all)
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.0.iter().filter_map(|(child, _)| child.id()).collect()
    }

    /// Makes them print what they hold and exit; what they have printed.
    pub(super) async fn stop(self) -> anyhow::Result<Events> {
        let mut all = Events::default();
        for (mut child, counted) in self.0 {
            let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
            if let Some(pid) = pid {
                kill_process(pid, Signal::INT)?;
            }
            if tokio::time::timeout(TO_EXIT, child.wait()).await.is_err() {
                child.kill().await?;
            }
            let printed = counted.await?;
            all.signals += printed.signals;
            all.exits += printed.exits;
        }
        Ok(all)
    }
}

/// The load's events in a tool's lines: `TIME PID COMM SIG TPID RESULT` or `PCOMM PID PPID TID AGE(s) EXIT_CODE`. The
/// SIGCHLDs of its exits are not the load's.
async fn count(output: ChildStdout, is_of_signals: bool) -> Events {
    let mut events = Events::default();
    let mut lines = BufReader::with_capacity(1 << 20, output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut fields = line.split_ascii_whitespace();
        if is_of_signals {
            let is_ours = fields.nth(2) == Some(NAME);
            events.signals += u64::from(is_ours && matches!(fields.next(), Some("1" | "15")));
        } else {
            events.exits += u64::from(fields.next() == Some(NAME));
        }
    }
    events
}

/// The tools look for tracepoints below /sys/kernel/tracing, which is not mounted everywhere: each gets it in a mount
/// namespace of its own.
fn see_tracepoints(command: &mut std::process::Command) {
    // SAFETY: system calls only, on constants.
    unsafe {
        command.pre_exec(|| {
            let check = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
            let none = std::ptr::null();
            check(libc::unshare(libc::CLONE_NEWNS))?;
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            check(libc::mount(none, c"/".as_ptr(), none, flags, none.cast()))?;
            let (kind, at) = (c"tracefs".as_ptr(), c"/sys/kernel/tracing".as_ptr());
            check(libc::mount(kind, at, kind, 0, none.cast()))
        });
    }
}
