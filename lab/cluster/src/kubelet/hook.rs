//! Lifecycle hooks (lifecycle/handlers.go): exec runs in the container, httpGet and sleep in the
//! kubelet itself, so that no process of theirs is ever seen in the container's cgroup.

use super::{Cri, grace};
use crate::network::Network;
use anyhow::Context as _;
use axum::http::Uri;
use coroner_cri_api::v1::ExecSyncRequest;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use k8s_openapi::{
    api::core::v1::{ExecAction, HTTPGetAction, LifecycleHandler, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::net::TcpStream;

/// How the kubelet reaches a pod: through the runtime, and over the network.
#[derive(Clone, Debug)]
pub struct Reach {
    pub(super) cri: Cri,
    /// The node's side of the pods' network; `None`: the machine's own.
    network: Option<Network>,
    address: IpAddr,
}

impl Reach {
    /// A pod with that address in the network, or on this machine.
    pub fn new(cri: Cri, network: Option<Network>, address: IpAddr) -> Self {
        Self { cri, network, address }
    }

    /// Of a port of the pod, or of `host`.
    fn address(&self, host: Option<&str>, port: &IntOrString) -> anyhow::Result<SocketAddr> {
        let IntOrString::Int(port) = port else {
            anyhow::bail!(
                "{port:?} is no port of the container, or one of a hook: those are numbers here"
            );
        };
        let ip = host.map_or(Ok(self.address), |host| {
            host.parse().with_context(|| format!("the host {host:?} is not an IP address"))
        })?;
        let port = (*port).try_into().with_context(|| format!("{port} is not a port"))?;
        Ok(SocketAddr::new(ip, port))
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        match &self.network {
            Some(network) => network.connect(to).await,
            None => TcpStream::connect(to).await,
        }
    }
}

/// Runs a hook and waits for it `at_most` so long. What an exec hook has written goes to `said` when it ends,
/// also if that is later.
pub async fn run(
    pod: &Reach,
    id: &str,
    hook: &LifecycleHandler,
    at_most: Duration,
    said: impl FnOnce(String) + Send + 'static,
) -> anyhow::Result<()> {
    if let Some(command) = &hook.exec {
        exec(&pod.cri, id, command, at_most, said).await
    } else if let Some(get) = &hook.http_get {
        tokio::time::timeout(at_most, http_get(pod, get)).await.unwrap_or(Ok(()))
    } else if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(grace::wait(sleep.seconds).min(at_most)).await;
        Ok(())
    } else {
        Err(anyhow::anyhow!("the lab's kubelet runs exec, httpGet and sleep hooks only"))
    }
}

/// A hook that is not done in time goes on: the kubelet asks for no timeout and merely stops
/// waiting.
async fn exec(
    cri: &Cri,
    id: &str,
    hook: &ExecAction,
    at_most: Duration,
    said: impl FnOnce(String) + Send + 'static,
) -> anyhow::Result<()> {
    let request = ExecSyncRequest {
        container_id: id.into(),
        cmd: hook.command.clone().unwrap_or_default(),
        timeout: 0,
    };
    let mut cri = cri.clone();
    // A task of its own: dropping the call would have containerd kill the hook.
    let running = tokio::spawn(async move {
        let answer = cri.exec_sync(request).await?.into_inner();
        said(String::from_utf8_lossy(&answer.stdout).into_owned());
        anyhow::ensure!(answer.exit_code == 0, "it exited with {}", answer.exit_code);
        Ok(())
    });
    match tokio::time::timeout(at_most, running).await {
        Ok(done) => done?,
        Err(_) => Ok(()),
    }
}

/// A request of a hook or a probe, and whether the answer is a good one.
pub(super) async fn http_get(pod: &Reach, get: &HTTPGetAction) -> anyhow::Result<()> {
    let to = pod.address(get.host.as_deref(), &get.port)?;
    let path = get.path.as_deref().unwrap_or("/");
    let pod = pod.clone();
    let connect = tower::service_fn(move |_: Uri| {
        let pod = pod.clone();
        Box::pin(async move { pod.connect(to).await.map(TokioIo::new) })
    });
    let client: Client<_, Empty<axum::body::Bytes>> =
        Client::builder(TokioExecutor::new()).build(connect);
    let answer = client.get(format!("http://{to}{path}").parse()?).await?;
    let status = answer.status();
    answer.into_body().collect().await?;
    anyhow::ensure!(!status.is_client_error() && !status.is_server_error(), "it answers {status}");
    Ok(())
}

/// Whether somebody listens (probe/tcp/tcp.go).
pub(super) async fn connect(pod: &Reach, socket: &TCPSocketAction) -> anyhow::Result<()> {
    pod.connect(pod.address(socket.host.as_deref(), &socket.port)?).await?;
    Ok(())
}
