//! k8s-openapi's Pod and Node → what the core knows. Pure.

use crate::sources::spec::{binary_name, exec_hook, signal_number};
use coroner_core::{
    ids::{ContainerId, PodUid},
    input::{
        ApiContainer, ApiNode, ApiPod, ApiProbe, ApiTerminated, ContainerKind, Hook, Workload,
    },
    time::WallTime,
};
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateTerminated, ContainerStatus, Lifecycle,
        LifecycleHandler, Node, Pod, Probe,
    },
    apimachinery::pkg::api::resource::Quantity,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    sync::LazyLock,
};

/// Written by the kubelet on a static pod's mirror: pkg/kubelet/types/pod_update.go.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
/// The label by which the pods of one revision of a Deployment are told from others
/// (`apps.DefaultDeploymentUniqueLabelKey`, pkg/apis/apps).
pub(super) const TEMPLATE_HASH: &str = "pod-template-hash";

/// Whether a pod has a sandbox that is ready: on by default since 1.29, and PodHasNetwork to 1.27 (kubelet/types/constants.go,
/// the API's types.go).
const SANDBOX_CONDITIONS: [&str; 2] = ["PodReadyToStartContainers", "PodHasNetwork"];

/// A pod; `None` if it has no uid, namespace or name, so that nothing can be joined to it.
pub fn pod(pod: &Pod) -> Option<ApiPod> {
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let uid = filled(metadata.uid.as_ref())?;
    let namespace = filled(metadata.namespace.as_ref())?;
    let name = filled(metadata.name.as_ref())?;
    let conditions = || status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let condition = |kind: &str| conditions().find(|one| one.type_ == kind && one.status == "True");
    let sandbox = conditions().find(|one| SANDBOX_CONDITIONS.contains(&one.type_.as_str()));
    let disruption = condition("DisruptionTarget");
    Some(ApiPod {
        uid,
        namespace,
        name,
        mirror_of: mirror_of(metadata),
        deletion_timestamp: metadata.deletion_timestamp.as_ref().map(wall),
        deletion_grace_seconds: metadata.deletion_grace_period_seconds,
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        grace_seconds: spec.and_then(|spec| spec.termination_grace_period_seconds),
        restart_policy: spec
            .and_then(|spec| spec.restart_policy.as_deref())
            .unwrap_or_default()
            .into(),
        phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
        reason: status.and_then(|status| status.reason.clone()).unwrap_or_default(),
        message: beginning(status.and_then(|status| status.message.as_ref())),
        disruption: disruption.map(|one| one.reason.clone().unwrap_or_default()),
        disruption_message: beginning(disruption.and_then(|one| one.message.as_ref())),
        resizes: condition("PodResizeInProgress").is_some()
            || status.is_some_and(|status| status.resize.as_deref() == Some("InProgress")),
        sandbox_ready: sandbox.map(|one| one.status == "True"),
        workload: workload(metadata),
        containers: containers(pod),
    })
}

/// The controller of a pod; of a ReplicaSet that a Deployment made, the Deployment
/// (`NewRSNameFromDeployment`: its name and the hash); of a CronJob's run, the CronJob. A mirror pod's is no workload.
fn workload(metadata: &ObjectMeta) -> Option<Box<Workload>> {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let owner =
        owners.iter().find(|owner| owner.controller == Some(true) && owner.kind != "Node")?;
    let hash = metadata.labels.as_ref().and_then(|all| all.get(TEMPLATE_HASH));
    let deployment = || owner.name.strip_suffix(hash?)?.strip_suffix('-');
    let (kind, name) = match owner.kind.as_str() {
        "ReplicaSet" => {
            deployment().map_or(("ReplicaSet", owner.name.as_str()), |name| ("Deployment", name))
        }
        "Job" => {
            let created = metadata.creation_timestamp.as_ref().map(wall);
            cron_job(&owner.name, created).map_or(("Job", &*owner.name), |name| ("CronJob", name))
        }
        kind => (kind, owner.name.as_str()),
    };
    Some(Box::new(Workload { kind: kind.into(), name: name.into() }))
}

/// The CronJob of a Job: its name, and the minutes since the epoch for which the run was scheduled (`getJobName` in
/// cronjob_controllerv2.go), in the week before the pod was created, by two machines' clocks. Other numbers are part of a Job's own name.
fn cron_job(job: &str, created: Option<WallTime>) -> Option<&str> {
    let (name, minutes) = job.rsplit_once('-')?;
    let scheduled = minutes.parse::<i64>().ok()?.checked_mul(60)?;
    let since = created?.0 / 1_000_000_000 - scheduled;
    (-30..=7 * 86_400).contains(&since).then_some(name)
}

/// The UID of the static pod whose mirror this is. The node owns a mirror, which the kubelet and
/// admission (NodeRestriction) see to (pkg/kubelet/pod/mirror_client.go): the annotation alone is
/// anybody's, who could make it the UID of another's pod.
fn mirror_of(metadata: &ObjectMeta) -> Option<PodUid> {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let uid = metadata.annotations.as_ref().and_then(|all| all.get(MIRROR));
    let is_node = |owner: &OwnerReference| owner.kind == "Node" && owner.api_version == "v1";
    owners.iter().any(is_node).then(|| filled(uid).map(PodUid::new)).flatten()
}

/// A node; `None` if it does not say which boot of which machine it is: no kubelet has reported
/// for it yet.
pub fn node(node: &Node) -> Option<ApiNode> {
    let status = node.status.as_ref()?;
    let info = status.node_info.as_ref()?;
    let ready = status.conditions.iter().flatten().find(|one| one.type_ == "Ready");
    Some(ApiNode {
        boot_id: filled(Some(&info.boot_id))?,
        kubelet_version: info.kubelet_version.clone(),
        ready: ready.and_then(|ready| match ready.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }),
    })
}

fn containers(pod: &Pod) -> BTreeMap<String, ApiContainer> {
    let mut all = BTreeMap::new();
    if let Some(spec) = &pod.spec {
        for container in &spec.containers {
            all.insert(container.name.clone(), probed(ContainerKind::Main, container));
        }
        for container in spec.init_containers.iter().flatten() {
            let kind = match container.restart_policy.as_deref() {
                Some("Always") => ContainerKind::Sidecar,
                _ => ContainerKind::Init,
            };
            all.insert(container.name.clone(), probed(kind, container));
        }
        for container in spec.ephemeral_containers.iter().flatten() {
            let one = specified(ContainerKind::Ephemeral, container.lifecycle.as_ref());
            all.insert(container.name.clone(), one);
        }
    }
    if let Some(status) = &pod.status {
        let of_kind = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ];
        for status in of_kind.into_iter().flatten().flatten() {
            // Only what the spec names: the kind of anything else is unknown.
            if let Some(container) = all.get_mut(&status.name) {
                add_status(container, status);
            }
        }
    }
    all
}

fn probed(kind: ContainerKind, container: &Container) -> ApiContainer {
    ApiContainer {
        liveness: container.liveness_probe.as_ref().map(probe),
        startup: container.startup_probe.as_ref().map(probe),
        image: hash(&container.image),
        resources: hash(&resources(container)),
        // With rules of its own it may be restarted.
        restart_policy: match &container.restart_policy_rules {
            Some(rules) if !rules.is_empty() => "Always".into(),
            _ => container.restart_policy.clone().unwrap_or_default(),
        },
        ..specified(kind, container.lifecycle.as_ref())
    }
}

/// A probe; of an exec probe the binary's file name only.
fn probe(probe: &Probe) -> ApiProbe {
    let command = probe.exec.as_ref().and_then(|exec| exec.command.as_ref()?.first());
    ApiProbe {
        exec: command.map(|command| binary_name(command)).filter(|name| !name.is_empty()),
        grace_seconds: probe.termination_grace_period_seconds,
        failures: probe.failure_threshold.and_then(|n| u32::try_from(n).ok()).unwrap_or(3).max(1),
    }
}

/// The beginnings of the kubelet's messages about pods that it ends (eviction_manager.go and helpers.go,
/// preemption.go, nodeshutdown_manager.go). The rest of a message, and any other message, may contain names.
const MESSAGES: [&str; 7] = [
    "The node was low on resource",
    "Usage of EmptyDir volume",
    "Pod ephemeral local storage usage exceeds",
    "Container ",
    "Preempted in order to admit critical pod",
    "Pod was preempted by Kubelet",
    "Pod was terminated in response to",
];

/// What a message of the kubelet's begins with, and nothing that may be somebody's.
fn beginning(message: Option<&String>) -> String {
    let known = MESSAGES.iter().find(|known| message.is_some_and(|text| text.starts_with(**known)));
    known.map(|known| (*known).to_owned()).unwrap_or_default()
}

/// Whether it changed is all that matters: the key is random, so that nobody can guess it from a recording.
/// 0: there is none.
fn hash(of: &Option<String>) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    of.as_ref().map_or(0, |of| KEY.hash_one(of))
}

/// Requests and limits that need a restart to be resized, as a text that differs where they differ.
fn resources(container: &Container) -> Option<String> {
    let policies = container.resize_policy.iter().flatten();
    let restarts = policies.filter(|one| one.restart_policy == "RestartContainer");
    let names: Vec<&str> = restarts.map(|one| one.resource_name.as_str()).collect();
    let all = container.resources.as_ref().filter(|_| !names.is_empty())?;
    let of = |kind, list: &Option<BTreeMap<String, Quantity>>| {
        let list = list.iter().flatten().filter(|(name, _)| names.contains(&name.as_str()));
        list.map(|(name, quantity)| format!("{kind}.{name}={}", quantity.0)).collect::<Vec<_>>()
    };
    Some([of("requests", &all.requests), of("limits", &all.limits)].concat().join(" "))
}

fn specified(kind: ContainerKind, lifecycle: Option<&Lifecycle>) -> ApiContainer {
    ApiContainer {
        kind,
        pre_stop: lifecycle.and_then(|all| all.pre_stop.as_ref()).and_then(hook),
        post_start: lifecycle.and_then(|all| all.post_start.as_ref()).and_then(hook),
        stop_signal: lifecycle
            .and_then(|all| all.stop_signal.as_ref())
            .and_then(|name| signal_number(name)),
        ..ApiContainer::default()
    }
}

fn add_status(container: &mut ApiContainer, status: &ContainerStatus) {
    container.started = status.started;
    container.restarts = u32::try_from(status.restart_count).unwrap_or(0);
    container.id = container_id(status.container_id.as_ref());
    container.waiting = status
        .state
        .as_ref()
        .and_then(|state| Some(state.waiting.as_ref()?.reason.clone().unwrap_or_default()));
    let ended =
        |state: &Option<ContainerState>| state.as_ref()?.terminated.as_ref().map(terminated);
    // Where the kubelet made a state up it left the id out: its own state is of the present container.
    let now = ended(&status.state)
        .map(|end| ApiTerminated { id: end.id.or_else(|| container.id.clone()), ..end });
    container.terminated = now.into_iter().chain(ended(&status.last_state)).collect();
}

fn terminated(state: &ContainerStateTerminated) -> ApiTerminated {
    ApiTerminated {
        id: container_id(state.container_id.as_ref()),
        exit_code: state.exit_code,
        reason: state.reason.clone().unwrap_or_default(),
        finished: state.finished_at.as_ref().map(wall),
    }
}

/// A hook, reduced to its kind and, for exec, the binary's file name.
fn hook(handler: &LifecycleHandler) -> Option<Hook> {
    if let Some(exec) = &handler.exec {
        return exec.command.as_ref()?.first().map(|command| exec_hook(command));
    }
    if handler.http_get.is_some() {
        return Some(Hook::HttpGet);
    }
    if handler.tcp_socket.is_some() {
        return Some(Hook::TcpSocket);
    }
    handler.sleep.as_ref().map(|sleep| Hook::Sleep(sleep.seconds))
}

/// The id in `containerd://id`; an empty one is how the API says that there is none.
fn container_id(text: Option<&String>) -> Option<ContainerId> {
    let text = text?;
    let id = text.split_once("://").map_or(text.as_str(), |(_, id)| id);
    (!id.is_empty()).then(|| ContainerId::new(id))
}

fn filled(text: Option<&String>) -> Option<String> {
    text.filter(|text| !text.is_empty()).cloned()
}

fn wall(time: &Time) -> WallTime {
    let ns = time.0.as_nanosecond();
    // i64 holds until 2262.
    WallTime(i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn converted(value: Value) -> Option<ApiPod> {
        pod(&serde_json::from_value(value).expect("a pod"))
    }

    #[test]
    fn a_pod() {
        let full = converted(json!({
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u1",
                "annotations": { "kubernetes.io/config.mirror": "5d41402abc4b2a76b9719d911017c592" },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n" }],
                "deletionTimestamp": "1970-01-01T00:01:40Z",
                "deletionGracePeriodSeconds": 30,
                "finalizers": ["example.com/hold"],
            },
            "spec": {
                "restartPolicy": "Always", "terminationGracePeriodSeconds": 60,
                "containers": [{ "name": "app", "image": "i:1",
                    "resources": { "limits": { "memory": "1Gi" }, "requests": { "cpu": "100m" } },
                    "resizePolicy": [
                        { "resourceName": "cpu", "restartPolicy": "NotRequired" },
                        { "resourceName": "memory", "restartPolicy": "RestartContainer" }],
                    "livenessProbe": { "terminationGracePeriodSeconds": 3,
                        "exec": { "command": ["/bin/check --token=secret", "--secret"] } },
                    "lifecycle": { "stopSignal": "SIGRTMIN+3",
                    "postStart": { "exec": { "command": ["/bin/warm", "--token=secret"] } },
                    "preStop": { "exec": { "command": ["/bin/drain", "--token=secret"] } } } }],
                "initContainers": [
                    { "name": "setup" },
                    { "name": "proxy", "restartPolicy": "Always", "startupProbe": {} }],
                "ephemeralContainers": [{ "name": "debug" }],
            },
            "status": {
                "phase": "Running", "reason": "Terminated",
                "message": "Usage of EmptyDir volume \"secret\" exceeds the limit \"1Mi\". ",
                "conditions": [
                    { "type": "PodReadyToStartContainers", "status": "False" },
                    { "type": "PodResizeInProgress", "status": "True" },
                    { "type": "Ready", "status": "True", "reason": "No" },
                    { "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                      "message": "Eviction API: evicting" }],
                "containerStatuses": [{
                    "name": "app", "image": "i", "imageID": "", "ready": false, "restartCount": 2,
                    "started": true, "containerID": "containerd://c3",
                    "state": { "terminated": { "exitCode": 137, "reason": "Error",
                        "containerID": "containerd://c3", "finishedAt": "1970-01-01T00:00:09Z" } },
                    "lastState": { "terminated": { "exitCode": 255 } } }],
            },
        }));
        let bare = |kind| ApiContainer { kind, ..ApiContainer::default() };
        let app = ApiContainer {
            kind: ContainerKind::Main,
            pre_stop: Some(Hook::Exec("drain".into())),
            post_start: Some(Hook::Exec("warm".into())),
            stop_signal: Some(37),
            liveness: Some(ApiProbe {
                exec: Some("check".into()),
                grace_seconds: Some(3),
                failures: 3,
            }),
            startup: None,
            image: hash(&Some("i:1".into())),
            resources: hash(&Some("limits.memory=1Gi".into())),
            restart_policy: String::new(),
            waiting: None,
            started: Some(true),
            restarts: 2,
            id: Some("c3".into()),
            terminated: vec![
                ApiTerminated {
                    id: Some("c3".into()),
                    exit_code: 137,
                    reason: "Error".into(),
                    finished: Some(WallTime::from_secs(9)),
                },
                // The kubelet made this one up: it never saw the container's end.
                ApiTerminated { id: None, exit_code: 255, reason: String::new(), finished: None },
            ],
        };
        let expected = ApiPod {
            uid: "u1".into(),
            namespace: "shop".into(),
            name: "web-0".into(),
            mirror_of: Some("5d41402abc4b2a76b9719d911017c592".into()),
            deletion_timestamp: Some(WallTime::from_secs(100)),
            deletion_grace_seconds: Some(30),
            finalizers: vec!["example.com/hold".into()],
            grace_seconds: Some(60),
            restart_policy: "Always".into(),
            phase: "Running".into(),
            reason: "Terminated".into(),
            message: "Usage of EmptyDir volume".into(),
            disruption: Some("EvictionByEvictionAPI".into()),
            disruption_message: String::new(),
            resizes: true,
            sandbox_ready: Some(false),
            workload: None,
            containers: BTreeMap::from([
                ("app".to_owned(), app),
                ("setup".to_owned(), bare(ContainerKind::Init)),
                (
                    "proxy".to_owned(),
                    ApiContainer {
                        startup: Some(ApiProbe { failures: 3, ..ApiProbe::default() }),
                        restart_policy: "Always".into(),
                        ..bare(ContainerKind::Sidecar)
                    },
                ),
                ("debug".to_owned(), bare(ContainerKind::Ephemeral)),
            ]),
        };
        assert_eq!(full, Some(expected));
    }

    #[test]
    fn a_pod_that_nothing_can_be_joined_to() {
        let whole = json!({ "name": "web-0", "namespace": "shop", "uid": "u1" });
        assert!(converted(json!({ "metadata": whole })).is_some());
        for key in ["name", "namespace", "uid"] {
            let mut empty = whole.clone();
            empty[key] = json!("");
            assert_eq!(converted(json!({ "metadata": empty })), None, "empty {key}");
            let mut missing = whole.clone();
            missing.as_object_mut().unwrap().remove(key);
            assert_eq!(converted(json!({ "metadata": missing })), None, "no {key}");
        }
    }

    #[test]
    fn nobody_but_the_node_has_mirrors() {
        for owners in [
            json!(null),
            json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r" }]),
            json!([{ "apiVersion": "example.com/v1", "kind": "Node", "name": "n1", "uid": "n" }]),
        ] {
            let pod = converted(json!({ "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u1",
                "annotations": { "kubernetes.io/config.mirror": "u2" }, "ownerReferences": owners,
            } }));
            assert_eq!(pod.unwrap().mirror_of, None, "{owners}");
        }
    }

    #[test]
    fn a_pod_is_of_its_controllers_workload() {
        let owned = |kind: &str, name: &str, controller: bool, labels: Value| {
            let owner = json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": "r", "controller": controller });
            let metadata = json!({
                "name": "web-0", "namespace": "shop", "uid": "u1", "labels": labels, "ownerReferences": [owner],
                "creationTimestamp": "2026-11-28T01:00:07Z",
            });
            let workload = converted(json!({ "metadata": metadata })).unwrap().workload;
            workload.map(|workload| format!("{}/{}", workload.kind, workload.name))
        };
        let hash = || json!({ "pod-template-hash": "6d4cf56db6" });
        let told = |kind, name, labels| owned(kind, name, true, labels).unwrap();
        assert_eq!(told("ReplicaSet", "web-6d4cf56db6", hash()), "Deployment/web");
        assert_eq!(told("ReplicaSet", "web", hash()), "ReplicaSet/web", "nobody's");
        assert_eq!(told("ReplicaSet", "web-1", json!({})), "ReplicaSet/web-1");
        assert_eq!(told("StatefulSet", "db", json!({})), "StatefulSet/db");
        assert_eq!(told("Job", "backup-29930460", json!({})), "CronJob/backup");
        assert_eq!(told("Job", "backup-29930461", json!({})), "Job/backup-29930461", "after it");
        assert_eq!(told("Job", "migrate-20261128", json!({})), "Job/migrate-20261128", "a date");
        assert_eq!(owned("StatefulSet", "db", false, json!({})), None);
        assert_eq!(owned("Node", "n1", true, json!({})), None);
    }

    #[test]
    fn nodes() {
        let converted = |status: Value| {
            let value = json!({ "metadata": { "name": "n1" }, "status": status });
            node(&serde_json::from_value(value).expect("a node"))
        };
        let info = json!({ "bootID": "b1", "kubeletVersion": "v1.33.4" });
        for (conditions, ready) in [
            (json!([{ "type": "DiskPressure", "status": "True" }]), None),
            (json!([{ "type": "Ready", "status": "Unknown" }]), None),
            (json!([{ "type": "Ready", "status": "False" }]), Some(false)),
            (
                json!([{ "type": "X", "status": "False" }, { "type": "Ready", "status": "True" }]),
                Some(true),
            ),
        ] {
            let expected =
                ApiNode { boot_id: "b1".into(), kubelet_version: "v1.33.4".into(), ready };
            let status = json!({ "nodeInfo": info, "conditions": conditions });
            assert_eq!(converted(status), Some(expected), "{conditions}");
        }
        for status in [json!({}), json!({ "nodeInfo": { "kubeletVersion": "v1.33.4" } })] {
            assert_eq!(converted(status.clone()), None, "{status}");
        }
    }

    #[test]
    fn disruption_counts_only_while_true() {
        for (conditions, expected) in [
            (json!([]), None),
            (json!([{ "type": "DisruptionTarget", "status": "False", "reason": "X" }]), None),
            (json!([{ "type": "DisruptionTarget", "status": "Unknown", "reason": "X" }]), None),
            (json!([{ "type": "Ready", "status": "True", "reason": "X" }]), None),
            (
                json!([{ "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC" }]),
                Some("DeletionByPodGC"),
            ),
            (json!([{ "type": "DisruptionTarget", "status": "True" }]), Some("")),
        ] {
            let pod = converted(json!({
                "metadata": { "name": "web-0", "namespace": "shop", "uid": "u1" },
                "status": { "conditions": conditions },
            }));
            assert_eq!(pod.unwrap().disruption.as_deref(), expected, "{conditions}");
        }
    }

    #[test]
    fn hooks() {
        for (json, expected) in [
            (json!({ "exec": { "command": ["sh", "-c", "x"] } }), Some(Hook::Exec("sh".into()))),
            (json!({ "exec": { "command": [] } }), None),
            (json!({ "exec": {} }), None),
            (json!({ "httpGet": { "port": 80 } }), Some(Hook::HttpGet)),
            (json!({ "tcpSocket": { "port": "web" } }), Some(Hook::TcpSocket)),
            (json!({ "sleep": { "seconds": 5 } }), Some(Hook::Sleep(5))),
            (json!({}), None),
        ] {
            let handler: LifecycleHandler = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(hook(&handler), expected, "{json}");
        }
    }

    #[test]
    fn container_ids() {
        for (text, expected) in [
            ("containerd://abc", Some("abc")),
            ("cri-o://abc", Some("abc")),
            ("abc", Some("abc")),
            ("containerd://", None),
            ("", None),
        ] {
            let id = container_id(Some(&text.to_owned()));
            assert_eq!(id, expected.map(ContainerId::from), "{text:?}");
        }
        assert_eq!(container_id(None), None);
    }
}
