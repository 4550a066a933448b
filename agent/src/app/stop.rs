//! The signals that stop the agent.

use anyhow::Context;
use std::{future::poll_fn, task::Poll};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) struct StopSignals(Vec<(Signal, &'static str)>);

impl StopSignals {
    /// A closing terminal sends SIGHUP.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let all = [
            (SignalKind::terminate(), "SIGTERM"),
            (SignalKind::interrupt(), "SIGINT"),
            (SignalKind::hangup(), "SIGHUP"),
        ];
        let listen = |(kind, name)| Ok((signal(kind).context("cannot listen for signals")?, name));
        Ok(Self(all.into_iter().map(listen).collect::<anyhow::Result<_>>()?))
    }

    /// Waits for the first of them; its name.
    pub(super) async fn wait(&mut self) -> &'static str {
        poll_fn(|context| {
            let mut all = self.0.iter_mut();
            let came = all
                .find_map(|(signal, name)| signal.poll_recv(context).is_ready().then_some(*name));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
