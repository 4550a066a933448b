//! Milestones → additive phases.

use coroner_core::{phases::phases, report::Milestone, testkit::*};
use std::time::Duration;

use MilestoneKind as M;

fn marks(list: &[(M, u64)]) -> Vec<Milestone> {
    let (uncertainty, source) = (Duration::ZERO, Source::Kernel);
    let mark = |(kind, at): &(M, u64)| (*kind, BootTime(*at).into());
    let marks = list.iter().map(mark);
    marks.map(|(kind, at)| Milestone { kind, at, uncertainty, source }).collect()
}

/// A container's death with these milestones. `stopped`: a stop signal belongs to it.
fn death(kind: ContainerKind, stopped: bool, path: &[(M, u64)]) -> ContainerDeath {
    let mut w = World::running(1);
    w.delete(1).exits(1, CODE_0).settles(1);
    let verdict = if stopped { Verdict::Unknown } else { Verdict::Completed };
    ContainerDeath { kind, verdict, milestones: marks(path), ..w.died[0].clone() }
}

/// From 1000 on; the phases and how long each took, in order.
#[track_caller]
fn check(critical: &ContainerDeath, stopping: Option<u64>, pod: &[(M, u64)], expected: &str) {
    let (began, pod) = (BootTime(1000), marks(pod));
    let ended = critical.milestones.iter().chain(&pod).map(|m| m.at.boot).max().unwrap();
    let stopping = stopping.map(BootTime);
    let phases = phases((began, ended), Some(critical), &pod, stopping, None, Cause::ApiDelete);
    let texts = phases.iter().map(|one| format!("{} {}", one.kind, one.took.as_nanos()));
    assert_eq!(texts.collect::<Vec<_>>().join(", "), expected);
    let mut at = began;
    for phase in &phases {
        assert_eq!(phase.from, at, "each begins where the one before ended");
        assert_eq!(phase.took, phase.to.since(at));
        at = phase.to.boot;
    }
    assert_eq!(at, ended.max(began));
}

#[test]
fn the_path_of_a_main_container() {
    let main = |path: &[(M, u64)]| death(ContainerKind::Main, true, path);
    // All that there can be.
    let path = [
        (M::PreStopBegan, 1100),
        (M::PreStopEnded, 1400),
        (M::TermSent, 1410),
        (M::KillSent, 2400),
        (M::Exited, 2402),
        (M::CgroupEmpty, 2403),
        (M::ContainerExited, 2410),
    ];
    let pod = [(M::SandboxStopped, 2450), (M::ObjectGone, 2600)];
    let expected = "kubelet_reaction 100, pre_stop 300, stop_call 10, shutdown 990, kill 2, reap 1, \
                    runtime_notice 7, sandbox_stop 40, cleanup 150";
    check(&main(&path), None, &pod, expected);
    // Finalizers are distinct from the kubelet's cleanup.
    let path = [
        (M::TermSent, 1020),
        (M::Exited, 1200),
        (M::CgroupEmpty, 1201),
        (M::ContainerExited, 1210),
    ];
    let pod = [(M::SandboxStopped, 1300), (M::FinalDelete, 1450), (M::ObjectGone, 9000)];
    let expected = "kubelet_reaction 20, shutdown 180, reap 1, runtime_notice 9, sandbox_stop 90, cleanup 150, \
                    finalizers 7550";
    check(&main(&path), None, &pod, expected);
    // An object that went first takes no time from the rest.
    let expected = "kubelet_reaction 20, shutdown 180, reap 1, runtime_notice 9, sandbox_stop 90";
    check(&main(&path), None, &[(M::ObjectGone, 1001), (M::SandboxStopped, 1300)], expected);
    // A hook that outlives its budget ends at the stop signal.
    let path = [
        (M::PreStopBegan, 1100),
        (M::TermSent, 1500),
        (M::Exited, 1600),
        (M::PreStopEnded, 1600),
        (M::CgroupEmpty, 1601),
        (M::ContainerExited, 1610),
    ];
    let expected = "kubelet_reaction 100, pre_stop 400, shutdown 100, reap 1, runtime_notice 9, sandbox_stop 10";
    check(&main(&path), None, &[(M::SandboxStopped, 1620)], expected);
    // A postStart hook ran for 400 ns more when the deletion was requested; after it the kubelet took 50.
    let path = [(M::TermSent, 1450), (M::Exited, 1600), (M::CgroupEmpty, 1601)];
    let expected = "post_start 400, kubelet_reaction 50, shutdown 150, reap 1";
    check(&main(&path), None, &[(M::PostStartEnded, 1400)], expected);
}

/// The main containers were stopped at 1100 and took until 1500. The sidecar's own hook runs at once, then it waits.
#[test]
fn a_sidecar_waits_for_its_turn() {
    let sidecar = |path: &[(M, u64)]| death(ContainerKind::Sidecar, true, path);
    let path = [(M::TermSent, 1500), (M::Exited, 1600), (M::CgroupEmpty, 1601)];
    let expected = "kubelet_reaction 100, sidecar_wait 400, shutdown 100, reap 1";
    check(&sidecar(&path), Some(1100), &[], expected);
    let hook = [(M::PreStopBegan, 1100), (M::PreStopEnded, 1150)];
    let expected = "kubelet_reaction 100, pre_stop 50, sidecar_wait 350, shutdown 100, reap 1";
    check(&sidecar(&[&hook[..], &path[..]].concat()), Some(1100), &[], expected);
}

#[test]
fn what_is_missing_is_unattributed() {
    let pod = [(M::SandboxStopped, 1500), (M::ObjectGone, 1600)];
    // No stop signal was seen where one is required; or it is proven that the container left before.
    let path = [(M::Exited, 1300), (M::CgroupEmpty, 1301)];
    for (stopped, first) in [(true, "unattributed"), (false, "kubelet_reaction")] {
        let expected = format!("{first} 300, reap 1, unattributed 199, cleanup 100");
        check(&death(ContainerKind::Main, stopped, &path), None, &pod, &expected);
    }
    // The exit was not seen.
    let path = [(M::TermSent, 1100), (M::CgroupEmpty, 1301), (M::ContainerExited, 1310)];
    let expected =
        "kubelet_reaction 100, unattributed 201, runtime_notice 9, sandbox_stop 190, cleanup 100";
    check(&death(ContainerKind::Main, true, &path), None, &pod, expected);
}

/// A probe of the hook's name begins beside it, and is no hook. Another binary, and a request by the kubelet, say nothing
/// of its time.
#[test]
fn a_post_start_hook_under_way_is_a_phase_of_the_deletion() {
    for (hook, spent) in
        [(Hook::Exec("warm".into()), 6_000), (Hook::Exec("other".into()), 0), (Hook::HttpGet, 0)]
    {
        let mut w = World::running(1);
        w.status_of(1).post_start = Some(hook);
        w.applied(1).later(10).enters(1, 77, "warm").enters(1, 78, "warm").later(1000).delete(1);
        w.later(6_000).leaves(1, 77, "warm", 0).later(3_900).stops(1);
        w.finish(1).ticks(20);
        assert_eq!(w.phase_ms(PhaseKind::PostStart), spent, "{:?}", w.end().phases);
        assert_eq!(w.phase_ms(PhaseKind::KubeletReaction), 10_000 - spent, "{:?}", w.end().phases);
    }
}

/// The agent came at 1050: a hook may have run before, and nobody knows whom the stop signal waited for.
#[test]
fn who_was_waited_for_before_the_agent_came_is_not_known() {
    let path = [(M::TermSent, 1400), (M::Exited, 1500)];
    let main = death(ContainerKind::Main, true, &path);
    for (found, first) in [(900, "kubelet_reaction"), (1050, "unattributed")] {
        let span = (BootTime(1000), BootTime(1500));
        let found = Some(BootTime(found));
        let phases = phases(span, Some(&main), &[], None, found, Cause::ApiDelete);
        assert_eq!(phases[0].kind.as_str(), first);
    }
}
