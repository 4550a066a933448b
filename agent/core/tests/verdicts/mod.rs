//! Every verdict of the design's table, in its order of precedence: evidence → verdict.

mod pre_stop;
mod script;
mod table;

use self::script::{Script, request};
use coroner_core::{
    testkit::*,
    verdict::{VerdictInputs, assess},
};

/// A handler that leaves in time, as the base of several rows.
fn handled() -> Script {
    Script::new().init().term(ms(1000), |s| s.handler()).handler_runs(ms(1001))
}

#[track_caller]
fn verdict(script: Script, expected: Verdict, says: &str) {
    assessment(script, None, expected, says);
}

#[track_caller]
fn assessment(script: Script, pre_stop: Option<&Hook>, expected: Verdict, says: &str) {
    let assessment = assess(VerdictInputs { pre_stop, ..script.inputs() });
    assert_eq!(assessment.verdict, expected, "{}", assessment.proof.message);
    assert!(assessment.proof.message.contains(says), "{}", assessment.proof.message);
}

#[test]
fn oom_killed() {
    let killed = || Script::new().init().kernel_kill(ms(500)).oom(ms(501)).exit(ms(502), KILLED);
    verdict(killed(), Verdict::OomKilled, "OOM killer chose PID 1");
    // It comes before every other rule.
    let stopping = handled().kernel_kill(ms(1500)).oom(ms(1501)).exit(ms(1502), KILLED);
    verdict(stopping, Verdict::OomKilled, "OOM killer");
    // The kernel may name a thread of it.
    let thread = Script::new().init().thread_kill(ms(500), 4711).oom_of(ms(501), 4711);
    verdict(thread.exit(ms(502), KILLED), Verdict::OomKilled, "OOM killer chose PID 1");
    // The victim was a child: the container's own end is another story.
    let child = Script::new().init().oom_of(ms(500), 77).exit(ms(600), ExitStatus::Code(1));
    verdict(child, Verdict::Failed, "code 1");
    let child = Script::new().init().oom_of(ms(500), 77).kill(ms(600), |s| s).exit(ms(601), KILLED);
    verdict(child, Verdict::ForceKilled, "no SIGTERM before it");
}

#[test]
fn crashed() {
    let segv = ExitStatus::Signal { signal: 11, core: true };
    let own = Script::new().init().exit(ms(500), segv);
    verdict(own, Verdict::Crashed, "SIGSEGV, with a core dump");
    let while_stopping = handled().exit(ms(1200), ExitStatus::Signal { signal: 6, core: false });
    verdict(while_stopping, Verdict::Crashed, "SIGABRT");
    // Sent from outside it is not of its own making.
    let sent = Script::new().init().send(ms(400), 11, |s| s.fatal()).exit(ms(500), segv);
    verdict(sent, Verdict::TerminatedByDefault, "SIGSEGV by runc");
}

#[test]
fn force_killed() {
    let killed = Script::new().init().kill(ms(1000), |s| s).exit(ms(1001), KILLED);
    verdict(
        killed,
        Verdict::ForceKilled,
        "runc (pid 1) sent SIGKILL to PID 1 (app), with no SIGTERM before it",
    );
    // A stop signal from inside the container is none.
    let own =
        Script::new().init().term_from_inside(ms(900)).kill(ms(1000), |s| s).exit(ms(1001), KILLED);
    verdict(own, Verdict::ForceKilled, "no SIGTERM before it");
    // Nor is an administrator's that it took minutes before.
    let long_ago = Script::new().init().send(ms(900), 15, |s| s.handler().by(outside("bash")));
    let long_ago =
        long_ago.handler_runs(ms(901)).kill(ms(300_000), |s| s).exit(ms(300_001), KILLED);
    verdict(long_ago, Verdict::ForceKilled, "no SIGTERM before it");
}

#[test]
fn prestop_exhausted_grace() {
    let hook = Hook::Exec("hook".into());
    let script = |stop| {
        Script::new()
            .init()
            .hook(ms(1000), None)
            .term(ms(stop), |s| s.handler())
            .handler_runs(ms(stop + 1))
            .exit(ms(stop + 500), CODE_0)
    };
    let exhausted = Verdict::PrestopExhaustedGrace;
    assessment(script(11_000), Some(&hook), exhausted, "was still running after 10.0 s of a grace");
    // The kubelet's clock began 1.5 s before the hook did: a node under load.
    assessment(script(9_500), Some(&hook), exhausted, "was still running after 8.5 s of a grace");
    // Somebody else sent the signal meanwhile.
    assessment(script(8_900), Some(&hook), Verdict::Graceful, "handled SIGTERM");
    // Without a hook in the spec a process from outside is a probe.
    assessment(script(11_000), None, Verdict::Graceful, "handled SIGTERM");
    // It comes before `stop_signal_ignored`: the hook is why.
    let ignored = Script::new()
        .init()
        .hook(ms(1000), Some(ms(10_500)))
        .term(ms(10_600), |s| s.ignored())
        .kill(ms(12_600), |s| s)
        .exit(ms(12_601), KILLED);
    assessment(ignored, Some(&hook), exhausted, "had ended");
}

#[test]
fn stop_signal_ignored() {
    let by_kernel = Script::new()
        .init()
        .term(ms(1000), |s| s.ignored())
        .kill(ms(11_000), |s| s)
        .exit(ms(11_001), KILLED);
    verdict(
        by_kernel,
        Verdict::StopSignalIgnored,
        "PID 1 (app) had no handler for it. runc sent SIGKILL 10.0 s later.",
    );
    let sig_ign = Script::new()
        .init()
        .term(ms(1000), |s| s.sig_ign())
        .kill(ms(11_000), |s| s)
        .exit(ms(11_001), KILLED);
    verdict(sig_ign, Verdict::StopSignalIgnored, "SIG_IGN");
    // Thrown away because it was dying already (6.1 and later) proves nothing.
    let dying = Script::new()
        .init()
        .kill(ms(900), |s| s)
        .term(ms(1000), |s| s.dying())
        .exit(ms(1001), KILLED);
    verdict(dying, Verdict::ForceKilled, "with no SIGTERM before it");
    // The first came before its handler was there, the second did not.
    let again = Script::new()
        .init()
        .term(ms(1000), |s| s.ignored())
        .term(ms(4000), |s| s.handler())
        .handler_runs(ms(4001))
        .kill(ms(11_000), |s| s.handler())
        .exit(ms(11_001), KILLED);
    verdict(again, Verdict::GraceExceeded, "handled SIGTERM but was still running");
    // It left by itself before SIGKILL: ignoring was not what it died of.
    let left = Script::new().init().term(ms(1000), |s| s.ignored()).exit(ms(2000), CODE_0);
    verdict(left, Verdict::Completed, "that the kernel had discarded");
}

#[test]
fn stop_signal_blocked() {
    let pending = Script::new()
        .init()
        .term(ms(1000), |s| s.blocked())
        .kill(ms(11_000), |s| s.pending(15))
        .exit(ms(11_001), KILLED);
    verdict(pending, Verdict::StopSignalBlocked, "still pending 10.0 s later");
}

#[test]
fn grace_exceeded() {
    let handler = handled().kill(ms(11_000), |s| s).exit(ms(11_001), KILLED);
    verdict(handler, Verdict::GraceExceeded, "handled SIGTERM but was still running 10.0 s later");
    // Blocked and gone from the pending set: sigwait or signalfd took it.
    let consumed = Script::new()
        .init()
        .term(ms(1000), |s| s.blocked())
        .kill(ms(11_000), |s| s)
        .exit(ms(11_001), KILLED);
    verdict(consumed, Verdict::GraceExceeded, "no longer pending");
    // Another thread than the leading one did not block it, and discarded it.
    let discarded = Script::new()
        .init()
        .term(ms(1000), |s| s.blocked())
        .dequeued(ms(1001), 15)
        .kill(ms(11_000), |s| s)
        .exit(ms(11_001), KILLED);
    verdict(discarded, Verdict::StopSignalIgnored, "had no handler for it");
}

#[test]
fn terminated_by_default() {
    let term = ExitStatus::Signal { signal: 15, core: false };
    let default = Script::new().main().term(ms(1000), |s| s.fatal()).exit(ms(1001), term);
    verdict(default, Verdict::TerminatedByDefault, "no handler for SIGTERM");
    let mut quit = Script::new().main();
    quit.stop_signal = 3;
    let quit = quit
        .send(ms(1000), 3, |s| s.fatal())
        .exit(ms(1001), ExitStatus::Signal { signal: 3, core: true });
    verdict(quit, Verdict::TerminatedByDefault, "no handler for SIGQUIT");
}

#[test]
fn graceful() {
    verdict(handled().exit(ms(3000), CODE_0), Verdict::Graceful, "exited 2.0 s later");
    let with_code = handled().exit(ms(3000), ExitStatus::Code(2));
    verdict(with_code, Verdict::Graceful, "code 2");
    let sigwait = Script::new().init().term(ms(1000), |s| s.blocked()).exit(ms(2000), CODE_0);
    verdict(sigwait, Verdict::Graceful, "inferred");
    // Inside sigwait it is not in the blocked set, and yet neither fatal nor thrown away.
    let waiting = Script::new().init().term(ms(1000), |s| s).exit(ms(2000), CODE_0);
    verdict(waiting, Verdict::Graceful, "inferred");
    // Go's default: handle, then raise it again; as PID 1 the kernel throws that away.
    let go = handled().term_from_inside(ms(1002)).exit(ms(1003), ExitStatus::Code(2));
    verdict(go, Verdict::Graceful, "code 2");
    let raised = handled()
        .term_from_inside(ms(1002))
        .exit(ms(1003), ExitStatus::Signal { signal: 15, core: false });
    verdict(raised, Verdict::Graceful, "ended itself with it");
}

#[test]
fn completed_and_failed() {
    let left = |code| Script::new().init().exit(ms(500), ExitStatus::Code(code));
    verdict(left(0), Verdict::Completed, "no signal had been sent");
    verdict(left(7), Verdict::Failed, "code 7");
    let other = Script::new().init().exit(ms(500), ExitStatus::Signal { signal: 15, core: false });
    verdict(other, Verdict::Failed, "no process outside the container sent it");
    // It had taken the same signal long before, and went on.
    let takes = |s: Script, at| s.send(ms(at), 2, |s| s.handler()).taken(ms(at + 1), 2);
    let twice = takes(takes(Script::new().init(), 1_000), 100_000).exit(ms(100_500), CODE_0);
    verdict(twice, Verdict::Completed, "which is not its stop signal");
    // A signal that ends nothing (SIGWINCH), by another of its processes.
    let window = Script::new().init().send(ms(400), 28, |s| s.by(inside(&task(77, 8, "child"))));
    verdict(window.exit(ms(500), CODE_0), Verdict::Completed, "no signal had been sent");
}

#[test]
fn unknown() {
    verdict(Script::new().init(), Verdict::Unknown, "record of its exit is missing");
    let unseen = Script::new().init().exit(ms(500), KILLED);
    verdict(unseen, Verdict::Unknown, "no record shows who sent it");
    // No state was recorded, and no delivery: it cannot be told.
    let bare = Script::new()
        .init()
        .term(ms(1000), |s| s.unrecorded())
        .kill(ms(11_000), |s| s.unrecorded())
        .exit(ms(11_001), KILLED);
    verdict(bare, Verdict::Unknown, "was not recorded");
}

/// The agent came late: to the container, or to the deletion of the pod.
#[test]
fn what_began_before_the_agent_is_unknown() {
    for (requested, left, expected) in [
        (None, 500, Verdict::Unknown),
        (None, 100_000, Verdict::Completed),
        (Some(request(0, 0, 0)), 100_000, Verdict::Unknown),
    ] {
        let script = Script::found().init().exit(ms(left), CODE_0);
        let of = assess(VerdictInputs { request: requested, ..script.inputs() });
        let is_late = expected == Verdict::Unknown;
        assert_eq!((of.verdict, of.truncated), (expected, is_late), "{}", of.proof.message);
        assert_eq!(of.unseen("isolated".into()).truncated, is_late);
    }
}

/// Losses are named, never papered over.
#[test]
fn a_loss_is_named() {
    let mut script = Script::new().init();
    script.processes.record_gap(ms(500), LossKind::DecidingRingFull);
    verdict(script, Verdict::Unknown, "deciding_ring_full");
}

/// The handler's delivery, the exit and the emptying are milestones with the kernel's own times.
#[test]
fn milestones_are_in_order_of_time() {
    let script = handled().exit(ms(3000), CODE_0).empty(ms(3001));
    let assessment = assess(VerdictInputs { request: None, ..script.inputs() });
    let kinds: Vec<MilestoneKind> = assessment.milestones.iter().map(|m| m.kind).collect();
    use MilestoneKind::{CgroupEmpty, Exited, StopBegan, TermHandled, TermSent};
    assert_eq!(kinds, [StopBegan, TermSent, TermHandled, Exited, CgroupEmpty]);
}

/// A signal's own disposition, not another one's, is the evidence.
#[test]
fn another_signals_handler_is_no_evidence() {
    let script = Script::new()
        .init()
        .term(ms(1000), |s| s.ignored())
        .taken(ms(1500), 10)
        .kill(ms(11_000), |s| s)
        .exit(ms(11_001), KILLED);
    verdict(script, Verdict::StopSignalIgnored, "The kernel discarded SIGTERM");
}
