//! The adapters' tasks, whoever runs them.

use std::{future::Future, time::Duration};
use tokio::{task::JoinSet, time::timeout};
use tracing::debug;

/// The tasks. None ends by itself while its channel is open.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
}

impl Adapters {
    /// Starts one.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { (name, task.await) });
    }

    /// The first one that ends, as the error that it is.
    pub(crate) async fn failure(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok((name, Err(error)))) => error.context(format!("the {name} adapter failed")),
            Some(Ok((name, Ok(())))) => anyhow::anyhow!("the {name} adapter stopped unexpectedly"),
            Some(Err(broken)) => anyhow::Error::new(broken).context("an adapter panicked"),
            None => anyhow::anyhow!("all adapters have stopped"),
        }
    }

    /// Their channel is closed: they end by themselves, or are cut off after this long. Either way
    /// what they hold is dropped: the kernel side's programs are detached by that.
    pub(crate) async fn end(mut self, patience: Duration) {
        let ending = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(patience, ending).await.is_err() {
            debug!("aborting adapters that did not stop in time");
        }
        self.tasks.shutdown().await;
    }
}
