//! A pod's sandbox and containers: the calls to the runtime and what it answers.

use super::{
    Shared, cgroup,
    hook::{self, Reach},
    status::{Exit, Observed, Seen},
    translate::{self, PodId, Site},
};
use anyhow::{Context as _, Result};
use coroner_cri_api::v1::{
    ContainerState, ContainerStatusRequest, ContainerStatusResponse, CreateContainerRequest,
    PodSandboxConfig, PodSandboxStatusRequest, RemoveContainerRequest, RemovePodSandboxRequest,
    RunPodSandboxRequest, StartContainerRequest, StopPodSandboxRequest,
};
use k8s_openapi::api::core::v1::{Container, Pod};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

pub(super) struct Containers {
    shared: Arc<Shared>,
    pod: PodId,
    pub(super) cgroup: String,
    sandbox: Option<(String, PodSandboxConfig)>,
    pub(super) is_stopped: bool,
    /// The addresses that the pod reports, and whether they are its own.
    pub(super) ips: Vec<IpAddr>,
    has_own_network: bool,
    pub(super) seen: BTreeMap<String, Seen>,
    /// Earlier attempts that the runtime still keeps.
    kept: Vec<String>,
}

impl Containers {
    /// None yet.
    pub(super) fn new(shared: Arc<Shared>, pod: PodId, cgroup: String) -> Self {
        Self {
            shared,
            pod,
            cgroup,
            sandbox: None,
            is_stopped: false,
            ips: Vec::new(),
            has_own_network: false,
            seen: BTreeMap::new(),
            kept: Vec::new(),
        }
    }

    pub(super) fn has_sandbox(&self) -> bool {
        self.sandbox.is_some() && !self.is_stopped
    }

    /// Makes the pod's cgroup and its sandbox, the `attempt`th of this UID.
    pub(super) async fn run_sandbox(&mut self, pod: &Pod, attempt: u32) -> Result<()> {
        let (mut cri, logs) = (self.shared.cri.clone(), &self.shared.config.logs);
        self.shared.cgroups.create(&self.cgroup).await?;
        fs::create_dir_all(self.pod.log_directory(logs)).context("cannot make log directory")?;
        translate::make_volumes(pod, &self.pod, logs).context("cannot make the pod's volumes")?;
        let cgroup = self.shared.cgroups.as_runtime_sees(&self.cgroup);
        let config = translate::sandbox(pod, &self.pod, cgroup, logs, attempt);
        let request =
            RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let id = cri.run_pod_sandbox(request).await.context("RunPodSandbox")?.into_inner();
        let id = id.pod_sandbox_id;
        self.has_own_network = translate::has_own_network(pod);
        self.ips = vec![Ipv4Addr::LOCALHOST.into()];
        if self.has_own_network {
            let request =
                PodSandboxStatusRequest { pod_sandbox_id: id.clone(), ..Default::default() };
            let status = cri.pod_sandbox_status(request).await.context("PodSandboxStatus")?;
            let network = status.into_inner().status.and_then(|status| status.network);
            let network = network.context("the sandbox has no network")?;
            let others = network.additional_ips.into_iter().map(|other| other.ip);
            let all = std::iter::once(network.ip).chain(others);
            self.ips = all.filter_map(|ip| ip.parse().ok()).collect();
        }
        (self.sandbox, self.is_stopped) = (Some((id, config)), false);
        Ok(())
    }

    /// Starts a container, for the first time or again, and runs its postStart hook.
    pub(super) async fn start(&mut self, pod: &Pod, container: &Container) -> Result<()> {
        let (sandbox, config) = self.sandbox.clone().context("there is no sandbox")?;
        let (mut cri, name) = (self.shared.cri.clone(), &container.name);
        let logs = &self.shared.config.logs;
        fs::create_dir_all(self.pod.log_directory(logs).join(name))
            .context("cannot make log directory")?;
        let before = self.seen.remove(name);
        let restarts = before.as_ref().map_or(0, |before| before.restarts + 1);
        let config_of =
            translate::container(pod, &self.pod, container, restarts, logs, &self.site());
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox,
            config: Some(config_of),
            sandbox_config: Some(config),
        };
        let id = cri.create_container(request).await.context("CreateContainer")?.into_inner();
        let container_id = id.container_id.clone();
        cri.start_container(StartContainerRequest { container_id })
            .await
            .context("StartContainer")?;
        self.limit_memory(container, &id.container_id).await?;
        self.kept.extend(before.iter().map(|before| before.now.id.clone()));
        let (now, before) = (self.ask(&id.container_id).await?, before.map(|before| before.now));
        self.seen.insert(name.clone(), Seen { now, before, restarts });
        let hooks = container.lifecycle.as_ref();
        match hooks.and_then(|hooks| hooks.post_start.as_ref()) {
            Some(hook) => hook::run(&self.reach(), &id.container_id, hook).await,
            None => Ok(()),
        }
    }

    fn site(&self) -> Site {
        let config = &self.shared.config;
        let apiserver = if self.has_own_network { config.service } else { config.apiserver };
        Site { apiserver, host_ips: config.network.addresses.clone() }
    }

    /// How hooks reach the pod.
    pub(super) fn reach(&self) -> Reach {
        let own = self.ips.first().filter(|_| self.has_own_network);
        let network = own.map(|own| (self.shared.config.network.clone(), *own));
        Reach { cri: self.shared.cri.clone(), network }
    }

    /// Those that run, as far as known: name → id.
    pub(super) fn running(&self) -> BTreeMap<String, String> {
        let running = self.seen.iter().filter(|(_, seen)| seen.now.exit.is_none());
        running.map(|(name, seen)| (name.clone(), seen.now.id.clone())).collect()
    }

    /// Asks the runtime about all that still ran; true if something changed.
    pub(super) async fn observe(&mut self) -> bool {
        let mut has_changed = false;
        for (name, id) in self.running() {
            let now = self.ask(&id).await;
            if let (Ok(now), Some(seen)) = (now, self.seen.get_mut(&name)) {
                has_changed |= seen.now != now;
                seen.now = now;
            }
        }
        has_changed
    }

    async fn ask(&self, id: &str) -> Result<Observed> {
        let status = container_status(&self.shared, id).await?.status.context("no status")?;
        let has_exited = status.state == ContainerState::ContainerExited as i32;
        let exit = Exit { at: status.finished_at, code: status.exit_code, reason: status.reason };
        Ok(Observed {
            id: status.id,
            image_id: status.image_ref,
            started: status.started_at,
            exit: has_exited.then_some(exit),
        })
    }

    pub(super) async fn stop_sandbox(&mut self) -> Result<()> {
        if let Some((id, _)) = &self.sandbox {
            let request = StopPodSandboxRequest { pod_sandbox_id: id.clone() };
            let mut cri = self.shared.cri.clone();
            cri.stop_pod_sandbox(request).await.context("StopPodSandbox")?;
            self.is_stopped = true;
        }
        Ok(())
    }

    /// Removes all attempts of all containers.
    pub(super) async fn remove_containers(&mut self) -> Result<()> {
        let now = self.seen.values().map(|seen| seen.now.id.clone());
        for id in now.chain(std::mem::take(&mut self.kept)) {
            let request = RemoveContainerRequest { container_id: id.clone() };
            self.shared.cri.clone().remove_container(request).await.context("RemoveContainer")?;
            self.shared.cgroups.unlimit_memory(&id).await?;
        }
        Ok(())
    }

    pub(super) async fn remove_sandbox(&mut self) -> Result<()> {
        if let Some((id, _)) = &self.sandbox {
            let request = RemovePodSandboxRequest { pod_sandbox_id: id.clone() };
            let mut cri = self.shared.cri.clone();
            cri.remove_pod_sandbox(request).await.context("RemovePodSandbox")?;
        }
        Ok(())
    }

    /// A limit on memory, put on the running container directly (runc is never asked for one).
    async fn limit_memory(&self, container: &Container, id: &str) -> Result<()> {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        let Some(limit) = limits.and_then(|limits| limits.get("memory")) else { return Ok(()) };
        let bytes = cgroup::bytes(&limit.0);
        let bytes = bytes.with_context(|| format!("cannot read the limit {:?}", limit.0))?;
        let pid = main_pid(&container_status(&self.shared, id).await?.info);
        let pid = pid.context("the runtime does not report the pid")?;
        self.shared.cgroups.limit_memory(&self.cgroup, id, pid, bytes)
    }
}

async fn container_status(shared: &Shared, id: &str) -> Result<ContainerStatusResponse> {
    let request = ContainerStatusRequest { container_id: id.into(), verbose: true };
    let mut cri = shared.cri.clone();
    Ok(cri.container_status(request).await.context("ContainerStatus")?.into_inner())
}

/// containerd's verbose status of a container or a sandbox: JSON under `info`, with the pid of its init.
pub fn main_pid(info: &HashMap<String, String>) -> Option<i32> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    i32::try_from(info.get("pid")?.as_i64()?).ok().filter(|pid| *pid > 0)
}
