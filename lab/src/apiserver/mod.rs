//! A small apiserver: namespaces, nodes, pods and Events, in memory and over plain HTTP, with the resource versions
//! and the deletions of the real one.
//!
//! The driver and the scenarios use its [`Store`] directly. A request with a bearer token may do what
//! [`AGENTS_RULES`] allow, a request without one everything.

mod delay;
mod deletion;
mod events;
mod failure;
mod http;
mod store;
mod watch;

pub use delay::Detour;
pub use failure::ApiFailure;
pub use store::{Change, ChangeType, DeleteOptions, Kind, Store};

use anyhow::{Context as _, Result};
use serde_json::json;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};
use tokio::{net::TcpListener, sync, task::JoinHandle};

/// Verbs and resources of the ClusterRole in deploy/chart.
const AGENTS_RULES: [(&str, &str); 7] = [
    ("get", "pods"),
    ("list", "pods"),
    ("watch", "pods"),
    ("get", "nodes"),
    ("list", "events"),
    ("create", "events.events.k8s.io"),
    ("patch", "events.events.k8s.io"),
];

/// A running apiserver; it ends when this is dropped.
#[derive(Debug)]
pub struct Apiserver {
    address: SocketAddr,
    store: Store,
    available: sync::watch::Sender<bool>,
    router: axum::Router,
    servers: Vec<JoinHandle<()>>,
}

impl Apiserver {
    /// Starts it on a free port of loopback. `bookmarks`: how often watches get one.
    pub async fn start(bookmarks: Duration) -> Result<Self> {
        let store = Store::default();
        let default = json!({ "metadata": { "name": "default" } });
        store.create(Kind::Namespace, default)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("the lab's apiserver finds no port on 127.0.0.1")?;
        let address = listener.local_addr()?;
        let available = sync::watch::Sender::new(true);
        let router = http::router(http::Shared {
            store: store.clone(),
            available: available.subscribe(),
            bookmarks,
        });
        let mut apiserver = Self { address, store, available, router, servers: Vec::new() };
        apiserver.listen(listener);
        Ok(apiserver)
    }

    /// Answers at one more address, such as one in another network namespace.
    pub fn listen(&mut self, listener: TcpListener) {
        let router = self.router.clone();
        self.servers.push(tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!("the lab's apiserver ended: {error}");
            }
        }));
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// From now on every request gets 503 and watches end, or no longer.
    pub fn set_available(&self, available: bool) {
        self.available.send_replace(available);
    }

    /// Whether it answers, now and later.
    pub fn available(&self) -> sync::watch::Receiver<bool> {
        self.available.subscribe()
    }
}

impl Drop for Apiserver {
    fn drop(&mut self) {
        // Connections have tasks of their own; their watches end with the sender of `available`.
        self.servers.iter().for_each(JoinHandle::abort);
    }
}

/// Writes a kubeconfig for the apiserver that answers at this address. JSON is YAML.
pub fn write_kubeconfig(address: SocketAddr, path: &Path) -> Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "lab", "cluster": { "server": format!("http://{address}") } }],
        "users": [{ "name": "agent", "user": { "token": "agent" } }],
        "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": "agent" } }],
        "current-context": "lab",
    });
    std::fs::write(path, serde_json::to_vec_pretty(&config)?)
        .with_context(|| format!("cannot write {}", path.display()))
}
