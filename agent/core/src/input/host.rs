//! What the host's file systems tell: what is left on the node of pods, and whether the daemons
//! that should have cleaned up live. All of it is read below `--host-root`.

use crate::{
    ids::{CgroupId, PodUid},
    time::BootTime,
};
use serde::{Deserialize, Serialize};

/// What the host tells.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "host", rename_all = "snake_case")]
pub enum HostEvent {
    /// The boot that this is, at the start (`/proc/sys/kernel/random/boot_id`, the same in every
    /// namespace).
    Boot {
        /// What the Node object must say too. `None`: could not be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot_id: Option<String>,
    },
    /// A daemon was looked for: at the start, when it began or ended, and after that with every
    /// survey.
    Daemon {
        /// Which.
        daemon: Daemon,
        /// What was seen.
        state: DaemonState,
    },
    /// All of what is left of pods, every half minute or so.
    Survey(HostSurvey),
}

/// The daemons that clean up after pods. A closed set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Daemon {
    /// The container runtime: the process behind the CRI socket.
    Runtime,
    /// The kubelet, or what it is part of (k3s, kubelite).
    Kubelet,
}

/// A daemon's process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum DaemonState {
    /// It runs.
    Running {
        /// Its process.
        process: DaemonProcess,
    },
    /// Its process ended: at this moment where a pidfd said so, otherwise since the last survey.
    /// Said again with every survey until another runs; the first tells when.
    Ended {
        /// The process that it was.
        process: DaemonProcess,
    },
    /// No process of that name runs. Nothing is known of earlier ones.
    Absent,
    /// Several might be it, or none could be looked at: nothing is concluded.
    Unknown,
}

/// A process of the host, for ever: its number and when it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DaemonProcess {
    /// Its pid, as the host numbers it.
    pub pid: u32,
    /// Its start time in clock ticks (/proc/PID/stat, field 22).
    pub started: u64,
}

/// What is left of pods on the host, as one look found it. `None` each: could not be looked at, so
/// that nothing follows from its absence.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostSurvey {
    /// When the look began; `Received::at` is when it was complete.
    pub asked: BootTime,
    /// Shims of this runtime (containerd's of its `k8s.io` namespace, CRI-O's conmon).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shims: Option<Vec<Shim>>,
    /// Network namespaces that a runtime made (`/run/netns/cni-…`, or a bare UUID for CRI-O).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Vec<NetNamespace>>,
    /// Cgroups of this kubelet's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cgroups: Option<Vec<PodCgroup>>,
    /// Mounts below pods' directories of the kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<PodVolume>>,
}

/// A runtime's shim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shim {
    /// Its process.
    pub process: DaemonProcess,
    /// `comm`.
    pub comm: String,
    /// What it was started for (`-id`, conmon's `-c`): a sandbox, or a container.
    pub id: String,
    /// Its children that live: what it still holds.
    pub children: u32,
}

/// A network namespace that is kept by a mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NetNamespace {
    /// The file's name, `cni-…`.
    pub name: String,
    /// The namespace's inode. `None`: nothing is mounted there any more, an empty file is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// How many processes of the host are in it, by their main threads.
    pub processes: u32,
}

/// A pod's cgroup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodCgroup {
    /// The pod that its name tells.
    pub pod: PodUid,
    /// Its id.
    pub cgroup: CgroupId,
    /// Its path from the hierarchy's root.
    pub path: String,
    /// Tasks in it and below.
    pub tasks: u32,
    /// The first few of their processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
}

/// A mount below a pod's directory (`/var/lib/kubelet/pods/UID/volumes/PLUGIN/NAME`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodVolume {
    /// The pod.
    pub pod: PodUid,
    /// `PLUGIN/NAME`, such as `kubernetes.io~nfs/data`.
    pub volume: String,
}
