//! What is left on the node by hand, through the CRI or on the host, where no annotation of a pod lets the driver leave
//! it; and how it is removed again.

use crate::{
    containerd::{KeptNetwork, Orphans},
    driver::{self, PodId},
    freezer::Frozen,
    image,
    lab::{Lab, container_id},
    wait,
};
use anyhow::{Context as _, Result};
use coroner_cri_api::v1::{
    CreateContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest,
    StopPodSandboxRequest,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use std::{fs, net::Ipv4Addr, process::Stdio};
use tokio::process::{Child, Command};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeftOver {
    /// A sandbox with a running container, of a pod that no apiserver has ever had.
    RunningSandbox,
    /// Another sandbox of the scenario's pod, which the driver does not know.
    SecondSandbox,
    /// The cgroup of a pod that is none, with a process in it.
    PodCgroup,
    /// A network namespace of no sandbox, with no process in it.
    Netns,
}

/// What was made and is no sandbox: what undoes it.
#[derive(Debug)]
pub enum Made {
    Cgroup(Child),
    Frozen(Frozen),
    /// Shims that the runtime has lost, and what runs under them.
    Orphans(Orphans),
    Netns(KeptNetwork),
}

impl Made {
    /// The names by which it may be reported as leaked, beside its pod's.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Cgroup(_) | Self::Frozen(_) => Vec::new(),
            Self::Orphans(orphans) => orphans.ids.iter().cloned().collect(),
            Self::Netns(network) => vec![network.name.clone()],
        }
    }
}

impl Lab {
    pub async fn leave(&self, what: LeftOver, pod: &PodId) -> Result<Option<Made>> {
        let group = self.cgroups.pod("besteffort", &pod.uid);
        match what {
            LeftOver::RunningSandbox => self.leave_sandbox(pod, 0, true).await.map(|()| None),
            LeftOver::SecondSandbox => self.leave_sandbox(pod, 1, false).await.map(|()| None),
            LeftOver::PodCgroup => {
                self.cgroups.create(&group).await?;
                let mut sleep = Command::new("sleep");
                sleep.arg("infinity").stdin(Stdio::null()).kill_on_drop(true);
                let child = sleep.spawn().context("cannot run sleep")?;
                let members = self.cgroup_root.join(&group[1..]).join("cgroup.procs");
                fs::write(members, child.id().unwrap_or_default().to_string())?;
                Ok(Some(Made::Cgroup(child)))
            }
            LeftOver::Netns => {
                let name = format!("cni-{}", uuid::Uuid::new_v4());
                Ok(Some(Made::Netns(self.containerd.lock().await.keep_network(name)?)))
            }
        }
    }

    /// RunPodSandbox, and a container in it that runs.
    async fn leave_sandbox(&self, pod: &PodId, attempt: u32, with_container: bool) -> Result<()> {
        let spec = Some(PodSpec { host_network: Some(true), ..Default::default() });
        let object = Pod { spec, ..Default::default() };
        let (mut cri, logs) = (self.cri.clone(), self.logs());
        let group = self.cgroups.pod("besteffort", &pod.uid);
        self.cgroups.create(&group).await?;
        fs::create_dir_all(pod.log_directory(&logs).join("app"))?;
        let group = self.cgroups.as_runtime_sees(&group);
        let config = driver::sandbox(&object, pod, group, &logs, attempt);
        let request =
            RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let sandbox = cri.run_pod_sandbox(request).await.context("RunPodSandbox")?.into_inner();
        if !with_container {
            return Ok(());
        }
        let container = Container {
            name: "app".into(),
            image: Some(image::NAME.into()),
            command: Some([image::PROGRAM, "handle", "--for", "100ms"].map(Into::into).into()),
            ..Default::default()
        };
        let site =
            driver::Site { apiserver: (Ipv4Addr::LOCALHOST, 0).into(), host_ips: Vec::new() };
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.pod_sandbox_id,
            config: Some(driver::container(&object, pod, &container, 0, &logs, &site)),
            sandbox_config: Some(config),
        };
        let made = cri.create_container(request).await.context("CreateContainer")?.into_inner();
        let request = StartContainerRequest { container_id: made.container_id };
        cri.start_container(request).await.context("StartContainer")?;
        Ok(())
    }

    /// While the runtime is dead, the bundles of a pod's containers are lost.
    pub async fn lose_bundles(&self, pod: &PodId) -> Result<Made> {
        let group = self.cgroups.pod("besteffort", &pod.uid);
        Ok(Made::Orphans(self.containerd.lock().await.lose_bundles(&group)?))
    }

    /// Holds a container's processes so that not even SIGKILL ends them.
    pub async fn freeze(&self, pod: &Pod, container: &str) -> Result<Made> {
        container_id(pod, container).context("the container has no id yet")?;
        let processes = self.processes(pod, container)?;
        Ok(Made::Frozen(Frozen::freeze(self.work(), &processes).await?))
    }

    /// Removes a pod's sandboxes with all that is in them (`crictl rmp -f`), and its cgroup. The driver may remove the
    /// same ones at the same time; containerd refuses to remove a container twice until the first removal is over
    /// (`SetRemoving`, internal/cri/server/container_remove.go).
    pub async fn remove_sandboxes(&self, uid: &str) -> Result<()> {
        let mut refused = None;
        let removed = wait::asking("a pod's sandboxes are removed", async || {
            refused = self.try_to_remove_sandboxes(uid).await.err();
            Ok(refused.is_none().then_some(()))
        });
        let removed = removed.await;
        refused.map_or(removed, Err)
    }

    async fn try_to_remove_sandboxes(&self, uid: &str) -> Result<()> {
        let mut cri = self.cri.clone();
        for sandbox in self.sandboxes(uid).await? {
            let pod_sandbox_id = sandbox.id;
            let request = StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
            gone_is_fine(cri.stop_pod_sandbox(request).await).context("StopPodSandbox")?;
            let request = RemovePodSandboxRequest { pod_sandbox_id };
            gone_is_fine(cri.remove_pod_sandbox(request).await).context("RemovePodSandbox")?;
        }
        Ok(())
    }

    /// Removes what was made; what is gone already is fine.
    pub async fn undo(&self, made: Made) -> Result<()> {
        match made {
            Made::Cgroup(mut process) => Ok(process.kill().await?),
            Made::Orphans(orphans) => {
                tokio::task::spawn_blocking(move || orphans.end()).await.context("it panicked")?
            }
            Made::Netns(network) => network.remove(),
            Made::Frozen(frozen) => frozen.thaw().await,
        }
    }
}

fn gone_is_fine<T>(answer: Result<T, tonic::Status>) -> Result<(), tonic::Status> {
    match answer {
        Err(status) if status.code() != tonic::Code::NotFound => Err(status),
        _ => Ok(()),
    }
}
