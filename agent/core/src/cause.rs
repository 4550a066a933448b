//! Why a container was stopped, and why a pod ended. A cause is a statement of a source: the first of [`Stop::stated`]
//! that belongs to the stop. Nothing is concluded from an order, a short time, or the absence of other reasons.

use super::{
    api::PodObject,
    process::{ContainerProcesses, Origin, SI_KERNEL, SentSignal, is_of_the_node},
    signal,
};
use crate::input::{ApiContainer, Hook};
use crate::report::{BootTime, Cause, Source, Tgid};

/// Reason of the condition DisruptionTarget that the kubelet sets; the control plane sets all others.
pub(crate) const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttributedCause {
    pub cause: Cause,
    pub source: Source,
    /// The evidence; for `unknown`, what is missing. One sentence.
    pub message: String,
}

impl AttributedCause {
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
}

/// What the sources say of the stop of one container.
#[derive(Clone, Debug)]
pub struct Stop<'a> {
    /// When it began, at the latest.
    pub began: BootTime,
    pub container: &'a str,
    /// What the kernel recorded of its processes.
    pub processes: &'a ContainerProcesses,
    /// The stop signal, or the SIGKILL that came without one.
    pub sent: Option<&'a SentSignal>,
    /// The other container that the sender belongs to, of this pod or another.
    pub neighbour: Option<&'a str>,
    /// The process of its preStop hook.
    pub hook: Option<Tgid>,
    /// Its spec, where the apiserver has shown it.
    pub spec: Option<&'a ApiContainer>,
    /// The status showed that its startup probe had succeeded.
    pub started: bool,
    /// Why its pod ended, if it was stopped with the pod.
    pub pod: Option<&'a AttributedCause>,
    /// The reason that the pod's status has for this container.
    pub status: Option<Cause>,
    /// The reason that an Event of the kubelet states.
    pub event: Option<AttributedCause>,
}

impl Stop<'_> {
    /// The cause that a source states: the first of these.
    pub fn stated(&self) -> Option<AttributedCause> {
        let statements = [
            Self::by_another_container,
            Self::by_its_pod,
            Self::by_status,
            Self::by_event,
            Self::by_failed_runs,
            Self::by_a_process_of_the_host,
        ];
        statements.into_iter().find_map(|statement| statement(self))
    }

    fn sent(&self) -> Option<&SentSignal> {
        self.sent.filter(|sent| sent.signal.code != SI_KERNEL)
    }

    fn external(sent: &SentSignal, whose: &str, source: Source) -> AttributedCause {
        let (sender, name) = (&sent.signal.sender, signal::name(sent.signal.signal));
        let (comm, pid) = (&sender.comm, sender.tgid);
        let message = format!(
            "{comm} (pid {pid}){whose} sent {name}, and is neither the kubelet nor the runtime."
        );
        AttributedCause::new(Cause::ExternalStop, source, message)
    }

    /// The kernel: a process of another container, or one that had entered this one, sent the signal. The kubelet runs
    /// the preStop hook, so the hook's signals are the kubelet's; where its process is not known, nothing tells it apart.
    fn by_another_container(&self) -> Option<AttributedCause> {
        let sent = self.sent()?;
        if let Some(container) = self.neighbour {
            let whose = format!(" of the container {container}");
            return Some(Self::external(sent, &whose, Source::Kernel));
        }
        let has_hook = self.spec.is_none_or(|spec| matches!(spec.pre_stop, Some(Hook::Exec(_))));
        let root = self.processes.root(sent.signal.sender.tgid, sent.at);
        let may_be_hook = match self.hook {
            Some(hook) => root.is_none_or(|root| root == hook),
            None => has_hook,
        };
        (sent.origin == Origin::Entered && !may_be_hook)
            .then(|| Self::external(sent, ", which had entered the container,", Source::Kernel))
    }

    fn by_its_pod(&self) -> Option<AttributedCause> {
        self.pod.cloned()
    }

    /// The apiserver: the container's state.
    fn by_status(&self) -> Option<AttributedCause> {
        let message = match self.status? {
            Cause::RestartAllContainers => {
                "A container of the pod exited with the rule RestartAllContainers: the status shows \
                 RestartingAllContainers."
            }
            _ => "Its postStart hook failed: its state.waiting.reason is PostStartHookError.",
        };
        Some(AttributedCause::new(self.status?, Source::Api, message))
    }

    fn by_event(&self) -> Option<AttributedCause> {
        self.event.clone()
    }

    /// The kernel: as many runs of its exec probe failed as the kubelet needs to stop it. Other probes have no process.
    fn by_failed_runs(&self) -> Option<AttributedCause> {
        let spec = self.spec?;
        let startup = spec.startup.as_ref().filter(|_| !self.started);
        let probes = [(Cause::Startup, startup), (Cause::Liveness, spec.liveness.as_ref())];
        probes.into_iter().find_map(|(cause, probe)| {
            let (probe, binary) = probe.and_then(|probe| Some((probe, probe.exec.as_deref()?)))?;
            let failed = self.processes.failed_probes(binary, self.began);
            let threshold = usize::try_from(probe.failures.max(1)).unwrap_or(usize::MAX);
            let message = format!(
                "The last {failed} run(s) of the exec probe ({binary}) of {} failed just before it was stopped.",
                self.container
            );
            (failed >= threshold).then(|| AttributedCause::new(cause, Source::Kernel, message))
        })
    }

    /// The name of the sender is none of a kubelet's or a runtime's. A runtime may have an unknown name, so this is inferred,
    /// and each statement of a source comes first.
    fn by_a_process_of_the_host(&self) -> Option<AttributedCause> {
        let sent = self.sent()?;
        let is_foreign =
            sent.origin == Origin::Outside && !is_of_the_node(&sent.signal.sender.comm);
        is_foreign.then(|| Self::external(sent, ", by its name,", Source::Inferred))
    }
}

/// Whether the pod was stopped is not known. `missing`: the evidence that may hide it.
pub(crate) fn perhaps_stopped(missing: &str) -> AttributedCause {
    AttributedCause::unknown(format!("Whether it was stopped is not known: {missing}."))
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

/// Why the kubelet evicted a pod, by the beginning of its message (eviction_manager.go).
pub(crate) fn eviction(message: &str) -> Cause {
    let by_own_limit = ["Usage of EmptyDir volume", "Pod ephemeral local storage", "Container "];
    match by_own_limit.iter().any(|text| message.starts_with(text)) {
        true => Cause::LocalStorageLimit,
        false => Cause::NodePressureEviction,
    }
}

fn by_status(object: &PodObject) -> Option<Cause> {
    let pod = &object.pod;
    Some(match pod.reason.as_str() {
        "Evicted" => eviction(&pod.message),
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
