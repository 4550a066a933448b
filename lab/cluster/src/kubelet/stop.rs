//! Stopping a pod's containers: preStop, the sidecars' turn, StopContainer.

use super::{
    grace,
    hook::{self, Reach},
    klog::PodLog,
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

/// What stops a pod's containers; clones are of the same pod.
#[derive(Clone)]
pub(super) struct Stopper {
    pub(super) pod: Reach,
    pub(super) record: KubeletRecord,
    pub(super) log: PodLog,
    pub(super) spec: PodSpec,
}

/// One stop of one container.
pub(super) struct ContainerStop {
    pub(super) name: String,
    pub(super) id: String,
    /// Seconds.
    pub(super) grace: i64,
    /// It is not the container's own.
    pub(super) overrides: bool,
    /// The message of the Event `Killing`.
    pub(super) message: String,
}

impl ContainerStop {
    /// With all others of the pod.
    fn of_all(name: &str, id: &str, grace: i64) -> Self {
        let message = format!("Stopping container {name}");
        Self { name: name.into(), id: id.into(), grace, overrides: true, message }
    }
}

impl Stopper {
    /// Stops all `running` containers (name → id) at once, each in its turn, within `grace` seconds and the floor.
    /// Returns when all are gone; the first error otherwise.
    pub(super) async fn all(
        &self,
        running: &BTreeMap<String, String>,
        grace: i64,
    ) -> anyhow::Result<()> {
        let mut turns = order::waits_for(&self.spec);
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
            let (own, stop) = (self.clone(), ContainerStop::of_all(name, id, grace));
            let (name, gone) = (name.clone(), gone.clone());
            stops.spawn(async move {
                let stopped = own.stop(stop, turn).await;
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
    pub(super) async fn one(&self, stop: ContainerStop) -> anyhow::Result<()> {
        let (_, gone) = watch::channel(BTreeSet::new());
        self.stop(stop, Turn { after: BTreeSet::new(), gone }).await
    }

    /// kuberuntime_container.go, `killContainer`.
    async fn stop(&self, stop: ContainerStop, mut turn: Turn) -> anyhow::Result<()> {
        let ContainerStop { name, id, grace, overrides, message } = stop;
        let log = self.log.of_container(&name, &id);
        let mut left = grace;
        let entry = self.record.begin(&id);
        log.event("Normal", "Killing", &message);
        if overrides {
            log.grace("Killing container with a grace period override", left);
        }
        if let Some(hook) = self.pre_stop(&name)
            && left > 0
        {
            let began = Instant::now();
            entry.note(|stop| stop.hook_began = Some(boot_now()));
            log.info("Running preStop hook");
            let told = entry.clone();
            let said = move |said| told.note(|stop| stop.hook_said = said);
            // One that fails holds nothing up.
            let done = hook::run(&self.pod, &id, &hook, grace::wait(left), said).await;
            entry.note(|stop| stop.hook_over = Some(boot_now()));
            match done {
                Err(error) => {
                    log.error("PreStop hook failed", error);
                    log.event("Warning", "FailedPreStopHook", "PreStopHook failed");
                }
                Ok(()) if began.elapsed() >= grace::wait(left) => {
                    log.grace("PreStop hook not completed in grace period", left);
                }
                Ok(()) => log.info("PreStop hook completed"),
            }
            left = grace::left(left, began.elapsed());
        }
        if !turn.after.is_empty() && left > 0 {
            let began = Instant::now();
            let all_gone = turn.gone.wait_for(|gone| turn.after.is_subset(gone));
            let _ = tokio::time::timeout(grace::wait(left), all_gone).await;
            left = grace::left(left, began.elapsed());
        }
        let timeout = grace::stop_timeout(left);
        log.grace("Killing container with a grace period", timeout);
        entry.note(|stop| (stop.asked, stop.timeout) = (Some(boot_now()), Some(timeout)));
        let mut cri = self.pod.cri.clone();
        let call = cri.stop_container(StopContainerRequest { container_id: id.clone(), timeout });
        let failed = match tokio::time::timeout(grace::wait(timeout) + BEYOND_GRACE, call).await {
            Ok(Ok(_)) => {
                entry.note(|stop| stop.done = Some(boot_now()));
                log.info("Container exited normally");
                return Ok(());
            }
            Ok(Err(status)) if status.code() == tonic::Code::NotFound => return Ok(()),
            Ok(Err(status)) => status.message().to_owned(),
            Err(_) => "no answer".to_owned(),
        };
        log.error("Container termination failed with gracePeriod", &failed);
        Err(anyhow::anyhow!("StopContainer {id}: {failed}"))
    }

    fn pre_stop(&self, name: &str) -> Option<LifecycleHandler> {
        order::start_order(&self.spec)
            .into_iter()
            .find(|container| container.name == name)
            .and_then(|container| container.lifecycle.as_ref()?.pre_stop.clone())
    }
}

/// Whom a container waits for.
struct Turn {
    after: BTreeSet<String>,
    gone: watch::Receiver<BTreeSet<String>>,
}
