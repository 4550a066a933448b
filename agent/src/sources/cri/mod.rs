//! The CRI adapter: reading calls over the runtime's unix socket. The only place that knows tonic.
//!
//! **Invariant.** coroner observes: the client (`cri-api/proto/read.proto`) has Version, ListPodSandbox, ListContainers,
//! ContainerStatus, PodSandboxStatus and ImageStatus, and no other call. `tests/cri` makes sure.

mod client;
pub mod convert;
mod discovery;
mod endpoint;
mod latency;
mod poll;

pub use endpoint::{Dialed, KNOWN_SOCKETS, parse_endpoint};
pub use latency::Latency;

use crate::sources::cut::Cuts;
use coroner_core::{input::Received, output::CriRequest};
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::mpsc;

#[derive(Clone, Debug)]
pub struct CriOptions {
    /// The socket's path on the host, or as this process sees it; `None`: found among [`KNOWN_SOCKETS`], and
    /// kept from the first connection on.
    pub endpoint: Option<PathBuf>,
    /// Full lists, unless they take more than 1 % of a core.
    pub idle: Duration,
    /// Filtered lists of sandboxes in which a stop is in progress.
    pub busy: Duration,
    pub host_root: PathBuf,
    /// Mount point of cgroup2, as this process sees it. `None`: [`CriRequest::FindCgroup`] cannot be answered.
    pub cgroup_root: Option<PathBuf>,
    /// Which image a container has, and the image's stop signal, is asked for: the audit needs it.
    pub images: bool,
    /// An answer is used whenever it comes until then; silence for longer is an outage.
    pub timeout: Duration,
    pub counters: Arc<CriCounters>,
    /// Where the adapter says which socket it is connected to.
    pub dialed: Arc<Dialed>,
}

impl CriOptions {
    /// The defaults: full lists every 10 s, filtered ones every 250 ms, 60 s for a call.
    pub fn new(endpoint: impl Into<Option<PathBuf>>) -> Self {
        Self {
            endpoint: endpoint.into(),
            idle: Duration::from_secs(10),
            busy: Duration::from_millis(250),
            host_root: PathBuf::from("/"),
            cgroup_root: None,
            images: false,
            timeout: Duration::from_secs(60),
            counters: Arc::default(),
            dialed: Arc::default(),
        }
    }
}

#[derive(Debug, Default)]
pub struct CriCounters {
    /// Calls and attempts to connect that failed. A container gone before its status was asked
    /// for is not a failure.
    pub errors: AtomicU64,
    /// How long calls take, except those that wait for a sandbox' shim.
    pub latency: Latency,
    /// Things in answers that make no sense (no id, no pod, a time before 1970) and were left out.
    pub skipped: AtomicU64,
    /// What of answers was longer than is kept, and was cut.
    pub truncated: Cuts,
}

/// Polls for ever, through every outage; ends when `to` is closed.
pub async fn run(
    options: CriOptions,
    to: mpsc::Sender<Received>,
    requests: mpsc::Receiver<CriRequest>,
) -> anyhow::Result<()> {
    poll::Poller::new(options).run(to, requests).await;
    Ok(())
}
