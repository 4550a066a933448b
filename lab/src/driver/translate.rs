//! A pod's spec → what the runtime is asked for, with the kubelet's own labels and annotations (kuberuntime/labels.go).
//! Pure, but for [`make_volumes`].

use super::security;
use coroner_cri_api::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, MountPropagation, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
};
use k8s_openapi::{
    api::core::v1::{Container, EnvVar, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// What names a pod on the node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PodId {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl PodId {
    /// From the object; `None` if it has no name or no UID.
    pub fn of(pod: &Pod) -> Option<Self> {
        Some(Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_else(|| "default".into()),
            name: pod.metadata.name.clone()?,
            uid: pod.metadata.uid.clone()?,
        })
    }

    /// `<namespace>_<name>_<uid>` below `root`: where the runtime writes the pod's logs.
    pub fn log_directory(&self, root: &Path) -> PathBuf {
        root.join(format!("{}_{}_{}", self.namespace, self.name, self.uid))
    }

    /// The log of a container that was restarted so often.
    pub fn log(&self, root: &Path, container: &str, attempt: u32) -> PathBuf {
        self.log_directory(root).join(container).join(format!("{attempt}.log"))
    }

    fn labels(&self) -> HashMap<String, String> {
        HashMap::from([
            ("io.kubernetes.pod.name".into(), self.name.clone()),
            ("io.kubernetes.pod.namespace".into(), self.namespace.clone()),
            ("io.kubernetes.pod.uid".into(), self.uid.clone()),
        ])
    }
}

/// Where containers find the node's services.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) apiserver: SocketAddr,
    pub(crate) host_ips: Vec<IpAddr>,
}

/// The pod's class of service, which is the name of its cgroup's parent: burstable if anything is requested or limited,
/// else besteffort (the lab has no guaranteed pods).
pub fn qos_class(pod: &Pod) -> &'static str {
    let resources =
        pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|one| &one.resources);
    let mut all = resources.flat_map(|of| [&of.limits, &of.requests]).flatten();
    if all.any(|quantities| !quantities.is_empty()) { "burstable" } else { "besteffort" }
}

/// Where a pod's manifest comes from: `file`, or the apiserver (pkg/kubelet/types/pod_update.go).
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// On a mirror pod: the UID of its static pod.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// What the driver leaves of a pod: [`LeftOver`] in words.
pub const LEAVES: &str = "coroner/leaves";
/// How long it takes from the deletion to the first act of stopping, ms.
pub const REACTION_MS: &str = "coroner/reaction-ms";

/// What the driver never removes, as a kubelet with a bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum LeftOver {
    Nothing,
    Sandbox,
    /// The containers, and with them the sandbox.
    Containers,
}

pub(super) fn leaves(pod: &Pod) -> LeftOver {
    match annotation(pod, LEAVES) {
        Some("sandbox") => LeftOver::Sandbox,
        Some("containers") => LeftOver::Containers,
        _ => LeftOver::Nothing,
    }
}

pub(super) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The pod is from a manifest on the node.
pub(super) fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE) == Some("file") && mirrored(pod).is_none()
}

/// The UID of the static pod whose mirror this object is.
pub(super) fn mirrored(pod: &Pod) -> Option<&str> {
    annotation(pod, CONFIG_MIRROR)
}

/// A manifest as a static pod of this node (config/common.go, `applyDefaults`): its UID is a hash, 32 hex digits without
/// dashes, its name ends in the node's.
pub(super) fn static_pod(manifest: &Pod, node: &str) -> Pod {
    let json = serde_json::to_vec(manifest).unwrap_or_default();
    let uid: String =
        Sha256::digest(json).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let mut pod = manifest.clone();
    pod.metadata.name = pod.metadata.name.map(|name| format!("{name}-{node}"));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(CONFIG_SOURCE.into(), "file".into());
    annotations.insert(CONFIG_HASH.into(), uid.clone());
    pod.metadata.uid = Some(uid);
    pod
}

/// The apiserver's image of a static pod (pod/mirror_client.go): it gets a UID of its own there.
pub(super) fn mirror(pod: &Pod) -> Pod {
    let mut mirror = pod.clone();
    let hash = mirror.metadata.uid.take().unwrap_or_default();
    mirror.metadata.annotations.get_or_insert_default().insert(CONFIG_MIRROR.into(), hash);
    let node = mirror.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    mirror.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        uid: node.clone(),
        name: node,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    mirror
}

/// The sandbox' configuration. `cgroup_parent` is the pod's cgroup as the runtime sees it, `attempt` the number of
/// sandboxes that this UID had before.
pub(crate) fn sandbox(
    pod: &Pod,
    id: &PodId,
    cgroup_parent: &str,
    log_root: &Path,
    attempt: u32,
) -> PodSandboxConfig {
    let mut labels = id.labels();
    labels.extend(pod.metadata.labels.clone().unwrap_or_default());
    let mut annotations: HashMap<String, String> =
        pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect();
    annotations.insert("kubernetes.io/config.seen".into(), jiff::Timestamp::now().to_string());
    annotations.entry(CONFIG_SOURCE.into()).or_insert_with(|| "api".into());
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let sysctls = context.and_then(|context| context.sysctls.clone());
    PodSandboxConfig {
        // A pod on the host's network has the host's (kuberuntime_sandbox.go).
        hostname: if has_own_network(pod) { id.name.clone() } else { String::new() },
        metadata: Some(PodSandboxMetadata {
            name: id.name.clone(),
            uid: id.uid.clone(),
            namespace: id.namespace.clone(),
            attempt,
        }),
        log_directory: id.log_directory(log_root).display().to_string(),
        labels,
        annotations,
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.into(),
            sysctls: sysctls.into_iter().flatten().map(|one| (one.name, one.value)).collect(),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod)),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A container's configuration for its `attempt`th restart. Carries no limits: the hierarchy that runc works on need not
/// have the controllers (see [`super::cgroup`]).
pub(crate) fn container(
    pod: &Pod,
    id: &PodId,
    container: &Container,
    attempt: u32,
    log_root: &Path,
    site: &Site,
) -> ContainerConfig {
    let mut labels = id.labels();
    labels.insert("io.kubernetes.container.name".into(), container.name.clone());
    let own = container.env.iter().flatten();
    let own: BTreeMap<String, String> =
        own.map(|var| (var.name.clone(), value_of(var, pod, id, site))).collect();
    // A variable of the container's own takes precedence (kubelet_pods.go, `makeEnvironmentVariables`).
    let mut envs = BTreeMap::from([
        ("KUBERNETES_SERVICE_HOST".to_owned(), site.apiserver.ip().to_string()),
        ("KUBERNETES_SERVICE_PORT".to_owned(), site.apiserver.port().to_string()),
    ]);
    envs.extend(own);
    let image = container.image.clone().unwrap_or_default();
    let context = security::context(pod.spec.as_ref(), container, namespaces(pod));
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(ImageSpec { image, ..Default::default() }),
        command: container.command.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: envs.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        labels,
        annotations: annotations(pod, container, attempt),
        mounts: mounts(pod, id, container, log_root),
        log_path: format!("{}/{attempt}.log", container.name),
        linux: Some(LinuxContainerConfig { security_context: Some(context), ..Default::default() }),
        ..Default::default()
    }
}

/// A variable's own value, or that of the pod's field which it names (kubelet_pods.go, `podFieldSelectorRuntimeValue`).
fn value_of(var: &EnvVar, pod: &Pod, id: &PodId, site: &Site) -> String {
    let field = var.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
    let mut ips = site.host_ips.iter().map(IpAddr::to_string);
    let named = match field.map(|field| field.field_path.as_str()) {
        Some("spec.nodeName") => pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        Some("metadata.name") => Some(id.name.clone()),
        Some("metadata.namespace") => Some(id.namespace.clone()),
        Some("metadata.uid") => Some(id.uid.clone()),
        Some("status.hostIPs") => Some(ips.collect::<Vec<_>>().join(",")),
        Some("status.hostIP") => ips.next(),
        _ => None,
    };
    named.or_else(|| var.value.clone()).unwrap_or_default()
}

fn annotations(pod: &Pod, container: &Container, attempt: u32) -> HashMap<String, String> {
    let mut annotations = HashMap::from([
        ("io.kubernetes.container.hash".into(), hash(container)),
        ("io.kubernetes.container.restartCount".into(), attempt.to_string()),
    ]);
    if let Some(hook) = container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref())
        && let Ok(json) = serde_json::to_string(hook)
    {
        annotations.insert("io.kubernetes.container.preStopHandler".into(), json);
    }
    let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let of_delete = pod.metadata.deletion_grace_period_seconds;
    for (key, grace) in [("terminationGracePeriod", own), ("deletionGracePeriod", of_delete)] {
        let grace = grace.map(|grace| (format!("io.kubernetes.pod.{key}"), grace.to_string()));
        annotations.extend(grace);
    }
    annotations
}

/// Eight hex digits that change with the container's name and image (container/helpers.go, `pickFieldsToHash`).
fn hash(container: &Container) -> String {
    let digest = Sha256::digest(format!("{:?}{}", container.image, container.name));
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

fn asks(pod: &Pod, of: fn(&PodSpec) -> Option<bool>) -> bool {
    pod.spec.as_ref().and_then(of) == Some(true)
}

/// Whether the pod has a network namespace of its own.
pub(super) fn has_own_network(pod: &Pod) -> bool {
    !asks(pod, |spec| spec.host_network)
}

/// The namespaces that the pod asks for (kuberuntime/util, `PidNamespaceForPod`).
fn namespaces(pod: &Pod) -> NamespaceOption {
    let pid = if asks(pod, |spec| spec.host_pid) {
        NamespaceMode::Node
    } else if asks(pod, |spec| spec.share_process_namespace) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    let network = if has_own_network(pod) { NamespaceMode::Pod } else { NamespaceMode::Node };
    NamespaceOption {
        network: network as i32,
        pid: pid as i32,
        ipc: NamespaceMode::Pod as i32,
        ..Default::default()
    }
}

/// Where the pod's emptyDir of this name is: below its logs, because those are removed with the lab.
fn empty_dir(id: &PodId, root: &Path, name: &str) -> PathBuf {
    id.log_directory(root).join("volumes").join(name)
}

/// Makes the pod's emptyDirs.
pub(super) fn make_volumes(pod: &Pod, id: &PodId, root: &Path) -> io::Result<()> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    for volume in volumes.filter(|volume| volume.empty_dir.is_some()) {
        let directory = empty_dir(id, root, &volume.name);
        fs::create_dir_all(&directory)?;
        // Any user's (volume/emptydir/empty_dir.go, `perm`).
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
    }
    Ok(())
}

/// The mounts of hostPath and emptyDir volumes: the lab has no others.
fn mounts(pod: &Pod, id: &PodId, container: &Container, root: &Path) -> Vec<Mount> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources: HashMap<&str, String> = volumes
        .filter_map(|volume| {
            let path = match (&volume.host_path, &volume.empty_dir) {
                (Some(host), _) => host.path.clone(),
                (None, Some(_)) => empty_dir(id, root, &volume.name).display().to_string(),
                (None, None) => return None,
            };
            Some((volume.name.as_str(), path))
        })
        .collect();
    let propagation = |mode: Option<&str>| match mode {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    };
    let all = container.volume_mounts.iter().flatten();
    all.filter_map(|mount| {
        Some(Mount {
            container_path: mount.mount_path.clone(),
            host_path: sources.get(mount.name.as_str())?.clone(),
            readonly: mount.read_only == Some(true),
            propagation: propagation(mount.mount_propagation.as_deref()).into(),
            ..Default::default()
        })
    })
    .collect()
}
