//! What the host's /proc shows of a container that does not end.

use crate::{
    ids::{CgroupId, Tgid},
    time::BootTime,
};
use serde::{Deserialize, Serialize};

/// What the host's /proc shows of a container that does not end: the answer to
/// `Request::InspectProcesses`. Names of processes and of kernel functions, nothing else.
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
