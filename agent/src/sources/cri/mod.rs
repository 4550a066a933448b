//! The CRI adapter: reading calls over the runtime's unix socket. The only place that knows tonic.
//!
//! **Invariant.** Of the CRI it has Version, ListPodSandbox and ListContainers (streamed, too),
//! ContainerStatus and PodSandboxStatus, GetContainerEvents where every subscriber gets every
//! event, and no other call: coroner observes. `tests/cri` reads this folder's source to make sure.

mod calls;
mod client;
pub mod convert;
mod events;
mod failure;
#[doc(hidden)]
pub mod fuzzing;
mod latency;
mod messages;
mod pending;
mod poll;

pub use latency::Latency;

use crate::sources::cut::Cuts;
use coroner_core::{input::Received, output::CriRequest};
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::mpsc;

/// What the CRI adapter is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// `unix:///run/containerd/containerd.sock`, or the plain path.
    pub endpoint: String,
    /// Full lists when nothing is dying (three times as rarely above 1,000 sandboxes).
    pub idle: Duration,
    /// Filtered lists while something is.
    pub busy: Duration,
    /// Root of the host's file system, for /proc/PID/cgroup.
    pub host_root: PathBuf,
    /// Mount point of the cgroup hierarchy that the programs watch, as this process sees it: v2,
    /// or one controller's of v1. `None`: [`CriRequest::FindCgroup`] cannot be answered.
    pub cgroup_root: Option<PathBuf>,
    /// Take the runtime's container events as a hint to look, where it sends them to every
    /// subscriber (containerd from 2.0, CRI-O from 1.28). Off by default: a containerd whose
    /// subscriber stands still waits for it.
    pub events: bool,
    /// An answer is used whenever it comes until then; silence for longer is an outage.
    pub timeout: Duration,
    /// Where the adapter counts what it does.
    pub counters: Arc<Counters>,
}

impl Options {
    /// The defaults: full lists every 10 s, filtered ones every 250 ms, 60 s for a call.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            idle: Duration::from_secs(10),
            busy: Duration::from_millis(250),
            host_root: PathBuf::from("/"),
            cgroup_root: None,
            events: false,
            timeout: Duration::from_secs(60),
            counters: Arc::default(),
        }
    }
}

/// What the adapter did, since it began.
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls made, whatever came of them.
    pub calls: AtomicU64,
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

/// An endpoint that is not a unix socket's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointError {
    /// Nothing there.
    #[error("the CRI endpoint is empty; use the runtime's socket, for example {EXAMPLE}")]
    Empty,
    /// Another scheme.
    #[error(
        "the CRI endpoint {0:?} is not a unix socket; use the runtime's socket, for example \
         {EXAMPLE}"
    )]
    Scheme(String),
    /// Not from the root.
    #[error(
        "the CRI endpoint {0:?} is not an absolute path; use unix:// and an absolute path, for \
         example {EXAMPLE}"
    )]
    Relative(String),
}

const EXAMPLE: &str = "unix:///run/containerd/containerd.sock";

/// The socket's path in `unix:///path` (also `unix:/path`) or `/path`.
pub fn parse_endpoint(endpoint: &str) -> Result<PathBuf, EndpointError> {
    let path = match endpoint.split_once(':') {
        Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
        Some((scheme, rest)) if rest.starts_with("//") && !scheme.contains('/') => {
            return Err(EndpointError::Scheme(endpoint.to_owned()));
        }
        _ => endpoint,
    };
    match path {
        "" => Err(EndpointError::Empty),
        path if path.starts_with('/') => Ok(PathBuf::from(path)),
        _ => Err(EndpointError::Relative(endpoint.to_owned())),
    }
}

/// Polls for ever, through every outage; ends when `to` is closed. Fails only if the endpoint is
/// not one.
pub async fn run(
    options: Options,
    to: mpsc::Sender<Received>,
    requests: mpsc::Receiver<CriRequest>,
) -> anyhow::Result<()> {
    let socket = parse_endpoint(&options.endpoint)?;
    let pending = Arc::new(pending::PendingRequests::default());
    let closed = to.clone();
    tokio::select! {
        () = closed.closed() => {}
        () = pending::listen(requests, &pending) => {}
        () = poll::Poller::new(socket, options, to, Arc::clone(&pending)).run() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        let ok = |path: &str| Ok(PathBuf::from(path));
        let scheme = |text: &str| Err(EndpointError::Scheme(text.to_owned()));
        let relative = |text: &str| Err(EndpointError::Relative(text.to_owned()));
        for (text, expected) in [
            ("unix:///run/containerd/containerd.sock", ok("/run/containerd/containerd.sock")),
            ("unix:/run/crio/crio.sock", ok("/run/crio/crio.sock")),
            ("/run/crio/crio.sock", ok("/run/crio/crio.sock")),
            ("/run/with:colon.sock", ok("/run/with:colon.sock")),
            ("", Err(EndpointError::Empty)),
            ("unix://", Err(EndpointError::Empty)),
            ("unix://run/crio.sock", relative("unix://run/crio.sock")),
            ("run/crio.sock", relative("run/crio.sock")),
            ("tcp://127.0.0.1:1234", scheme("tcp://127.0.0.1:1234")),
            ("http://localhost", scheme("http://localhost")),
            ("npipe:////./pipe/containerd", scheme("npipe:////./pipe/containerd")),
        ] {
            assert_eq!(parse_endpoint(text), expected, "{text:?}");
        }
    }
}
