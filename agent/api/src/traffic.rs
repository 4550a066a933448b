//! The TCP connections of a terminating pod.

use crate::{Moment, Open};
use coroner_core::{
    ids::ContainerId,
    input::{ConnectionEvent, TrafficBlindness, TrafficPeer},
    report::OpenConnections,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The TCP connections of a terminating pod. The counts are lower bounds: connections that reach no socket of the pod (a
/// full backlog, a NetworkPolicy, a removed route) are not counted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Why the connections are not visible; all other fields are then meaningless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TrafficBlindness>)]
    pub not_visible: Option<Open<TrafficBlindness>>,
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
    /// The counted events, by container if the kernel shows it.
    #[schema(value_type = Vec<TrafficShare>)]
    pub counts: Vec<Open<TrafficShare>>,
    /// Connections that outlived the pod's processes; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub still_open: Option<u64>,
    /// RST segments (`OutRsts`) that no counted event explains; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_sent: Option<u64>,
    /// Handshakes that a listener dropped (`ListenDrops`); absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshakes_dropped: Option<u64>,
}

/// One kind of event in a pod's traffic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TrafficShare {
    /// The container; absent: the socket belongs to no container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerId>,
    /// The peer.
    pub peer: TrafficPeer,
    /// The event.
    pub event: ConnectionEvent,
    /// The number of events.
    pub count: u64,
    /// The time of the first event.
    pub first: Moment,
    /// The time of the last event.
    pub last: Moment,
}
