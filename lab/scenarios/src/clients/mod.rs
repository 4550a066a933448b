//! Clients of a scenario's pod, and what the agent must report of their connections.

pub mod compare;

use coroner_core::{
    input::{ConnectionEvent, TrafficBlindness},
    types::FindingKind,
};
use coroner_lab_cluster::traffic::{Habit, Load};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

/// The findings about connections.
pub(super) const TRAFFIC_FINDINGS: [FindingKind; 4] = [
    FindingKind::ConnectionsCut,
    FindingKind::ConnectionsRefused,
    FindingKind::LateConnections,
    FindingKind::ListenerClosedEarly,
];
/// The port on which pods serve.
pub const PORT: u16 = 8080;
/// Between two connections that arrive.
const EVERY: Duration = Duration::from_millis(20);

/// Where clients are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// In a network namespace that is not the node's.
    Elsewhere,
    /// At the node's own address.
    Node,
}

/// Clients that do alike.
#[derive(Clone, Debug)]
pub struct Crowd {
    pub from: Origin,
    /// They use the pod's IPv6 address.
    pub over_v6: bool,
    /// They are clients of the pod that lives as long as the lab, and not compared.
    pub of_neighbour: bool,
    /// The pod does not read what they send.
    pub unread: bool,
    pub load: Load,
    /// How long after the pod's stop began connections arrive.
    pub lag: Duration,
}

impl Crowd {
    pub(super) fn of(standing: impl IntoIterator<Item = (Habit, usize)>) -> Self {
        let load = Load::standing(standing);
        let (from, over_v6, of_neighbour, unread) = (Origin::Elsewhere, false, false, false);
        Self { from, over_v6, of_neighbour, unread, load, lag: Duration::ZERO }
    }

    pub(super) fn on_node(self) -> Self {
        Self { from: Origin::Node, ..self }
    }

    pub(super) fn over_v6(self) -> Self {
        Self { over_v6: true, ..self }
    }

    pub(super) fn unread(self) -> Self {
        Self { unread: true, ..self }
    }

    /// Connections arrive until so long after the pod's stop began: its preStop hook, or else its stop signal.
    pub(super) fn arriving(self, lag: Duration) -> Self {
        Self { load: self.load.arriving(EVERY, Habit::Once), lag, ..self }
    }

    /// As many as there can be, on another pod.
    pub(super) fn storm(lag: Duration) -> Self {
        let load = Load::default().arriving(Duration::ZERO, Habit::Once);
        Self { of_neighbour: true, load, lag, ..Self::of([]) }
    }
}

/// How the pod ends what is open when it is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ends {
    /// By its exit.
    #[default]
    ByExit,
    /// It closes each connection.
    InOrder,
    /// It resets them.
    ByReset,
}

/// What the agent must report of a pod's connections, beside what the clients' own record tells.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ExpectedTraffic {
    /// Why nothing is visible: then nothing else is expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_visible: Option<TrafficBlindness>,
    pub ends: Ends,
    /// How often each of these happened to clients.
    pub counts: BTreeMap<ConnectionEvent, u64>,
    /// The findings are those of the clients' record; otherwise they are stated.
    pub finds_what_was_recorded: bool,
    /// Ports that are open when the counting begins.
    pub listening: Vec<u16>,
    /// Sockets of connections within the pod.
    pub within: u64,
    /// Of the advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<&'static str>,
}
