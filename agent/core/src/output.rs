//! What follows from a step: reports for the world, and requests to the adapters.

use super::{
    ids::{CgroupId, ContainerId, SandboxId, Tgid},
    leak::Leak,
    observation::{Change, ContainerDeath, Holdout, PodRef, PodTermination},
};
use std::sync::Arc;

/// What follows from a step, each kind in the order in which it was emitted.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outputs {
    /// For metrics, logs, Events and the API.
    pub reports: Vec<Report>,
    /// For the adapters. They are hints: what one of them would bring, polling brings later.
    pub requests: Vec<Request>,
}

impl Outputs {
    pub(crate) fn report(&mut self, report: Report) {
        self.reports.push(report);
    }

    pub(crate) fn request(&mut self, request: Request) {
        self.requests.push(request);
    }

    /// Adds the outputs of a later step.
    pub fn append(&mut self, mut later: Self) {
        self.reports.append(&mut later.reports);
        self.requests.append(&mut later.requests);
    }
}

/// One thing that the world is to know.
#[derive(Clone, PartialEq, Debug)]
pub enum Report {
    /// A container has exited and its report is settled. Exactly once per container.
    ContainerDied(Box<ContainerDeath>),
    /// A pod has terminated: its first report, revision 1. Exactly once per incarnation.
    PodTerminated(Box<PodTermination>),
    /// The report of a terminated pod as it is now: late evidence has changed it, its sandbox was
    /// removed, or it is final.
    PodUpdated(Box<PodTermination>, Change),
    /// Count this container's death now, and post its Event: exactly once for each `ContainerDied`. It comes
    /// with the pod's, or at once if the death is not part of a pod's report yet.
    CountDeath(Box<ContainerDeath>),
    /// Count this termination now: exactly once for each `PodTerminated`, as soon as the report is final,
    /// 60 s after the pod's end at the latest.
    CountTermination(Box<PodTermination>),
    /// A leak is certain. Once for each.
    LeakOpened(Arc<Leak>),
    /// Class, cause or resources of a reported leak are others now.
    LeakChanged(Arc<Leak>),
    /// A reported leak is gone, as it last was. Once for each.
    LeakResolved(Arc<Leak>),
    /// A container runs on after SIGKILL: when it is first seen, when what blocks it changes, and when it
    /// has ended.
    Unkillable(Box<Holdout>),
}

/// Something that an adapter is to do or to find out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// For the adapter of the container runtime.
    Cri(CriRequest),
    /// Ask the apiserver itself whether these pods exist; answered by `ApiEvent::Checked`.
    VerifyPods(Vec<PodRef>),
    /// The container's stop signal is not SIGTERM: the kernel programs must report it.
    TraceSignal {
        /// The container's cgroup.
        cgroup: CgroupId,
        /// The signal's number.
        signal: u8,
    },
    /// Look into /proc.
    InspectProcesses(InspectProcesses),
}

/// What the adapter of the container runtime is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CriRequest {
    /// Something in these sandboxes is being stopped: poll them often.
    StartFastPoll(Vec<SandboxId>),
    /// Nothing in these sandboxes is being stopped any more.
    StopFastPoll(Vec<SandboxId>),
    /// The kernel reported an end in this sandbox, or in a cgroup of no known one: poll at once, this
    /// sandbox or everything.
    PollNow(Option<SandboxId>),
    /// The runtime runs a container in a cgroup that the kernel never reported: find it (verbose status →
    /// pid → /proc/PID/cgroup). Answered by `CriEvent::ContainerCgroup`.
    FindCgroup(ContainerId),
    /// Ask for all that the runtime knows of this sandbox (verbose PodSandboxStatus). Answered by
    /// `CriEvent::SandboxStatus` or `SandboxStatusRefused`; not answered if the sandbox does not exist (the
    /// next list shows that) or the connection breaks.
    SandboxStatus(SandboxId),
}

/// What to look at in /proc: a container does not end as it was told to. Requested again while that
/// lasts, ever more rarely; answered by `Input::Proc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InspectProcesses {
    /// The container's own cgroup.
    pub cgroup: CgroupId,
    /// Its main process, by the kernel's own numbering.
    pub main: Option<Tgid>,
    /// When that began (ns since boot), so that no other process of the same number is taken for
    /// it.
    pub started: Option<u64>,
}
