//! What else tells of signals and exits, run as one runs it: its output goes into a pipe, where
//! somebody counts lines.

use super::{
    cost::Parts,
    lines::{Format, SCRIPT, ToolReport},
};
use crate::tracers::{find, see_tracepoints};
use anyhow::{Context as _, bail};
use coroner_lab_harness::agent::die_with_parent;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{self, BufRead as _, BufReader},
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// How long a tool may take until its programs run: bpftrace compiles its script first.
const TO_START: Duration = Duration::from_secs(60);
/// How long a tool may take to print what it holds and leave.
const TO_LEAVE: Duration = Duration::from_secs(20);
/// What a pipe holds: as much as an unprivileged user may ask for.
const PIPE: usize = 1 << 20;

/// Programs of the tools.
const SIGSNOOP: &str = "sigsnoop";
const EXITSNOOP: &str = "exitsnoop";
const BPFTRACE: &str = "bpftrace";

/// A tool that runs. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Tool {
    children: Vec<Child>,
    readers: Vec<JoinHandle<ToolReport>>,
    /// For its cost.
    pub(super) parts: Parts,
}

impl Tool {
    /// `sigsnoop` and `exitsnoop`.
    pub(super) async fn snoops(poke: &Path) -> anyhow::Result<Self> {
        let commands = [(SIGSNOOP, Format::Sigsnoop), (EXITSNOOP, Format::Exitsnoop)];
        let started = commands.map(|(name, format)| Ok((Command::new(find(name)?), format)));
        Self::start(started.into_iter().collect::<anyhow::Result<_>>()?, poke).await
    }

    /// bpftrace with a script that tells the same.
    pub(super) async fn bpftrace(poke: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(find(BPFTRACE)?);
        command.args(["-e", SCRIPT]);
        Self::start(vec![(command, Format::Bpftrace)], poke).await
    }

    /// `poke`: a program whose run is a signal and an exit.
    async fn start(commands: Vec<(Command, Format)>, poke: &Path) -> anyhow::Result<Self> {
        let programs = 2; // in all: one for signals, one for exits
        let mut tool = Self { children: vec![], readers: vec![], parts: Parts::default() };
        for (mut command, format) in commands {
            let (output, input) = io::pipe()?;
            rustix::pipe::fcntl_setpipe_size(&input, PIPE).context("cannot enlarge a pipe")?;
            let (input, output) = (OwnedFd::from(input), OwnedFd::from(output));
            command
                .stdin(Stdio::null())
                .stdout(input.try_clone()?)
                .stderr(input)
                .process_group(0)
                .kill_on_drop(true);
            die_with_parent(&mut command);
            see_tracepoints(command.as_std_mut());
            let name = command.as_std().get_program().to_owned();
            let child = command.spawn().with_context(|| format!("cannot start {name:?}"))?;
            drop(command); // and with it the pipe's end
            tool.children.push(child);
            tool.readers.push(thread::spawn(move || count(output.into(), format)));
        }
        let began = Instant::now();
        loop {
            for child in &mut tool.children {
                if let Some(status) = child.try_wait()? {
                    bail!("{child:?} ended at once: {status}");
                }
            }
            // What runs makes a SIGCHLD and an exit.
            Command::new(poke).arg("--version").stdout(Stdio::null()).status().await?;
            let pids: Vec<u32> = tool.children.iter().filter_map(Child::id).collect();
            tool.parts = Parts::of(&pids);
            if tool.parts.running()? == (programs, programs) {
                return Ok(tool);
            }
            if began.elapsed() > TO_START {
                bail!("its programs do not run: {:?}", tool.parts);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Has it print what it holds and leave.
    pub(super) async fn stop(mut self) -> anyhow::Result<ToolReport> {
        for child in &mut self.children {
            let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
            if let Some(pid) = pid {
                kill_process(pid, Signal::INT).context("SIGINT")?;
            }
            if tokio::time::timeout(TO_LEAVE, child.wait()).await.is_err() {
                child.kill().await?;
            }
        }
        let told = self.readers.drain(..).map(|reader| reader.join().unwrap_or_default());
        Ok(told.fold(ToolReport::default(), ToolReport::and))
    }
}

/// Up to the pipe's end.
fn count(output: std::fs::File, format: Format) -> ToolReport {
    let mut told = ToolReport::default();
    let mut output = BufReader::with_capacity(PIPE, output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        if let Ok(text) = str::from_utf8(&line) {
            tracing::trace!(line = text.trim_end());
            format.read(text, &mut told);
        }
        line.clear();
    }
    told
}
