//! Builds the evidence of one container's life, a fact at a time.

use coroner_core::{
    api::DeletionRequest,
    ids::{CgroupId, Tgid},
    input::{
        Disposition, ExitStatus, KernelFact, ProcessRef, SignalGenerated, SignalResult,
        TargetState, Task,
    },
    process::{ContainerProcesses, SI_KERNEL},
    time::{BootTime, Interval, WallTime},
};

const CGROUP: CgroupId = CgroupId(7);
const INIT: u32 = 100;

/// A moment, milliseconds after the boot.
pub(crate) fn ms(at: u64) -> BootTime {
    BootTime(at * 1_000_000)
}

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

impl Script {
    pub(crate) fn new() -> Self {
        Self::begin(false)
    }

    /// The agent found its cgroup when it started, and nobody in it.
    pub(crate) fn found() -> Self {
        Self::begin(true)
    }

    fn begin(scanned: bool) -> Self {
        let script = Self { processes: ContainerProcesses::default(), stop_signal: 15 };
        let name = "c".into();
        script
            .fact(ms(1), KernelFact::CgroupCreated { cgroup: CGROUP, parent: None, name, scanned })
    }

    fn fact(mut self, at: BootTime, fact: KernelFact) -> Self {
        self.processes.apply(at, fact, |id| id == CGROUP);
        self
    }

    /// PID 1 of its namespace.
    pub(crate) fn init(self) -> Self {
        let task = Task { ns_pid: Some(1), ..task(INIT, "app") };
        self.fact(ms(2), KernelFact::Exec { cgroup: CGROUP, task, parent: shim() })
    }

    /// The main process of a container that shares another PID namespace.
    pub(crate) fn main(self) -> Self {
        let task = Task { ns_pid: Some(40), ..task(INIT, "app") };
        self.fact(ms(2), KernelFact::Exec { cgroup: CGROUP, task, parent: shim() })
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
        let of = || Task { ns_pid: Some(9), ..task(pid, comm) };
        let began = self.fact(at, KernelFact::Exec { cgroup: CGROUP, task: of(), parent: shim() });
        let Some(ended) = ended else { return began };
        let status = ExitStatus::Code(0);
        let exit = KernelFact::Exit { cgroup: CGROUP, task: of(), status, parent: Some(shim()) };
        began.fact(ended, exit)
    }

    pub(crate) fn term(self, at: BootTime, how: impl Fn(Signal) -> Signal) -> Self {
        self.send(at, 15, how)
    }

    pub(crate) fn kill(self, at: BootTime, how: impl Fn(Signal) -> Signal) -> Self {
        self.send(at, 9, |s| how(s.fatal()))
    }

    pub(crate) fn send(self, at: BootTime, signal: u8, how: impl Fn(Signal) -> Signal) -> Self {
        let base = Signal(generated(signal, 0, runc()));
        self.fact(at, KernelFact::SignalGenerated(how(base).0))
    }

    pub(crate) fn term_from_inside(self, at: BootTime) -> Self {
        let own = ProcessRef {
            tgid: Tgid(INIT),
            comm: "app".into(),
            cgroup: Some(CGROUP),
            in_container: Some(true),
        };
        self.fact(at, KernelFact::SignalGenerated(generated(15, -6, own)))
    }

    pub(crate) fn kernel_kill(self, at: BootTime) -> Self {
        let by = ProcessRef {
            tgid: Tgid(INIT),
            comm: "app".into(),
            cgroup: Some(CGROUP),
            in_container: Some(true),
        };
        self.fact(at, KernelFact::SignalGenerated(Signal(generated(9, SI_KERNEL, by)).fatal().0))
    }

    pub(crate) fn oom(self, at: BootTime) -> Self {
        self.oom_of(at, INIT)
    }

    pub(crate) fn oom_of(self, at: BootTime, pid: u32) -> Self {
        self.fact(at, KernelFact::OomVictim { cgroup: Some(CGROUP), pid })
    }

    pub(crate) fn handler_runs(self, at: BootTime) -> Self {
        self.taken(at, 15, Disposition::Handler)
    }

    pub(crate) fn taken(self, at: BootTime, signal: u8, disposition: Disposition) -> Self {
        let task = task(INIT, "app");
        self.fact(at, KernelFact::SignalDelivered { cgroup: CGROUP, task, signal, disposition })
    }

    pub(crate) fn exit(self, at: BootTime, status: ExitStatus) -> Self {
        let parent = Some(shim());
        self.fact(at, KernelFact::Exit { cgroup: CGROUP, task: task(INIT, "app"), status, parent })
    }

    pub(crate) fn empty(self, at: BootTime) -> Self {
        self.fact(at, KernelFact::CgroupEmpty { cgroup: CGROUP })
    }
}

/// One signal_generate.
pub(crate) struct Signal(SignalGenerated);

impl Signal {
    fn state(mut self, change: impl Fn(&mut TargetState)) -> Self {
        change(self.0.state.get_or_insert(TargetState {
            unkillable: true,
            group_exit: false,
            disposition: Disposition::Default,
            blocked: false,
            pending: 0,
        }));
        self
    }

    pub(crate) fn handler(self) -> Self {
        self.state(|s| s.disposition = Disposition::Handler)
    }

    pub(crate) fn ignored(mut self) -> Self {
        self.0.result = SignalResult::Ignored;
        self
    }

    pub(crate) fn sig_ign(self) -> Self {
        self.ignored().state(|s| s.disposition = Disposition::Ignore)
    }

    pub(crate) fn dying(self) -> Self {
        self.ignored().state(|s| s.group_exit = true)
    }

    pub(crate) fn blocked(self) -> Self {
        self.state(|s| s.blocked = true)
    }

    pub(crate) fn fatal(self) -> Self {
        self.state(|s| (s.group_exit, s.unkillable) = (true, false))
    }

    pub(crate) fn pending(self, signal: u8) -> Self {
        self.state(|s| s.pending |= 1 << (signal - 1))
    }

    pub(crate) fn unrecorded(mut self) -> Self {
        self.0.state = None;
        self
    }
}

fn generated(signal: u8, code: i32, sender: ProcessRef) -> SignalGenerated {
    SignalGenerated {
        cgroup: CGROUP,
        target: task(INIT, "app"),
        signal,
        code,
        group: true,
        result: SignalResult::Delivered,
        sender,
        state: Some(TargetState {
            unkillable: true,
            group_exit: false,
            disposition: Disposition::Default,
            blocked: false,
            pending: 0,
        }),
    }
}

fn task(tgid: u32, comm: &str) -> Task {
    Task { tgid: Tgid(tgid), tid: tgid, ns_pid: None, started: None, comm: comm.into() }
}

/// The parent of what runs in a container.
fn shim() -> ProcessRef {
    ProcessRef {
        tgid: Tgid(900),
        comm: "containerd-shim".into(),
        cgroup: Some(CgroupId(1)),
        in_container: Some(false),
    }
}

fn runc() -> ProcessRef {
    ProcessRef { comm: "runc".into(), ..shim() }
}
