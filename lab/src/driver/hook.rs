//! Lifecycle hooks (lifecycle/handlers.go): exec runs in the container; httpGet, tcpSocket and sleep run in the kubelet,
//! so that no process of theirs is ever seen in the container's cgroup.

use super::stop::seconds;
use crate::containerd::{Cri, Network};
use anyhow::{Context as _, Result, bail, ensure};
use coroner_cri_api::v1::ExecSyncRequest;
use k8s_openapi::{
    api::core::v1::{ExecAction, LifecycleHandler},
    apimachinery::pkg::util::intstr::IntOrString,
};
use std::net::{IpAddr, SocketAddr};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// How a pod is reached: through the runtime, and over the network.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    pub(super) cri: Cri,
    /// The node's side of the pods' network and the pod's address; `None`: the machine's own.
    pub(super) network: Option<(Network, IpAddr)>,
}

impl Reach {
    async fn connect(&self, host: Option<&str>, port: &IntOrString) -> Result<TcpStream> {
        let IntOrString::Int(port) = port else { bail!("the port of a hook is a number here") };
        let own = self.network.as_ref().map_or(IpAddr::from([127, 0, 0, 1]), |(_, own)| *own);
        let host = host.map_or(Ok(own), str::parse)?;
        let to = SocketAddr::new(host, (*port).try_into()?);
        Ok(match &self.network {
            Some((network, _)) => network.connect(to).await?,
            None => TcpStream::connect(to).await?,
        })
    }
}

/// Runs a hook and waits for its end.
pub(super) async fn run(pod: &Reach, id: &str, hook: &LifecycleHandler) -> Result<()> {
    if let Some(command) = &hook.exec {
        // A task of its own: the kubelet requests no timeout and merely stops waiting. Dropping the call would have
        // containerd kill the hook.
        return tokio::spawn(exec(pod.cri.clone(), id.to_owned(), command.clone())).await?;
    }
    if let Some(get) = &hook.http_get {
        let mut stream = pod.connect(get.host.as_deref(), &get.port).await?;
        let path = get.path.as_deref().unwrap_or("/");
        let request = format!("GET {path} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let is_good = answer.starts_with("HTTP/1.1 2") || answer.starts_with("HTTP/1.1 3");
        ensure!(is_good, "it answers {:?}", answer.lines().next());
    } else if let Some(socket) = &hook.tcp_socket {
        pod.connect(socket.host.as_deref(), &socket.port).await?;
    } else if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(seconds(sleep.seconds)).await;
    }
    Ok(())
}

async fn exec(mut cri: Cri, container_id: String, hook: ExecAction) -> Result<()> {
    let cmd = hook.command.unwrap_or_default();
    let request = ExecSyncRequest { container_id, cmd, timeout: 0 };
    let answer = cri.exec_sync(request).await.context("ExecSync")?.into_inner();
    ensure!(answer.exit_code == 0, "it exited with {}", answer.exit_code);
    Ok(())
}
