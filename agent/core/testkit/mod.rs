//! The one model of a node of the core's tests. A test is a story: what the kernel, the runtime and the apiserver do
//! with the pods of a [`World`], and when; the world has what is true of each pod, sandbox and container by its number,
//! feeds the engine, checks what holds for any reports, and keeps them.

#![expect(clippy::new_without_default, reason = "a world begins by name: new, in sync, running")]

mod checks;
mod facts;
mod leaky;

pub use crate::{
    engine::{Engine, Gauges, Settings},
    ids::{CgroupId, ContainerId, PodUid, SandboxId, Tgid},
    input::*,
    output::{CriRequest, InspectProcesses, ReadStopState, Report, Request, TrafficRequest},
    report::{Audit, ContainerDeath, Finding, PodTermination},
    time::{Anchor, BootTime, WallTime},
    types::{Cause, Change, Contradiction, FindingKind, MilestoneKind, PhaseKind, Source, Verdict},
};
pub use checks::Checks;
pub use facts::*;
pub use leaky::{LeakyNode, THRESHOLD, key};
use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::Arc,
    time::Duration,
};

/// Something that happens.
pub type Story = fn(&mut World) -> &mut World;

/// The engine, what is true, and what the engine reported.
pub struct World {
    pub engine: Engine,
    /// Milliseconds since the boot.
    pub now: u64,
    /// What is true. Container N is in sandbox N of pod N, unless it joined another.
    pub pods: BTreeMap<u64, ApiPod>,
    pub sandboxes: BTreeMap<u64, CriSandbox>,
    pub containers: BTreeMap<u64, CriContainer>,
    /// The pod of a container or sandbox of another number.
    homes: BTreeMap<u64, u64>,
    /// Exit codes that the runtime has not stated yet.
    unstated: BTreeMap<u64, i32>,
    codes: BTreeMap<u64, i32>,
    pub ended: Vec<PodTermination>,
    pub died: Vec<ContainerDeath>,
    /// Deaths and terminations in the order in which they are counted.
    pub counted_deaths: Vec<ContainerDeath>,
    pub counted: Vec<PodTermination>,
    pub updated: Vec<(PodTermination, Change)>,
    pub other: Vec<Report>,
    /// The running containers of which it was reported how they will respond to their stop signal.
    pub audits: BTreeMap<ContainerId, Arc<Audit>>,
    pub requests: Vec<Request>,
    reports: BTreeMap<(PodUid, u32), PodTermination>,
    checks: Checks,
}

impl World {
    pub fn new() -> Self {
        Self {
            engine: Engine::new(Settings::new(ANCHOR)),
            now: 1_000,
            pods: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            homes: BTreeMap::new(),
            unstated: BTreeMap::new(),
            codes: BTreeMap::new(),
            ended: Vec::new(),
            died: Vec::new(),
            counted_deaths: Vec::new(),
            counted: Vec::new(),
            updated: Vec::new(),
            other: Vec::new(),
            audits: BTreeMap::new(),
            requests: Vec::new(),
            reports: BTreeMap::new(),
            checks: Checks::default(),
        }
    }

    /// Runtime and apiserver answer, and have nothing.
    pub fn in_sync() -> Self {
        let mut world = Self::new();
        world.connects().snapshot();
        world
    }

    /// A pod that runs, known to all three sources.
    pub fn running(n: u64) -> Self {
        let mut world = Self::in_sync();
        world.applied(n).starts(n).list().later(1000).ticks(1);
        world
    }

    /// The same; the status names the container, and the pod is restarted always.
    pub fn named(change: impl Fn(&mut ApiContainer)) -> Self {
        let mut world = Self::running(1);
        world.pod(1).restart_policy = "Always".into();
        let status = world.status_of(1);
        (status.id, status.started) = (Some(ids(1).2), Some(true));
        change(status);
        world.applied(1);
        world
    }

    pub fn say(&mut self, input: Input) -> &mut Self {
        let outputs = self.engine.step(Received { at: self.at(), input });
        self.requests.extend(outputs.requests);
        outputs.reports.into_iter().for_each(|report| self.report(report));
        self
    }

    fn report(&mut self, report: Report) {
        self.checks.report(&report);
        match report {
            Report::PodTerminated(end) => {
                assert_eq!(end.revision, 1, "{end:?}");
                let first = self.reports.insert((end.pod.uid.clone(), end.life), (*end).clone());
                assert!(first.is_none(), "twice: {end:?}");
                self.ended.push(*end);
            }
            Report::ContainerDied(death) => self.died.push(*death),
            Report::CountDeath(death) => self.counted_deaths.push(*death),
            Report::CountTermination(end) => {
                let known = self.reports.get(&(end.pod.uid.clone(), end.life));
                assert_eq!(known, Some(&*end), "as it was reported last");
                let due = end.ended.boot + Duration::from_secs(60);
                assert!(end.is_final || self.at() >= due, "too soon: {end:?}");
                self.counted.push(*end);
            }
            Report::PodUpdated(end, change) => {
                self.check_update(&end, change);
                self.updated.push((*end, change));
            }
            Report::Audited(audit) => _ = self.audits.insert(audit.id.clone(), audit),
            Report::AuditOver(id) => assert!(self.audits.remove(&id).is_some(), "{id}"),
            other => self.other.push(other),
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

    pub fn at(&self) -> BootTime {
        ms(self.now)
    }

    pub fn later(&mut self, ms: u64) -> &mut Self {
        self.now += ms;
        self
    }

    pub fn ticks(&mut self, seconds: u64) -> &mut Self {
        for _ in 0..seconds {
            self.later(1000).say(Input::Tick);
        }
        self
    }

    /// Anything else that happens in a story.
    pub fn then(&mut self, happens: impl FnOnce(&mut Self)) -> &mut Self {
        happens(self);
        self
    }
}

/// What is true of pods, and what the apiserver says of them.
impl World {
    pub fn api(&mut self, event: ApiEvent) -> &mut Self {
        self.say(Input::Api(event))
    }

    /// The pod, as the apiserver has it.
    pub fn pod(&mut self, n: u64) -> &mut ApiPod {
        self.pods.entry(n).or_insert_with(|| object(n, false, BootTime(0)))
    }

    fn pod_of(&self, n: u64) -> u64 {
        self.homes.get(&n).copied().unwrap_or(n)
    }

    /// The spec and status of a container in its pod.
    pub fn status_of(&mut self, n: u64) -> &mut ApiContainer {
        let name = self.containers.get(&n).map_or("c".into(), |one| one.name.clone());
        let pod = self.pod_of(n);
        self.pod(pod).containers.entry(name).or_default()
    }

    /// The apiserver shows the pod as it is.
    pub fn applied(&mut self, n: u64) -> &mut Self {
        let pod = self.pod(n).clone();
        self.api(ApiEvent::Applied(pod))
    }

    /// The phase is final.
    pub fn phase(&mut self, n: u64, phase: &str) -> &mut Self {
        self.pod(n).phase = phase.into();
        self.applied(n)
    }

    /// The deletion is requested now, which the apiserver does not show yet.
    pub fn marked(&mut self, n: u64, grace: i64) -> &mut Self {
        let due = WallTime(self.at().0 as i64 + grace * 1_000_000_000);
        let pod = self.pod(n);
        (pod.deletion_timestamp, pod.deletion_grace_seconds) = (Some(due), Some(grace));
        self
    }

    /// The deletion is requested, with a grace of 30 s.
    pub fn delete(&mut self, n: u64) -> &mut Self {
        self.marked(n, 30).applied(n)
    }

    /// The object is gone.
    pub fn deleted(&mut self, n: u64) -> &mut Self {
        let pod = self.pod(n).clone();
        self.pods.remove(&n);
        self.api(ApiEvent::Deleted(pod))
    }

    /// The object goes, which the watch does not show.
    pub fn vanishes(&mut self, n: u64) -> &mut Self {
        self.pods.remove(&n);
        self
    }

    /// A list of the pods that there are.
    pub fn snapshot(&mut self) -> &mut Self {
        let pods = self.pods.values().cloned().collect();
        self.api(ApiEvent::Snapshot { pods })
    }

    /// The watch breaks, or goes on where it broke.
    pub fn breaks(&mut self) -> &mut Self {
        self.api(ApiEvent::OutOfSync { error: "connection refused".into() })
    }

    pub fn resumes(&mut self) -> &mut Self {
        self.api(ApiEvent::Resumed)
    }

    /// The status of a container shows its exit, which the apiserver does not show yet.
    pub fn shows_exit(&mut self, n: u64) -> &mut Self {
        let code = self.codes.get(&n).copied().unwrap_or_default();
        shows_exit(self.status_of(n), n, code);
        self
    }
}

/// What the runtime says.
impl World {
    pub fn cri(&mut self, event: CriEvent) -> &mut Self {
        self.say(Input::Cri(event))
    }

    pub fn connects(&mut self) -> &mut Self {
        self.cri(CriEvent::Connected { runtime: "test".into(), process: None })
    }

    pub fn unreachable(&mut self) -> &mut Self {
        self.cri(CriEvent::Unreachable { error: "connection refused".into(), code: None })
    }

    pub fn lists(
        &mut self,
        sandboxes: Vec<CriSandbox>,
        containers: Vec<CriContainer>,
    ) -> &mut Self {
        let asked = self.at();
        self.cri(CriEvent::Sandboxes { asked, only: None, sandboxes });
        self.cri(CriEvent::Containers { asked, only: None, containers })
    }

    /// The runtime lists what there is.
    pub fn lists_all(&mut self) -> &mut Self {
        let sandboxes = self.sandboxes.values().cloned().collect();
        let containers = self.containers.values().cloned().collect();
        self.lists(sandboxes, containers)
    }

    /// The same, and it states each new exit.
    pub fn list(&mut self) -> &mut Self {
        self.lists_all();
        while let Some((n, code)) = self.unstated.pop_first() {
            self.status(n, code, "Completed");
        }
        self
    }

    pub fn status(&mut self, n: u64, exit_code: i32, reason: &str) -> &mut Self {
        let (container, reason) = (ids(n).2, reason.into());
        self.unstated.remove(&n);
        let exit = CriExit { container, exit_code, reason };
        self.cri(CriEvent::ContainerExited(exit))
    }

    /// The sandbox has stopped, which the runtime does not show yet.
    pub fn sandbox_stops(&mut self, n: u64) -> &mut Self {
        self.sandboxes.entry(n).or_insert_with(|| sandbox(n, false)).ready = false;
        self
    }

    /// A moment later the sandbox has stopped, and the runtime shows it, and each new exit.
    pub fn stopped(&mut self, n: u64) -> &mut Self {
        self.later(100).sandbox_stops(n).list()
    }

    /// The same, and then the object goes.
    pub fn finish(&mut self, n: u64) -> &mut Self {
        let pod = self.pod_of(n);
        self.stopped(n).later(100).deleted(pod)
    }

    /// The same, and all sources have reported all.
    pub fn settles(&mut self, n: u64) -> &mut Self {
        self.finish(n).ticks(60)
    }

    /// The runtime has removed the pod's sandbox and containers, and lists that.
    pub fn removed(&mut self, n: u64) -> &mut Self {
        self.containers.retain(|_, one| one.sandbox != ids(n).1);
        self.sandboxes.remove(&n);
        self.lists_all()
    }
}

/// What the kernel says.
impl World {
    pub fn kernel(&mut self, fact: KernelFact) -> &mut Self {
        self.kernel_at(self.at(), fact)
    }

    /// A record that comes later than what it is of.
    pub fn kernel_at(&mut self, time: BootTime, fact: KernelFact) -> &mut Self {
        self.say(Input::Kernel(KernelEvent { time, fact }))
    }

    /// Container N, with this name, is one of the pod's.
    pub fn joins(&mut self, n: u64, pod: u64, name: &str) -> &mut Self {
        self.homes.insert(n, pod);
        let home = self.containers.get(&pod).cloned();
        let home = home.unwrap_or_else(|| container(pod, ContainerState::Running));
        let one = CriContainer { id: ids(n).2, name: name.into(), ..home };
        let created = Some(WallTime(n as i64));
        let state = ContainerState::Running;
        self.containers.insert(n, CriContainer { attempt: 0, created, state, ..one });
        self
    }

    /// Sandbox and container N are the pod's next ones, after those of the number of the pod.
    pub fn comes_back(&mut self, n: u64, pod: u64) -> &mut Self {
        let of = ids(pod).0;
        let before = self.sandboxes.values().find(|one| one.pod == of).expect("one before").clone();
        let CriSandbox { id, created, .. } = sandbox(n, true);
        let next = CriSandbox { id, created, attempt: 1, ready: true, ..before };
        self.homes.insert(n, pod);
        self.sandboxes.insert(n, next);
        let one = container(n, ContainerState::Running);
        self.containers.insert(n, CriContainer { pod: Some(of), ..one });
        self
    }

    /// The cgroups of pod, pause and container appear, those that are new.
    pub fn cgroups_come(&mut self, n: u64) -> &mut Self {
        let (own, pod) = (Cgroups::of(n), self.pod_of(n));
        let (_, sandbox_id, id) = ids(n);
        let parent = Some(Cgroups::of(pod).pod);
        let one = self.containers.entry(n).or_insert_with(|| container(n, ContainerState::Running));
        one.state = ContainerState::Running;
        let has_sandbox = one.sandbox == sandbox_id;
        if pod == n {
            self.kernel(created(own.pod, None, &format!("/kubepods/pod{}", ids(n).0)));
        }
        if has_sandbox {
            self.sandboxes.entry(n).or_insert_with(|| sandbox(n, true));
            self.kernel(created(own.pause, parent, sandbox_id.as_str()));
        }
        self.kernel(created(own.own, parent, id.as_str()))
    }

    /// The container's program runs.
    pub fn execs(&mut self, n: u64) -> &mut Self {
        self.kernel(exec(Cgroups::of(n).own, init(n)))
    }

    /// Both.
    pub fn starts(&mut self, n: u64) -> &mut Self {
        self.cgroups_come(n).execs(n)
    }

    /// The sandbox's own process runs.
    pub fn pauses(&mut self, n: u64) -> &mut Self {
        self.kernel(exec(Cgroups::of(n).pause, task(n as u32 * 10 + 3, 1, "pause")))
    }

    /// Sandbox and container run, which no source has shown yet.
    pub fn runs(&mut self, n: u64) -> &mut Self {
        self.sandboxes.insert(n, sandbox(n, true));
        self.containers.insert(n, container(n, ContainerState::Running));
        self
    }

    /// The agent finds the container of a pod when it starts.
    pub fn finds(&mut self, n: u64) -> &mut Self {
        let cgroup = Cgroups::of(n).own;
        self.runs(n).kernel(found(n)).kernel(KernelFact::Running { cgroup, task: init(n) })
    }

    /// The kubelet starts container N again as the number `next`, in the same sandbox; runtime and status show it.
    pub fn again(&mut self, n: u64, next: u64) -> &mut Self {
        self.restarts(n, next).list().later(200);
        let pod = self.pod_of(n);
        self.replaced(n, next).applied(pod)
    }

    /// The next attempt runs; no source but the kernel shows it yet.
    pub fn restarts(&mut self, n: u64, next: u64) -> &mut Self {
        let (before, home) = (self.containers[&n].clone(), self.homes.get(&n).copied());
        self.joins(next, home.unwrap_or(n), &before.name);
        self.containers.get_mut(&next).expect("it joined").attempt = before.attempt + 1;
        self.starts(next)
    }

    /// As the kubelet reports a container that it has stopped and started again in the same sync.
    pub fn replaced(&mut self, n: u64, next: u64) -> &mut Self {
        let status = self.shows_exit(n).status_of(n);
        (status.id, status.restarts) = (Some(ids(next).2), status.restarts + 1);
        self
    }

    pub fn sends(&mut self, signal: Signal) -> &mut Self {
        self.kernel(signal.fact())
    }

    /// The handler of the main process runs.
    pub fn takes(&mut self, n: u64, signal: u8) -> &mut Self {
        self.kernel(taken(Cgroups::of(n).own, init(n), signal))
    }

    /// runc sends the stop signal, and its handler runs at once.
    pub fn term(&mut self, n: u64) -> &mut Self {
        self.sends(Signal::new(n, 15).handler()).takes(n, 15)
    }

    /// This process sends a signal, and its handler runs at once.
    pub fn signals(&mut self, n: u64, signal: u8, by: ProcessRef) -> &mut Self {
        self.sends(Signal::new(n, signal).handler().by(by)).takes(n, signal)
    }

    /// runc sends the stop signal, which the kernel discards.
    pub fn discards(&mut self, n: u64) -> &mut Self {
        self.sends(Signal::new(n, 15).ignored())
    }

    pub fn kill(&mut self, n: u64) -> &mut Self {
        self.sends(Signal::new(n, 9))
    }

    /// A process from outside runs in the container, a hook or a probe.
    pub fn enters(&mut self, n: u64, pid: u32, comm: &str) -> &mut Self {
        self.kernel(exec(Cgroups::of(n).own, task(pid, pid % 1000 + 20, comm)))
    }

    pub fn leaves(&mut self, n: u64, pid: u32, comm: &str, code: u8) -> &mut Self {
        let task = task(pid, pid % 1000 + 20, comm);
        self.kernel(exit(Cgroups::of(n).own, task, ExitStatus::Code(code)))
    }

    /// The main process exits.
    pub fn main_exits(&mut self, n: u64, status: ExitStatus) -> &mut Self {
        self.is_over(n, status).kernel(exit(Cgroups::of(n).own, init(n), status))
    }

    /// The container has exited, which only the runtime will show.
    pub fn is_over(&mut self, n: u64, status: ExitStatus) -> &mut Self {
        let code = match status {
            ExitStatus::Code(code) => i32::from(code),
            ExitStatus::Signal { signal, .. } => 128 + i32::from(signal),
        };
        self.unstated.insert(n, code);
        self.codes.insert(n, code);
        let one = self.containers.entry(n).or_insert_with(|| container(n, ContainerState::Exited));
        one.state = ContainerState::Exited;
        self
    }

    /// The last process has left the container, and its cgroup goes.
    pub fn empties(&mut self, n: u64) -> &mut Self {
        let cgroup = Cgroups::of(n).own;
        self.kernel(KernelFact::CgroupEmpty { cgroup }).kernel(KernelFact::CgroupRemoved { cgroup })
    }

    /// The main process exits, and its cgroup empties and goes.
    pub fn exits(&mut self, n: u64, status: ExitStatus) -> &mut Self {
        self.main_exits(n, status).empties(n)
    }

    /// The runtime stops the container, which exits half a second later.
    pub fn stops(&mut self, n: u64) -> &mut Self {
        self.later(100).term(n).later(500).exits(n, CODE_0)
    }

    /// The rest of the pod's cgroups go.
    pub fn cgroups_go(&mut self, n: u64) -> &mut Self {
        let of = Cgroups::of(n);
        self.kernel(KernelFact::CgroupEmpty { cgroup: of.pause });
        self.kernel(KernelFact::CgroupRemoved { cgroup: of.pause });
        self.kernel(KernelFact::CgroupRemoved { cgroup: of.pod })
    }

    pub fn lost(&mut self, kind: LossKind) -> &mut Self {
        self.say(Input::Lost(Loss::new(kind, 1)))
    }
}

/// What the engine reported.
impl World {
    /// The reports as they are now.
    pub fn reports(&self) -> impl Iterator<Item = &PodTermination> {
        self.reports.values()
    }

    /// The only report of a pod, as it is now.
    #[track_caller]
    pub fn end(&self) -> &PodTermination {
        assert_eq!(self.reports.len(), 1, "one report of a pod\n{self}");
        self.reports.values().next().expect("it has one")
    }

    /// The container's report: its own, or else its pod's.
    #[track_caller]
    pub fn death(&self, n: u64) -> &ContainerDeath {
        let all = self.reports.values().flat_map(|end| &end.containers);
        let death = self.died.iter().chain(all).find(|death| death.id == ids(n).2);
        death.unwrap_or_else(|| panic!("container {n} is not reported\n{self}"))
    }

    /// The container's report is `verdict cause`, then each finding after a `+`, and each loss after a `-`.
    #[track_caller]
    pub fn dies(&self, n: u64, expected: &str) -> &Self {
        assert_eq!(brief(self.death(n)), expected, "container {n}\n{self}");
        self
    }

    /// The only report of a pod is `cause`, its findings and losses likewise, then its containers in order, each with its
    /// name and as in [`Self::dies`].
    #[track_caller]
    pub fn ends(&self, expected: &str) -> &Self {
        let end = self.end();
        let mut text = format!("{}{}", end.cause, more(&end.findings, &end.incomplete));
        for death in &end.containers {
            write!(text, "; {} {}", death.name, brief(death)).expect("a String");
        }
        assert_eq!(text, expected, "\n{self}");
        self
    }

    /// The proof of the container's verdict, or the message of its cause, has this text.
    #[track_caller]
    pub fn says(&self, n: u64, text: &str) -> &Self {
        let death = self.death(n);
        let said = [&death.proof.message, &death.cause_message];
        assert!(said.iter().any(|one| one.contains(text)), "{text}\n{self}");
        self
    }

    /// No pod was reported.
    #[track_caller]
    pub fn goes_on(&self) -> &Self {
        assert!(self.ended.is_empty(), "the pod goes on\n{self}");
        self
    }

    /// Neither a pod nor a container was reported.
    #[track_caller]
    pub fn is_quiet(&self) -> &Self {
        assert!(self.died.is_empty(), "nothing is reported\n{self}");
        self.goes_on()
    }

    #[track_caller]
    pub fn phase_ms(&self, kind: PhaseKind) -> u128 {
        self.end().phase(kind).as_millis()
    }
}

fn more(findings: &[Finding], lost: &[LossKind]) -> String {
    let findings = findings.iter().map(|finding| format!(" +{}", finding.kind));
    findings.chain(lost.iter().map(|loss| format!(" -{loss}"))).collect()
}

fn brief(death: &ContainerDeath) -> String {
    format!("{} {}{}", death.verdict, death.cause, more(&death.findings, &death.incomplete))
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for death in &self.died {
            let (proof, cause) = (&death.proof.message, &death.cause_message);
            writeln!(f, "{}: {}\n  {proof}\n  {cause}", death.name, brief(death))?;
            death.findings.iter().try_for_each(|one| writeln!(f, "  + {}", one.detail))?;
        }
        for end in self.reports.values() {
            writeln!(f, "pod {}: {} {}", end.pod.name, end.cause, end.cause_message)?;
            for death in &end.containers {
                writeln!(f, "  {}: {}", death.name, brief(death))?;
            }
        }
        Ok(())
    }
}

/// /proc, and the connections of pod 1.
impl World {
    /// /proc answers of the first container: so many are alive, these among them, and whether they are frozen.
    pub fn shows(
        &mut self,
        alive: impl Into<Option<u32>>,
        processes: Vec<ProcProcess>,
        frozen: Option<bool>,
    ) -> &mut Self {
        let (cgroup, looked, alive) = (Cgroups::of(1).own, self.at(), alive.into());
        self.say(Input::Proc(ProcReport { cgroup, looked, alive, processes, frozen }))
    }

    /// The requests of a kind since the last call.
    pub fn wanted<T>(&mut self, kind: impl Fn(&Request) -> Option<T>) -> Vec<T> {
        let mut wanted = Vec::new();
        self.requests.retain(|request| {
            let one = kind(request);
            let is_other = one.is_none();
            wanted.extend(one);
            is_other
        });
        wanted
    }

    /// What was reported as unkillable since the last call, and whether it is over.
    pub fn unkillable(&mut self) -> Vec<(String, bool)> {
        let mut reported = Vec::new();
        self.other.retain(|report| match report {
            Report::Unkillable(one) => {
                reported.push((one.detail.clone(), one.over));
                false
            }
            _ => true,
        });
        reported
    }

    pub fn traffic(&mut self, fact: TrafficFact) -> &mut Self {
        self.say(Input::Traffic(TrafficEvent { sandbox: ids(1).1, fact }))
    }
}
