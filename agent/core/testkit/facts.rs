//! What the sources say of container, sandbox and pod number N: their ids, processes, signals and entries.

use crate::{
    ids::{CgroupId, ContainerId, PodUid, SandboxId, Tgid},
    input::{
        ApiContainer, ApiPod, ApiTerminated, ContainerState, CriContainer, CriSandbox, Disposition,
        ExitStatus, Hook, KernelFact, ProcessRef, SignalGenerated, SignalResult, TargetState, Task,
        Workload,
    },
    process::SI_KERNEL,
    time::{Anchor, BootTime, WallTime},
};
use std::collections::BTreeMap;

/// The wall clock shows the time since the boot.
pub const ANCHOR: Anchor = Anchor { boot_ns: 0, wall_ns: 0 };
/// The exit of a program that was killed.
pub const KILLED: ExitStatus = ExitStatus::Signal { signal: 9, core: false };
/// The exit of a program that was asked to.
pub const CODE_0: ExitStatus = ExitStatus::Code(0);

/// The exit of a program that crashed.
pub const SEGV: ExitStatus = ExitStatus::Signal { signal: 11, core: false };

/// A moment, milliseconds after the boot.
pub fn ms(at: u64) -> BootTime {
    BootTime(at * 1_000_000)
}

pub fn ids(n: u64) -> (PodUid, SandboxId, ContainerId) {
    (
        PodUid::new(format!("{n:08x}-0000-4000-8000-000000000000")),
        SandboxId::new(format!("{n:063x}a")),
        ContainerId::new(format!("{n:063x}b")),
    )
}

/// The ids of a pod's cgroups.
pub struct Cgroups {
    pub pod: CgroupId,
    pub pause: CgroupId,
    pub own: CgroupId,
}

impl Cgroups {
    pub fn of(n: u64) -> Self {
        let base = n * 10;
        Self { pod: CgroupId(base), pause: CgroupId(base + 1), own: CgroupId(base + 2) }
    }
}

/// A process, by its pid on the host and in its own namespace.
pub fn task(pid: u32, ns: u32, comm: &str) -> Task {
    Task { tgid: Tgid(pid), tid: pid, ns_pid: Some(ns), started: None, comm: comm.into() }
}

/// The main process of a container, PID 1 of its namespace.
pub fn init(n: u64) -> Task {
    task(n as u32 * 10 + 5, 1, "app")
}

/// A process of the host.
pub fn outside(comm: &str) -> ProcessRef {
    ProcessRef { tgid: Tgid(1), comm: comm.into(), cgroup: None, in_container: Some(false) }
}

/// The parent of what runs in a container.
pub fn shim() -> ProcessRef {
    outside("containerd-shim")
}

/// Sends a container's signals.
pub fn runc() -> ProcessRef {
    outside("runc")
}

/// A process of this container, as a sender or parent.
pub fn within(n: u64, of: &Task) -> ProcessRef {
    let (comm, cgroup) = (of.comm.clone(), Some(Cgroups::of(n).own));
    ProcessRef { tgid: of.tgid, comm, cgroup, in_container: Some(true) }
}

/// A process of the first container.
pub fn inside(of: &Task) -> ProcessRef {
    within(1, of)
}

pub fn created(cgroup: CgroupId, parent: Option<CgroupId>, name: &str) -> KernelFact {
    KernelFact::CgroupCreated { cgroup, parent, name: name.into(), scanned: false }
}

/// The cgroup of container N, with its whole path: the agent finds it when it starts.
pub fn found(n: u64) -> KernelFact {
    let (cgroup, name) = (Cgroups::of(n).own, format!("/kubepods/pod{}/{}", ids(n).0, ids(n).2));
    KernelFact::CgroupCreated { cgroup, parent: None, name, scanned: true }
}

pub fn exec(cgroup: CgroupId, task: Task) -> KernelFact {
    KernelFact::Exec { cgroup, task, parent: shim() }
}

pub fn exit(cgroup: CgroupId, task: Task, status: ExitStatus) -> KernelFact {
    KernelFact::Exit { cgroup, task, status, parent: Some(shim()) }
}

pub fn taken(cgroup: CgroupId, task: Task, signal: u8) -> KernelFact {
    KernelFact::SignalDelivered { cgroup, task, signal, disposition: Disposition::Handler }
}

/// One `signal_generate`, from runc to the main process of a container unless it is changed.
#[derive(Clone)]
pub struct Signal(pub SignalGenerated);

impl Signal {
    /// To PID 1 of container N, with the default disposition; SIGKILL takes effect.
    pub fn new(n: u64, signal: u8) -> Self {
        Self::to(Cgroups::of(n).own, init(n), signal)
    }

    pub fn to(cgroup: CgroupId, target: Task, signal: u8) -> Self {
        let (result, sender, state) = (SignalResult::Delivered, runc(), None);
        let new =
            SignalGenerated { cgroup, target, signal, code: 0, group: true, result, sender, state };
        let new = Self(new).state(|_| ());
        if signal == 9 { new.fatal() } else { new }
    }

    pub fn by(mut self, sender: ProcessRef) -> Self {
        self.0.sender = sender;
        self
    }

    pub fn code(mut self, code: i32) -> Self {
        self.0.code = code;
        self
    }

    /// By the kernel, in this process.
    pub fn by_kernel(self, acting: ProcessRef) -> Self {
        self.code(SI_KERNEL).by(acting)
    }

    pub fn state(mut self, change: impl Fn(&mut TargetState)) -> Self {
        change(self.0.state.get_or_insert(TargetState {
            unkillable: true,
            group_exit: false,
            disposition: Disposition::Default,
            blocked: false,
            pending: 0,
        }));
        self
    }

    pub fn handler(self) -> Self {
        self.state(|s| s.disposition = Disposition::Handler)
    }

    /// The kernel discards it.
    pub fn ignored(mut self) -> Self {
        self.0.result = SignalResult::Ignored;
        self
    }

    pub fn sig_ign(self) -> Self {
        self.ignored().state(|s| s.disposition = Disposition::Ignore)
    }

    pub fn dying(self) -> Self {
        self.ignored().state(|s| s.group_exit = true)
    }

    pub fn blocked(self) -> Self {
        self.state(|s| s.blocked = true)
    }

    pub fn fatal(self) -> Self {
        self.state(|s| (s.group_exit, s.unkillable) = (true, false))
    }

    pub fn pending(self, signal: u8) -> Self {
        self.state(|s| s.pending |= 1 << (signal - 1))
    }

    pub fn unrecorded(mut self) -> Self {
        self.0.state = None;
        self
    }

    pub fn fact(self) -> KernelFact {
        KernelFact::SignalGenerated(self.0)
    }
}

/// A signal to a process that handles it.
pub fn signal(cgroup: CgroupId, target: Task, signal: u8, sender: ProcessRef) -> KernelFact {
    Signal::to(cgroup, target, signal).handler().by(sender).fact()
}

pub fn sandbox(n: u64, ready: bool) -> CriSandbox {
    let (pod, id, _) = ids(n);
    CriSandbox {
        id,
        pod,
        name: format!("p{n}"),
        namespace: "default".into(),
        attempt: 0,
        ready,
        created: Some(WallTime(n as i64)),
        handler: String::new(),
        config_source: Some("api".into()),
    }
}

/// A static pod's sandbox.
pub fn of_file(sandbox: CriSandbox) -> CriSandbox {
    CriSandbox { config_source: Some("file".into()), ..sandbox }
}

pub fn container(n: u64, state: ContainerState) -> CriContainer {
    let (pod, sandbox, id) = ids(n);
    CriContainer {
        id,
        sandbox,
        name: "c".into(),
        attempt: 0,
        state,
        created: Some(WallTime(n as i64)),
        pod: Some(pod),
        grace_seconds: Some(30),
        pre_stop: None,
    }
}

/// A pod's object; `deleting`: its deletion was requested at this moment, with a grace of 30 s.
pub fn object(n: u64, deleting: bool, at: BootTime) -> ApiPod {
    ApiPod {
        uid: ids(n).0.as_str().into(),
        namespace: "default".into(),
        name: format!("p{n}"),
        deletion_timestamp: deleting.then(|| WallTime(at.0 as i64 + 30_000_000_000)),
        deletion_grace_seconds: deleting.then_some(30),
        phase: "Running".into(),
        workload: Some(Box::new(Workload { kind: "Deployment".into(), name: "web".into() })),
        containers: BTreeMap::from([("c".to_owned(), ApiContainer::default())]),
        ..ApiPod::default()
    }
}

/// The mirror of static pod 1, an object with a UID of its own.
pub fn mirror(own_uid: &str) -> ApiPod {
    let object = object(1, false, BootTime(0));
    ApiPod { mirror_of: Some(ids(1).0), uid: own_uid.into(), ..object }
}

/// The status shows that container N, the last attempt, has ended.
pub fn shows_exit(status: &mut ApiContainer, n: u64, exit_code: i32) {
    let (id, reason) = (Some(ids(n).2), "Completed".into());
    status.id.clone_from(&id);
    status.terminated = vec![ApiTerminated { id, exit_code, reason }];
}

pub fn exec_hook(comm: &str) -> Option<Hook> {
    Some(Hook::Exec(comm.into()))
}
