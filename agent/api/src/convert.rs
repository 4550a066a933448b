//! The core's types as those of the API, and back: the agent shows, a client renders with the same code.

use crate::{Moment, Open, leaks, terminations as wire, traffic};
use coroner_core::{
    evidence::{Evidence, EvidenceKind},
    ids::CgroupId,
    input::{ProcessRef, TargetState},
    leak::{DetectionState, Leak, LeakCause, LeakEvidence, LikelyCause},
    report::{ContainerDeath, Milestone, Phase, PodTermination, Proof, Traffic, TrafficShare},
    time::{Anchor, BootTime},
    types::{Cause, Certainty, Source, Verdict},
};
use std::time::Duration;

/// What the agent says of a leak in words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sentences {
    /// Of its cause.
    pub cause: String,
    /// Of each piece of evidence, with its source.
    pub evidence: Vec<(Source, String)>,
    /// What to do.
    pub remediation: Vec<String>,
}

fn all<T, U: From<T>>(items: Vec<T>) -> Vec<U> {
    items.into_iter().map(Into::into).collect()
}

fn known<T, U>(items: Vec<Open<T>>, of: impl Fn(T) -> U) -> Vec<U> {
    items.into_iter().filter_map(Open::known).map(of).collect()
}

/// Rounded once: `as_secs_f64` adds two parts, and shows it in the last digits.
fn in_seconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e9
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

impl From<&PodTermination> for wire::Termination {
    fn from(report: &PodTermination) -> Self {
        let clock = Anchor { boot_ns: report.began.0, wall_ns: report.began_wall_ns };
        let at = |at: BootTime| Moment::of_boot(at, &clock);
        Self {
            node: String::new(),
            pod: report.pod.clone(),
            life: report.life,
            revision: report.revision,
            is_final: report.is_final,
            workload: report.workload.clone(),
            cause: report.cause.into(),
            cause_certainty: report.cause_certainty.into(),
            cause_source: report.cause_source.into(),
            cause_message: report.cause_message.clone(),
            grace_seconds: report.grace_seconds,
            shortened_to_seconds: report.shortened_to_seconds,
            began: at(report.began),
            ended: at(report.ended),
            seconds: in_seconds(report.total()),
            uncertainty_seconds: in_seconds(report.uncertainty),
            request_lag_seconds: report.request_lag_seconds,
            milestones: milestones(&report.milestones, &clock),
            phases: report.phases.iter().map(|phase| of_phase(phase, &clock).into()).collect(),
            critical: report.critical.clone(),
            containers: report.containers.iter().map(|d| wire::Death::of(d, &clock)).collect(),
            traffic: report.traffic.as_ref().map(|traffic| of_traffic(traffic, &clock)),
            findings: all(report.findings.clone()),
            truncated: report.truncated,
            incomplete: all(report.incomplete.clone()),
        }
    }
}

impl From<wire::Termination> for PodTermination {
    fn from(wire: wire::Termination) -> Self {
        Self {
            pod: wire.pod,
            life: wire.life,
            revision: wire.revision,
            is_final: wire.is_final,
            workload: wire.workload,
            cause: wire.cause.known().unwrap_or(Cause::Unknown),
            cause_certainty: wire.cause_certainty.known().unwrap_or(Certainty::None),
            cause_source: wire.cause_source.known().unwrap_or(Source::Inferred),
            cause_message: wire.cause_message,
            grace_seconds: wire.grace_seconds,
            shortened_to_seconds: wire.shortened_to_seconds,
            began: wire.began.boot(),
            ended: wire.ended.boot(),
            began_wall_ns: wire.began.time.0,
            request_lag_seconds: wire.request_lag_seconds,
            milestones: known(wire.milestones, to_milestone),
            phases: known(wire.phases, |phase| Phase {
                kind: phase.kind,
                from: phase.from.boot(),
                to: phase.to.boot(),
                uncertainty: seconds(phase.uncertainty_seconds),
            }),
            uncertainty: seconds(wire.uncertainty_seconds),
            critical: wire.critical,
            containers: all(wire.containers),
            traffic: wire.traffic.map(to_traffic),
            findings: known(wire.findings, |finding| finding),
            truncated: wire.truncated,
            incomplete: known(wire.incomplete, |loss| loss),
        }
    }
}

fn of_traffic(report: &Traffic, clock: &Anchor) -> traffic::Traffic {
    let at = |at: BootTime| Moment::of_boot(at, clock);
    let share = |share: &TrafficShare| {
        let TrafficShare { peer, event, count, first, last } = share.clone();
        let (first, last) = (at(first), at(last));
        traffic::TrafficShare { peer, event, count, first, last }.into()
    };
    traffic::Traffic {
        not_visible: report.not_visible.map(Into::into),
        since: at(report.since),
        until: at(report.until),
        stopped: report.stopped.map(at),
        sees_refusals: report.sees_refusals,
        at_begin: report.at_begin.clone(),
        at_stop: report.at_stop.clone(),
        counts: report.counts.iter().map(share).collect(),
    }
}

fn to_traffic(wire: traffic::Traffic) -> Traffic {
    let share = |share: traffic::TrafficShare| {
        let traffic::TrafficShare { peer, event, count, first, last } = share;
        let (first, last) = (first.boot(), last.boot());
        TrafficShare { peer, event, count, first, last }
    };
    Traffic {
        not_visible: wire.not_visible.and_then(Open::known),
        since: wire.since.boot(),
        until: wire.until.boot(),
        stopped: wire.stopped.map(Moment::boot),
        sees_refusals: wire.sees_refusals,
        at_begin: wire.at_begin,
        at_stop: wire.at_stop,
        counts: known(wire.counts, share),
    }
}

impl wire::Death {
    /// By the clock of its termination, or by the agent's now.
    pub fn of(death: &ContainerDeath, clock: &Anchor) -> Self {
        let evidence = |one: &Evidence| {
            let at = Moment::of_boot(one.at, clock);
            wire::Evidence { at, source: one.source, kind: one.kind.clone().into() }.into()
        };
        Self {
            node: String::new(),
            id: death.id.clone(),
            name: death.name.clone(),
            pod: death.pod.clone(),
            workload: death.workload.clone(),
            kind: death.kind.into(),
            verdict: death.verdict.into(),
            proof: wire::Proof {
                message: death.proof.message.clone(),
                evidence: death.proof.evidence.iter().map(evidence).collect(),
            },
            cause: death.cause.into(),
            cause_certainty: death.cause_certainty.into(),
            cause_source: death.cause_source.into(),
            cause_message: death.cause_message.clone(),
            findings: all(death.findings.clone()),
            exit: death.exit.map(Into::into),
            stop_signal: death.stop_signal,
            grace_seconds: death.grace_seconds,
            grace_ratio: death.grace_ratio,
            pre_stop: death.pre_stop.clone().map(Into::into),
            killer: death.killer.clone().map(Into::into),
            children_killed: death.children_killed,
            children_names: death.children_names.clone(),
            milestones: milestones(&death.milestones, clock),
            truncated: death.truncated,
            incomplete: all(death.incomplete.clone()),
        }
    }
}

impl From<wire::Death> for ContainerDeath {
    fn from(wire: wire::Death) -> Self {
        let evidence = |one: wire::Evidence| Evidence {
            at: one.at.boot(),
            source: one.source,
            kind: one.kind.into(),
        };
        Self {
            id: wire.id,
            name: wire.name,
            pod: wire.pod,
            workload: wire.workload,
            kind: wire.kind.known().unwrap_or_default(),
            verdict: wire.verdict.known().unwrap_or(Verdict::Unknown),
            proof: Proof {
                message: wire.proof.message,
                evidence: known(wire.proof.evidence, evidence),
            },
            cause: wire.cause.known().unwrap_or(Cause::Unknown),
            cause_certainty: wire.cause_certainty.known().unwrap_or(Certainty::None),
            cause_source: wire.cause_source.known().unwrap_or(Source::Inferred),
            cause_message: wire.cause_message,
            findings: known(wire.findings, |finding| finding),
            exit: wire.exit.and_then(Open::known),
            stop_signal: wire.stop_signal,
            grace_seconds: wire.grace_seconds,
            grace_ratio: wire.grace_ratio,
            pre_stop: wire.pre_stop.and_then(Open::known),
            killer: wire.killer.map(Into::into),
            children_killed: wire.children_killed,
            children_names: wire.children_names,
            milestones: known(wire.milestones, to_milestone),
            truncated: wire.truncated,
            incomplete: known(wire.incomplete, |loss| loss),
        }
    }
}

fn milestones(all: &[Milestone], clock: &Anchor) -> Vec<Open<wire::Milestone>> {
    let of = |one: &Milestone| wire::Milestone {
        kind: one.kind,
        at: Moment::of_boot(one.at, clock),
        uncertainty_seconds: in_seconds(one.uncertainty),
        source: one.source,
    };
    all.iter().map(|one| of(one).into()).collect()
}

fn to_milestone(wire: wire::Milestone) -> Milestone {
    let uncertainty = seconds(wire.uncertainty_seconds);
    Milestone { kind: wire.kind, at: wire.at.boot(), uncertainty, source: wire.source }
}

fn of_phase(phase: &Phase, clock: &Anchor) -> wire::Phase {
    wire::Phase {
        kind: phase.kind,
        from: Moment::of_boot(phase.from, clock),
        to: Moment::of_boot(phase.to, clock),
        seconds: in_seconds(phase.took()),
        uncertainty_seconds: in_seconds(phase.uncertainty),
    }
}

/// Between two enums of the same variants.
macro_rules! same_variants {
    ($from:ty => $to:ty) => {
        impl From<$from> for $to {
            fn from(kind: $from) -> Self {
                type From = $from;
                match kind {
                    From::SignalGenerate { signal, code, result, sender, target } => {
                        let (sender, target) = (sender.into(), target.map(Into::into));
                        Self::SignalGenerate { signal, code, result, sender, target }
                    }
                    From::SignalDeliver { signal } => Self::SignalDeliver { signal },
                    From::SchedProcessExit { status } => Self::SchedProcessExit { status },
                    From::MarkVictim { pid } => Self::MarkVictim { pid },
                    From::CgroupEmpty => Self::CgroupEmpty,
                    From::PreStopExec { pid, comm } => Self::PreStopExec { pid, comm },
                    From::PreStopExit { status } => Self::PreStopExit { status },
                    From::PreStopSpec { hook } => Self::PreStopSpec { hook },
                    From::Process(process) => Self::Process(process),
                }
            }
        }
    };
}

same_variants!(EvidenceKind => wire::EvidenceKind);
same_variants!(wire::EvidenceKind => EvidenceKind);

impl From<ProcessRef> for wire::Process {
    fn from(of: ProcessRef) -> Self {
        let cgroup = of.cgroup.map(|id| id.0);
        Self { pid: of.tgid, comm: of.comm, cgroup, in_container: of.in_container }
    }
}

impl From<wire::Process> for ProcessRef {
    fn from(wire: wire::Process) -> Self {
        let cgroup = wire.cgroup.map(CgroupId);
        Self { tgid: wire.pid, comm: wire.comm, cgroup, in_container: wire.in_container }
    }
}

impl From<TargetState> for wire::Target {
    fn from(of: TargetState) -> Self {
        Self {
            unkillable: of.unkillable,
            group_exit: of.group_exit,
            disposition: of.disposition,
            blocked: of.blocked,
            pending: (1..=64).filter(|n| of.pending & (1 << (n - 1)) != 0).collect(),
        }
    }
}

impl From<wire::Target> for TargetState {
    fn from(wire: wire::Target) -> Self {
        let bit = |n: &u8| 1_u64.checked_shl(u32::from(*n).wrapping_sub(1)).unwrap_or(0);
        Self {
            unkillable: wire.unkillable,
            group_exit: wire.group_exit,
            disposition: wire.disposition,
            blocked: wire.blocked,
            pending: wire.pending.iter().map(bit).fold(0, |mask, bit| mask | bit),
        }
    }
}

impl leaks::Leak {
    /// `clock`: the agent's now.
    pub fn of(leak: &Leak, clock: &Anchor, sentences: Sentences) -> Self {
        let at = |time| Moment::of_wall(time, clock);
        let pieces = leak.evidence.iter().zip(sentences.evidence);
        let evidence = |(one, (source, message)): (&LeakEvidence, _)| {
            let at = one.at.map(at);
            leaks::LeakEvidence { at, source, message, kind: one.kind.clone() }.into()
        };
        Self {
            node: String::new(),
            class: leak.class.into(),
            key: leak.key.clone().into(),
            pod: leak.pod.clone(),
            workload: leak.workload.clone(),
            attempt: leak.attempt,
            created: leak.created.map(at),
            first_observed: at(leak.first_observed),
            preexisting: leak.preexisting,
            resolved: false,
            confirmed: at(leak.confirmed),
            resources: leak.resources.clone(),
            cause: leaks::Cause {
                kind: leak.cause.kind.into(),
                name: leak.cause.name.clone(),
                kubelet_version: leak.cause.kubelet_version.clone(),
                runtime: leak.cause.runtime.map(Into::into),
                message: sentences.cause,
            },
            blocked_on: leak.blocked_on.map(Into::into),
            evidence: pieces.map(evidence).collect(),
            remediation: sentences.remediation,
            tools: leak.tools.clone(),
        }
    }
}

/// `None`: a class or thing that this version does not know.
impl From<leaks::Leak> for Option<Leak> {
    fn from(wire: leaks::Leak) -> Self {
        let evidence = |one: leaks::LeakEvidence| LeakEvidence {
            at: one.at.map(|at| at.time),
            kind: one.kind,
        };
        Some(Leak {
            class: wire.class.known()?,
            key: wire.key.known()?,
            pod: wire.pod,
            workload: wire.workload,
            attempt: wire.attempt,
            created: wire.created.map(|at| at.time),
            first_observed: wire.first_observed.time,
            preexisting: wire.preexisting,
            confirmed: wire.confirmed.time,
            resources: wire.resources,
            cause: LikelyCause {
                kind: wire.cause.kind.known().unwrap_or(LeakCause::Unknown),
                name: wire.cause.name,
                kubelet_version: wire.cause.kubelet_version,
                runtime: wire.cause.runtime.and_then(Open::known),
            },
            blocked_on: wire.blocked_on.and_then(Open::known),
            evidence: known(wire.evidence, evidence),
            tools: wire.tools,
        })
    }
}

impl leaks::Detection {
    /// The state, if this version knows it; else that something is not in sync.
    pub fn known_state(&self) -> DetectionState {
        self.state.clone().known().unwrap_or(DetectionState::Starting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_what_was_measured() {
        for ns in [0, 1, 6_193_418_678, 86_400_000_000_001] {
            let time = Duration::from_nanos(ns);
            assert_eq!(seconds(in_seconds(time)), time);
        }
        assert_eq!(in_seconds(Duration::from_nanos(6_193_418_678)).to_string(), "6.193418678");
    }
}
