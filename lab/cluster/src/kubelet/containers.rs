//! A pod's sandbox and containers, life after life: the calls to the runtime and what it says.

use super::{
    KubeletShared, cgroup,
    hook::{self, Reach},
    klog::{ContainerLog, PodLog},
    probe,
    status::{self, Ended, Observed, SeenStatus},
    translate::{self, PodId},
};
use anyhow::Context as _;
use coroner_cri_api::v1::{
    ContainerState, ContainerStatusRequest, ContainerStatusResponse, CreateContainerRequest,
    PodSandboxConfig, PodSandboxState, PodSandboxStatus, PodSandboxStatusRequest,
    RemoveContainerRequest, RunPodSandboxRequest, StartContainerRequest, StopPodSandboxRequest,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinHandle};

/// The sandbox and the containers of one pod.
pub(super) struct Containers {
    shared: Arc<KubeletShared>,
    pod: PodId,
    cgroup: String,
    sandbox: Option<(String, PodSandboxConfig)>,
    /// It was stopped, or has died.
    sandbox_stopped: bool,
    /// The sandbox's own addresses.
    ips: Vec<IpAddr>,
    lives: BTreeMap<String, Life>,
    probing: mpsc::UnboundedSender<probe::ProbeReport>,
    log: PodLog,
    /// What the next relist finds: ids, what became of each, the exit code.
    changes: Vec<(String, &'static str, Option<i32>)>,
}

/// Types of the lifecycle event generator's events.
const STARTED: &str = "ContainerStarted";
const DIED: &str = "ContainerDied";

/// A container's present life, and what is left of those before.
struct Life {
    /// Empty: it was removed.
    id: String,
    image: String,
    resources: Option<ResourceRequirements>,
    attempt: u32,
    /// What the runtime last said.
    observed: Option<Observed>,
    /// The last word on the life before.
    before: Option<Observed>,
    /// Not waiting for a startup probe.
    started: bool,
    /// It ended and waits for its next start: state.waiting.reason.
    waits: Option<&'static str>,
    /// Earlier lives that the runtime still keeps, the oldest first.
    kept: Vec<String>,
    prober: Option<JoinHandle<()>>,
}

impl Life {
    /// All that the runtime still keeps, the oldest first.
    fn all(&self) -> impl Iterator<Item = &String> {
        self.kept.iter().chain([&self.id]).filter(|id| !id.is_empty())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(prober) = &self.prober {
            prober.abort();
        }
    }
}

impl Containers {
    /// None yet. What probes find goes to `probing`.
    pub(super) fn new(
        shared: Arc<KubeletShared>,
        pod: PodId,
        cgroup: String,
        probing: mpsc::UnboundedSender<probe::ProbeReport>,
    ) -> Self {
        let log = shared.pod_log(&pod);
        Self {
            shared,
            pod,
            cgroup,
            log,
            changes: Vec::new(),
            sandbox: None,
            sandbox_stopped: false,
            ips: Vec::new(),
            lives: BTreeMap::new(),
            probing,
        }
    }

    /// Makes the pod's cgroup and its sandbox, the `attempt`th of this UID.
    pub(super) async fn run_sandbox(&mut self, pod: &Pod, attempt: u32) -> anyhow::Result<()> {
        self.shared.cgroups.create(&self.cgroup).await?;
        let logs = &self.shared.config.log_root;
        std::fs::create_dir_all(self.pod.log_directory(logs))
            .context("cannot make log directory")?;
        translate::volumes::make(pod, &self.pod, logs).context("cannot make the pod's volumes")?;
        let seen = Timestamp::now().to_string();
        let cgroup = self.shared.cgroups.as_runtime_sees(&self.cgroup);
        let config = translate::sandbox(pod, &self.pod, cgroup, logs, &seen, attempt);
        let request =
            RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        self.log.info("Creating PodSandbox for pod");
        let made = self.shared.cri.clone().run_pod_sandbox(request).await;
        if let Err(status) = &made {
            self.log.error("Failed to create sandbox for pod", status.message());
        }
        let id = made.context("RunPodSandbox")?.into_inner().pod_sandbox_id;
        self.log.info_with("Created PodSandbox for pod", format_args!("podSandboxID={id:?}"));
        self.changes.push((id.clone(), STARTED, None));
        if translate::own_network(pod) {
            let network = sandbox_status(&self.shared, &id).await?.and_then(|of| of.network);
            let all = network.map(|network| {
                let others = network.additional_ips.into_iter().map(|other| other.ip);
                std::iter::once(network.ip).chain(others).filter_map(|ip| ip.parse().ok()).collect()
            });
            self.ips = all.unwrap_or_default();
        }
        (self.sandbox, self.sandbox_stopped) = (Some((id, config)), false);
        Ok(())
    }

    /// Starts a container, for the first time or again.
    pub(super) async fn start(&mut self, pod: &Pod, container: &Container) -> anyhow::Result<()> {
        let (sandbox, config) = self.sandbox.clone().context("there is no sandbox")?;
        let name = &container.name;
        let logs = &self.shared.config.log_root;
        std::fs::create_dir_all(self.pod.log_directory(logs).join(name))
            .context("cannot make log directory")?;
        let attempt = self.lives.get(name).map_or(0, |before| before.attempt + 1);
        let services = match self.ips.is_empty() {
            true => self.shared.config.apiserver,
            false => self.shared.config.service,
        };
        let (id, ips) = (&self.pod, self.shared.config.host_ips());
        let config_of = translate::container(pod, id, container, attempt, logs, services, &ips);
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox,
            config: Some(config_of),
            sandbox_config: Some(config),
        };
        let pod_reach = self.reach();
        let mut cri = pod_reach.cri.clone();
        let made = cri.create_container(request).await;
        let id = made.with_context(|| format!("CreateContainer {name}"))?.into_inner().container_id;
        cri.start_container(StartContainerRequest { container_id: id.clone() })
            .await
            .with_context(|| format!("StartContainer {name}"))?;
        let log = self.log.of_container(name, &id);
        log.event("Normal", "Started", "Container started");
        self.changes.push((id.clone(), STARTED, None));
        let before = self.lives.remove(name);
        let mut kept = before.as_ref().map(|life| life.kept.clone()).unwrap_or_default();
        kept.extend(before.as_ref().map(|life| life.id.clone()).filter(|id| !id.is_empty()));
        // kuberuntime_gc.go: of those that ended one is kept (MaxPerPodContainer).
        while kept.len() > 1 {
            self.remove(&kept.remove(0)).await;
        }
        let probed = container.startup_probe.is_some() || container.liveness_probe.is_some();
        let prober = probed.then(|| {
            let probing = self.probing.clone();
            tokio::spawn(probe::watch(pod_reach, id.clone(), container.clone(), log, probing))
        });
        let life = Life {
            id: id.clone(),
            image: container.image.clone().unwrap_or_default(),
            resources: container.resources.clone(),
            attempt,
            observed: None,
            before: before.as_ref().and_then(|life| life.observed.clone()),
            started: container.startup_probe.is_none(),
            waits: None,
            kept,
            prober,
        };
        self.lives.insert(name.clone(), life);
        self.limit_memory(container, &id).await
    }

    /// Runs a container's postStart hook, to its end. False: it failed.
    pub(super) async fn post_start(&self, container: &Container) -> bool {
        let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        match (hook, self.lives.get(&container.name)) {
            (Some(hook), Some(life)) => {
                let done = hook::run(&self.reach(), &life.id, hook, Duration::MAX, drop).await;
                if let Err(error) = &done {
                    let log = self.log.of_container(&container.name, &life.id);
                    log.error("Failed to execute PostStartHook", error);
                    log.event("Warning", "FailedPostStartHook", "PostStartHook failed");
                }
                done.is_ok()
            }
            _ => true,
        }
    }

    /// A container that ended waits for its next start, for this reason. True: that is new.
    pub(super) fn waits(&mut self, name: &str, reason: &'static str) -> bool {
        let Some(life) = self.lives.get_mut(name) else { return false };
        life.waits.replace(reason) != Some(reason)
    }

    /// Removes what is left of a container, which will be started again.
    pub(super) async fn remove_one(&mut self, name: &str) {
        let Some(life) = self.lives.get_mut(name) else { return };
        let all: Vec<String> = life.all().cloned().collect();
        life.kept.clear();
        life.id.clear();
        life.observed = Some(status::removed());
        life.waits = Some(status::RESTARTING_ALL);
        for id in all {
            self.remove(&id).await;
        }
    }

    /// No container is started again.
    pub(super) fn wait_no_more(&mut self) {
        self.lives.values_mut().for_each(|life| life.waits = None);
    }

    /// Whether their sandbox is not ready any more (util.go, `PodSandboxChanged`). Nothing is concluded where
    /// the runtime does not answer.
    pub(super) async fn sandbox_has_died(&mut self) -> bool {
        let Some((id, _)) = &self.sandbox else { return false };
        let status = sandbox_status(&self.shared, id).await.ok().flatten();
        let has_died =
            status.is_some_and(|status| status.state == PodSandboxState::SandboxNotready as i32);
        if has_died && !std::mem::replace(&mut self.sandbox_stopped, true) {
            self.changes.push((id.clone(), DIED, None));
        }
        self.sandbox_stopped
    }

    /// As far as is known, their sandbox is ready.
    pub(super) fn has_sandbox(&self) -> bool {
        self.sandbox.is_some() && !self.sandbox_stopped
    }

    /// The addresses of the pod's own network, if it has one.
    pub(super) fn ips(&self) -> &[IpAddr] {
        &self.ips
    }

    /// How their hooks and probes are reached.
    pub(super) fn reach(&self) -> Reach {
        let (config, cri) = (&self.shared.config, self.shared.cri.clone());
        match self.ips.first() {
            Some(own) => Reach::new(cri, config.network.clone(), *own),
            None => Reach::new(cri, None, Ipv4Addr::LOCALHOST.into()),
        }
    }

    /// The name of the container that lives under this id.
    pub(super) fn name_of(&self, id: &str) -> Option<String> {
        self.lives.iter().find(|(_, life)| life.id == id).map(|(name, _)| name.clone())
    }

    /// The startup probe of a container succeeded.
    pub(super) fn has_started(&mut self, name: &str) {
        if let Some(life) = self.lives.get_mut(name) {
            life.started = true;
        }
    }

    /// The image that a container was started with.
    pub(super) fn image_of(&self, name: &str) -> Option<&str> {
        self.lives.get(name).map(|life| life.image.as_str())
    }

    /// The resources that a container was started with.
    pub(super) fn resources_of(&self, name: &str) -> Option<&ResourceRequirements> {
        self.lives.get(name)?.resources.as_ref()
    }

    /// Those that run, as far as known: name → id.
    pub(super) fn running(&self) -> BTreeMap<String, String> {
        self.lives
            .iter()
            .filter(|(_, life)| life.observed.as_ref().is_none_or(|now| now.ended.is_none()))
            .map(|(name, life)| (name.clone(), life.id.clone()))
            .collect()
    }

    /// All, as the status tells of them.
    pub(super) fn seen(&self) -> BTreeMap<String, SeenStatus> {
        let seen = |life: &Life| {
            Some(SeenStatus {
                now: life.observed.clone()?,
                before: life.before.clone(),
                // The removed one is counted already.
                restarts: life.attempt + u32::from(life.id.is_empty()),
                started: life.started,
                waits: life.waits,
            })
        };
        self.lives.iter().filter_map(|(name, life)| Some((name.clone(), seen(life)?))).collect()
    }

    /// Asks the runtime about all that still ran; true if something changed.
    pub(super) async fn observe(&mut self) -> bool {
        let mut changed = false;
        for life in self.lives.values_mut() {
            if life.observed.as_ref().is_some_and(|known| known.ended.is_some()) {
                continue;
            }
            if let Ok(seen) = observed(&self.shared, &life.id).await
                && life.observed.as_ref() != Some(&seen)
            {
                if let Some(ended) = &seen.ended {
                    self.changes.push((life.id.clone(), DIED, Some(ended.exit_code)));
                }
                life.observed = Some(seen);
                changed = true;
            }
        }
        changed
    }

    /// The lifecycle event generator lists the containers, and logs what has changed. `is_known`: the pod has not been
    /// removed from its source.
    pub(super) fn relisted(&mut self, is_known: bool) {
        for (id, what, exit) in self.changes.drain(..) {
            self.log.pleg(&id, what, exit, is_known);
        }
    }

    /// What the kubelet says of a container's present life.
    pub(super) fn log_of(&self, name: &str) -> Option<ContainerLog> {
        self.lives.get(name).map(|life| self.log.of_container(name, &life.id))
    }

    /// Probes of a pod that is being stopped say nothing any more.
    pub(super) fn stop_probing(&mut self) {
        for life in self.lives.values_mut() {
            if let Some(prober) = life.prober.take() {
                prober.abort();
            }
        }
    }

    pub(super) async fn stop_sandbox(&mut self) -> anyhow::Result<()> {
        let Some((id, _)) = &self.sandbox else { return Ok(()) };
        let request = StopPodSandboxRequest { pod_sandbox_id: id.clone() };
        if let Err(status) = self.shared.cri.clone().stop_pod_sandbox(request).await {
            let err = format_args!("err={:?} podSandboxID={id:?}", status.message());
            self.log.log.error("StopPodSandbox from runtime service failed", err);
            return Err(status).context("StopPodSandbox");
        }
        self.changes.push((id.clone(), DIED, None));
        self.sandbox_stopped = true;
        Ok(())
    }

    /// RemoveContainer for every life.
    pub(super) async fn remove_all(&mut self) {
        for life in std::mem::take(&mut self.lives).into_values() {
            for id in life.all() {
                self.remove(id).await;
            }
        }
    }

    async fn remove(&self, id: &str) {
        let request = RemoveContainerRequest { container_id: id.into() };
        self.log.log.info("Removing container", format_args!("containerID={id:?}"));
        if let Err(status) = self.shared.cri.clone().remove_container(request).await {
            let err = format_args!("err={:?} containerID={id:?}", status.message());
            self.log.log.error("RemoveContainer from runtime service failed", err);
            tracing::warn!(pod = self.pod.name, error = status.message(), "RemoveContainer");
        }
        if let Err(error) = self.shared.cgroups.unlimit_memory(id).await {
            tracing::warn!(pod = self.pod.name, error = format!("{error:#}"), "memory group");
        }
    }

    /// A limit on memory, put on the running container by hand (runc is never asked for one).
    async fn limit_memory(&self, container: &Container, id: &str) -> anyhow::Result<()> {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        let Some(limit) = limits.and_then(|limits| limits.get("memory")) else { return Ok(()) };
        let bytes = cgroup::bytes(&limit.0)
            .with_context(|| format!("cannot read the memory limit {:?}", limit.0))?;
        let pid = main_pid(&container_status(&self.shared, id, true).await?.info)
            .with_context(|| format!("the runtime does not tell the pid of {}", container.name))?;
        self.shared.cgroups.limit_memory(&self.cgroup, id, pid, bytes)
    }
}

async fn sandbox_status(
    shared: &KubeletShared,
    id: &str,
) -> anyhow::Result<Option<PodSandboxStatus>> {
    let request = PodSandboxStatusRequest { pod_sandbox_id: id.into(), ..Default::default() };
    let answer = shared.cri.clone().pod_sandbox_status(request).await;
    Ok(answer.context("PodSandboxStatus")?.into_inner().status)
}

async fn container_status(
    shared: &KubeletShared,
    id: &str,
    verbose: bool,
) -> anyhow::Result<ContainerStatusResponse> {
    let request = ContainerStatusRequest { container_id: id.into(), verbose };
    let mut cri = shared.cri.clone();
    Ok(cri.container_status(request).await.context("ContainerStatus")?.into_inner())
}

async fn observed(shared: &KubeletShared, id: &str) -> anyhow::Result<Observed> {
    let status = container_status(shared, id, false).await?.status.context("no status")?;
    let ended = (status.state == ContainerState::ContainerExited as i32).then(|| Ended {
        finished_ns: status.finished_at,
        exit_code: status.exit_code,
        reason: status.reason.clone(),
    });
    Ok(Observed {
        id: status.id,
        image_id: status.image_ref,
        started_ns: status.started_at,
        ended,
        is_unknown: status.state == ContainerState::ContainerUnknown as i32,
    })
}

/// containerd's verbose status of a container or a sandbox: JSON under `info`, with the pid of its
/// init.
pub fn main_pid(info: &HashMap<String, String>) -> Option<i32> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    i32::try_from(info.get("pid")?.as_i64()?).ok().filter(|pid| *pid > 0)
}
