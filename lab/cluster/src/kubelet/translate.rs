//! A pod's spec → what the runtime is asked for, with the kubelet's own labels and annotations
//! (kuberuntime/labels.go). Pure.

pub(super) mod volumes;

use super::security;
use crate::apiserver::CONFIG_MIRROR;
use coroner_cri_api::v1::{
    ContainerConfig, ContainerMetadata, IdMapping, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption,
    PodSandboxConfig, PodSandboxMetadata, UserNamespace,
};
use k8s_openapi::{
    api::core::v1::{Container, EnvVar, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// What names a pod on the node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PodId {
    /// metadata.namespace.
    pub namespace: String,
    /// metadata.name.
    pub name: String,
    /// metadata.uid.
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

    /// The log of a container's first life.
    pub fn log_file(&self, root: &Path, container: &str) -> PathBuf {
        self.log_of(root, container, 0)
    }

    /// The log of a container that was restarted so often.
    pub fn log_of(&self, root: &Path, container: &str, attempt: u32) -> PathBuf {
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

/// The pod's class of service, which is the name of its cgroup's parent: burstable if anything
/// is requested or limited, else besteffort (the lab has no guaranteed pods).
pub fn qos_class(pod: &Pod) -> &'static str {
    let bounded = |quantities: &Option<BTreeMap<_, _>>| {
        quantities.as_ref().is_some_and(|quantities| !quantities.is_empty())
    };
    let burstable = pod.spec.iter().flat_map(|spec| &spec.containers).any(|container| {
        container
            .resources
            .as_ref()
            .is_some_and(|resources| bounded(&resources.limits) || bounded(&resources.requests))
    });
    if burstable { "burstable" } else { "besteffort" }
}

/// Where a pod's manifest comes from: `file`, or the apiserver (pkg/kubelet/types/pod_update.go).
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The UID of a static pod, on itself and on its mirror.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The pod is the kubelet's own, from a manifest.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE) == Some("file") && annotation(pod, CONFIG_MIRROR).is_none()
}

/// The UID of the static pod whose mirror this object is.
pub fn mirrored(pod: &Pod) -> Option<&str> {
    annotation(pod, CONFIG_MIRROR)
}

/// A manifest as a static pod of this node (config/common.go, `applyDefaults`): its UID is a hash,
/// 32 hex digits without dashes, its name ends in the node's.
pub fn static_pod(manifest: &Pod, node: &str) -> Pod {
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
pub fn mirror(pod: &Pod) -> Pod {
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

/// Annotation: how long it takes from the watch event of the deletion to the first act of stopping, ms, if not
/// [`Config::reaction`](super::Config::reaction).
pub const REACTION_MS: &str = "coroner/reaction-ms";

/// What a pod has for [`REACTION_MS`].
pub(super) fn reaction(pod: &Pod) -> Option<Duration> {
    annotation(pod, REACTION_MS)?.parse().ok().map(Duration::from_millis)
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The sandbox' configuration. `cgroup_parent` is the pod's cgroup as the runtime sees it,
/// `seen` the moment at which the kubelet first saw the pod (RFC 3339), `attempt` the number of
/// sandboxes that this UID had before.
pub fn sandbox(
    pod: &Pod,
    id: &PodId,
    cgroup_parent: &str,
    log_root: &Path,
    seen: &str,
    attempt: u32,
) -> PodSandboxConfig {
    let mut labels = id.labels();
    labels.extend(pod.metadata.labels.clone().unwrap_or_default());
    let mut annotations: HashMap<String, String> =
        pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect();
    annotations.insert("kubernetes.io/config.seen".into(), seen.into());
    annotations.entry(CONFIG_SOURCE.into()).or_insert_with(|| "api".into());
    PodSandboxConfig {
        // A pod on the host's network has the host's (kuberuntime_sandbox.go).
        hostname: if own_network(pod) { id.name.clone() } else { String::new() },
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
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod)),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A container's configuration for its `attempt`th restart. Carries no limits: the hierarchy that
/// runc works on need not have the controllers (see [`super::cgroup`]). `services`: where the
/// apiserver is, which every container is told by its environment (kubelet_pods.go,
/// `getServiceEnvVarMap`). `host_ips`: the node's addresses, as `status.hostIPs` is written out.
pub fn container(
    pod: &Pod,
    id: &PodId,
    container: &Container,
    attempt: u32,
    log_root: &Path,
    services: Option<SocketAddr>,
    host_ips: &str,
) -> ContainerConfig {
    let mut labels = id.labels();
    labels.insert("io.kubernetes.container.name".into(), container.name.clone());
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(ImageSpec {
            image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: container.command.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: container
            .env
            .iter()
            .flatten()
            .map(|var| KeyValue { key: var.name.clone(), value: value_of(var, pod, id, host_ips) })
            .chain(services.into_iter().flat_map(service_environment).filter(|service| {
                // A variable of the pod's own takes precedence (kubelet_pods.go, `makeEnvironmentVariables`).
                !container.env.iter().flatten().any(|own| own.name == service.key)
            }))
            .collect(),
        labels,
        annotations: container_annotations(pod, container, attempt),
        mounts: volumes::mounts(pod, id, container, log_root),
        log_path: format!("{}/{attempt}.log", container.name),
        linux: Some(LinuxContainerConfig {
            security_context: Some(security::context(
                pod.spec.as_ref(),
                container,
                namespaces(pod),
            )),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A variable's own value, or that of the pod's field which it names: of those of the downward API
/// (kubelet_pods.go, `podFieldSelectorRuntimeValue`) the ones that name something.
fn value_of(var: &EnvVar, pod: &Pod, id: &PodId, host_ips: &str) -> String {
    let field = var.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
    let named = match field.map(|field| field.field_path.as_str()) {
        Some("spec.nodeName") => pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        Some("metadata.name") => Some(id.name.clone()),
        Some("metadata.namespace") => Some(id.namespace.clone()),
        Some("metadata.uid") => Some(id.uid.clone()),
        Some("status.hostIPs") => Some(host_ips.to_owned()),
        Some("status.hostIP") => host_ips.split(',').next().map(str::to_owned),
        _ => None,
    };
    named.or_else(|| var.value.clone()).unwrap_or_default()
}

fn service_environment(apiserver: SocketAddr) -> [KeyValue; 2] {
    [
        ("KUBERNETES_SERVICE_HOST", apiserver.ip().to_string()),
        ("KUBERNETES_SERVICE_PORT", apiserver.port().to_string()),
    ]
    .map(|(key, value)| KeyValue { key: key.into(), value })
}

fn container_annotations(
    pod: &Pod,
    container: &Container,
    attempt: u32,
) -> HashMap<String, String> {
    let mut annotations = HashMap::from([
        ("io.kubernetes.container.hash".into(), hash(container)),
        ("io.kubernetes.container.restartCount".into(), attempt.to_string()),
        (
            "io.kubernetes.container.terminationMessagePath".into(),
            container
                .termination_message_path
                .clone()
                .unwrap_or_else(|| "/dev/termination-log".into()),
        ),
        (
            "io.kubernetes.container.terminationMessagePolicy".into(),
            container.termination_message_policy.clone().unwrap_or_else(|| "File".into()),
        ),
    ]);
    if let Some(hook) = container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref())
        && let Ok(json) = serde_json::to_string(hook)
    {
        annotations.insert("io.kubernetes.container.preStopHandler".into(), json);
    }
    if let Some(grace) = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds) {
        annotations.insert("io.kubernetes.pod.terminationGracePeriod".into(), grace.to_string());
    }
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        annotations.insert("io.kubernetes.pod.deletionGracePeriod".into(), grace.to_string());
    }
    annotations
}

/// Eight hex digits that change with the container's name and image, and nothing else: a resize leaves them
/// as they are (container/helpers.go, `pickFieldsToHash`).
fn hash(container: &Container) -> String {
    let fields = serde_json::json!({ "image": container.image, "name": container.name });
    let digest = Sha256::digest(fields.to_string());
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the pod has a network namespace of its own.
pub fn own_network(pod: &Pod) -> bool {
    !asks(pod, |spec| spec.host_network)
}

fn asks(pod: &Pod, of: fn(&PodSpec) -> Option<bool>) -> bool {
    pod.spec.as_ref().and_then(of) == Some(true)
}

/// The network and PID namespaces that the pod asks for (kuberuntime/util, `NetworkNamespaceForPod`
/// and `PidNamespaceForPod`): if it does not say, a network of its own and a PID namespace for each
/// container.
fn namespaces(pod: &Pod) -> NamespaceOption {
    let asks = |of| asks(pod, of);
    let pid = if asks(|spec| spec.host_pid) {
        NamespaceMode::Node
    } else if asks(|spec| spec.share_process_namespace) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    let network = if own_network(pod) { NamespaceMode::Pod } else { NamespaceMode::Node };
    NamespaceOption {
        network: network as i32,
        pid: pid as i32,
        ipc: NamespaceMode::Pod as i32,
        userns_options: own_users(pod).then(|| user_namespace(pod)),
        ..Default::default()
    }
}

/// It asks for users of its own (`hostUsers: false`).
fn own_users(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.host_users == Some(false))
}

/// The IDs of the machine that a pod gets for its own: most likely others than any other's (userns_manager.go keeps
/// a record of them).
fn user_namespace(pod: &Pod) -> UserNamespace {
    const LENGTH: u32 = 1 << 16;
    let digest = Sha256::digest(pod.metadata.uid.as_deref().unwrap_or_default());
    let number = 1 + u32::from(u16::from_le_bytes([digest[0], digest[1]]) >> 1);
    let ids = vec![IdMapping { host_id: number * LENGTH, container_id: 0, length: LENGTH }];
    UserNamespace { mode: NamespaceMode::Pod as i32, uids: ids.clone(), gids: ids }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{
        api::core::v1::{
            EnvVarSource, ExecAction, Lifecycle, LifecycleHandler, ObjectFieldSelector,
            ResourceRequirements,
        },
        apimachinery::pkg::api::resource::Quantity,
    };

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("default".into());
        pod.metadata.name = Some("a".into());
        pod.metadata.uid = Some("781a27b7-3a71-4459-93b7-dfd5122f7c6a".into());
        pod.metadata.labels = Some(BTreeMap::from([("app".into(), "a".into())]));
        pod.spec = Some(PodSpec {
            termination_grace_period_seconds: Some(15),
            containers: vec![Container {
                name: "c".into(),
                lifecycle: Some(Lifecycle {
                    pre_stop: Some(LifecycleHandler {
                        exec: Some(ExecAction {
                            command: Some(vec!["/workload".into(), "sleep".into()]),
                        }),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }],
            ..Default::default()
        });
        pod
    }

    #[test]
    fn the_sandbox_carries_the_labels_that_the_join_needs() {
        let pod = pod();
        let id = PodId::of(&pod).unwrap();
        let config = sandbox(&pod, &id, "/kubepods/pod", Path::new("/logs"), "now", 0);
        assert_eq!(config.labels["io.kubernetes.pod.uid"], id.uid);
        assert_eq!(config.labels["app"], "a");
        assert_eq!(config.annotations["kubernetes.io/config.source"], "api");
        assert_eq!(config.log_directory, format!("/logs/default_a_{}", id.uid));
        assert_eq!(config.linux.unwrap().cgroup_parent, "/kubepods/pod");
    }

    #[test]
    fn a_network_is_the_pod_s_own_unless_it_asks_for_the_host_s() {
        let mut pod = pod();
        let id = PodId::of(&pod).unwrap();
        let asked = |pod: &Pod| {
            let config = sandbox(pod, &id, "/kubepods/pod", Path::new("/logs"), "now", 0);
            let context = config.linux.unwrap().security_context.unwrap();
            (context.namespace_options.unwrap().network(), config.hostname)
        };
        assert_eq!(asked(&pod), (NamespaceMode::Pod, "a".into()));
        pod.spec.as_mut().unwrap().host_network = Some(true);
        assert_eq!(asked(&pod), (NamespaceMode::Node, String::new()));
    }

    /// The keys of recordings/k1.33-containerd1.7/prestop-then-handled.
    #[test]
    fn the_container_is_annotated_like_the_real_ones() {
        let pod = pod();
        let id = PodId::of(&pod).unwrap();
        let config = container(
            &pod,
            &id,
            &pod.spec.as_ref().unwrap().containers[0],
            0,
            Path::new("/l"),
            None,
            "",
        );
        let mut keys: Vec<_> = config.annotations.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "io.kubernetes.container.hash",
                "io.kubernetes.container.preStopHandler",
                "io.kubernetes.container.restartCount",
                "io.kubernetes.container.terminationMessagePath",
                "io.kubernetes.container.terminationMessagePolicy",
                "io.kubernetes.pod.terminationGracePeriod",
            ]
        );
        assert_eq!(
            config.annotations["io.kubernetes.container.preStopHandler"],
            r#"{"exec":{"command":["/workload","sleep"]}}"#
        );
        assert_eq!(config.annotations["io.kubernetes.container.hash"].len(), 8);
        assert_eq!(config.labels["io.kubernetes.container.name"], "c");
        assert!(config.linux.unwrap().resources.is_none(), "no limits are sent to runc");
    }

    #[test]
    fn the_pod_chooses_its_pid_namespace() {
        let mode = |host: bool, shared: bool| {
            let mut pod = pod();
            let spec = pod.spec.as_mut().unwrap();
            (spec.host_pid, spec.share_process_namespace) = (Some(host), Some(shared));
            NamespaceMode::try_from(namespaces(&pod).pid).unwrap()
        };
        assert_eq!(namespaces(&pod()).pid, NamespaceMode::Container as i32);
        assert_eq!(mode(false, false), NamespaceMode::Container);
        assert_eq!(mode(true, false), NamespaceMode::Node);
        assert_eq!(mode(false, true), NamespaceMode::Pod);
    }

    #[test]
    fn a_limit_makes_a_pod_burstable() {
        let mut pod = pod();
        assert_eq!(qos_class(&pod), "besteffort");
        pod.spec.as_mut().unwrap().containers[0].resources = Some(ResourceRequirements {
            limits: Some(BTreeMap::from([("memory".into(), Quantity("32Mi".into()))])),
            ..Default::default()
        });
        assert_eq!(qos_class(&pod), "burstable");
    }

    #[test]
    fn a_later_life_has_a_log_of_its_own_and_knows_its_number_and_the_apiserver() {
        let pod = pod();
        let id = PodId::of(&pod).unwrap();
        let address = "127.0.0.1:6443".parse().unwrap();
        let of_spec = &pod.spec.as_ref().unwrap().containers[0];
        let config = container(&pod, &id, of_spec, 2, Path::new("/l"), Some(address), "");
        assert_eq!(config.metadata.unwrap().attempt, 2);
        assert_eq!(config.log_path, "c/2.log");
        assert_eq!(config.annotations["io.kubernetes.container.restartCount"], "2");
        let environment: Vec<_> =
            config.envs.iter().map(|e| format!("{}={}", e.key, e.value)).collect();
        assert_eq!(
            environment,
            ["KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=6443"]
        );
    }

    #[test]
    fn a_variable_may_name_a_field_of_the_pod() {
        let mut pod = pod();
        pod.spec.as_mut().unwrap().node_name = Some("n1".into());
        let id = PodId::of(&pod).unwrap();
        let of = |field: &str| {
            let selector = ObjectFieldSelector { field_path: field.into(), ..Default::default() };
            let from = EnvVarSource { field_ref: Some(selector), ..Default::default() };
            let var = EnvVar { value_from: Some(from), ..Default::default() };
            value_of(&var, &pod, &id, "10.0.0.1,fd00::1")
        };
        assert_eq!((of("spec.nodeName"), of("metadata.uid")), ("n1".into(), id.uid.clone()));
        let ips = ("10.0.0.1".into(), "10.0.0.1,fd00::1".into());
        assert_eq!((of("status.hostIP"), of("status.hostIPs")), ips);
        assert_eq!(of("status.podIP"), "", "not known before its sandbox");
    }

    /// As in recordings/k1.33-containerd1.7/static-and-mirror.
    #[test]
    fn the_hash_changes_with_the_image_but_not_with_the_resources() {
        let before = Container { image: Some("a".into()), ..Default::default() };
        let limits = Some(BTreeMap::from([("cpu".into(), Quantity("1".into()))]));
        let resources = Some(ResourceRequirements { limits, ..Default::default() });
        assert_eq!(hash(&before), hash(&Container { resources, ..before.clone() }));
        assert_ne!(hash(&before), hash(&Container { image: Some("b".into()), ..before.clone() }));
    }

    #[test]
    fn a_static_pod_and_its_mirror_are_joined_by_the_hash() {
        let own = static_pod(&pod(), "node");
        let uid = own.metadata.uid.clone().unwrap();
        assert_eq!((uid.len(), own.metadata.name.as_deref()), (32, Some("a-node")));
        assert!(uid.chars().all(|c| c.is_ascii_hexdigit()));
        assert!(is_static(&own) && mirrored(&own).is_none());
        let mirror = mirror(&own);
        assert_eq!((mirrored(&mirror), mirror.metadata.uid.as_ref()), (Some(uid.as_str()), None));
        assert!(!is_static(&mirror) && !is_static(&pod()));
        assert_eq!(static_pod(&pod(), "node").metadata.uid, Some(uid), "the same manifest again");
    }
}
