//! The apiserver adapter: a watch of this node's pods. The only place that knows kube-rs.

use crate::domain::input::Received;
use std::path::PathBuf;
use tokio::sync::mpsc;

/// What the apiserver adapter is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// A kubeconfig; `None`: $KUBECONFIG, ~/.kube/config or the service account.
    pub kubeconfig: Option<PathBuf>,
    /// This node's name.
    pub node: String,
}

/// Watches for ever, through every disconnect; ends when `to` is closed. Fails only if the
/// configuration cannot be used at all.
pub async fn run(_options: Options, _to: mpsc::Sender<Received>) -> anyhow::Result<()> {
    Ok(())
}
