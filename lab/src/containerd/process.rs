//! A process of the lab's own that runs until it is killed.

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal};
use std::{
    process::{Command, ExitStatus},
    sync::mpsc,
    thread,
};
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Process {
    /// Also of one that has exited.
    pub(super) pid: Pid,
    /// How it exited, once it has.
    pub(super) ended: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts it from a thread of its own, which then waits for it: the kernel kills a child with PR_SET_PDEATHSIG
    /// when the *thread* that made it ends, and a runtime's threads come and go.
    pub(super) fn start(name: &str, mut command: Command) -> Result<Self> {
        let (started, start) = mpsc::sync_channel(1);
        let (end, ended) = watch::channel(None);
        thread::Builder::new().name(name.into()).spawn(move || match command.spawn() {
            Ok(mut child) => {
                let _ = started.send(Ok(Pid::from_child(&child)));
                end.send_replace(child.wait().ok());
            }
            Err(error) => drop(started.send(Err(error))),
        })?;
        let pid = start.recv()?.with_context(|| format!("cannot start {name}"))?;
        Ok(Self { pid, ended })
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        // Once its exit is known the number may belong to another process.
        if self.ended.borrow().is_some() {
            return Ok(());
        }
        match rustix::process::kill_process(self.pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).context("cannot send a signal"),
        }
    }

    /// Kills it with SIGKILL and waits for its exit.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        // An error means that the waiting thread is gone, and with it the process.
        let _ = self.ended.wait_for(Option::is_some).await;
        Ok(())
    }
}
