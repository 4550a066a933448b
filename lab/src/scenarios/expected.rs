//! What must be reported of a scenario.

use crate::clients::Load;
use coroner_core::{
    input::{ConnectionEvent, ExitStatus},
    leak::{LeakCause, LeakClass},
    types::{Cause, FindingKind, PhaseKind, Verdict},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Expected {
    /// The pod's termination is reported; otherwise it must not be.
    pub terminates: bool,
    /// Why the pod terminated.
    pub cause: Cause,
    /// How each container died, by name. No other container may be reported.
    pub containers: BTreeMap<&'static str, Death>,
    /// A death before the pod's own termination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Earlier>,
    /// Findings, of the pod or of a container.
    pub findings: Vec<FindingKind>,
    /// Findings that there may be: the scenario is not about them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also_allowed: Vec<FindingKind>,
    /// The grace that its containers were given, seconds; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace: Option<i64>,
    /// Phases on the critical path.
    pub phases: Vec<Span>,
    /// The agent did not see the beginning, and reports that.
    pub is_truncated: bool,
    /// The agent loses records, counts them and names them in the report.
    pub loses: bool,
    /// So many calls to the apiserver at least were answered after the stop signal was handled and before the exit, by the
    /// workload's own record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<usize>,
    /// What must be reported as leaked, in any order, and nothing else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leaks: Vec<ExpectedLeak>,
    /// What is reported of its connections; `None`: it is not about them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<ExpectedTraffic>,
}

/// How one container dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Death {
    pub verdict: Verdict,
    /// `None`: no source has it.
    pub exit: Option<ExitStatus>,
}

/// A death in a pod that lives on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Earlier {
    pub container: &'static str,
    #[serde(flatten)]
    pub death: Death,
    pub cause: Cause,
}

/// A phase of so many seconds, by the scenario's own arithmetic.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Span {
    pub phase: PhaseKind,
    pub seconds: f64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ExpectedLeak {
    pub class: LeakClass,
    pub cause: LeakCause,
    /// All that it holds of the node.
    pub resources: BTreeSet<Holding>,
    /// It names the scenario's pod.
    pub names_pod: bool,
}

/// A kind of resource that a leak holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holding {
    Netns,
    Ips,
    Cgroup,
    Pids,
    Containers,
}

/// What the agent must report of a pod's connections, beside what the clients' own record has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ExpectedTraffic {
    /// How often each of these happened to clients.
    pub counts: BTreeMap<ConnectionEvent, u64>,
    /// Of these, to clients on the node.
    pub on_node: u64,
    /// Ports that are open when the counting begins.
    pub listening: Vec<u16>,
    /// Sockets of connections within the pod.
    pub within: u64,
    /// A part of the advice; `{sleep}` is what the reported times give.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<&'static str>,
}

/// Where clients are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// In a network namespace that is not the node's.
    Elsewhere,
    Node,
}

/// Clients that do alike.
#[derive(Clone, Debug)]
pub struct Crowd {
    pub from: Origin,
    /// They use the pod's IPv6 address.
    pub over_v6: bool,
    pub load: Load,
    /// How long after the pod's stop began connections arrive.
    pub lag: Duration,
}

impl Expected {
    /// With a late apiserver, what rests on the times of its events may come out differently.
    pub fn ignore_times(&mut self) {
        self.phases.clear();
        self.excuse(&[FindingKind::DeadlineMissed, FindingKind::OutlivedObject]);
    }

    /// These findings need not be there.
    pub fn excuse(&mut self, kinds: &[FindingKind]) {
        self.findings.retain(|kind| !kinds.contains(kind));
        self.also_allowed.extend(kinds);
    }
}
