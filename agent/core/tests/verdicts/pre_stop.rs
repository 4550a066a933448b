//! preStop in all its forms: which process it was, or what the spec and the gap say.

use super::script::{Script, request};
use coroner_core::{
    report::{EvidenceKind, Milestone},
    testkit::*,
    verdict::{Assessment, VerdictInputs, assess},
};

const REQUESTED: u64 = 1000;

fn assessment(script: &Script, hook: &Hook, kind: ContainerKind, requested: bool) -> Assessment {
    let request = requested.then(|| request(REQUESTED, REQUESTED - 900, REQUESTED));
    assess(VerdictInputs { kind, pre_stop: Some(hook), request, ..script.inputs() })
}

/// Handled and left half a second after a stop signal at this time.
fn stopped(at: u64) -> Script {
    Script::new()
        .init()
        .term(ms(at), |s| s.handler())
        .handler_runs(ms(at + 1))
        .exit(ms(at + 500), CODE_0)
}

fn marks(of: &Assessment) -> [Option<(BootTime, Source)>; 2] {
    [MilestoneKind::PreStopBegan, MilestoneKind::PreStopEnded].map(|kind| {
        let mark: Option<&Milestone> = of.milestones.iter().find(|m| m.kind == kind);
        mark.map(|m| (m.at.boot, m.source))
    })
}

fn inferred(began: u64, ended: Option<u64>) -> [Option<(BootTime, Source)>; 2] {
    [Some(began), ended].map(|at| at.map(|at| (ms(at), Source::Inferred)))
}

#[test]
fn a_sleep_is_as_long_as_the_spec_says() {
    let of =
        |at, requested| assessment(&stopped(at), &Hook::Sleep(3), ContainerKind::Main, requested);
    let ended = of(4200, true);
    assert_eq!(marks(&ended), inferred(1200, Some(4200)));
    assert_eq!(ended.verdict, Verdict::Graceful);
    assert!(
        ended
            .proof
            .evidence
            .iter()
            .any(|e| e.kind == EvidenceKind::PreStopSpec { hook: Hook::Sleep(3) })
    );
    // A restart: nobody said when it was asked for.
    assert_eq!(marks(&of(4200, false)), inferred(1200, Some(4200)));
    // Too soon for it: whoever sent the signal had not slept.
    assert_eq!(marks(&of(2000, true)), [None, None]);
}

#[test]
fn a_sleep_beyond_the_grace_leaves_the_floor() {
    let of = assessment(&stopped(11_100), &Hook::Sleep(60), ContainerKind::Main, true);
    assert_eq!(marks(&of), inferred(1100, None));
    assert_eq!(of.verdict, Verdict::PrestopExhaustedGrace, "{}", of.proof.message);
    assert!(of.pre_stop_cut_off);
}

#[test]
fn a_sleep_that_its_container_did_not_outlive() {
    let left = Script::new().init().exit(ms(2000), CODE_0);
    let of = assessment(&left, &Hook::Sleep(5), ContainerKind::Main, true);
    assert_eq!(marks(&of), inferred(REQUESTED, None));
    assert_eq!(of.verdict, Verdict::Completed);
}

#[test]
fn a_request_by_the_kubelet_fills_the_gap() {
    for hook in [Hook::HttpGet, Hook::TcpSocket] {
        let of = |at, requested| assessment(&stopped(at), &hook, ContainerKind::Main, requested);
        assert_eq!(marks(&of(4200, true)), inferred(REQUESTED, Some(4200)));
        // No longer than the kubelet's own reaction.
        assert_eq!(marks(&of(1200, true)), [None, None]);
        assert_eq!(marks(&of(4200, false)), [None, None]);
        // No answer came within the grace.
        let cut_off = of(11_050, true);
        assert_eq!(marks(&cut_off), inferred(REQUESTED, None));
        assert_eq!(cut_off.verdict, Verdict::PrestopExhaustedGrace);
        assert!(cut_off.pre_stop_cut_off);
    }
}

/// Its hook runs at once, its stop signal waits until all others are gone.
#[test]
fn a_sidecars_hook_is_not_its_wait() {
    let sleeps = assessment(&stopped(8000), &Hook::Sleep(3), ContainerKind::Sidecar, true);
    assert_eq!(marks(&sleeps), inferred(REQUESTED, Some(4000)));
    assert_eq!(sleeps.verdict, Verdict::Graceful);
    assert!(!sleeps.pre_stop_cut_off);
    let asks = assessment(&stopped(8000), &Hook::HttpGet, ContainerKind::Sidecar, true);
    assert_eq!(marks(&asks), [None, None]);
    let process = stopped(8000).hook(ms(1100), Some(ms(1300)));
    let exec = assessment(&process, &Hook::Exec("hook".into()), ContainerKind::Sidecar, true);
    assert_eq!(marks(&exec), [1100, 1300].map(|at| Some((ms(at), Source::Kernel))));
}

/// The agent started between cgroup and exec: that of a main process that is not PID 1 could be
/// anybody's, until it is the one that is stopped.
#[test]
fn the_main_process_is_no_hook() {
    let stopped = Script::found().main().term(ms(12_000), |s| s.handler()).exit(ms(12_500), CODE_0);
    let of = assessment(&stopped, &Hook::Exec("app".into()), ContainerKind::Main, false);
    assert_eq!(marks(&of), [None, None], "{}", of.proof.message);
}

/// Without a stop signal, and with a request that may have been made after the end, only the hook's own name just before
/// the end is the hook.
#[test]
fn a_process_before_an_end_of_its_own_is_no_hook() {
    for (name, left, latest, is_hook) in [
        ("hook", 1_400, 2_000, true),
        ("other", 1_400, 2_000, false),
        ("hook", 5_000, 6_000, false),
        ("hook", 5_000, 1_000, true),
        ("other", 1_400, 1_000, true),
    ] {
        let script = Script::new().init().hook(ms(1100), Some(ms(1300))).exit(ms(left), CODE_0);
        let pre_stop = Hook::Exec(name.into());
        let request = Some(request(REQUESTED, 900, latest));
        let of = assess(VerdictInputs { pre_stop: Some(&pre_stop), request, ..script.inputs() });
        assert_eq!(marks(&of)[0].is_some(), is_hook, "{name} {left} {latest}");
    }
}

/// A hook whose end may have been lost was not cut off for sure.
#[test]
fn a_lost_end_cuts_nothing_off() {
    let hook = Hook::Exec("hook".into());
    let running = || stopped(4200).hook(ms(1100), None);
    assert!(assessment(&running(), &hook, ContainerKind::Main, true).pre_stop_cut_off);
    let mut lossy = running();
    lossy.processes.record_gap(ms(1200), LossKind::DetailRingFull);
    assert!(!assessment(&lossy, &hook, ContainerKind::Main, true).pre_stop_cut_off);
}

/// A hook whose records were lost may have used up the grace, if there was time for it.
#[test]
fn a_lost_hook_hides_whether_it_used_up_the_grace() {
    let hook = Hook::Exec("hook".into());
    for (at, pre_stop, requested, expected) in [
        (12_000, Some(&hook), true, Verdict::Unknown),
        (2_000, Some(&hook), true, Verdict::Graceful),
        (2_000, Some(&hook), false, Verdict::Unknown),
        (12_000, None, true, Verdict::Graceful),
    ] {
        let mut script = stopped(at);
        script.processes.record_gap(ms(1200), LossKind::DetailRingFull);
        let request = requested.then(|| request(REQUESTED, REQUESTED - 900, REQUESTED));
        let of = assess(VerdictInputs { pre_stop, request, ..script.inputs() });
        assert_eq!(of.verdict, expected, "{at}, {requested}: {}", of.proof.message);
    }
}

/// The kubelet's clock began a moment before the hook's process did.
#[test]
fn a_hook_that_is_cut_off_at_a_grace_of_a_second() {
    let script = stopped(2000).hook(ms(1100), None);
    let of = assess(VerdictInputs {
        grace_seconds: Some(1),
        longest_grace_seconds: Some(1),
        pre_stop: Some(&Hook::Exec("hook".into())),
        request: Some(request(REQUESTED, REQUESTED - 900, REQUESTED)),
        ..script.inputs()
    });
    assert_eq!(of.verdict, Verdict::PrestopExhaustedGrace, "{}", of.proof.message);
}

/// Nobody said when the deletion was requested (the apiserver is away), and the node is slow.
#[test]
fn a_hook_that_a_slow_node_was_late_to_end_is_found() {
    let of = |script: &Script, name: &str| {
        assessment(script, &Hook::Exec(name.into()), ContainerKind::Main, false)
    };
    let late = stopped(16_000).hook(ms(1000), Some(ms(15_900)));
    for late in [&late, &stopped(16_000).hook(ms(1000), Some(ms(14_500)))] {
        let exhausted = of(late, "hook");
        let message = &exhausted.proof.message;
        assert_eq!(exhausted.verdict, Verdict::PrestopExhaustedGrace, "{message}");
    }
    // Somebody's shell, or a probe that ended long before, is none.
    assert_eq!(of(&late, "drain").verdict, Verdict::Graceful);
    let probe = stopped(16_000).hook(ms(1000), Some(ms(12_900)));
    assert_eq!(of(&probe, "hook").verdict, Verdict::Graceful);
}

/// The node took its time from the hook's end to the stop signal, and just before that a probe ended.
#[test]
fn a_probe_is_not_taken_for_the_hook_on_a_slow_node() {
    // `sh -c 'exec drain'` begins as sh.
    for (then, ended) in [("sh", 10_600), ("sh", 9_000), ("drain", 9_000)] {
        let script = stopped(11_400).enters(200, "sh", ms(1100), None);
        let script = script.enters(200, then, ms(1101), Some(ms(ended)));
        let script = script.enters(201, "ready-probe", ms(11_100), Some(ms(11_200)));
        let of = assessment(&script, &Hook::Exec("sh".into()), ContainerKind::Main, true);
        let expected = [1100, ended].map(|at| Some((ms(at), Source::Kernel)));
        assert_eq!(marks(&of), expected, "{then} until {ended}: {}", of.proof.message);
        let is_exhausted = of.verdict == Verdict::PrestopExhaustedGrace;
        assert_eq!(is_exhausted, ended == 10_600, "{}", of.proof.message);
    }
}
