//! The lab's own apiserver as the kubelet's, in the same process.

use super::{
    api::{Api, Change},
    translate::PodId,
};
use crate::apiserver::{ChangeType, DeleteOptions, Kind, Store};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::Value;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

impl Api for Store {
    fn watch(&self, node: &str) -> mpsc::UnboundedReceiver<Change> {
        let (tell, changes) = mpsc::unbounded_channel();
        tokio::spawn(follow(self.clone(), node.to_owned(), tell));
        changes
    }

    fn replace_status(&self, pod: &PodId, status: &PodStatus) {
        let replaced = self.patch_status(&pod.namespace, &pod.name, Some(&pod.uid), |known| {
            *known = status.clone()
        });
        if let Err(failure) = replaced {
            // Gone, or another pod of the same name: as good as told.
            tracing::debug!(pod = pod.name, error = %failure, "status");
        }
    }

    fn delete_for_good(&self, pod: &PodId) {
        let options =
            DeleteOptions { grace: Some(0), uid: Some(pod.uid.clone()), ..Default::default() };
        if let Err(failure) = self.delete_pod(&pod.namespace, &pod.name, &options) {
            tracing::debug!(pod = pod.name, error = %failure, "last delete");
        }
    }
}

/// List, then changes; list again where changes are forgotten. What a new list lacks is gone.
async fn follow(store: Store, node: String, tell: mpsc::UnboundedSender<Change>) {
    let mut wake = store.subscribe();
    let mut known: BTreeMap<String, Pod> = BTreeMap::new();
    loop {
        let (mut seen, listed) = store.list(Kind::Pod);
        let now: BTreeMap<String, Pod> =
            listed.iter().filter_map(|object| of_node(object, &node)).collect();
        for (_, pod) in known.iter().filter(|(uid, _)| !now.contains_key(*uid)) {
            if tell.send(Change::Gone(pod.clone())).is_err() {
                return;
            }
        }
        for pod in now.values() {
            if tell.send(Change::Applied(pod.clone())).is_err() {
                return;
            }
        }
        known = now;
        while let Ok(changes) = store.changes_since(seen) {
            for change in changes {
                seen = change.version;
                if change.kind != Kind::Pod {
                    continue;
                }
                let Some((uid, pod)) = of_node(&change.object, &node) else { continue };
                let told = if change.change == ChangeType::Deleted {
                    known.remove(&uid);
                    Change::Gone(pod)
                } else {
                    known.insert(uid, pod.clone());
                    Change::Applied(pod)
                };
                if tell.send(told).is_err() {
                    return;
                }
            }
            tokio::select! {
                changed = wake.changed() => if changed.is_err() { return },
                () = tell.closed() => return,
            }
        }
    }
}

/// A pod of the node, by its UID.
fn of_node(object: &Value, node: &str) -> Option<(String, Pod)> {
    if object["spec"]["nodeName"] != node {
        return None;
    }
    let pod: Pod = serde_json::from_value(object.clone()).ok()?;
    Some((pod.metadata.uid.clone()?, pod))
}
