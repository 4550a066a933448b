//! One pod life's end: milestones → additive phases along the critical path, and the cause.

use super::{
    input::Hook,
    object::Object,
    observation::{Cause, ContainerDeath, Milestone, MilestoneKind, Phase, PhaseKind},
    time::BootTime,
};

/// Phases from `began` to `ended` along the path of one container. Additive by construction: each
/// begins where the one before ended, and none goes backwards, so that a fact which came earlier
/// than its place in the graph (an object gone before its processes) takes no time from another.
///
/// `path` are the milestones of the critical container, `pod` those of the pod itself;
/// `stop_required` says that the cause requires a stop signal, which is not proven absent.
pub fn phases(
    began: BootTime,
    ended: BootTime,
    path: &[Milestone],
    pod: &[Milestone],
    stop_required: bool,
) -> Vec<Phase> {
    use MilestoneKind::{
        ContainerExited, Empty, Exited, KillSent, ObjectGone, PreStopBegan, PreStopEnded,
        SandboxStopped, TermSent,
    };
    let at = |kind: MilestoneKind| path.iter().chain(pod).find(|m| m.kind == kind).map(|m| m.at);
    let mut walk = Walk { cur: began, ended, phases: Vec::new() };

    let (term, kill, exited) = (at(TermSent), at(KillSent), at(Exited));
    if let Some(hook) = at(PreStopBegan) {
        walk.to(Some(hook), PhaseKind::KubeletReaction);
        let hook_ended = at(PreStopEnded).filter(|end| term.is_none_or(|term| *end <= term));
        match (hook_ended, term) {
            (Some(end), _) => walk.to(Some(end), PhaseKind::PreStop),
            (None, Some(term)) => walk.to(Some(term), PhaseKind::PreStop),
            (None, None) => walk.to(kill.or(exited), PhaseKind::PreStop),
        }
        walk.to(term, PhaseKind::StopCall);
    } else {
        walk.to(term, PhaseKind::KubeletReaction);
    }
    if term.is_none() {
        // Nothing was sent before it ended, or what was sent was not seen.
        let kind = if stop_required { PhaseKind::Unattributed } else { PhaseKind::KubeletReaction };
        walk.to(kill.or(exited).or(at(Empty)), kind);
    }
    walk.to(kill, PhaseKind::Shutdown);
    let last = if kill.is_some() { PhaseKind::Kill } else { PhaseKind::Shutdown };
    walk.to(exited, last);
    walk.known(at(Empty), exited.is_some() || at(Empty).is_none(), PhaseKind::Reap);
    let mut known = at(Empty).is_some();
    walk.known(at(ContainerExited), known, PhaseKind::RuntimeNotice);
    known = at(ContainerExited).is_some() || path.is_empty();
    walk.known(at(SandboxStopped), known, PhaseKind::SandboxStop);
    known = at(SandboxStopped).is_some();
    walk.known(at(ObjectGone), known, PhaseKind::Cleanup);
    walk.to(Some(ended), PhaseKind::Unattributed);
    walk.phases
}

struct Walk {
    cur: BootTime,
    ended: BootTime,
    phases: Vec<Phase>,
}

impl Walk {
    fn to(&mut self, at: Option<BootTime>, kind: PhaseKind) {
        let Some(at) = at.map(|at| at.min(self.ended)).filter(|at| *at > self.cur) else { return };
        match self.phases.last_mut() {
            Some(last) if last.kind == kind => last.to = at,
            _ => self.phases.push(Phase { kind, from: self.cur, to: at }),
        }
        self.cur = at;
    }

    /// As [`Self::to`], if the milestone before is known; the time is unattributed otherwise.
    fn known(&mut self, at: Option<BootTime>, before_is_known: bool, kind: PhaseKind) {
        self.to(at, if before_is_known { kind } else { PhaseKind::Unattributed });
    }
}

/// What the cause of a pod's end rests on.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// The pod's object, where the apiserver told.
    pub object: Option<&'a Object>,
    /// Its deletion was requested while something of it still ran.
    pub deleted: bool,
    /// The object went while something of it still ran.
    pub outlived: bool,
    /// `kubernetes.io/config.source` of its sandbox is not the apiserver.
    pub is_static: bool,
    /// A container of it was sent the stop signal.
    pub stopped: bool,
    /// The agent knows how all of its containers ended.
    pub complete: bool,
}

/// The cause of a pod's end.
pub fn cause(of: Circumstances<'_>) -> Cause {
    let disruption = of.object.and_then(|o| o.pod.disruption.as_deref());
    if of.is_static || of.object.is_some_and(Object::is_mirror) {
        return if of.stopped { Cause::StaticRemoved } else { Cause::Completed };
    }
    if of.deleted || of.outlived {
        let by_condition = match disruption {
            Some("EvictionByEvictionAPI") => Some(Cause::ApiEviction),
            Some("PreemptionByScheduler" | "PreemptionByKubeScheduler") => Some(Cause::Preemption),
            Some("DeletionByTaintManager") => Some(Cause::TaintEviction),
            Some("DeletionByPodGC") => Some(Cause::PodGc),
            Some("TerminationByKubelet") => of.object.and_then(by_kubelet),
            _ => None,
        };
        let forced = of.outlived
            && of.object.is_none_or(|o| {
                o.changed.last().or(o.requested.as_ref()).is_none_or(|r| r.grace_seconds == 0)
            });
        return by_condition.unwrap_or(if forced { Cause::ForceDelete } else { Cause::ApiDelete });
    }
    if let Some(cause) = of.object.and_then(by_kubelet) {
        return cause;
    }
    if of.stopped || !of.complete { Cause::Unknown } else { Cause::Completed }
}

/// The kubelet ends a pod without a delete request: eviction (eviction_manager.go) and graceful
/// node shutdown (nodeshutdown_manager.go) set the pod's phase and reason.
fn by_kubelet(object: &Object) -> Option<Cause> {
    match (object.pod.reason.as_str(), object.pod.disruption.as_deref()) {
        ("Evicted", _) => Some(Cause::NodePressureEviction),
        ("Terminated" | "NodeShutdown", _) => Some(Cause::NodeShutdown),
        ("Preempting" | "Preempted", _) => Some(Cause::Preemption),
        (_, Some("TerminationByKubelet")) => Some(Cause::NodePressureEviction),
        _ => None,
    }
}

/// The cause of one container's end in a pod that goes on, or the pod's own.
pub fn container_cause(
    object: Option<&Object>,
    container: &str,
    stopped: bool,
    pod: Option<Cause>,
) -> Cause {
    if !stopped {
        return match pod {
            Some(Cause::Unknown) | None => Cause::Completed,
            Some(cause) => cause,
        };
    }
    if let Some(cause) = pod {
        return cause;
    }
    // Liveness and startup kills are in no watch: inferred from the spec and `started`.
    match object.and_then(|o| o.pod.containers.get(container)) {
        Some(c) if c.startup_probe && c.started == Some(false) => Cause::Startup,
        Some(c) if c.liveness_probe => Cause::Liveness,
        Some(_) => Cause::Restart,
        None => Cause::Unknown,
    }
}

/// Whether the graph requires a stop signal for this end: the cause is a stop, and the container
/// did not leave by itself before one came.
pub fn requires_stop(cause: Cause, death: &ContainerDeath) -> bool {
    use super::observation::Verdict;
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

/// The hook by the spec: the object's, else the runtime's annotation.
pub fn hook(object: Option<&Object>, container: &str, annotated: Option<&Hook>) -> Option<Hook> {
    object
        .and_then(|o| o.pod.containers.get(container))
        .and_then(|c| c.pre_stop.clone())
        .or_else(|| annotated.cloned())
}
