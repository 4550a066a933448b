//! The engine's reports. `coroner-api` has their form on the wire.

use super::evidence::Evidence;
use crate::{ids::*, input::*, time::*, types::*};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A container that survives SIGKILL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnkillableContainer {
    /// The container, where known.
    pub container: Option<ContainerId>,
    /// The name in the pod; empty until the runtime reports it.
    pub name: String,
    /// The container's kind.
    pub kind: ContainerKind,
    /// The pod, where known.
    pub pod: Option<PodRef>,
    /// The process that is left and where it hangs, as one sentence.
    pub detail: String,
    /// The container has ended.
    pub over: bool,
}

/// A finding.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// The kind of finding.
    pub kind: FindingKind,
    /// The details, as one sentence.
    pub detail: String,
    /// For a contradiction: its subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradiction: Option<Contradiction>,
}

impl Finding {
    /// A finding other than a contradiction.
    pub fn new(kind: FindingKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), contradiction: None }
    }

    /// A contradiction: both sides, and which one is proven.
    pub fn contradiction(about: Contradiction, detail: impl Into<String>) -> Self {
        let kind = FindingKind::Contradiction;
        Self { kind, detail: detail.into(), contradiction: Some(about) }
    }
}

/// A moment of a termination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Milestone {
    /// The kind of milestone.
    pub kind: MilestoneKind,
    /// The moment at which it was certain: the end of its interval.
    pub at: BootTime,
    /// It happened within this time before `at` (the runtime is polled).
    pub uncertainty: Duration,
    /// The source.
    pub source: Source,
}

impl Milestone {
    /// A milestone whose moment is known.
    pub fn exact(kind: MilestoneKind, at: Option<BootTime>, source: Source) -> Option<Self> {
        at.map(|at| Self { kind, at, uncertainty: Duration::ZERO, source })
    }

    /// A milestone that happened within an interval.
    pub fn within(kind: MilestoneKind, change: Option<Interval>, source: Source) -> Option<Self> {
        let change = change?;
        Some(Self { kind, at: change.latest, uncertainty: change.uncertainty(), source })
    }
}

/// A phase of a pod's termination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Phase {
    /// The kind of phase.
    pub kind: PhaseKind,
    /// The beginning: the end of the phase before.
    pub from: BootTime,
    /// The end.
    pub to: BootTime,
    /// The phase may have ended up to this much earlier.
    pub uncertainty: Duration,
}

impl Phase {
    /// The length, at most.
    pub fn took(&self) -> Duration {
        self.to.since(self.from)
    }

    /// The length is a measurement, not an interval.
    pub fn is_exact(&self) -> bool {
        is_exact(self.took(), self.uncertainty)
    }
}

/// The proof of a verdict: one sentence for people, and the evidence as data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Proof {
    /// One sentence.
    pub message: String,
    /// In order of time.
    pub evidence: Vec<Evidence>,
}

/// The end of one container.
#[derive(Clone, PartialEq, Debug)]
pub struct ContainerDeath {
    /// The container's id.
    pub id: ContainerId,
    /// The name in the pod; empty until the runtime reports it.
    pub name: String,
    /// The pod; `None` until a source reports it.
    pub pod: Option<PodRef>,
    /// The workload that the pod belongs to, where the apiserver has shown it.
    pub workload: Option<Workload>,
    /// The container's kind.
    pub kind: ContainerKind,
    /// How the container died.
    pub verdict: Verdict,
    /// The proof of the verdict.
    pub proof: Proof,
    /// Why the container was stopped.
    pub cause: Cause,
    /// How certain the cause is.
    pub cause_certainty: Certainty,
    /// The source of the cause.
    pub cause_source: Source,
    /// The evidence for the cause; for `unknown`, what is missing. One sentence.
    pub cause_message: String,
    /// Further findings.
    pub findings: Vec<Finding>,
    /// How the init exited, from the kernel.
    pub exit: Option<ExitStatus>,
    /// The stop signal.
    pub stop_signal: u8,
    /// The granted grace, seconds.
    pub grace_seconds: Option<i64>,
    /// Used share of the allowed time, from the beginning of the stop to the empty cgroup. Allowed is the
    /// grace, or less where a later request shortened it.
    pub grace_ratio: Option<f64>,
    /// The preStop hook in the spec.
    pub pre_stop: Option<Hook>,
    /// The sender of the SIGKILL that ended the container.
    pub killer: Option<ProcessRef>,
    /// Number of processes that the kernel killed with the PID namespace.
    pub children_killed: u32,
    /// Names of the first few of these.
    pub children_names: Vec<String>,
    /// Milestones in order of time.
    pub milestones: Vec<Milestone>,
    /// The agent started after the beginning of the end.
    pub truncated: bool,
    /// Losses that may affect this report.
    pub incomplete: Vec<LossKind>,
}

/// The termination of one incarnation of a pod.
#[derive(Clone, PartialEq, Debug)]
pub struct PodTermination {
    /// The pod.
    pub pod: PodRef,
    /// 1 for the first incarnation of this UID; a static pod whose manifest comes back has more.
    pub life: u32,
    /// 1 for the first report of this incarnation. Each update has the next number, unless it changes only
    /// the removal of sandbox and cgroup, or `final`.
    pub revision: u32,
    /// No other revision follows; only the removal of sandbox and cgroup may be added.
    pub is_final: bool,
    /// The workload that the pod belongs to, where the apiserver has shown it.
    pub workload: Option<Workload>,
    /// Why the pod terminated.
    pub cause: Cause,
    /// How certain the cause is.
    pub cause_certainty: Certainty,
    /// The source of the cause.
    pub cause_source: Source,
    /// The evidence for the cause; for `unknown`, what is missing. One sentence.
    pub cause_message: String,
    /// The grace of the first request, seconds.
    pub grace_seconds: Option<i64>,
    /// A later request shortened it to this, in seconds from then on (the apiserver sets 1 if the new
    /// deadline has passed already).
    pub shortened_to_seconds: Option<i64>,
    /// Where the report begins.
    pub began: BootTime,
    /// Where the report ends: the last of the processes, the sandbox and the object.
    pub ended: BootTime,
    /// `began`, ns since the Unix epoch.
    pub began_wall_ns: i64,
    /// The apiserver's timestamp of the request (deletionTimestamp − grace, the lower bound), as seconds
    /// before `began`. Includes the clock skew.
    pub request_lag_seconds: Option<f64>,
    /// Milestones of the pod and of the container on the critical path, in order of time.
    pub milestones: Vec<Milestone>,
    /// Additive: they sum to `ended` − `began` exactly.
    pub phases: Vec<Phase>,
    /// `ended` − `began` is an interval of this length: a source did not show the last event, or the request,
    /// when it happened.
    pub uncertainty: Duration,
    /// The container whose cgroup became empty last: the critical path.
    pub critical: Option<ContainerId>,
    /// The pod's containers.
    pub containers: Vec<ContainerDeath>,
    /// The pod's TCP connections; `None`: the agent did not count them.
    pub traffic: Option<Traffic>,
    /// Findings about the pod itself; the containers have their own.
    pub findings: Vec<Finding>,
    /// The agent started after the beginning of the termination.
    pub truncated: bool,
    /// Losses that may affect this report.
    pub incomplete: Vec<LossKind>,
}

/// The TCP connections of a terminating pod: what its end cost its clients. A lower bound: what reaches no socket of
/// the pod (a full backlog, a NetworkPolicy, a removed route) is not counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// Why they could not be seen; then nothing else is known.
    pub not_visible: Option<TrafficBlindness>,
    /// When the counting began, after the deletion request or the stop signal.
    pub since: BootTime,
    /// When the counts were last read.
    pub until: BootTime,
    /// When the first container was sent its stop signal.
    pub stopped: Option<BootTime>,
    /// The kernel shows refused connections (Linux 6.10); otherwise nothing is known of them.
    pub sees_refusals: bool,
    /// Open connections and listeners when the counting began.
    pub at_begin: Option<OpenConnections>,
    /// The same just after the stop signal; `None`: not known, or the counting began after it.
    pub at_stop: Option<OpenConnections>,
    /// What happened between the pod and its clients.
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrafficShare {
    /// Who was connected.
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

impl Traffic {
    /// How often any of these events happened, and the first and the last time.
    pub fn sum(&self, peers: &[TrafficPeer], events: &[ConnectionEvent]) -> Occurrences {
        let of =
            |share: &&TrafficShare| peers.contains(&share.peer) && events.contains(&share.event);
        self.counts.iter().filter(of).fold(Occurrences::default(), |sum, share| Occurrences {
            count: sum.count.saturating_add(share.count),
            first: Some(sum.first.map_or(share.first, |first| first.min(share.first))),
            last: sum.last.max(Some(share.last)),
        })
    }

    /// No port was open, from before the stop (or its hook) began: clients are refused whether the pod terminates or
    /// not.
    pub(crate) fn never_listened(&self, stop_began: Option<BootTime>, truncated: bool) -> bool {
        use ConnectionEvent as E;
        let is_open = |open: &OpenConnections| !open.listening.is_empty();
        let seen = [E::Opened, E::OpenedAfterStop, E::ListenerClosed, E::ListenerCut];
        let was_early = [stop_began, self.stopped].into_iter().flatten().all(|at| self.since < at);
        was_early
            && !truncated
            && !self.at_begin.as_ref().is_none_or(is_open)
            && !self.at_stop.as_ref().is_some_and(is_open)
            && self.sum(&[TrafficPeer::Client, TrafficPeer::Node], &seen).count == 0
    }
}

/// How often something happened, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Occurrences {
    /// How often.
    pub count: u64,
    /// The first time.
    pub first: Option<BootTime>,
    /// The last time.
    pub last: Option<BootTime>,
}

/// When the first of these containers began to be stopped.
pub(crate) fn stop_began(containers: &[ContainerDeath]) -> Option<BootTime> {
    let began = containers.iter().filter_map(|c| c.milestone(MilestoneKind::StopBegan));
    began.map(|began| began.at).min()
}

impl PodTermination {
    /// The time from the request to the end, without the sandbox's removal.
    pub fn total(&self) -> Duration {
        self.ended.since(self.began)
    }

    /// The milestone, if it is known.
    pub fn milestone(&self, kind: MilestoneKind) -> Option<&Milestone> {
        self.milestones.iter().find(|m| m.kind == kind)
    }

    /// When the first of its containers began to be stopped, by a preStop hook or a signal.
    pub fn stop_began(&self) -> Option<BootTime> {
        stop_began(&self.containers)
    }

    /// It listened on no port: clients are refused whether it terminates or not.
    pub fn never_listened(&self) -> bool {
        let traffic = self.traffic.as_ref();
        traffic.is_some_and(|traffic| traffic.never_listened(self.stop_began(), self.truncated))
    }

    /// What a later report of the same incarnation changes; `None`: only the removal of sandbox and cgroup,
    /// its number, or that it is final.
    pub(crate) fn change(&self, later: &Self) -> Option<Change> {
        let comparable = |report: &Self| {
            let mut report = Self { revision: 0, is_final: false, ..report.clone() };
            report.milestones.retain(|milestone| !milestone.kind.is_of_the_tail());
            report
        };
        if comparable(self) == comparable(later) {
            return None;
        }
        let has_another_verdict = |now: &ContainerDeath| {
            let before = self.containers.iter().find(|before| before.id == now.id);
            before.is_some_and(|before| before.verdict != now.verdict)
        };
        let verdict = later.containers.iter().any(has_another_verdict);
        Some(if verdict { Change::Verdict } else { Change::Other })
    }

    /// The same cause, and of the same containers the same verdicts and causes.
    pub(crate) fn concludes_the_same(&self, later: &Self) -> bool {
        let of = |report: &Self| {
            let of = |death: &ContainerDeath| (death.id.clone(), death.verdict, death.cause);
            (report.cause, report.containers.iter().map(of).collect::<Vec<_>>())
        };
        of(self) == of(later)
    }

    /// The total is a measurement, not an interval.
    pub fn is_exact(&self) -> bool {
        is_exact(self.total(), self.uncertainty)
    }

    /// Time spent in a phase.
    pub fn phase(&self, kind: PhaseKind) -> Duration {
        self.phases.iter().filter(|p| p.kind == kind).map(Phase::took).sum()
    }
}

/// Whether a duration with this uncertainty counts as measured: polling is no more precise than a second, and
/// 10 % are less than a histogram's bucket.
fn is_exact(duration: Duration, uncertainty: Duration) -> bool {
    uncertainty <= Duration::from_secs(1) || uncertainty * 10 <= duration
}

impl ContainerDeath {
    /// The milestone, if it is known.
    pub fn milestone(&self, kind: MilestoneKind) -> Option<&Milestone> {
        self.milestones.iter().find(|m| m.kind == kind)
    }
}
