//! The one-node cluster: containerd, apiserver and kubelet, brought up and taken down together.

use crate::remnants::{Hand, Made, container_of};
use crate::{
    apiserver::{self, Apiserver, ApiserverFault, DeleteOptions, ResourceKind, Store},
    containerd::{self, Containerd},
    controlplane::{self, Disruption},
    delay::{Delays, Detour},
    image,
    kubelet::{
        self, Kubelet, Local,
        api::{Api as _, PodChange},
        cgroup::Cgroups,
        housekeeping::HousekeepingMoment,
        translate::{self, PodId},
    },
    network::{Forward, Network},
    remnants::Remnant,
};
use anyhow::{Context as _, bail};
use coroner_cri_api::v1::{
    ListPodSandboxRequest, PodSandboxFilter, PodSandboxState, PodSandboxStateValue,
    PodSandboxStatusRequest, runtime_service_client::RuntimeServiceClient,
};
use coroner_workload::page::boot_now;
use k8s_openapi::api::core::v1::{
    Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo, Pod,
};
use rustix::process::Pid;
use std::{
    collections::HashMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{Mutex, OnceCell, mpsc};

/// Files in the work directory beside containerd's own.
const IMAGE: &str = "image.tar";
const KUBECONFIG: &str = "kubeconfig";
const LOGS: &str = "pods";
const STATE: &str = "state";
const RECORDING: &str = "agent.rec";
const DETOUR: &str = "late.sock";
const KUBELET_LOG: &str = "kubelet.log";

/// Removes the lab's own files, of this run or of one that was killed.
pub fn tidy(work: &Path) {
    let _ = std::fs::remove_file(work.join(IMAGE));
    let _ = std::fs::remove_file(work.join(KUBECONFIG));
    let _ = std::fs::remove_file(work.join(KUBECONFIG).with_extension(apiserver::NO_EVENTS));
    let _ = std::fs::remove_file(work.join(DETOUR));
    let _ = std::fs::remove_file(work.join(RECORDING));
    let _ = std::fs::remove_file(work.join(format!("{RECORDING}.old")));
    let _ = std::fs::remove_file(work.join(KUBELET_LOG));
    let _ = std::fs::remove_file(work.join(format!("{KUBELET_LOG}.1")));
    let _ = std::fs::remove_dir_all(work.join(LOGS));
    let _ = std::fs::remove_dir_all(work.join(STATE));
}

/// The node's name.
const NODE: &str = "lab-node";
/// A node that is not this machine.
pub const OTHER_NODE: &str = "lab-other-node";

/// A running cluster. Dropped, it takes everything down, but cannot say what went wrong.
pub struct Cluster {
    // In the order in which they are let go.
    kubelet: Kubelet,
    /// Where pods on their own network find the apiserver.
    service: Forward,
    apiserver: Apiserver,
    cgroups: Cgroups,
    /// Of a node that is not this one.
    elsewhere: OnceCell<Network>,
    containerd: Mutex<Containerd>,
    hand: Hand,
    /// The name of the kubelet's process, which is this one.
    process: String,
    cri: String,
    cgroup_root: PathBuf,
    user_namespaces: bool,
    host_root: PathBuf,
    logs: PathBuf,
    kubeconfig: PathBuf,
    /// The agent's ways to its sources, where these are slow.
    detours: Vec<Detour>,
    delays: Delays,
    /// When each pod's deletion was first asked for, ns of CLOCK_BOOTTIME, by the pod's name.
    deleted: std::sync::Mutex<HashMap<String, u64>>,
}

impl Cluster {
    /// Removes what an earlier run left, then brings everything up.
    pub async fn start(
        options: containerd::ContainerdOptions,
        step: &(dyn Fn(&str) + Send + Sync),
    ) -> anyhow::Result<Self> {
        let (work, workload) = (options.work.clone(), options.workload.clone());
        if !workload.is_file() {
            bail!(
                "{} is not there: build it (cargo xtask build) or name it with --workload",
                workload.display()
            );
        }
        tidy(&work);
        step("starting a private containerd");
        let containerd = Containerd::start(options).await?;
        step(&format!("importing the lab's image into containerd {}", containerd.version()));
        let archive = work.join(IMAGE);
        image::build(&workload, &archive)?;
        containerd.import(&archive).await?;

        step("starting the apiserver and the kubelet");
        let logs = work.join(LOGS);
        let apiserver = Apiserver::start(apiserver::ApiserverOptions::default()).await?;
        let kubeconfig = work.join(KUBECONFIG);
        apiserver.write_kubeconfig(&kubeconfig)?;
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .context("cannot read this machine's boot ID")?;
        let mut own = node(NODE, boot_id.trim());
        // The other one has no kubelet that would run what a DaemonSet has there.
        own.metadata.labels = Some([("kubernetes.io/os".into(), "linux".into())].into());
        apiserver.store().create_node(&own)?;
        let other_boot = uuid::Uuid::new_v4().to_string();
        apiserver.store().create_node(&node(OTHER_NODE, &other_boot))?;
        let cri = RuntimeServiceClient::new(containerd::connect(&containerd.endpoint()).await?);
        let cgroups = Cgroups::probe(
            containerd.cgroup_root(),
            &containerd.cgroup_parent(),
            containerd.systemctl(),
        );
        let network = containerd.network().clone();
        let service = Forward::out_of_network(&network, apiserver.address())
            .context("pods on their own network cannot reach the apiserver")?;
        let kubelet = Kubelet::start(
            kubelet::Config {
                apiserver: Some(apiserver.address()),
                service: Some(service.address),
                network: Some(network),
                log: Some(work.join(KUBELET_LOG)),
                ..kubelet::Config::new(NODE, logs.clone())
            },
            cri.clone(),
            Arc::new(Local::new(apiserver.store(), apiserver.fault())),
            cgroups.clone(),
        )?;
        let process = own_name(&containerd.cgroup_parent())?;
        let hand = Hand { cri, cgroups: cgroups.clone(), logs: logs.clone(), work };
        Ok(Self {
            kubelet,
            service,
            apiserver,
            cgroups,
            elsewhere: OnceCell::new(),
            hand,
            process,
            cri: containerd.endpoint(),
            cgroup_root: containerd.cgroup_root().into(),
            user_namespaces: containerd::has_user_namespaces(containerd.version()),
            host_root: containerd.host_root(),
            containerd: Mutex::new(containerd),
            logs,
            kubeconfig,
            detours: Vec::new(),
            delays: Delays::default(),
            deleted: std::sync::Mutex::default(),
        })
    }

    /// From now on an agent that is started gets its answers so late.
    pub async fn delay(&mut self, delays: Delays) -> anyhow::Result<()> {
        self.delays = delays;
        if delays.apiserver > Duration::ZERO {
            let (detour, address) = Detour::tcp(self.apiserver(), delays.apiserver).await?;
            apiserver::write_kubeconfig(&format!("http://{address}"), &self.kubeconfig)?;
            self.detours.push(detour);
        }
        if delays.runtime > Duration::ZERO {
            let socket =
                self.cri.strip_prefix("unix://").context("the runtime has no Unix socket")?;
            let detour = self.hand.work.join(DETOUR);
            self.detours.push(Detour::unix(socket.into(), &detour, delays.runtime)?);
            self.cri = format!("unix://{}", detour.display());
        }
        Ok(())
    }

    /// How late the agent's sources answer.
    pub fn delays(&self) -> Delays {
        self.delays
    }

    /// Of its own cgroup: no other lab has the same.
    pub async fn name(&self) -> String {
        self.containerd.lock().await.cgroup_parent().trim_start_matches('/').into()
    }

    /// The apiserver's objects.
    pub fn store(&self) -> Store {
        self.apiserver.store()
    }

    /// All pods of the node, then their changes, as the kubelet hears of them.
    pub fn watch(&self) -> mpsc::UnboundedReceiver<PodChange> {
        Local::new(self.apiserver.store(), self.apiserver.fault()).watch(NODE)
    }

    /// Whether a memory limit can be had here.
    pub fn can_limit_memory(&self) -> bool {
        self.cgroups.can_limit_memory()
    }

    /// Whether a pod can have users of its own.
    pub fn has_user_namespaces(&self) -> bool {
        self.user_namespaces
    }

    pub fn node(&self) -> &str {
        NODE
    }

    pub fn logs(&self) -> &Path {
        &self.logs
    }

    pub fn cri(&self) -> String {
        self.cri.clone()
    }

    /// Where an agent can keep its state.
    pub fn state(&self) -> PathBuf {
        self.hand.work.join(STATE)
    }

    /// Where an agent can record.
    pub fn recording(&self) -> PathBuf {
        self.hand.work.join(RECORDING)
    }

    /// Where its files are.
    pub fn work(&self) -> &Path {
        &self.hand.work
    }

    /// The name by which an observer knows the kubelet's process.
    pub fn kubelet_process(&self) -> &str {
        &self.process
    }

    pub fn cgroup_root(&self) -> &Path {
        &self.cgroup_root
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub fn url(&self) -> String {
        self.apiserver.url()
    }

    /// Whether the apiserver has an Event for this reason on this pod, or on a node because of it.
    pub fn has_event(&self, pod: &str, reason: &str) -> bool {
        let (_, events) = self.apiserver.store().list(ResourceKind::Event);
        events.iter().any(|event| {
            let about = [&event["involvedObject"], &event["related"]];
            event["reason"] == reason && about.iter().any(|object| object["uid"] == pod)
        })
    }

    /// Where the apiserver listens.
    pub fn apiserver(&self) -> SocketAddr {
        self.apiserver.address()
    }

    /// Where the apiserver is for pods on their own network.
    pub fn service(&self) -> SocketAddr {
        self.service.address
    }

    /// The node's side of the pods' network.
    pub async fn node_network(&self) -> Network {
        self.containerd.lock().await.network().clone()
    }

    /// The network of another node, on the same bridge: its address is not the node's.
    pub async fn other_network(&self) -> anyhow::Result<&Network> {
        let make = async || self.node_network().await.other_node(1);
        self.elsewhere.get_or_try_init(make).await
    }

    /// The node's file system, under a path that lasts as long as the lab.
    pub fn host_root(&self) -> &Path {
        &self.host_root
    }

    /// Brings another image onto the node.
    pub async fn import(&self, archive: &Path, name: &str) -> anyhow::Result<()> {
        self.containerd.lock().await.import_as(archive, &[name]).await
    }

    /// The network of a pod; `None`: it has no sandbox yet.
    pub async fn network(&self, uid: &str) -> anyhow::Result<Option<Network>> {
        let mut cri = self.hand.cri.clone();
        let filter = PodSandboxFilter {
            state: Some(PodSandboxStateValue { state: PodSandboxState::SandboxReady.into() }),
            label_selector: [("io.kubernetes.pod.uid".into(), uid.into())].into(),
            ..Default::default()
        };
        let request = ListPodSandboxRequest { filter: Some(filter) };
        let listed = cri.list_pod_sandbox(request).await.context("ListPodSandbox")?.into_inner();
        let Some(sandbox) = listed.items.first() else { return Ok(None) };
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.id.clone(), verbose: true };
        let status = cri.pod_sandbox_status(request).await.context("PodSandboxStatus")?;
        let pid = kubelet::main_pid(&status.into_inner().info);
        let pid = pid.context("the runtime does not tell the sandbox's process")?;
        Network::of_process(pid).map(Some)
    }

    /// The first process of a pod's container.
    pub fn main_pid(&self, id: &PodId, container: &str) -> anyhow::Result<i32> {
        let pod = self.pod(&id.namespace, &id.name).context("the pod is gone")?;
        let (group, id) = self.group(&pod, container)?;
        let first = self.cgroups.processes(&group, &id)?.first().copied();
        first.context("the container has no process")
    }

    /// A container's users are not the machine's.
    pub fn ensure_own_users(&self, id: &PodId, container: &str) -> anyhow::Result<()> {
        let map =
            std::fs::read_to_string(format!("/proc/{}/uid_map", self.main_pid(id, container)?))?;
        // user_namespaces(7): of its IDs, of the machine's, how many.
        let first = map.split_whitespace().nth(1);
        anyhow::ensure!(
            first.is_some_and(|first| first != "0"),
            "the runtime made no user namespace: {map}"
        );
        Ok(())
    }

    /// The directory of a process' cgroup.
    pub fn cgroup_of(&self, pid: i32) -> anyhow::Result<PathBuf> {
        self.cgroups.of_process(pid)
    }

    /// `kubectl create`.
    pub fn create(&self, pod: Pod) -> anyhow::Result<Pod> {
        Ok(self.apiserver.store().create_pod(&pod)?)
    }

    /// The kubelet, for what it decides by itself.
    pub fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    /// A controller of the control plane ends a pod.
    pub fn disrupt(
        &self,
        namespace: &str,
        name: &str,
        disruption: Disruption,
    ) -> anyhow::Result<()> {
        Ok(controlplane::disrupt(&self.apiserver.store(), namespace, name, disruption)?)
    }

    /// `kubectl set image`.
    pub fn change_image(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
        image: &str,
    ) -> anyhow::Result<()> {
        self.apiserver.store().update(ResourceKind::Pod, namespace, name, |pod| {
            let all = pod["spec"]["containers"].as_array_mut().into_iter().flatten();
            for one in all.filter(|one| one["name"] == container) {
                one["image"] = image.into();
            }
            Ok(())
        })?;
        Ok(())
    }

    /// `kubectl patch --subresource resize`: another request for CPU.
    pub fn resize(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
        cpu: &str,
    ) -> anyhow::Result<()> {
        self.apiserver.store().update(ResourceKind::Pod, namespace, name, |pod| {
            let all = pod["spec"]["containers"].as_array_mut().into_iter().flatten();
            for one in all.filter(|one| one["name"] == container) {
                one["resources"]["requests"]["cpu"] = cpu.into();
            }
            Ok(())
        })?;
        Ok(())
    }

    /// The apiserver answers nobody, or everybody again.
    pub fn set_apiserver(&self, fault: ApiserverFault) {
        self.apiserver.set_fault(fault);
    }

    /// Kills the container runtime.
    pub async fn kill_runtime(&self) -> anyhow::Result<()> {
        self.containerd.lock().await.kill().await
    }

    /// Starts it again.
    pub async fn start_runtime(&self) -> anyhow::Result<()> {
        self.containerd.lock().await.restart().await
    }

    /// Starts it again if it does not run.
    pub async fn mend_runtime(&self) -> anyhow::Result<()> {
        let mut containerd = self.containerd.lock().await;
        if containerd.runs() { Ok(()) } else { containerd.restart().await }
    }

    /// Sends a signal to the first process of a pod's container, as anybody on the node may: from a process of
    /// its own, because this one is the kubelet.
    pub fn kill(&self, pod: &Pod, container: &str, signal: i32) -> anyhow::Result<()> {
        let (group, id) = self.group(pod, container)?;
        let first = self.cgroups.processes(&group, &id)?.first().copied();
        let pid = first.and_then(Pid::from_raw).context("the container has no process")?;
        let pid = pid.as_raw_nonzero();
        let mut shell = std::process::Command::new("/bin/sh");
        let status = shell.args(["-c", &format!("kill -{signal} {pid}")]).status();
        anyhow::ensure!(status.context("cannot run sh")?.success(), "kill -{signal} {pid} failed");
        Ok(())
    }

    pub fn freeze(&self, pod: &Pod, container: &str) -> anyhow::Result<()> {
        let (group, id) = self.group(pod, container)?;
        self.cgroups.freeze(&group, &id)
    }

    /// The pod's cgroup, and the container's name in it.
    fn group(&self, pod: &Pod, container: &str) -> anyhow::Result<(String, String)> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let group = self.cgroups.pod(translate::qos_class(pod), uid);
        let (id, _) = container_of(pod, container).context("the container has no id yet")?;
        Ok((group, id))
    }

    /// Has the kubelet's cache be read; gives the moment at which its housekeeping believes it.
    pub fn read_runtime_cache(&self, uid: &str) -> HousekeepingMoment {
        self.kubelet.cache(uid)
    }

    /// Another version of the kubelet runs, and its Node object says so.
    pub fn run_kubelet(&self, version: &str) -> anyhow::Result<()> {
        self.kubelet.set_version(version);
        self.apiserver.store().update(ResourceKind::Node, "", NODE, |node| {
            node["status"]["nodeInfo"]["kubeletVersion"] = version.into();
            Ok(())
        })?;
        Ok(())
    }

    /// What is left behind by hand, and what undoes it where that is not the pod's sandboxes.
    pub async fn leave(&self, remnant: Remnant, pod: &PodId) -> anyhow::Result<Option<Made>> {
        let hand = &self.hand;
        match remnant {
            Remnant::RunningSandbox => hand.running_sandbox(pod).await.map(|_| None),
            Remnant::SecondSandbox => {
                let object = self.pod(&pod.namespace, &pod.name).context("the pod is gone")?;
                hand.second_sandbox(pod, &object).await.map(|_| None)
            }
            Remnant::PodCgroup { busy } => hand.pod_cgroup(&pod.uid, busy).await.map(Some),
            Remnant::Netns => {
                let name = format!("cni-{}", uuid::Uuid::new_v4());
                Ok(Some(Made::Netns(self.containerd.lock().await.keep_network(name)?)))
            }
        }
    }

    /// The bundles of a pod's containers are lost; what undoes it ends what ran in them.
    pub async fn lose_bundles(&self, pod: &PodId) -> anyhow::Result<Made> {
        let group = self.cgroups.pod("besteffort", &pod.uid);
        Ok(Made::Orphans(self.containerd.lock().await.lose_bundles(&group)?))
    }

    /// What the runtime has written down of a container's state is lost, while it is dead.
    pub async fn lose_status(&self, pod: &Pod, container: &str) -> anyhow::Result<()> {
        let (_, id) = self.group(pod, container)?;
        self.containerd.lock().await.lose_status(&id)
    }

    /// Whether systemd makes its cgroups.
    pub fn has_systemd(&self) -> bool {
        self.cgroups.has_systemd()
    }

    /// `systemctl stop` of a container's scope, of which nobody waits for the end.
    pub fn stop_scope(&self, pod: &Pod, container: &str) -> anyhow::Result<()> {
        let (_, id) = self.group(pod, container)?;
        self.cgroups.stop_scope(&id)
    }

    /// `ctr task kill`.
    pub async fn kill_task(&self, pod: &Pod, container: &str, signal: &str) -> anyhow::Result<()> {
        let (_, id) = self.group(pod, container)?;
        self.containerd.lock().await.kill_task(&id, signal).await
    }

    /// For what is done by hand.
    pub fn hand(&self) -> &Hand {
        &self.hand
    }

    /// Whether the network plugin can take down what it made for the pod of this name.
    pub async fn set_network(&self, pod: &str, works: bool) -> anyhow::Result<()> {
        self.containerd.lock().await.fail_cni_delete(pod, !works)
    }

    /// Holds a container's main process in a v1 freezer.
    pub async fn freeze_for_good(&self, pod: &Pod, container: &str) -> anyhow::Result<Made> {
        let (group, id) = self.group(pod, container)?;
        self.hand.freeze_for_good(&self.cgroups.processes(&group, &id)?).await
    }

    /// `kubectl patch`: nobody holds the object any more.
    pub fn remove_finalizers(&self, namespace: &str, name: &str) -> anyhow::Result<()> {
        self.apiserver.store().update(ResourceKind::Pod, namespace, name, |pod| {
            pod["metadata"]["finalizers"] = Default::default();
            Ok(())
        })?;
        Ok(())
    }

    /// The object, if it exists.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        self.apiserver.store().get_pod(namespace, name).ok()
    }

    /// `kubectl delete pod`; `grace` seconds instead of the pod's own.
    pub fn delete(&self, namespace: &str, name: &str, grace: Option<i64>) -> anyhow::Result<()> {
        self.deletions().entry(name.to_owned()).or_insert_with(boot_now);
        let options = DeleteOptions { grace, ..Default::default() };
        self.apiserver.store().delete_pod(namespace, name, &options)?;
        Ok(())
    }

    /// When [`Self::delete`] was first called for a pod of this name, ns of CLOCK_BOOTTIME.
    pub fn deleted_at(&self, name: &str) -> Option<u64> {
        self.deletions().get(name).copied()
    }

    fn deletions(&self) -> std::sync::MutexGuard<'_, HashMap<String, u64>> {
        self.deleted.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether something runs in a container of the pod beside its main process.
    pub fn has_second_process(&self, pod: &Pod, uid: &str) -> bool {
        self.cgroups.has_second_process(&self.cgroups.pod(translate::qos_class(pod), uid))
    }

    /// Takes everything down; what remains is an error.
    pub async fn stop(self) -> anyhow::Result<()> {
        drop(self.kubelet);
        drop(self.service);
        drop(self.apiserver);
        self.containerd.into_inner().stop().await.context("containerd")
    }
}

/// Gives this process a name of its own, by which the agent knows the kubelet in it: other labs may
/// run on the machine.
pub fn own_name(cgroup: &str) -> anyhow::Result<String> {
    let digits = cgroup.rsplit('-').next().unwrap_or_default();
    let name = format!("lab-{digits}");
    std::fs::write("/proc/self/comm", &name).context("cannot name this process")?;
    Ok(name)
}

/// A node's object: Ready, and with its machine's boot ID, by which an observer knows whether that
/// is the machine it runs on.
pub fn node(name: &str, boot_id: &str) -> Node {
    let read = |file: &str| {
        std::fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    let mut node = Node::default();
    node.metadata.name = Some(name.into());
    node.status = Some(NodeStatus {
        addresses: Some(vec![
            NodeAddress { type_: "InternalIP".into(), address: "127.0.0.1".into() },
            NodeAddress { type_: "Hostname".into(), address: name.into() },
        ]),
        conditions: Some(vec![NodeCondition {
            type_: "Ready".into(),
            status: "True".into(),
            reason: Some("KubeletReady".into()),
            ..Default::default()
        }]),
        node_info: Some(NodeSystemInfo {
            boot_id: boot_id.into(),
            kernel_version: read("/proc/sys/kernel/osrelease"),
            kubelet_version: kubelet::VERSION.into(),
            operating_system: "linux".into(),
            ..Default::default()
        }),
        ..Default::default()
    });
    node
}
