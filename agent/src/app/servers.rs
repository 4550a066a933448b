//! The three listeners, and who serves them.

use super::Network;
use crate::outputs::http::{
    self, Audience, SharedState, addresses, listener::Listener, tls::Certificate,
};
use anyhow::Context;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};
use tracing::{debug, info, warn};

/// Every address, of IPv6 and IPv4 both; on a host without IPv6 of IPv4 alone.
pub(super) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error)
            if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
                && matches!(
                    error.raw_os_error(),
                    Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
                ) =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}

/// Addresses from which the kubelet may probe this agent: by the downward API (`status.hostIPs`), and those of the
/// default gateways.
fn node_addresses() -> Vec<IpAddr> {
    let given = std::env::var("NODE_IPS").unwrap_or_default();
    let given = given.split(',').filter_map(|address| address.trim().parse().ok());
    given.chain(addresses::gateways()).collect()
}

pub(super) struct RunningServers {
    tasks: JoinSet<()>,
    stop: watch::Sender<()>,
    socket: Option<PathBuf>,
}

impl RunningServers {
    /// Serves metrics and health on `listener`, and the API on TCP and on a unix socket. An agent whose API cannot be
    /// served continues without it: with hostNetwork another process of the node may use the port.
    pub(super) async fn start(
        shared: &Arc<SharedState>,
        network: &Network,
        listener: TcpListener,
        certificate: Option<&Arc<Certificate>>,
        api: Option<SocketAddr>,
        socket: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(());
        let mut tasks = JoinSet::new();
        let mut serve = |listener: Listener, audience| {
            let mut stopped = stopped.clone();
            let stopped = async move {
                let _ = stopped.changed().await; // an error: the sender is gone, which also means shutdown
            };
            let server = http::serve(listener, shared.clone(), audience, stopped);
            tasks.spawn_on(server, &network.handle);
        };
        let address =
            listener.local_addr().context("cannot read the address of the listening socket")?;
        let mut listener = network.tcp(listener).context("cannot serve")?;
        (listener.tls, listener.node) = (certificate.cloned(), node_addresses());
        serve(listener, Audience::Network);
        let https = certificate.is_some();
        info!(%address, https, version = env!("CARGO_PKG_VERSION"), "listening");
        if let Some(address) = api {
            match bind(address).await {
                Ok(listener) => {
                    let address = listener.local_addr().unwrap_or(address);
                    info!(%address, "serving the API on TCP");
                    let listener = network.tcp(listener).context("cannot serve")?;
                    serve(listener, Audience::Forwarded);
                }
                Err(error) => warn!(
                    %address, %error,
                    "cannot serve the API on TCP; choose another address with --api-listen, or turn \
                     it off"
                ),
            }
        }
        if let Some(path) = &socket {
            match addresses::listen(path).await {
                Ok(listener) => {
                    let listener = network.unix(listener).context("cannot serve")?;
                    serve(listener, Audience::Node);
                }
                Err(error) => {
                    let error = crate::chain(error.as_ref());
                    warn!(
                        error,
                        "cannot serve the API on a unix socket; the other commands need it"
                    );
                }
            }
        }
        Ok(Self { tasks, stop, socket })
    }

    /// Lets answers under way end, and closes what then is still open.
    pub(super) async fn end(self, limit: Duration) {
        let _ = self.stop.send(()); // an error: the servers have stopped already
        if timeout(limit, self.tasks.join_all()).await.is_err() {
            debug!("closing a connection that a client kept open");
        }
        if let Some(path) = self.socket {
            let _ = std::fs::remove_file(path); // the next agent replaces it otherwise
        }
    }
}
