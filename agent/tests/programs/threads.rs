//! Processes of several threads: one life, one end.

use crate::{
    actors::{Actor, Role, Then},
    ends, is_end,
    stage::{self, Pod, Session, with_cgroup2, with_pod},
};
use coroner::sources::kernel::tiny::Executable;
use coroner_core::{
    ids::Tgid,
    input::{ExitStatus, KernelFact},
};

#[test]
fn a_process_ends_with_its_last_thread() {
    with_pod(|mut session, pod| {
        let role = Role { then: Then::LeaderFirst, ..Role::default() };
        let process = Actor::start(&pod.container.path, role);
        let pid = process.pid;
        process.wait();
        session.settle();
        let ends = ends(&session, pid);
        assert_eq!(ends.len(), 1, "{ends:#?}");
        let (task, status) = &ends[0];
        assert_eq!(*status, ExitStatus::Code(7));
        assert_ne!(task.tid, pid, "the leader was long gone");
    });
}

#[test]
fn threads_that_leave_together_are_one_end_or_the_same_one_twice() {
    const PROCESSES: usize = 40;
    with_cgroup2(|hierarchy| {
        // Before that argument the programs count the living, and both of two may find nobody.
        let at_most = if stage::tracepoint("sched_process_exit").len() >= 2 { 1 } else { 2 };
        let mut session = Session::start(hierarchy);
        let pod = Pod::make(hierarchy);
        let mut pids = Vec::new();
        for _ in 0..PROCESSES {
            let role = Role { then: Then::Together, ..Role::default() };
            let process = Actor::start(&pod.container.path, role);
            pids.push(process.pid);
            process.wait();
        }
        session.settle();
        let mut twice = 0;
        for pid in pids {
            let ends = ends(&session, pid);
            assert!((1..=at_most).contains(&ends.len()), "{ends:#?}");
            twice += ends.len() - 1;
            // Told twice, only the leader knows the leader's status.
            let leaders = ends.iter().find(|(task, _)| task.tid == pid);
            let (first, status) = leaders.unwrap_or(&ends[0]);
            assert_eq!(*status, ExitStatus::Code(7), "{ends:#?}");
            assert!(first.started.is_some());
            assert!(ends.iter().all(|(task, _)| task.started == first.started), "{ends:#?}");
        }
        eprintln!("{twice} of {PROCESSES} were told twice");
    });
}

#[test]
fn an_exec_by_a_thread_ends_nobody() {
    with_pod(|mut session, pod| {
        let program = Executable::new(43).unwrap();
        let then = Then::ThreadExec(program.path().as_ptr());
        let process = Actor::start(&pod.container.path, Role { then, ..Role::default() });
        let pid = process.pid;
        process.wait();
        session.until("its end", |fact| is_end(fact, pid));
        session.until_empty(pod.container.id);
        // The leader is killed without any signal being sent, its id goes over to the thread.
        match &session.about(pod.container.id)[1..] {
            [
                KernelFact::Exec { task, .. },
                KernelFact::Exit { task: ended, status, .. },
                KernelFact::CgroupEmpty { .. },
            ] => {
                assert_eq!((task.tgid, ended.tgid), (Tgid(pid), Tgid(pid)));
                assert_eq!(*status, ExitStatus::Code(43));
            }
            other => panic!("{other:#?}"),
        }
    });
}
