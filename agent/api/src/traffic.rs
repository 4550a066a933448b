//! The TCP connections of a terminating pod.

use crate::{Moment, Open};
use coroner_core::{
    ids::ContainerId,
    input::{ConnectionEvent, TrafficBlindness, TrafficPeer},
    report::OpenConnections,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The TCP connections of a terminating pod: what its end cost its clients. A lower bound: what reaches no socket of the
/// pod (a full backlog, a NetworkPolicy, a removed route) is not counted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Why they could not be seen; then nothing else is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TrafficBlindness>)]
    pub not_visible: Option<Open<TrafficBlindness>>,
    /// When the counting began, after the deletion request or the stop signal.
    pub since: Moment,
    /// When the counts were last read.
    pub until: Moment,
    /// When the first container was sent its stop signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Moment>,
    /// The kernel shows refused connections (Linux 6.10); otherwise nothing is known of them.
    pub sees_refusals: bool,
    /// Open connections and listeners when the counting began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_begin: Option<OpenConnections>,
    /// The same just after the stop signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_stop: Option<OpenConnections>,
    /// What happened, by container where the kernel shows it.
    #[schema(value_type = Vec<TrafficShare>)]
    pub counts: Vec<Open<TrafficShare>>,
    /// Connections that outlived the pod's processes; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub still_open: Option<u64>,
    /// RST segments (`OutRsts`) that no counted event explains; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_sent: Option<u64>,
    /// Handshakes that a listener dropped (`ListenDrops`); absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshakes_dropped: Option<u64>,
}

/// One kind of event in a pod's traffic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TrafficShare {
    /// The container; absent: not known (cgroup v1), or the socket is of no container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerId>,
    /// Between whom.
    pub peer: TrafficPeer,
    /// What happened.
    pub event: ConnectionEvent,
    /// How often.
    pub count: u64,
    /// The first time.
    pub first: Moment,
    /// The last time.
    pub last: Moment,
}
