//! What was left behind, as the world may learn it: the vocabulary of leaks.

use super::{
    ids::{CgroupId, PodUid, SandboxId},
    labels,
    observation::{PodRef, Source},
    time::{BootTime, WallTime},
};
use serde::{Deserialize, Serialize};

/// What was left behind. A closed set: it is a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakClass {
    /// A stopped sandbox whose pod does not exist.
    NotreadyNoPod,
    /// A sandbox that runs, and whose pod does not exist.
    ReadyNoPod,
    /// A stopped sandbox whose pod does not exist, kept by containers that are not removed.
    NotreadyWithContainers,
    /// A stopped sandbox of a pod that exists and has a newer one: the kubelet's garbage
    /// collection passes it by.
    NotreadySuperseded,
    /// A sandbox that runs beside a newer one of the same pod.
    DuplicateReady,
    /// The pod exists and rightly keeps its stopped sandbox, but that still holds its network
    /// namespace and with it the addresses.
    NetnsOpen,
    /// A shim whose sandbox the runtime does not know.
    OrphanShim,
    /// A network namespace of no sandbox and no process.
    OrphanNetns,
    /// A pod's cgroup without pod and without sandbox.
    OrphanPodCgroup,
    /// A pod whose object has been waiting to go for long after its deadline.
    StuckTerminating,
}

impl LeakClass {
    /// It is a sandbox.
    pub fn is_sandbox(self) -> bool {
        matches!(
            self,
            Self::NotreadyNoPod
                | Self::ReadyNoPod
                | Self::NotreadyWithContainers
                | Self::NotreadySuperseded
                | Self::DuplicateReady
                | Self::NetnsOpen
        )
    }

    /// The kind of orphan that it is, `coroner_orphans`' label.
    pub fn orphan(self) -> Option<&'static str> {
        match self {
            Self::OrphanShim => Some("shim"),
            Self::OrphanNetns => Some("netns"),
            Self::OrphanPodCgroup => Some("pod_cgroup"),
            _ => None,
        }
    }
}

/// Which thing it is: one leak for each.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(tag = "thing", rename_all = "snake_case")]
pub enum LeakKey {
    /// A sandbox.
    Sandbox {
        /// Its id.
        id: SandboxId,
    },
    /// A shim.
    Shim {
        /// Its pid.
        pid: u32,
        /// Its start time, clock ticks.
        started: u64,
        /// What it was started for.
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
        /// The pod that its name tells.
        pod: PodUid,
        /// Its id.
        cgroup: CgroupId,
    },
    /// A pod.
    Pod {
        /// Its UID.
        uid: PodUid,
    },
}

/// Something that was left behind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leak {
    /// What.
    pub class: LeakClass,
    /// Which.
    pub key: LeakKey,
    /// Its pod, as far as known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// metadata.attempt of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Since when at most: it was made then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<WallTime>,
    /// Since when it is certain: it was first observed as left behind then.
    pub observed: WallTime,
    /// The agent found it so when it started: it may have been so for longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub since_start: bool,
    /// When the threshold had passed and the apiserver had confirmed it.
    pub confirmed: WallTime,
    /// What it holds.
    pub holds: Holds,
    /// Why it is there.
    pub cause: LikelyCause,
    /// Of a pod that is stuck: what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckReason>,
    /// What is known, in order of time where there is one. On a node with more than 1,000 leaks the
    /// later ones have none, and no remedy.
    pub evidence: Vec<Evidence>,
    /// What to do, in order. Lines that begin with `$ ` are commands for the node's shell.
    pub remedy: Vec<String>,
}

/// What a leak holds of the node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Holds {
    /// A network namespace: its path or name. `None`: none, or not known.
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

/// One thing that is known.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Evidence {
    /// When, where it is a moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<WallTime>,
    /// Who says so.
    pub source: Source,
    /// What, as one sentence for a person.
    pub sentence: String,
}

/// Why it is there, and what that rests on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LikelyCause {
    /// Why.
    pub kind: LeakCause,
    /// One sentence for a person.
    pub sentence: String,
}

/// Why something was left behind. A closed set: it is a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakCause {
    /// The kubelet's pod worker was made anew for a pod that had gone, and hangs in terminating
    /// (kubernetes#107730).
    PodWorkerStuck,
    /// The kubelet's pod worker gave up after the runtime had refused to kill (kubernetes#113145).
    PodWorkerGaveUp,
    /// The runtime went away in the middle of the teardown.
    RuntimeRestarted,
    /// The network plugin could not give the network back.
    CniDeleteFailing,
    /// The kubelet does not run.
    KubeletDown,
    /// The runtime does not do what it is asked to.
    RuntimeFailing,
    /// The kubelet lost track of an older sandbox (kubernetes#113073).
    SandboxReplaced,
    /// The runtime no longer tracks what it had started.
    UntrackedByRuntime,
    /// Processes that do not end.
    ProcessesRemain,
    /// A volume that cannot be unmounted.
    VolumeBusy,
    /// Somebody holds the object by a finalizer.
    Finalizer,
    /// The sources do not tell.
    Unknown,
}

/// What a pod that is stuck waits for. A closed set: it is a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckReason {
    /// The kubelet does not run.
    KubeletGone,
    /// A process that will not die.
    Process,
    /// The runtime does not do what it is asked to.
    RuntimeFailing,
    /// A volume is still mounted below the pod's directory.
    VolumeMounted,
    /// The pod's cgroup has tasks, though no container has.
    CgroupBusy,
    /// All is done on this node; a finalizer holds the object.
    Finalizer,
    /// The sources do not tell.
    Unknown,
}

/// Whether leaks can be judged at this moment, and if not why. A closed set: a metric's label.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// All sources are in sync.
    Possible,
    /// Nothing was heard of a source yet.
    #[default]
    Starting,
    /// The agent does without the apiserver (--no-api).
    NoApi,
    /// The watch of this node's pods is not in sync.
    ApiOutOfSync,
    /// The container runtime does not answer.
    CriUnreachable,
    /// The Node object could not be had.
    NodeUnknown,
    /// There is no Node object of that name.
    NodeMissing,
    /// The Node object is another machine's, or was not updated since this one booted.
    NodeForeign,
}

/// What an earlier run of the agent had found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recollection {
    /// Which thing.
    pub key: LeakKey,
    /// Since when it was observed as left behind.
    pub observed: BootTime,
    /// It was so found when the agent started first.
    pub since_start: bool,
}

labels! {
    LeakClass {
        NotreadyNoPod = "notready_no_pod", ReadyNoPod = "ready_no_pod",
        NotreadyWithContainers = "notready_with_containers",
        NotreadySuperseded = "notready_superseded", DuplicateReady = "duplicate_ready",
        NetnsOpen = "netns_open", OrphanShim = "orphan_shim", OrphanNetns = "orphan_netns",
        OrphanPodCgroup = "orphan_pod_cgroup", StuckTerminating = "stuck_terminating",
    }
    LeakCause {
        PodWorkerStuck = "pod_worker_stuck", PodWorkerGaveUp = "pod_worker_gave_up",
        RuntimeRestarted = "runtime_restarted", CniDeleteFailing = "cni_delete_failing",
        KubeletDown = "kubelet_down", RuntimeFailing = "runtime_failing",
        SandboxReplaced = "sandbox_replaced", UntrackedByRuntime = "untracked_by_runtime",
        ProcessesRemain = "processes_remain", VolumeBusy = "volume_busy", Finalizer = "finalizer", Unknown = "unknown",
    }
    StuckReason {
        KubeletGone = "kubelet_gone", Process = "process", RuntimeFailing = "runtime_failing",
        VolumeMounted = "volume_mounted", CgroupBusy = "cgroup_busy", Finalizer = "finalizer",
        Unknown = "unknown",
    }
    Judgement {
        Possible = "possible", Starting = "starting", NoApi = "no_api",
        ApiOutOfSync = "api_out_of_sync", CriUnreachable = "cri_unreachable",
        NodeUnknown = "node_unknown", NodeMissing = "node_missing", NodeForeign = "node_foreign",
    }
}
