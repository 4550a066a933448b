//! The export by OTLP, as a task on the thread of the network.

use super::Network;
use crate::{
    outputs::{
        http::SharedState,
        otlp::{Exporter, Target},
    },
    store::history::History,
};
use std::sync::Arc;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tracing::warn;

pub(super) struct Export {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Export {
    /// `None`: there is no receiver.
    pub(super) fn start(
        targets: Vec<Target>,
        history: &History,
        shared: &SharedState,
        network: &Network,
    ) -> Option<Self> {
        if targets.is_empty() {
            return None;
        }
        let counters = Arc::default();
        shared.metrics.watch_export(Arc::clone(&counters));
        let (stop, stopping) = watch::channel(false);
        let (history, node) = (history.clone(), shared.observed.node.clone());
        let exporter = Exporter::new(targets, history, node, counters, stopping);
        Some(Self { stop, task: network.handle.spawn(exporter.run()) })
    }

    /// Nothing new comes: what waits is sent now, and then the task ends.
    pub(super) fn stop(&self) {
        let _ = self.stop.send(true); // an error: it has ended
    }

    pub(super) async fn end(self, deadline: Instant) {
        if timeout_at(deadline, self.task).await.is_err() {
            warn!(
                "the OTLP receiver did not take all reports in time; the next agent on this node sends the rest, if \
                 --state-dir is still there"
            );
        }
    }
}
