//! Stopping a pod's containers: preStop, the sidecars' turn, StopContainer.

use super::{Cri, grace, order};
use k8s_cri::v1::{ExecSyncRequest, StopContainerRequest};
use k8s_openapi::api::core::v1::{LifecycleHandler, PodSpec};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use tokio::{sync::watch, task::JoinSet};

/// How long containerd may take beyond the grace: the kubelet's `runtimeRequestTimeout`.
const BEYOND_GRACE: Duration = Duration::from_secs(120);

/// Stops all `running` containers (name → id) at once, each in its turn, within `grace` seconds and
/// the floor. Returns when all are gone; the first error otherwise. Dropped, it cancels the calls,
/// as the kubelet does when the grace is shortened.
pub async fn stop_all(
    cri: &Cri,
    spec: &PodSpec,
    running: &BTreeMap<String, String>,
    grace: i64,
) -> anyhow::Result<()> {
    let mut turns = order::waits_for(spec);
    let (gone, watched) = watch::channel(BTreeSet::<String>::new());
    let mut stops = JoinSet::new();
    for (name, id) in running {
        let turn = Turn {
            // Who is not running any more need not be waited for.
            after: turns
                .remove(name)
                .unwrap_or_default()
                .into_iter()
                .filter(|name| running.contains_key(name))
                .collect(),
            gone: watched.clone(),
        };
        let hook = pre_stop(spec, name);
        let (cri, id, name, gone) = (cri.clone(), id.clone(), name.clone(), gone.clone());
        stops.spawn(async move {
            let stopped = stop(cri, &id, hook, turn, grace).await;
            gone.send_modify(|gone| {
                gone.insert(name);
            });
            stopped
        });
    }
    let mut result = Ok(());
    while let Some(joined) = stops.join_next().await {
        let stopped = joined.map_err(anyhow::Error::from).and_then(|stopped| stopped);
        result = result.and(stopped);
    }
    result
}

/// Whom a container waits for.
struct Turn {
    after: BTreeSet<String>,
    gone: watch::Receiver<BTreeSet<String>>,
}

/// kuberuntime_container.go, `killContainer`.
async fn stop(
    mut cri: Cri,
    id: &str,
    hook: Option<LifecycleHandler>,
    mut turn: Turn,
    grace: i64,
) -> anyhow::Result<()> {
    let mut left = grace;
    if let Some(hook) = hook
        && left > 0
    {
        let began = Instant::now();
        run_hook(&cri, id, &hook, grace::wait(left)).await;
        left = grace::left(left, began.elapsed());
    }
    if !turn.after.is_empty() && left > 0 {
        let began = Instant::now();
        let all_gone = turn.gone.wait_for(|gone| turn.after.is_subset(gone));
        let _ = tokio::time::timeout(grace::wait(left), all_gone).await;
        left = grace::left(left, began.elapsed());
    }
    let timeout = grace::stop_timeout(left);
    tracing::debug!(container = id, timeout, "StopContainer");
    let call = cri.stop_container(StopContainerRequest { container_id: id.into(), timeout });
    match tokio::time::timeout(grace::wait(timeout) + BEYOND_GRACE, call).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) if status.code() == tonic::Code::NotFound => Ok(()),
        Ok(Err(status)) => Err(anyhow::anyhow!("StopContainer {id}: {}", status.message())),
        Err(_) => Err(anyhow::anyhow!("StopContainer {id}: no answer")),
    }
}

/// Runs a hook and waits for it `at_most` so long. An exec hook that is not done by then goes on:
/// the kubelet asks for no timeout and merely stops waiting (lifecycle/handlers.go).
pub async fn run_hook(cri: &Cri, id: &str, hook: &LifecycleHandler, at_most: Duration) {
    if let Some(exec) = &hook.exec {
        let request = ExecSyncRequest {
            container_id: id.into(),
            cmd: exec.command.clone().unwrap_or_default(),
            timeout: 0,
        };
        let mut cri = cri.clone();
        // A task of its own: dropping the call would have containerd kill the hook.
        let running = tokio::spawn(async move { cri.exec_sync(request).await });
        match tokio::time::timeout(at_most, running).await {
            Ok(Ok(Err(status))) => {
                tracing::warn!(container = id, error = status.message(), "hook failed");
            }
            Ok(Err(error)) => tracing::warn!(container = id, %error, "hook failed"),
            Ok(Ok(Ok(_))) | Err(_) => {}
        }
    } else if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(grace::wait(sleep.seconds).min(at_most)).await;
    } else {
        tracing::warn!(container = id, "the lab's kubelet runs exec and sleep hooks only");
    }
}

fn pre_stop(spec: &PodSpec, name: &str) -> Option<LifecycleHandler> {
    order::start_order(spec)
        .into_iter()
        .find(|container| container.name == name)
        .and_then(|container| container.lifecycle.as_ref()?.pre_stop.clone())
}
