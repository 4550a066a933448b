//! /proc of a container's main process: what decides how it responds to its stop signal.

use crate::{ids::*, time::BootTime};
use serde::{Deserialize, Serialize};

/// The answer to `Request::ReadStopState`. It contains names of the process and of one child, nothing else of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopStateReport {
    pub container: ContainerId,
    /// The process that was to be read, in the agent's PID namespace.
    pub main: Tgid,
    /// The signal that all of it is about.
    pub signal: u8,
    /// When the look began; `Received::at` is later.
    pub looked: BootTime,
    /// `None`: the process could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StopState>,
    /// What could not be read, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// The state of one process with regard to one signal (proc(5)).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StopState {
    /// Start time, ns since boot, in whole clock ticks.
    pub started: u64,
    pub comm: String,
    /// The file name of its program; empty: could not be read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub exe: String,
    /// Its number in the innermost PID namespace: the last one of NSpid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_pid: Option<u32>,
    /// SigCgt has the signal.
    pub caught: bool,
    /// SigIgn has it.
    pub ignored: bool,
    /// SigBlk of the leading thread has it. While a thread is in rt_sigtimedwait, the signals that it waits for are not
    /// in its mask (`do_sigtimedwait`, kernel/signal.c).
    pub blocked: bool,
    /// The leading thread is in rt_sigtimedwait; `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<bool>,
    /// The leading thread did not run while it was read: mask and wait are of the same moment.
    pub settled: bool,
    /// The other threads, read only if the leading one blocks the signal; `None`: not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<OtherThreads>,
    /// A signalfd of the process has the signal. Read only if the leading thread blocks it; `None`: not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signalfd: Option<bool>,
    /// Its children, where they matter: at least so many.
    #[serde(default)]
    pub children: u32,
    /// The name of the first child.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub child: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OtherThreads {
    /// Every one of them blocks the signal.
    pub all_block: bool,
    /// One is in rt_sigtimedwait.
    pub waits: bool,
    /// None ran while it was read.
    pub settled: bool,
}
