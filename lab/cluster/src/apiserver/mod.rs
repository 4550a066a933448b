//! A small Kubernetes apiserver: objects of the kinds in the table of `kind.rs` (Events by both of their APIs,
//! core/v1 and events.k8s.io/v1), with discovery, get, list, watch, create, update, patch, server-side apply and
//! delete, the real one's resource versions and its deletion arithmetic. Good enough for kube-rs, for kubectl (get,
//! get -w, describe, create namespace, label, delete) and for helm (install, upgrade, rollback, uninstall). Plain HTTP on
//! loopback, everything in memory.
//!
//! ```text
//! let apiserver = Apiserver::start(ApiserverOptions::default()).await?;
//! apiserver.write_kubeconfig(&path)?;                     // for the agent and for kubectl
//! let store = apiserver.store();                          // in-process, synchronous, cheap to clone
//! store.create_pod(&pod)?;                                // gets uid, versions, defaults
//! store.delete_pod("default", "web", &DeleteOptions { grace: Some(0), ..Default::default() })?;
//! store.patch_status("default", "web", Some(&uid), |status| status.phase = Some("Running".into()))?;
//!
//! let mut wake = store.subscribe();                       // an in-process watch
//! let (mut seen, pods) = store.list(ResourceKind::Pod);
//! while wake.changed().await.is_ok() {
//!     for change in store.changes_since(seen)? {          // 410: list again
//!         seen = change.version;
//!     }
//! }
//! ```
//!
//! What is simpler than in the real one:
//!
//! - Requests without a token may do everything, and the token of a service account is its name; `rbac.rs` says what of
//!   authorization there is. There is no admission (quotas, priority classes, PodSecurity), and only pods get defaults. The
//!   types of fields are checked of a few kinds, and unknown fields are kept, whatever `fieldValidation` says.
//! - A namespace must exist only for what is created by HTTP, and not for Events. In-process, any name will do.
//! - A custom kind is served while an object CustomResourceDefinition has its name; its schema is not read.
//! - A strategic patch is a merge patch, so that its lists replace. `patch.rs` says what server-side apply leaves out.
//! - Bodies in protobuf are read as far as `protobuf.rs` says; all answers are JSON.
//! - Dependents are deleted at once (`store/garbage.rs`), but only when their owner is: not those of an owner that never
//!   existed. So is the content of a namespace.
//! - The only controller is that of DaemonSets (`crate::daemonset`), where it is started.

mod deletion;
mod discovery;
mod events;
mod failure;
mod http;
mod kind;
mod patch;
mod protobuf;
mod rbac;
mod request;
mod selector;
mod store;
mod stream;
mod table;
mod traffic;

pub use failure::ApiFailure;
pub use kind::ResourceKind;
pub(crate) use rbac::NO_EVENTS;
pub use rbac::token;
pub use store::{CONFIG_MIRROR, Change, ChangeType, DeleteOptions, PodObject, Propagation, Store};
pub use traffic::ApiTraffic;

use anyhow::{Context, Result};
use axum::middleware;
use serde_json::{Value, json};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

/// How to start it.
#[derive(Clone, Debug)]
pub struct ApiserverOptions {
    /// How many changes watches can go back before they get 410.
    pub history: usize,
    /// How often a watch that allows them gets a bookmark.
    pub bookmark_every: Duration,
}

impl Default for ApiserverOptions {
    fn default() -> ApiserverOptions {
        ApiserverOptions { history: 4096, bookmark_every: Duration::from_secs(10) }
    }
}

/// How it is to fail, on request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ApiserverFault {
    /// It does not.
    #[default]
    None,
    /// Every request gets 503, and the watches under way end.
    Unavailable,
    /// Every watch that is asked for gets 410 Gone, and those under way end with it.
    Expired,
    /// Every answer with a body is garbage, and the watches under way end with garbage.
    Garbage,
}

/// A running apiserver; it ends when this is dropped.
#[derive(Debug)]
pub struct Apiserver {
    address: SocketAddr,
    store: Store,
    fault: watch::Sender<ApiserverFault>,
    traffic: traffic::Counter,
    server: JoinHandle<()>,
}

impl Apiserver {
    /// Starts it on a free port of loopback, with the namespace `default`.
    pub async fn start(options: ApiserverOptions) -> Result<Apiserver> {
        let store = Store::new(options.history);
        let default = json!({ "metadata": { "name": "default" }, "status": { "phase": "Active" } });
        store.create(ResourceKind::Namespace, "", default)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("the lab's apiserver finds no port on 127.0.0.1")?;
        let address = listener.local_addr()?;
        let fault = watch::Sender::new(ApiserverFault::None);
        let router = http::router(stream::ApiserverShared {
            store: store.clone(),
            fault: fault.subscribe(),
            bookmark_every: options.bookmark_every,
        });
        let traffic = traffic::Counter::default();
        let count = middleware::from_fn_with_state(traffic.clone(), traffic::count);
        let router = router.layer(count);
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!("the lab's apiserver ended: {error}");
            }
        });
        Ok(Apiserver { address, store, fault, traffic, server })
    }

    /// Such as `http://127.0.0.1:41213`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn write_kubeconfig(&self, path: &Path) -> Result<()> {
        write_kubeconfig(&self.url(), path)
    }

    /// Its objects.
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// What was asked of it over HTTP, and answered, since the start.
    pub fn traffic(&self) -> ApiTraffic {
        self.traffic.read()
    }

    /// How it fails, now and later.
    pub fn fault(&self) -> watch::Receiver<ApiserverFault> {
        self.fault.subscribe()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes it fail from now on, or no longer.
    pub fn set_fault(&self, fault: ApiserverFault) {
        self.fault.send_replace(fault);
    }
}

/// Writes the same kubeconfig beside this one for a user who may not list Events.
pub fn write_kubeconfig_without_events(kubeconfig: &Path) -> Result<PathBuf> {
    let mut config: Value = serde_json::from_slice(&fs::read(kubeconfig)?)?;
    config["users"][0]["user"]["token"] = NO_EVENTS.into();
    let path = kubeconfig.with_extension(NO_EVENTS);
    fs::write(&path, serde_json::to_vec_pretty(&config)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Writes a kubeconfig for whoever answers at this URL.
pub fn write_kubeconfig(url: &str, path: &Path) -> Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "lab", "cluster": { "server": url } }],
        "users": [{ "name": "lab", "user": {} }],
        "contexts": [{
            "name": "lab",
            "context": { "cluster": "lab", "user": "lab", "namespace": "default" },
        }],
        "current-context": "lab",
    });
    // JSON is YAML.
    fs::write(path, serde_json::to_vec_pretty(&config)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

impl Drop for Apiserver {
    fn drop(&mut self) {
        // Connections have tasks of their own; their watches end with the fault's sender.
        self.server.abort();
    }
}
