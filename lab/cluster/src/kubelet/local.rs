//! The lab's own apiserver as the kubelet's, in the same process. While the apiserver is made to
//! fail, the kubelet hears nothing of it either, and what it has to say waits.

use super::{
    api::{Api, PodChange},
    status,
    translate::{self, PodId},
};
use crate::apiserver::{
    ApiFailure, ApiserverFault, ChangeType, DeleteOptions, ResourceKind, Store,
};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::{mpsc, oneshot, watch};

/// The kubelet's Events that are kept; a real apiserver keeps them for an hour.
const MAX_EVENTS: usize = 2_048;

/// A way to the lab's apiserver.
#[derive(Debug)]
pub struct Local {
    store: Store,
    fault: watch::Receiver<ApiserverFault>,
    requests: mpsc::UnboundedSender<LocalRequest>,
}

/// What the kubelet says.
#[derive(Debug)]
enum LocalRequest {
    Status(PodId, Box<PodStatus>),
    Delete(PodId, oneshot::Sender<()>),
    Mirror(Box<Pod>),
    Event(Box<Value>),
}

impl Local {
    /// Of these objects, as reachable as `fault` lets them be.
    pub fn new(store: Store, fault: watch::Receiver<ApiserverFault>) -> Self {
        let (requests, waiting) = mpsc::unbounded_channel();
        tokio::spawn(apply(store.clone(), fault.clone(), waiting));
        Self { store, fault, requests }
    }

    fn ask(&self, request: LocalRequest) {
        // Its reader lives as long as this does.
        let _ = self.requests.send(request);
    }
}

impl Api for Local {
    fn watch(&self, node: &str) -> mpsc::UnboundedReceiver<PodChange> {
        let (tell, changes) = mpsc::unbounded_channel();
        tokio::spawn(follow(self.store.clone(), self.fault.clone(), node.to_owned(), tell));
        changes
    }

    fn replace_status(&self, pod: &PodId, status: &PodStatus) {
        self.ask(LocalRequest::Status(pod.clone(), Box::new(status.clone())));
    }

    fn delete_for_good(&self, pod: &PodId) -> oneshot::Receiver<()> {
        let (tell, done) = oneshot::channel();
        self.ask(LocalRequest::Delete(pod.clone(), tell));
        done
    }

    fn post_event(&self, event: Value) {
        self.ask(LocalRequest::Event(Box::new(event)));
    }

    fn create_mirror(&self, mirror: &Pod) {
        self.ask(LocalRequest::Mirror(Box::new(mirror.clone())));
    }
}

/// Waits until the apiserver can be reached; false: it is gone.
async fn reachable(fault: &mut watch::Receiver<ApiserverFault>) -> bool {
    fault.wait_for(|fault| *fault == ApiserverFault::None).await.is_ok()
}

async fn apply(
    store: Store,
    mut fault: watch::Receiver<ApiserverFault>,
    mut requests: mpsc::UnboundedReceiver<LocalRequest>,
) {
    let mut posted = VecDeque::new();
    while let Some(request) = requests.recv().await {
        if !reachable(&mut fault).await {
            return;
        }
        let answer = match request {
            LocalRequest::Status(pod, status) => replace_status(&store, &pod, &status),
            LocalRequest::Delete(pod, done) => {
                let options =
                    DeleteOptions { grace: Some(0), uid: Some(pod.uid), ..Default::default() };
                store.delete_pod(&pod.namespace, &pod.name, &options).map(|_| {
                    // Nobody may wait for it.
                    let _ = done.send(());
                })
            }
            LocalRequest::Mirror(mirror) => store.create_pod(&mirror).map(drop),
            LocalRequest::Event(event) => {
                let of = |key: &str| event["metadata"][key].as_str().unwrap_or_default().to_owned();
                posted.push_back((of("namespace"), of("name")));
                if posted.len() > MAX_EVENTS
                    && let Some((namespace, name)) = posted.pop_front()
                {
                    // Somebody else may have removed it.
                    let options = DeleteOptions::default();
                    let _ = store.delete(ResourceKind::Event, &namespace, &name, &options);
                }
                store.create(ResourceKind::Event, &of("namespace"), *event).map(drop)
            }
        };
        if let Err(failure) = answer {
            // Gone, or another pod of the same name: as good as told.
            tracing::debug!(error = %failure, "refused");
        }
    }
}

/// Conditions that others have set stay, as with the kubelet's PATCH (status_manager.go).
fn replace_status(store: &Store, pod: &PodId, status: &PodStatus) -> Result<(), ApiFailure> {
    let found = store.get_pod(&pod.namespace, &pod.name)?;
    let uid = match translate::mirrored(&found) {
        Some(of) if of == pod.uid => found.metadata.uid.as_deref(),
        _ => Some(pod.uid.as_str()),
    };
    store
        .patch_status(&pod.namespace, &pod.name, uid, |known| {
            let mut new = status.clone();
            let own = new.conditions.get_or_insert_default();
            for other in known.conditions.iter().flatten() {
                let is_kubelets = status::is_kubelets_condition(&other.type_);
                if !is_kubelets && own.iter().all(|condition| condition.type_ != other.type_) {
                    own.push(other.clone());
                }
            }
            *known = new;
        })
        .map(drop)
}

/// List, then changes; list again where changes are forgotten. What a new list lacks is gone.
async fn follow(
    store: Store,
    mut fault: watch::Receiver<ApiserverFault>,
    node: String,
    tell: mpsc::UnboundedSender<PodChange>,
) {
    let mut wake = store.subscribe();
    let mut known: BTreeMap<String, Pod> = BTreeMap::new();
    loop {
        let (mut seen, listed) = store.list(ResourceKind::Pod);
        let now: BTreeMap<String, Pod> =
            listed.iter().filter_map(|object| of_node(object, &node)).collect();
        for (_, pod) in known.iter().filter(|(uid, _)| !now.contains_key(*uid)) {
            if tell.send(PodChange::Gone(pod.clone())).is_err() {
                return;
            }
        }
        for pod in now.values() {
            if tell.send(PodChange::Applied(pod.clone())).is_err() {
                return;
            }
        }
        known = now;
        while reachable(&mut fault).await {
            let Ok(changes) = store.changes_since(seen) else { break };
            for change in changes {
                seen = change.version;
                if change.kind != ResourceKind::Pod {
                    continue;
                }
                let Some((uid, pod)) = of_node(&change.object, &node) else { continue };
                let told = if change.change == ChangeType::Deleted {
                    known.remove(&uid);
                    PodChange::Gone(pod)
                } else {
                    known.insert(uid, pod.clone());
                    PodChange::Applied(pod)
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
        if fault.has_changed().is_err() {
            return;
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
