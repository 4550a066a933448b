//! What the kernel programs tell, and the scan of the cgroup hierarchy at start.

use crate::{
    ids::{CgroupId, Tgid},
    time::BootTime,
};
use serde::{Deserialize, Serialize};

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
    /// A container's budget of detail records is spent: of its own affairs nothing more is told.
    BudgetSpent {
        /// The container's cgroup, or one below it.
        cgroup: CgroupId,
        /// When it has one again.
        until: BootTime,
    },
    /// `zap_pid_ns_processes`: what the kernel killed when a container's PID 1 exited. Comes when the
    /// container's cgroup has become empty; not at all if there was nothing to kill.
    NamespaceKilled(NamespaceKilled),
}

impl KernelFact {
    /// The cgroup that it is about; `None`: not known.
    pub fn cgroup(&self) -> Option<CgroupId> {
        match self {
            Self::CgroupCreated { cgroup, .. }
            | Self::CgroupRemoved { cgroup }
            | Self::CgroupEmpty { cgroup }
            | Self::CgroupFrozen { cgroup, .. }
            | Self::SignalDelivered { cgroup, .. }
            | Self::Exec { cgroup, .. }
            | Self::Exit { cgroup, .. }
            | Self::Running { cgroup, .. }
            | Self::BudgetSpent { cgroup, .. } => Some(*cgroup),
            Self::SignalGenerated(signal) => Some(signal.cgroup),
            Self::NamespaceKilled(killed) => Some(killed.cgroup),
            Self::OomVictim { cgroup, .. } => *cgroup,
        }
    }

    /// The process in that cgroup that it is about.
    pub fn process(&self) -> Option<Tgid> {
        match self {
            Self::SignalGenerated(signal) => Some(signal.target.tgid),
            Self::SignalDelivered { task, .. }
            | Self::Exec { task, .. }
            | Self::Exit { task, .. }
            | Self::Running { task, .. } => Some(task.tgid),
            _ => None,
        }
    }
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

/// The processes that the kernel killed because their PID namespace lost its PID 1, the container's
/// main process (`zap_pid_ns_processes`, kernel/pid_namespace.c). Counted by the kernel programs, each
/// thread group once, however many there are; one that was dying already is not among them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamespaceKilled {
    /// The container's own cgroup, whichever below it the processes were in.
    pub cgroup: CgroupId,
    /// The PID 1.
    pub init: Tgid,
    /// How many were killed, in namespaces within too.
    pub killed: u32,
    /// Of these, how many had a parent outside of any container (hooks, probes, `kubectl exec`): they
    /// are neither in `sent` nor in `examples`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub entered: u32,
    /// Besides `killed`, at least how many the PID 1 of a namespace within killed first, which was
    /// dying too. Whether they had been sent anything is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nested: u32,
    /// Some signals to processes of this container were not counted: `sent` may be too low.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// Signals that some of them had been sent at any time (`__send_signal_locked`,
    /// kernel/signal.c), whether these were thrown away or not. Not SIGKILL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<SentTo>,
    /// Some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<KilledProcess>,
}

impl NamespaceKilled {
    /// How many of the container's own processes had not been sent this signal.
    pub fn without(&self, signal: u8) -> u32 {
        let sent = self.sent.iter().find(|sent| sent.signal == signal).map_or(0, |s| s.processes);
        self.killed.saturating_sub(self.entered).saturating_sub(sent)
    }
}

/// How many processes had been sent a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SentTo {
    /// The signal's number.
    pub signal: u8,
    /// To how many.
    pub processes: u32,
}

/// A process that was killed with its PID namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KilledProcess {
    /// `task_struct.comm`.
    pub comm: String,
    /// The signals that it had been sent, as a mask (bit n−1 is signal n).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent: u64,
}

impl KilledProcess {
    /// It had been sent this signal.
    pub fn was_sent(&self, signal: u8) -> bool {
        signal != 0
            && self.sent.checked_shr(u32::from(signal) - 1).is_some_and(|mask| mask & 1 != 0)
    }
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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
