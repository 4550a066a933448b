//! Processes that end with their PID namespace: counted by the programs, told at once.

use crate::{
    KILLED,
    actors::{Actor, Role, kill},
    delivered, ends, is_end,
    stage::{self, Pod, Session, children, with_cgroup2},
};
use coroner::sources::kernel::KernelOptions;
use coroner_core::{
    ids::Tgid,
    input::{ExitStatus, KernelFact, LossKind, NamespaceKilled, SentTo},
};
use coroner_ebpf::maps::NOTIFIED_MAX;
use libc::{SIGHUP, SIGKILL, SIGTERM};
use std::fs;

/// More than the budget of a container, one record for each.
const MANY: u32 = 300;

/// A container with an init, which was there before the agent: so that is known who the main process is.
fn with_init(role: Role, notified: u32, test: impl FnOnce(&mut Session, &Pod, Actor)) {
    with_cgroup2(|hierarchy| {
        let pod = Pod::make(hierarchy);
        let init = Actor::start(&pod.container.path, Role { init: true, ..role });
        let options = KernelOptions { notified, ..stage::options(hierarchy) };
        let mut session = Session::run(hierarchy, stage::start(&options));
        test(&mut session, &pod, init);
    });
}

/// Waits for the end of the init, and returns what was reported as killed with its PID namespace: at most one
/// record.
fn killed(session: &mut Session, pod: &Pod, init: Actor) -> Option<NamespaceKilled> {
    init.wait();
    session.until_empty(pod.container.id);
    // The record of its end is in the other ring.
    session.settle();
    let mut all = session.facts(pod.container.id, |fact| match fact {
        KernelFact::NamespaceKilled(killed) => Some(killed),
        _ => None,
    });
    assert!(all.len() < 2, "{all:#?}");
    all.pop()
}

/// What was told of the processes of a container but its init: signals and ends.
fn told_of_others(session: &Session, init: u32) -> Vec<&KernelFact> {
    let of_others = |fact: &&KernelFact| match fact {
        KernelFact::SignalGenerated(sent) => sent.sender.tgid == Tgid(init),
        KernelFact::Exit { task, parent, .. } => {
            task.tgid != Tgid(init) && parent.as_ref().is_some_and(|p| p.in_container == Some(true))
        }
        _ => false,
    };
    session.heard().iter().map(|event| &event.fact).filter(of_others).collect()
}

const fn sent(signal: libc::c_int, processes: u32) -> SentTo {
    SentTo { signal: signal as u8, processes }
}

#[test]
fn hundreds_of_children_that_end_with_their_init_are_one_record() {
    let role = Role { children: MANY, ..Role::default() };
    with_init(role, NOTIFIED_MAX, |session, pod, init| {
        let (pid, children) = (init.pid, children(&pod.container.path, init.pid));
        assert_eq!(children.len() as u32, MANY);
        // Two are sent something, one of what ends it, and one of what ends nobody.
        kill(children[0], SIGHUP);
        stage::wait_for_end(children[0]);
        kill(children[1], libc::SIGCONT);
        init.kill(SIGKILL);

        let killed = killed(session, pod, init).expect("a record");
        assert_eq!((killed.cgroup, killed.init), (pod.container.id, Tgid(pid)));
        // The one that ended before is a zombie, for nobody reaps.
        assert_eq!((killed.killed, killed.entered, killed.nested), (MANY - 1, 0, 0));
        assert_eq!((killed.uncertain, killed.sent.as_slice()), (false, &[][..]));
        assert_eq!((killed.without(15), killed.examples.len()), (MANY - 1, 8));
        assert!(killed.examples.iter().all(|e| e.sent == 0 && !e.comm.is_empty()));
        assert_eq!(told_of_others(session, pid), [] as [&KernelFact; 0]);
        let about = session.about(pod.container.id);
        let at = |wanted: &dyn Fn(&KernelFact) -> bool| about.iter().position(wanted).unwrap();
        let ended = at(&|fact| is_end(fact, pid));
        let counted = at(&|fact| matches!(fact, KernelFact::NamespaceKilled(_)));
        let empty = at(&|fact| matches!(fact, KernelFact::CgroupEmpty { .. }));
        assert!(ended < counted && counted < empty, "{about:#?}");
        session.assert_lossless();
    });
}

/// A server with workers that are told to stop, and do not in time.
#[test]
fn a_signal_that_an_init_passes_on_to_its_children_is_counted() {
    let role = Role { children: MANY, pass_on: &[SIGTERM], ..Role::default() };
    with_init(role, NOTIFIED_MAX, |session, pod, init| {
        let pid = init.pid;
        init.kill(SIGTERM);
        let killed = killed(session, pod, init).expect("a record");
        assert_eq!((killed.killed, killed.sent.as_slice()), (MANY, &[sent(SIGTERM, MANY)][..]));
        assert_eq!((killed.without(15), killed.without(3), killed.uncertain), (0, MANY, false));
        assert_eq!(killed.examples.len(), 8);
        assert!(killed.examples.iter().all(|example| example.was_sent(15)));
        assert_eq!(told_of_others(session, pid), [] as [&KernelFact; 0]);
        assert_eq!(delivered(session, pod), [(15, coroner_core::input::Disposition::Handler)]);
        assert_eq!(ends(session, pid)[0].1, ExitStatus::Code(37));
        session.assert_lossless();
    });
}

#[test]
fn each_process_counts_once_whatever_it_was_sent() {
    let ignore = &[SIGTERM, SIGHUP];
    let role = Role { children: 12, threaded: true, zombies: 5, ignore, ..Role::default() };
    with_init(role, NOTIFIED_MAX, |session, pod, init| {
        // One is below a cgroup that the container made for itself.
        let nested = pod.container.child("nested");
        let all = children(&pod.container.path, init.pid);
        fs::write(nested.path.join("cgroup.procs"), all[0].to_string()).unwrap();
        for (child, signal) in [(0, SIGTERM), (0, SIGTERM), (1, SIGTERM), (1, SIGHUP), (2, SIGHUP)]
        {
            kill(all[child], signal);
        }
        // One whose end is under way is not left for the kernel to kill.
        kill(all[3], SIGKILL);
        stage::wait_for_end(all[3]);
        init.kill(SIGKILL);
        let killed = killed(session, pod, init).expect("a record");
        assert_eq!((killed.killed, killed.entered), (11, 0), "{killed:#?}");
        assert_eq!(killed.sent, [sent(SIGHUP, 2), sent(SIGTERM, 2)]);
        let mut masks: Vec<_> = killed.examples.iter().map(|example| example.sent).collect();
        masks.sort_unstable();
        let (hup, term) = (1, 1 << 14);
        assert_eq!(masks, [0, 0, 0, 0, 0, 0, 0, 0, hup, term, hup | term]);
        session.assert_lossless();
    });
}

/// What it was sent goes with a process, and so does room for it.
#[test]
fn a_process_that_has_ended_takes_its_count_with_it() {
    let role = Role { children: 12, ignore: &[SIGHUP], ..Role::default() };
    with_init(role, 2, |session, pod, init| {
        let all = children(&pod.container.path, init.pid);
        for child in &all[..10] {
            kill(*child, SIGHUP);
            kill(*child, SIGTERM);
            stage::wait_for_end(*child);
            // To a zombie.
            kill(*child, SIGHUP);
        }
        kill(all[10], SIGHUP);
        kill(all[11], SIGHUP);
        init.kill(SIGKILL);
        let killed = killed(session, pod, init).expect("a record");
        assert_eq!((killed.killed, killed.uncertain), (2, false));
        assert_eq!(killed.sent, [sent(SIGHUP, 2)]);
        session.assert_lossless();
    });
}

#[test]
fn that_there_was_no_room_to_count_is_told() {
    let role = Role { children: 5, pass_on: &[SIGTERM], ..Role::default() };
    with_init(role, 2, |session, pod, init| {
        init.kill(SIGTERM);
        let killed = killed(session, pod, init).expect("a record");
        assert_eq!((killed.killed, killed.uncertain), (5, true));
        assert_eq!(killed.sent, [sent(SIGTERM, 2)]);
        let (_, lost) = session.accounted(3, LossKind::BudgetSpent, |_| 0);
        assert_eq!(lost, 3);
    });
}

#[test]
fn what_entered_and_what_is_nested_are_killed_too() {
    const NESTED: u32 = 50;
    let role = Role { children: 2, nested: NESTED, ..Role::default() };
    with_init(role, NOTIFIED_MAX, |session, pod, init| {
        let hook = Actor::enter(&init, &pod.container.path, Role::default());
        let (pid, entered) = (init.pid, hook.pid);
        init.kill(SIGKILL);
        hook.wait(); // the init's own end waits for it to be reaped
        let killed = killed(session, pod, init).expect("a record");
        assert_eq!(killed.entered, 1);
        // Its own children, the nested init and what came from outside; and all that is nested, be it by
        // the one or by the other.
        assert!(killed.killed >= 4, "{killed:#?}");
        assert_eq!(killed.killed + killed.nested, 4 + NESTED, "{killed:#?}");
        assert_eq!(told_of_others(session, pid), [] as [&KernelFact; 0]);
        let hooks = ends(session, entered);
        assert_eq!(hooks.len(), 1, "the end of what came from outside is told");
        assert_eq!(hooks[0].1, KILLED);
        session.assert_lossless();
    });
}

#[test]
fn an_init_that_leaves_nobody_behind_is_no_record() {
    let role = Role { zombies: 3, fork_and_reap: true, ..Role::default() };
    with_init(role, NOTIFIED_MAX, |session, pod, init| {
        init.kill(SIGKILL);
        assert_eq!(killed(session, pod, init), None);
        session.assert_lossless();
    });
}
