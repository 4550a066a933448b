//! The evidence of a verdict as data: the agent renders it for people (`report/evidence.rs`).

use crate::{ids::*, input::*, time::*, types::*};

/// One piece of evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// The time.
    pub at: BootTime,
    pub source: Source,
    /// The content.
    pub kind: EvidenceKind,
}

/// The content of a piece of evidence; for the kernel's records, the tracepoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EvidenceKind {
    /// A signal was sent (`__send_signal_locked`, kernel/signal.c).
    SignalGenerate {
        /// The signal's number.
        signal: u8,
        /// `si_code`.
        code: i32,
        /// What the kernel did with it.
        result: SignalResult,
        sender: ProcessRef,
        /// The target's state at that moment, where it could be read.
        target: Option<TargetState>,
    },
    /// A handler took a signal (`get_signal`, kernel/signal.c).
    SignalDeliver {
        /// The signal's number.
        signal: u8,
    },
    /// The main process's last thread exited (`do_exit`, kernel/exit.c).
    SchedProcessExit {
        /// The exit status.
        status: ExitStatus,
    },
    /// The OOM killer chose a process (`__oom_kill_process`, mm/oom_kill.c).
    MarkVictim {
        /// The victim's thread ID.
        pid: u32,
    },
    /// The last process left the cgroup (`cgroup_notify_populated`, kernel/cgroup/cgroup.c).
    CgroupEmpty,
    /// The preStop hook's process started.
    PreStopExec {
        /// The process.
        pid: Tgid,
        comm: String,
    },
    /// The preStop hook's process exited.
    PreStopExit {
        /// The exit status.
        status: ExitStatus,
    },
    /// The pod's spec has a preStop hook without a process.
    PreStopSpec { hook: Hook },
    /// /proc of a process that survives SIGKILL.
    Process(ProcProcess),
}
