//! What must come out of a scenario.

use super::clients::{ExpectedTraffic, TRAFFIC_FINDINGS};
use coroner_core::{
    input::ExitStatus,
    leak::{BlockedOn, LeakCause, LeakClass},
    types::{Cause, Certainty, FindingKind, PhaseKind, Verdict},
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What must come out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Expected {
    /// Why the pod ended.
    pub cause: Cause,
    /// How each container died, by name. No other container may be reported.
    pub containers: BTreeMap<&'static str, Death>,
    /// Deaths before the pod's own end, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Earlier>,
    /// How many lives the pod's UID has; each of them must agree with all of this. None: the
    /// agent may tell of no end.
    pub lives: u32,
    /// Findings, of the pod or of a container, that must be there.
    pub findings: Vec<FindingKind>,
    /// Findings that may be there: the scenario is not about them. Any other contradicts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also_allowed: Vec<FindingKind>,
    /// The grace that its containers were given at the pod's end, seconds; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace: Option<i64>,
    /// Phases on the critical path, with what is allowed.
    pub phases: Vec<Span>,
    /// The agent says that it did not see the beginning.
    pub truncated: bool,
    /// So many calls to the apiserver at least must have been answered after the stop signal was
    /// handled and before the end, by the workload's own record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<usize>,
    /// What must be told as left behind, in any order, and nothing else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leaks: Vec<ExpectedLeak>,
    /// What is reported of its connections; `None`: it is not about them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<ExpectedTraffic>,
}

impl Expected {
    /// With late sources, what rests on the times of their events may come out differently, and so may what
    /// rests on which process the runtime is: it is the lab that answers for it.
    pub fn ignore_times(&mut self) {
        self.phases.clear();
        self.excuse(&[
            FindingKind::DeadlineMissed,
            FindingKind::OutlivedObject,
            FindingKind::RuntimeRestarted,
        ]);
    }

    /// Where the agent began to count too late, it finds nothing in its connections, or refusals by a pod of which it
    /// cannot know that it never listened.
    pub fn excuse_traffic(&mut self) {
        self.excuse(&TRAFFIC_FINDINGS);
        if self.traffic.as_ref().is_some_and(|traffic| traffic.listening.is_empty()) {
            self.also_allowed.push(FindingKind::ConnectionsRefused);
        }
    }

    fn excuse(&mut self, kinds: &[FindingKind]) {
        let (excused, rest) = self.findings.drain(..).partition(|kind| kinds.contains(kind));
        self.findings = rest;
        self.also_allowed.extend::<Vec<_>>(excused);
    }
}

/// Something of the scenario that the agent must tell as left behind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ExpectedLeak {
    pub class: LeakClass,
    /// Why.
    pub cause: LeakCause,
    /// All that it holds of the node.
    pub resources: BTreeSet<Holding>,
    /// Of a pod that is stuck: what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_on: Option<BlockedOn>,
    /// It names the scenario's pod.
    pub names_pod: bool,
    /// The agent found it so when it started.
    pub preexisting: bool,
    /// The agent was restarted and observes it no shorter than before.
    pub remembered: bool,
}

/// A kind of thing that something holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holding {
    /// A network namespace.
    Netns,
    /// Addresses.
    Ips,
    Cgroup,
    /// Processes.
    Pids,
    /// Containers that the runtime lists.
    Containers,
}

/// How one container dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Death {
    pub verdict: Verdict,
    /// How its init ended.
    pub exit: ExitStatus,
}

/// A death in a pod that goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Earlier {
    /// The container's name.
    pub container: &'static str,
    /// How it died.
    #[serde(flatten)]
    pub death: Death,
    /// Why.
    pub cause: Cause,
    pub certainty: Certainty,
    /// The grace that applied, seconds; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace: Option<i64>,
    /// A part of the cause's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub says: Option<&'static str>,
}

/// Seconds that a phase may take.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Span {
    pub phase: PhaseKind,
    /// Not less: what the scenario states, minus 0.2 s for what overlaps its edges.
    pub at_least: f64,
    /// Not more: what the scenario states, and time for a machine that is busy.
    pub at_most: f64,
}

impl Span {
    /// Seconds by which phases overlap at their edges.
    pub const EARLY: f64 = 0.2;
    /// Seconds by which a machine that is busy may be late where nobody has measured it.
    pub const LATE: f64 = 1.5;

    /// A phase of `seconds` by the scenario's own arithmetic. Processes never wake early, but a
    /// loaded machine wakes them late: whoever has played it knows how late, and narrows this.
    pub fn about(phase: PhaseKind, seconds: f64) -> Self {
        let at_least = (seconds - Self::EARLY).max(0.0);
        Self { phase, at_least, at_most: seconds + Self::LATE }
    }
}
