//! Why a pod ended. [`super::stop`] says why a container of a pod that goes on was stopped.

use super::{
    object::Object,
    observation::{Cause, Certainty, Reason, Source},
};

/// Reason of the condition DisruptionTarget that the kubelet sets; all others are the control plane's.
pub(crate) const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

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
    /// deleted before what ran of it had ended. Or it came and went unseen.
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
    /// Why a deciding container of it was stopped, if something shows that.
    pub stopped_for: Option<&'a Reason>,
}

impl Reason {
    /// A cause, who says so, and what it rests on.
    pub fn new(cause: Cause, source: Source, sentence: impl Into<String>) -> Self {
        Self { cause, source, sentence: sentence.into() }
    }

    /// How sure it is, which follows from who says so.
    pub fn certainty(&self) -> Certainty {
        match (self.cause, self.source) {
            (Cause::Unknown, _) => Certainty::None,
            (_, Source::Inferred) => Certainty::Inferred,
            _ => Certainty::Proven,
        }
    }
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
        return Reason::new(Cause::Unknown, Source::Inferred, sentence);
    }
    if !of.stopped {
        return not_stopped(of);
    }
    if is_static {
        let sentence = "A static pod was stopped: its manifest was removed or changed.";
        return Reason::new(Cause::StaticRemoved, Source::Inferred, sentence);
    }
    let sentence = match (of.object.map(|o| o.pod.reason.as_str()), of.stopped_for) {
        (None, _) => {
            "It was told to stop; why is not known, for the apiserver never told of the pod."
                .to_owned()
        }
        (Some(""), Some(reason)) => return reason.clone(),
        // Since 1.26 all other evictions leave the condition DisruptionTarget.
        (Some(""), None) if of.had_main && of.object.is_some_and(is_restarted_and_succeeded) => {
            let sentence = "Inferred: it was told to stop and has the phase Succeeded, its restartPolicy is \
                            Always, and nothing else is left of the reason: of all evictions by the \
                            kubelet only those for a pod's own storage limits leave as little.";
            return Reason::new(Cause::LocalStorageLimit, Source::Inferred, sentence);
        }
        (Some(""), None) => {
            "It was told to stop without a deletion, and its status names no reason.".to_owned()
        }
        (Some(told), _) => {
            let sentence =
                format!("It was told to stop without a deletion; its status.reason is {told}.");
            return Reason::new(Cause::Unknown, Source::Api, sentence);
        }
    };
    Reason::new(Cause::Unknown, Source::Inferred, sentence)
}

fn is_restarted_and_succeeded(object: &Object) -> bool {
    let pod = &object.pod;
    pod.phase == "Succeeded" && pod.restart_policy == "Always" && pod.disruption.is_none()
}

/// No stop was seen: there was none, unless evidence is missing.
fn not_stopped(of: Circumstances<'_>) -> Reason {
    match of.unproven {
        _ if !of.complete => Reason::new(
            Cause::Unknown,
            Source::Inferred,
            "Whether it was told to stop is not known: the kernel's record of how a container of \
             it ended is missing.",
        ),
        Some(missing) => perhaps_stopped(missing),
        None => {
            let sentence = if of.had_main {
                "Its main containers ended, and none had been stopped with the pod."
            } else {
                "No main container of it ran; the others ended, and none had been told to stop."
            };
            Reason::new(Cause::Completed, Source::Kernel, sentence)
        }
    }
}

fn perhaps_stopped(missing: &str) -> Reason {
    let sentence = format!("Whether it was told to stop is not known: {missing}.");
    Reason::new(Cause::Unknown, Source::Inferred, sentence)
}

fn deletion(of: Circumstances<'_>, disruption: Option<&str>) -> Reason {
    let by_condition = match disruption {
        Some("EvictionByEvictionAPI") => Some(Cause::ApiEviction),
        Some("PreemptionByScheduler" | "PreemptionByKubeScheduler") => Some(Cause::Preemption),
        Some("DeletionByTaintManager" | "DeletionByDeviceTaintManager") => {
            Some(Cause::TaintEviction)
        }
        Some("DeletionByPodGC") => Some(Cause::PodGc),
        _ => None,
    };
    if let Some(cause) = by_condition {
        let why = disruption.unwrap_or_default();
        let sentence = format!("Its condition DisruptionTarget has the reason {why}.");
        return Reason::new(cause, Source::Api, sentence);
    }
    // The node lifecycle controller up to 1.26, where taints evict nothing.
    if of.object.is_some_and(|o| o.pod.reason == "NodeLost") {
        let sentence =
            "Its status.reason is NodeLost: its node did not report, and it was deleted.";
        return Reason::new(Cause::TaintEviction, Source::Api, sentence);
    }
    if disruption == Some(TERMINATION_BY_KUBELET)
        && let Some(reason) = of.object.and_then(by_kubelet)
    {
        return reason;
    }
    let request = of.object.and_then(|o| o.changed.last().or(o.requested.as_ref()));
    let seen_going = of.object.is_some_and(Object::was_seen_going);
    // The kubelet's own last delete has a grace of 0 too, and follows the end of all containers.
    let by_kubelet = of.object.is_some_and(|o| o.pod.is_over());
    let first = of.object.and_then(|o| o.requested.as_ref());
    let at_once = seen_going && first.is_some_and(|first| first.grace_seconds == 0);
    let sentence = match request {
        Some(r) if r.grace_seconds == 0 && (of.outlived || at_once) && !by_kubelet => {
            let sentence = "Its object was deleted with a grace of 0 while it still ran.";
            return Reason::new(Cause::ForceDelete, Source::Api, sentence);
        }
        None if seen_going && !by_kubelet => {
            let sentence = "Its object was deleted while it still ran, without a deadline before.";
            return Reason::new(Cause::ForceDelete, Source::Api, sentence);
        }
        Some(_) => "Its object was deleted (metadata.deletionTimestamp).",
        None if seen_going => "Its object was deleted.",
        None => "Its object was deleted while the watch of the apiserver was broken.",
    };
    Reason::new(Cause::ApiDelete, Source::Api, sentence)
}

/// The kubelet ends a pod without a delete request and says why in `status.reason`, or, since 1.26, in the
/// message of the condition DisruptionTarget. It drops the reason, and keeps the condition, where all
/// containers exit with 0 and the phase becomes Succeeded (`generateAPIPodStatus`, kubelet_pods.go). The
/// table is in docs/causes.md.
fn by_kubelet(object: &Object) -> Option<Reason> {
    let pod = &object.pod;
    if pod.disruption.as_deref() == Some(TERMINATION_BY_KUBELET) {
        let message = pod.disruption_message.as_str();
        let cause = match message {
            _ if message.starts_with("Pod was preempted") => Cause::KubeletPreemption,
            _ if message.starts_with("Pod was terminated in response to") => Cause::NodeShutdown,
            "" => by_status(object).unwrap_or(Cause::NodePressureEviction),
            _ => Cause::NodePressureEviction,
        };
        let sentence = format!(
            "Its condition DisruptionTarget has the reason TerminationByKubelet (\"{message} …\")."
        );
        return Some(Reason::new(cause, Source::Api, sentence));
    }
    let said = match pod.message.trim() {
        "" => String::new(),
        message => format!(" (\"{message} …\")"),
    };
    let sentence = format!("The kubelet set its status.reason to {}{said}.", pod.reason);
    Some(Reason::new(by_status(object)?, Source::Api, sentence))
}

fn by_status(object: &Object) -> Option<Cause> {
    let pod = &object.pod;
    let by_own_limit = ["Usage of EmptyDir volume", "Pod ephemeral local storage", "Container "];
    Some(match pod.reason.as_str() {
        "Evicted" if by_own_limit.iter().any(|text| pod.message.starts_with(text)) => {
            Cause::LocalStorageLimit
        }
        "Evicted" => Cause::NodePressureEviction,
        "Terminated" => Cause::NodeShutdown,
        "Preempting" => Cause::KubeletPreemption,
        // Any status that the kubelet computes after the deadline has it, also that of a pod that has
        // succeeded long before.
        "DeadlineExceeded" if pod.phase != "Succeeded" => Cause::DeadlineExceeded,
        _ => return None,
    })
}

/// The cause of the end of a container that nobody had told to stop.
pub fn unstopped(pod: Option<Reason>, unproven: Option<&str>) -> Reason {
    match (pod, unproven) {
        (Some(pod), _) if pod.cause != Cause::Unknown => pod,
        (_, Some(missing)) => perhaps_stopped(missing),
        (_, None) => {
            let sentence = "It ended, and had not been told to stop.";
            Reason::new(Cause::Completed, Source::Kernel, sentence)
        }
    }
}
