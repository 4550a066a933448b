//! The apiserver adapter: a watch of this node's pods, and questions that a watch cannot answer.
//! The only place that knows kube-rs.
//!
//! **Invariant.** It gets, lists and watches pods, gets its node and lists the Events of single
//! pods; `outputs::events` makes Events by its client. It makes no other request.

pub(crate) mod client;
mod decode;
pub(crate) mod errors;
mod events;
#[doc(hidden)]
pub mod fuzzing;
pub(crate) mod lookup;
pub mod pod;
mod request;
mod watch;

pub(crate) use client::config;
pub use events::{EventsOptions, event, lists as list_events};

use crate::{
    linux::clock,
    sources::{Closed, cut::Cuts},
};
use coroner_core::{
    ids::PodRef,
    input::{ApiEvent, Input, Received},
};
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::mpsc;

/// [`KubeOptions::spread`] of a fleet's agents. What it is worth is computed in docs/scale.md. Less than
/// what the settle window allows a source to be late.
const SPREAD: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct KubeOptions {
    /// A kubeconfig; `None`: $KUBECONFIG, ~/.kube/config or the service account.
    pub kubeconfig: Option<PathBuf>,
    pub node: String,
    /// The boot that this machine is in, if known. While the Node object tells another, it is asked
    /// for more often: the kubelet of a node that has just booted is about to report.
    pub own_boot_id: Option<String>,
    /// The first list, and whatever follows a failure, comes up to so much later than it could:
    /// agents that start, or lose their apiserver, in the same moment do not all ask in the same
    /// moment.
    pub spread: Duration,
    pub counters: Arc<KubeCounters>,
}

impl KubeOptions {
    /// The pods of this node, by whatever configuration is found, as one agent of a fleet.
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            kubeconfig: None,
            node: node.into(),
            own_boot_id: None,
            spread: SPREAD,
            counters: Arc::default(),
        }
    }
}

#[derive(Debug, Default)]
pub struct KubeCounters {
    /// Requests that failed, and watches that broke. That a thing does not exist is an answer.
    pub errors: AtomicU64,
    /// Pods that make no sense (no uid, a field of the wrong type) and were left out.
    pub skipped: AtomicU64,
    /// What of pods and nodes was longer than is kept, and was cut.
    pub truncated: Cuts,
}

/// Watches for ever, through every disconnect; ends when `to` or `requests` is closed. Fails only
/// if the configuration cannot be used at all.
pub async fn run(
    options: KubeOptions,
    to: mpsc::Sender<Received>,
    requests: mpsc::Receiver<Vec<PodRef>>,
) -> anyhow::Result<()> {
    let recovered = Arc::default();
    let core = Core(to.clone());
    let kubeconfig = options.kubeconfig.as_deref();
    let (watch, ask) =
        (client::for_watches(kubeconfig).await?, client::request_client(kubeconfig).await?);
    let lookups = lookup::Lookups::new(ask, options.clone(), Arc::clone(&recovered), core.clone());
    tokio::select! {
        () = to.closed() => {}
        () = watch::Watch::new(watch, options, recovered, core).run() => {}
        () = lookups.run(requests) => {}
    }
    Ok(())
}

/// Where events go.
#[derive(Clone)]
struct Core(mpsc::Sender<Received>);

impl Core {
    async fn send(&self, event: ApiEvent) -> Result<(), Closed> {
        let received = Received { at: clock::boot_now(), input: Input::Api(event) };
        self.0.send(received).await.map_err(|_| Closed)
    }
}
