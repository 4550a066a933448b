//! The controller of DaemonSets (pkg/controller/daemon): a pod on each node that the template's node selector takes,
//! replaced when the template changes, a few at a time. It reads neither taints nor affinity, never starts the
//! new pod before the old one has gone (`maxSurge`), and does not replace pods that have ended.

use crate::apiserver::{ApiFailure, DeleteOptions, ResourceKind, Store};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetStatus},
        core::v1::{Node, Pod},
    },
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// On pods: of which template they are.
const HASH: &str = "controller-revision-hash";

/// A running controller; it ends when this is dropped.
#[derive(Debug)]
pub struct DaemonSetController(JoinHandle<()>);

impl DaemonSetController {
    /// Starts it. `admit` does to each new pod what a cluster's admission does.
    pub fn start(store: Store, admit: impl Fn(&mut Pod) + Send + 'static) -> Self {
        Self(tokio::spawn(async move {
            let mut wake = store.subscribe();
            loop {
                wake.borrow_and_update();
                for set in all::<DaemonSet>(&store, ResourceKind::DaemonSet) {
                    // Changed or deleted meanwhile: that wakes again.
                    if let Err(failure) = reconcile(&store, &set, &admit) {
                        tracing::debug!(error = %failure, "cannot reconcile a DaemonSet");
                    }
                }
                if wake.changed().await.is_err() {
                    return;
                }
            }
        }))
    }
}

impl Drop for DaemonSetController {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn all<T: DeserializeOwned>(store: &Store, kind: ResourceKind) -> Vec<T> {
    let objects = store.list(kind).1.into_iter();
    objects.filter_map(|object| T::deserialize(&*object).ok()).collect()
}

/// The pods of a DaemonSet. Only these are decoded: others may be large.
pub fn pods_of(store: &Store, uid: Option<&str>) -> Vec<Pod> {
    let (_, pods) = store.list(ResourceKind::Pod);
    let is_own = |pod: &&Arc<Value>| {
        let owners = pod["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"].as_str() == uid))
    };
    pods.iter().filter(is_own).filter_map(|pod| Pod::deserialize(&**pod).ok()).collect()
}

fn reconcile(store: &Store, set: &DaemonSet, admit: &impl Fn(&mut Pod)) -> Result<(), ApiFailure> {
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let hash = hash(set);
    let pods = pods_of(store, set.metadata.uid.as_deref());
    let nodes = all::<Node>(store, ResourceKind::Node).into_iter().filter(|node| takes(set, node));
    let nodes: Vec<String> = nodes.filter_map(|node| node.metadata.name).collect();
    let (mut current, mut ready, mut updated, mut outdated) = (0, 0, 0, Vec::new());
    for node in &nodes {
        let here =
            |pod: &&Pod| pod.spec.as_ref().and_then(|it| it.node_name.as_ref()) == Some(node);
        // One that is being deleted first has to go.
        let Some(pod) = pods.iter().find(here) else {
            store.create_pod(&pod_of(set, &hash, node, admit))?;
            continue;
        };
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        current += 1;
        ready += i32::from(is_ready(pod));
        let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(HASH));
        if label == Some(&hash) {
            updated += 1;
        } else {
            outdated.push(pod);
        }
    }
    let desired = i32::try_from(nodes.len()).unwrap_or(i32::MAX);
    let status = DaemonSetStatus {
        current_number_scheduled: current,
        desired_number_scheduled: desired,
        number_ready: ready,
        number_available: Some(ready),
        number_unavailable: Some(desired - ready).filter(|number| *number > 0),
        updated_number_scheduled: Some(updated),
        observed_generation: set.metadata.generation,
        ..Default::default()
    };
    let (namespace, name) = names(&set.metadata);
    store.update(ResourceKind::DaemonSet, namespace, name, |object| {
        object["status"] = json!(status);
        Ok(())
    })?;
    // Those that are not ready cost nothing.
    outdated.sort_by_key(|pod| is_ready(pod));
    let mut unavailable = desired - ready;
    for pod in outdated {
        if is_ready(pod) {
            if unavailable >= max_unavailable(set, desired) {
                break;
            }
            unavailable += 1;
        }
        let (namespace, name) = names(&pod.metadata);
        store.delete_pod(namespace, name, &DeleteOptions::default())?;
    }
    Ok(())
}

fn names(metadata: &ObjectMeta) -> (&str, &str) {
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    (namespace.unwrap_or_default(), name.unwrap_or_default())
}

fn takes(set: &DaemonSet, node: &Node) -> bool {
    let wanted = set.spec.template.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    let labels = node.metadata.labels.as_ref();
    wanted
        .into_iter()
        .flatten()
        .all(|(label, value)| labels.and_then(|all| all.get(label)) == Some(value))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn hash(set: &DaemonSet) -> String {
    let digest = Sha256::digest(json!(set.spec.template).to_string());
    digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}

/// `maxUnavailable`, where a part of a pod counts as a pod; one by default.
fn max_unavailable(set: &DaemonSet, desired: i32) -> i32 {
    let strategy = set.spec.update_strategy.as_ref();
    match strategy.and_then(|it| it.rolling_update.as_ref()?.max_unavailable.as_ref()) {
        None => 1,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => {
            let percent: i32 = text.trim_end_matches('%').parse().unwrap_or_default();
            desired.saturating_mul(percent).saturating_add(99) / 100
        }
    }
}

fn pod_of(set: &DaemonSet, hash: &str, node: &str, admit: &impl Fn(&mut Pod)) -> Pod {
    let template = set.spec.template.clone();
    let (namespace, name) = names(&set.metadata);
    let mut pod = Pod {
        metadata: template.metadata.unwrap_or_default(),
        spec: template.spec,
        ..Default::default()
    };
    pod.metadata.namespace = Some(namespace.into());
    pod.metadata.generate_name = Some(format!("{name}-"));
    pod.metadata.labels.get_or_insert_default().insert(HASH.into(), hash.into());
    pod.metadata.owner_references = Some(vec![OwnerReference {
        api_version: ResourceKind::DaemonSet.api_version().into(),
        kind: ResourceKind::DaemonSet.name().into(),
        name: name.into(),
        uid: set.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    pod.spec.get_or_insert_default().node_name = Some(node.into());
    admit(&mut pod);
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twelve nodes, one of which is not taken, and a DaemonSet with this flag.
    fn store() -> Store {
        let store = Store::new(256);
        for n in 0..12 {
            let os = if n == 0 { "windows" } else { "linux" };
            let node = json!({ "metadata": { "name": format!("n{n}"), "labels": { "os": os } } });
            store.create(ResourceKind::Node, "", node).unwrap();
        }
        let set = json!({
            "metadata": { "name": "set" },
            "spec": {
                "selector": { "matchLabels": { "app": "a" } },
                "updateStrategy": { "rollingUpdate": { "maxUnavailable": "10%" } },
                "template": {
                    "metadata": { "labels": { "app": "a" } },
                    "spec": { "nodeSelector": { "os": "linux" }, "containers": [] },
                },
            },
        });
        store.create(ResourceKind::DaemonSet, "a", set).unwrap();
        store
    }

    fn step(store: &Store) -> Value {
        let set = all::<DaemonSet>(store, ResourceKind::DaemonSet).remove(0);
        reconcile(store, &set, &|_| ()).unwrap();
        let status = &store.get(ResourceKind::DaemonSet, "a", "set").unwrap()["status"];
        json!([
            status["numberReady"],
            status["updatedNumberScheduled"],
            status["observedGeneration"]
        ])
    }

    /// The kubelets: what is deleted goes, what is there is ready.
    fn run(store: &Store) {
        for pod in all::<Pod>(store, ResourceKind::Pod) {
            let (namespace, name) = names(&pod.metadata);
            if pod.metadata.deletion_timestamp.is_some() {
                let now = DeleteOptions { grace: Some(0), ..Default::default() };
                store.delete_pod(namespace, name, &now).unwrap();
                continue;
            }
            let ready = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
            store
                .patch_status(namespace, name, None, |status| {
                    *status = serde_json::from_value(ready).unwrap();
                })
                .unwrap();
        }
    }

    #[test]
    fn every_node_that_is_taken_gets_a_pod_and_a_change_replaces_a_tenth_at_a_time() {
        let store = store();
        step(&store);
        run(&store);
        assert_eq!(step(&store), json!([11, 11, 1]));
        store
            .update(ResourceKind::DaemonSet, "a", "set", |set| {
                set["spec"]["template"]["spec"]["hostPID"] = true.into();
                Ok(())
            })
            .unwrap();
        // Two at a time: a tenth of eleven, rounded up. A step deletes, the next one creates.
        let mut steps = 0;
        while step(&store) != json!([11, 11, 2]) {
            run(&store);
            let ready = all::<Pod>(&store, ResourceKind::Pod).len();
            assert!(ready >= 9, "{ready}");
            steps += 1;
            assert!(steps < 20);
        }
        assert!(
            all::<Pod>(&store, ResourceKind::Pod).iter().all(|pod| pod
                .spec
                .as_ref()
                .unwrap()
                .host_pid
                == Some(true))
        );
        store.delete(ResourceKind::DaemonSet, "a", "set", &DeleteOptions::default()).unwrap();
        run(&store);
        assert_eq!(all::<Pod>(&store, ResourceKind::Pod).len(), 0);
    }
}
