//! The one-node cluster: containerd, apiserver and kubelet, brought up and taken down together.

use super::{Options, Screen};
use crate::{
    apiserver::{self, Apiserver, DeleteOptions},
    containerd::{self, Containerd},
    image,
    kubelet::{self, Kubelet, cgroup::Cgroups},
};
use anyhow::{Context as _, bail};
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_openapi::api::core::v1::{
    Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo, Pod,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Files in the work directory beside containerd's own.
const IMAGE: &str = "image.tar";
const KUBECONFIG: &str = "kubeconfig";
const LOGS: &str = "pods";

/// Removes the lab's own files, of this run or of one that was killed.
pub(super) fn tidy(work: &Path) {
    let _ = std::fs::remove_file(work.join(IMAGE));
    let _ = std::fs::remove_file(work.join(KUBECONFIG));
    let _ = std::fs::remove_dir_all(work.join(LOGS));
}

/// The node's name.
const NODE: &str = "lab-node";

/// A running cluster. Dropped, it takes everything down, but cannot say what went wrong.
pub(super) struct Lab {
    // In the order in which they are let go.
    kubelet: Kubelet,
    apiserver: Apiserver,
    cgroups: Cgroups,
    containerd: Containerd,
    logs: PathBuf,
    kubeconfig: PathBuf,
}

impl Lab {
    /// Removes what an earlier run left, then brings everything up.
    pub(super) async fn start(options: &Options, screen: Screen) -> anyhow::Result<Self> {
        if !options.workload.is_file() {
            bail!(
                "{} is not there: build it (cargo xtask build) or name it with --workload",
                options.workload.display()
            );
        }
        tidy(&options.work);
        screen.step("starting a private containerd");
        let containerd = Containerd::start(containerd::Options::new(&options.work)).await?;
        screen.step("importing the lab's image");
        let archive = options.work.join(IMAGE);
        image::build(&options.workload, &archive)?;
        containerd.import(&archive).await?;

        screen.step("starting the apiserver and the kubelet");
        let logs = options.work.join(LOGS);
        let apiserver = Apiserver::start(apiserver::Options::default()).await?;
        let kubeconfig = options.work.join(KUBECONFIG);
        apiserver.write_kubeconfig(&kubeconfig)?;
        apiserver.store().create_node(&node())?;
        let cri = RuntimeServiceClient::new(containerd::connect(&containerd.endpoint()).await?);
        let cgroups = Cgroups::probe(containerd.cgroup_root(), &containerd.cgroup_parent());
        let kubelet = Kubelet::start(
            kubelet::Config::new(NODE, logs.clone()),
            cri,
            Arc::new(apiserver.store()),
            cgroups.clone(),
        );
        Ok(Self { kubelet, apiserver, cgroups, containerd, logs, kubeconfig })
    }

    /// Fails where no memory limit can be had.
    pub(super) fn check_memory_limits(&self) -> anyhow::Result<()> {
        if self.cgroups.can_limit_memory() {
            return Ok(());
        }
        bail!(
            "no memory controller here, neither on cgroup2 nor on v1: the scenario oom-killed \
             cannot be played; choose others with --scenario"
        )
    }

    pub(super) fn image(&self) -> &str {
        image::NAME
    }

    pub(super) fn node(&self) -> &str {
        NODE
    }

    pub(super) fn logs(&self) -> &Path {
        &self.logs
    }

    pub(super) fn cri(&self) -> String {
        self.containerd.endpoint()
    }

    pub(super) fn cgroup_root(&self) -> &Path {
        self.containerd.cgroup_root()
    }

    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(super) fn url(&self) -> String {
        self.apiserver.url()
    }

    /// `kubectl create`.
    pub(super) fn create(&self, pod: Pod) -> anyhow::Result<Pod> {
        Ok(self.apiserver.store().create_pod(&pod)?)
    }

    /// The object, if it exists.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        self.apiserver.store().get_pod(namespace, name).ok()
    }

    /// `kubectl delete pod`; `grace` seconds instead of the pod's own.
    pub(super) fn delete(
        &self,
        namespace: &str,
        name: &str,
        grace: Option<i64>,
    ) -> anyhow::Result<()> {
        let options = DeleteOptions { grace, ..Default::default() };
        self.apiserver.store().delete_pod(namespace, name, &options)?;
        Ok(())
    }

    /// Takes everything down; what remains is an error.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        drop(self.kubelet);
        drop(self.apiserver);
        self.containerd.stop().await.context("containerd")
    }
}

/// The node's object: Ready, and with this machine's boot ID, by which an observer knows that it
/// is the machine it runs on.
fn node() -> Node {
    let read = |file: &str| {
        std::fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    let mut node = Node::default();
    node.metadata.name = Some(NODE.into());
    node.status = Some(NodeStatus {
        addresses: Some(vec![
            NodeAddress { type_: "InternalIP".into(), address: "127.0.0.1".into() },
            NodeAddress { type_: "Hostname".into(), address: NODE.into() },
        ]),
        conditions: Some(vec![NodeCondition {
            type_: "Ready".into(),
            status: "True".into(),
            reason: Some("KubeletReady".into()),
            ..Default::default()
        }]),
        node_info: Some(NodeSystemInfo {
            boot_id: read("/proc/sys/kernel/random/boot_id"),
            kernel_version: read("/proc/sys/kernel/osrelease"),
            operating_system: "linux".into(),
            ..Default::default()
        }),
        ..Default::default()
    });
    node
}
