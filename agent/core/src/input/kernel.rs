//! The kernel programs' records, and the scan of the cgroup hierarchy at the start.

use crate::{
    ids::*,
    report::{Disposition, ExitStatus, Process, SignalResult, Target},
    time::*,
};
use serde::{Deserialize, Serialize};

/// A kernel record with the kernel's own time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelEvent {
    /// The program's `bpf_ktime_get_boot_ns`.
    pub time: BootTime,
    #[serde(flatten)]
    pub fact: KernelFact,
}

/// A record of the kernel programs, or of the scan at the start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum KernelFact {
    /// `cgroup_mkdir`, or found by the scan at start.
    CgroupCreated {
        cgroup: CgroupId,
        /// The parent, where the source knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<CgroupId>,
        /// The directory's name, or the whole path from the hierarchy's root, which begins with a slash.
        name: String,
        /// Found by the scan: the cgroup is older than the agent.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        scanned: bool,
    },
    /// `cgroup_rmdir`.
    CgroupRemoved { cgroup: CgroupId },
    /// `cgroup_notify_populated` with 0: the last task has left.
    CgroupEmpty { cgroup: CgroupId },
    /// `cgroup_notify_frozen`.
    CgroupFrozen { cgroup: CgroupId, frozen: bool },
    /// `signal_generate`: a signal was sent to a task of a container.
    SignalGenerated(SignalGenerated),
    /// `signal_deliver`: a task takes a signal.
    SignalDelivered { cgroup: CgroupId, task: Task, signal: u8, disposition: Disposition },
    /// `sched_process_exec`: a new program in a container.
    Exec {
        cgroup: CgroupId,
        /// The task, with its new name.
        task: Task,
        parent: ProcessRef,
    },
    /// `sched_process_exit` of a thread group's last thread.
    Exit {
        cgroup: CgroupId,
        task: Task,
        status: ExitStatus,
        /// The parent, where the source knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<ProcessRef>,
    },
    /// A process found running by the scan at start.
    Running { cgroup: CgroupId, task: Task },
    /// `mark_victim`: the OOM killer chose this process.
    OomVictim {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<CgroupId>,
        /// The thread id that the kernel named.
        pid: u32,
    },
    /// A container's budget of detail records is spent: further records of its own processes are dropped.
    BudgetSpent {
        /// The container's cgroup, or one below it.
        cgroup: CgroupId,
        /// When the budget is refilled.
        until: BootTime,
    },
    /// `zap_pid_ns_processes`: what the kernel killed when a container's PID 1 exited. Sent when the
    /// container's cgroup has become empty, if anything was killed.
    NamespaceKilled(NamespaceKilled),
}

impl KernelFact {
    /// The cgroup of the record; `None`: unknown.
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

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Task {
    pub tgid: Tgid,
    pub tid: u32,
    /// Thread group id in the innermost PID namespace: 1 is a container's init. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_pid: Option<u32>,
    /// `task_struct.group_leader.start_boottime`, ns. With the tgid it identifies a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    pub comm: String,
}

/// The sender of a signal, or a parent: any process of the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessRef {
    /// Thread group; 0 is the kernel itself (an idle or kernel context).
    pub tgid: Tgid,
    pub comm: String,
    /// The cgroup, where known: if it is the target's, the process is inside the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupId>,
    /// The cgroup is one that the kernel programs watch; `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_container: Option<bool>,
}

impl From<&ProcessRef> for Process {
    fn from(of: &ProcessRef) -> Self {
        let ProcessRef { tgid: pid, comm, cgroup, in_container } = of.clone();
        Self { pid, comm, cgroup, in_container }
    }
}

/// The `signal_generate` record of one signal and its target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SignalGenerated {
    pub cgroup: CgroupId,
    pub target: Task,
    pub signal: u8,
    /// `si_code`: 0 is kill(2), 0x80 the kernel, negative sigqueue and the like.
    pub code: i32,
    /// Sent to the whole thread group.
    pub group: bool,
    /// `TRACE_SIGNAL_*`.
    pub result: SignalResult,
    /// The sender: reliable only if `code` ≤ 0 or the kernel acts for an exiting init.
    pub sender: ProcessRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TargetState>,
}

/// The processes that the kernel killed because PID 1 of their namespace, the container's main process,
/// exited (`zap_pid_ns_processes`, kernel/pid_namespace.c). The kernel programs count each thread group once,
/// except those that were exiting already.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamespaceKilled {
    /// The container's own cgroup; the processes may have been below it.
    pub cgroup: CgroupId,
    /// PID 1.
    pub init: Tgid,
    /// Number of killed processes, including those in nested namespaces.
    pub killed: u32,
    /// How many of them had a parent outside any container (hooks, probes, `kubectl exec`); `sent` and
    /// `examples` exclude them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub entered: u32,
    /// At least how many others PID 1 of a nested namespace killed first, which was exiting too. Which
    /// signals they had been sent is unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nested: u32,
    /// Some signals to processes of this container were not counted: `sent` may be too low.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// How many of them had been sent each signal at any time (`__send_signal_locked`, kernel/signal.c),
    /// discarded ones included and SIGKILL excluded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<SentTo>,
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

/// How many processes had been sent one signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SentTo {
    pub signal: u8,
    pub processes: u32,
}

/// A process that was killed with its PID namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KilledProcess {
    pub comm: String,
    /// The signals that it had been sent, as a mask (bit n−1 is signal n).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent: u64,
}

impl KilledProcess {
    pub fn was_sent(&self, signal: u8) -> bool {
        signal != 0
            && self.sent.checked_shr(u32::from(signal) - 1).is_some_and(|mask| mask & 1 != 0)
    }
}

pub(super) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The target's state (`task_struct.signal`, `.sighand`, `.blocked`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetState {
    /// SIGNAL_UNKILLABLE: init of a PID namespace. The kernel clears it when a fatal signal takes effect.
    pub unkillable: bool,
    /// SIGNAL_GROUP_EXIT: the group is exiting. With `result` Delivered and the default disposition, this
    /// signal ends it.
    pub group_exit: bool,
    /// The disposition of this signal.
    pub disposition: Disposition,
    /// The target thread blocks the signal.
    pub blocked: bool,
    /// `signal->shared_pending | task->pending`, as a mask (bit n−1 is signal n); for SIGKILL, before SIGKILL
    /// was added.
    pub pending: u64,
}

impl From<TargetState> for Target {
    fn from(of: TargetState) -> Self {
        let TargetState { unkillable, group_exit, disposition, blocked, pending } = of;
        let pending = (1..=64).filter(|n| pending & (1 << (n - 1)) != 0).collect();
        Self { unkillable, group_exit, disposition, blocked, pending }
    }
}
