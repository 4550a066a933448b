//! /proc of a container that does not end.

use crate::labels;
use crate::{ids::*, time::*};
use serde::{Deserialize, Serialize};

/// /proc of a container that does not end: the answer to `Request::InspectProcesses`. It contains names of
/// processes and of kernel functions, nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcReport {
    /// The container's own cgroup.
    pub cgroup: CgroupId,
    /// When the look began; `Received::at` is later.
    pub looked: BootTime,
    /// Number of processes that are not zombies; `None`: could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<u32>,
    /// The first few of these, the longest blockers first, and the main process even if it is a zombie.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcProcess>,
    /// The cgroup is frozen (`cgroup.events`); `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
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
