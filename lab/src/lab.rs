//! The one-node cluster: containerd, apiserver and driver, brought up and taken down together; and what an
//! administrator, or another process of the node, does to pods.

use crate::{
    apiserver::{self, Apiserver, DeleteOptions, Detour, Kind, Store},
    boot_now,
    containerd::{self, CgroupDriver, Containerd, ContainerdOptions, Cri, Network},
    driver::{self, Cgroups, Driver, PodId, main_pid, qos_class},
    image,
};
use anyhow::{Context as _, Result, ensure};
use coroner_cri_api::v1::{
    ListPodSandboxRequest, PodSandbox, PodSandboxFilter, PodSandboxStatusRequest,
    runtime_service_client::RuntimeServiceClient,
};
use k8s_openapi::api::core::v1::{
    ContainerStatus, Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo, Pod,
};
use std::{
    collections::HashMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Mutex as StdMutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{Mutex, OnceCell};

/// The node's name.
pub const NODE: &str = "lab-node";
/// Of the last minor version whose pod workers can hang (kubernetes#107730): the cause that the agent names for a leak
/// follows from it.
const KUBELET_VERSION: &str = "v1.26.15";
/// How often watches get a bookmark.
const BOOKMARKS: Duration = Duration::from_secs(10);

/// What the lab is made of.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// Where its files are.
    pub work: PathBuf,
    pub containerd: PathBuf,
    pub oci_runtime: PathBuf,
    pub cgroup_driver: CgroupDriver,
    /// The workload's binary, static.
    pub workload: PathBuf,
    /// How late the apiserver's answers to the agent are.
    pub delay: Duration,
}

impl LabOptions {
    /// The default: containerd 2, or 1.7 where 2 does not start, with runc.
    pub fn new(work: PathBuf, workload: PathBuf) -> Result<Self> {
        Ok(Self {
            work,
            containerd: containerd::default_version()?.0,
            oci_runtime: containerd::program("runc"),
            cgroup_driver: CgroupDriver::Cgroupfs,
            workload,
            delay: Duration::ZERO,
        })
    }
}

/// A running lab. Dropped, it takes everything down, but cannot report what went wrong.
pub struct Lab {
    // In the order in which they are dropped.
    driver: Driver,
    apiserver: Apiserver,
    detour: Option<Detour>,
    other_node: OnceCell<Network>,
    pub containerd: Mutex<Containerd>,
    pub cri: Cri,
    pub cgroups: Cgroups,
    node_network: Network,
    process: String,
    endpoint: String,
    work: PathBuf,
    /// Below which an agent finds the node's files, and where the cgroup2 hierarchy is mounted.
    pub host_root: PathBuf,
    pub cgroup_root: PathBuf,
    pub delay: Duration,
    /// When each pod's deletion was first requested, ns of CLOCK_BOOTTIME, by its UID.
    deleted: StdMutex<HashMap<String, u64>>,
}

impl Lab {
    /// Removes what an earlier run left, then brings everything up.
    pub async fn start(options: LabOptions, step: &(dyn Fn(&str) + Send + Sync)) -> Result<Self> {
        let workload = &options.workload;
        ensure!(
            workload.is_file(),
            "{} is not there: build it (cargo xtask build) or name it with --workload",
            workload.display()
        );
        step("starting a private containerd");
        let containerd = Containerd::start(ContainerdOptions {
            work: options.work.clone(),
            driver: options.cgroup_driver,
            containerd: options.containerd,
            oci_runtime: options.oci_runtime,
            plugins: containerd::plugins(),
        })
        .await?;
        let work = fs::canonicalize(&options.work)?;
        step(&format!("importing the lab's image into containerd {}", containerd.version()));
        let archive = work.join("image.tar");
        image::build(workload, &archive)?;
        containerd.import(&archive, &image::NAMES).await?;

        step("starting the apiserver and the driver");
        let mut apiserver = Apiserver::start(BOOKMARKS).await?;
        let node_network = containerd.network().clone();
        let service = (node_network.addresses[0], apiserver.address().port()).into();
        let cri = RuntimeServiceClient::new(containerd::connect(&containerd.endpoint()).await?);
        let root = containerd.cgroup_root().to_owned();
        let cgroups = Cgroups::new(&root, &containerd.cgroup(), containerd.systemctl());
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        apiserver.store().create_as(Kind::Node, &node(boot_id.trim()))?;
        let driver = Driver::start(
            driver::Config {
                node: NODE.into(),
                logs: work.join("pods"),
                apiserver: apiserver.address(),
                service,
                network: node_network.clone(),
            },
            cri.clone(),
            cgroups.clone(),
            apiserver.store(),
            apiserver.available(),
        );
        let detour = match options.delay {
            Duration::ZERO => None,
            delay => Some(Detour::start(apiserver.address(), delay).await?),
        };
        let address = detour.as_ref().map_or(apiserver.address(), |detour| detour.address);
        apiserver::write_kubeconfig(address, &work.join("kubeconfig"))?;
        // The bridge and its address come with the first pod.
        let port = apiserver.address().port();
        apiserver.listen(node_network.listen((Ipv4Addr::UNSPECIFIED, port).into())?);
        Ok(Self {
            driver,
            detour,
            other_node: OnceCell::new(),
            cri,
            cgroups,
            process: name_process(&containerd.cgroup())?,
            endpoint: containerd.endpoint(),
            host_root: containerd.host_root(),
            cgroup_root: root,
            containerd: Mutex::new(containerd),
            node_network,
            work,
            delay: options.delay,
            deleted: StdMutex::default(),
            apiserver,
        })
    }

    pub fn store(&self) -> Store {
        self.apiserver.store()
    }

    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Of its own cgroup: no other lab has the same.
    pub async fn name(&self) -> String {
        self.containerd.lock().await.cgroup().trim_start_matches('/').into()
    }

    /// `unix://…` of the CRI.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn apiserver(&self) -> SocketAddr {
        self.apiserver.address()
    }

    pub fn work(&self) -> &Path {
        &self.work
    }

    pub fn logs(&self) -> PathBuf {
        self.work.join("pods")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.work.join("kubeconfig")
    }

    /// The name by which an observer knows the kubelet's process, which is this one.
    pub fn kubelet_process(&self) -> &str {
        &self.process
    }

    /// The node's side of the pods' network.
    pub fn node_network(&self) -> &Network {
        &self.node_network
    }

    /// The network of another node on the same bridge.
    pub async fn other_node(&self) -> Result<&Network> {
        let make = async || self.containerd.lock().await.other_node();
        self.other_node.get_or_try_init(make).await
    }

    /// The apiserver answers nobody, or everybody again.
    pub fn set_apiserver(&self, available: bool) {
        self.apiserver.set_available(available);
    }

    /// `kubectl create`.
    pub fn create(&self, pod: &Pod) -> Result<Pod> {
        Ok(self.store().create_as(Kind::Pod, pod)?)
    }

    /// The object, if it exists.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        self.store().pod(namespace, name)
    }

    /// `kubectl delete pod`; `grace` seconds instead of the pod's own.
    pub fn delete(&self, namespace: &str, name: &str, grace: Option<i64>) -> Result<()> {
        if let Some(uid) = self.pod(namespace, name).and_then(|pod| pod.metadata.uid) {
            self.deletions().entry(uid).or_insert_with(boot_now);
        }
        let options = DeleteOptions { grace, uid: None };
        self.store().delete(Kind::Pod, namespace, name, &options)?;
        Ok(())
    }

    /// When [`Self::delete`] was first called for this pod, ns of CLOCK_BOOTTIME.
    pub fn deleted_at(&self, uid: &str) -> Option<u64> {
        self.deletions().get(uid).copied()
    }

    fn deletions(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `kubectl patch`: nothing holds the object any more.
    pub fn remove_finalizers(&self, namespace: &str, name: &str) -> Result<()> {
        self.store().update(Kind::Pod, namespace, name, |pod| {
            pod["metadata"]["finalizers"] = Default::default();
            Ok(())
        })?;
        Ok(())
    }

    /// `kubectl set image`.
    pub fn set_image(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
        image: &str,
    ) -> Result<()> {
        self.store().update(Kind::Pod, namespace, name, |pod| {
            let all = pod["spec"]["containers"].as_array_mut().into_iter().flatten();
            for one in all.filter(|one| one["name"] == container) {
                one["image"] = image.into();
            }
            let generation = pod["metadata"]["generation"].as_i64().unwrap_or_default();
            pod["metadata"]["generation"] = (generation + 1).into();
            Ok(())
        })?;
        Ok(())
    }

    /// Sends a signal to the first process of a pod's container, as any process on the node may: from one of its own,
    /// because this one is the kubelet.
    pub fn kill(&self, pod: &Pod, container: &str, signal: i32) -> Result<()> {
        let pid = self.main_pid(pod, container)?;
        let mut shell = std::process::Command::new("/bin/sh");
        let status = shell.args(["-c", &format!("kill -{signal} {pid}")]).status();
        ensure!(status.context("cannot run sh")?.success(), "kill -{signal} {pid} failed");
        Ok(())
    }

    /// The first process of a pod's container.
    pub fn main_pid(&self, pod: &Pod, container: &str) -> Result<i32> {
        let first = self.processes(pod, container)?.first().copied();
        first.context("the container has no process")
    }

    pub fn processes(&self, pod: &Pod, container: &str) -> Result<Vec<i32>> {
        let id = container_id(pod, container).context("the container has no id yet")?;
        self.cgroups.processes(&self.cgroup(pod), &id)
    }

    /// The pod's cgroup.
    pub fn cgroup(&self, pod: &Pod) -> String {
        self.cgroups.pod(qos_class(pod), pod.metadata.uid.as_deref().unwrap_or_default())
    }

    /// A pod's sandboxes, the oldest first.
    pub async fn sandboxes(&self, uid: &str) -> Result<Vec<PodSandbox>> {
        let label_selector = [("io.kubernetes.pod.uid".to_owned(), uid.to_owned())].into();
        let filter = PodSandboxFilter { label_selector, ..Default::default() };
        let request = ListPodSandboxRequest { filter: Some(filter) };
        let listed = self.cri.clone().list_pod_sandbox(request).await.context("ListPodSandbox")?;
        let mut all = listed.into_inner().items;
        all.sort_by_key(|sandbox| sandbox.created_at);
        Ok(all)
    }

    /// The network of a pod; `None`: it has no sandbox yet.
    pub async fn network(&self, uid: &str) -> Result<Option<Network>> {
        let Some(sandbox) = self.sandboxes(uid).await?.pop() else { return Ok(None) };
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.id, verbose: true };
        let status = self.cri.clone().pod_sandbox_status(request).await;
        let pid = main_pid(&status.context("PodSandboxStatus")?.into_inner().info);
        Network::of_process(pid.context("the runtime does not report the sandbox's pid")?).map(Some)
    }

    /// The log of a container, of its first attempt.
    pub fn log(&self, pod: &PodId, container: &str) -> PathBuf {
        pod.log(&self.logs(), container, 0)
    }

    /// Takes everything down; what remains is an error.
    pub async fn stop(self) -> Result<()> {
        drop((self.driver, self.detour, self.apiserver));
        self.containerd.into_inner().stop().await
    }
}

/// A container's status in a pod's.
pub fn container_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.into_iter().find(|one| one.name == name)
}

/// A container's id, as the pod's status has it.
pub fn container_id(pod: &Pod, name: &str) -> Option<String> {
    let id = container_status(pod, name)?.container_id.as_deref()?;
    Some(id.split_once("://").map_or(id, |(_, id)| id).to_owned())
}

/// Gives this process a name of its own, by which the agent knows the kubelet in it: other labs may run on the machine.
fn name_process(cgroup: &str) -> Result<String> {
    let name = format!("lab-{}", cgroup.rsplit('-').next().unwrap_or_default());
    fs::write("/proc/self/comm", &name).context("cannot name this process")?;
    Ok(name)
}

/// The node's object: Ready, and with the machine's boot ID, by which an observer knows whether the node is the machine
/// that it runs on.
fn node(boot_id: &str) -> Node {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut node = Node::default();
    node.metadata.name = Some(NODE.into());
    let address =
        |type_: &str, address: &str| NodeAddress { type_: type_.into(), address: address.into() };
    node.status = Some(NodeStatus {
        addresses: Some(vec![address("InternalIP", "127.0.0.1"), address("Hostname", NODE)]),
        conditions: Some(vec![NodeCondition {
            type_: "Ready".into(),
            status: "True".into(),
            reason: Some("KubeletReady".into()),
            ..Default::default()
        }]),
        node_info: Some(NodeSystemInfo {
            boot_id: boot_id.into(),
            kernel_version: kernel.trim().into(),
            kubelet_version: KUBELET_VERSION.into(),
            operating_system: "linux".into(),
            ..Default::default()
        }),
        ..Default::default()
    });
    node
}
