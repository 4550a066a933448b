//! One pod's life on the node, from its sandbox to the object's last delete: the effects of what
//! the pure modules decide, in the kubelet's own order (kubelet.go, `SyncPod`,
//! `SyncTerminatingPod`, `SyncTerminatedPod`).

use super::{
    Shared, cgroup, grace, order, status,
    status::{Ended, Observed},
    stop,
    translate::{self, PodId},
};
use anyhow::Context as _;
use jiff::Timestamp;
use k8s_cri::v1::{
    ContainerState, ContainerStatusRequest, ContainerStatusResponse, CreateContainerRequest,
    RemoveContainerRequest, RunPodSandboxRequest, StartContainerRequest, StopPodSandboxRequest,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::watch;

/// status.reason of a pod that could not be started; status.message then says why.
pub const START_FAILED: &str = "StartFailed";

/// What the apiserver wants of a pod, as far as the watch has told.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The object's last state.
    pub(super) pod: Pod,
    /// The object is gone.
    pub(super) gone: bool,
}

impl Wanted {
    /// The grace in force, seconds, if the pod is to be stopped.
    fn grace_of_delete(&self) -> Option<i64> {
        let meta = &self.pod.metadata;
        let of_delete = if self.gone { Some(0) } else { meta.deletion_grace_period_seconds };
        let of_spec = self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        (self.gone || meta.deletion_timestamp.is_some())
            .then(|| grace::in_force(of_delete, of_spec))
    }
}

/// The worker of one pod.
pub(super) struct Worker {
    shared: Arc<Shared>,
    id: PodId,
    wanted: watch::Receiver<Wanted>,
    cgroup: String,
    sandbox: Option<String>,
    /// Containers that were started: name → id.
    started: BTreeMap<String, String>,
    /// What the runtime last said of them.
    observed: BTreeMap<String, Observed>,
    /// Why it could not be started.
    failure: Option<String>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, id: PodId, wanted: watch::Receiver<Wanted>) -> Self {
        let cgroup = shared.cgroups.pod(translate::qos_class(&wanted.borrow().pod), &id.uid);
        Self {
            shared,
            id,
            wanted,
            cgroup,
            sandbox: None,
            started: BTreeMap::new(),
            observed: BTreeMap::new(),
            failure: None,
        }
    }

    /// Lives the pod's life. Ends when nothing of it is left but its sandbox, which is the
    /// collector's.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.start().await {
            tracing::error!(pod = self.id.name, error = format!("{error:#}"), "cannot start");
            self.failure = Some(format!("{error:#}"));
            self.report(false);
        }
        let completed = self.follow().await;
        if completed {
            // Its object stays as long as somebody wants it.
            self.stop_pod().await;
            becomes(&mut self.wanted, |wanted| wanted.grace_of_delete().is_some()).await;
        } else {
            tokio::time::sleep(self.shared.config.reaction).await;
            self.stop_pod().await;
        }
        self.clean_up().await;
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
        self.shared.cgroups.create(&self.cgroup)?;
        let logs = &self.shared.config.log_root;
        std::fs::create_dir_all(self.id.log_directory(logs))
            .context("cannot make log directory")?;
        let seen = Timestamp::now().to_string();
        let config = translate::sandbox(&pod, &self.id, &self.cgroup, logs, &seen);
        let request =
            RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let mut cri = self.shared.cri.clone();
        let sandbox = cri
            .run_pod_sandbox(request)
            .await
            .context("RunPodSandbox")?
            .into_inner()
            .pod_sandbox_id;
        self.sandbox = Some(sandbox.clone());
        for container in order::start_order(&spec) {
            let directory = self.id.log_directory(logs).join(&container.name);
            std::fs::create_dir_all(directory).context("cannot make log directory")?;
            let request = CreateContainerRequest {
                pod_sandbox_id: sandbox.clone(),
                config: Some(translate::container(&pod, &self.id, container)),
                sandbox_config: Some(config.clone()),
            };
            let id = cri
                .create_container(request)
                .await
                .with_context(|| format!("CreateContainer {}", container.name))?
                .into_inner()
                .container_id;
            cri.start_container(StartContainerRequest { container_id: id.clone() })
                .await
                .with_context(|| format!("StartContainer {}", container.name))?;
            self.started.insert(container.name.clone(), id.clone());
            self.limit_memory(container, &id).await?;
            if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.post_start.clone()) {
                // The next container waits for the hook; other pods need not.
                turn.take();
                stop::run_hook(&self.shared.cri, &id, &hook, Duration::MAX).await;
            }
        }
        drop(turn);
        self.observe().await;
        self.report(false);
        Ok(())
    }

    /// Watches the running pod. True: all its main containers have ended by themselves; false: it
    /// is to be stopped.
    async fn follow(&mut self) -> bool {
        loop {
            if self.wanted.borrow_and_update().grace_of_delete().is_some() {
                return false;
            }
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() { return false },
                () = self.shared.next_relist() => {
                    if self.observe().await {
                        self.report(false);
                    }
                    if self.is_complete() {
                        return true;
                    }
                }
            }
        }
    }

    fn is_complete(&self) -> bool {
        let spec = self.spec();
        !spec.containers.is_empty()
            && spec.containers.iter().all(|main| {
                self.observed.get(&main.name).is_some_and(|observed| observed.ended.is_some())
            })
    }

    /// SyncTerminatingPod: containers, then the sandbox, then the status. A grace that is shortened
    /// meanwhile cancels the calls and begins anew with the shorter one.
    async fn stop_pod(&mut self) {
        let spec = self.spec();
        loop {
            self.observe().await;
            let running: BTreeMap<String, String> = self
                .started
                .iter()
                .filter(|(name, _)| self.observed.get(*name).is_none_or(|o| o.ended.is_none()))
                .map(|(name, id)| (name.clone(), id.clone()))
                .collect();
            let of_spec = spec.termination_grace_period_seconds;
            let grace = self
                .wanted
                .borrow_and_update()
                .grace_of_delete()
                .unwrap_or_else(|| grace::in_force(None, of_spec));
            let shorter = |wanted: &Wanted| wanted.grace_of_delete().is_some_and(|now| now < grace);
            tokio::select! {
                stopped = stop::stop_all(&self.shared.cri, &spec, &running, grace) => {
                    match stopped {
                        Ok(()) => break,
                        Err(error) => {
                            // The kubelet's work queue tries again later as well.
                            tracing::warn!(pod = self.id.name, error = format!("{error:#}"), "stop");
                            tokio::time::sleep(self.shared.config.relist).await;
                        }
                    }
                }
                () = becomes(&mut self.wanted, shorter) => {}
            }
        }
        if let Some(sandbox) = self.sandbox.clone() {
            let mut cri = self.shared.cri.clone();
            let request = StopPodSandboxRequest { pod_sandbox_id: sandbox };
            if let Err(status) = cri.stop_pod_sandbox(request).await {
                tracing::warn!(pod = self.id.name, error = status.message(), "StopPodSandbox");
            }
        }
        self.observe().await;
        self.report(true);
    }

    /// SyncTerminatedPod, and the container deletor beside it: at the next relist, as the real one
    /// hears of the end only then.
    async fn clean_up(&mut self) {
        self.shared.next_relist().await;
        for id in self.started.values() {
            let mut cri = self.shared.cri.clone();
            let request = RemoveContainerRequest { container_id: id.clone() };
            if let Err(status) = cri.remove_container(request).await {
                tracing::warn!(pod = self.id.name, error = status.message(), "RemoveContainer");
            }
            if let Err(error) = self.shared.cgroups.unlimit_memory(id).await {
                tracing::warn!(pod = self.id.name, error = format!("{error:#}"), "memory group");
            }
        }
        if let Err(error) = self.shared.cgroups.remove(&self.cgroup).await {
            tracing::warn!(pod = self.id.name, error = format!("{error:#}"), "pod cgroup");
        }
        if !self.wanted.borrow().gone {
            self.shared.api.delete_for_good(&self.id);
        }
    }

    /// Asks the runtime about all containers that still ran; true if something changed.
    async fn observe(&mut self) -> bool {
        let mut changed = false;
        for (name, id) in &self.started {
            let known = self.observed.get(name);
            if known.is_some_and(|known| known.ended.is_some()) {
                continue;
            }
            if let Ok(seen) = observed(&self.shared, id).await
                && known != Some(&seen)
            {
                self.observed.insert(name.clone(), seen);
                changed = true;
            }
        }
        changed
    }

    fn report(&self, terminal: bool) {
        let wanted = self.wanted.borrow().clone();
        if wanted.gone {
            return;
        }
        let ip = &self.shared.config.node_ip;
        let now = Timestamp::now();
        let mut status = status::status(&wanted.pod, &self.observed, terminal, ip, now);
        if let Some(failure) = &self.failure {
            status.reason = Some(START_FAILED.into());
            status.message = Some(failure.clone());
        }
        self.shared.api.replace_status(&self.id, &status);
    }

    /// A limit on memory, put on the running container by hand (runc is never asked for one).
    async fn limit_memory(&self, container: &Container, id: &str) -> anyhow::Result<()> {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        let Some(limit) = limits.and_then(|limits| limits.get("memory")) else { return Ok(()) };
        let bytes = cgroup::bytes(&limit.0)
            .with_context(|| format!("cannot read the memory limit {:?}", limit.0))?;
        let pid = main_pid(&container_status(&self.shared, id, true).await?)
            .with_context(|| format!("the runtime does not tell the pid of {}", container.name))?;
        self.shared.cgroups.limit_memory(&self.cgroup, id, pid, bytes)
    }
}

/// Waits until that is wanted; for ever if nobody will want anything any more.
async fn becomes(wanted: &mut watch::Receiver<Wanted>, that: impl FnMut(&Wanted) -> bool) {
    if wanted.wait_for(that).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn container_status(
    shared: &Shared,
    id: &str,
    verbose: bool,
) -> anyhow::Result<ContainerStatusResponse> {
    let request = ContainerStatusRequest { container_id: id.into(), verbose };
    let mut cri = shared.cri.clone();
    Ok(cri.container_status(request).await.context("ContainerStatus")?.into_inner())
}

async fn observed(shared: &Shared, id: &str) -> anyhow::Result<Observed> {
    let status = container_status(shared, id, false).await?.status.context("no status")?;
    let ended = (status.state == ContainerState::ContainerExited as i32).then(|| Ended {
        finished_ns: status.finished_at,
        exit_code: status.exit_code,
        reason: status.reason.clone(),
    });
    Ok(Observed { id: status.id, image_id: status.image_ref, started_ns: status.started_at, ended })
}

/// containerd's verbose status: JSON under `info`, with the pid of the container's init.
fn main_pid(response: &ContainerStatusResponse) -> Option<i32> {
    let info: serde_json::Value = serde_json::from_str(response.info.get("info")?).ok()?;
    i32::try_from(info.get("pid")?.as_i64()?).ok().filter(|pid| *pid > 0)
}
