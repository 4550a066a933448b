//! One pod's life on the node, in the order of kubelet.go's `SyncPod`, `SyncTerminatingPod` and `SyncTerminatedPod`:
//! cgroup, sandbox, containers; StopContainer, StopPodSandbox, status; containers and cgroup removed, the object deleted;
//! the sandbox removed later.

use super::{
    Shared,
    containers::Containers,
    events::Events,
    status::{self, Facts},
    stop::{Stopper, grace_in_force, start_order},
    translate::{self, LeftOver, PodId},
};
use crate::{
    apiserver::{ApiFailure, Kind},
    boot_now,
};
use anyhow::{Context as _, Result};
use coroner_cri_api::v1::VersionRequest;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::{Interval, MissedTickBehavior, interval, sleep, timeout},
};

/// From the watch event of a deletion to the first act of stopping. Real kubelets: 0.1 to 0.9 s.
const REACTION: Duration = Duration::from_millis(150);
/// How often the runtime is asked what has changed (the PLEG's relist).
const RELIST: Duration = Duration::from_secs(1);

/// How long the object waits for its cgroup to go: another sandbox of the pod may be in it.
const IN_USE: Duration = Duration::from_secs(2);

/// What is wanted of a pod.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The object's, or the manifest's, last state.
    pub(super) pod: Pod,
    /// The object, or the manifest, is gone.
    pub(super) is_gone: bool,
}

impl Wanted {
    /// The grace in force, seconds, if the pod is to be stopped.
    fn grace(&self) -> Option<i64> {
        let meta = &self.pod.metadata;
        let of_delete = match self.is_gone && !translate::is_static(&self.pod) {
            true => Some(0),
            false => meta.deletion_grace_period_seconds,
        };
        (self.is_gone || meta.deletion_timestamp.is_some())
            .then(|| grace_in_force(of_delete, self.spec().termination_grace_period_seconds))
    }

    fn spec(&self) -> PodSpec {
        self.pod.spec.clone().unwrap_or_default()
    }
}

/// A container of a pod that lives on is to be stopped and started again.
#[derive(Clone, Debug)]
pub(super) struct Restart {
    pub(super) container: String,
    /// The message of the Event `Killing`; `None`: the kubelet's recorder drops it.
    pub(super) message: Option<String>,
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    id: PodId,
    wanted: watch::Receiver<Wanted>,
    restarts: mpsc::UnboundedReceiver<Restart>,
    containers: Containers,
    relist: Interval,
    reported: PodStatus,
    /// Why it could not be started.
    failure: Option<String>,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: PodId,
        wanted: watch::Receiver<Wanted>,
        restarts: mpsc::UnboundedReceiver<Restart>,
    ) -> Self {
        let cgroup = shared.cgroups.pod(translate::qos_class(&wanted.borrow().pod), &id.uid);
        let containers = Containers::new(shared.clone(), id.clone(), cgroup);
        let mut relist = interval(RELIST);
        relist.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (reported, failure) = (PodStatus::default(), None);
        Self { shared, id, wanted, restarts, containers, relist, reported, failure }
    }

    /// Ends when nothing of the pod is left on the node.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.start().await {
            tracing::debug!(pod = self.id.name, "cannot start: {error:#}");
            self.failure = Some(format!("{error:#}"));
            self.report(false).await;
        }
        let is_deleted = self.follow().await;
        if is_deleted {
            let own = translate::annotation(&self.wanted.borrow().pod, translate::REACTION_MS)
                .and_then(|ms| ms.parse().ok());
            sleep(own.map_or(REACTION, Duration::from_millis)).await;
        }
        while let Err(error) = self.stop().await {
            // The kubelet's work queue tries again later as well.
            tracing::debug!(pod = self.id.name, "stop: {error:#}");
            sleep(RELIST).await;
        }
        self.report(true).await;
        // An object that is not deleted stays, and the pod's containers and sandbox with it.
        if self.wanted.wait_for(|wanted| wanted.grace().is_some()).await.is_err() {
            return;
        }
        self.next_relist().await;
        if let Err(error) = self.clean_up().await {
            tracing::warn!(pod = self.id.name, "clean-up: {error:#}");
        }
    }

    async fn start(&mut self) -> Result<()> {
        let pod = self.wanted.borrow().pod.clone();
        self.report(false).await;
        // A burst of pods would only slow each other on a small machine.
        let mut turn = Some(self.shared.starts.clone().acquire_owned().await?);
        let attempt = self.shared.next_attempt(&self.id.uid);
        self.containers.run_sandbox(&pod, attempt).await?;
        let spec = self.wanted.borrow().spec();
        for container in start_order(&spec) {
            if container.lifecycle.as_ref().is_some_and(|hooks| hooks.post_start.is_some()) {
                // The next container waits for the hook; other pods need not.
                turn.take();
            }
            let started = self.containers.start(&pod, container).await;
            started.with_context(|| container.name.clone())?;
        }
        drop(turn);
        self.containers.observe().await;
        self.report(false).await;
        Ok(())
    }

    /// Watches the running pod. True: it is deleted; false: it has completed.
    async fn follow(&mut self) -> bool {
        loop {
            if self.wanted.borrow_and_update().grace().is_some() {
                return true;
            }
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() { return true },
                Some(restart) = self.restarts.recv() => {
                    if let Err(error) = self.restart(&restart).await {
                        tracing::error!(pod = self.id.name, "restart: {error:#}");
                    }
                }
                _ = self.relist.tick() => {
                    if self.containers.observe().await {
                        self.report(false).await;
                    }
                    if self.is_complete() {
                        return false;
                    }
                }
            }
        }
    }

    /// What was done meanwhile is seen in the next relist.
    async fn next_relist(&mut self) {
        self.relist.reset();
        self.relist.tick().await;
    }

    /// All main containers have exited, and the restartPolicy starts none again.
    fn is_complete(&self) -> bool {
        let spec = self.wanted.borrow().spec();
        let has_exited = |name| {
            let seen = self.containers.seen.get(name);
            seen.is_some_and(|seen| seen.now.exit.is_some())
        };
        spec.restart_policy.as_deref() == Some("Never")
            && spec.containers.iter().all(|main| has_exited(&main.name))
    }

    /// Stops a container with the pod's grace, and starts it again in the same sync (kuberuntime_manager.go, `SyncPod`).
    async fn restart(&mut self, restart: &Restart) -> Result<()> {
        let (pod, spec) = (self.wanted.borrow().pod.clone(), self.wanted.borrow().spec());
        let (name, running) = (&restart.container, self.containers.running());
        let id = running.get(name).context("it does not run")?;
        if let Some(message) = &restart.message {
            self.events().post(name, "Killing", message);
        }
        let grace = grace_in_force(None, spec.termination_grace_period_seconds);
        self.stopper().one(name, id, grace, None).await?;
        self.containers.observe().await;
        let container = start_order(&spec).into_iter().find(|one| one.name == *name);
        self.containers.start(&pod, container.context("it is not in the spec")?).await?;
        self.containers.observe().await;
        self.report(false).await;
        Ok(())
    }

    fn events(&self) -> Events {
        let (store, node) = (self.shared.store.clone(), self.shared.config.node.clone());
        Events { store, node, pod: self.id.clone() }
    }

    fn stopper(&self) -> Stopper {
        let (pod, record) = (self.containers.reach(), self.shared.record.clone());
        Stopper { pod, record, events: self.events(), spec: self.wanted.borrow().spec() }
    }

    /// Containers and sandbox (`killPodWithSyncResult`). A grace that is shortened meanwhile changes nothing: the call to
    /// the runtime is under way (recording k1.33-containerd1.7/grace-shortened).
    async fn stop(&mut self) -> Result<()> {
        // Nothing is tried where the runtime is down (kubelet.go, `syncLoop`). One that comes up refuses StopContainer,
        // and may take StopPodSandbox a moment later, which sends SIGKILL.
        self.shared.cri.clone().version(VersionRequest::default()).await.context("Version")?;
        self.containers.observe().await;
        let grace = {
            let wanted = self.wanted.borrow_and_update();
            let own = || grace_in_force(None, wanted.spec().termination_grace_period_seconds);
            wanted.grace().unwrap_or_else(own)
        };
        // The sandbox is stopped even if a container could not be.
        let stopped = self.stopper().all(&self.containers.running(), grace).await;
        stopped.and(self.containers.stop_sandbox().await)?;
        self.containers.observe().await;
        Ok(())
    }

    async fn clean_up(&mut self) -> Result<()> {
        let began = boot_now();
        let leaves = translate::leaves(&self.wanted.borrow().pod);
        if leaves != LeftOver::Containers {
            self.containers.remove_containers().await?;
        }
        let (cgroups, cgroup) = (self.shared.cgroups.clone(), self.containers.cgroup.clone());
        if timeout(IN_USE, cgroups.remove(&cgroup)).await.is_err() {
            // By a second sandbox, as in some leaks.
            tracing::info!(pod = self.id.name, "its cgroup is still in use");
        }
        let is_static = translate::is_static(&self.wanted.borrow().pod);
        if !is_static && !self.wanted.borrow().is_gone {
            self.shared.reachable().await;
            self.shared.delete(&self.id, Some(self.id.uid.clone()));
        }
        if self.wanted.wait_for(|wanted| wanted.is_gone).await.is_err()
            || leaves != LeftOver::Nothing
        {
            return Ok(());
        }
        // Garbage collection comes later, every minute on a real node.
        self.next_relist().await;
        self.containers.remove_sandbox().await?;
        self.shared.note_removal(&self.id.uid, began);
        if is_static {
            // Housekeeping deletes the mirror.
            self.shared.delete(&self.id, None);
        }
        Ok(())
    }

    /// Conditions that others have set stay, as with the kubelet's PATCH (status_manager.go).
    async fn report(&mut self, is_terminal: bool) {
        let wanted = self.wanted.borrow().clone();
        let is_static = translate::is_static(&wanted.pod);
        if wanted.is_gone && !is_static {
            return;
        }
        let facts = Facts {
            is_terminal,
            failure: self.failure.as_deref(),
            has_sandbox: self.containers.has_sandbox(),
            ips: &self.containers.ips,
        };
        let before = std::mem::take(&mut self.reported);
        self.reported = status::status(&wanted.pod, &self.containers.seen, &facts, before);
        self.shared.reachable().await;
        let (namespace, name) = (&self.id.namespace, &self.id.name);
        let updated = self.shared.store.update(Kind::Pod, namespace, name, |object| {
            let mirrored = &object["metadata"]["annotations"]["kubernetes.io/config.mirror"];
            let uid = if is_static { mirrored } else { &object["metadata"]["uid"] };
            if *uid != self.id.uid {
                return Ok(()); // another pod of this name
            }
            let mut status = json!(self.reported);
            let own = |kind: &serde_json::Value| {
                self.reported.conditions.iter().flatten().any(|one| *kind == one.type_)
            };
            let others = object["status"]["conditions"].as_array().into_iter().flatten();
            let others: Vec<_> = others.filter(|one| !own(&one["type"])).cloned().collect();
            if let Some(conditions) = status["conditions"].as_array_mut() {
                conditions.extend(others);
            }
            object["status"] = status;
            Ok::<(), ApiFailure>(())
        });
        if let Err(failure) = updated {
            tracing::debug!(pod = self.id.name, "status: {failure}");
        }
    }
}
