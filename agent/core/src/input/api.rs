//! What the apiserver tells.

use super::hook::Hook;
use crate::{
    ids::{ContainerId, PodUid},
    time::{BootTime, WallTime},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the apiserver says, or its silence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ApiEvent {
    /// A full list of this node's pods: replaces all that was known. Pods not in it are gone.
    /// The watch is in sync from here on.
    Snapshot {
        /// The pods.
        pods: Vec<ApiPod>,
    },
    /// Added or modified.
    Applied(ApiPod),
    /// Deleted, with the last state.
    Deleted(ApiPod),
    /// The watch broke: deletions may be missed until the next event says otherwise.
    OutOfSync {
        /// Why, as text.
        error: String,
    },
    /// The watch goes on from where it broke (no snapshot needed).
    Resumed,
    /// The Node object: at the start, whenever the watch is in sync again, and every few minutes.
    Node(ApiNode),
    /// The Node object could not be had.
    NodeUnknown {
        /// There is none of that name, says the apiserver.
        missing: bool,
        /// Why, as text.
        error: String,
    },
    /// Pods looked up past the watch: the answer to `Request::VerifyPods`.
    Checked {
        /// When they were asked for.
        asked: BootTime,
        /// Each pod, with the answer.
        pods: Vec<PodCheck>,
    },
}

/// What of the Node object tells whether this is its machine, and who cleans up on it.
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

/// One pod, looked up by its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodCheck {
    /// Its UID as the runtime knows it.
    pub uid: PodUid,
    /// There is an object of this very UID (or a mirror of it). `None`: the apiserver did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
}

/// What the kubelet's messages begin with that say why it ended a pod (eviction_manager.go and helpers.go,
/// preemption.go, nodeshutdown_manager.go). The rest of a message, and any other, may hold names.
pub const MESSAGES: [&str; 7] = [
    "The node was low on resource",
    "Usage of EmptyDir volume",
    "Pod ephemeral local storage usage exceeds",
    "Container ",
    "Preempted in order to admit critical pod",
    "Pod was preempted by Kubelet",
    "Pod was terminated in response to",
];

/// A pod as the apiserver knows it, reduced to what the join needs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ApiPod {
    /// metadata.uid: the object's. For a mirror pod this is not the static pod's UID.
    pub uid: String,
    /// metadata.namespace.
    pub namespace: String,
    /// metadata.name.
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
    /// metadata.finalizers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// spec.terminationGracePeriodSeconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// spec.restartPolicy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub restart_policy: String,
    /// status.phase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// status.reason (`Evicted`, `Terminated`, …).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What status.message begins with, if it is one of [`MESSAGES`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason of a condition DisruptionTarget that is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<String>,
    /// What its message begins with, if it is one of [`MESSAGES`]: it alone tells the kubelet's own reasons
    /// apart.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub disruption_message: String,
    /// The condition PodResizeInProgress is True (`status.resize` before 1.33).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resizes: bool,
    /// Containers by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, ApiContainer>,
}

impl ApiPod {
    /// Its phase is a final one: it gets no other sandbox.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// By its status its main containers have ended and are not started again: the kubelet stops its
    /// sidecars next, and its phase will be a final one.
    pub fn is_completing(&self) -> bool {
        let mut mains = self.containers.values().filter(|c| c.kind == ContainerKind::Main);
        mains.all(|container| self.is_done(container))
    }

    /// By its status this container has ended and is not started again.
    pub fn is_done(&self, container: &ApiContainer) -> bool {
        let last = container.terminated.iter().find(|end| end.id == container.id);
        let restarts = |end: &ApiTerminated| match self.restart_policy_of(container) {
            "Never" => false,
            "OnFailure" => end.exit_code != 0,
            _ => true,
        };
        container.id.is_some() && last.is_some_and(|end| !restarts(end))
    }

    /// The restartPolicy of a container: its own, or the pod's. A native sidecar is always restarted.
    pub fn restart_policy_of<'a>(&'a self, container: &'a ApiContainer) -> &'a str {
        match (container.kind, container.restart_policy.as_str()) {
            (ContainerKind::Sidecar, _) => "Always",
            (_, "") => &self.restart_policy,
            (_, own) => own,
        }
    }

    /// By its status nothing of it runs any more: its phase says so, or (kubelets up to 1.26 leave
    /// that at Running) all containers do that were ever made.
    pub fn is_over(&self) -> bool {
        let mut made = self.containers.values().filter(|c| c.id.is_some()).peekable();
        self.is_finished() || (made.peek().is_some() && made.all(ApiContainer::is_terminated))
    }
}

/// One container of an [`ApiPod`]: spec and status together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ApiContainer {
    /// Its kind.
    pub kind: ContainerKind,
    /// lifecycle.preStop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<Hook>,
    /// lifecycle.postStart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_start: Option<Hook>,
    /// lifecycle.stopSignal, as a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<u8>,
    /// livenessProbe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<ApiProbe>,
    /// startupProbe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup: Option<ApiProbe>,
    /// A hash of the spec's image: its name may be private, and only a change matters.
    #[serde(default)]
    pub image: u64,
    /// A hash of those of the spec's resources whose resizePolicy is RestartContainer; 0: there are none.
    #[serde(default)]
    pub resources: u64,
    /// Its own restartPolicy (ContainerRestartRules), empty if it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub restart_policy: String,
    /// status.started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<bool>,
    /// status.restartCount.
    #[serde(default)]
    pub restarts: u32,
    /// status.containerID without its scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ContainerId>,
    /// The reason of status.state.waiting, empty if it gives none; `None`: it is not waiting.
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

    /// By its status, the attempt that the status names has ended.
    pub fn is_terminated(&self) -> bool {
        self.id.is_some() && self.terminated.iter().any(|t| t.id == self.id)
    }
}

/// A liveness or startup probe.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ApiProbe {
    /// The file name of an exec probe's binary: of other probes the kernel sees no process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
    /// terminationGracePeriodSeconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// failureThreshold: the kubelet stops the container after so many failures in a row.
    #[serde(default)]
    pub failures: u32,
}

/// The kind of a container in its pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerKind {
    /// spec.containers.
    #[default]
    Main,
    /// spec.initContainers.
    Init,
    /// spec.initContainers with restartPolicy Always.
    Sidecar,
    /// spec.ephemeralContainers.
    Ephemeral,
}

/// A terminated state in a container's status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiTerminated {
    /// containerID without its scheme; `None`: the kubelet made up the last state of a container that it could
    /// not find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ContainerId>,
    /// exitCode.
    pub exit_code: i32,
    /// reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// finishedAt, whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<WallTime>,
}
