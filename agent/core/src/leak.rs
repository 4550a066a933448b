//! The vocabulary of leaks, as reported.

use super::{
    ids::{CgroupId, PodRef, PodUid, SandboxId},
    labels,
    time::{BootTime, WallTime},
    types::Source,
};
use serde::{Deserialize, Serialize};

labels! {
    /// What was leaked. A closed set: it is a metric's label.
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
        /// A shim whose sandbox the runtime does not know.
        OrphanShim = "orphan_shim",
        /// A network namespace without a sandbox and without a process.
        OrphanNetns = "orphan_netns",
        /// A pod's cgroup without a pod and without a sandbox.
        OrphanPodCgroup = "orphan_pod_cgroup",
        /// A pod whose object still exists long after its deadline.
        StuckTerminating = "stuck_terminating",
    }
}

impl LeakClass {
    /// The class is about a sandbox.
    pub fn is_sandbox(self) -> bool {
        self.orphan().is_none() && self != Self::StuckTerminating
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

/// The identity of a leaked thing: one leak each.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(tag = "thing", rename_all = "snake_case")]
pub enum LeakKey {
    /// A sandbox.
    Sandbox {
        /// The sandbox's id.
        id: SandboxId,
    },
    /// A shim.
    Shim {
        /// The shim's PID.
        pid: u32,
        /// Start time, clock ticks.
        started: u64,
        /// The sandbox or container it was started for.
        id: String,
    },
    /// A network namespace.
    Netns {
        /// The file's name.
        name: String,
        /// Its inode.
        inode: u64,
    },
    /// A pod's cgroup.
    PodCgroup {
        /// The pod in the cgroup's name.
        pod: PodUid,
        /// The cgroup's id.
        cgroup: CgroupId,
    },
    /// A pod.
    Pod {
        /// The pod's UID.
        uid: PodUid,
    },
}

/// A leak.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leak {
    /// The class.
    pub class: LeakClass,
    /// The leaked thing.
    pub key: LeakKey,
    /// The pod, as far as known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// metadata.attempt of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When the thing was created: the earliest beginning of the leak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<WallTime>,
    /// When it was first observed as leaked.
    pub first_observed: WallTime,
    /// It was leaked before the agent started, for an unknown time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preexisting: bool,
    /// When the threshold had passed and the apiserver had confirmed it.
    pub confirmed: WallTime,
    /// The resources that it holds.
    pub resources: LeakedResources,
    /// The likely cause.
    pub cause: LikelyCause,
    /// For a stuck pod: what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_on: Option<BlockedOn>,
    /// The evidence, in order of time where there is one. On a node with more than 1,000 leaks the later ones
    /// have no evidence and no remediation.
    pub evidence: Vec<LeakEvidence>,
    /// Remediation steps, in order. Lines that begin with `$ ` are commands for the node's shell.
    pub remediation: Vec<String>,
}

/// Resources of the node that a leak holds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
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
    /// Containers that the runtime still lists, by name and state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
}

/// One piece of evidence.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct LeakEvidence {
    /// The time, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<WallTime>,
    /// The source.
    pub source: Source,
    /// One sentence.
    pub message: String,
}

/// The likely cause and its evidence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LikelyCause {
    /// The cause.
    pub kind: LeakCause,
    /// One sentence.
    pub message: String,
}

labels! {
    /// Why something leaked. A closed set: it is a metric's label.
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
}

labels! {
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
}

labels! {
    /// Whether leak detection is possible, and if not why. A closed set: it is a metric's label.
    #[derive(Default)]
    pub enum DetectionState {
        /// All sources are in sync.
        Possible = "possible",
        /// A source has not reported anything yet.
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
        /// The Node object is another machine's, or was not updated since this machine booted.
        NodeForeign = "node_foreign",
    }
}

/// A leak that an earlier run of the agent had stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PersistedLeak {
    /// The leaked thing.
    pub key: LeakKey,
    /// When it was first observed as leaked.
    pub first_observed: BootTime,
    /// It was leaked before the agent first started.
    pub preexisting: bool,
}
