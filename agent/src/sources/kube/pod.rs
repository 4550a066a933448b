//! What is read of a pod or node, how much of it is kept, and what the core gets of it. The limits are far above what a sound
//! object has; docs/security.md has them in a table, with the memory that follows.

use super::decode::{Few, Lenient, Text, UNCOUNTED};
use crate::sources::{
    cut::{Cut, Cuts},
    spec::{binary_name, exec_hook, signal_number},
};
use coroner_core::{
    ids::{ContainerId, PodUid},
    input::{
        ApiContainer, ApiNode, ApiPod, ApiProbe, ApiTerminated, ContainerKind, Hook, Workload,
    },
    time::WallTime,
};
use serde::{Deserialize, Deserializer, de::Error};
use std::{collections::BTreeMap, mem::size_of};

/// Pods that are kept. The kubelet runs 110 of them unless told otherwise; anybody who may create pods may bind any number of
/// them to this node (`spec.nodeName`): the kubelet refuses them, and their objects stay.
pub(super) const MAX_PODS: usize = 1_024;
/// What is kept of one pod, bytes.
const MAX_POD: usize = 16 << 10;
/// One finalizer is enough to say that the object is held.
const MAX_FINALIZERS: usize = 16;
const MAX_CONTAINERS: usize = 256;
const MAX_CONDITIONS: usize = 64;
const MAX_OWNERS: usize = 8;

const WORD: usize = 64;
const NAME: usize = 320; // what the apiserver allows (RFC 1123), and a prefix
const PHRASE: usize = 256;

type Word = Lenient<Text<WORD>>;
type Name = Lenient<Text<NAME>>;
type Phrase = Lenient<Text<PHRASE>>;
/// Only a known beginning matters.
type Head<const MAX: usize = 64> = Lenient<Text<MAX, false>>;
type Containers<T> = Lenient<Few<T, MAX_CONTAINERS, { Cut::Containers as usize }>>;
type Conditions = Lenient<Few<Condition, MAX_CONDITIONS, { Cut::Conditions as usize }>>;

/// A pod, or the Status that a watch has in the place of one, or a bookmark, which has nothing but a resourceVersion.
#[derive(Default, Deserialize)]
pub struct Pod {
    pub(super) metadata: Lenient<Metadata>,
    spec: Lenient<Spec>,
    status: Lenient<PodStatus>,
    pub(super) code: Lenient<u16>,
    pub(super) reason: Head,
    pub(super) message: Head<512>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    uid: Word,
    namespace: Word,
    name: Name,
    pub(super) resource_version: Word,
    annotations: Lenient<Annotations>,
    labels: Lenient<Labels>,
    owner_references: Lenient<Few<Owner, MAX_OWNERS, { Cut::Owners as usize }>>,
    creation_timestamp: Lenient<Moment>,
    deletion_timestamp: Lenient<Moment>,
    deletion_grace_period_seconds: Lenient<i64>,
    finalizers: Lenient<Few<Text<NAME>, MAX_FINALIZERS, { Cut::Finalizers as usize }>>,
}

#[derive(Deserialize)]
struct Annotations {
    /// Written by the kubelet on a static pod's mirror: pkg/kubelet/types/pod_update.go.
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Word,
}

#[derive(Deserialize)]
struct Labels {
    /// Which revision of a Deployment (`apps.DefaultDeploymentUniqueLabelKey`, pkg/apis/apps).
    #[serde(rename = "pod-template-hash")]
    template_hash: Word,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Owner {
    api_version: Head,
    kind: Head,
    name: Name,
    controller: Lenient<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    termination_grace_period_seconds: Lenient<i64>,
    restart_policy: Word,
    containers: Containers<Container>,
    init_containers: Containers<Container>,
    ephemeral_containers: Containers<Container>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: Word,
    restart_policy: Word,
    restart_policy_rules: Lenient<Few<Present, 1, UNCOUNTED>>,
    lifecycle: Lenient<Lifecycle>,
    liveness_probe: Lenient<Probe>,
    startup_probe: Lenient<Probe>,
    readiness_probe: Lenient<Probe>,
}

/// An object of which only the presence matters.
#[derive(Deserialize)]
struct Present {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Lifecycle {
    pre_stop: Lenient<Handler>,
    post_start: Lenient<Handler>,
    stop_signal: Word,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Handler {
    exec: Lenient<Exec>,
    http_get: Lenient<Present>,
    tcp_socket: Lenient<Present>,
    sleep: Lenient<Sleep>,
}

/// The binary, and none of its arguments.
#[derive(Deserialize)]
struct Exec {
    command: Lenient<Few<Text<PHRASE>, 1, UNCOUNTED>>,
}

#[derive(Deserialize)]
struct Sleep {
    seconds: Lenient<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Probe {
    exec: Lenient<Exec>,
    termination_grace_period_seconds: Lenient<i64>,
    failure_threshold: Lenient<i32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    phase: Word,
    reason: Phrase,
    message: Head,
    conditions: Conditions,
    container_statuses: Containers<ContainerStatus>,
    init_container_statuses: Containers<ContainerStatus>,
    ephemeral_container_statuses: Containers<ContainerStatus>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: Head,
    status: Head,
    reason: Phrase,
    message: Head,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    name: Word,
    ready: Lenient<bool>,
    started: Lenient<bool>,
    restart_count: Lenient<i32>,
    #[serde(rename = "containerID")]
    container_id: Phrase,
    state: Lenient<State>,
    last_state: Lenient<State>,
}

#[derive(Deserialize)]
struct State {
    waiting: Lenient<StateDetail>,
    terminated: Lenient<StateDetail>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateDetail {
    #[serde(rename = "containerID")]
    container_id: Phrase,
    exit_code: Lenient<i32>,
    reason: Phrase,
}

#[derive(Deserialize)]
pub(super) struct Node {
    status: Lenient<NodeStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    node_info: Lenient<NodeInfo>,
    conditions: Conditions,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfo {
    #[serde(rename = "bootID")]
    boot_id: Word,
    kubelet_version: Word,
}

/// A time. One that cannot be (Go's zero time, which is in the year 1, or any other before 1970) is not known.
struct Moment(Option<WallTime>);

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::<WORD>::deserialize(deserializer)?;
        let time: jiff::Timestamp = text.parse().map_err(D::Error::custom)?;
        // i64 holds until 2262.
        let ns = i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX);
        Ok(Self((time.as_nanosecond() > 0).then_some(WallTime(ns))))
    }
}

impl Lenient<Moment> {
    fn time(&self) -> Option<WallTime> {
        self.as_ref()?.0
    }
}

/// A pod; `None` if it has no uid, namespace or name, so that nothing can be joined to it.
pub fn pod(pod: &Pod) -> Option<ApiPod> {
    let metadata = pod.metadata.as_ref()?;
    let (no_spec, no_status) = (Spec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let is_disruption =
        |one: &&Condition| one.r#type.text() == "DisruptionTarget" && one.status.text() == "True";
    let disruption = status.conditions.all().find(is_disruption);
    Some(ApiPod {
        uid: metadata.uid.filled()?.into(),
        namespace: metadata.namespace.filled()?.into(),
        name: metadata.name.filled()?.into(),
        mirror_of: mirror_of(metadata),
        deletion_timestamp: metadata.deletion_timestamp.time(),
        deletion_grace_seconds: *metadata.deletion_grace_period_seconds,
        finalizers: metadata.finalizers.all().map(|one| one.to_string()).collect(),
        grace_seconds: *spec.termination_grace_period_seconds,
        restart_policy: spec.restart_policy.text().into(),
        phase: status.phase.text().into(),
        reason: status.reason.text().into(),
        message: beginning(status.message.text()),
        disruption: disruption.map(|one| one.reason.text().into()),
        disruption_message: beginning(disruption.map_or("", |one| one.message.text())),
        workload: workload(metadata),
        containers: containers(spec, status),
    })
}

/// Cuts a pod to [`MAX_POD`], containers last.
pub(super) fn fit(pod: &mut ApiPod, cuts: &Cuts) {
    if weight(pod) <= MAX_POD {
        return;
    }
    let (finalizers, containers) = (pod.finalizers.len(), pod.containers.len());
    pod.finalizers.truncate(1);
    while weight(pod) > MAX_POD && pod.containers.pop_last().is_some() {}
    cuts.add(Cut::Finalizers, (finalizers - pod.finalizers.len()) as u64);
    cuts.add(Cut::Containers, (containers - pod.containers.len()) as u64);
}

/// The bytes that a pod takes, as far as they are its own choice.
fn weight(pod: &ApiPod) -> usize {
    let id = |id: &Option<ContainerId>| id.as_ref().map_or(0, |id| id.as_str().len());
    let container = |(name, one): (&String, &ApiContainer)| {
        let hooks = [&one.pre_stop, &one.post_start].into_iter().flatten().map(|hook| match hook {
            Hook::Exec(binary) => binary.len(),
            _ => 0,
        });
        let probes = [&one.liveness, &one.startup].into_iter().flatten();
        let probes = probes.filter_map(|probe| probe.exec.as_deref()).map(str::len);
        let ends = one.terminated.iter();
        let ends = ends.map(|end| size_of_val(end) + end.reason.len() + id(&end.id));
        // A leaf of the map may be half empty.
        2 * size_of::<(String, ApiContainer)>()
            + name.len()
            + one.restart_policy.len()
            + one.waiting.as_deref().map_or(0, str::len)
            + id(&one.id)
            + hooks.chain(probes).chain(ends).sum::<usize>()
    };
    let finalizers = pod.finalizers.iter().map(|one| size_of::<String>() + one.len());
    let own = [&pod.uid, &pod.namespace, &pod.name, &pod.phase, &pod.reason, &pod.message];
    size_of::<ApiPod>()
        + own.into_iter().chain(&pod.disruption).map(String::len).sum::<usize>()
        + pod.workload.as_ref().map_or(0, |of| size_of_val(&**of) + of.kind.len() + of.name.len())
        + finalizers.chain(pod.containers.iter().map(container)).sum::<usize>()
}

/// The controller of a pod; of a ReplicaSet that a Deployment made, the Deployment
/// (`NewRSNameFromDeployment`: its name and the hash); of a CronJob's run, the CronJob. A mirror pod's is no workload.
fn workload(metadata: &Metadata) -> Option<Box<Workload>> {
    let mut owners = metadata.owner_references.all();
    let owner =
        owners.find(|owner| *owner.controller == Some(true) && owner.kind.text() != "Node")?;
    let name = owner.name.text();
    let hash = metadata.labels.as_ref().and_then(|all| all.template_hash.as_deref());
    let deployment = || name.strip_suffix(hash?)?.strip_suffix('-');
    let (kind, name) = match owner.kind.text() {
        "ReplicaSet" => deployment().map_or(("ReplicaSet", name), |name| ("Deployment", name)),
        "Job" => cron_job(name, metadata.creation_timestamp.time())
            .map_or(("Job", name), |name| ("CronJob", name)),
        kind => (kind, name),
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
fn mirror_of(metadata: &Metadata) -> Option<PodUid> {
    let is_node = |owner: &Owner| owner.kind.text() == "Node" && owner.api_version.text() == "v1";
    let uid = metadata.annotations.as_ref()?.mirror.filled()?;
    metadata.owner_references.all().any(is_node).then(|| PodUid::new(uid))
}

/// A node; `None` if it does not say which boot of which machine it is: no kubelet has reported
/// for it yet.
pub(super) fn node(node: &Node) -> Option<ApiNode> {
    let status = node.status.as_ref()?;
    let info = status.node_info.as_ref()?;
    let ready = status.conditions.all().find(|one| one.r#type.text() == "Ready");
    Some(ApiNode {
        boot_id: info.boot_id.filled()?.into(),
        kubelet_version: info.kubelet_version.text().into(),
        ready: ready.and_then(|ready| match ready.status.text() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }),
    })
}

fn containers(spec: &Spec, status: &PodStatus) -> BTreeMap<String, ApiContainer> {
    let mut all = BTreeMap::new();
    let mut add = |name: &Word, one| all.insert(name.text().to_owned(), one);
    for container in spec.containers.all() {
        add(&container.name, probed(ContainerKind::Main, container));
    }
    for container in spec.init_containers.all() {
        let kind = match container.restart_policy.text() {
            "Always" => ContainerKind::Sidecar,
            _ => ContainerKind::Init,
        };
        add(&container.name, probed(kind, container));
    }
    for container in spec.ephemeral_containers.all() {
        add(&container.name, specified(ContainerKind::Ephemeral, &container.lifecycle));
    }
    let main = status.container_statuses.all();
    let others = [&status.init_container_statuses, &status.ephemeral_container_statuses];
    for status in main.chain(others.into_iter().flat_map(|all| all.all())) {
        // Only what the spec names: the kind of anything else is unknown.
        if let Some(container) = all.get_mut(status.name.text()) {
            add_status(container, status);
        }
    }
    all
}

fn probed(kind: ContainerKind, container: &Container) -> ApiContainer {
    let specified = specified(kind, &container.lifecycle);
    let readiness = container.readiness_probe.as_ref().map(probe).and_then(|probe| probe.exec);
    // Runs of a binary that others run, too, are not known to be the probe's.
    let is_shared = |binary: &String| {
        readiness.as_ref() == Some(binary)
            || specified.pre_stop == Some(Hook::Exec(binary.clone()))
            || specified.post_start == Some(Hook::Exec(binary.clone()))
    };
    let own = |one: &Probe| {
        let probe = probe(one);
        ApiProbe { exec: probe.exec.filter(|binary| !is_shared(binary)), ..probe }
    };
    ApiContainer {
        liveness: container.liveness_probe.as_ref().map(own),
        startup: container.startup_probe.as_ref().map(own),
        // With rules of its own it may be restarted.
        restart_policy: match container.restart_policy_rules.all().next() {
            Some(Present {}) => "Always".into(),
            None => container.restart_policy.text().into(),
        },
        ..specified
    }
}

fn probe(probe: &Probe) -> ApiProbe {
    let command = probe.exec.as_ref().and_then(Exec::binary);
    ApiProbe {
        exec: command.map(binary_name).filter(|name| !name.is_empty()),
        grace_seconds: *probe.termination_grace_period_seconds,
        failures: probe.failure_threshold.and_then(|n| u32::try_from(n).ok()).unwrap_or(3).max(1),
    }
}

impl Exec {
    fn binary(&self) -> Option<&str> {
        self.command.all().next().map(|text| &**text)
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
pub(super) fn beginning(message: &str) -> String {
    let known = MESSAGES.iter().find(|known| message.starts_with(**known));
    known.map(|known| (*known).to_owned()).unwrap_or_default()
}

fn specified(kind: ContainerKind, lifecycle: &Lenient<Lifecycle>) -> ApiContainer {
    let lifecycle = lifecycle.as_ref();
    ApiContainer {
        kind,
        pre_stop: lifecycle.and_then(|all| hook(all.pre_stop.as_ref()?)),
        post_start: lifecycle.and_then(|all| hook(all.post_start.as_ref()?)),
        stop_signal: lifecycle.and_then(|all| signal_number(all.stop_signal.filled()?)),
        ..ApiContainer::default()
    }
}

fn add_status(container: &mut ApiContainer, status: &ContainerStatus) {
    container.ready = *status.ready == Some(true);
    container.started = *status.started;
    container.restarts = status.restart_count.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    container.id = container_id(&status.container_id);
    let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
    container.waiting = waiting.map(|waiting| waiting.reason.text().into());
    let ended = |state: &Lenient<State>| state.as_ref()?.terminated.as_ref().map(terminated);
    // Where the kubelet made a state up it left the id out: its own state is of the present container.
    let now = ended(&status.state)
        .map(|end| ApiTerminated { id: end.id.or_else(|| container.id.clone()), ..end });
    container.terminated = now.into_iter().chain(ended(&status.last_state)).collect();
}

fn terminated(state: &StateDetail) -> ApiTerminated {
    ApiTerminated {
        id: container_id(&state.container_id),
        exit_code: state.exit_code.unwrap_or_default(),
        reason: state.reason.text().into(),
    }
}

/// A hook as the kubelet writes it into an annotation: JSON of a v1.LifecycleHandler.
pub(crate) fn hook_of(json: &str) -> Option<Hook> {
    hook(&serde_json::from_str(json).ok()?)
}

/// A hook, reduced to its kind and, for exec, the binary's file name.
fn hook(handler: &Handler) -> Option<Hook> {
    match handler {
        Handler { exec, .. } if exec.is_some() => exec.as_ref()?.binary().map(exec_hook),
        Handler { http_get, .. } if http_get.is_some() => Some(Hook::HttpGet),
        Handler { tcp_socket, .. } if tcp_socket.is_some() => Some(Hook::TcpSocket),
        Handler { sleep, .. } => {
            sleep.as_ref().map(|sleep| Hook::Sleep(sleep.seconds.unwrap_or_default()))
        }
    }
}

/// The id in `containerd://id`; an empty one is how the API says that there is none.
fn container_id(text: &Phrase) -> Option<ContainerId> {
    let text = text.text();
    let id = text.split_once("://").map_or(text, |(_, id)| id);
    (!id.is_empty()).then(|| ContainerId::new(id))
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
            started: Some(true),
            restarts: 2,
            id: Some("c3".into()),
            terminated: vec![
                ApiTerminated { id: Some("c3".into()), exit_code: 137, reason: "Error".into() },
                // The kubelet made this one up: it never saw the container's end.
                ApiTerminated { id: None, exit_code: 255, reason: String::new() },
            ],
            ..ApiContainer::default()
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
            ..ApiPod::default()
        };
        assert_eq!(full, Some(expected));
    }

    /// A pod of which this is said, too.
    fn with(metadata: &Value, conditions: &Value) -> Option<ApiPod> {
        let mut all = json!({ "name": "web-0", "namespace": "shop", "uid": "u1" });
        all.as_object_mut()?.extend(metadata.as_object()?.clone());
        converted(json!({ "metadata": all, "status": { "conditions": conditions } }))
    }

    #[test]
    fn a_pod_that_nothing_can_be_joined_to() {
        for key in ["name", "namespace", "uid"] {
            for nothing in [json!(""), json!(null)] {
                assert_eq!(with(&json!({ key: nothing }), &json!([])), None, "{key}: {nothing}");
            }
        }
    }

    #[test]
    fn nobody_but_the_node_has_mirrors() {
        for owners in [
            json!(null),
            json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r" }]),
            json!([{ "apiVersion": "example.com/v1", "kind": "Node", "name": "n1", "uid": "n" }]),
        ] {
            let annotations = json!({ "kubernetes.io/config.mirror": "u2" });
            let metadata = json!({ "annotations": annotations, "ownerReferences": owners });
            assert_eq!(with(&metadata, &json!([])).unwrap().mirror_of, None, "{owners}");
        }
    }

    #[test]
    fn a_pod_is_of_its_controllers_workload() {
        let owned = |kind: &str, name: &str, controller: bool, labels: Value| {
            let owner = json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": "r", "controller": controller });
            let created = "2026-11-28T01:00:07Z";
            let metadata = json!({ "labels": labels, "ownerReferences": [owner], "creationTimestamp": created });
            let workload = with(&metadata, &json!([])).unwrap().workload;
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
        let info = json!({ "bootID": "b1", "kubeletVersion": "v1.33.4" });
        for (conditions, ready) in [
            (json!([{ "type": "DiskPressure", "status": "True" }]), None),
            (json!([{ "type": "Ready", "status": "Unknown" }]), None),
            (json!([{ "type": "Ready", "status": "False" }]), Some(false)),
        ] {
            let status = json!({ "nodeInfo": info, "conditions": conditions });
            let found = node(&serde_json::from_value(json!({ "status": status })).unwrap());
            assert_eq!(found.unwrap().ready, ready, "{conditions}");
        }
    }

    #[test]
    fn disruption_counts_only_while_true() {
        for (condition, expected) in [
            (json!({ "type": "DisruptionTarget", "status": "False", "reason": "X" }), None),
            (json!({ "type": "DisruptionTarget", "status": "Unknown", "reason": "X" }), None),
            (json!({ "type": "Ready", "status": "True", "reason": "X" }), None),
            (json!({ "type": "DisruptionTarget", "status": "True" }), Some("")),
        ] {
            let pod = with(&json!({}), &json!([condition]));
            assert_eq!(pod.unwrap().disruption.as_deref(), expected);
        }
    }

    #[test]
    fn a_time_that_cannot_be_is_unknown() {
        for (time, expected) in [
            (json!("1970-01-01T00:00:02Z"), Some(WallTime::from_secs(2))),
            (json!("0001-01-01T00:00:00Z"), None),
            (json!("1969-12-31T23:59:59Z"), None),
            (json!(null), None),
        ] {
            let pod = with(&json!({ "deletionTimestamp": time }), &json!([])).unwrap();
            assert_eq!(pod.deletion_timestamp, expected, "{time}");
        }
    }

    #[test]
    fn a_large_pod_is_cut_containers_last() {
        let one =
            || ApiContainer { id: Some("c".repeat(64).as_str().into()), ..Default::default() };
        let large = |containers: usize| ApiPod {
            containers: (0..containers).map(|n| (format!("container-{n:04}"), one())).collect(),
            finalizers: vec!["x".repeat(NAME); MAX_FINALIZERS],
            ..ApiPod::default()
        };
        for (containers, finalizers) in [(1, 16), (20, 1), (256, 1)] {
            let (mut pod, cuts) = (large(containers), Cuts::default());
            fit(&mut pod, &cuts);
            assert!(weight(&pod) <= MAX_POD && pod.finalizers.len() == finalizers);
            let cut = cuts.of(Cut::Containers) as usize;
            assert_eq!((cut > 0, pod.containers.len()), (containers == 256, containers - cut));
        }
    }
}
