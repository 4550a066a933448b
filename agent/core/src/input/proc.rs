//! /proc of a container that does not end.

use crate::{ids::CgroupId, report::ProcProcess, time::BootTime};
use serde::{Deserialize, Serialize};

/// /proc of a container that does not end: the answer to `Request::InspectProcesses`. It contains names of
/// processes and of kernel functions, nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcReport {
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
