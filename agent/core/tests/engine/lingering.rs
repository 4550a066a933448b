//! Containers that do not end when told to: SIGKILL that does not take, frozen cgroups.

use super::world::{
    CODE_0, Cgroups, KILLED, World, container, ids, init, object, runc, running, sandbox, shim,
    signal,
};
use coroner_core::{
    ids::Tgid,
    input::{
        ApiEvent, ContainerState, Disposition, Input, KernelFact, Loss, LossKind, ProcProcess,
        ProcReport, SignalResult, Task, TaskState,
    },
    output::{InspectProcesses, Report, Request},
    report::{ContainerDeath, EvidenceKind},
    types::{FindingKind, Source, Verdict},
};

/// When the main process began, in ns, and as /proc rounds it down.
const STARTED: u64 = 1_000_003_210;
const STARTED_PROC: u64 = 1_000_000_000;

/// The main process as /proc shows it, hanging in a file system.
pub(crate) fn hangs() -> ProcProcess {
    ProcProcess {
        tgid: init(1).tgid,
        comm: "app".into(),
        started: STARTED_PROC,
        state: TaskState::Uninterruptible,
        thread: None,
        wchan: Some("nfs_wait_bit_killable".into()),
        stack: vec!["nfs_wait_bit_killable".into(), "nfs4_proc_read".into()],
    }
}

pub(crate) fn started() -> Task {
    Task { started: Some(STARTED), ..init(1) }
}

impl World {
    /// /proc answers.
    pub(crate) fn shows(&mut self, alive: u32, processes: Vec<ProcProcess>) {
        self.shows_freezer(alive, processes, None);
    }

    pub(crate) fn shows_freezer(
        &mut self,
        alive: u32,
        processes: Vec<ProcProcess>,
        frozen: Option<bool>,
    ) {
        let (cgroup, looked) = (Cgroups::of(1).own, self.at());
        let alive = Some(alive);
        self.say(Input::Proc(ProcReport { cgroup, looked, alive, processes, frozen }));
    }

    /// What was asked of /proc since the last call.
    pub(crate) fn wanted(&mut self) -> Vec<InspectProcesses> {
        let mut wanted = Vec::new();
        self.requests.retain(|said| match said {
            Request::InspectProcesses(one) => {
                wanted.push(*one);
                false
            }
            _ => true,
        });
        wanted
    }

    pub(crate) fn told(&mut self) -> Vec<(String, bool)> {
        let mut told = Vec::new();
        self.other.retain(|said| match said {
            Report::Unkillable(holdout) => {
                told.push((holdout.detail.clone(), holdout.over));
                false
            }
            _ => true,
        });
        told
    }

    pub(crate) fn unkillable(&self) -> usize {
        self.engine.gauges().unkillable.values().sum()
    }

    pub(crate) fn deleted(&mut self) {
        let at = self.at();
        self.api(ApiEvent::Applied(object(1, true, at)));
    }

    /// SIGKILL to the main process, which it cannot refuse.
    pub(crate) fn killed(&mut self) {
        self.kernel(signal(Cgroups::of(1).own, started(), 9, runc()));
    }

    /// The runtime and the apiserver say the rest; the account is due.
    pub(crate) fn settles(&mut self, exit_code: i32) -> ContainerDeath {
        self.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
        self.status(1, exit_code);
        let at = self.at();
        self.api(ApiEvent::Deleted(object(1, true, at)));
        self.ticks(60);
        assert_eq!(self.died.len(), 1);
        self.died[0].clone()
    }
}

pub(crate) fn detail(death: &ContainerDeath, kind: FindingKind) -> Option<&str> {
    death.findings.iter().find(|f| f.kind == kind).map(|f| f.detail.as_str())
}

/// A pod whose main process exceeded its grace and has just been sent SIGKILL.
fn killed() -> World {
    let mut world = running(1);
    world.deleted();
    world.later(100).term(1, true);
    world.later(30_000).killed();
    world
}

#[test]
fn what_sigkill_does_not_end_is_looked_at_until_it_ends() {
    let mut world = killed();
    world.ticks(1);
    assert_eq!(world.wanted(), [], "it may still end");
    world.ticks(2);
    let wanted = InspectProcesses {
        cgroup: Cgroups::of(1).own,
        main: Some(init(1).tgid),
        started: Some(STARTED),
    };
    assert_eq!(world.wanted(), [wanted, wanted], "each second at first");
    world.shows(1, vec![hangs()]);
    assert_eq!(world.unkillable(), 1);
    let still = "Still alive 3.0 s after SIGKILL: app (pid 15) in state D (uninterruptible) in \
                 nfs_wait_bit_killable, called by nfs4_proc_read.";
    assert_eq!(world.told(), [(still.to_owned(), false)]);
    world.ticks(9);
    world.shows(1, vec![hangs()]);
    assert_eq!(world.told(), [], "nothing new");
    world.later(300).exits(1, KILLED);
    world.ticks(1);
    let over = "It ended 12.3 s after SIGKILL: app had been in state D in nfs_wait_bit_killable.";
    assert_eq!(world.told(), [(over.to_owned(), true)]);
    assert_eq!(world.unkillable(), 0);
    world.wanted();
    let death = world.settles(137);
    assert_eq!(world.wanted(), [], "it has ended");
    assert_eq!(death.verdict, Verdict::GraceExceeded);
    assert_eq!(
        detail(&death, FindingKind::Unkillable),
        Some(
            "Alive until 12.3 s after SIGKILL: app (pid 15) in state D (uninterruptible) in \
             nfs_wait_bit_killable, called by nfs4_proc_read, seen last after 12.0 s."
        )
    );
    let proof = death.proof.evidence.iter().find(|e| e.source == Source::Proc).unwrap();
    let EvidenceKind::Process(process) = &proof.kind else { panic!("{proof:?}") };
    assert_eq!(process.state, TaskState::Uninterruptible);
    assert_eq!(process.wchan.as_deref(), Some("nfs_wait_bit_killable"));
    assert_eq!(world.updated.len(), 0);
}

#[test]
fn what_hangs_for_long_is_looked_at_more_rarely() {
    let mut world = killed();
    for _ in 0..3600 {
        world.ticks(1);
        for _ in world.wanted() {
            world.shows(1, vec![hangs()]);
        }
    }
    world.ticks(1);
    assert_eq!(world.unkillable(), 1);
    let mut world = killed();
    world.ticks(3600);
    let looks = world.wanted().len();
    assert!((60..100).contains(&looks), "{looks} in an hour");
}

#[test]
fn a_change_of_state_is_told() {
    let mut world = killed();
    world.ticks(3);
    world.shows(1, vec![hangs()]);
    world.ticks(1);
    let freeing = ProcProcess { state: TaskState::Running, wchan: None, stack: vec![], ..hangs() };
    world.shows(1, vec![freeing]);
    let told = world.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[1].0, "Still alive 4.0 s after SIGKILL: app (pid 15) in state R.");
    assert_eq!(world.engine.gauges().unkillable, [(TaskState::Running, 1)].into());
}

#[test]
fn another_process_of_the_same_number_proves_nothing() {
    let mut world = killed();
    let killed = world.at().0;
    world.ticks(3);
    world.shows(1, vec![ProcProcess { started: STARTED_PROC + 10_000_000, ..hangs() }]);
    assert_eq!(world.unkillable(), 0, "another start time");
    let child = ProcProcess { tgid: Tgid(99), started: killed + 1, ..hangs() };
    world.shows(1, vec![child]);
    assert_eq!(world.unkillable(), 0, "began after the SIGKILL");
    world.later(100).exits(1, KILLED);
    let death = world.settles(137);
    let finding = detail(&death, FindingKind::Unkillable).unwrap();
    assert!(finding.contains("where it hung is not known"), "the kernel's word stays: {finding}");
}

#[test]
fn a_quick_death_is_none() {
    let mut world = killed();
    world.later(1900).exits(1, KILLED);
    let death = world.settles(137);
    assert_eq!(detail(&death, FindingKind::Unkillable), None);
    assert_eq!(world.wanted(), []);
}

#[test]
fn a_child_that_hangs_keeps_the_namespace() {
    // PID 1 is dead and waits in zap_pid_ns_processes for a child that no signal reaches.
    let mut world = running(1);
    let cgroup = Cgroups::of(1).own;
    world.deleted();
    world.later(100).kernel(signal(cgroup, started(), 15, runc()));
    let disposition = Disposition::Handler;
    world.kernel(KernelFact::SignalDelivered { cgroup, task: started(), signal: 15, disposition });
    world.later(50).kernel(KernelFact::Exit {
        cgroup,
        task: started(),
        status: CODE_0,
        parent: Some(shim()),
    });
    world.ticks(3);
    let child = ProcProcess { tgid: Tgid(70), comm: "worker".into(), ..hangs() };
    let waiting = ProcProcess {
        state: TaskState::Sleeping,
        wchan: Some("zap_pid_ns_processes".into()),
        stack: vec![],
        ..hangs()
    };
    assert_eq!(world.wanted().len(), 2);
    world.shows(2, vec![child, waiting]);
    world.later(9_000);
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    let death = world.settles(0);
    assert_eq!(death.verdict, Verdict::Graceful);
    let finding = detail(&death, FindingKind::Unkillable).unwrap();
    assert!(finding.starts_with("Alive until 12.0 s after SIGKILL: worker (pid 70)"), "{finding}");
    assert!(finding.contains("; 1 more with it"), "{finding}");
}

#[test]
fn a_zombie_is_dead_but_not_its_threads() {
    let mut world = killed();
    world.ticks(3);
    let zombie = ProcProcess { state: TaskState::Zombie, wchan: None, stack: vec![], ..hangs() };
    world.shows(0, vec![zombie]);
    world.wanted();
    assert_eq!(world.unkillable(), 0, "its parent does not reap it: it is dead all the same");
    world.ticks(5);
    assert_eq!(world.wanted(), [], "the record of its end was lost, nothing is left to see");

    let mut world = killed();
    world.ticks(3);
    world.shows(1, vec![ProcProcess { thread: Some(44), ..hangs() }]);
    let told = world.told().remove(0).0;
    assert!(
        told.contains("thread 44 of app (pid 15, its leader is a zombie) in state D"),
        "{told}"
    );
}

#[test]
fn lost_evidence_makes_no_finding() {
    let mut world = killed();
    world.say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 2)));
    world.ticks(3);
    world.shows(0, vec![]);
    let death = world.settles(137);
    assert_eq!(detail(&death, FindingKind::Unkillable), None, "{:?}", death.findings);
    assert_eq!(death.incomplete, [LossKind::DecidingRingFull]);
    assert_eq!(world.unkillable(), 0);
}

#[test]
fn a_look_that_saw_nothing_proves_nothing() {
    let mut world = killed();
    world.ticks(3);
    let (cgroup, looked) = (Cgroups::of(1).own, world.at());
    let blind = ProcReport { cgroup, looked, alive: None, processes: vec![], frozen: None };
    world.say(Input::Proc(blind));
    world.wanted();
    world.ticks(1);
    assert_eq!(world.wanted().len(), 1, "it goes on looking");
    assert_eq!(world.unkillable(), 0);
}

#[test]
fn a_container_older_than_the_agent_is_looked_at_too() {
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, false, at)));
    let (pod, _, id) = ids(1);
    let cgroup = Cgroups::of(1).own;
    let name = format!("/kubepods/pod{pod}/{id}");
    world.kernel(KernelFact::CgroupCreated { cgroup, parent: None, name, scanned: true });
    world.kernel(KernelFact::Running { cgroup, task: init(1) });
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.deleted();
    // The runtime tries again what it tried before the agent was there: it is dying already.
    let KernelFact::SignalGenerated(mut again) = signal(cgroup, started(), 9, runc()) else {
        unreachable!()
    };
    again.result = SignalResult::Ignored;
    world.kernel(KernelFact::SignalGenerated(again));
    world.ticks(3);
    assert_eq!(world.wanted()[0].main, Some(init(1).tgid));
    world.shows(1, vec![hangs()]);
    assert_eq!(world.unkillable(), 1);
}

#[test]
fn an_init_cannot_be_killed_from_within() {
    let mut world = running(1);
    let KernelFact::SignalGenerated(mut kill) = signal(Cgroups::of(1).own, started(), 9, runc())
    else {
        unreachable!()
    };
    kill.sender.cgroup = Some(Cgroups::of(1).own);
    kill.result = SignalResult::Ignored;
    kill.state.as_mut().unwrap().group_exit = false;
    world.kernel(KernelFact::SignalGenerated(kill));
    world.ticks(10);
    assert_eq!(world.wanted(), [], "nothing was to end");
}

#[test]
fn without_a_namespace_each_process_needs_its_own_sigkill() {
    let mut world = running(2);
    world.cgroups_come(1);
    let of = Cgroups::of(1);
    let main = Task { ns_pid: Some(4711), ..started() }; // hostPID
    world.kernel(KernelFact::Exec { cgroup: of.own, task: main.clone(), parent: shim() });
    world.later(1000).kernel(signal(of.own, main.clone(), 9, runc()));
    let (status, parent) = (KILLED, Some(shim()));
    world.kernel(KernelFact::Exit { cgroup: of.own, task: main, status, parent });
    world.ticks(4);
    let other = ProcProcess { tgid: Tgid(70), comm: "worker".into(), ..hangs() };
    world.shows(1, vec![other.clone()]);
    assert_eq!(world.unkillable(), 0, "nobody has killed it");
    let worker = Task { tgid: Tgid(70), tid: 70, ns_pid: Some(70), ..started() };
    world.kernel(signal(of.own, worker, 9, runc()));
    world.ticks(3);
    world.shows(1, vec![other]);
    assert_eq!(world.unkillable(), 1);
}
