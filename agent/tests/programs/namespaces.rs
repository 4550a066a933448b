//! Processes that end with their PID namespace: counted by the programs, told at once.

use crate::{
    actors::{Actor, Role, kill},
    delivered, ends, is_end,
    stage::{self, Pod, Session, children, with_cgroup2},
};
use coroner::sources::kernel::KernelOptions;
use coroner_core::{
    ids::{CgroupId, Tgid},
    input::{ExitStatus, KernelFact, LossKind, NamespaceKilled, SentTo},
};
use libc::{SIGHUP, SIGKILL, SIGTERM};
use std::fs;

/// More than the budget of a container, one record for each.
const MANY: u32 = 300;

/// What was told to have been killed with a container's PID namespace: at most one record.
fn killed(session: &Session, container: CgroupId) -> Option<NamespaceKilled> {
    let mut all = session.about(container).into_iter().filter_map(|fact| match fact {
        KernelFact::NamespaceKilled(killed) => Some(killed),
        _ => None,
    });
    let killed = all.next();
    assert_eq!(all.next(), None);
    killed
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
    with_cgroup2(|hierarchy| {
        let pod = Pod::make(hierarchy);
        let role = Role { init: true, children: MANY, ..Role::default() };
        let init = Actor::start(&pod.container.path, role);
        // Finds out who the main process is.
        let mut session = Session::start(hierarchy);
        let (pid, children) = (init.pid, children(&pod.container.path, init.pid));
        assert_eq!(children.len() as u32, MANY);
        // Two are sent something, one of them twice, and one of what ends nobody.
        kill(children[0], SIGHUP);
        stage::wait_for_end(children[0]);
        kill(children[1], libc::SIGCONT);
        session.settle();
        let before = session.records();
        init.kill(SIGKILL);
        init.wait();
        session.until_empty(pod.container.id);
        session.settle();
        let after = session.records();

        let killed = killed(&session, pod.container.id).expect("a record");
        assert_eq!((killed.cgroup, killed.init), (pod.container.id, Tgid(pid)));
        // The one that ended before is a zombie, for nobody reaps.
        assert_eq!((killed.killed, killed.entered, killed.nested), (MANY - 1, 0, 0));
        assert_eq!((killed.uncertain, killed.sent.as_slice()), (false, &[][..]));
        assert_eq!((killed.without(15), killed.examples.len()), (MANY - 1, 8));
        assert!(killed.examples.iter().all(|e| e.sent == 0 && !e.comm.is_empty()));
        assert_eq!(told_of_others(&session, pid), [] as [&KernelFact; 0]);
        let about = session.about(pod.container.id);
        let at = |wanted: &dyn Fn(&KernelFact) -> bool| about.iter().position(wanted).unwrap();
        let ended = at(&|fact| is_end(fact, pid));
        let counted = at(&|fact| matches!(fact, KernelFact::NamespaceKilled(_)));
        let empty = at(&|fact| matches!(fact, KernelFact::CgroupEmpty { .. }));
        assert!(ended < counted && counted < empty, "{about:#?}");
        session.assert_lossless();
        let of = |all: &std::collections::BTreeMap<&str, u64>| {
            ["signal_generate", "exit", "namespace_killed", "budget_spent"]
                .map(|kind| (kind, all.get(kind).copied().unwrap_or(0)))
        };
        let (before, after) = (of(&before), of(&after));
        let records: Vec<_> =
            before.iter().zip(after).map(|((kind, b), (_, a))| (kind, a - b)).collect();
        eprintln!("{MANY} children: {records:?}");
    });
}

/// A server with workers that are told to stop, and do not in time.
#[test]
fn a_signal_that_an_init_passes_on_to_its_children_is_counted() {
    with_cgroup2(|hierarchy| {
        let pod = Pod::make(hierarchy);
        let role = Role { init: true, children: MANY, pass_on: &[SIGTERM], ..Role::default() };
        let init = Actor::start(&pod.container.path, role);
        let mut session = Session::start(hierarchy);
        let pid = init.pid;
        init.kill(SIGTERM);
        init.wait();
        session.until_empty(pod.container.id);
        let killed = killed(&session, pod.container.id).expect("a record");
        assert_eq!((killed.killed, killed.sent.as_slice()), (MANY, &[sent(SIGTERM, MANY)][..]));
        assert_eq!((killed.without(15), killed.without(3), killed.uncertain), (0, MANY, false));
        assert_eq!(killed.examples.len(), 8);
        assert!(killed.examples.iter().all(|example| example.was_sent(15)));
        assert_eq!(told_of_others(&session, pid), [] as [&KernelFact; 0]);
        assert_eq!(delivered(&session, &pod), [(15, coroner_core::input::Disposition::Handler)]);
        assert_eq!(ends(&session, pid)[0].1, ExitStatus::Code(37));
        session.assert_lossless();
    });
}

#[test]
fn each_process_counts_once_whatever_it_was_sent() {
    with_cgroup2(|hierarchy| {
        let pod = Pod::make(hierarchy);
        let role = Role {
            init: true,
            children: 12,
            threaded: true,
            zombies: 5,
            ignore: &[SIGTERM, SIGHUP],
            ..Role::default()
        };
        let init = Actor::start(&pod.container.path, role);
        // One is below a cgroup that the container made for itself.
        let nested = pod.container.child("nested");
        let all = children(&pod.container.path, init.pid);
        fs::write(nested.path.join("cgroup.procs"), all[0].to_string()).unwrap();
        let mut session = Session::start(hierarchy);
        kill(all[0], SIGTERM);
        kill(all[0], SIGTERM);
        kill(all[1], SIGTERM);
        kill(all[1], SIGHUP);
        kill(all[2], SIGHUP);
        // One whose end is under way is not left for the kernel to kill.
        kill(all[3], SIGKILL);
        stage::wait_for_end(all[3]);
        init.kill(SIGKILL);
        init.wait();
        session.until_empty(pod.container.id);
        let killed = killed(&session, pod.container.id).expect("a record");
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
    with_cgroup2(|hierarchy| {
        let pod = Pod::make(hierarchy);
        let role = Role { init: true, children: 12, ignore: &[SIGHUP], ..Role::default() };
        let init = Actor::start(&pod.container.path, role);
        let options = KernelOptions { notified: 2, ..stage::options(hierarchy) };
        let mut session = Session::run(hierarchy, stage::start(&options));
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
        init.wait();
        session.until_empty(pod.container.id);
        let killed = killed(&session, pod.container.id).expect("a record");
        assert_eq!((killed.killed, killed.uncertain), (2, false));
        assert_eq!(killed.sent, [sent(SIGHUP, 2)]);
        session.assert_lossless();
    });
}

#[test]
fn that_there_was_no_room_to_count_is_told() {
    with_cgroup2(|hierarchy| {
        let pod = Pod::make(hierarchy);
        let role = Role { init: true, children: 5, pass_on: &[SIGTERM], ..Role::default() };
        let init = Actor::start(&pod.container.path, role);
        let options = KernelOptions { notified: 2, ..stage::options(hierarchy) };
        let mut session = Session::run(hierarchy, stage::start(&options));
        init.kill(SIGTERM);
        init.wait();
        session.until_empty(pod.container.id);
        let killed = killed(&session, pod.container.id).expect("a record");
        assert_eq!((killed.killed, killed.uncertain), (5, true));
        assert_eq!(killed.sent, [sent(SIGTERM, 2)]);
        let (_, lost) = session.accounted(3, LossKind::BudgetSpent, |_| 0);
        assert_eq!(lost, 3);
    });
}

#[test]
fn what_entered_and_what_is_nested_are_killed_too() {
    const NESTED: u32 = 50;
    with_cgroup2(|hierarchy| {
        let pod = Pod::make(hierarchy);
        let role = Role { init: true, children: 2, nested: NESTED, ..Role::default() };
        let init = Actor::start(&pod.container.path, role);
        let mut session = Session::start(hierarchy);
        let hook = Actor::enter(&init, &pod.container.path, Role::default());
        let (pid, entered) = (init.pid, hook.pid);
        init.kill(SIGKILL);
        // The init's own end waits for it to be reaped.
        hook.wait();
        init.wait();
        session.until_empty(pod.container.id);
        // The record of its end is in the other ring.
        session.settle();
        let killed = killed(&session, pod.container.id).expect("a record");
        assert_eq!(killed.entered, 1);
        // Its own children, the nested init and what came from outside; and all that is nested, be it by
        // the one or by the other.
        assert!(killed.killed >= 4, "{killed:#?}");
        assert_eq!(killed.killed + killed.nested, 4 + NESTED, "{killed:#?}");
        assert_eq!(told_of_others(&session, pid), [] as [&KernelFact; 0]);
        let hooks = ends(&session, entered);
        assert_eq!(hooks.len(), 1, "the end of what came from outside is told");
        assert_eq!(hooks[0].1, ExitStatus::Signal { signal: 9, core: false });
        session.assert_lossless();
    });
}

#[test]
fn an_init_that_leaves_nobody_behind_is_no_record() {
    with_cgroup2(|hierarchy| {
        let pod = Pod::make(hierarchy);
        let role = Role { init: true, zombies: 3, fork_and_reap: true, ..Role::default() };
        let init = Actor::start(&pod.container.path, role);
        let mut session = Session::start(hierarchy);
        init.kill(SIGKILL);
        init.wait();
        session.until_empty(pod.container.id);
        session.settle();
        assert_eq!(killed(&session, pod.container.id), None);
        session.assert_lossless();
    });
}
