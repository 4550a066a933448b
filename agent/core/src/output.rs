//! The outputs of a step: reports, and requests to the adapters.

use crate::report::*;
use std::sync::Arc;

/// The outputs of a step, each kind in the order of emission.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outputs {
    /// For metrics, logs, Events and the API.
    pub reports: Vec<Report>,
    /// For the adapters. Requests are hints: polling brings the same later.
    pub requests: Vec<Request>,
}

impl Outputs {
    /// Adds the outputs of a later step.
    pub fn append(&mut self, mut later: Self) {
        self.reports.append(&mut later.reports);
        self.requests.append(&mut later.requests);
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum Report {
    /// A container has ended and its report is settled. Exactly once per container.
    ContainerDied(Box<ContainerDeath>),
    /// A pod has terminated: its first report, revision 1. Exactly once per incarnation.
    PodTerminated(Box<PodTermination>),
    /// The report of a terminated pod changed, its sandbox was removed, or it is final.
    PodUpdated(Box<PodTermination>, Change),
    /// Count this container's death, and post its Event: exactly once for each `ContainerDied`. It comes with
    /// the pod's count, or at once if the death is not part of a pod report yet.
    CountDeath(Box<ContainerDeath>),
    /// Count this termination: exactly once for each `PodTerminated`, as soon as the report is final, and at
    /// most 60 s after the pod's end.
    CountTermination(Box<PodTermination>),
    /// A leak is confirmed. Once per leak.
    LeakOpened(Arc<Leak>),
    /// The class, cause or resources of a reported leak changed.
    LeakChanged(Arc<Leak>),
    /// A reported leak is gone; its last state. Once per leak.
    LeakResolved(Arc<Leak>),
    /// How a running container will respond to its stop signal: after each look.
    Audited(Arc<Audit>),
    /// A container of which that was reported has ended.
    AuditOver(ContainerId),
    /// A container survives SIGKILL: when it is first seen, when its blocker changes, and when it has ended.
    Unkillable(Box<UnkillableContainer>),
}

/// A container that survives SIGKILL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnkillableContainer {
    pub container: Option<ContainerId>,
    /// The name in the pod; empty until the runtime reports it.
    pub name: String,
    pub kind: ContainerKind,
    pub pod: Option<PodRef>,
    /// The process that is left and where it hangs, as one sentence.
    pub detail: String,
    /// The container has ended.
    pub over: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    Cri(CriRequest),
    /// Ask the apiserver directly whether these pods exist. Answered by `ApiEvent::Checked`.
    VerifyPods(Vec<PodRef>),
    /// List the Events that the kubelet has posted about this pod. Answered by `LookupEvent::Events`.
    ListEvents(PodRef),
    /// The container has a custom stop signal: the kernel programs must report it.
    TraceSignal {
        cgroup: CgroupId,
        signal: u8,
    },
    /// The cgroup has no name by which the kernel programs recognize a container: watch it as one.
    WatchCgroup {
        /// The cgroup of the container's main process.
        cgroup: CgroupId,
        /// Its path from the root of the hierarchy.
        path: String,
    },
    /// Look into /proc.
    InspectProcesses(InspectProcesses),
    /// Read what decides how a container responds to its stop signal. Answered by `Input::StopState`.
    ReadStopState(ReadStopState),
    /// Count the connections of a terminating pod. Answered by `Input::Traffic`.
    Traffic(TrafficRequest),
}

/// Count the connections of a terminating pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TrafficRequest {
    /// From now on. Answered by `TrafficFact::Began` or `NotVisible`.
    Count(CountTraffic),
    /// Read the counts. Answered by `TrafficFact::Counted`, or `NotVisible`.
    Read(SandboxId),
    /// Nothing more is asked of this sandbox.
    Forget(SandboxId),
}

/// Count the connections in the network namespace of one sandbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountTraffic {
    pub sandbox: SandboxId,
    /// Its processes that may be alive, in the agent's PID namespace, with their start time (ns since boot) where it
    /// is known: the namespace is found by the first that is.
    pub processes: Vec<(Tgid, Option<u64>)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CriRequest {
    /// A stop is in progress in these sandboxes: poll them often.
    StartFastPoll(Vec<SandboxId>),
    /// No stop is in progress in these sandboxes any more.
    StopFastPoll(Vec<SandboxId>),
    /// The kernel reported an end in this sandbox, or (`None`) in an unknown one: poll it, or everything,
    /// now.
    PollNow(Option<SandboxId>),
    /// The kernel never reported the cgroup of this container: find it (verbose status → pid →
    /// cgroup.procs). Answered by `CriEvent::ContainerCgroup`.
    FindCgroup(ContainerId),
    /// Request the verbose PodSandboxStatus. Answered by `CriEvent::SandboxStatus`, or not.
    SandboxStatus(SandboxId),
}

/// Look into /proc for a container that does not end after its stop. Repeated less and less often while that
/// lasts; answered by `Input::Proc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InspectProcesses {
    /// The container's own cgroup.
    pub cgroup: CgroupId,
    /// The main process, in the agent's PID namespace.
    pub main: Option<Tgid>,
    /// Start time of the main process (ns since boot), so that a later process with the same PID is not taken
    /// for it.
    pub started: Option<u64>,
}

/// Read the state of a running container's main process with regard to its stop signal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadStopState {
    pub container: ContainerId,
    /// In the agent's PID namespace.
    pub main: Tgid,
    pub signal: u8,
}
