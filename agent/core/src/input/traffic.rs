//! TCP connections of a terminating pod: what the kernel programs count, and what /proc shows.

use super::kernel::is_zero;
use crate::report::{BootTime, ConnectionEvent, SandboxId, TrafficBlindness, TrafficPeer};
use serde::{Deserialize, Serialize};

/// About the connections of one sandbox's network namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrafficEvent {
    pub sandbox: SandboxId,
    #[serde(flatten)]
    pub fact: TrafficFact,
}

/// The answer to a `TrafficRequest`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "traffic", rename_all = "snake_case")]
pub enum TrafficFact {
    /// The programs count from `reading.at` on: the answer to `TrafficRequest::Count`.
    Began {
        /// The beginning: nothing is counted yet.
        reading: TrafficReading,
        /// The kernel shows refused SYNs (`tcp_send_reset` with three arguments, Linux 6.10).
        sees_refusals: bool,
    },
    /// The counts so far: the answer to `TrafficRequest::Read` and `Stopped`.
    Counted { reading: TrafficReading },
    /// The connections cannot be seen, or no longer.
    NotVisible { reason: TrafficBlindness },
}

/// What was counted in a network namespace until one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TrafficReading {
    /// The moment: of CLOCK_BOOTTIME, before the first of the counts was read.
    pub at: BootTime,
    /// Everything that happened at least once since the beginning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<TrafficCount>,
    /// The namespace's own counters; `None`: no process of the pod was left to read them by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkCounters>,
    /// Events of any connection of this node that the programs have missed until then.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

/// How often something happened to connections, and when.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrafficCount {
    pub peer: TrafficPeer,
    pub event: ConnectionEvent,
    pub count: u64,
    pub first: BootTime,
    pub last: BootTime,
}

/// /proc/PID/net of a process of the pod.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NetworkCounters {
    /// `CurrEstab` (snmp): connections in ESTABLISHED or CLOSE_WAIT, of both directions and internal ones.
    pub established: u64,
    /// Ports on which a socket listens (tcp, tcp6), but those bound to loopback, in order. Only at the beginning and
    /// at the stop signal: that takes a thousand times as long as the rest, and the program sees a listener that is
    /// closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listening: Vec<u16>,
}
