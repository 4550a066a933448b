//! The apiserver adapter: a watch of this node's pods. The only place that knows kube-rs.
//!
//! **Invariant.** It lists and watches pods, and makes no other request.

mod client;
pub mod convert;
mod pod;
mod watch;

use crate::domain::input::Received;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
};
use tokio::sync::mpsc;

/// What the apiserver adapter is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// A kubeconfig; `None`: $KUBECONFIG, ~/.kube/config or the service account.
    pub kubeconfig: Option<PathBuf>,
    /// This node's name.
    pub node: String,
    /// Where the adapter counts what it does.
    pub counters: Arc<Counters>,
}

impl Options {
    /// The pods of this node, by whatever configuration is found.
    pub fn new(node: impl Into<String>) -> Self {
        Self { kubeconfig: None, node: node.into(), counters: Arc::default() }
    }
}

/// What the adapter did, since it began.
#[derive(Debug, Default)]
pub struct Counters {
    /// Pods received, in lists and by the watch.
    pub events: AtomicU64,
    /// Full lists that replaced all that was known.
    pub snapshots: AtomicU64,
    /// Requests that failed, and watches that broke.
    pub errors: AtomicU64,
    /// Pods that make no sense (no uid, a field of the wrong type) and were left out.
    pub skipped: AtomicU64,
}

/// Watches for ever, through every disconnect; ends when `to` is closed. Fails only if the
/// configuration cannot be used at all.
pub async fn run(options: Options, to: mpsc::Sender<Received>) -> anyhow::Result<()> {
    let answered = Arc::default();
    let client = client::connect(options.kubeconfig.as_deref(), &answered).await?;
    let closed = to.clone();
    tokio::select! {
        () = closed.closed() => {}
        () = watch::Watch::new(client, &options, answered, to).run() => {}
    }
    Ok(())
}
