//! The TCP connections of a terminating pod.

use crate::{Moment, Open};
use coroner_core::{
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
    /// The counted events between the pod and its clients.
    #[schema(value_type = Vec<TrafficShare>)]
    pub counts: Vec<Open<TrafficShare>>,
}

/// One kind of event in a pod's traffic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TrafficShare {
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
