//! Containers that do not end when they are stopped: a SIGKILL that does not take effect, frozen cgroups.

use coroner_core::{report::EvidenceKind, testkit::*};

/// When the main process began, in ns, and as /proc rounds it down.
const STARTED: u64 = 1_000_003_210;
const STARTED_PROC: u64 = 1_000_000_000;

/// The main process as /proc shows it, hanging in a file system.
fn hangs() -> ProcProcess {
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

fn is_in(state: TaskState, wchan: Option<&str>) -> ProcProcess {
    ProcProcess { state, wchan: wchan.map(Into::into), stack: Vec::new(), ..hangs() }
}

fn worker() -> ProcProcess {
    ProcProcess { tgid: Tgid(70), comm: "worker".into(), ..hangs() }
}

fn own() -> CgroupId {
    Cgroups::of(1).own
}

/// From runc to the main process.
fn send(signal: u8) -> Signal {
    Signal::to(own(), Task { started: Some(STARTED), ..init(1) }, signal)
}

/// A pod whose main process exceeded its grace and has just been sent SIGKILL.
fn killed() -> World {
    let mut w = World::running(1);
    w.delete(1).later(100).term(1).later(30_000).sends(send(9));
    w
}

/// What was asked of /proc since the last call.
fn wanted(w: &mut World) -> Vec<InspectProcesses> {
    w.wanted(|request| match request {
        Request::InspectProcesses(one) => Some(*one),
        _ => None,
    })
}

fn unkillable(w: &World) -> usize {
    w.engine.gauges().unkillable.values().sum()
}

fn detail(w: &World, kind: FindingKind) -> &str {
    let found = w.death(1).findings.iter().find(|one| one.kind == kind);
    found.map_or("", |one| one.detail.as_str())
}

#[test]
fn what_sigkill_does_not_end_is_looked_at_until_it_ends() {
    let mut w = killed();
    assert_eq!(wanted(w.ticks(1)), [], "it may still end");
    let look = InspectProcesses { cgroup: own(), main: Some(init(1).tgid), started: Some(STARTED) };
    assert_eq!(wanted(w.ticks(2)), [look, look], "each second at first");
    w.shows(1, vec![hangs()], None);
    assert_eq!(unkillable(&w), 1);
    let still = "Still alive 3.0 s after SIGKILL: app (pid 15) in state D (uninterruptible) in \
                 nfs_wait_bit_killable, called by nfs4_proc_read.";
    assert_eq!(w.unkillable(), [(still.to_owned(), false)]);
    assert_eq!(w.ticks(9).shows(1, vec![hangs()], None).unkillable(), [], "nothing new");
    w.later(300).exits(1, KILLED).ticks(1);
    let over = "It ended 12.3 s after SIGKILL: app had been in state D in nfs_wait_bit_killable.";
    assert_eq!(w.unkillable(), [(over.to_owned(), true)]);
    assert_eq!(unkillable(&w), 0);
    wanted(&mut w);
    w.settles(1).dies(1, "grace_exceeded api_delete +unkillable +deadline_missed");
    assert_eq!(wanted(&mut w), [], "it has ended");
    let found = "Alive until 12.3 s after SIGKILL: app (pid 15) in state D (uninterruptible) in \
                 nfs_wait_bit_killable, called by nfs4_proc_read, seen last after 12.0 s.";
    assert_eq!(detail(&w, FindingKind::Unkillable), found);
    let evidence = &w.death(1).proof.evidence;
    let proof = evidence.iter().find(|one| one.source == Source::Proc).unwrap();
    let EvidenceKind::Process(process) = &proof.kind else { panic!("{proof:?}") };
    assert_eq!(process.state, TaskState::Uninterruptible);
    assert_eq!(process.wchan.as_deref(), Some("nfs_wait_bit_killable"));
    assert_eq!(w.updated.len(), 0);
}

#[test]
fn what_hangs_for_long_is_looked_at_more_rarely() {
    let mut w = killed();
    let mut looks = 0;
    for _ in 0..3600 {
        for _ in wanted(w.ticks(1)) {
            looks += 1;
            w.shows(1, vec![hangs()], None);
        }
    }
    assert_eq!(unkillable(w.ticks(1)), 1);
    assert!((60..100).contains(&looks), "{looks} in an hour");
    let mut w = killed();
    let looks = wanted(w.ticks(3600)).len();
    assert!((60..100).contains(&looks), "{looks} in an hour without an answer");
}

#[test]
fn a_change_of_state_is_reported() {
    let mut w = killed();
    w.ticks(3).shows(1, vec![hangs()], None).ticks(1);
    w.shows(1, vec![is_in(TaskState::Running, None)], None);
    let told = w.unkillable();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[1].0, "Still alive 4.0 s after SIGKILL: app (pid 15) in state R.");
    assert_eq!(w.engine.gauges().unkillable, [(TaskState::Running, 1)].into());
}

#[test]
fn another_process_of_the_same_number_proves_nothing() {
    let mut w = killed();
    let killed = w.at().0;
    w.ticks(3).shows(1, vec![ProcProcess { started: STARTED_PROC + 10_000_000, ..hangs() }], None);
    assert_eq!(unkillable(&w), 0, "another start time");
    w.shows(1, vec![ProcProcess { started: killed + 1, ..worker() }], None);
    assert_eq!(unkillable(&w), 0, "began after the SIGKILL");
    w.later(100).exits(1, KILLED).settles(1);
    let found = detail(&w, FindingKind::Unkillable);
    assert!(found.contains("where it hung is not known"), "the kernel's word stays: {found}");
}

/// PID 1 is dead and waits in zap_pid_ns_processes for a child that no signal reaches.
#[test]
fn a_child_that_hangs_keeps_the_namespace() {
    let mut w = World::running(1);
    w.delete(1).later(100).sends(send(15).handler()).takes(1, 15).later(50).main_exits(1, CODE_0);
    assert_eq!(wanted(w.ticks(3)).len(), 2);
    let waits = is_in(TaskState::Sleeping, Some("zap_pid_ns_processes"));
    w.shows(2, vec![worker(), waits], None).later(9_000).empties(1).settles(1);
    w.dies(1, "graceful api_delete +unkillable");
    let found = detail(&w, FindingKind::Unkillable);
    assert!(found.starts_with("Alive until 12.0 s after SIGKILL: worker (pid 70)"), "{found}");
    assert!(found.contains("; 1 more with it"), "{found}");
}

#[test]
fn a_zombie_is_dead_but_not_its_threads() {
    let mut w = killed();
    w.ticks(3).shows(0, vec![is_in(TaskState::Zombie, None)], None);
    wanted(&mut w);
    assert_eq!(unkillable(&w), 0, "its parent does not reap it: it is dead all the same");
    assert_eq!(wanted(w.ticks(5)), [], "the record of its end was lost, nothing is left to see");

    let mut w = killed();
    w.ticks(3).shows(1, vec![ProcProcess { thread: Some(44), ..hangs() }], None);
    let told = w.unkillable().remove(0).0;
    assert!(
        told.contains("thread 44 of app (pid 15, its leader is a zombie) in state D"),
        "{told}"
    );
}

#[test]
fn a_look_that_saw_nothing_and_lost_records_make_no_finding() {
    let mut w = killed();
    w.ticks(3).shows(None, vec![], None);
    wanted(&mut w);
    assert_eq!(wanted(w.ticks(1)).len(), 1, "it goes on looking");
    assert_eq!(unkillable(&w), 0);
    w.lost(LossKind::DecidingRingFull).shows(0, vec![], None).is_over(1, KILLED).settles(1);
    w.dies(1, "unknown api_delete -deciding_ring_full");
    assert_eq!(unkillable(&w), 0);
}

/// The runtime tries again what it tried before the agent was there: it is dying already.
#[test]
fn a_container_older_than_the_agent_is_looked_at_too() {
    let mut w = World::in_sync();
    w.applied(1).finds(1).list().delete(1).sends(send(9).ignored()).ticks(3);
    assert_eq!(wanted(&mut w)[0].main, Some(init(1).tgid));
    assert_eq!(unkillable(w.shows(1, vec![hangs()], None)), 1);
}

#[test]
fn an_init_cannot_be_killed_from_within() {
    let mut w = World::running(1);
    let kill = send(9).ignored().by(inside(&task(70, 7, "sh"))).state(|s| s.group_exit = false);
    assert_eq!(wanted(w.sends(kill).ticks(10)), [], "nothing was to end");
}

#[test]
fn without_a_namespace_each_process_needs_its_own_sigkill() {
    let mut w = World::running(2);
    let process = |pid| Task { started: Some(STARTED), ..task(pid, pid, "app") }; // hostPID
    w.cgroups_come(1).kernel(exec(own(), process(15))).later(1000);
    w.sends(Signal::to(own(), process(15), 9)).kernel(exit(own(), process(15), KILLED)).ticks(4);
    assert_eq!(unkillable(w.shows(1, vec![worker()], None)), 0, "nobody has killed it");
    w.sends(Signal::to(own(), process(70), 9)).ticks(3).shows(1, vec![worker()], None);
    assert_eq!(unkillable(&w), 1);
}

fn freezes(w: &mut World, frozen: bool) -> &mut World {
    w.kernel(KernelFact::CgroupFrozen { cgroup: own(), frozen })
}

/// SIGTERM to a program that has a handler, which does not run.
fn waits(w: &mut World) -> &mut World {
    w.sends(send(15).handler())
}

fn killed_later(w: &mut World, after: u64) -> &mut World {
    w.later(after).sends(send(9)).exits(1, KILLED)
}

/// What happens to a pod that is deleted → its container's report, and how the finding begins.
#[test]
fn what_the_freezer_keeps_from_ending() {
    let rows: [(Story, &str, &str); 6] = [
        (
            |w| {
                waits(freezes(w, true).later(3000).delete(1)).later(30_000);
                w.sends(send(9).pending(15)).later(1).exits(1, KILLED)
            },
            "stop_signal_blocked api_delete +frozen",
            "Its cgroup was frozen 3.0 s before SIGTERM came, until it exited: a frozen process runs no handler, so a \
             signal waits until it is thawed.",
        ),
        (
            |w| {
                waits(freezes(w.delete(1), true).later(500)).later(5000);
                freezes(w, false).takes(1, 15).later(10).exits(1, CODE_0)
            },
            "graceful api_delete +frozen",
            "Its cgroup was frozen 500 ms before SIGTERM came, and thawed 5.0 s after it:",
        ),
        (
            |w| killed_later(freezes(w.delete(1).term(1).later(1000), true), 29_000),
            "grace_exceeded api_delete +frozen",
            "Its cgroup was frozen 1.0 s after SIGTERM, until it exited:",
        ),
        // Frozen before the agent came: the thaw shows it.
        (
            |w| freezes(waits(w.delete(1)).later(2000), false).later(10).exits(1, CODE_0),
            "completed api_delete +frozen",
            "Its cgroup was frozen when SIGTERM came, since before the agent looked, and thawed 2.0 s",
        ),
        // A thaw may have been lost.
        (
            |w| {
                freezes(w, true).lost(LossKind::DetailRingFull).later(3000).delete(1).term(1);
                w.later(10).exits(1, CODE_0)
            },
            "graceful api_delete -detail_ring_full",
            "",
        ),
        // A runtime that freezes to kill.
        (
            |w| {
                freezes(freezes(w, true).later(60_000), false).later(1000).delete(1).term(1);
                freezes(w.later(30_000), true).later(3).sends(send(9));
                freezes(w, false).later(1).exits(1, KILLED)
            },
            "grace_exceeded api_delete",
            "",
        ),
    ];
    for (happens, expected, finding) in rows {
        let mut w = World::running(1);
        happens(&mut w).settles(1).dies(1, expected);
        let found = detail(&w, FindingKind::Frozen);
        assert!(found.starts_with(finding) && found.is_empty() == finding.is_empty(), "{found}");
    }
}

/// cgroup v1 has no record of it: a stop signal that nobody answers is reason enough to look.
#[test]
fn a_freezer_without_records_is_found_by_looking() {
    let mut w = World::running(1);
    assert_eq!(wanted(waits(w.delete(1)).ticks(2)).len(), 1);
    let asleep = is_in(TaskState::Uninterruptible, Some("__refrigerator"));
    w.shows(1, vec![asleep.clone()], Some(true));
    assert_eq!(unkillable(&w), 0, "nobody has sent SIGKILL");
    w.later(28_000).sends(send(9)).ticks(3).shows(1, vec![asleep], Some(true));
    assert_eq!(unkillable(&w), 1);
    w.ticks(2).exits(1, KILLED).settles(1); // thawed
    let (frozen, hung) = (detail(&w, FindingKind::Frozen), detail(&w, FindingKind::Unkillable));
    assert!(frozen.starts_with("Its cgroup was found frozen 2.0 s after SIGTERM"), "{frozen}");
    assert!(hung.contains("app (pid 15) in state D"), "{hung}");
    assert!(hung.contains("in __refrigerator, seen last after 3.0 s"), "{hung}");
    // One that was answered, discarded, or sent from inside, is none.
    assert_eq!(wanted(World::running(1).delete(1).term(1).ticks(20)), []);
    assert_eq!(wanted(World::running(1).delete(1).discards(1).ticks(20)), []);
    let own = send(15).handler().by(inside(&task(70, 7, "sh")));
    assert_eq!(wanted(World::running(1).sends(own).ticks(20)), []);
}
