//! All that the engine can learn. Every input is serialisable: a recording
//! ([`crate::recording`]) is a file of these, one JSON object a line.

mod api;
mod cri;
mod hook;
mod host;
mod kernel;
mod proc;

pub use api::*;
pub use cri::*;
pub use hook::*;
pub use host::*;
pub use kernel::*;
pub use proc::*;

use super::{
    leak::Recollection,
    time::{Anchor, BootTime},
};
use serde::{Deserialize, Serialize};

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
    /// From the host's file systems: what is left on the node, and whether its daemons live.
    Host(HostEvent),
    /// What an earlier run of the agent had found, at the start.
    Recalled {
        /// Its suspects and leaks.
        leaks: Vec<Recollection>,
    },
    /// Evidence that will never come.
    Lost(Loss),
    /// The wall clock was set, or has run away by and by: from now on this maps it to the boot clock.
    Clock(Anchor),
    /// Time passes.
    Tick,
}

/// Evidence that will never come: counted, and named on each timeline it may have touched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// What was lost.
    pub kind: LossKind,
    /// How many more since the last report.
    pub count: u64,
    /// When that was: nothing of it was lost before this moment. None: a moment ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<BootTime>,
}

impl Loss {
    /// A loss of a moment ago.
    pub fn new(kind: LossKind, count: u64) -> Self {
        Self { kind, count, since: None }
    }
}

/// Kinds of loss. A closed set: it is a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// The ring for what decides was full.
    DecidingRingFull,
    /// The ring for the rest was full.
    DetailRingFull,
    /// A container used up its budget of detail records: [`KernelFact::BudgetSpent`] says which.
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
