//! From the signal that stops the agent to its exit.

use super::servers::RunningServers;
use crate::{
    outputs::recording::Recorder, sources::tasks::Adapters, store::persistence::StateWriter,
};
use anyhow::Context;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time for each of adapters, writer and servers to stop after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Time to write the end of the recording after that. The end matters most for a bug report, and the pod's
/// grace period is longer.
const RECORDING_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The signals that stop a command. A closing terminal sends SIGHUP.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl StopSignals {
    /// From now on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// When the kernel or the runtime has no room for them.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the first of them; its name.
    pub(crate) async fn wait(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}

/// What is stopped once the event loop has ended.
pub(super) struct Stopping {
    pub(super) adapters: Adapters,
    pub(super) recorder: Option<Recorder>,
    pub(super) writer: Option<StateWriter>,
    pub(super) servers: RunningServers,
}

impl Stopping {
    /// Stops all of it, in this order: what may still deliver evidence first, and the servers last.
    pub(super) async fn end(self) {
        self.adapters.end(STOP_TIMEOUT).await;
        if let Some(recorder) = self.recorder {
            recorder.end(RECORDING_FLUSH_TIMEOUT);
        }
        if let Some(writer) = self.writer {
            writer.end(STOP_TIMEOUT);
        }
        self.servers.end(STOP_TIMEOUT).await;
    }
}
