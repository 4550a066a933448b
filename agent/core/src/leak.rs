//! The vocabulary of leaks, as reported. `coroner-api` has their form on the wire.

use super::{
    ids::PodRef,
    input::{ContainerState, Daemon, EventReason, NodeTools, Workload},
    labels,
    time::WallTime,
};
use serde::{Deserialize, Serialize};

pub use super::ids::LeakKey;

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
        /// The kubelet created a pod worker again for a pod that was gone, and it hangs in terminating
        /// (kubernetes#107730).
        PodWorkerStuck = "pod_worker_stuck",
        /// The kubelet's pod worker gave up after the runtime refused to kill (kubernetes#113145).
        PodWorkerGaveUp = "pod_worker_gave_up",
        /// The runtime went down during the teardown.
        RuntimeRestarted = "runtime_restarted",
        /// The network plugin could not release the network.
        CniDeleteFailing = "cni_delete_failing",
        /// The kubelet does not run.
        KubeletDown = "kubelet_down",
        /// The runtime fails to do what the kubelet requests.
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
        Unknown = "unknown",
    }

    /// What a stuck pod waits for. A closed set: it is a metric's label.
    pub enum BlockedOn {
        /// The kubelet does not run.
        KubeletGone = "kubelet_gone",
        /// A process that survives SIGKILL.
        Process = "process",
        /// The runtime fails to do what the kubelet requests.
        RuntimeFailing = "runtime_failing",
        /// A volume is still mounted below the pod's directory.
        VolumeMounted = "volume_mounted",
        /// The pod's cgroup has tasks, although no container has.
        CgroupBusy = "cgroup_busy",
        /// Everything on this node is done; a finalizer holds the object.
        Finalizer = "finalizer",
        /// No source shows it.
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
    /// The class is about a sandbox.
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

/// A leak.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leak {
    /// The class.
    pub class: LeakClass,
    /// The leaked thing.
    pub key: LeakKey,
    /// The pod, as far as known.
    pub pod: Option<PodRef>,
    /// The workload that the pod belongs to, where the apiserver has shown it to this agent.
    pub workload: Option<Workload>,
    /// metadata.attempt of the sandbox.
    pub attempt: Option<u32>,
    /// When the thing was created: the earliest beginning of the leak.
    pub created: Option<WallTime>,
    /// When it was first observed as leaked.
    pub first_observed: WallTime,
    /// It was leaked before detection began, for an unknown time.
    pub preexisting: bool,
    /// When the threshold had passed and the apiserver had confirmed it.
    pub confirmed: WallTime,
    /// The resources that it holds.
    pub resources: LeakedResources,
    /// The likely cause.
    pub cause: LikelyCause,
    /// For a stuck pod: what it waits for.
    pub blocked_on: Option<BlockedOn>,
    /// The evidence, in order of time where there is one. On a node with more than 1,000 leaks the later ones
    /// have none.
    pub evidence: Vec<LeakEvidence>,
    /// For the remedy.
    pub tools: NodeTools,
}

/// Resources of the node that a leak holds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeakedResources {
    /// The network namespace's path or name; `None`: none, or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// A cgroup's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The first few processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
    /// Containers that the runtime still lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<LeakedContainer>,
}

/// A container that the runtime still lists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeakedContainer {
    /// The container's name.
    pub name: String,
    /// Its state according to the runtime.
    pub state: ContainerState,
}

/// One piece of evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeakEvidence {
    /// The time, where there is one.
    pub at: Option<WallTime>,
    /// The content.
    pub kind: LeakEvidenceKind,
}

/// The content of a piece of evidence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LeakEvidenceKind {
    /// The apiserver was queried directly for a pod of this UID.
    PodQueried {
        /// Whether the apiserver has such a pod.
        exists: bool,
    },
    /// No record of the pod's object: its deletion was not observed, or so long ago that it was evicted.
    ObjectUnknown,
    /// The pod's deletion was requested.
    DeletionRequested {
        /// The grace period, seconds; 0: force deletion.
        #[serde(rename = "graceSeconds")]
        grace_seconds: i64,
    },
    /// The pod's object was deleted.
    ObjectDeleted {
        /// The object was missing in a new list, and was deleted at most this many seconds before; `None`: the deletion
        /// was observed.
        #[serde(rename = "withinSeconds", default, skip_serializing_if = "Option::is_none")]
        within_seconds: Option<u64>,
    },
    /// The object's finalizers.
    Finalizers {
        /// The names of the finalizers.
        names: Vec<String>,
    },
    /// The sandbox is ready.
    SandboxReady,
    /// The sandbox is not ready.
    SandboxStopped {
        /// Whether the runtime had listed the sandbox as ready before.
        #[serde(rename = "seenReady")]
        seen_ready: bool,
    },
    /// The sandbox used the host's network.
    HostNetwork,
    /// The sandbox's network namespace.
    NetworkNamespace {
        /// Whether the network namespace is still open.
        open: bool,
        /// The path, if the network namespace is open.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
    /// The runtime refused the status of the sandbox.
    StatusRefused {
        /// The gRPC status code.
        code: String,
    },
    /// A container is alive according to the kernel.
    ContainerAlive {
        /// The container's name.
        name: String,
        /// Its state according to the runtime.
        state: ContainerState,
        /// The last signal that was sent to the container from outside since the end of the pod.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<u8>,
        /// Which process survives SIGKILL, and where it hangs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unkillable: Option<String>,
    },
    /// The runtime lists a container.
    ContainerListed {
        /// The container's name.
        name: String,
        /// Its state.
        state: ContainerState,
    },
    /// Calls to the runtime failed.
    RuntimeFailed {
        /// The error of the first call.
        error: String,
        /// Its gRPC status code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// How long the runtime did not answer, milliseconds; `None`: it does not answer yet.
        #[serde(rename = "outageMs", default, skip_serializing_if = "Option::is_none")]
        outage_ms: Option<u64>,
        /// Another process answered afterwards; `None`: unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restarted: Option<bool>,
    },
    /// A daemon's process started.
    DaemonStarted {
        /// The daemon.
        daemon: Daemon,
        /// The process.
        pid: u32,
    },
    /// A daemon's process ended.
    DaemonEnded {
        /// The daemon.
        daemon: Daemon,
        /// The process.
        pid: u32,
    },
    /// The kubelet does not run.
    KubeletDown {
        /// Its version, from the Node object.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    },
    /// The kubelet runs.
    KubeletRunning {
        /// Its version, from the Node object.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
        /// Its process.
        pid: u32,
        /// Whether the kubelet started after the end of the pod, or this is unknown.
        restarted: bool,
    },
    /// The Node object names the kubelet's version; its process was not found.
    KubeletVersion {
        /// The version.
        version: String,
    },
    /// The runtime lists nothing that the shim, network namespace or cgroup belongs to.
    NotListed,
    /// The shim runs.
    ShimRunning {
        /// `comm`.
        comm: String,
        /// Number of its children.
        children: u32,
    },
    /// Tasks in the cgroup and below, or in the network namespace.
    Tasks {
        /// Number of tasks.
        count: u32,
    },
    /// Volumes are still mounted below the pod's directory.
    VolumesMounted {
        /// `PLUGIN/NAME` of each.
        volumes: Vec<String>,
    },
    /// An Event of the kubelet about a failure.
    EventPosted {
        /// The Event.
        event: EventReason,
        /// How often in a row.
        count: u32,
        /// The container.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        container: Option<String>,
    },
}

/// The likely cause, and what its sentence needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LikelyCause {
    /// The cause.
    pub kind: LeakCause,
    /// The container, volume or finalizer.
    pub name: Option<String>,
    /// The kubelet's version, from the Node object.
    pub kubelet_version: Option<String>,
    /// The runtime around the pod's end; `None`: the pod's end was not observed.
    pub runtime: Option<RuntimeAtEnd>,
}

/// The runtime around a pod's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RuntimeAtEnd {
    /// No failure is known.
    Answered,
    /// Calls failed; the process was the same before and after.
    Failed,
    /// The runtime was down: another process answered afterwards, or that is unknown.
    Down,
}
