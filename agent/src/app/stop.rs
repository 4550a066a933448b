//! The signals that stop a command.

use anyhow::Context;
use std::{future::poll_fn, task::Poll};
use tokio::signal::unix::{Signal, SignalKind, signal};

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
