//! Processes and signals, as the kernel reports them.

use crate::{ids::*, labels};
use serde::{Deserialize, Serialize};

/// The `result` of `signal_generate` (`include/trace/events/signal.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SignalResult {
    /// 0: queued, or it took effect.
    Delivered,
    /// 1: discarded; the target's state shows why.
    Ignored,
    /// 2: one with this number is pending already.
    AlreadyPending,
    /// 3, 4: the queue overflowed, information was lost.
    Overflow,
    /// A value this version does not know.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// SIG_DFL.
    Default,
    /// SIG_IGN.
    Ignore,
    /// A handler.
    Handler,
}

/// How a process ended (wait status).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It exited with this code (0–255).
    Code(u8),
    /// A signal ended it; `core`: with a core dump.
    Signal {
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

/// A lifecycle hook: its kind and, for exec, its binary. The arguments are never kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// A process in the container; the file name of its binary.
    Exec(String),
    /// A request by the kubelet: no process in the container.
    HttpGet,
    /// A connection by the kubelet: no process in the container.
    TcpSocket,
    /// The kubelet waits this many seconds: no process in the container.
    Sleep(i64),
}

/// A process on the node: the sender of a signal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// The PID in the agent's PID namespace; 0: the kernel itself, or a process outside of that namespace.
    pub pid: Tgid,
    /// `comm`: the name, truncated to 15 bytes by the kernel.
    pub comm: String,
    /// The ID of the cgroup, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub cgroup: Option<CgroupId>,
    /// Whether the process is in a container; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_container: Option<bool>,
}

/// The state of a signal's target (`task_struct.signal`, `.sighand`, `.blocked`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The target is the init of a PID namespace (SIGNAL_UNKILLABLE). The kernel clears the flag when a fatal signal takes
    /// effect.
    pub unkillable: bool,
    pub group_exit: bool,
    pub disposition: Disposition,
    /// The target thread blocks the signal.
    pub blocked: bool,
    /// Numbers of the signals that are pending.
    pub pending: Vec<u8>,
}

/// A process in /proc.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcProcess {
    /// Thread group id in the reader's PID namespace.
    pub tgid: Tgid,
    /// `comm`.
    pub comm: String,
    /// `starttime` of /proc/PID/stat as ns since boot: whole clock ticks of 10 ms.
    pub started: u64,
    /// The state; if the leader is a zombie, of `thread`.
    pub state: TaskState,
    /// A remaining thread of a process whose leader is a zombie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// The kernel function in which it sleeps (/proc/PID/wchan); `None`: it runs, or reading was not
    /// permitted (CAP_SYS_PTRACE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// The kernel stack, innermost function first (/proc/PID/stack: CAP_SYS_ADMIN).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

labels! {
    /// State of a task: the letter of /proc/PID/stat (`fs/proc/array.c`, `task_state_array`). A closed
    /// set: it is a metric's label.
    pub enum TaskState {
        /// D: waits in the kernel, and no signal wakes it.
        Uninterruptible = "uninterruptible",
        /// R: running or runnable.
        Running = "running",
        /// S: waits, and a signal would wake it.
        Sleeping = "sleeping",
        /// T or t: stopped by a signal or a tracer.
        Stopped = "stopped",
        /// Z or X: dead and not reaped.
        Zombie = "zombie",
        /// Another letter.
        Other = "other",
    }
}

impl TaskState {
    /// The letter that ps(1) shows.
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
