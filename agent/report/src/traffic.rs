//! The TCP connections of a terminating pod.

use crate::{labels, serialize, time::*};
use serde::{Deserialize, Serialize};

/// All clients of the pod.
pub const CLIENTS: [TrafficPeer; 2] = [TrafficPeer::Client, TrafficPeer::Node];
pub const OPENED: [ConnectionEvent; 2] =
    [ConnectionEvent::Opened, ConnectionEvent::OpenedAfterStop];
pub const REFUSED: [ConnectionEvent; 2] =
    [ConnectionEvent::Refused, ConnectionEvent::RefusedAfterStop];

/// The TCP connections of a terminating pod. The counts are lower bounds: connections that reach no socket of the pod (a
/// full backlog, a NetworkPolicy, a removed route) are not counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Why the connections are not visible; all other fields are then meaningless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_visible: Option<TrafficBlindness>,
    /// When the counting began, after the deletion request or the stop signal.
    pub since: Moment,
    /// When the counts were last read.
    pub until: Moment,
    /// When the stop signal was sent to the first container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Moment>,
    /// Whether the kernel reports refused connections (Linux 6.10); otherwise they are unknown.
    pub sees_refusals: bool,
    /// Open connections and listeners when the counting began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_begin: Option<OpenConnections>,
    /// Open connections and listeners just after the stop signal; absent: unknown, or the counting began after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_stop: Option<OpenConnections>,
    /// The counted events between the pod and its clients.
    #[serde(deserialize_with = "serialize::known")]
    pub counts: Vec<TrafficShare>,
}

/// The state of a network namespace at one time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OpenConnections {
    /// Connections in ESTABLISHED or CLOSE_WAIT (`CurrEstab`), of both directions and internal ones.
    pub established: u64,
    /// Ports on which a socket listens, but those bound to loopback.
    pub listening: Vec<u16>,
}

/// One kind of event in a pod's traffic.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TrafficShare {
    pub peer: TrafficPeer,
    pub event: ConnectionEvent,
    pub count: u64,
    pub first: Moment,
    pub last: Moment,
}

impl Traffic {
    /// How often any of these events happened, and the first and the last time.
    pub fn sum(&self, peers: &[TrafficPeer], events: &[ConnectionEvent]) -> Occurrences {
        let of =
            |share: &&TrafficShare| peers.contains(&share.peer) && events.contains(&share.event);
        self.counts.iter().filter(of).fold(Occurrences::default(), |sum, share| {
            let (first, last) = (share.first.boot, share.last.boot);
            Occurrences {
                count: sum.count.saturating_add(share.count),
                first: Some(sum.first.map_or(first, |sum| sum.min(first))),
                last: sum.last.max(Some(last)),
            }
        })
    }

    /// No port was open, from before the stop (or its hook) began: clients are refused whether the pod terminates or
    /// not.
    pub fn never_listened(&self, stop_began: Option<BootTime>, truncated: bool) -> bool {
        use ConnectionEvent as E;
        let is_open = |open: &OpenConnections| !open.listening.is_empty();
        let seen = [E::Opened, E::OpenedAfterStop, E::ListenerClosed, E::ListenerCut];
        let stopped = self.stopped.map(BootTime::from);
        let was_early = [stop_began, stopped].into_iter().flatten().all(|at| self.since.boot < at);
        was_early
            && !truncated
            && !self.at_begin.as_ref().is_none_or(is_open)
            && !self.at_stop.as_ref().is_some_and(is_open)
            && self.sum(&[TrafficPeer::Client, TrafficPeer::Node], &seen).count == 0
    }

    pub(crate) fn date(&mut self, clock: &Anchor) {
        let counts = self.counts.iter_mut().flat_map(|one| [&mut one.first, &mut one.last]);
        let all = counts.chain(&mut self.stopped).chain([&mut self.since, &mut self.until]);
        all.for_each(|at| at.date(clock));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occurrences {
    pub count: u64,
    pub first: Option<BootTime>,
    pub last: Option<BootTime>,
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
