//! The CRI adapter: reading calls over the runtime's unix socket. The only place that knows tonic.

use crate::domain::{
    ids::{ContainerId, SandboxId},
    input::Received,
};
use std::{path::PathBuf, time::Duration};
use tokio::sync::mpsc;

/// What the CRI adapter is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// `unix:///run/containerd/containerd.sock`.
    pub endpoint: String,
    /// Full lists when nothing is dying.
    pub idle: Duration,
    /// Filtered lists while something is.
    pub busy: Duration,
    /// Root of the host's file system, for /proc/PID/cgroup.
    pub host_root: PathBuf,
}

/// What the app may ask of the running adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Something in these sandboxes is dying: poll them often.
    Hurry(Vec<SandboxId>),
    /// Nothing in these sandboxes is dying any more.
    Relax(Vec<SandboxId>),
    /// Ask at once: about this sandbox, or everything.
    LookNow(Option<SandboxId>),
    /// Find the cgroup of this container (verbose status → pid → /proc/PID/cgroup).
    FindCgroup(ContainerId),
}

/// Polls for ever; ends when `to` is closed.
pub async fn run(
    _options: Options,
    _to: mpsc::Sender<Received>,
    _requests: mpsc::Receiver<Request>,
) -> anyhow::Result<()> {
    Ok(())
}
