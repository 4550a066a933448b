//! From the signal that stops the agent to its exit.

use super::servers::RunningServers;
use crate::{
    outputs::recording::Recorder, sources::tasks::Adapters, store::persistence::StateWriter,
};
use anyhow::Context;
use std::{future::poll_fn, task::Poll, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time for each of adapters, writer and servers to stop after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Time to write the end of the recording after that. The end matters most for a bug report, and the pod's
/// grace period is longer.
const RECORDING_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct StopSignals(Vec<(Signal, &'static str)>);

impl StopSignals {
    /// Those that stop the agent. A closing terminal sends SIGHUP.
    pub(crate) fn of_agent() -> anyhow::Result<Self> {
        let Self(mut all) = Self::of_command()?;
        all.push(listen(SignalKind::hangup(), "SIGHUP")?);
        Ok(Self(all))
    }

    /// Those that end any command: under nohup(1) it ignores SIGHUP, and without it SIGHUP kills it.
    pub(crate) fn of_command() -> anyhow::Result<Self> {
        let terminate = listen(SignalKind::terminate(), "SIGTERM")?;
        Ok(Self(vec![terminate, listen(SignalKind::interrupt(), "SIGINT")?]))
    }

    /// Waits for the first of them; its name.
    pub(crate) async fn wait(&mut self) -> &'static str {
        poll_fn(|context| {
            let mut all = self.0.iter_mut();
            let came = all
                .find_map(|(signal, name)| signal.poll_recv(context).is_ready().then_some(*name));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

fn listen(kind: SignalKind, name: &'static str) -> anyhow::Result<(Signal, &'static str)> {
    Ok((signal(kind).context("cannot listen for signals")?, name))
}

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
