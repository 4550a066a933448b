//! TCP connections of a terminating pod: what the kernel programs count, and what /proc shows.

use super::kernel::is_zero;
use crate::labels;
use crate::{ids::*, time::*};
use serde::{Deserialize, Serialize};

/// About the connections of one sandbox's network namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrafficEvent {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// What is known.
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
    Counted {
        /// The counts since the beginning.
        reading: TrafficReading,
    },
    /// The connections cannot be seen, or no longer.
    NotVisible {
        /// Why.
        reason: TrafficBlindness,
    },
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
    /// Between whom.
    pub peer: TrafficPeer,
    /// What happened.
    pub event: ConnectionEvent,
    /// How often.
    pub count: u64,
    /// The first time.
    pub first: BootTime,
    /// The last time.
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

labels! {
    /// Who is connected to a port on which the pod listens, from outside the pod. A closed set.
    pub enum TrafficPeer {
        /// Any client but the next.
        Client = "client",
        /// One of the node's own addresses: the kubelet's probes, but also clients behind SNAT.
        Node = "node",
    }
}

labels! {
    /// What happens to a client's connection or a listener: transitions of a socket's state (`inet_sock_set_state`),
    /// and RST segments (`tcp_send_reset`). A closed set.
    pub enum ConnectionEvent {
        /// A handshake was completed, before the first stop signal of the pod.
        Opened = "opened",
        /// A handshake was completed after the stop signal.
        OpenedAfterStop = "opened_after_stop",
        /// RST to a SYN to a port without a listener, before the stop signal (Linux 6.10).
        Refused = "refused",
        /// RST to a SYN to a port without a listener, after the stop signal (Linux 6.10).
        RefusedAfterStop = "refused_after_stop",
        /// The exit of the process ended it with a request in flight: data had come after the last that was sent, or
        /// was not read (RST).
        Cut = "cut",
        /// The exit of the process ended it otherwise. What had been sent is still delivered.
        CutIdle = "cut_idle",
        /// LISTEN → CLOSE by a process that is not exiting.
        ListenerClosed = "listener_closed",
        /// LISTEN → CLOSE by the exit of the process.
        ListenerCut = "listener_cut",
    }
}

labels! {
    /// Why the connections of a pod are not visible. A closed set.
    pub enum TrafficBlindness {
        /// `--traffic off`.
        Off = "off",
        /// The pod is in the host's network.
        HostNetwork = "host_network",
        /// Counting began when a container had already ended: what its exit cost was not counted.
        TooLate = "too_late",
        /// No process of the pod was left to find the network namespace.
        NoProcess = "no_process",
        /// The kernel has no such tracepoint, or the self-test refused the program.
        NoProgram = "no_program",
        /// The program could not be attached.
        NotAttached = "not_attached",
        /// The map of the programs was full.
        MapFull = "map_full",
        /// A runtime with a network stack of its own (gVisor, Kata).
        OwnStack = "own_stack",
    }
}
