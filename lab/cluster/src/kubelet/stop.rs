//! Stopping a pod's containers: preStop, the sidecars' turn, StopContainer.

use super::{
    grace,
    hook::{self, Reach},
    order,
    record::KubeletRecord,
};
use coroner_cri_api::v1::StopContainerRequest;
use coroner_workload::page::boot_now;
use k8s_openapi::api::core::v1::{LifecycleHandler, PodSpec};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use tokio::{sync::watch, task::JoinSet};

/// How long containerd may take beyond the grace: the kubelet's `runtimeRequestTimeout`.
const BEYOND_GRACE: Duration = Duration::from_secs(120);

/// Stops all `running` containers (name → id) at once, each in its turn, within `grace` seconds and
/// the floor. Returns when all are gone; the first error otherwise.
pub async fn stop_all(
    pod: &Reach,
    record: &KubeletRecord,
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
        let (pod, record) = (pod.clone(), record.clone());
        let (id, name, gone) = (id.clone(), name.clone(), gone.clone());
        stops.spawn(async move {
            let stopped = stop(pod, &record, &id, hook, turn, grace).await;
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

/// Stops one container of a pod that goes on: nobody is waited for.
pub async fn stop_one(
    pod: &Reach,
    record: &KubeletRecord,
    spec: &PodSpec,
    name: &str,
    id: &str,
    grace: i64,
) -> anyhow::Result<()> {
    let (_, gone) = watch::channel(BTreeSet::new());
    let turn = Turn { after: BTreeSet::new(), gone };
    stop(pod.clone(), record, id, pre_stop(spec, name), turn, grace).await
}

/// Whom a container waits for.
struct Turn {
    after: BTreeSet<String>,
    gone: watch::Receiver<BTreeSet<String>>,
}

/// kuberuntime_container.go, `killContainer`.
async fn stop(
    pod: Reach,
    record: &KubeletRecord,
    id: &str,
    hook: Option<LifecycleHandler>,
    mut turn: Turn,
    grace: i64,
) -> anyhow::Result<()> {
    let mut left = grace;
    let entry = record.begin(id);
    if let Some(hook) = hook
        && left > 0
    {
        let began = Instant::now();
        entry.note(|stop| stop.hook_began = Some(boot_now()));
        let told = entry.clone();
        let said = move |said| told.note(|stop| stop.hook_said = said);
        // One that fails holds nothing up: the real kubelet records an event and goes on.
        let _ = hook::run(&pod, id, &hook, grace::wait(left), said).await;
        entry.note(|stop| stop.hook_over = Some(boot_now()));
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
    entry.note(|stop| (stop.asked, stop.timeout) = (Some(boot_now()), Some(timeout)));
    let mut cri = pod.cri.clone();
    let call = cri.stop_container(StopContainerRequest { container_id: id.into(), timeout });
    match tokio::time::timeout(grace::wait(timeout) + BEYOND_GRACE, call).await {
        Ok(Ok(_)) => {
            entry.note(|stop| stop.done = Some(boot_now()));
            Ok(())
        }
        Ok(Err(status)) if status.code() == tonic::Code::NotFound => Ok(()),
        Ok(Err(status)) => Err(anyhow::anyhow!("StopContainer {id}: {}", status.message())),
        Err(_) => Err(anyhow::anyhow!("StopContainer {id}: no answer")),
    }
}

fn pre_stop(spec: &PodSpec, name: &str) -> Option<LifecycleHandler> {
    order::start_order(spec)
        .into_iter()
        .find(|container| container.name == name)
        .and_then(|container| container.lifecycle.as_ref()?.pre_stop.clone())
}
