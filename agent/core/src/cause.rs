//! Why a pod ended, and why a container of it was stopped.

use super::{
    object::Object,
    observation::{Cause, Reason, Source},
    process::Processes,
    time::BootTime,
};

/// What the cause of a pod's end rests on.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// The pod's object, where the apiserver told.
    pub object: Option<&'a Object>,
    /// Its deletion was requested while something of it still ran.
    pub deleted: bool,
    /// The object went while something of it still ran.
    pub outlived: bool,
    /// The object went unseen, its last known phase was not final, and nothing says that it was
    /// deleted before what ran of it had ended.
    pub vanished: bool,
    /// `kubernetes.io/config.source` of its sandbox is not the apiserver.
    pub is_static: bool,
    /// A main container of it ran; otherwise the rest is said of all others.
    pub had_main: bool,
    /// A container of it was sent the stop signal.
    pub stopped: bool,
    /// The agent knows how all of its containers ended.
    pub complete: bool,
    /// What is missing that may hold a stop, where none was seen.
    pub unproven: Option<&'a str>,
}

fn reason(cause: Cause, source: Source, sentence: impl Into<String>) -> Reason {
    Reason { cause, source, sentence: sentence.into() }
}

/// The cause of a pod's end.
pub fn cause(of: Circumstances<'_>) -> Reason {
    let disruption = of.object.and_then(|o| o.pod.disruption.as_deref());
    let is_static = of.is_static || of.object.is_some_and(Object::is_mirror);
    // Deleting its mirror stops nothing of a static pod.
    if !is_static && (of.deleted || of.outlived) {
        return deletion(of, disruption);
    }
    if let Some(reason) = of.object.and_then(by_kubelet) {
        return reason;
    }
    if !is_static && of.vanished {
        let sentence = if of.stopped {
            "What ran of it had ended before the watch of the apiserver was seen to break, and its \
             object was gone when the watch was back: whether it was deleted first is not known."
        } else {
            "What ran of it had ended, and was not seen to be told to stop; its object went while \
             the watch of the apiserver was broken: whether it was deleted first is not known."
        };
        return reason(Cause::Unknown, Source::Inferred, sentence);
    }
    if !of.stopped {
        return not_stopped(of);
    }
    if is_static {
        let sentence = "A static pod was stopped: its manifest was removed or changed.";
        return reason(Cause::StaticRemoved, Source::Inferred, sentence);
    }
    let sentence = match of.object.map(|o| o.pod.reason.as_str()) {
        None => "It was told to stop; why is not known, for the apiserver never told of the pod.",
        Some("") => "It was told to stop without a deletion, and its status names no reason.",
        // active_deadline.go
        Some("DeadlineExceeded") => {
            let sentence = "It was told to stop without a deletion, by its activeDeadlineSeconds: \
                            its status.reason is DeadlineExceeded.";
            return reason(Cause::Unknown, Source::Api, sentence);
        }
        Some(told) => {
            let sentence =
                format!("It was told to stop without a deletion; its status.reason is {told}.");
            return reason(Cause::Unknown, Source::Api, sentence);
        }
    };
    reason(Cause::Unknown, Source::Inferred, sentence)
}

/// No stop was seen: there was none, unless evidence is missing.
fn not_stopped(of: Circumstances<'_>) -> Reason {
    match of.unproven {
        _ if !of.complete => reason(
            Cause::Unknown,
            Source::Inferred,
            "Whether it was told to stop is not known: the kernel's record of how a container of \
             it ended is missing.",
        ),
        Some(missing) => perhaps_stopped(missing),
        None => {
            let sentence = if of.had_main {
                "Its main containers ended, and none had been told to stop."
            } else {
                "No main container of it ran; the others ended, and none had been told to stop."
            };
            reason(Cause::Completed, Source::Kernel, sentence)
        }
    }
}

fn perhaps_stopped(missing: &str) -> Reason {
    let sentence = format!("Whether it was told to stop is not known: {missing}.");
    reason(Cause::Unknown, Source::Inferred, sentence)
}

fn deletion(of: Circumstances<'_>, disruption: Option<&str>) -> Reason {
    let by_condition = match disruption {
        Some("EvictionByEvictionAPI") => Some(Cause::ApiEviction),
        Some("PreemptionByScheduler" | "PreemptionByKubeScheduler") => Some(Cause::Preemption),
        Some("DeletionByTaintManager") => Some(Cause::TaintEviction),
        Some("DeletionByPodGC") => Some(Cause::PodGc),
        _ => None,
    };
    if let Some(cause) = by_condition {
        let why = disruption.unwrap_or_default();
        let sentence = format!("Its condition DisruptionTarget has the reason {why}.");
        return reason(cause, Source::Api, sentence);
    }
    if disruption == Some("TerminationByKubelet")
        && let Some(reason) = of.object.and_then(by_kubelet)
    {
        return reason;
    }
    let request = of.object.and_then(|o| o.changed.last().or(o.requested.as_ref()));
    let seen_going = of.object.is_some_and(Object::was_seen_going);
    // The kubelet's own last delete has a grace of 0 too, and follows the end of all containers.
    let by_kubelet = of.object.is_some_and(|o| o.pod.is_over());
    let sentence = match request {
        Some(r) if r.grace_seconds == 0 && of.outlived && !by_kubelet => {
            let sentence = "Its object was deleted with a grace of 0 while it still ran.";
            return reason(Cause::ForceDelete, Source::Api, sentence);
        }
        None if of.outlived && seen_going && !by_kubelet => {
            let sentence = "Its object was deleted while it still ran, without a deadline before.";
            return reason(Cause::ForceDelete, Source::Api, sentence);
        }
        Some(_) => "Its object was deleted (metadata.deletionTimestamp).",
        None if seen_going => "Its object was deleted.",
        None => "Its object was deleted while the watch of the apiserver was broken.",
    };
    reason(Cause::ApiDelete, Source::Api, sentence)
}

/// The kubelet ends a pod without a delete request: eviction (eviction_manager.go) and graceful
/// node shutdown (nodeshutdown_manager.go) set the pod's phase and reason.
fn by_kubelet(object: &Object) -> Option<Reason> {
    let told = object.pod.reason.as_str();
    let cause = match (told, object.pod.disruption.as_deref()) {
        ("Evicted", _) => Cause::NodePressureEviction,
        ("Terminated" | "NodeShutdown", _) => Cause::NodeShutdown,
        ("Preempting" | "Preempted", _) => Cause::Preemption,
        (_, Some("TerminationByKubelet")) => Cause::NodePressureEviction,
        _ => return None,
    };
    let sentence = if told.is_empty() {
        "Its condition DisruptionTarget has the reason TerminationByKubelet.".to_owned()
    } else {
        format!("The kubelet set its status.reason to {told}.")
    };
    Some(reason(cause, Source::Api, sentence))
}

/// What the cause of one container's end rests on.
#[derive(Clone, Debug)]
pub struct ContainerCircumstances<'a> {
    /// The pod's object, where the apiserver told.
    pub object: Option<&'a Object>,
    /// The container's name.
    pub container: &'a str,
    /// What is missing that may hold a stop, where none was seen.
    pub unproven: Option<&'a str>,
    /// By its status it had started, which it has once it has passed its startup probe; `None`:
    /// no status told while it ran.
    pub started: Option<bool>,
    /// The cause of the pod's own end, if the container ended with it.
    pub pod: Option<Reason>,
    /// The pod went on after it.
    pub went_on: bool,
    /// It was being stopped before its pod's deletion was requested, by the apiserver's clock, and longer
    /// before the watch told of that than a watch takes.
    pub before_request: bool,
    /// What the kernel told of its processes, and when the stop began.
    pub stop: Option<(&'a Processes, BootTime)>,
}

/// The cause of one container's end in a pod that goes on, or the pod's own.
pub fn container_cause(of: ContainerCircumstances<'_>) -> Reason {
    let Some((processes, stopped)) = of.stop else {
        return match (of.pod, of.unproven) {
            (Some(pod), _) if pod.cause != Cause::Unknown => pod,
            (_, Some(missing)) => perhaps_stopped(missing),
            (_, None) => {
                let sentence = "It ended, and had not been told to stop.";
                reason(Cause::Completed, Source::Kernel, sentence)
            }
        };
    };
    if of.before_request {
        return reason(
            Cause::Unknown,
            Source::Inferred,
            "It was told to stop before its pod was deleted, by the apiserver's clock; why is not \
             known, for no later attempt and no status shows that the pod went on first.",
        );
    }
    if let Some(pod) = of.pod {
        return pod;
    }
    if !of.went_on && of.object.is_some() {
        return reason(
            Cause::Unknown,
            Source::Inferred,
            "It was told to stop; whether its pod was being deleted is not known, for nothing shows \
             that the pod went on, and the watch of the apiserver may be late.",
        );
    }
    // Liveness and startup kills are in no watch: inferred from the spec and `started`.
    let spec = of.object.and_then(|o| o.pod.containers.get(of.container));
    let Some(spec) = spec else {
        return reason(
            Cause::Unknown,
            Source::Inferred,
            "It was told to stop; why, and whether its pod goes on, is not known, for the apiserver \
             never told of the pod's probes.",
        );
    };
    // Only of exec probes does the kernel see anything; what else came from outside proves nothing.
    let by_probe = |cause, binary: Option<&str>, sentence: &str| {
        let failed = binary.map_or(0, |binary| processes.failed_probes(binary, stopped));
        match binary.filter(|_| failed > 0) {
            Some(binary) => {
                let sentence = format!(
                    "{sentence}, and the last {failed} run(s) of its exec probe ({binary}) failed \
                     just before it was stopped; the pod goes on."
                );
                reason(cause, Source::Kernel, sentence)
            }
            None => reason(cause, Source::Inferred, format!("{sentence}; the pod goes on.")),
        }
    };
    match (spec.liveness_probe, spec.startup_probe, of.started) {
        (_, true, Some(false)) => by_probe(
            Cause::Startup,
            spec.startup_exec.as_deref(),
            "Inferred: its startup probe had not succeeded yet",
        ),
        (_, true, None) => reason(
            Cause::Unknown,
            Source::Inferred,
            "It was told to stop while the pod goes on; whether its startup probe had succeeded \
             by then is not known, for the apiserver did not tell while it ran.",
        ),
        (true, ..) => by_probe(
            Cause::Liveness,
            spec.liveness_exec.as_deref(),
            "Inferred: it has a liveness probe",
        ),
        (false, true, Some(true)) => {
            let sentence = "Inferred: it has no liveness probe, its startup probe had succeeded, \
                            and the pod goes on.";
            reason(Cause::Restart, Source::Inferred, sentence)
        }
        (false, false, _) => {
            let sentence = "Inferred: it has no liveness or startup probe, and the pod goes on.";
            reason(Cause::Restart, Source::Inferred, sentence)
        }
    }
}
