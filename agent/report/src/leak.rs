//! Leaks, and the state of leak detection.

use crate::{ids::*, labels, time::*, types::Source};
use serde::{Deserialize, Serialize};

pub use crate::ids::LeakKey;

labels! {
    /// The class of a leak. A closed set: it is a metric's label.
    pub enum LeakClass {
        /// A stopped sandbox whose pod does not exist.
        NotreadyNoPod = "notready_no_pod",
        /// A running sandbox whose pod does not exist.
        ReadyNoPod = "ready_no_pod",
        /// A stopped sandbox whose pod does not exist, kept by containers that were not removed.
        NotreadyWithContainers = "notready_with_containers",
        /// A stopped sandbox of a pod that has a newer one: the kubelet's garbage collection skips it.
        NotreadySuperseded = "notready_superseded",
        /// A running sandbox of a pod that has a newer one.
        DuplicateReady = "duplicate_ready",
        /// A stopped sandbox that its pod rightly keeps, but whose network namespace, with its addresses, is
        /// still open.
        NetnsOpen = "netns_open",
        /// A shim whose sandbox the runtime does not list.
        OrphanShim = "orphan_shim",
        /// A network namespace without a sandbox and without a process.
        OrphanNetns = "orphan_netns",
        /// A pod's cgroup without a pod and without a sandbox.
        OrphanPodCgroup = "orphan_pod_cgroup",
        /// A pod whose object still exists long after its deadline.
        StuckTerminating = "stuck_terminating",
    }

    /// The likely cause of a leak. A closed set: it is a metric's label.
    pub enum LeakCause {
        /// The kubelet's pod worker hangs in terminating (kubernetes#107730), or gave up after the runtime refused to
        /// kill (kubernetes#113145).
        PodWorkerStuck = "pod_worker_stuck",
        /// The network plugin could not release the network.
        CniDeleteFailing = "cni_delete_failing",
        /// The kubelet does not run.
        KubeletDown = "kubelet_down",
        /// The kubelet was started again a moment ago, and its garbage collection may remove this.
        CollectionPending = "collection_pending",
        /// The runtime was down during the teardown, or does not do what the kubelet requests.
        RuntimeFailing = "runtime_failing",
        /// The kubelet lost track of an older sandbox (kubernetes#113073).
        SandboxReplaced = "sandbox_replaced",
        /// The runtime no longer tracks something that it started.
        UntrackedByRuntime = "untracked_by_runtime",
        /// Processes survive.
        ProcessesRemain = "processes_remain",
        /// A volume that cannot be unmounted.
        VolumeBusy = "volume_busy",
        /// A finalizer holds the object.
        Finalizer = "finalizer",
        /// No source shows the cause.
        #[serde(other)]
        Unknown = "unknown",
    }

    /// Whether leak detection is possible, and if not, the reason. A closed set: it is a metric's label.
    #[derive(Default)]
    pub enum DetectionState {
        /// All sources are in sync.
        Possible = "possible",
        /// A source has not reported anything yet, or the host has not been surveyed.
        #[default]
        Starting = "starting",
        /// The agent runs without the apiserver (--no-api).
        NoApi = "no_api",
        /// The watch of this node's pods is not in sync.
        ApiOutOfSync = "api_out_of_sync",
        /// The container runtime does not answer.
        CriUnreachable = "cri_unreachable",
        /// The Node object could not be read.
        NodeUnknown = "node_unknown",
        /// There is no Node object of that name.
        NodeMissing = "node_missing",
        /// The Node object belongs to another machine, or was not updated since this machine booted.
        NodeForeign = "node_foreign",
    }
}

impl LeakClass {
    pub fn is_sandbox(self) -> bool {
        self.orphan().is_none() && self != Self::StuckTerminating
    }

    /// A sandbox whose pod does not exist.
    pub fn lacks_pod(self) -> bool {
        matches!(self, Self::NotreadyNoPod | Self::NotreadyWithContainers | Self::ReadyNoPod)
    }

    /// The kind of orphan, the label of `coroner_orphans`.
    pub fn orphan(self) -> Option<&'static str> {
        match self {
            Self::OrphanShim => Some("shim"),
            Self::OrphanNetns => Some("netns"),
            Self::OrphanPodCgroup => Some("pod_cgroup"),
            _ => None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Leak {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    pub class: LeakClass,
    pub key: LeakKey,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// The workload that the pod belongs to, where the apiserver has shown it since the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// metadata.attempt of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When the resource was created: the earliest possible start of the leak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Moment>,
    /// When the resource was first observed as leaked.
    pub first_observed: Moment,
    /// When the leak no longer existed; only in an answer to `after` or `since`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<Moment>,
    /// When the threshold had passed and the apiserver had confirmed the leak.
    pub confirmed: Moment,
    #[serde(default)]
    pub resources: LeakedResources,
    pub cause: LikelyCause,
    /// The evidence, in order of time if it has a time. While a node has more than 1,000 leaks and candidates, new ones
    /// have none.
    pub evidence: Vec<LeakEvidence>,
    /// The remedy, step by step. A step that begins with `$ ` is a command.
    #[serde(default)]
    pub remediation: Vec<String>,
}

impl Leak {
    /// Since when the resource has leaked at most: its creation, or its first observation.
    pub fn since(&self) -> WallTime {
        let observed = self.first_observed.time;
        self.created.map_or(observed, |created| created.time.min(observed))
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = LeakCauseDetail))]
pub struct LikelyCause {
    pub kind: LeakCause,
    #[serde(default)]
    pub message: String,
}

/// Resources of the node that a leak holds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeakedResources {
    /// The network namespace's path or name; `None`: none, or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The first few processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<LeakedContainer>,
}

/// A container that the runtime still lists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeakedContainer {
    pub name: String,
    /// Its state according to the runtime.
    pub state: ContainerState,
}

/// One piece of evidence for a leak.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeakEvidence {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Moment>,
    pub source: Source,
    pub message: String,
}

/// The state of leak detection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Detection {
    /// Whether leak detection is active, and if not, the reason. Leaks confirmed before an outage stay in the list.
    pub state: DetectionState,
    /// Why leak detection is suspended or incomplete, and the remedy, in words. Absent: neither.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Seconds of active leak detection since the agent started. While less than the threshold, an empty list proves
    /// nothing.
    pub watched_seconds: u64,
    /// Seconds that a candidate must be observed before it is confirmed.
    pub threshold_seconds: u64,
    /// Number of candidates that are not confirmed.
    pub candidate_count: usize,
}

impl Detection {
    /// Leak detection was active for long enough that an empty list means that there are no leaks.
    pub fn has_seen_enough(&self) -> bool {
        self.watched_seconds >= self.threshold_seconds
    }
}
