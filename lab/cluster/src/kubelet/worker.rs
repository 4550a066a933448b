//! One pod's life on the node, from its sandbox to the object's last delete: the effects of what
//! the pure modules decide, in the kubelet's own order (kubelet.go, `SyncPod`,
//! `SyncTerminatingPod`, `SyncTerminatedPod`).

mod sync;

use super::{
    KubeletShared,
    containers::Containers,
    grace,
    klog::PodLog,
    order, probe, restart,
    status::{self, Reason, Underway},
    stop::Stopper,
    translate::{self, PodId},
};
use anyhow::Context as _;
use coroner_cri_api::v1::ListPodSandboxRequest;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodIP, PodSpec, PodStatus};
use std::{sync::Arc, time::Duration};
use tokio::sync::{Mutex, mpsc, watch};

/// How long the object waits for its cgroup to go: another sandbox of the pod, of which this kubelet
/// does not know, keeps it in use.
const IN_USE: Duration = Duration::from_secs(2);

/// status.reason of a pod that could not be started; status.message then says why.
pub const START_FAILED: &str = "StartFailed";

/// The kubelet's own decision to end a pod whose object stays: eviction_manager.go,
/// nodeshutdown_manager.go, preemption.go, active_deadline.go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PodEnding {
    /// The grace at most, seconds; `None`: the pod's own.
    pub grace: Option<i64>,
    pub reason: &'static str,
    pub message: &'static str,
    /// The message of the condition DisruptionTarget, reason TerminationByKubelet; `None`: the kubelet does
    /// not set this condition.
    pub disruption: Option<&'static str>,
    /// The phase is Failed and the reason stays, even if all main containers exited with 0.
    pub always_fails: bool,
    /// Its containers are removed at once, though the object stays (pod_workers.go,
    /// `ShouldPodContentBeRemoved`: killed with `Evict`).
    pub removes_content: bool,
}

/// active_deadline.go. A PodSyncHandler sets phase and reason again in every status.
const DEADLINE_EXCEEDED: PodEnding = PodEnding {
    grace: None,
    reason: "DeadlineExceeded",
    message: "Pod was active on the node longer than the specified deadline",
    disruption: None,
    always_fails: true,
    removes_content: false,
};

/// What is wanted of a pod, as far as is known.
#[derive(Clone, Debug)]
pub(super) struct WorkerTarget {
    /// The object's, or the manifest's, last state.
    pub(super) pod: Pod,
    /// The object, or the manifest, is gone.
    pub(super) gone: bool,
    /// It is to end without being deleted.
    pub(super) ending: Option<PodEnding>,
    /// Its containers cannot be removed.
    pub(super) keeps_containers: bool,
    /// What its probes find changes nothing.
    pub(super) ignores_probes: bool,
}

impl WorkerTarget {
    /// It runs until further notice.
    pub(super) fn new(pod: Pod) -> Self {
        let (keeps_containers, ignores_probes) = (false, false);
        Self { pod, gone: false, ending: None, keeps_containers, ignores_probes }
    }

    /// The grace in force, seconds, if the pod is to be stopped.
    fn grace_of_delete(&self) -> Option<i64> {
        let meta = &self.pod.metadata;
        // A static pod whose manifest went has its own grace, an object that went has none left.
        let of_delete = if self.gone && !translate::is_static(&self.pod) {
            Some(0)
        } else {
            meta.deletion_grace_period_seconds
        };
        let of_spec = self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        (self.gone || meta.deletion_timestamp.is_some())
            .then(|| grace::in_force(of_delete, of_spec))
    }

    /// The grace with which all of it is stopped now, seconds.
    fn grace(&self) -> i64 {
        let of_spec = self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let own = self.grace_of_delete().unwrap_or_else(|| grace::in_force(None, of_spec));
        let of_ending = self.ending.and_then(|ending| ending.grace);
        of_ending.map_or(own, |grace| own.min(grace.max(grace::POD_FLOOR)))
    }
}

/// Why a pod is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerOver {
    /// All its main containers have ended, and none is to be started again.
    Completed,
    Deleted,
    /// The kubelet ends it.
    Ended,
}

/// The worker of one pod.
pub(super) struct Worker {
    shared: Arc<KubeletShared>,
    id: PodId,
    wanted: watch::Receiver<WorkerTarget>,
    attempt: u32,
    cgroup: String,
    containers: Containers,
    probed: mpsc::UnboundedReceiver<probe::ProbeReport>,
    /// What is done to all of it.
    underway: Underway,
    /// What was last reported.
    reported: Option<PodStatus>,
    /// Locked while it looks at the pod in a relist.
    looking: Arc<Mutex<()>>,
    /// It ran longer than its spec.activeDeadlineSeconds.
    is_past_deadline: bool,
    /// Why it could not be started.
    failure: Option<String>,
    log: PodLog,
}

impl Worker {
    /// Of the `attempt`th life of a pod.
    pub(super) fn new(
        shared: Arc<KubeletShared>,
        id: PodId,
        wanted: watch::Receiver<WorkerTarget>,
        attempt: u32,
        looking: Arc<Mutex<()>>,
    ) -> Self {
        let cgroup = shared.cgroups.pod(translate::qos_class(&wanted.borrow().pod), &id.uid);
        let (tell, probed) = mpsc::unbounded_channel();
        let containers = Containers::new(shared.clone(), id.clone(), cgroup.clone(), tell);
        let log = shared.pod_log(&id);
        Self {
            shared,
            id,
            wanted,
            attempt,
            cgroup,
            containers,
            probed,
            underway: Underway::Nothing,
            reported: None,
            looking,
            is_past_deadline: false,
            failure: None,
            log,
        }
    }

    /// Lives the pod's life. Ends when nothing of it is left but its sandbox, which is the
    /// collector's.
    pub(super) async fn run(mut self) {
        self.log.begins("sync");
        if let Err(error) = self.start().await {
            self.failed(&error);
        }
        self.log.ends("sync");
        match self.follow().await {
            WorkerOver::Deleted => {
                let teardown = match self.wanted.borrow().gone {
                    true => "Pod is being removed by the kubelet, begin teardown",
                    false => "Pod is marked for graceful deletion, begin teardown",
                };
                self.log.info(teardown);
                let own = translate::reaction(&self.wanted.borrow().pod);
                tokio::time::sleep(own.unwrap_or(self.shared.config.reaction)).await;
                self.stop_pod().await;
            }
            // Its object stays as long as somebody wants it.
            over @ (WorkerOver::Completed | WorkerOver::Ended) => {
                self.begins_to_end(over);
                self.stop_pod().await;
                self.ended();
                if self.ending().is_some_and(|ending| ending.removes_content) {
                    self.shared.next_relist().await;
                    self.containers.remove_all().await;
                }
                becomes(&mut self.wanted, |wanted| wanted.grace_of_delete().is_some()).await;
            }
        }
        self.clean_up().await;
    }

    /// Its object stays, and the pod ends: why, in the words of the eviction manager and its like.
    fn begins_to_end(&self, over: WorkerOver) {
        let log = &self.log;
        let Some(ending) = self.ending().filter(|_| over == WorkerOver::Ended) else {
            log.info("Pod indicated lifecycle completed naturally and should now terminate");
            return;
        };
        match ending.reason {
            "Evicted" => {
                if ending.disruption.is_some() {
                    log.evicts();
                }
                log.info("Evicting pod");
            }
            "Preempting" => log.info("Preempting pod to free up resources"),
            "Terminated" => log.info("Shutdown manager killing pod with gracePeriod"),
            _ => {}
        }
        log.event("Warning", ending.reason, ending.message);
        log.info("Pod is being evicted by the kubelet, begin teardown");
    }

    /// Nothing of it runs any more, and its object stays.
    fn ended(&self) {
        match self.ending().map(|ending| ending.reason) {
            Some("Evicted") => self.log.info("Eviction manager: pod is evicted successfully"),
            Some("Preempting") => self.log.info("Pod evicted successfully"),
            Some("Terminated") => self.log.info("Shutdown manager finished killing pod"),
            _ => {}
        }
    }

    fn failed(&mut self, error: &anyhow::Error) {
        tracing::error!(pod = self.id.name, error = format!("{error:#}"), "cannot start");
        self.failure = Some(format!("{error:#}"));
        self.report(false);
    }

    fn spec(&self) -> PodSpec {
        self.wanted.borrow().pod.spec.clone().unwrap_or_default()
    }

    /// Sandbox, containers, postStart hooks, Running.
    async fn start(&mut self) -> anyhow::Result<()> {
        let pod = self.wanted.borrow().pod.clone();
        let spec = self.spec();
        self.report(false);
        // Four at a time: a burst of pods would only slow each other on a small machine.
        let mut turn = Some(self.shared.starts.clone().acquire_owned().await?);
        self.containers.run_sandbox(&pod, self.attempt).await?;
        // How those of an earlier sandbox ended.
        self.containers.observe().await;
        for container in order::start_order(&spec) {
            self.containers.start(&pod, container).await?;
            if container.lifecycle.as_ref().is_some_and(|hooks| hooks.post_start.is_some()) {
                // The next container waits for the hook; other pods need not.
                turn.take();
                self.post_start(container).await;
            }
        }
        drop(turn);
        self.containers.observe().await;
        self.report(false);
        Ok(())
    }

    /// Watches the running pod, and starts its containers anew where that is due.
    async fn follow(&mut self) -> WorkerOver {
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            if wanted.grace_of_delete().is_some() {
                return WorkerOver::Deleted;
            }
            if wanted.ending.is_some() {
                return WorkerOver::Ended;
            }
            self.replace_changed().await;
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() { return WorkerOver::Deleted },
                Some(told) = self.probed.recv() => self.take_probe(told).await,
                () = self.shared.next_relist() => {
                    let looking = self.looking.clone();
                    let _looking = looking.lock().await;
                    let changed = self.containers.observe().await;
                    let has_died = self.containers.sandbox_has_died().await;
                    self.containers.relisted(!wanted.gone);
                    if has_died && !self.is_complete() {
                        self.replace_sandbox().await;
                    } else if self.asks_for_restart_of_all() {
                        self.restart_all().await;
                    } else if changed {
                        self.report(false);
                    }
                    self.replace_unknown().await;
                    self.restart_ended().await;
                    if self.is_complete() {
                        return WorkerOver::Completed;
                    }
                    if self.has_passed_deadline() {
                        self.is_past_deadline = true;
                        return WorkerOver::Ended;
                    }
                }
            }
        }
    }

    /// active_deadline.go, `pastActiveDeadline`: counted from status.startTime.
    fn has_passed_deadline(&self) -> bool {
        let started = self.reported.as_ref().and_then(|status| status.start_time.as_ref());
        let (Some(deadline), Some(started)) = (self.spec().active_deadline_seconds, started) else {
            return false;
        };
        Timestamp::now().duration_since(started.0).as_secs() >= deadline
    }

    /// Why the kubelet ends the pod, if it does.
    fn ending(&self) -> Option<PodEnding> {
        let deadline = self.is_past_deadline.then_some(DEADLINE_EXCEEDED);
        self.wanted.borrow().ending.or(deadline)
    }

    fn is_complete(&self) -> bool {
        let spec = self.spec();
        let seen = self.containers.seen();
        let over = |name: &str| {
            let ended = seen.get(name).and_then(|seen| seen.now.ended.as_ref());
            ended.is_some_and(|ended| !restart::is_due(&spec, name, ended.exit_code))
        };
        !spec.containers.is_empty() && spec.containers.iter().all(|main| over(&main.name))
    }

    /// SyncTerminatingPod: containers, then the sandbox, then the status. A grace that is shortened
    /// meanwhile changes nothing: the call to the runtime is under way (FACTS §7; recording
    /// k1.33-containerd1.7/grace-shortened).
    async fn stop_pod(&mut self) {
        self.containers.stop_probing();
        self.containers.wait_no_more();
        self.log.begins("terminating");
        self.log.info("Pod worker has observed request to terminate");
        self.log.info("SyncTerminatingPod enter");
        while let Err(error) = self.try_to_stop().await {
            // The kubelet's work queue tries again later as well.
            self.sync_failed(&error);
            tokio::time::sleep(self.shared.config.relist).await;
        }
        self.containers.observe().await;
        self.report(true);
        self.log.info("Pod termination stopped all running containers");
        self.log.info("SyncTerminatingPod exit");
        self.log.info("Pod terminated all containers successfully");
        self.log.ends("terminating");
    }

    fn sync_failed(&self, error: &anyhow::Error) {
        let text = format!("{error:#}");
        tracing::warn!(pod = self.id.name, error = text, "stop");
        self.log.event("Warning", "FailedKillPod", &format!("error killing pod: {text}"));
        self.log.error("Error syncing pod, skipping", text);
    }

    /// What stops its containers.
    fn stopper(&self) -> Stopper {
        let (record, log) = (self.shared.record.clone(), self.log.clone());
        Stopper { pod: self.containers.reach(), record, log, spec: self.spec() }
    }

    /// Containers and sandbox (`killPodWithSyncResult`).
    async fn try_to_stop(&mut self) -> anyhow::Result<()> {
        let mut cri = self.shared.cri.clone();
        // Nothing is tried where the runtime is down (kubelet.go, `syncLoop`). One that comes up refuses
        // StopContainer, and may take StopPodSandbox a moment later, which sends SIGKILL.
        cri.list_pod_sandbox(ListPodSandboxRequest::default()).await.context("ListPodSandbox")?;
        self.containers.observe().await;
        let running = self.containers.running();
        let grace = self.wanted.borrow_and_update().grace();
        self.log.grace("Pod terminating with grace period", grace);
        // The sandbox is stopped even where a container could not be (killPodWithSyncResult).
        let stopped = self.stopper().all(&running, grace).await;
        stopped.and(self.containers.stop_sandbox().await)
    }

    /// SyncTerminatedPod, and the container deletor beside it: at the next relist, as the real one
    /// hears of the end only then.
    async fn clean_up(&mut self) {
        self.shared.next_relist().await;
        let is_known = !self.wanted.borrow().gone;
        self.containers.relisted(is_known);
        self.log.begins("terminated");
        self.log.info("SyncTerminatedPod enter");
        self.log.info("Waiting for volumes to unmount for pod");
        self.log.info("All volumes are unmounted for pod");
        self.log.info("Pod termination unmounted volumes");
        if !self.wanted.borrow().keeps_containers {
            self.containers.remove_all().await;
        }
        let (cgroups, cgroup) = (self.shared.cgroups.clone(), self.cgroup.clone());
        // Goes on where the worker does not wait for it any more.
        let removal = tokio::spawn(async move { cgroups.remove(&cgroup).await });
        let removed = match tokio::time::timeout(IN_USE, removal).await {
            Ok(Ok(removed)) => removed,
            Ok(Err(_)) | Err(_) => Err(anyhow::anyhow!("still in use")),
        };
        match removed {
            Ok(()) => self.log.info("Pod termination removed cgroups"),
            Err(error) => {
                let text = format!("{error:#}");
                tracing::warn!(pod = self.id.name, error = text, "pod cgroup");
                self.log.error("Failed to delete cgroup paths", text);
            }
        }
        self.log.info("Pod is terminated and will need no more status updates");
        self.log.info("SyncTerminatedPod exit");
        self.log.info("Pod is complete and the worker can now stop");
        self.log.ends("terminated");
        self.log.info("Pod worker has stopped");
        let wanted = self.wanted.borrow();
        if !wanted.gone && !translate::is_static(&wanted.pod) {
            self.log.info(
                "The pod termination is finished as SyncTerminatedPod completes its execution",
            );
            let says = "Pod fully terminated and removed from etcd";
            self.shared.delete_for_good(&self.id, says);
        }
    }

    fn report(&mut self, terminal: bool) {
        let mut wanted = self.wanted.borrow().clone();
        let is_static = translate::is_static(&wanted.pod);
        if wanted.gone && !is_static {
            return;
        }
        if is_static {
            // A manifest has no status to go on from.
            wanted.pod.status = self.reported.clone();
        }
        let ip = &self.shared.config.node_ip;
        let now = Timestamp::now();
        let reason = match (&self.failure, self.ending()) {
            (Some(message), _) => Some(Reason {
                reason: START_FAILED,
                message,
                disruption: None,
                always_fails: false,
            }),
            // Not before nothing of it runs any more (status_manager.go, `mergePodStatus`).
            (None, Some(PodEnding { reason, message, disruption, always_fails, .. }))
                if terminal =>
            {
                Some(Reason { reason, message, disruption, always_fails })
            }
            _ => None,
        };
        let seen = self.containers.seen();
        let has_sandbox = self.containers.has_sandbox();
        let underway = if has_sandbox { self.underway } else { Underway::NoSandbox };
        let mut status = status::status(&wanted.pod, &seen, terminal, underway, reason, ip, now);
        if let (Some(reported), [own, ..]) = (&mut status.pod_ip, self.containers.ips()) {
            *reported = own.to_string();
            let all = self.containers.ips().iter().map(|ip| PodIP { ip: ip.to_string() });
            status.pod_ips = Some(all.collect());
        }
        self.shared.api.replace_status(&self.id, &status);
        self.reported = Some(status);
    }
}

/// Waits until that is wanted; for ever if nobody will want anything any more.
async fn becomes(
    wanted: &mut watch::Receiver<WorkerTarget>,
    that: impl FnMut(&WorkerTarget) -> bool,
) {
    if wanted.wait_for(that).await.is_err() {
        std::future::pending::<()>().await;
    }
}
