//! All that the engine can learn. Every input is serialisable: a recording
//! ([`crate::recording`]) is a file of these, one JSON object a line.

use super::{
    ids::{CgroupId, ContainerId, PodUid, SandboxId, Tgid},
    time::{BootTime, WallTime},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One input and the moment the agent received it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Received {
    /// The moment of receipt. The input itself may tell of an earlier moment.
    pub at: BootTime,
    /// What was received.
    #[serde(flatten)]
    pub input: Input,
}

/// All that the engine can learn.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// From the kernel programs, or from the scan of the cgroup hierarchy at start.
    Kernel(KernelEvent),
    /// From the container runtime.
    Cri(CriEvent),
    /// From the apiserver.
    Api(ApiEvent),
    /// From the host's /proc, when the engine asked for it.
    Proc(ProcReport),
    /// Evidence that will never come.
    Lost(Loss),
    /// Time passes.
    Tick,
}

/// A kernel event and the kernel's own time of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelEvent {
    /// The program's `bpf_ktime_get_boot_ns`.
    pub time: BootTime,
    /// What happened.
    #[serde(flatten)]
    pub fact: KernelFact,
}

/// What a kernel program, or the scan at start, saw.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum KernelFact {
    /// `cgroup_mkdir`, or found by the scan at start.
    CgroupCreated {
        /// The new cgroup.
        cgroup: CgroupId,
        /// Its parent, where the source knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<CgroupId>,
        /// The name of its directory, or its whole path from the hierarchy's root (then it begins
        /// with a slash).
        name: String,
        /// Found by the scan: it is older than the agent.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        scanned: bool,
    },
    /// `cgroup_rmdir`.
    CgroupRemoved {
        /// The cgroup.
        cgroup: CgroupId,
    },
    /// `cgroup_notify_populated` with 0: the last task has left.
    CgroupEmpty {
        /// The cgroup.
        cgroup: CgroupId,
    },
    /// `cgroup_notify_frozen`.
    CgroupFrozen {
        /// The cgroup.
        cgroup: CgroupId,
        /// Frozen, or thawed.
        frozen: bool,
    },
    /// `signal_generate`: somebody sent a signal to a task of a container.
    SignalGenerated(SignalGenerated),
    /// `signal_deliver`: the target takes the signal now.
    SignalDelivered {
        /// The target's cgroup.
        cgroup: CgroupId,
        /// The target.
        task: Task,
        /// The signal's number.
        signal: u8,
        /// What is installed for it.
        disposition: Disposition,
    },
    /// `sched_process_exec`: a new program in a container.
    Exec {
        /// The task's cgroup.
        cgroup: CgroupId,
        /// The task, with its new name.
        task: Task,
        /// Its parent.
        parent: Sender,
    },
    /// `sched_process_exit` of a thread group's last thread.
    Exit {
        /// The process' cgroup.
        cgroup: CgroupId,
        /// The process.
        task: Task,
        /// How it ended.
        status: ExitStatus,
        /// Its parent, where the source knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<Sender>,
    },
    /// A process found running by the scan at start.
    Running {
        /// The process' cgroup.
        cgroup: CgroupId,
        /// The process.
        task: Task,
    },
    /// `mark_victim`: the OOM killer chose this process.
    OomVictim {
        /// Its cgroup; unknown on kernels that name it by pid only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<CgroupId>,
        /// Thread id as the kernel gave it.
        pid: u32,
    },
}

/// A task of a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Thread group.
    pub tgid: Tgid,
    /// Thread.
    pub tid: u32,
    /// Thread group id in the innermost PID namespace: 1 is a container's init. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_pid: Option<u32>,
    /// `task_struct.group_leader.start_boottime`, ns: with the tgid, one process for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// `task_struct.comm`.
    pub comm: String,
}

/// The sender of a signal, or a parent: any process of the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sender {
    /// Thread group; 0 is the kernel itself (an idle or kernel context).
    pub tgid: Tgid,
    /// `task_struct.comm`.
    pub comm: String,
    /// Its cgroup, where known: the same as the target's is *inside* the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupId>,
    /// Its cgroup is one that the programs watch. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_container: Option<bool>,
}

/// What `signal_generate` shows of one signal and its target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SignalGenerated {
    /// The target's cgroup.
    pub cgroup: CgroupId,
    /// The target.
    pub target: Task,
    /// The signal's number.
    pub signal: u8,
    /// `si_code`: 0 is kill(2), 0x80 the kernel, negative sigqueue and the like.
    pub code: i32,
    /// Sent to the whole thread group.
    pub group: bool,
    /// `TRACE_SIGNAL_*`.
    pub result: SignalResult,
    /// Who sent it. Only the truth if `code` ≤ 0 or the kernel acts for a dying init.
    pub sender: Sender,
    /// The target's state, where the program could read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TargetState>,
}

/// The `result` of `signal_generate` (`include/trace/events/signal.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalResult {
    /// 0: queued, or acted on.
    Delivered,
    /// 1: thrown away. Why is told by the target's state.
    Ignored,
    /// 2: one of this number is pending already.
    AlreadyPending,
    /// 3, 4: the queue overflowed, information was lost.
    Overflow,
    /// A value this version does not know.
    Unknown,
}

/// What is installed for a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// SIG_DFL.
    Default,
    /// SIG_IGN.
    Ignore,
    /// A handler.
    Handler,
}

/// What the program read of a signal's target (`task_struct.signal`, `.sighand`, `.blocked`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetState {
    /// SIGNAL_UNKILLABLE: init of a PID namespace. Gone once a fatal signal took.
    pub unkillable: bool,
    /// SIGNAL_GROUP_EXIT: the group is exiting; with `result` Delivered and the default
    /// disposition this very signal ends it.
    pub group_exit: bool,
    /// What is installed for this signal.
    pub disposition: Disposition,
    /// This thread blocks the signal.
    pub blocked: bool,
    /// `signal->shared_pending | task->pending`, as a mask (bit n−1 is signal n), before this
    /// signal was added where it is SIGKILL's record.
    pub pending: u64,
}

/// How a process ended (wait status).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It left by itself with this code (0–255).
    Code(u8),
    /// A signal ended it; `core`: with a core dump.
    Signal {
        /// The signal's number.
        signal: u8,
        /// WCOREDUMP.
        core: bool,
    },
}

impl ExitStatus {
    /// From the kernel's wait-status encoding (`task_struct.exit_code`).
    pub fn from_wait(raw: u32) -> Self {
        match raw & 0x7f {
            0 => Self::Code(((raw >> 8) & 0xff) as u8),
            signal => Self::Signal { signal: signal as u8, core: raw & 0x80 != 0 },
        }
    }

    /// As container runtimes report it: the code, or 128 + the signal.
    pub fn runtime_code(self) -> i32 {
        match self {
            Self::Code(code) => i32::from(code),
            Self::Signal { signal, .. } => 128 + i32::from(signal),
        }
    }
}

/// What the host's /proc shows of a container that does not end: the answer to
/// `Observation::ProcessesWanted`. Names of processes and of kernel functions, nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcReport {
    /// The container's own cgroup.
    pub cgroup: CgroupId,
    /// When it was looked at, before the first file was read; `Received::at` is later.
    pub looked: BootTime,
    /// How many of its processes are not zombies. `None`: could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<u32>,
    /// The first few of those, the ones that hold up the most first, and the main process even if
    /// it is a zombie.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcProcess>,
    /// Its cgroup is frozen (`cgroup.events` of v2, `freezer.state` of v1). `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
}

/// A process as /proc shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcProcess {
    /// Thread group, as the reader's /proc numbers it.
    pub tgid: Tgid,
    /// `comm`.
    pub comm: String,
    /// `starttime` of /proc/PID/stat as ns since boot: whole clock ticks of 10 ms.
    pub started: u64,
    /// Its state; of a process whose leader is a zombie, that of the thread below.
    pub state: TaskState,
    /// The leader is a zombie and this thread of it is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// The kernel function it sleeps in (/proc/PID/wchan). `None`: runs, or not permitted
    /// (CAP_SYS_PTRACE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// The kernel functions it is in, innermost first (/proc/PID/stack: CAP_SYS_ADMIN).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

/// State of a task: the letter of /proc/PID/stat (`fs/proc/array.c`, `task_state_array`). A closed
/// set: it is a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// D: waits in the kernel, and no signal wakes it; frozen by the v1 freezer as well.
    Uninterruptible,
    /// R: runs, or wants to.
    Running,
    /// S: waits, and a signal would wake it.
    Sleeping,
    /// T or t: stopped by a signal or a tracer.
    Stopped,
    /// Z or X: dead, and not reaped.
    Zombie,
    /// Another letter.
    Other,
}

impl TaskState {
    /// From the letter.
    pub fn of(letter: char) -> Self {
        match letter {
            'D' => Self::Uninterruptible,
            'R' => Self::Running,
            'S' | 'I' => Self::Sleeping,
            'T' | 't' => Self::Stopped,
            'Z' | 'X' => Self::Zombie,
            _ => Self::Other,
        }
    }

    /// The letter as a person knows it from ps(1).
    pub fn letter(self) -> char {
        match self {
            Self::Uninterruptible => 'D',
            Self::Running => 'R',
            Self::Sleeping => 'S',
            Self::Stopped => 'T',
            Self::Zombie => 'Z',
            Self::Other => '?',
        }
    }
}

/// An answer of the container runtime, or its silence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum CriEvent {
    /// The runtime answers (again). Sent once per connection, before its first answer.
    Connected {
        /// RuntimeName and RuntimeVersion, `containerd 1.7.24`.
        runtime: String,
        /// The process behind the socket (SO_PEERCRED) and its start time, where they could be
        /// had: another one means a restart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<RuntimeProcess>,
    },
    /// A call failed; everything is unknown until the next answer.
    Unreachable {
        /// The gRPC status or the connection's error, as text.
        error: String,
    },
    /// ListPodSandbox.
    Sandboxes {
        /// When the call was made; `Received::at` is when the answer came.
        asked: BootTime,
        /// The filter that was used: `None` for the full list.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only: Option<SandboxId>,
        /// The answer, as a set.
        sandboxes: Vec<CriSandbox>,
    },
    /// ListContainers.
    Containers {
        /// When the call was made.
        asked: BootTime,
        /// The filter that was used: containers of this sandbox only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only: Option<SandboxId>,
        /// The answer, as a set.
        containers: Vec<CriContainer>,
    },
    /// ContainerStatus of an exited container, once.
    ContainerExited(CriExit),
    /// Verbose ContainerStatus names the shim that runs the container.
    RuntimeType {
        /// The container.
        container: ContainerId,
        /// `io.containerd.kata.v2`.
        runtime: String,
    },
    /// Where a container's processes are, for those whose cgroup no path gives away.
    ContainerCgroup {
        /// The container.
        container: ContainerId,
        /// The cgroup of its main process.
        cgroup: CgroupId,
    },
    /// ContainerStatus says with which signal the container is to be stopped.
    StopSignal {
        /// The container.
        container: ContainerId,
        /// The signal's number.
        signal: u8,
    },
}

/// The process that answers at the CRI socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuntimeProcess {
    /// Its pid.
    pub pid: u32,
    /// Its start time in clock ticks (/proc/PID/stat, field 22).
    pub started: u64,
}

/// A pod sandbox as ListPodSandbox tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriSandbox {
    /// Its id.
    pub id: SandboxId,
    /// metadata.uid.
    pub pod: PodUid,
    /// metadata.name.
    pub name: String,
    /// metadata.namespace.
    pub namespace: String,
    /// metadata.attempt.
    pub attempt: u32,
    /// SANDBOX_READY.
    pub ready: bool,
    /// created_at.
    pub created: WallTime,
    /// Runtime handler, empty for the default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handler: String,
    /// `kubernetes.io/config.source`: `api`, `file`, `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_source: Option<String>,
}

/// A container as ListContainers tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriContainer {
    /// Its id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// metadata.name.
    pub name: String,
    /// metadata.attempt: the restart count.
    pub attempt: u32,
    /// Its state.
    pub state: CriState,
    /// created_at.
    pub created: WallTime,
    /// Label `io.kubernetes.pod.uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodUid>,
    /// Annotation `io.kubernetes.pod.terminationGracePeriod`, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// Annotation `io.kubernetes.container.preStopHandler`, reduced to kind and binary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<Hook>,
}

/// State of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CriState {
    /// CONTAINER_CREATED.
    Created,
    /// CONTAINER_RUNNING.
    Running,
    /// CONTAINER_EXITED.
    Exited,
    /// CONTAINER_UNKNOWN, or a value this version does not know.
    Unknown,
}

/// ContainerStatus of an exited container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriExit {
    /// The container.
    pub container: ContainerId,
    /// started_at, where set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<WallTime>,
    /// finished_at, where set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<WallTime>,
    /// exit_code.
    pub exit_code: i32,
    /// reason: `Completed`, `Error`, `OOMKilled`, `Unknown`.
    pub reason: String,
}

/// A lifecycle hook: its kind, and for exec its binary. Never its arguments.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// A process in the container; the binary's file name.
    Exec(String),
    /// A request by the kubelet: no process in the container.
    HttpGet,
    /// A connection by the kubelet: no process in the container.
    TcpSocket,
    /// The kubelet waits this many seconds: no process in the container.
    Sleep(i64),
}

impl Hook {
    /// An exec hook, reduced to its binary's file name: arguments may hold secrets, also those
    /// that somebody wrote into the same word as the binary.
    pub fn exec(command: &str) -> Self {
        Self::Exec(binary_name(command))
    }
}

/// The file name of the binary in a command's first word, and nothing else of it.
pub fn binary_name(command: &str) -> String {
    let binary = command.split_whitespace().next().unwrap_or_default();
    binary.rsplit('/').next().unwrap_or(binary).to_owned()
}

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
    /// By its status nothing of it runs any more: its phase says so, or (kubelets up to 1.26 leave
    /// that at Running) all containers do that were ever made.
    pub fn is_over(&self) -> bool {
        let mut made = self.containers.values().filter(|c| c.id.is_some()).peekable();
        let over = matches!(self.phase.as_str(), "Succeeded" | "Failed");
        over || (made.peek().is_some() && made.all(ApiContainer::is_terminated))
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

/// Evidence that will never come: counted, and named on each timeline it may have touched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// What was lost.
    pub kind: LossKind,
    /// How many more since the last report.
    pub count: u64,
}

/// Kinds of loss. A closed set: it is a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// The ring for what decides was full.
    DecidingRingFull,
    /// The ring for the rest was full.
    DetailRingFull,
    /// A container used up its budget of detail records.
    BudgetSpent,
    /// A record of an unknown kind or a wrong length.
    Undecodable,
    /// The map of known cgroups was full.
    CgroupMapFull,
    /// The engine's own bound was reached and something was forgotten.
    EngineFull,
    /// A cgroup that nobody explained in time.
    NeverResolved,
    /// Only in a replay: the recording lacks inputs that the agent had.
    Unrecorded,
}

impl LossKind {
    /// Only the ring for the rest was hit: deliveries of signals, processes from outside, what a
    /// container does among its own. What decides was still told.
    pub fn spares_what_decides(self) -> bool {
        matches!(self, Self::DetailRingFull | Self::BudgetSpent)
    }
}
