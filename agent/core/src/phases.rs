//! The phases of a pod's termination: milestones → additive phases along the critical path.

use crate::{input::*, report::*};

/// Phases from `began` to `ended` along the path of one container. They are additive: each begins where the
/// one before ended, and none goes backwards, so an event earlier than its place in the graph (an object gone
/// before its processes) takes no time from another phase. `pod`: the milestones of the pod itself; `stopping`: when
/// the first of its containers began to be stopped; `found`: when the agent began to watch that one container, if it came
/// later; `cause`: why the pod terminated.
pub fn phases(
    (began, ended): (BootTime, BootTime),
    critical: Option<&ContainerDeath>,
    pod: &[Milestone],
    stopping: Option<BootTime>,
    found: Option<BootTime>,
    cause: Cause,
) -> Vec<Phase> {
    use MilestoneKind as M;
    let of_container = critical.map(|c| c.milestones.as_slice()).unwrap_or_default();
    let at = |kind| of_container.iter().chain(pod).find(|m| m.kind == kind).map(|m| m.at.boot);
    let intervals: Vec<&Milestone> = pod.iter().filter(|m| !m.uncertainty.is_zero()).collect();
    let mut walk = Walk { cur: began, ended, intervals, phases: Vec::new() };

    // Who was waited for before the agent came is not known: a hook may have run.
    let reaction = match found {
        Some(found) if found > began => PhaseKind::Unattributed,
        _ => PhaseKind::KubeletReaction,
    };
    let (term, kill, exited) = (at(M::TermSent), at(M::KillSent), at(M::Exited));
    walk.to(at(M::PostStartEnded), PhaseKind::PostStart);
    let sidecar = critical.is_some_and(|c| c.kind == ContainerKind::Sidecar);
    if let Some(hook) = at(M::PreStopBegan) {
        walk.to(Some(hook), reaction);
        let hook_ended = at(M::PreStopEnded).filter(|end| term.is_none_or(|term| *end <= term));
        walk.to(hook_ended.or(term).or(kill).or(exited), PhaseKind::PreStop);
        walk.to(term, if sidecar { PhaseKind::SidecarWait } else { PhaseKind::StopCall });
    } else {
        if sidecar {
            // The kubelet stops all containers at once, and sidecars wait for their turn
            // (kuberuntime_termination_order.go).
            walk.to(stopping.min(term), reaction);
            walk.to(term, PhaseKind::SidecarWait);
        }
        walk.to(term, reaction);
    }
    if term.is_none() {
        // No stop signal was sent before the end, or its record is missing.
        let required = critical.is_some_and(|c| requires_stop(cause, c));
        let kind = if required { PhaseKind::Unattributed } else { reaction };
        walk.to(kill.or(exited).or(at(M::CgroupEmpty)), kind);
    }
    walk.to(kill, PhaseKind::Shutdown);
    let last = if kill.is_some() { PhaseKind::Kill } else { PhaseKind::Shutdown };
    walk.to(exited, last);
    walk.known(
        at(M::CgroupEmpty),
        exited.is_some() || at(M::CgroupEmpty).is_none(),
        PhaseKind::Reap,
    );
    walk.known(at(M::ContainerExited), at(M::CgroupEmpty).is_some(), PhaseKind::RuntimeNotice);
    let is_listed = at(M::ContainerExited).is_some() || of_container.is_empty();
    walk.known(at(M::SandboxStopped), is_listed, PhaseKind::SandboxStop);
    let known = at(M::SandboxStopped).is_some();
    walk.known(at(M::FinalDelete), known, PhaseKind::Cleanup);
    let last =
        if at(M::FinalDelete).is_some() { PhaseKind::Finalizers } else { PhaseKind::Cleanup };
    walk.known(at(M::ObjectGone), known, last);
    walk.to(Some(ended), PhaseKind::Unattributed);
    walk.phases
}

struct Walk<'a> {
    cur: BootTime,
    ended: BootTime,
    /// Milestones that happened up to `uncertainty` before they were seen.
    intervals: Vec<&'a Milestone>,
    phases: Vec<Phase>,
}

impl Walk<'_> {
    fn to(&mut self, at: Option<BootTime>, kind: PhaseKind) {
        let Some(at) = at.map(|at| at.min(self.ended)).filter(|at| *at > self.cur) else { return };
        let from = match self.phases.pop_if(|last| last.kind == kind) {
            Some(last) => last.from.boot,
            None => self.cur,
        };
        let ends = self.intervals.iter().filter(|milestone| milestone.at == at);
        let uncertainty = ends.map(|milestone| milestone.uncertainty).max().unwrap_or_default();
        let took = at.since(from);
        let uncertainty = uncertainty.min(took);
        self.phases.push(Phase { kind, from: from.into(), to: at.into(), took, uncertainty });
        self.cur = at;
    }

    /// Like [`Self::to`] if the milestone before is known; otherwise the time is unattributed.
    fn known(&mut self, at: Option<BootTime>, before_is_known: bool, kind: PhaseKind) {
        self.to(at, if before_is_known { kind } else { PhaseKind::Unattributed });
    }
}

/// The cause requires a stop signal, and the container did not exit on its own before one came.
fn requires_stop(cause: Cause, death: &ContainerDeath) -> bool {
    cause != Cause::Completed
        && !matches!(
            death.verdict,
            Verdict::Completed
                | Verdict::Failed
                | Verdict::Crashed
                | Verdict::OomKilled
                | Verdict::ForceKilled
        )
}
