//! Why a pod ended, and why a container of it was stopped.

use super::{object::Object, observation::Cause};

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
