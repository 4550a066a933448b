//! Builds the evidence of one container's life, a fact at a time.

use coroner_core::{
    api::DeletionRequest, process::ContainerProcesses, testkit::*, time::Interval,
    verdict::VerdictInputs,
};

/// A deletion request of this estimate and these bounds, ms.
pub(crate) fn request(estimate: u64, earliest: u64, latest: u64) -> DeletionRequest {
    let [estimate, earliest, latest] = [estimate, earliest, latest].map(ms);
    let made = Interval { earliest, latest };
    DeletionRequest { made, date: estimate, grace_seconds: 10, stamp: WallTime(0) }
}

/// The evidence so far.
pub(crate) struct Script {
    pub(crate) processes: ContainerProcesses,
    pub(crate) stop_signal: u8,
}

fn own() -> CgroupId {
    Cgroups::of(1).own
}

/// The main process, as records name it that do not say which PID it has in its namespace.
fn app() -> Task {
    Task { ns_pid: None, ..init(1) }
}

impl Script {
    pub(crate) fn new() -> Self {
        let script = Self { processes: ContainerProcesses::default(), stop_signal: 15 };
        script.fact(ms(1), created(own(), None, "c"))
    }

    /// The agent found its cgroup when it started, and nobody in it.
    pub(crate) fn found() -> Self {
        let script = Self { processes: ContainerProcesses::default(), stop_signal: 15 };
        script.fact(ms(1), found(1))
    }

    fn fact(mut self, at: BootTime, fact: KernelFact) -> Self {
        self.processes.apply(at, fact, |id| id == own());
        self
    }

    /// A main container with a grace of 10 s, whose deletion was requested at some time before the first signal.
    pub(crate) fn inputs(&self) -> VerdictInputs<'_> {
        VerdictInputs {
            processes: &self.processes,
            stop_signal: self.stop_signal,
            kind: ContainerKind::Main,
            grace_seconds: Some(10),
            longest_grace_seconds: Some(10),
            pre_stop: None,
            request: Some(request(900, 1, 1)),
        }
    }

    /// PID 1 of its namespace.
    pub(crate) fn init(self) -> Self {
        self.fact(ms(2), exec(own(), init(1)))
    }

    /// The main process of a container that shares another PID namespace.
    pub(crate) fn main(self) -> Self {
        self.fact(ms(2), exec(own(), Task { ns_pid: Some(40), ..init(1) }))
    }

    pub(crate) fn hook(self, at: BootTime, ended: Option<BootTime>) -> Self {
        self.enters(200, "hook", at, ended)
    }

    pub(crate) fn enters(
        self,
        pid: u32,
        comm: &str,
        at: BootTime,
        ended: Option<BootTime>,
    ) -> Self {
        let began = self.fact(at, exec(own(), task(pid, 9, comm)));
        let Some(ended) = ended else { return began };
        began.fact(ended, exit(own(), task(pid, 9, comm), CODE_0))
    }

    pub(crate) fn term(self, at: BootTime, how: impl Fn(Signal) -> Signal) -> Self {
        self.send(at, 15, how)
    }

    pub(crate) fn kill(self, at: BootTime, how: impl Fn(Signal) -> Signal) -> Self {
        self.send(at, 9, how)
    }

    pub(crate) fn send(self, at: BootTime, signal: u8, how: impl Fn(Signal) -> Signal) -> Self {
        self.fact(at, how(Signal::to(own(), app(), signal)).fact())
    }

    pub(crate) fn term_from_inside(self, at: BootTime) -> Self {
        self.send(at, 15, |s| s.code(-6).by(inside(&app())))
    }

    pub(crate) fn kernel_kill(self, at: BootTime) -> Self {
        self.send(at, 9, |s| s.by_kernel(inside(&app())))
    }

    pub(crate) fn thread_kill(self, at: BootTime, tid: u32) -> Self {
        let thread = Task { tid, ..app() };
        self.fact(at, Signal::to(own(), thread, 9).by_kernel(inside(&app())).fact())
    }

    pub(crate) fn oom(self, at: BootTime) -> Self {
        self.oom_of(at, app().tid)
    }

    pub(crate) fn oom_of(self, at: BootTime, pid: u32) -> Self {
        self.fact(at, KernelFact::OomVictim { cgroup: Some(own()), pid })
    }

    pub(crate) fn handler_runs(self, at: BootTime) -> Self {
        self.taken(at, 15)
    }

    pub(crate) fn taken(self, at: BootTime, signal: u8) -> Self {
        self.fact(at, taken(own(), app(), signal))
    }

    /// A thread that did not block it took it off the queue: it has no handler.
    pub(crate) fn dequeued(self, at: BootTime, signal: u8) -> Self {
        let (cgroup, task, disposition) = (own(), app(), Disposition::Default);
        self.fact(at, KernelFact::SignalDelivered { cgroup, task, signal, disposition })
    }

    pub(crate) fn exit(self, at: BootTime, status: ExitStatus) -> Self {
        self.fact(at, exit(own(), app(), status))
    }

    pub(crate) fn empty(self, at: BootTime) -> Self {
        self.fact(at, KernelFact::CgroupEmpty { cgroup: own() })
    }
}
