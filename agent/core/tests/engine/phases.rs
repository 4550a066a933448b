//! Milestones → additive phases.

use super::world::{CODE_0, Cgroups, object, running, shim};
use coroner_core::{
    ids::Tgid,
    input::{ApiEvent, ContainerKind, ExitStatus, Hook, KernelFact, Task},
    phases::phases,
    report::{ContainerDeath, Milestone, Phase, PodTermination, Proof},
    time::BootTime,
    types::{Cause, MilestoneKind, PhaseKind, Source, Verdict},
};
use std::time::Duration;

use MilestoneKind as M;
use PhaseKind as P;

fn marks(list: &[(M, u64)]) -> Vec<Milestone> {
    let mark = |(kind, at): &(M, u64)| Milestone {
        kind: *kind,
        at: BootTime(*at).into(),
        uncertainty: Duration::ZERO,
        source: Source::Kernel,
    };
    list.iter().map(mark).collect()
}

fn spans(phases: &[Phase]) -> Vec<(P, u64)> {
    phases.iter().map(|p| (p.kind, p.took.as_nanos() as u64)).collect()
}

/// A container's death with these milestones. `stopped`: a stop signal belongs to it.
fn death(kind: ContainerKind, stopped: bool, path: &[(M, u64)]) -> ContainerDeath {
    ContainerDeath {
        node: String::new(),
        id: "c".into(),
        name: "c".into(),
        pod: None,
        workload: None,
        kind,
        verdict: if stopped { Verdict::Unknown } else { Verdict::Completed },
        proof: Proof::default(),
        cause: Cause::ApiDelete,
        cause_source: Source::Api,
        cause_message: String::new(),
        findings: Vec::new(),
        exit: None,
        stop_signal: 15,
        grace_seconds: None,
        grace_ratio: None,
        pre_stop: None,
        killer: None,
        children_killed: 0,
        children_names: Vec::new(),
        milestones: marks(path),
        truncated: false,
        incomplete: Vec::new(),
    }
}

#[track_caller]
fn check(path: &[(M, u64)], pod: &[(M, u64)], stopped: bool, expected: &[(P, u64)]) {
    check_of(&death(ContainerKind::Main, stopped, path), None, pod, expected);
}

#[track_caller]
fn check_of(
    critical: &ContainerDeath,
    stopping: Option<u64>,
    pod: &[(M, u64)],
    expected: &[(P, u64)],
) {
    let (began, pod) = (BootTime(1000), marks(pod));
    let ended = critical.milestones.iter().chain(&pod).map(|m| m.at.boot).max().unwrap();
    let stopping = stopping.map(BootTime);
    let phases = phases((began, ended), Some(critical), &pod, stopping, None, Cause::ApiDelete);
    assert_eq!(spans(&phases), expected);
    let mut at = began;
    for phase in &phases {
        assert_eq!(phase.from, at, "each begins where the one before ended");
        assert_eq!(phase.took, phase.to.since(at));
        at = phase.to.boot;
    }
    assert_eq!(at, ended.max(began));
}

/// The main containers were stopped at 1100 and took until 1500.
#[test]
fn a_sidecar_waits_for_its_turn() {
    let path = [(M::TermSent, 1500), (M::Exited, 1600), (M::CgroupEmpty, 1601)];
    let sidecar = death(ContainerKind::Sidecar, true, &path);
    let expected =
        [(P::KubeletReaction, 100), (P::SidecarWait, 400), (P::Shutdown, 100), (P::Reap, 1)];
    check_of(&sidecar, Some(1100), &[], &expected);
    // Its own hook runs at once, then it waits.
    let path = [
        (M::PreStopBegan, 1100),
        (M::PreStopEnded, 1150),
        (M::TermSent, 1500),
        (M::Exited, 1600),
        (M::CgroupEmpty, 1601),
    ];
    let sidecar = death(ContainerKind::Sidecar, true, &path);
    let expected = [
        (P::KubeletReaction, 100),
        (P::PreStop, 50),
        (P::SidecarWait, 350),
        (P::Shutdown, 100),
        (P::Reap, 1),
    ];
    check_of(&sidecar, Some(1100), &[], &expected);
}

#[test]
fn finalizers_are_told_from_the_kubelets_cleanup() {
    let path = [
        (M::TermSent, 1020),
        (M::Exited, 1200),
        (M::CgroupEmpty, 1201),
        (M::ContainerExited, 1210),
    ];
    let pod = [(M::SandboxStopped, 1300), (M::FinalDelete, 1450), (M::ObjectGone, 9000)];
    let expected = [
        (P::KubeletReaction, 20),
        (P::Shutdown, 180),
        (P::Reap, 1),
        (P::RuntimeNotice, 9),
        (P::SandboxStop, 90),
        (P::Cleanup, 150),
        (P::Finalizers, 7550),
    ];
    check(&path, &pod, true, &expected);
}

#[test]
fn the_whole_path() {
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
    let expected = [
        (P::KubeletReaction, 100),
        (P::PreStop, 300),
        (P::StopCall, 10),
        (P::Shutdown, 990),
        (P::Kill, 2),
        (P::Reap, 1),
        (P::RuntimeNotice, 7),
        (P::SandboxStop, 40),
        (P::Cleanup, 150),
    ];
    check(&path, &pod, true, &expected);
}

#[test]
fn a_hook_that_outlives_its_budget_ends_at_the_stop_signal() {
    let path = [
        (M::PreStopBegan, 1100),
        (M::TermSent, 1500),
        (M::Exited, 1600),
        (M::PreStopEnded, 1600),
        (M::CgroupEmpty, 1601),
        (M::ContainerExited, 1610),
    ];
    let expected = [
        (P::KubeletReaction, 100),
        (P::PreStop, 400),
        (P::Shutdown, 100),
        (P::Reap, 1),
        (P::RuntimeNotice, 9),
        (P::SandboxStop, 10),
    ];
    check(&path, &[(M::SandboxStopped, 1620)], true, &expected);
}

#[test]
fn what_is_missing_is_unattributed() {
    let pod = [(M::SandboxStopped, 1500), (M::ObjectGone, 1600)];
    // No stop signal was seen where one is required; the runtime never told.
    let path = [(M::Exited, 1300), (M::CgroupEmpty, 1301)];
    check(
        &path,
        &pod,
        true,
        &[(P::Unattributed, 300), (P::Reap, 1), (P::Unattributed, 199), (P::Cleanup, 100)],
    );
    // Proven absent: it left before anything was sent.
    check(
        &path,
        &pod,
        false,
        &[(P::KubeletReaction, 300), (P::Reap, 1), (P::Unattributed, 199), (P::Cleanup, 100)],
    );
    // The exit was not seen.
    let path = [(M::TermSent, 1100), (M::CgroupEmpty, 1301), (M::ContainerExited, 1310)];
    check(
        &path,
        &pod,
        true,
        &[
            (P::KubeletReaction, 100),
            (P::Unattributed, 201),
            (P::RuntimeNotice, 9),
            (P::SandboxStop, 190),
            (P::Cleanup, 100),
        ],
    );
}

#[test]
fn an_object_that_went_first_takes_no_time_from_the_rest() {
    let path = [
        (M::TermSent, 1020),
        (M::Exited, 2000),
        (M::CgroupEmpty, 2001),
        (M::ContainerExited, 2010),
    ];
    let expected = [
        (P::KubeletReaction, 20),
        (P::Shutdown, 980),
        (P::Reap, 1),
        (P::RuntimeNotice, 9),
        (P::SandboxStop, 90),
    ];
    check(&path, &[(M::ObjectGone, 1001), (M::SandboxStopped, 2100)], true, &expected);
}

/// The hook ran for 400 ms more when the deletion was requested; after it the kubelet took 50.
#[test]
fn a_post_start_hook_holds_the_stop_up() {
    check(
        &[(M::TermSent, 1450), (M::Exited, 1600), (M::CgroupEmpty, 1601)],
        &[(M::PostStartEnded, 1400)],
        true,
        &[(P::PostStart, 400), (P::KubeletReaction, 50), (P::Shutdown, 150), (P::Reap, 1)],
    );
}

fn with_post_start(hook: Hook, hook_began: u64, hook_ended: u64) -> PodTermination {
    let mut world = running(1);
    let at = world.at();
    let with_hook = |deleting| {
        let mut pod = object(1, deleting, at);
        pod.containers.get_mut("c").unwrap().post_start = Some(hook.clone());
        pod
    };
    let task =
        Task { tgid: Tgid(77), tid: 77, ns_pid: Some(7), started: None, comm: "warm".into() };
    let cgroup = Cgroups::of(1).own;
    world.api(ApiEvent::Applied(with_hook(false)));
    let exec = KernelFact::Exec { cgroup, task: task.clone(), parent: shim() };
    world.later(hook_began).kernel(exec);
    // A probe of the same name begins beside it, and is no postStart hook.
    let probe = Task { tgid: Tgid(78), tid: 78, ..task.clone() };
    world.kernel(KernelFact::Exec { cgroup, task: probe, parent: shim() });
    world.later(1000).api(ApiEvent::Applied(with_hook(true)));
    let status = ExitStatus::Code(0);
    world.later(hook_ended).kernel(KernelFact::Exit { cgroup, task, status, parent: Some(shim()) });
    world.later(10_000 - hook_ended).term(1, true);
    world.later(500).exits(1, CODE_0);
    world.stopped(1, 0);
    world.api(ApiEvent::Deleted(with_hook(true)));
    world.ticks(20);
    world.reports().next().expect("a report").clone()
}

#[test]
fn a_post_start_hook_under_way_is_a_phase_of_the_deletion() {
    let end = with_post_start(Hook::Exec("warm".into()), 10, 6_000);
    assert_eq!(end.phase(P::PostStart).as_millis(), 6_000, "{:?}", end.phases);
    assert_eq!(end.phase(P::KubeletReaction).as_millis(), 4_000, "{:?}", end.phases);
    // Another binary, and a request by the kubelet that says nothing of its time.
    for hook in [Hook::Exec("other".into()), Hook::HttpGet] {
        assert_eq!(with_post_start(hook, 10, 6_000).phase(P::PostStart).as_millis(), 0);
    }
}
