//! The ways to send a signal, and to whom it no longer matters.

use crate::{
    actors::{Actor, Role, kill},
    ends, is_end, sent,
    stage::{self, Pod, Session, children, with_cgroup2, with_pod},
};
use coroner_core::{
    ids::Tgid,
    input::{KernelFact, SignalResult},
};
use libc::{SIGHUP, SIGINT, SIGKILL, SIGTERM};

/// `SI_QUEUE` and `SI_TKILL` of `include/uapi/asm-generic/siginfo.h`.
const SI_QUEUE: i32 = -1;
const SI_TKILL: i32 = -6;

#[test]
fn the_way_a_signal_was_sent_is_told() {
    with_pod(|mut session, pod| {
        let role = Role { swallow: &[SIGTERM, SIGHUP, SIGINT], ..Role::default() };
        let process = Actor::start(&pod.container.path, role);
        process.kill_by_pidfd(SIGTERM);
        process.queue(SIGHUP);
        process.kill_thread(SIGINT);
        session.settle();
        for (signal, code, group) in
            [(SIGTERM, 0, true), (SIGHUP, SI_QUEUE, true), (SIGINT, SI_TKILL, false)]
        {
            let told = sent(&session, &pod, &process, signal);
            assert_eq!((told.code, told.group), (code, group), "signal {signal}");
            assert_eq!(told.sender.tgid, Tgid(std::process::id()));
        }
    });
}

/// As the runtime kills an exec probe that takes too long. From then on each child's end would come out
/// of what the container may have reported. Where the main process is PID 1, no child's end does.
#[test]
fn the_ends_of_children_are_told_once_the_main_process_is_to_end() {
    with_cgroup2(|hierarchy| {
        for (init, of_dying) in [(false, 1), (true, 0)] {
            let pod = Pod::make(hierarchy);
            let role = Role { init, children: 3, swallow: &[SIGTERM], ..Role::default() };
            let main = Actor::start(&pod.container.path, role);
            // Finds out who the main process is.
            let mut session = Session::start(hierarchy);
            let children = children(&pod.container.path, main.pid);
            let end = |child: u32, signal| {
                kill(child, signal);
                stage::wait_for_end(child); // after it, init's end would have it reported
            };
            end(children[0], SIGKILL);
            end(children[1], SIGHUP);
            session.settle();
            let about = session.about(pod.container.id);
            let to_child = |fact: &&KernelFact| matches!(fact, KernelFact::SignalGenerated(sent) if children.contains(&sent.target.tgid.0));
            assert_eq!(about.iter().filter(to_child).count(), 2, "{about:#?}");
            let told = |session: &Session| {
                children.iter().filter(|child| !ends(session, **child).is_empty()).count()
            };
            assert_eq!(told(&session), 0, "{about:#?}");

            main.kill(SIGTERM);
            end(children[2], SIGKILL);
            let pid = main.pid;
            main.kill(SIGKILL);
            session.until("its end", |fact| is_end(fact, pid));
            main.wait();
            session.settle();
            assert_eq!(told(&session), of_dying, "of the one that was left");
        }
    });
}

#[test]
fn a_signal_to_the_dying_says_so() {
    with_pod(|mut session, pod| {
        let role = Role { handle: &[SIGTERM], ..Role::default() };
        let process = Actor::start(&pod.container.path, role);
        process.kill(SIGKILL);
        process.wait_unreaped();
        process.kill(SIGTERM);
        session.settle();
        let late = sent(&session, &pod, &process, SIGTERM);
        assert!(late.state.unwrap().group_exit, "{late:?}");
        // Neither is evidence of anything: what tells is that it was dying.
        let newer = stage::release() >= (6, 1);
        assert_eq!(late.result == SignalResult::Ignored, newer, "{late:?}");
    });
}
