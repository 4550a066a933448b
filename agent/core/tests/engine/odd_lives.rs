//! Pods and containers with a history that is out of the ordinary: losses, outages, answers that come late.

use super::lives::{delete, finish};
use super::world::{
    CODE_0, Cgroups, World, container, ids, init, object, runc, running, sandbox, second, shim,
    side, sidecar, signal,
};
use coroner_core::{
    ids::CgroupId,
    input::{
        ApiContainer, ApiEvent, ContainerKind, ContainerState, CriContainer, CriEvent, CriExit,
        Daemon, DaemonProcess, DaemonState, Disposition, HostEvent, Input, KernelFact, Loss,
        LossKind,
    },
    output::{CriRequest, Request},
    time::BootTime,
    types::{Cause, FindingKind, MilestoneKind, PhaseKind, Verdict},
};
use std::time::Duration;

#[test]
fn a_loss_marks_what_it_may_have_touched() {
    let mut world = running(1);
    delete(&mut world, 1);
    world.say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 3)));
    let cgroup = Cgroups::of(1).own;
    world.later(500).kernel(KernelFact::CgroupEmpty { cgroup });
    world.kernel(KernelFact::CgroupRemoved { cgroup });
    finish(&mut world, 1, 0);
    world.ticks(10);
    let end = &world.ended[0];
    assert_eq!(end.incomplete, [LossKind::DecidingRingFull]);
    assert_eq!(end.containers[0].verdict, Verdict::Unknown);
    assert!(end.phase(PhaseKind::Unattributed) > Duration::ZERO);
    assert_eq!(world.engine.gauges().losses[&LossKind::DecidingRingFull], 3);
}

#[test]
fn an_uncommon_stop_signal_is_let_through_once() {
    let mut world = running(1);
    world.cri(CriEvent::StopSignal { container: ids(1).2, signal: 37 });
    world.ticks(5);
    let learned: Vec<_> = world
        .requests
        .iter()
        .filter(|o| matches!(o, Request::TraceSignal { signal: 37, .. }))
        .collect();
    assert_eq!(learned.len(), 1);
}

/// cgroupsPerQOS=false and custom roots: the runtime knows where the container is.
#[test]
fn a_container_without_a_known_cgroup_is_looked_for_and_joined() {
    let mut world = World::in_sync();
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.ticks(5);
    let wanted = Request::Cri(CriRequest::FindCgroup(ids(1).2));
    assert_eq!(world.requests.iter().filter(|o| **o == wanted).count(), 1);
    let cgroup = Cgroups::of(1).own;
    let found = |cgroup, path: &str| {
        let (container, path) = (ids(1).2, path.to_owned());
        CriEvent::ContainerCgroup { container, cgroup, path }
    };
    world.cri(found(CgroupId(1), "/"));
    world.cri(found(cgroup, "/odd"));
    let watch = |request: &&Request| matches!(request, Request::WatchCgroup { .. });
    let watched: Vec<_> = world.requests.iter().filter(watch).collect();
    let path = "/odd".to_owned();
    assert_eq!(watched, [&Request::WatchCgroup { cgroup, path }], "the root is no container's");
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.term(1, true);
    world.exits(1, CODE_0);
    finish(&mut world, 1, 0);
    world.ticks(10);
    assert_eq!(world.ended[0].containers[0].verdict, Verdict::Graceful);
}

/// One that is only found that way has its stop signal let through as well.
#[test]
fn a_container_that_was_looked_for_has_its_uncommon_stop_signal_let_through() {
    let mut world = World::in_sync();
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.cri(CriEvent::StopSignal { container: ids(1).2, signal: 37 });
    world.ticks(5);
    let learned = |world: &World| {
        let is = |o: &&Request| matches!(o, Request::TraceSignal { signal: 37, .. });
        world.requests.iter().filter(is).count()
    };
    assert_eq!(learned(&world), 0, "for which cgroup?");
    world.cri(CriEvent::ContainerCgroup {
        container: ids(1).2,
        cgroup: Cgroups::of(1).own,
        path: String::new(),
    });
    world.ticks(5);
    assert_eq!(learned(&world), 1);
}

/// A preemptive restart of the runtime during the termination is named.
#[test]
fn a_runtime_that_went_away_is_a_finding() {
    let mut world = running(1);
    delete(&mut world, 1);
    world.term(1, true);
    world.cri(CriEvent::Unreachable { error: "connection refused".into(), code: None });
    world.later(500).exits(1, CODE_0);
    world.later(3000).cri(CriEvent::Connected { runtime: "test".into(), process: None });
    finish(&mut world, 1, 0);
    world.ticks(10);
    let kinds: Vec<_> = world.ended[0].findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [FindingKind::RuntimeRestarted]);
}

/// Its process ended, and another one began before the pod was gone.
#[test]
fn a_kubelet_that_was_restarted_is_a_finding() {
    let process = |pid, started| DaemonProcess { pid, started };
    let kubelet = |world: &mut World, state| {
        let event = HostEvent::Daemon { daemon: Daemon::Kubelet, state };
        world.say(Input::Host(event));
    };
    let mut world = running(1);
    let old = process(10, 50);
    kubelet(&mut world, DaemonState::Running { process: old });
    delete(&mut world, 1);
    world.later(300).term(1, true);
    kubelet(&mut world, DaemonState::Ended { process: old });
    world.later(700).exits(1, CODE_0);
    let began = (world.now + 200) / 10;
    world.later(1000);
    kubelet(&mut world, DaemonState::Running { process: process(11, began) });
    finish(&mut world, 1, 0);
    world.ticks(10);
    let said: Vec<_> =
        world.ended[0].findings.iter().map(|f| (f.kind, f.detail.as_str())).collect();
    let detail =
        "The kubelet ended 300 ms after the beginning and restarted 1.2 s after the beginning.";
    assert_eq!(said, [(FindingKind::KubeletRestarted, detail)]);
}

/// Nonsense from any source changes nothing and is no panic.
#[test]
fn nonsense_is_survived() {
    let mut world = running(1);
    world.status(77, 0);
    world.cri(CriEvent::StopSignal { container: "".into(), signal: 255 });
    world.kernel(KernelFact::OomVictim { cgroup: None, pid: 0 });
    world.exits(99, CODE_0);
    let mut odd = object(2, true, BootTime(0));
    odd.deletion_grace_seconds = Some(i64::MIN);
    odd.deletion_timestamp = Some(coroner_core::time::WallTime(i64::MIN));
    world.api(ApiEvent::Applied(odd));
    let at = BootTime(u64::MAX);
    world.engine.step(coroner_core::input::Received { at, input: Input::Tick });
    world.ticks(1);
    assert!(world.ended.is_empty());
}

/// A pod that lives and dies between two polls is told all the same.
#[test]
fn a_pod_that_the_runtime_was_never_asked_about_alive() {
    let mut world = World::in_sync();
    world.lists(Vec::new(), Vec::new());
    let listed = world.at();
    let at = world.at();
    world.later(500).api(ApiEvent::Applied(object(1, false, at)));
    world.starts(1);
    delete(&mut world, 1);
    let look = Request::Cri(CriRequest::PollNow(None));
    assert!(world.requests.contains(&look), "there is no time to lose");
    world.later(300).term(1, true);
    world.later(200).exits(1, CODE_0);
    finish(&mut world, 1, 0);
    world.ticks(10);
    let end = &world.ended[0];
    let stopped = end.milestone(MilestoneKind::SandboxStopped).unwrap();
    assert_eq!(stopped.at.boot - stopped.uncertainty, listed, "after the last list without it");
    assert_eq!(end.containers[0].verdict, Verdict::Graceful);
    assert_eq!(end.phase(PhaseKind::Unattributed), Duration::ZERO);
}

/// A single call that failed (an answer too large, say) is an outage, not a restart.
#[test]
fn an_answer_on_the_same_connection_is_no_restart() {
    let mut world = running(1);
    delete(&mut world, 1);
    world.term(1, true);
    world.cri(CriEvent::Unreachable { error: "message larger than 16 MiB".into(), code: None });
    world.later(500).exits(1, CODE_0);
    finish(&mut world, 1, 0);
    world.ticks(10);
    assert_eq!(world.ended[0].findings, []);
}

#[test]
fn a_job_with_a_native_sidecar_completes() {
    let mut world = running(1);
    let (cg, id, t) = sidecar();
    world.kernel(KernelFact::CgroupCreated {
        cgroup: cg,
        parent: Some(Cgroups::of(1).pod),
        name: id.to_string(),
        scanned: false,
    });
    world.kernel(KernelFact::Exec { cgroup: cg, task: t.clone(), parent: shim() });
    world.lists(
        vec![sandbox(1, true)],
        vec![container(1, ContainerState::Running), side(ContainerState::Running)],
    );
    world.later(1000).exits(1, CODE_0);
    world.later(1000).kernel(signal(cg, t.clone(), 15, runc()));
    world.kernel(KernelFact::SignalDelivered {
        cgroup: cg,
        task: t.clone(),
        signal: 15,
        disposition: Disposition::Handler,
    });
    world.later(100).kernel(KernelFact::Exit {
        cgroup: cg,
        task: t,
        status: CODE_0,
        parent: Some(shim()),
    });
    world.kernel(KernelFact::CgroupEmpty { cgroup: cg });
    world.kernel(KernelFact::CgroupRemoved { cgroup: cg });
    world.later(500).lists(
        vec![sandbox(1, false)],
        vec![container(1, ContainerState::Exited), side(ContainerState::Exited)],
    );
    world.status(1, 0);
    world.cri(CriEvent::ContainerExited(CriExit {
        container: id,
        started: None,
        finished: None,
        exit_code: 0,
        reason: "Completed".into(),
    }));
    let mut o = object(1, false, world.at());
    o.phase = "Succeeded".into();
    o.restart_policy = "Never".into();
    o.containers
        .insert("s".into(), ApiContainer { kind: ContainerKind::Sidecar, ..Default::default() });
    world.api(ApiEvent::Applied(o));
    world.ticks(60);
    assert_eq!(world.ended.len(), 1);
    assert_eq!(world.ended[0].cause, Cause::Completed);
}

#[test]
fn a_job_that_was_restarted_by_its_probe_still_completes() {
    let mut world = running(1);
    world.term(1, true);
    world.later(100).exits(1, CODE_0); // liveness
    let (_, mut c) = second(true, ContainerState::Running);
    c.sandbox = ids(1).1;
    c.attempt = 1;
    let of = Cgroups::of(2);
    world.kernel(KernelFact::CgroupCreated {
        cgroup: of.own,
        parent: Some(Cgroups::of(1).pod),
        name: ids(2).2.to_string(),
        scanned: false,
    });
    world.kernel(KernelFact::Exec { cgroup: of.own, task: init(2), parent: shim() });
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited), c.clone()]);
    world.status(1, 0);
    world.ticks(30);
    world.exits(2, CODE_0);
    c.state = ContainerState::Exited;
    world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited), c]);
    world.status(2, 0);
    let mut o = object(1, false, world.at());
    o.phase = "Succeeded".into();
    world.api(ApiEvent::Applied(o));
    world.ticks(60);
    assert_eq!((world.died.len(), world.ended.len()), (2, 1));
    assert_eq!(
        (world.ended[0].cause, world.ended[0].containers.len()),
        (Cause::Completed, 1),
        "total {:?}",
        world.ended[0].took
    );
}

#[test]
fn a_pod_deleted_while_its_image_is_pulled_is_told() {
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, false, at)));
    world.lists(vec![sandbox(1, true)], vec![]);
    world.ticks(5);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(500).lists(vec![sandbox(1, false)], vec![]);
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(60);
    assert_eq!(world.ended.len(), 1);
}

#[test]
fn an_answer_with_a_gap_kills_nobody() {
    let mut world = running(1);
    world.lists(vec![sandbox(1, true)], vec![]); // the entry was nonsense and left out
    world.later(250).lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.ticks(120);
    assert_eq!(world.died.len(), 0, "{:?}", world.died.first().map(|d| &d.proof.message));
}

/// The watch may be late by a second, but what was followed by another attempt ended before.
#[test]
fn a_restart_just_before_a_delete_is_no_part_of_it() {
    let mut world = running(1);
    world.term(1, true);
    world.later(100).exits(1, CODE_0);
    let again =
        CriContainer { sandbox: ids(1).1, attempt: 1, ..second(true, ContainerState::Running).1 };
    let of = Cgroups::of(2);
    let (cgroup, parent) = (of.own, Some(Cgroups::of(1).pod));
    let name = ids(2).2.to_string();
    world.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    world.kernel(KernelFact::Exec { cgroup, task: init(2), parent: shim() });
    let lists = |ready, state| {
        let again = CriContainer { state, ..again.clone() };
        (vec![sandbox(1, ready)], vec![container(1, ContainerState::Exited), again])
    };
    let (sandboxes, containers) = lists(true, ContainerState::Running);
    world.lists(sandboxes, containers);
    world.status(1, 0);
    world.later(400);
    delete(&mut world, 1);
    world.later(100).term(2, true);
    world.later(100).exits(2, CODE_0);
    let (sandboxes, containers) = lists(false, ContainerState::Exited);
    world.lists(sandboxes, containers);
    world.status(2, 0);
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(60);
    let causes: Vec<_> = world.died.iter().map(|d| (d.id.clone(), d.cause)).collect();
    assert!(causes.contains(&(ids(1).2, Cause::Restart)), "{causes:?}");
    assert!(causes.contains(&(ids(2).2, Cause::ApiDelete)), "{causes:?}");
    assert_eq!(world.ended[0].containers.len(), 1);
}
