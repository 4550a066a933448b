//! Why a pod terminated. [`super::stop`] has the reasons for a stop of one container in a pod that keeps
//! running.

use super::api::PodObject;
use crate::types::*;

/// Reason of the condition DisruptionTarget that the kubelet sets; the control plane sets all others.
pub(crate) const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

/// A cause and its evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttributedCause {
    pub cause: Cause,
    /// The source of the evidence.
    pub source: Source,
    /// The evidence; for `unknown`, what is missing. One sentence.
    pub message: String,
}

impl AttributedCause {
    /// A cause with its source and evidence.
    pub fn new(cause: Cause, source: Source, message: impl Into<String>) -> Self {
        Self { cause, source, message: message.into() }
    }

    /// A cause that follows from other evidence.
    pub fn inferred(cause: Cause, message: impl Into<String>) -> Self {
        Self::new(cause, Source::Inferred, message)
    }

    /// No cause. `message`: what is missing.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::inferred(Cause::Unknown, message)
    }

    /// The certainty, which follows from the source.
    pub fn certainty(&self) -> Certainty {
        match (self.cause, self.source) {
            (Cause::Unknown, _) => Certainty::None,
            (_, Source::Inferred) => Certainty::Inferred,
            _ => Certainty::Proven,
        }
    }
}

/// Whether the pod was stopped is not known. `missing`: the evidence that may hide it.
pub(crate) fn perhaps_stopped(missing: &str) -> AttributedCause {
    AttributedCause::unknown(format!("Whether it was stopped is not known: {missing}."))
}

/// The cause of a pod that was stopped without a deletion, and whose status names no known reason.
pub(crate) fn unnamed(object: &PodObject, had_main: bool) -> AttributedCause {
    let pod = &object.pod;
    let is_restarted = &*pod.restart_policy == "Always";
    if !pod.reason.is_empty() {
        let reason = &pod.reason;
        let message = format!("It was stopped without a deletion; its status.reason is {reason}.");
        return AttributedCause::new(Cause::Unknown, Source::Api, message);
    }
    // Since 1.26 all other evictions leave the condition DisruptionTarget.
    if had_main && pod.phase == "Succeeded" && is_restarted && pod.disruption.is_none() {
        let message = "Inferred: it was stopped and has the phase Succeeded, its restartPolicy is \
             Always, and its status has no reason: of all evictions by the kubelet, only those for a pod's own storage limits look like this.";
        return AttributedCause::inferred(Cause::LocalStorageLimit, message);
    }
    AttributedCause::unknown("It was stopped without a deletion, and its status names no reason.")
}

/// The cause of a pod that was deleted while part of it ran. `outlived`: its object was gone before.
pub fn deletion(object: Option<&PodObject>, outlived: bool) -> AttributedCause {
    let disruption = object.and_then(|o| o.pod.disruption.as_deref());
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
        let message = format!("Its condition DisruptionTarget has the reason {why}.");
        return AttributedCause::new(cause, Source::Api, message);
    }
    // The node lifecycle controller up to 1.26, where taints evict nothing.
    if object.is_some_and(|o| o.pod.reason == "NodeLost") {
        let message = "Its status.reason is NodeLost: its node did not report, and it was deleted.";
        return AttributedCause::new(Cause::TaintEviction, Source::Api, message);
    }
    if disruption == Some(TERMINATION_BY_KUBELET)
        && let Some(reason) = object.and_then(by_kubelet)
    {
        return reason;
    }
    let request = object.and_then(|o| o.changed.last().or(o.requested.as_ref()));
    let seen_going = object.is_some_and(|object| object.deletion_observed);
    // The kubelet's own last delete also has a grace of 0, and follows the end of all containers.
    let is_last = object.is_some_and(|o| o.pod.is_over());
    let first = object.and_then(|o| o.requested.as_ref());
    let at_once = seen_going && first.is_some_and(|first| first.grace_seconds == 0);
    let message = match request {
        Some(r) if r.grace_seconds == 0 && (outlived || at_once) && !is_last => {
            let message = "Its object was deleted with a grace of 0 while it still ran.";
            return AttributedCause::new(Cause::ForceDelete, Source::Api, message);
        }
        None if seen_going && !is_last => {
            let message = "Its object was deleted while it still ran, without an earlier \
             deletionTimestamp.";
            return AttributedCause::new(Cause::ForceDelete, Source::Api, message);
        }
        Some(_) => "Its object was deleted (metadata.deletionTimestamp).",
        None if seen_going => "Its object was deleted.",
        None => "Its object was deleted while the watch of the apiserver was broken.",
    };
    AttributedCause::new(Cause::ApiDelete, Source::Api, message)
}

/// The kubelet ends a pod without a deletion request. The reason is in `status.reason` or, since 1.26, in the
/// message of the condition DisruptionTarget. If all containers exit with 0 and the phase becomes Succeeded,
/// the kubelet drops `status.reason` and keeps the condition (`generateAPIPodStatus`, kubelet_pods.go). The
/// table is in docs/causes.md.
pub fn by_kubelet(object: &PodObject) -> Option<AttributedCause> {
    let pod = &object.pod;
    if pod.disruption.as_deref() == Some(TERMINATION_BY_KUBELET) {
        let message_start = pod.disruption_message.as_str();
        let cause = match message_start {
            _ if message_start.starts_with("Pod was preempted") => Cause::KubeletPreemption,
            _ if message_start.starts_with("Pod was terminated in response to") => {
                Cause::NodeShutdown
            }
            "" => by_status(object).unwrap_or(Cause::NodePressureEviction),
            _ => Cause::NodePressureEviction,
        };
        let message = format!(
            "Its condition DisruptionTarget has the reason TerminationByKubelet (\"{message_start} …\")."
        );
        return Some(AttributedCause::new(cause, Source::Api, message));
    }
    let message_start = match pod.message.trim() {
        "" => String::new(),
        message => format!(" (\"{message} …\")"),
    };
    let message = format!("The kubelet set its status.reason to {}{message_start}.", pod.reason);
    Some(AttributedCause::new(by_status(object)?, Source::Api, message))
}

fn by_status(object: &PodObject) -> Option<Cause> {
    let pod = &object.pod;
    let by_own_limit = ["Usage of EmptyDir volume", "Pod ephemeral local storage", "Container "];
    Some(match pod.reason.as_str() {
        "Evicted" if by_own_limit.iter().any(|text| pod.message.starts_with(text)) => {
            Cause::LocalStorageLimit
        }
        "Evicted" => Cause::NodePressureEviction,
        "Terminated" => Cause::NodeShutdown,
        "Preempting" => Cause::KubeletPreemption,
        // The kubelet sets it in every status after the deadline, also for a pod that succeeded long before.
        "DeadlineExceeded" if pod.phase != "Succeeded" => Cause::DeadlineExceeded,
        _ => return None,
    })
}

/// The cause of the end of a container that was not stopped.
pub fn unstopped(pod: Option<AttributedCause>, unproven: Option<&str>) -> AttributedCause {
    match (pod, unproven) {
        (Some(pod), _) if pod.cause != Cause::Unknown => pod,
        (_, Some(missing)) => perhaps_stopped(missing),
        (_, None) => {
            let message = "It ended, and had not been stopped.";
            AttributedCause::new(Cause::Completed, Source::Kernel, message)
        }
    }
}
