//! The client: which apiserver, as whom, and with which timeouts.

use anyhow::{Context, anyhow};
use kube::{
    Client, Config,
    client::{ClientBuilder, DynBody},
    config::{KubeConfigOptions, Kubeconfig},
};
use std::{path::Path, sync::Arc, time::Duration};
use tokio::sync::Notify;
use tower::util::MapResponseLayer;

/// How long one watch request lasts at the apiserver, seconds. A connection that died without a
/// word is noticed 5 s after this at the latest, by kube-rs itself.
pub(super) const WATCH_SECONDS: u32 = 120;

/// Longest silence on a connection. Above that of a quiet watch, for which bookmarks are the only
/// sign of life.
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);

/// A client that notifies `answered` of every request that succeeded, so that a watch that was
/// taken up again is known to be before anything happens in it.
pub(super) async fn connect(
    kubeconfig: Option<&Path>,
    answered: &Arc<Notify>,
) -> anyhow::Result<Client> {
    let mut config = config(kubeconfig).await?;
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // Retries are the watch's: the core must learn of each failure.
    config.default_retry = false;
    let answered = Arc::clone(answered);
    let note = move |response: axum::http::Response<Box<DynBody>>| {
        if response.status().is_success() {
            answered.notify_one();
        }
        response
    };
    Ok(ClientBuilder::try_from(config)
        .context("the apiserver's address or certificates cannot be used")?
        .with_layer(&MapResponseLayer::new(note))
        .build())
}

async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("the kubeconfig {} cannot be used", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("the kubeconfig {} cannot be used", path.display()))
        }
        None => Config::infer().await.map_err(|error| {
            anyhow!(
                "no way to the apiserver: give a kubeconfig (--kubeconfig, or KUBECONFIG in the \
                 environment), or run in a pod with a service account: {error}"
            )
        }),
    }
}
