//! The clients: which apiserver, as whom, and with which timeouts.

use super::errors::with_causes;
use anyhow::anyhow;
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use std::{path::Path, time::Duration};

/// How long one watch request lasts at the apiserver, seconds. A connection that died without a
/// word is noticed 5 s after this at the latest.
pub(super) const WATCH_SECONDS: u32 = 120;

/// Longest silence on the watch's connection. Above that of a quiet watch, for which bookmarks are
/// the only sign of life.
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);

/// A question and its answer take no longer than this: the apiserver itself gives up on a request after it
/// (`--request-timeout`). A late answer is used.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// An apiserver that cannot be reached is told from one that is late.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A client for the watch, and the lists that it begins with. It has a connection of its own, so that a question never waits for
/// the watch, nor makes a watch that is broken look as if it had been answered. Nothing is sent yet.
pub(super) async fn for_watches(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let mut config = config(kubeconfig).await?;
    config.read_timeout = Some(READ_TIMEOUT);
    client(config)
}

/// A client for requests that are answered at once. Nothing is sent yet.
pub(crate) async fn request_client(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let mut config = config(kubeconfig).await?;
    config.read_timeout = Some(ANSWER_LIMIT);
    config.connect_timeout = Some(CONNECT_LIMIT);
    client(config)
}

pub(crate) async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let mut config = read_config(kubeconfig).await?;
    // Retries are ours: the core must learn of each failure.
    config.default_retry = false;
    // A connection that was silent for long is not to time out right after the next request.
    config.reset_reader_on_write = true;
    Ok(config)
}

async fn read_config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let Some(path) = kubeconfig else { return infer().await };
    let unusable = |error: KubeconfigError| {
        anyhow!("cannot use the kubeconfig {}: {}", path.display(), with_causes(&error))
    };
    let file = Kubeconfig::read_from(path).map_err(unusable)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(unusable)
}

/// As `Config::infer`, whose error cannot be taken apart: a person's own kubeconfig, or else the
/// service account.
async fn infer() -> anyhow::Result<Config> {
    let own = match Config::from_kubeconfig(&KubeConfigOptions::default()).await {
        Ok(config) => return Ok(config),
        Err(error) => with_causes(&error),
    };
    Config::incluster().map_err(|error| {
        anyhow!(
            "no apiserver configuration; set --kubeconfig (or KUBECONFIG; {own}), or run in a pod \
             with a service account ({})",
            with_causes(&error)
        )
    })
}

fn client(config: Config) -> anyhow::Result<Client> {
    let builder = ClientBuilder::try_from(config).map_err(|error| {
        anyhow!("cannot use the apiserver's address or certificates: {}", with_causes(&error))
    })?;
    Ok(builder.build())
}
