//! The kubelet's Events, as the agent lists them.

use super::PodId;
use crate::apiserver::{Kind, Store};
use jiff::Timestamp;
use serde_json::json;

/// Posts Events about one pod.
#[derive(Clone, Debug)]
pub(super) struct Events {
    pub(super) store: Store,
    pub(super) node: String,
    pub(super) pod: PodId,
}

impl Events {
    pub(super) fn post(&self, container: &str, reason: &str, message: &str) {
        let (pod, now) = (&self.pod, Timestamp::now());
        let event = json!({
            "metadata": {
                "namespace": pod.namespace,
                "name": format!("{}.{:x}", pod.name, now.as_nanosecond()),
            },
            "involvedObject": {
                "kind": "Pod", "apiVersion": "v1", "namespace": pod.namespace, "name": pod.name,
                "uid": pod.uid, "fieldPath": format!("spec.containers{{{container}}}"),
            },
            "type": if reason == "Killing" { "Normal" } else { "Warning" },
            "reason": reason, "message": message, "count": 1,
            "firstTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "lastTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "source": { "component": "kubelet", "host": self.node },
            "reportingComponent": "kubelet", "reportingInstance": self.node,
        });
        if let Err(error) = self.store.create(Kind::Event, event) {
            tracing::warn!(pod = pod.name, "no Event: {error}");
        }
    }
}
