//! The Events that the kubelet has posted about a pod. No verdict depends on them.

use crate::{ids::PodUid, labels, time::BootTime};
use serde::{Deserialize, Serialize};

/// News of the look-up of Events.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kubelet", rename_all = "snake_case")]
pub enum LookupEvent {
    /// Whether the agent looks up the Events of pods, at the engine's request.
    Lookup { lists: bool },
    /// The Events that the kubelet has posted about a pod.
    Events {
        /// The pod's UID in the runtime.
        pod: PodUid,
        asked: BootTime,
        /// The Events; `None`: they were not listed.
        entries: Option<Vec<PostedEvent>>,
    },
}

labels! {
    /// The Events that are read, by their reasons in Kubernetes.
    pub enum EventReason {
        /// `Killing`: a container is stopped.
        Killing = "event_killing",
        Unhealthy = "event_unhealthy",
        /// `FailedPostStartHook`.
        PostStartFailed = "event_post_start_failed",
        /// `SandboxChanged`: the pod's sandbox is replaced.
        SandboxChanged = "event_sandbox_changed",
        /// `Preempting`: for a critical pod.
        Preempting = "event_preempting",
        /// `Evicted`, with the beginning of its message.
        Evicted = "event_evicted",
        /// `ExceededGracePeriod`: the container did not end in its grace period.
        ExceededGrace = "event_exceeded_grace",
        /// `FailedKillPod`.
        KillPodFailed = "event_kill_pod_failed",
        /// `DeadlineExceeded`: activeDeadlineSeconds expired.
        Deadline = "event_deadline",
        /// `NodeShutdown`, `Shutdown`.
        Shutdown = "event_shutdown",
    }

    pub enum ProbeKind {
        Liveness = "liveness",
        Readiness = "readiness",
        Startup = "startup",
    }

    /// Why the kubelet stops a container, by the message of its Event.
    pub enum KillReason {
        /// "Container … failed liveness probe, will be restarted".
        LivenessProbe = "liveness_probe",
        /// "Container … failed startup probe, will be restarted".
        StartupProbe = "startup_probe",
        /// "Container … definition changed, will be restarted".
        DefinitionChanged = "definition_changed",
        /// "Container … resize requires restart".
        Resize = "resize",
        /// "Container is in … state, try killing it before restart".
        UnknownState = "unknown_state",
        /// "FailedPostStartHook".
        PostStartHook = "post_start_hook",
        /// "Stopping container …": the pod is stopped, or has a new sandbox.
        Stopping = "stopping",
        /// Another message, which [`PostedEvent::message`] has.
        Other = "other",
    }
}

/// An Event as the kubelet posted it, at its first or at its last time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PostedEvent {
    pub time: BootTime,
    /// How far `time` may be off, in both directions, ns: an Event has whole seconds.
    pub uncertainty_ns: u64,
    #[serde(rename = "statement")]
    pub about: EventReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<KillReason>,
    /// The message of a stop, cut; of a failed stop, the words for a network that could not be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How often the Event had been posted by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub posted: Option<u32>,
}
