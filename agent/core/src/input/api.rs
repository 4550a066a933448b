//! The apiserver's events.

use crate::report::{BootTime, ContainerId, ContainerKind, Hook, PodUid, WallTime, Workload};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An event of the apiserver's watch, or of the connection to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ApiEvent {
    /// A full list of this node's pods, which replaces all earlier ones. The watch is in sync from here on.
    Snapshot { pods: Vec<ApiPod> },
    /// Added or modified.
    Applied(ApiPod),
    /// Deleted, with the last state.
    Deleted(ApiPod),
    /// The watch broke: deletions may be missed until the next event.
    OutOfSync { error: String },
    /// The watch resumed where it broke; no list is needed.
    Resumed,
    /// The apiserver's clock, by the header Date of its answer to a request for a watch.
    Clock {
        asked: BootTime,
        /// The header: whole seconds.
        date: WallTime,
    },
    /// The Node object: at the start, whenever the watch is in sync again, and every few minutes.
    Node(ApiNode),
    /// The Node object could not be read.
    NodeUnknown {
        /// The apiserver has no Node of that name.
        missing: bool,
        error: String,
    },
    /// Pods read directly, past the watch: the answer to `Request::VerifyPods`.
    Checked { asked: BootTime, pods: Vec<PodCheck> },
}

/// The fields of the Node object that identify its machine and its kubelet.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ApiNode {
    /// status.nodeInfo.bootID.
    pub boot_id: String,
    /// status.nodeInfo.kubeletVersion, `v1.33.4`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kubelet_version: String,
    /// The condition Ready: `None` where it is Unknown (the kubelet has not reported for long).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
}

/// One pod, read by its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodCheck {
    /// The UID that the runtime knows.
    pub uid: PodUid,
    /// An object with this UID (or a mirror of it) exists; `None`: no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
}

/// A pod of the apiserver, reduced to what the join needs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ApiPod {
    /// metadata.uid of the object. For a mirror pod this is not the static pod's UID.
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Annotation `kubernetes.io/config.mirror`: the static pod's UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_of: Option<PodUid>,
    /// metadata.deletionTimestamp: the deadline, in the apiserver's clock, whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<WallTime>,
    /// metadata.deletionGracePeriodSeconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_grace_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// spec.terminationGracePeriodSeconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub restart_policy: Box<str>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// status.reason (`Evicted`, `Terminated`, …).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The beginning of status.message, if it is a known one (`kube/pod.rs`).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason of a condition DisruptionTarget that is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<String>,
    /// The beginning of the condition's message, if it is a known one (`kube/pod.rs`): nothing else distinguishes the
    /// kubelet's own reasons.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub disruption_message: String,
    /// The workload that the pod belongs to, by its controller; `None`: a bare or a static pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Box<Workload>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, ApiContainer>,
}

impl ApiPod {
    /// The phase is final, so the pod gets no other sandbox.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// According to the status, the main containers have ended and are not restarted: the kubelet stops the
    /// sidecars next and sets a final phase.
    pub fn is_completing(&self) -> bool {
        let mut mains = self.containers.values().filter(|c| c.kind == ContainerKind::Main);
        mains.all(|container| self.is_done(container))
    }

    /// According to the status, this container has ended and is not restarted.
    pub fn is_done(&self, container: &ApiContainer) -> bool {
        let last = container.terminated.iter().find(|end| end.id == container.id);
        let restarts = |end: &ApiTerminated| match self.restart_policy_of(container) {
            "Never" => false,
            "OnFailure" => end.exit_code != 0,
            _ => true,
        };
        container.id.is_some() && last.is_some_and(|end| !restarts(end))
    }

    /// A container's own restartPolicy, or the pod's. A native sidecar is always restarted.
    pub fn restart_policy_of<'a>(&'a self, container: &'a ApiContainer) -> &'a str {
        match (container.kind, container.restart_policy.as_str()) {
            (ContainerKind::Sidecar, _) => "Always",
            (_, "") => &self.restart_policy,
            (_, own) => own,
        }
    }

    /// According to the status, nothing runs any more: the phase is final or, as kubelets up to 1.26 leave it
    /// at Running, every created container is terminated.
    pub fn is_over(&self) -> bool {
        let mut made = self.containers.values().filter(|c| c.id.is_some()).peekable();
        self.is_finished() || (made.peek().is_some() && made.all(ApiContainer::is_terminated))
    }
}

/// One container of an [`ApiPod`], spec and status together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ApiContainer {
    pub kind: ContainerKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<Hook>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_start: Option<Hook>,
    /// lifecycle.stopSignal, as a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<ApiProbe>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup: Option<ApiProbe>,
    /// The container's own restartPolicy (ContainerRestartRules); empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub restart_policy: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<bool>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    #[serde(default)]
    pub restarts: u32,
    /// status.containerID without its scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ContainerId>,
    /// The reason of status.state.waiting, which may be empty; `None`: not waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// status.state.terminated and status.lastState.terminated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terminated: Vec<ApiTerminated>,
}

impl ApiContainer {
    /// The status names an attempt after this one.
    pub fn is_after(&self, id: &ContainerId) -> bool {
        self.id.as_ref().is_some_and(|current| current != id)
    }

    /// According to the status, its attempt has ended.
    pub fn is_terminated(&self) -> bool {
        self.id.is_some() && self.terminated.iter().any(|t| t.id == self.id)
    }
}

/// A liveness or startup probe.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ApiProbe {
    /// The file name of an exec probe's binary. Other probes have no process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// failureThreshold: the kubelet stops the container after this many failures in a row.
    #[serde(default)]
    pub failures: u32,
}

/// A terminated state in a container's status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiTerminated {
    /// containerID without its scheme; `None`: the kubelet made up the last state of a container that it
    /// could not find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ContainerId>,
    pub exit_code: i32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}
