//! The signals that stop the agent.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) struct StopSignals([Signal; 3]);

impl StopSignals {
    pub(super) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        let terminate = listen(SignalKind::terminate())?;
        // A closing terminal sends SIGHUP.
        Ok(Self([terminate, listen(SignalKind::interrupt())?, listen(SignalKind::hangup())?]))
    }

    /// Waits for the first of them; its name.
    pub(super) async fn wait(&mut self) -> &'static str {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            _ = hangup.recv() => "SIGHUP",
        }
    }
}
