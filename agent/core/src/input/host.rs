//! The host's file systems: what remains of pods on the node, and whether the node's daemons run. All paths
//! are below `--host-root`.

use crate::report::{BootTime, CgroupId, PodUid};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "host", rename_all = "snake_case")]
pub enum HostEvent {
    /// The current boot, at the start (`/proc/sys/kernel/random/boot_id`, the same in every namespace).
    Boot {
        /// The boot id, which the Node object must have too; `None`: could not be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot_id: Option<String>,
    },
    /// The state of a daemon: at the start, when it started or ended, and with every survey.
    Daemon { daemon: Daemon, state: DaemonState },
    /// A survey of everything that remains of pods: when the runtime has answered, then every minute.
    Survey(HostSurvey),
}

/// The daemons that clean up after pods.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Daemon {
    /// The container runtime: the process behind the CRI socket.
    Runtime,
    /// The kubelet, or the process that contains it (k3s, kubelite).
    Kubelet,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum DaemonState {
    Running {
        process: DaemonProcess,
    },
    /// The process ended: now, if a pidfd reported it, otherwise since the last survey. Repeated with every
    /// survey until another process runs; the first report has the time.
    Ended {
        process: DaemonProcess,
    },
    /// No process of that name runs, and none is known to have run.
    Absent,
    /// Several processes match, or none could be read: nothing is concluded.
    Unknown,
}

/// A process of the host, identified by PID and start time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DaemonProcess {
    /// The PID on the host.
    pub pid: u32,
    /// Start time in clock ticks (/proc/PID/stat, field 22).
    pub started: u64,
}

/// What remains of pods on the host. A field is `None` if it could not be read: then nothing follows from
/// absence.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostSurvey {
    /// When the survey began. `Received::at` is when it was complete.
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
    /// Mounts below the kubelet's pod directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<PodVolume>>,
    /// What a person on the node can use.
    #[serde(default, skip_serializing_if = "NodeTools::is_unknown")]
    pub tools: NodeTools,
}

/// What a person on the node can use, for remedies. `None`: unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeTools {
    /// The systemd unit of the kubelet's process, such as `k3s-agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<String>,
    /// The systemd unit of the runtime's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// The command of crictl, such as `k3s crictl`; empty: the node has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crictl: Option<String>,
}

impl NodeTools {
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// What is seen now; of a daemon that does not run, what was seen before.
    pub fn update(&mut self, seen: Self) {
        let Self { kubelet, runtime, crictl } = std::mem::take(self);
        self.kubelet = seen.kubelet.or(kubelet);
        self.runtime = seen.runtime.or(runtime);
        self.crictl = seen.crictl.or(crictl);
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shim {
    pub process: DaemonProcess,
    /// The sandbox or container that it was started for (`-id`, conmon's `-c`).
    pub id: String,
}

/// A network namespace kept by a mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NetNamespace {
    /// The file's name, `cni-…`.
    pub name: String,
    /// The namespace's inode; `None`: nothing is mounted there any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// Number of processes of the host in it, by their main threads.
    pub processes: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodCgroup {
    /// The pod in the cgroup's name.
    pub pod: PodUid,
    pub cgroup: CgroupId,
    /// The path from the hierarchy's root.
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
    pub pod: PodUid,
    /// `PLUGIN/NAME`, such as `kubernetes.io~nfs/data`.
    pub volume: String,
}
