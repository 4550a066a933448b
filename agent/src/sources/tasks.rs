//! Tasks of the adapters.

use std::{future::Future, time::Duration};
use tokio::{runtime::Handle, task::JoinSet, time::timeout};
use tracing::debug;

/// The running adapters. An adapter runs until its channel is closed.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
}

impl Adapters {
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.spawn_on(&Handle::current(), name, task);
    }

    pub(crate) fn spawn_on(
        &mut self,
        thread: &Handle,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn_on(async move { (name, task.await) }, thread);
    }

    /// Waits for the first adapter that stops, and returns the reason as an error.
    pub(crate) async fn failure(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok((name, Err(error)))) => error.context(format!("the {name} adapter failed")),
            Some(Ok((name, Ok(())))) => anyhow::anyhow!("the {name} adapter stopped unexpectedly"),
            Some(Err(broken)) => anyhow::Error::new(broken).context("an adapter panicked"),
            None => anyhow::anyhow!("all adapters have stopped"),
        }
    }

    /// Waits until the adapters stop after their channels are closed, and aborts them after `limit`. Dropping the
    /// kernel adapter detaches the kernel programs.
    pub(crate) async fn end(mut self, limit: Duration) {
        let ending = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(limit, ending).await.is_err() {
            debug!("aborting adapters that did not stop in time");
        }
        self.tasks.shutdown().await;
    }
}
