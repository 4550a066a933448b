//! What is done by hand, through the CRI or on the host: what is left behind where no bug of the lab's
//! kubelet does it, and how all of it is cleaned up again; and what an administrator does to containers.

use crate::freezer::Frozen;
use crate::{
    containerd::{KeptNetwork, Orphans},
    image,
    kubelet::{
        Cri,
        cgroup::Cgroups,
        main_pid,
        translate::{self, PodId},
    },
    wait,
};
use anyhow::Context as _;
use coroner_cri_api::v1::{
    ContainerFilter, CreateContainerRequest, ExecSyncRequest, ListContainersRequest,
    ListPodSandboxRequest, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxStatusRequest,
    RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest,
    StopContainerRequest, StopPodSandboxRequest,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use rustix::process::{Pid, Signal};
use std::{collections::HashMap, fs, path::PathBuf, process::Stdio};
use tokio::process::{Child, Command};

/// What is left by hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remnant {
    /// A sandbox with a running container, of a pod that no apiserver has ever had: through the
    /// CRI.
    RunningSandbox,
    /// Another sandbox of the scenario's pod, which the kubelet does not know: through the CRI.
    SecondSandbox,
    /// The cgroup of a pod that is none.
    PodCgroup {
        /// With a process in it.
        busy: bool,
    },
    /// A network namespace of no sandbox, with no process in it.
    Netns,
}

/// What acts on the node beside the kubelet.
#[derive(Clone, Debug)]
pub struct Hand {
    pub cri: Cri,
    pub cgroups: Cgroups,
    pub logs: PathBuf,
    /// Absolute, and of this lab alone.
    pub work: PathBuf,
}

/// A thing that was made and is no sandbox's: what undoes it.
#[derive(Debug)]
pub enum Made {
    /// A pod's cgroup, and a process in it.
    Cgroup(String, Option<Child>),
    /// Processes in a freezer.
    Frozen(Frozen),
    /// Shims that the runtime has lost, and what runs under them.
    Orphans(Orphans),
    /// A network namespace.
    Netns(KeptNetwork),
}

impl Made {
    /// The names by which it may be told as left behind, beside its pod's.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Cgroup(..) | Self::Frozen(_) => Vec::new(),
            Self::Orphans(orphans) => orphans.ids().collect(),
            Self::Netns(network) => vec![network.name()],
        }
    }
}

impl Hand {
    /// RunPodSandbox, and a container in it that runs, for a pod which no apiserver knows.
    pub async fn running_sandbox(&self, pod: &PodId) -> anyhow::Result<String> {
        let object = stranger(pod);
        let (sandbox, config) = self.run_sandbox(pod, &object, 0).await?;
        let container = Container {
            name: "app".into(),
            image: Some(image::NAME.into()),
            command: Some([image::PROGRAM, "handle", "--for", "100ms"].map(Into::into).into()),
            ..Default::default()
        };
        fs::create_dir_all(pod.log_directory(&self.logs).join("app"))
            .context("cannot make log directory")?;
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.clone(),
            config: Some(translate::container(&object, pod, &container, 0, &self.logs, None, "")),
            sandbox_config: Some(config),
        };
        let mut cri = self.cri.clone();
        let made = cri.create_container(request).await.context("CreateContainer")?;
        let request = StartContainerRequest { container_id: made.into_inner().container_id };
        cri.start_container(request).await.context("StartContainer")?;
        Ok(sandbox)
    }

    /// RunPodSandbox once more for a pod that has one.
    pub async fn second_sandbox(&self, pod: &PodId, object: &Pod) -> anyhow::Result<String> {
        Ok(self.run_sandbox(pod, object, 1).await?.0)
    }

    async fn run_sandbox(
        &self,
        pod: &PodId,
        object: &Pod,
        attempt: u32,
    ) -> anyhow::Result<(String, PodSandboxConfig)> {
        let cgroup = self.cgroup(&pod.uid);
        self.cgroups.create(&cgroup).await?;
        fs::create_dir_all(pod.log_directory(&self.logs)).context("cannot make log directory")?;
        let seen = jiff::Timestamp::now().to_string();
        let config = translate::sandbox(
            object,
            pod,
            self.cgroups.as_runtime_sees(&cgroup),
            &self.logs,
            &seen,
            attempt,
        );
        let request =
            RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let made = self.cri.clone().run_pod_sandbox(request).await.context("RunPodSandbox")?;
        Ok((made.into_inner().pod_sandbox_id, config))
    }

    fn cgroup(&self, uid: &str) -> String {
        self.cgroups.pod("besteffort", uid)
    }

    /// A pod's sandboxes, the oldest first.
    pub async fn sandboxes(&self, uid: &str) -> anyhow::Result<Vec<PodSandbox>> {
        let filter = PodSandboxFilter { label_selector: of_pod(uid), ..Default::default() };
        let request = ListPodSandboxRequest { filter: Some(filter) };
        let listed = self.cri.clone().list_pod_sandbox(request).await.context("ListPodSandbox")?;
        let mut all = listed.into_inner().items;
        all.sort_by_key(|sandbox| sandbox.created_at);
        Ok(all)
    }

    /// When each of a pod's sandboxes was made, by the runtime's word, ns since 1970.
    pub async fn created(&self, uid: &str) -> HashMap<String, i64> {
        let all = self.sandboxes(uid).await.unwrap_or_default();
        all.into_iter().map(|sandbox| (sandbox.id, sandbox.created_at)).collect()
    }

    /// Removes a pod's sandboxes with all that is in them (`crictl rmp -f`). The kubelet may remove the
    /// same ones at the same time; containerd refuses to remove a container twice until the first
    /// removal is over (`SetRemoving`, internal/cri/server/container_remove.go).
    pub async fn remove_sandboxes(&self, uid: &str) -> anyhow::Result<()> {
        let mut refused = None;
        let removed = wait::asking("a pod's sandboxes are removed", async || {
            refused = self.try_to_remove_sandboxes(uid).await.err();
            Ok(refused.is_none().then_some(()))
        });
        let removed = removed.await;
        refused.map_or(removed, Err)
    }

    async fn try_to_remove_sandboxes(&self, uid: &str) -> anyhow::Result<()> {
        let mut cri = self.cri.clone();
        for sandbox in self.sandboxes(uid).await? {
            let id = sandbox.id;
            let request = StopPodSandboxRequest { pod_sandbox_id: id.clone() };
            gone_is_fine(cri.stop_pod_sandbox(request).await).context("StopPodSandbox")?;
            let request = RemovePodSandboxRequest { pod_sandbox_id: id };
            gone_is_fine(cri.remove_pod_sandbox(request).await).context("RemovePodSandbox")?;
        }
        let filter = ContainerFilter { label_selector: of_pod(uid), ..Default::default() };
        let request = ListContainersRequest { filter: Some(filter) };
        let left = cri.list_containers(request).await.context("ListContainers")?.into_inner();
        for container in left.containers {
            let request = RemoveContainerRequest { container_id: container.id };
            gone_is_fine(cri.remove_container(request).await).context("RemoveContainer")?;
        }
        Ok(())
    }

    /// Kills the first process of a pod's newest sandbox.
    pub async fn kill_sandbox(&self, uid: &str) -> anyhow::Result<()> {
        let newest = self.sandboxes(uid).await?.pop().context("the pod has no sandbox")?;
        let request = PodSandboxStatusRequest { pod_sandbox_id: newest.id, verbose: true };
        let answer =
            self.cri.clone().pod_sandbox_status(request).await.context("PodSandboxStatus")?;
        let pid = main_pid(&answer.into_inner().info).and_then(Pid::from_raw);
        let pid = pid.context("the runtime does not report the pid of the sandbox")?;
        Ok(rustix::process::kill_process(pid, Signal::KILL)?)
    }

    /// StopContainer (`crictl stop`).
    pub fn stop_container(&self, pod: &Pod, container: &str, timeout: i64) -> anyhow::Result<()> {
        let (container_id, _) = container_of(pod, container).context("the container has no id")?;
        let request = StopContainerRequest { container_id, timeout };
        let mut cri = self.cri.clone();
        tokio::spawn(async move {
            if let Err(status) = cri.stop_container(request).await {
                tracing::error!(error = status.message(), "crictl stop");
            }
        });
        Ok(())
    }

    /// StopPodSandbox of a pod's newest sandbox (`crictl stopp`).
    pub async fn stop_sandbox(&self, uid: &str) -> anyhow::Result<()> {
        let newest = self.sandboxes(uid).await?.pop().context("the pod has no sandbox")?;
        let request = StopPodSandboxRequest { pod_sandbox_id: newest.id };
        self.cri.clone().stop_pod_sandbox(request).await.context("StopPodSandbox")?;
        Ok(())
    }

    /// ExecSync (`kubectl exec`), and the command's stdout. The container may end before the command does.
    pub async fn exec(&self, pod: &Pod, container: &str, cmd: &[&str]) -> anyhow::Result<String> {
        let (container_id, _) = container_of(pod, container).context("the container has no id")?;
        let cmd = cmd.iter().map(|word| (*word).to_owned()).collect();
        let request = ExecSyncRequest { container_id, cmd, timeout: 0 };
        let answer = self.cri.clone().exec_sync(request).await.context("ExecSync")?.into_inner();
        Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
    }

    /// Removes a pod's cgroup; nothing may be in it any more.
    pub async fn remove_cgroup(&self, uid: &str) -> anyhow::Result<()> {
        self.cgroups.remove(&self.cgroup(uid)).await
    }

    /// Makes the cgroup of a pod that is none.
    pub async fn pod_cgroup(&self, uid: &str, busy: bool) -> anyhow::Result<Made> {
        let cgroup = self.cgroup(uid);
        self.cgroups.create(&cgroup).await?;
        let process = busy.then(|| self.process_in(&cgroup)).transpose()?;
        Ok(Made::Cgroup(cgroup, process))
    }

    fn process_in(&self, cgroup: &str) -> anyhow::Result<Child> {
        let child = Command::new("sleep")
            .arg("infinity")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("cannot run sleep")?;
        self.cgroups.add(cgroup, child.id().context("it ended at once")?)?;
        Ok(child)
    }

    /// Holds processes so that not even SIGKILL ends them.
    pub async fn freeze_for_good(&self, processes: &[i32]) -> anyhow::Result<Made> {
        Ok(Made::Frozen(Frozen::freeze(&self.work, processes).await?))
    }

    /// Takes away what was made; what is gone already is fine.
    pub async fn undo(&self, made: Made) -> anyhow::Result<()> {
        match made {
            Made::Cgroup(cgroup, process) => {
                if let Some(mut process) = process {
                    process.kill().await?;
                }
                self.cgroups.remove(&cgroup).await
            }
            Made::Orphans(orphans) => {
                tokio::task::spawn_blocking(move || orphans.end()).await.context("it panicked")?
            }
            Made::Netns(network) => network.remove(),
            Made::Frozen(frozen) => frozen.thaw().await,
        }
    }
}

/// A container of a pod, as its status tells: its id, and whether it runs.
pub fn container_of(pod: &Pod, name: &str) -> Option<(String, bool)> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let one = all.into_iter().find(|one| one.name == name)?;
    let id = one.container_id.as_deref()?;
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    Some((id.into(), one.state.as_ref().is_some_and(|state| state.running.is_some())))
}

/// The object of a pod that nobody has made.
fn stranger(pod: &PodId) -> Pod {
    let mut object = Pod::default();
    object.metadata.name = Some(pod.name.clone());
    object.metadata.namespace = Some(pod.namespace.clone());
    object.metadata.uid = Some(pod.uid.clone());
    object.spec = Some(PodSpec { host_network: Some(true), ..Default::default() });
    object
}

/// The kubelet may remove the same thing at the same time.
fn gone_is_fine<T>(answer: Result<T, tonic::Status>) -> Result<(), tonic::Status> {
    match answer {
        Err(status) if status.code() != tonic::Code::NotFound => Err(status),
        _ => Ok(()),
    }
}

fn of_pod(uid: &str) -> HashMap<String, String> {
    HashMap::from([("io.kubernetes.pod.uid".to_owned(), uid.to_owned())])
}
