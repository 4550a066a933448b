//! A full node, on paper: which pods there are, and what apiserver, runtime and kernel call them.
//! Pure: the same numbers give the same node.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The node's name.
pub(super) const NODE: &str = "full";
/// Containers of each pod, the sandbox' own not counted.
pub(super) const CONTAINERS: [&str; 2] = ["checkout", "istio-proxy"];
/// The grace that each pod grants, seconds.
const GRACE: u64 = 30;
/// What `kubectl apply` leaves on an object.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A pod as it is planned.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Plan {
    pub(super) namespace: String,
    /// Its name, as a ReplicaSet makes them.
    pub(super) name: String,
    qos: Qos,
}

/// Kubernetes' classes of service: where in the hierarchy the kubelet puts a pod.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Plan {
    /// The `number`th pod of a node with so many namespaces.
    pub(super) fn of(number: usize, namespaces: usize) -> Self {
        let tail = digest(&format!("pod {number}"));
        let set = digest(&format!("set {}", number % 97));
        Self {
            namespace: namespace(number % namespaces.max(1)),
            name: format!("checkout-{:02}-{}-{}", number % 97, &set[..10], &tail[..5]),
            qos: match number % 5 {
                0 => Qos::Guaranteed,
                1 => Qos::BestEffort,
                _ => Qos::Burstable,
            },
        }
    }

    /// The id that the runtime gives its sandbox.
    pub(super) fn sandbox(&self) -> String {
        digest(&format!("{}/{}", self.namespace, self.name))
    }

    /// The id that the runtime gives one of its containers.
    pub(super) fn container(&self, name: &str) -> String {
        digest(&format!("{}/{}/{name}", self.namespace, self.name))
    }

    pub(super) fn labels(&self) -> [(&'static str, String); 6] {
        [
            ("app.kubernetes.io/instance", self.namespace.clone()),
            ("app.kubernetes.io/name", "checkout".into()),
            ("app.kubernetes.io/part-of", "shop".into()),
            ("app.kubernetes.io/version", "3.14.1".into()),
            ("pod-template-hash", digest(&self.name)[..10].into()),
            ("topology.kubernetes.io/zone", "eu-central-1b".into()),
        ]
    }

    pub(super) fn annotations(&self) -> [(&'static str, String); 4] {
        [
            ("checksum/config", digest("config")),
            ("prometheus.io/port", "9102".into()),
            ("prometheus.io/scrape", "true".into()),
            (APPLIED, format!("{{\"spec\":\"{}\"}}", "x".repeat(900))),
        ]
    }

    /// The pod's cgroup below the node's, as the kubelet's systemd driver names it
    /// (`cm/cgroup_manager_linux.go`).
    pub(super) fn cgroup(&self, uid: &str) -> String {
        let uid = uid.replace('-', "_");
        match self.qos {
            Qos::Guaranteed => format!("kubepods.slice/kubepods-pod{uid}.slice"),
            Qos::Burstable => {
                format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice")
            }
            Qos::BestEffort => format!(
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice"
            ),
        }
    }

    /// What the apiserver is given: a running pod of 10 KB, as charts and operators make them.
    pub(super) fn object(&self, now: &str) -> Value {
        let containers: Vec<Value> = CONTAINERS.iter().map(|name| self.spec(name)).collect();
        let statuses: Vec<Value> = CONTAINERS
            .iter()
            .map(|name| {
                json!({
                    "name": name, "ready": true, "started": true, "restartCount": 0,
                    "image": image(name), "imageID": format!("{}@sha256:{}", image(name), digest(name)),
                    "containerID": format!("containerd://{}", self.container(name)),
                    "state": { "running": { "startedAt": now } },
                })
            })
            .collect();
        let conditions: Vec<Value> = [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled",
        ]
        .iter()
        .map(|kind| json!({ "type": kind, "status": "True", "lastTransitionTime": now }))
        .collect();
        json!({
            "metadata": {
                "name": self.name,
                "labels": object(self.labels()),
                "annotations": object(self.annotations()),
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
                    "blockOwnerDeletion": true, "name": "checkout-6c9f7d9b8c",
                    "uid": "00000000-0000-4000-8000-000000000001",
                }],
                "managedFields": [managed("kube-controller-manager", now), managed("kubelet", now)],
            },
            "spec": {
                "nodeName": NODE,
                "terminationGracePeriodSeconds": GRACE,
                "serviceAccountName": "checkout",
                "containers": containers,
                "tolerations": [
                    { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                    { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                ],
                "volumes": [
                    { "name": "config", "configMap": { "name": "checkout" } },
                    { "name": "scratch", "emptyDir": {} },
                ],
            },
            "status": {
                "phase": "Running", "podIP": "10.88.0.7", "hostIP": "192.0.2.10", "startTime": now,
                "conditions": conditions, "containerStatuses": statuses,
            },
        })
    }

    fn spec(&self, name: &str) -> Value {
        let environment: Vec<Value> = (0..12)
            .map(|n| json!({ "name": format!("CHECKOUT_OPTION_{n}"), "value": digest(name) }))
            .collect();
        let probe = json!({ "httpGet": { "path": "/healthz", "port": 8080 }, "periodSeconds": 10 });
        json!({
            "name": name, "image": image(name), "imagePullPolicy": "IfNotPresent",
            "env": environment,
            "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }],
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "256Mi" } },
            "livenessProbe": probe, "readinessProbe": probe,
            "lifecycle": { "preStop": { "exec": { "command": ["/bin/drain", "--wait"] } } },
            "volumeMounts": [
                { "name": "config", "mountPath": "/etc/checkout", "readOnly": true },
                { "name": "scratch", "mountPath": "/tmp" },
            ],
        })
    }
}

pub(super) fn namespace(number: usize) -> String {
    format!("team-{number:02}-production")
}

pub(super) fn image(container: &str) -> String {
    format!("registry.example/shop/{container}:3.14.1")
}

/// 64 hexadecimal digits, as the ids of containers are made of.
pub(super) fn digest(of: &str) -> String {
    Sha256::digest(of).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn object<const N: usize>(pairs: [(&str, String); N]) -> Value {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), Value::from(value))).collect()
}

/// An entry of managedFields, which are a third of what a pod weighs.
fn managed(manager: &str, now: &str) -> Value {
    let fields: Value = (0..40)
        .map(|n| {
            (format!("k:{{\"name\":\"CHECKOUT_OPTION_{n}\"}}"), json!({ ".": {}, "f:value": {} }))
        })
        .collect();
    json!({
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": now,
        "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": fields },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::cgroup_path;
    use std::collections::BTreeSet;

    const UID: &str = "0b0f4a5e-6a43-4c6a-9a54-6a2b5b7f2f11";

    #[test]
    fn all_have_names_and_ids_of_their_own() {
        let plans: BTreeSet<Plan> = (0..2_000).map(|n| Plan::of(n, 30)).collect();
        assert_eq!(plans.len(), 2_000);
        let namespaces: BTreeSet<_> = plans.iter().map(|plan| &plan.namespace).collect();
        assert_eq!(namespaces.len(), 30);
        let ids: BTreeSet<String> = plans
            .iter()
            .flat_map(|plan| {
                let containers = CONTAINERS.map(|name| plan.container(name));
                [plan.sandbox()].into_iter().chain(containers)
            })
            .collect();
        assert_eq!(ids.len(), 6_000);
    }

    #[test]
    fn the_agent_reads_the_cgroups_names() {
        for number in 0..5 {
            let plan = Plan::of(number, 30);
            let id = plan.container("checkout");
            let path = format!("/x/{}/cri-containerd-{id}.scope", plan.cgroup(UID));
            let parsed = cgroup_path::parse(&path);
            assert_eq!(parsed.pod, Some(UID.into()), "{path}");
            assert_eq!(parsed.container, Some(id.as_str().into()), "{path}");
        }
    }

    #[test]
    fn an_object_is_a_pod_of_the_usual_weight() {
        let object = Plan::of(3, 30).object("2026-11-21T10:04:56Z");
        let pod: k8s_openapi::api::core::v1::Pod =
            serde_json::from_value(object.clone()).expect("a pod");
        assert_eq!(pod.spec.expect("a spec").containers.len(), CONTAINERS.len());
        let size = object.to_string().len();
        assert!((8_000..16_000).contains(&size), "{size} bytes");
    }
}
