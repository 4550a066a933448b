//! The engine's inputs. Every input is serialisable: a recording is a file of inputs, one JSON object per
//! line.

mod api;
mod cri;
mod events;
mod host;
mod kernel;
mod proc;
mod stop_state;
mod traffic;

pub use api::*;
pub use cri::*;
pub use events::*;
pub use host::*;
pub use kernel::*;
pub use proc::*;
pub use stop_state::*;
pub use traffic::*;

pub use coroner_report::{
    ConnectionEvent, ContainerKind, ContainerState, Disposition, ExitStatus, Hook, LossKind,
    ProcProcess, SignalResult, TaskState, TrafficBlindness, TrafficPeer, Workload,
};

use crate::{ids::*, time::*};
use serde::{Deserialize, Serialize};

/// A leak that an earlier run of the agent had stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PersistedLeak {
    pub key: LeakKey,
    pub first_observed: BootTime,
}

/// One input and the moment at which the agent received it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Received {
    /// The receipt. The input itself may be about an earlier moment.
    pub at: BootTime,
    #[serde(flatten)]
    pub input: Input,
}

/// All inputs of the engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// From the kernel programs, or from the scan of the cgroup hierarchy at the start.
    Kernel(KernelEvent),
    Cri(CriEvent),
    Api(ApiEvent),
    /// From the host's /proc, at the engine's request.
    Proc(ProcReport),
    /// From the host's /proc, about the main process of a running container, at the engine's request.
    StopState(StopStateReport),
    /// About the connections of a terminating pod, at the engine's request.
    Traffic(TrafficEvent),
    /// From the host's file systems: what remains of pods, and whether the node's daemons run.
    Host(HostEvent),
    /// The kubelet's Events, at the engine's request.
    #[serde(rename = "kubelet")]
    Events(LookupEvent),
    /// Leaks and candidates that an earlier run of the agent had stored, at the start.
    Recalled {
        leaks: Vec<PersistedLeak>,
    },
    Lost(Loss),
    /// The wall clock was set or has drifted: the new mapping to the boot clock.
    Clock(Anchor),
    Tick,
}

/// Lost evidence: counted, and marked on each report that it may affect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    pub kind: LossKind,
    /// How many since the previous report of this kind.
    pub count: u64,
    /// Nothing was lost before this moment; `None`: the loss is recent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<BootTime>,
}

impl Loss {
    pub fn new(kind: LossKind, count: u64) -> Self {
        Self { kind, count, since: None }
    }
}
