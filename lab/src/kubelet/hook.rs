//! Lifecycle hooks (lifecycle/handlers.go): exec runs in the container, httpGet and sleep in the
//! kubelet itself, so that no process of theirs is ever seen in the container's cgroup.

use super::{Cri, grace};
use coroner_cri_api::v1::ExecSyncRequest;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::{
    api::core::v1::{ExecAction, HTTPGetAction, LifecycleHandler, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use std::time::Duration;
use tokio::net::TcpStream;

/// Where a pod with a hook or a probe over the network listens: it has to be on the host's network.
const POD_IP: &str = "127.0.0.1";

/// Runs a hook and waits for it `at_most` so long. False: it failed. What an exec hook has written goes
/// to `said` when it ends, also if that is later.
pub async fn run(
    cri: &Cri,
    id: &str,
    hook: &LifecycleHandler,
    at_most: Duration,
    said: impl FnOnce(String) + Send + 'static,
) -> bool {
    let result = if let Some(command) = &hook.exec {
        exec(cri, id, command, at_most, said).await
    } else if let Some(get) = &hook.http_get {
        tokio::time::timeout(at_most, http_get(get)).await.unwrap_or(Ok(()))
    } else if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(grace::wait(sleep.seconds).min(at_most)).await;
        Ok(())
    } else {
        Err(anyhow::anyhow!("the lab's kubelet runs exec, httpGet and sleep hooks only"))
    };
    if let Err(error) = &result {
        tracing::warn!(container = id, error = format!("{error:#}"), "hook failed");
    }
    result.is_ok()
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
pub(super) async fn http_get(get: &HTTPGetAction) -> anyhow::Result<()> {
    let port = number(&get.port)?;
    let host = get.host.as_deref().unwrap_or(POD_IP);
    let path = get.path.as_deref().unwrap_or("/");
    let client: Client<HttpConnector, Empty<axum::body::Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let answer = client.get(format!("http://{host}:{port}{path}").parse()?).await?;
    let status = answer.status();
    answer.into_body().collect().await?;
    anyhow::ensure!(!status.is_client_error() && !status.is_server_error(), "it answers {status}");
    Ok(())
}

/// Whether somebody listens (probe/tcp/tcp.go).
pub(super) async fn connect(socket: &TCPSocketAction) -> anyhow::Result<()> {
    let host = socket.host.as_deref().unwrap_or(POD_IP);
    TcpStream::connect(format!("{host}:{}", number(&socket.port)?)).await?;
    Ok(())
}

fn number(port: &IntOrString) -> anyhow::Result<i32> {
    match port {
        IntOrString::Int(port) => Ok(*port),
        IntOrString::String(_) => anyhow::bail!("the lab's kubelet knows no ports by name"),
    }
}
