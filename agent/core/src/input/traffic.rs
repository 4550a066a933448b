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
    /// The container's own cgroup, by the socket's cgroup; `None`: the socket is of no container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupId>,
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

/// /proc/PID/net of a process of the pod. The counters are of the namespace's whole life.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NetworkCounters {
    /// `CurrEstab` (snmp): connections in ESTABLISHED or CLOSE_WAIT, of both directions and internal ones.
    pub established: u64,
    /// `OutRsts` (snmp): RST segments sent.
    pub resets_sent: u64,
    /// `ListenDrops` (netstat): handshakes dropped by a listener.
    pub listen_drops: u64,
    /// Ports on which a socket listens (tcp, tcp6), but those bound to loopback, in order. Only at the beginning and
    /// at the stop signal: that takes a thousand times as long as the rest, and the program sees a listener that is
    /// closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listening: Vec<u16>,
}

labels! {
    /// The peer of a connection. A closed set.
    pub enum TrafficPeer {
        /// From outside the pod, to a port on which the pod listens.
        Client = "client",
        /// As `client`, from one of the node's own addresses: the kubelet's probes, but also clients behind SNAT.
        Node = "node",
        /// As `client`, from an address of another pod on this node that is terminating.
        Terminating = "terminating",
        /// Opened by the pod, to somewhere outside; or to a port of the pod that was closed before counting began.
        Outbound = "outbound",
        /// Within the pod: loopback, or both ends have the same address.
        Internal = "internal",
    }
}

labels! {
    /// What happens to a connection or a listener: transitions of a socket's state (`inet_sock_set_state`), and RST
    /// segments (`tcp_send_reset`). A closed set. Not every combination with a peer has a counter of its own (`PAIRS` in
    /// `ebpf/src/traffic.rs`): for outbound and internal connections and those with terminating pods, events after the
    /// stop signal count together with those before it.
    pub enum ConnectionEvent {
        /// A handshake was completed (SYN_RECV or SYN_SENT → ESTABLISHED), before the first stop signal of the pod.
        Opened = "opened",
        /// A handshake was completed after the stop signal.
        OpenedAfterStop = "opened_after_stop",
        /// RST to a SYN to a port without a listener, before the stop signal (Linux 6.10).
        Refused = "refused",
        /// RST to a SYN to a port without a listener, after the stop signal (Linux 6.10).
        RefusedAfterStop = "refused_after_stop",
        /// RST to something other than a SYN: the client did not know yet that the connection had ended (Linux 6.10).
        ResetAfterEnd = "reset_after_end",
        /// ESTABLISHED → FIN_WAIT1 by a process that is not exiting.
        Closed = "closed",
        /// ESTABLISHED → CLOSE_WAIT: the peer closed first.
        PeerClosed = "peer_closed",
        /// ESTABLISHED → CLOSE without an error by a process that is not exiting: SO_LINGER 0, or unread data. Or by
        /// its exit, with SO_LINGER 0 and nothing outstanding.
        Reset = "reset",
        /// ESTABLISHED → CLOSE with ECONNRESET: the peer reset it.
        PeerReset = "peer_reset",
        /// ESTABLISHED → CLOSE with another error, such as ETIMEDOUT.
        TimedOut = "timed_out",
        /// ESTABLISHED → CLOSE of a connection that no process had accepted: RST to a client that was connected.
        Unaccepted = "unaccepted",
        /// ESTABLISHED → FIN_WAIT1 by the exit of the process, with nothing outstanding.
        CutIdle = "cut_idle",
        /// The same while a request was unanswered: data came after the last that was sent.
        CutRequest = "cut_request",
        /// The same while data that was sent had not been acknowledged.
        CutSending = "cut_sending",
        /// ESTABLISHED → CLOSE by the exit of the process: RST, with data that it had not read; or, with SO_LINGER 0, a
        /// request unanswered or an answer not acknowledged.
        CutUnread = "cut_unread",
        /// CLOSE_WAIT → LAST_ACK by the exit of the process, with a request unanswered: the client had half-closed.
        /// Counted as `peer_closed` before, as are the next two.
        CutHalfClosed = "cut_half_closed",
        /// CLOSE_WAIT → CLOSE by the exit of the process: the same of a client that had half-closed.
        CutHalfClosedUnread = "cut_half_closed_unread",
        /// CLOSE_WAIT → CLOSE without an error in any other way: RST to a client that had closed or half-closed. No
        /// process had accepted the connection, or it was closed with unread data or SO_LINGER 0.
        ResetHalfClosed = "reset_half_closed",
        /// LISTEN → CLOSE by a process that is not exiting.
        ListenerClosed = "listener_closed",
        /// LISTEN → CLOSE by the exit of the process.
        ListenerCut = "listener_cut",
        /// A connection ended in any way: only for internal connections and those with terminating pods.
        Ended = "ended",
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
