//! The kernel programs on a real kernel: real processes in real cgroups, exact records. Needs root
//! and brings its own actors, so that it runs unchanged in an empty machine. Run it with
//! `--test-threads=1`.

mod actors;
mod agent;
mod apparmor;
mod attacks;
mod connections;
mod filter;
mod namespaces;
mod nested;
mod oom;
mod preemption;
#[allow(dead_code, reason = "shared with the tests of the runtime's adapter")]
#[path = "../cri/runtime.rs"]
mod runtime;
mod senders;
#[allow(dead_code, reason = "shared with the tests of the adapters")]
#[path = "../server/mod.rs"]
mod server;
mod stage;
mod stops;
mod threads;
mod waking;

use actors::{Actor, Role, Then};
use coroner::sources::kernel::{KernelCommand, KernelOptions, tiny::Executable};
use coroner_core::{
    ids::{CgroupId, Tgid},
    input::{Disposition, ExitStatus, KernelFact, LossKind, SignalGenerated, SignalResult, Task},
};
use coroner_ebpf::{NESTED_SHARE, WINDOW_SHIFT};
use libc::{SIGHUP, SIGKILL, SIGTERM, SIGUSR1};
use stage::{Pod, Session, TestCgroup, with_cgroup2, with_pod};
use std::{
    ffi::{CString, OsStr},
    fs,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::symlink,
    },
    time::Duration,
};

/// The signals to processes of a cgroup.
fn signals(session: &Session, cgroup: CgroupId) -> Vec<SignalGenerated> {
    session.facts(cgroup, |fact| match fact {
        KernelFact::SignalGenerated(sent) => Some(sent),
        _ => None,
    })
}

/// The one signal of this number sent to a process.
fn sent(session: &Session, pod: &Pod, actor: &Actor, signal: i32) -> SignalGenerated {
    let mut all = signals(session, pod.container.id);
    all.retain(|sent| i32::from(sent.signal) == signal && sent.target.tgid == Tgid(actor.pid));
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// How processes with this pid ended, as told.
fn ends(session: &Session, pid: u32) -> Vec<(Task, ExitStatus)> {
    session
        .heard()
        .iter()
        .filter_map(|event| match &event.fact {
            KernelFact::Exit { task, status, .. } if task.tgid == Tgid(pid) => {
                Some((task.clone(), *status))
            }
            _ => None,
        })
        .collect()
}

fn is_end(fact: &KernelFact, pid: u32) -> bool {
    matches!(fact, KernelFact::Exit { task, .. } if task.tgid == Tgid(pid))
}

fn delivered(session: &Session, pod: &Pod) -> Vec<(u8, Disposition)> {
    session.facts(pod.container.id, |fact| match fact {
        KernelFact::SignalDelivered { signal, disposition, .. } => Some((signal, disposition)),
        _ => None,
    })
}

const KILLED: ExitStatus = ExitStatus::Signal { signal: 9, core: false };

#[test]
fn the_shortest_life_is_told_whole_and_in_order() {
    const LIVES: u8 = 10;
    with_pod(|mut session, pod| {
        let mut lives = Vec::new();
        for code in 1..=LIVES {
            // Nobody waits for anything between these: a record that came too late would be missed.
            let container = pod.pod.child(&format!("{code:064x}"));
            let process = Actor::born_in(&container.path, code);
            let (id, pid) = (container.id, process.pid);
            process.wait();
            container.remove();
            lives.push((id, pid, code));
        }
        session.settle();
        for (id, pid, code) in lives {
            let told = session.about(id);
            let [created, KernelFact::Exit { task, status, .. }, empty @ .., removed] = &told[..]
            else {
                panic!("{told:#?}");
            };
            let (parent, name) = (Some(pod.pod.id), format!("{code:064x}"));
            let born = KernelFact::CgroupCreated { cgroup: id, parent, name, scanned: false };
            assert_eq!((created, removed), (&born, &KernelFact::CgroupRemoved { cgroup: id }));
            assert_eq!((task.tgid, *status), (Tgid(pid), ExitStatus::Code(code)));
            // Linux 7 lets a cgroup go whose last task is dead and not yet switched away from; it is
            // empty after that, when it is no longer watched. The core takes its going for the end.
            let late = empty.is_empty() && stage::release() >= (7, 0);
            assert!(late || empty == [KernelFact::CgroupEmpty { cgroup: id }], "{told:#?}");
        }
        session.assert_lossless();
    });
}

#[test]
fn what_a_target_does_with_a_signal_is_its_disposition() {
    use Disposition::{Default, Handler, Ignore};
    use SignalResult::{Delivered, Ignored};
    let plain = Role::default();
    let handles = Role { init: true, handle: &[SIGTERM], ..plain };
    let ignores = Role { ignore: &[SIGTERM], ..plain };
    let killed = ExitStatus::Signal { signal: 15, core: false };
    for (role, result, disposition, end) in [
        (handles, Delivered, Handler, Some(ExitStatus::Code(37))),
        (ignores, Ignored, Ignore, None),
        (plain, Delivered, Default, Some(killed)),
        (Role { init: true, ..plain }, Ignored, Default, None),
    ] {
        with_pod(|mut session, pod| {
            let process = Actor::start(&pod.container.path, role);
            let pid = process.pid;
            process.kill(SIGTERM);
            session.settle();
            if end.is_none() {
                process.kill(SIGKILL);
            }
            session.until("its end", |fact| is_end(fact, pid));
            let term = sent(&session, &pod, &process, SIGTERM);
            let state = term.state.unwrap();
            assert_eq!((term.result, state.disposition), (result, disposition));
            assert_eq!((state.unkillable, state.blocked), (role.init, false));
            assert_eq!(state.group_exit, end == Some(killed));
            assert_eq!((term.code, term.group), (0, true));
            assert_eq!(term.target.ns_pid == Some(1), role.init);
            assert_eq!(term.sender.tgid, Tgid(std::process::id()));
            assert_eq!(term.sender.in_container, Some(false));
            if end.is_none() {
                let kill = sent(&session, &pod, &process, SIGKILL);
                assert_eq!(kill.result, Delivered);
                assert!(kill.state.unwrap().group_exit, "this very signal ends it");
            }
            let taken = delivered(&session, &pod);
            assert_eq!(taken.first(), (disposition == Handler).then_some(&(15, Handler)));
            process.wait();
            session.until_empty(pod.container.id);
            let (task, status) = ends(&session, pid).remove(0);
            assert_eq!(status, end.unwrap_or(KILLED));
            assert!(task.started.is_some() && task.started == term.target.started);
            let empty = KernelFact::CgroupEmpty { cgroup: pod.container.id };
            assert_eq!(session.about(pod.container.id).last(), Some(&empty));
        });
    }
}

#[test]
fn a_blocked_signal_is_pending_at_sigkill() {
    with_pod(|mut session, pod| {
        let role = Role { init: true, block: &[SIGTERM], ..Role::default() };
        let init = Actor::start(&pod.container.path, role);
        let pid = init.pid;
        init.kill(SIGTERM);
        init.kill(SIGKILL);
        session.until("its end", |fact| is_end(fact, pid));
        let term = sent(&session, &pod, &init, SIGTERM);
        assert_eq!(term.result, SignalResult::Delivered);
        assert!(term.state.unwrap().blocked);
        let kill = sent(&session, &pod, &init, SIGKILL);
        assert_eq!(kill.state.unwrap().pending, 1 << (SIGTERM - 1));
        assert_eq!(delivered(&session, &pod), []);
    });
}

#[test]
fn the_end_of_an_init_kills_its_namespace_visibly() {
    with_pod(|mut session, pod| {
        let role = Role { init: true, children: 3, ..Role::default() };
        let init = Actor::start(&pod.container.path, role);
        let pid = init.pid;
        init.kill(SIGKILL);
        init.wait();
        session.settle();
        let mut killed = signals(&session, pod.container.id);
        killed.retain(|sent| sent.code == 0x80);
        assert_eq!(killed.len(), 3, "{killed:#?}");
        for kill in killed {
            assert_eq!((kill.signal, kill.sender.tgid), (9, Tgid(pid)));
            assert_eq!(kill.sender.cgroup, Some(pod.container.id));
            assert_eq!(kill.sender.in_container, Some(true));
            let ends = ends(&session, kill.target.tgid.0);
            assert!(!ends.is_empty(), "it was dying: the ends of its children are told");
        }
    });
}

/// The children's exits are reported when the main process is about to end, or has ended.
#[test]
fn what_runc_executes_before_the_containers_program_is_not_its_main_process() {
    with_cgroup2(|hierarchy| {
        for (name, is_main) in [("runc:[0:PARENT]", false), ("runc", true)] {
            let mut session = Session::start(hierarchy);
            let pod = Pod::make(hierarchy);
            let folder = tempfile::tempdir().unwrap();
            // The kernel names a process after the last part of the path.
            let (program, path) = (Executable::new(0).unwrap(), folder.path().join(name));
            symlink(OsStr::from_bytes(program.path().to_bytes()), &path).unwrap();
            let path = CString::new(path.into_os_string().into_vec()).unwrap();
            let role = Role { then: Then::Exec(path.as_ptr()), ..Role::default() };
            let first = Actor::start(&pod.container.path, role);
            let pid = first.pid;
            first.wait();
            let role = Role { fork_and_reap: true, ..Role::default() };
            let _second = Actor::start(&pod.container.path, role);
            session.settle();
            let ends = session.about(pod.container.id).into_iter();
            let told = ends.filter(|fact| matches!(fact, KernelFact::Exit { .. })).count();
            assert!(session.heard().iter().any(|event| is_end(&event.fact, pid)));
            assert_eq!(told, 1 + usize::from(is_main), "{name}");
        }
    });
}

#[test]
fn injected_processes_are_told_and_own_children_are_not() {
    with_pod(|mut session, pod| {
        let role = Role { init: true, fork_and_reap: true, ..Role::default() };
        let _init = Actor::start(&pod.container.path, role);
        let injected = Actor::exec(&pod.container.path, 42);
        let pid = injected.pid;
        injected.wait();
        session.settle();

        let ended = session.facts(pod.container.id, |fact| match fact {
            KernelFact::Exit { task, status, parent, .. } => {
                Some((task.tgid.0, status, parent.unwrap().in_container))
            }
            _ => None,
        });
        assert_eq!(ended, [(pid, ExitStatus::Code(42), Some(false))]);
        let execs = session.facts(pod.container.id, |fact| match fact {
            KernelFact::Exec { task, parent, .. } => Some((task.tgid.0, parent)),
            _ => None,
        });
        assert_eq!(execs.len(), 1, "{execs:#?}");
        assert_eq!((execs[0].0, execs[0].1.tgid), (pid, Tgid(std::process::id())));
        assert_eq!(execs[0].1.in_container, Some(false));
    });
}

#[test]
fn nested_cgroups_belong_to_their_container_and_a_monitor_is_none() {
    with_pod(|mut session, pod| {
        // Of CRI-O with systemd's driver and crun: it bears the container's id.
        let monitor = pod.pod.child(&format!("crio-conmon-{}.scope", stage::ID));
        let conmon = Actor::start(&monitor.path, Role::default());
        conmon.kill(SIGKILL);
        let conmon_pid = conmon.pid;
        conmon.wait();
        let nested = pod.container.child("nested");
        let process = Actor::start(&nested.path, Role::default());
        let pid = process.pid;
        process.kill(SIGTERM);
        process.wait();
        session.until_empty(nested.id);
        session.until_empty(pod.container.id);
        let about = session.about(nested.id);
        let (parent, name) = (Some(pod.container.id), "nested".to_owned());
        let born = KernelFact::CgroupCreated { cgroup: nested.id, parent, name, scanned: false };
        assert_eq!(about[0], born);
        assert!(about.iter().any(|fact| is_end(fact, pid)), "{about:#?}");
        let place = |id| {
            let empty = KernelFact::CgroupEmpty { cgroup: id };
            session.heard().iter().position(|event| event.fact == empty)
        };
        assert!(place(nested.id) < place(pod.container.id), "the child first");
        assert!(session.about(monitor.id).is_empty() && ends(&session, conmon_pid).is_empty());
    });
}

/// However many cgroups a container makes below its own, it has its share of the map, and others have theirs.
#[test]
fn a_container_that_delegates_cgroups_takes_its_share_of_the_map() {
    const MORE: usize = 20;
    with_cgroup2(|hierarchy| {
        let mut session = Session::start(hierarchy);
        let pod = Pod::make(hierarchy);
        let count = NESTED_SHARE as usize + MORE;
        let mut nested: Vec<TestCgroup> =
            (0..count).map(|n| pod.container.child(&format!("nested-{n}"))).collect();
        session.settle();
        let is_followed = |session: &Session, cgroup: &TestCgroup| {
            let about = session.about(cgroup.id);
            about.iter().any(|fact| matches!(fact, KernelFact::CgroupCreated { .. }))
        };
        let followed = nested.iter().filter(|cgroup| is_followed(&session, cgroup)).count();
        assert_eq!(followed, NESTED_SHARE as usize);
        // Those that go make room, of which their container has no more than before.
        nested.drain(..MORE / 2).for_each(TestCgroup::remove);
        nested.extend((0..MORE).map(|n| pod.container.child(&format!("later-{n}"))));
        session.settle();
        let later = &nested[nested.len() - MORE..];
        let followed = later.iter().filter(|cgroup| is_followed(&session, cgroup)).count();
        assert_eq!(followed, MORE / 2);
        let other = Pod::make(hierarchy);
        session.settle();
        assert!(is_followed(&session, &other.container));
    });
}

#[test]
fn a_full_ring_is_counted() {
    const SENT: u64 = 200;
    with_cgroup2(|hierarchy| {
        let page = u32::try_from(rustix::param::page_size()).unwrap();
        let options = KernelOptions { ring_bytes: page, ..stage::options(hierarchy) };
        let kernel = stage::start(&options);
        let pod = Pod::make(hierarchy);
        let role = Role { block: &[SIGTERM], ..Role::default() };
        let process = Actor::start(&pod.container.path, role);
        // Nobody reads yet.
        for _ in 0..SENT {
            process.kill(SIGTERM);
        }
        let mut session = Session::run(hierarchy, kernel);
        // There is room again.
        session.until("the first signals", |fact| matches!(fact, KernelFact::SignalGenerated(_)));
        session.settle();
        let (told, lost) = session.accounted(SENT, LossKind::DecidingRingFull, |session| {
            let is_sent = |fact: &&KernelFact| matches!(fact, KernelFact::SignalGenerated(sent) if sent.signal == 15);
            session.about(pod.container.id).iter().filter(is_sent).count() as u64
        });
        assert!(told > 0 && lost > 0, "told {told}, lost {lost}");
        // Others on this machine may lose records too, but none of these may vanish uncounted.
        assert!(told + lost >= SENT, "told {told}, lost {lost}");
    });
}

#[test]
fn a_noisy_container_runs_out_of_budget_and_no_other_suffers() {
    const RAISED: u32 = 5000;
    let is_spent = |fact: &KernelFact| matches!(fact, KernelFact::BudgetSpent { .. });
    with_cgroup2(|hierarchy| {
        let mut session = Session::start(hierarchy);
        let (noisy, quiet) = (Pod::make(hierarchy), Pod::make(hierarchy));
        let role = Role { ignore: &[SIGHUP], raise: RAISED, ..Role::default() };
        let _process = Actor::start(&noisy.container.path, role);
        let role = Role { handle: &[SIGTERM], ..Role::default() };
        let other = Actor::start(&quiet.container.path, role);
        other.kill(SIGTERM);
        other.wait();
        session.settle();
        let all = u64::from(RAISED);
        let (told, lost) = session.accounted(all, LossKind::BudgetSpent, |session| {
            let about = session.about(noisy.container.id);
            about.iter().filter(|fact| !is_spent(fact)).count() as u64 - 1 // its mkdir
        });
        assert!(lost > 0, "told {told}");
        assert_eq!(told + lost, all);
        let mut whose = session.about(noisy.container.id);
        whose.retain(is_spent);
        // Once in each window of about a second whose budget of 256 is spent: 5,000 signals spend 19,
        // however long they take.
        assert!((1..20).contains(&whose.len()), "{whose:?}");
        for event in session.heard() {
            let KernelFact::BudgetSpent { cgroup, until } = event.fact else { continue };
            let window = Duration::from_nanos(1 << WINDOW_SHIFT);
            assert!(event.time < until && until <= event.time + window, "{event:?}");
            assert_ne!(cgroup, quiet.container.id);
        }
        assert_eq!(delivered(&session, &quiet), [(15, Disposition::Handler)]);
    });
}

#[test]
fn the_scan_finds_what_was_there_before() {
    with_cgroup2(|hierarchy| {
        let pod = Pod::make(hierarchy);
        let init = Actor::start(&pod.container.path, Role { init: true, ..Role::default() });
        let mut session = Session::start(hierarchy);
        session.settle();
        let path = format!("/{}", pod.container.path.strip_prefix(hierarchy).unwrap().display());
        let about = session.about(pod.container.id);
        let (cgroup, parent) = (pod.container.id, Some(pod.pod.id));
        assert_eq!(
            about[0],
            KernelFact::CgroupCreated { cgroup, parent, name: path, scanned: true }
        );
        match &about[1..] {
            [KernelFact::Running { task, .. }] => {
                assert_eq!((task.tgid, task.ns_pid), (Tgid(init.pid), Some(1)));
                assert!(!task.comm.is_empty());
            }
            other => panic!("{other:#?}"),
        }
        let pid = init.pid;
        init.kill(SIGKILL);
        session.until("its end", |fact| is_end(fact, pid));
    });
}

#[test]
fn a_stop_signal_is_told_once_it_is_learned_and_a_container_elsewhere_once_it_is_watched() {
    with_pod(|mut session, pod| {
        let role = Role { swallow: &[SIGUSR1], ..Role::default() };
        let process = Actor::start(&pod.container.path, role);
        let elsewhere = TestCgroup::top(&stage::v2(), "elsewhere");
        let init = Actor::start(&elsewhere.path, Role { init: true, ..Role::default() });
        let pid = init.pid;
        process.kill(SIGUSR1);
        session.settle();
        let is_usr1 = |fact: &KernelFact| matches!(fact, KernelFact::SignalGenerated(sent) if i32::from(sent.signal) == SIGUSR1);
        assert!(!session.about(pod.container.id).iter().any(is_usr1));
        let (cgroup, signal) = (pod.container.id, SIGUSR1 as u8);
        session.command(KernelCommand::AllowSignal { cgroup, signal });
        let path = "/no-such-cgroup".to_owned();
        session.command(KernelCommand::Watch { cgroup: elsewhere.id, path });
        session.settle();
        assert_eq!(session.about(elsewhere.id), []);
        // Commands are obeyed one after the other: when this one is, the signal is allowed.
        session.watch(&elsewhere);
        session.until(
            "its process",
            |fact| matches!(fact, KernelFact::Running { task, .. } if task.tgid == Tgid(pid)),
        );
        init.kill(SIGKILL);
        session.until("its end", |fact| is_end(fact, pid));
        init.wait();
        session.until_empty(elsewhere.id);
        process.kill(SIGUSR1);
        session.until("its stop signal", is_usr1);
        let taken = |fact: &KernelFact| {
            matches!(fact, KernelFact::SignalDelivered { signal, .. }
                if i32::from(*signal) == SIGUSR1)
        };
        session.until("its stop signal's handler", taken);
    });
}

/// With the freezer of cgroup2.
#[test]
fn a_handler_runs_when_its_process_is_thawed() {
    with_pod(|mut session, pod| {
        let role = Role { handle: &[SIGTERM], ..Role::default() };
        let process = Actor::start(&pod.container.path, role);
        let pid = process.pid;
        let freeze = |session: &mut Session, frozen| {
            let switch = if frozen { "1" } else { "0" };
            fs::write(pod.container.path.join("cgroup.freeze"), switch).unwrap();
            let told = KernelFact::CgroupFrozen { cgroup: pod.container.id, frozen };
            session.until("freezing or thawing", |fact| *fact == told);
        };
        freeze(&mut session, true);
        process.kill(SIGTERM);
        session.settle();
        assert_eq!(sent(&session, &pod, &process, SIGTERM).result, SignalResult::Delivered);
        assert_eq!(delivered(&session, &pod), []);
        freeze(&mut session, false);
        session.until("its end", |fact| is_end(fact, pid));
        assert_eq!(delivered(&session, &pod), [(15, Disposition::Handler)]);
        assert_eq!(ends(&session, pid)[0].1, ExitStatus::Code(37));
    });
}
