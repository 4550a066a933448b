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
    /// Pods looked up past the watch: the answer to `Observation::PodsWanted`.
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
    /// The reason of a condition DisruptionTarget that is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<String>,
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
        let fails = |end: &ApiTerminated| end.exit_code != 0;
        let is_done = |container: &ApiContainer| {
            let last = container.terminated.iter().find(|end| end.id == container.id);
            match self.restart_policy.as_str() {
                "Never" => container.id.is_some() && last.is_some(),
                "OnFailure" => container.id.is_some() && last.is_some_and(|end| !fails(end)),
                _ => false,
            }
        };
        let mut mains = self.containers.values().filter(|c| c.kind == ContainerKind::Main);
        mains.all(is_done)
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
    /// lifecycle.stopSignal, as a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<u8>,
    /// It has a liveness probe.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub liveness_probe: bool,
    /// It has a startup probe.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub startup_probe: bool,
    /// The file name of an exec liveness probe's binary: of that probe the kernel sees a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_exec: Option<String>,
    /// The same of an exec startup probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_exec: Option<String>,
    /// status.started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<bool>,
    /// status.restartCount.
    #[serde(default)]
    pub restarts: u32,
    /// status.containerID without its scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ContainerId>,
    /// status.state.terminated and status.lastState.terminated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terminated: Vec<ApiTerminated>,
}

impl ApiContainer {
    /// By its status, the attempt that the status names has ended.
    pub fn is_terminated(&self) -> bool {
        self.id.is_some() && self.terminated.iter().any(|t| t.id == self.id)
    }
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
    /// containerID without its scheme; the kubelet leaves it out when it made the state up.
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
