//! A process of the lab's own that lives until it is killed: the daemon, and the one that keeps its
//! namespace.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};
use std::{
    io,
    os::unix::process::ExitStatusExt as _,
    process::{Command, ExitStatus},
    sync::mpsc,
    thread,
    time::Duration,
};
use tokio::sync::watch;

/// A program that was written just now is busy as long as another thread's child, which has inherited the open
/// file, has not come to its own program.
const BUSY: u32 = 500;
const SOON: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct ContainerdProcess {
    /// Also of one that has ended.
    pub(super) pid: Pid,
    /// How it ended, once it has.
    pub(super) ended: watch::Receiver<Option<ExitStatus>>,
}

impl ContainerdProcess {
    /// Starts it from a thread of its own, which then waits for it: the kernel kills a child with
    /// PR_SET_PDEATHSIG when the *thread* that made it ends, and a runtime's threads come and go.
    /// Returns when its program runs.
    pub(super) fn start(name: &str, mut command: Command) -> Result<Self> {
        let (started, start) = mpsc::sync_channel(1);
        let (end, ended) = watch::channel(None);
        let program = command.get_program().to_owned();
        thread::Builder::new().name(name.into()).spawn(move || {
            let mut spawned = command.spawn();
            for _ in 0..BUSY {
                match &spawned {
                    Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {}
                    _ => break,
                }
                thread::sleep(SOON);
                spawned = command.spawn();
            }
            let mut child = match spawned {
                Ok(child) => child,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return;
                }
            };
            let _ = started.send(Ok(Pid::from_child(&child)));
            end.send_replace(child.wait().ok());
        })?;
        let pid =
            start.recv()?.with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
        Ok(Self { pid, ended })
    }

    /// Sends SIGKILL, and does not wait.
    pub(super) fn kill_now(&self) -> Result<()> {
        // Once its end is known the number may belong to somebody else.
        if self.ended.borrow().is_some() {
            return Ok(());
        }
        match rustix::process::kill_process(self.pid, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => {
                Err(error).with_context(|| format!("cannot kill process {}", self.pid.as_raw_pid()))
            }
        }
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.kill_now()?;
        // An error means that the waiting thread is gone, and with it the process.
        let _ = self.ended.wait_for(Option::is_some).await;
        Ok(())
    }
}

pub(super) fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("status {}", status.code().unwrap_or_default()),
    }
}
