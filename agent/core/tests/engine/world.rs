//! A small world that tells the engine about pods, source by source.

use coroner_core::{
    engine::{Engine, Settings},
    ids::{CgroupId, ContainerId, PodUid, SandboxId, Tgid},
    input::{
        ApiContainer, ApiEvent, ApiPod, ApiTerminated, ContainerState, CriContainer, CriEvent,
        CriExit, CriSandbox, Disposition, ExitStatus, Input, KernelEvent, KernelFact, ProcessRef,
        Received, SignalGenerated, SignalResult, TargetState, Task, Workload,
    },
    output::{Report, Request},
    report::{ContainerDeath, PodTermination},
    time::{Anchor, BootTime, WallTime},
    types::Change,
};
use std::{collections::BTreeMap, time::Duration};

const ANCHOR: Anchor = Anchor { boot_ns: 0, wall_ns: 0 };

/// The engine and what it said.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) now: u64,
    pub(crate) ended: Vec<PodTermination>,
    pub(crate) died: Vec<ContainerDeath>,
    /// Deaths and terminations in the order in which they are counted.
    pub(crate) counted_deaths: Vec<ContainerDeath>,
    pub(crate) counted: Vec<PodTermination>,
    pub(crate) updated: Vec<(PodTermination, Change)>,
    pub(crate) other: Vec<Report>,
    pub(crate) requests: Vec<Request>,
    reports: BTreeMap<(PodUid, u32), PodTermination>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            engine: Engine::new(Settings::new(ANCHOR)),
            now: 1_000,
            ended: Vec::new(),
            died: Vec::new(),
            counted_deaths: Vec::new(),
            counted: Vec::new(),
            updated: Vec::new(),
            other: Vec::new(),
            requests: Vec::new(),
            reports: BTreeMap::new(),
        }
    }

    /// Runtime and apiserver answer, and know of nothing.
    pub(crate) fn in_sync() -> Self {
        let mut world = Self::new();
        world.cri(CriEvent::Connected { runtime: "test".into(), process: None });
        world.api(ApiEvent::Snapshot { pods: Vec::new() });
        world
    }

    pub(crate) fn say(&mut self, input: Input) {
        let outputs = self.engine.step(Received { at: self.at(), input });
        self.requests.extend(outputs.requests);
        for report in outputs.reports {
            match report {
                Report::PodTerminated(end) => {
                    assert_eq!(end.revision, 1, "{end:?}");
                    let first =
                        self.reports.insert((end.pod.uid.clone(), end.life), (*end).clone());
                    assert!(first.is_none(), "twice: {end:?}");
                    self.ended.push(*end);
                }
                Report::ContainerDied(death) => self.died.push(*death),
                Report::CountDeath(death) => {
                    let reported = self.died.iter().filter(|d| d.id == death.id).count();
                    let counted = self.counted_deaths.iter().filter(|d| d.id == death.id).count();
                    assert!(counted < reported, "counted once for each report: {death:?}");
                    self.counted_deaths.push(*death);
                }
                Report::CountTermination(end) => {
                    let known = self.reports.get(&(end.pod.uid.clone(), end.life));
                    assert_eq!(known, Some(&*end), "as it was reported last");
                    let same = |one: &&PodTermination| one.pod == end.pod && one.life == end.life;
                    assert_eq!(self.counted.iter().filter(same).count(), 0, "once: {end:?}");
                    let due = end.ended.boot + Duration::from_secs(60);
                    assert!(end.is_final || self.at() >= due, "too soon: {end:?}");
                    self.counted.push(*end);
                }
                Report::PodUpdated(end, change) => {
                    self.check_update(&end, change);
                    self.updated.push((*end, change));
                }
                other => self.other.push(other),
            }
        }
    }

    /// A revision is the next one of a report that was not final; a final report has none.
    fn check_update(&mut self, end: &PodTermination, change: Change) {
        let known = self.reports.get_mut(&(end.pod.uid.clone(), end.life)).expect("an update");
        // One step may report that it is final and that the sandbox is removed.
        let expected = known.revision + u32::from(change.is_revision());
        assert_eq!(end.revision, expected, "{change}: {end:?}");
        assert!(
            !known.is_final || change == Change::SandboxRemoved,
            "{change} after the final one"
        );
        assert!(end.is_final || !known.is_final && change != Change::Final, "{change}: {end:?}");
        *known = end.clone();
    }

    /// The reports as they are now.
    pub(crate) fn reports(&self) -> impl Iterator<Item = &PodTermination> {
        self.reports.values()
    }

    pub(crate) fn at(&self) -> BootTime {
        BootTime(self.now * 1_000_000)
    }

    pub(crate) fn later(&mut self, ms: u64) -> &mut Self {
        self.now += ms;
        self
    }

    pub(crate) fn kernel(&mut self, fact: KernelFact) {
        let time = self.at();
        self.say(Input::Kernel(KernelEvent { time, fact }));
    }

    pub(crate) fn cri(&mut self, event: CriEvent) {
        self.say(Input::Cri(event));
    }

    pub(crate) fn api(&mut self, event: ApiEvent) {
        self.say(Input::Api(event));
    }

    pub(crate) fn ticks(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += 1000;
            self.say(Input::Tick);
        }
    }

    pub(crate) fn lists(&mut self, sandboxes: Vec<CriSandbox>, containers: Vec<CriContainer>) {
        let asked = self.at();
        self.cri(CriEvent::Sandboxes { asked, only: None, sandboxes });
        self.cri(CriEvent::Containers { asked, only: None, containers });
    }

    /// The cgroups of pod, pause and container appear.
    pub(crate) fn cgroups_come(&mut self, n: u64) {
        let (pod, sandbox, id) = ids(n);
        let of = Cgroups::of(n);
        for (cgroup, parent, name) in [
            (of.pod, None, format!("/kubepods/pod{pod}")),
            (of.pause, Some(of.pod), sandbox.to_string()),
            (of.own, Some(of.pod), id.to_string()),
        ] {
            self.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
        }
    }

    /// The same, and the container's program runs.
    pub(crate) fn starts(&mut self, n: u64) {
        self.cgroups_come(n);
        let cgroup = Cgroups::of(n).own;
        self.kernel(KernelFact::Exec { cgroup, task: init(n), parent: shim() });
    }

    /// A moment later the runtime says that the sandbox is stopped, and how the container exited.
    pub(crate) fn stopped(&mut self, n: u64, code: i32) {
        self.later(100).lists(vec![sandbox(n, false)], vec![container(n, ContainerState::Exited)]);
        self.status(n, code);
    }

    /// The stop signal arrives; `handled`: by a handler, which runs at once.
    pub(crate) fn term(&mut self, n: u64, handled: bool) {
        let cgroup = Cgroups::of(n).own;
        self.kernel(KernelFact::SignalGenerated(sent(n, 15, handled)));
        if handled {
            let disposition = Disposition::Handler;
            let task = init(n);
            self.kernel(KernelFact::SignalDelivered { cgroup, task, signal: 15, disposition });
        }
    }

    pub(crate) fn kill(&mut self, n: u64) {
        self.kernel(KernelFact::SignalGenerated(sent(n, 9, true)));
    }

    /// The container's program ends, and its cgroup empties and goes.
    pub(crate) fn exits(&mut self, n: u64, status: ExitStatus) {
        let cgroup = Cgroups::of(n).own;
        self.kernel(KernelFact::Exit { cgroup, task: init(n), status, parent: Some(shim()) });
        self.kernel(KernelFact::CgroupEmpty { cgroup });
        self.kernel(KernelFact::CgroupRemoved { cgroup });
    }

    /// The runtime tells how the container exited.
    pub(crate) fn status(&mut self, n: u64, exit_code: i32) {
        self.cri(CriEvent::ContainerExited(CriExit {
            container: ids(n).2,
            started: None,
            finished: None,
            exit_code,
            reason: "Completed".into(),
        }));
    }

    /// The rest of the pod's cgroups go.
    pub(crate) fn cgroups_go(&mut self, n: u64) {
        let of = Cgroups::of(n);
        self.kernel(KernelFact::CgroupEmpty { cgroup: of.pause });
        for cgroup in [of.pause, of.pod] {
            self.kernel(KernelFact::CgroupRemoved { cgroup });
        }
    }
}

/// The ids of a pod's cgroups.
pub(crate) struct Cgroups {
    pub(crate) pod: CgroupId,
    pub(crate) pause: CgroupId,
    pub(crate) own: CgroupId,
}

impl Cgroups {
    pub(crate) fn of(n: u64) -> Self {
        let base = n * 10;
        Self { pod: CgroupId(base), pause: CgroupId(base + 1), own: CgroupId(base + 2) }
    }
}

/// The parent of what runs in a container.
pub(crate) fn shim() -> ProcessRef {
    let comm = "containerd-shim".into();
    ProcessRef { tgid: Tgid(1), comm, cgroup: None, in_container: Some(false) }
}

/// Sends a container's signals.
pub(crate) fn runc() -> ProcessRef {
    ProcessRef { comm: "runc".into(), ..shim() }
}

pub(crate) fn init(n: u64) -> Task {
    let pid = n as u32 * 10 + 5;
    Task { tgid: Tgid(pid), tid: pid, ns_pid: Some(1), started: None, comm: "app".into() }
}

pub(crate) fn sent(n: u64, signal: u8, takes: bool) -> SignalGenerated {
    SignalGenerated {
        cgroup: Cgroups::of(n).own,
        target: init(n),
        signal,
        code: 0,
        group: true,
        result: if takes { SignalResult::Delivered } else { SignalResult::Ignored },
        sender: runc(),
        state: Some(TargetState {
            unkillable: signal != 9,
            group_exit: signal == 9,
            disposition: if takes && signal != 9 {
                Disposition::Handler
            } else {
                Disposition::Default
            },
            blocked: false,
            pending: 0,
        }),
    }
}

pub(crate) fn ids(n: u64) -> (PodUid, SandboxId, ContainerId) {
    (
        PodUid::new(format!("{n:08x}-0000-4000-8000-000000000000")),
        SandboxId::new(format!("{n:063x}a")),
        ContainerId::new(format!("{n:063x}b")),
    )
}

pub(crate) fn sandbox(n: u64, ready: bool) -> CriSandbox {
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

pub(crate) fn container(n: u64, state: ContainerState) -> CriContainer {
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

pub(crate) fn object(n: u64, deleting: bool, at: BootTime) -> ApiPod {
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

/// The status of a pod's container shows that its first attempt has ended.
pub(crate) fn shows_its_end(container: &mut ApiContainer, n: u64) {
    let id = Some(ids(n).2);
    let reason = "Completed".into();
    let end = ApiTerminated { id: id.clone(), exit_code: 0, reason, finished: None };
    (container.id, container.terminated) = (id, vec![end]);
}

/// As the kubelet reports a container that it has stopped and started again in the same sync.
pub(crate) fn is_replaced(container: &mut ApiContainer, n: u64) {
    shows_its_end(container, n);
    (container.id, container.restarts) = (Some("c".repeat(64).as_str().into()), 1);
}

/// The container of [`is_replaced`], as the runtime lists it.
pub(crate) fn replacement() -> CriContainer {
    let id = "c".repeat(64).as_str().into();
    CriContainer { id, attempt: 1, ..container(1, ContainerState::Running) }
}

/// A process, by its pid on the host and in its own namespace.
pub(crate) fn task(pid: u32, ns: u32, comm: &str) -> Task {
    Task { tgid: Tgid(pid), tid: pid, ns_pid: Some(ns), started: None, comm: comm.into() }
}

/// A process of the first container, as a sender.
pub(crate) fn inside(of: &Task) -> ProcessRef {
    let comm = of.comm.clone();
    ProcessRef { tgid: of.tgid, comm, cgroup: Some(Cgroups::of(1).own), in_container: Some(true) }
}

/// How a program ends that was killed.
pub(crate) const KILLED: ExitStatus = ExitStatus::Signal { signal: 9, core: false };
/// How a program ends that was asked to.
pub(crate) const CODE_0: ExitStatus = ExitStatus::Code(0);

/// A pod that runs, known to all three sources.
pub(crate) fn running(n: u64) -> World {
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(n, false, at)));
    world.starts(n);
    world.lists(vec![sandbox(n, true)], vec![container(n, ContainerState::Running)]);
    world.later(1000).ticks(1);
    world
}

/// Another container in the first pod: its cgroup, its id and its main process.
pub(crate) fn sidecar() -> (CgroupId, ContainerId, Task) {
    let comm = "side".into();
    let task = Task { tgid: Tgid(77), tid: 77, ns_pid: Some(1), started: None, comm };
    (CgroupId(19), ContainerId::new(format!("{:063x}c", 1)), task)
}

/// The same, as the runtime lists it.
pub(crate) fn side(state: ContainerState) -> CriContainer {
    CriContainer { id: sidecar().1, name: "s".into(), ..container(1, state) }
}

/// A signal to a process that handles it.
pub(crate) fn signal(cgroup: CgroupId, target: Task, signal: u8, sender: ProcessRef) -> KernelFact {
    let state = TargetState {
        unkillable: false,
        group_exit: signal == 9,
        disposition: Disposition::Handler,
        blocked: false,
        pending: 0,
    };
    KernelFact::SignalGenerated(SignalGenerated {
        cgroup,
        target,
        signal,
        code: 0,
        group: true,
        result: SignalResult::Delivered,
        sender,
        state: Some(state),
    })
}

/// A static pod's sandbox.
pub(crate) fn of_file(sandbox: CriSandbox) -> CriSandbox {
    CriSandbox { config_source: Some("file".into()), ..sandbox }
}

/// A second sandbox and container of the first pod, with the ids of pod 2's.
pub(crate) fn second(ready: bool, state: ContainerState) -> (CriSandbox, CriContainer) {
    let pod = ids(1).0;
    let sandbox = CriSandbox { pod: pod.clone(), attempt: 1, ..of_file(sandbox(2, ready)) };
    (sandbox, CriContainer { pod: Some(pod), ..container(2, state) })
}
