//! The freezer of cgroup2.

use crate::{
    actors::{Actor, Role},
    delivered, ends, is_end, sent,
    stage::{Pod, Session, with_pod},
};
use coroner_core::input::{Disposition, ExitStatus, KernelFact, SignalResult};
use libc::{SIGKILL, SIGTERM};
use std::fs;

/// A container whose process waits to be told what to do.
fn with_a_process(role: Role, test: impl FnOnce(&mut Session, &Pod, Actor)) {
    with_pod(|mut session, pod| {
        let process = Actor::start(&pod.container.path, role);
        test(&mut session, &pod, process);
    });
}

/// Freezes or thaws it and waits until that is told.
fn freeze(session: &mut Session, pod: &Pod, frozen: bool) {
    let switch = pod.container.path.join("cgroup.freeze");
    fs::write(switch, if frozen { "1" } else { "0" }).unwrap();
    let told = KernelFact::CgroupFrozen { cgroup: pod.container.id, frozen };
    session.until("freezing or thawing", |fact| *fact == told);
}

#[test]
fn a_handler_runs_when_its_process_is_thawed() {
    let role = Role { handle: &[SIGTERM], ..Role::default() };
    with_a_process(role, |session, pod, process| {
        let pid = process.pid;
        freeze(session, pod, true);
        process.kill(SIGTERM);
        session.settle();
        let term = sent(session, pod, &process, SIGTERM);
        let state = term.state.unwrap();
        assert_eq!(term.result, SignalResult::Delivered);
        assert_eq!((state.disposition, state.blocked), (Disposition::Handler, false));
        assert_eq!(delivered(session, pod), []);

        freeze(session, pod, false);
        session.until("its end", |fact| is_end(fact, pid));
        assert_eq!(delivered(session, pod), [(15, Disposition::Handler)]);
        assert_eq!(ends(session, pid)[0].1, ExitStatus::Code(37));
    });
}

#[test]
fn sigkill_ends_what_is_frozen() {
    with_a_process(Role::default(), |session, pod, process| {
        let pid = process.pid;
        freeze(session, pod, true);
        process.kill(SIGKILL);
        session.until("its end", |fact| is_end(fact, pid));
        let killed = ExitStatus::Signal { signal: 9, core: false };
        assert_eq!(ends(session, pid)[0].1, killed);
        let freeze = fs::read_to_string(pod.container.path.join("cgroup.freeze")).unwrap();
        assert_eq!(freeze.trim(), "1", "nobody thawed it");
    });
}
