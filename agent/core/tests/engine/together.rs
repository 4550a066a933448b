//! What belongs to one end of a pod, and what was over long before.

use super::world::{
    CODE_0, Cgroups, KILLED, World, container, init, object, runc, running, sandbox, shim,
    shows_its_end, signal, task,
};
use coroner_core::{
    ids::{CgroupId, ContainerId},
    input::{
        ApiContainer, ApiEvent, ContainerKind, ContainerState, CriContainer, CriEvent, CriExit,
        Disposition, Hook, KernelFact,
    },
    types::{Cause, MilestoneKind, PhaseKind, Verdict},
};
use std::time::Duration;

/// A second container in pod 1.
fn another(world: &mut World, name: &str) -> CriContainer {
    let id: ContainerId = "d".repeat(64).as_str().into();
    world.kernel(KernelFact::CgroupCreated {
        cgroup: CgroupId(18),
        parent: Some(Cgroups::of(1).pod),
        name: id.to_string(),
        scanned: false,
    });
    let t = task(88, 1, "other");
    world.kernel(KernelFact::Exec { cgroup: CgroupId(18), task: t, parent: shim() });
    CriContainer { id, name: name.into(), ..container(1, ContainerState::Running) }
}

fn another_exits(world: &mut World) {
    let (cgroup, task) = (CgroupId(18), task(88, 1, "other"));
    world.kernel(KernelFact::Exit { cgroup, task, status: CODE_0, parent: Some(shim()) });
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    world.kernel(KernelFact::CgroupRemoved { cgroup });
    world.cri(CriEvent::ContainerExited(CriExit {
        container: "d".repeat(64).as_str().into(),
        started: None,
        finished: None,
        exit_code: 0,
        reason: "Completed".into(),
    }));
}

/// An init container that completed two days ago was not evicted.
#[test]
fn an_init_container_does_not_die_of_the_eviction() {
    let mut world = running(1);
    let mut pod = object(1, false, world.at());
    pod.containers
        .insert("i".into(), ApiContainer { kind: ContainerKind::Init, ..Default::default() });
    world.api(ApiEvent::Applied(pod.clone()));
    let mut i = another(&mut world, "i");
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running), i.clone()]);
    another_exits(&mut world);
    i.state = ContainerState::Exited;
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running), i.clone()]);
    world.ticks(60);
    assert_eq!(world.died[0].cause, Cause::Completed);
    world.later(2 * 24 * 3600 * 1000);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited), i]);
    world.status(1, 0);
    (pod.phase, pod.reason) = ("Failed".into(), "Evicted".into());
    world.api(ApiEvent::Applied(pod));
    world.ticks(60);
    let end = &world.ended[0];
    assert_eq!(end.cause, Cause::NodePressureEviction);
    let causes: Vec<_> = end.containers.iter().map(|c| (c.name.as_str(), c.cause)).collect();
    let wrong = ("i", Cause::NodePressureEviction);
    assert!(!causes.contains(&wrong), "{causes:?}");
}

/// restartPolicy Never: one of two containers is killed by its liveness probe; a day later the
/// other completes. The pod did not take a day to die.
#[test]
fn a_day_between_two_containers_is_no_termination_of_a_day() {
    let mut world = running(1);
    let mut pod = object(1, false, world.at());
    pod.restart_policy = "Never".into();
    pod.containers.get_mut("c").unwrap().liveness = Some(coroner_core::input::ApiProbe::default());
    pod.containers.insert("d".into(), ApiContainer::default());
    world.api(ApiEvent::Applied(pod.clone()));
    let mut d = another(&mut world, "d");
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running), d.clone()]);
    world.later(1000).term(1, true);
    world.later(500).exits(1, CODE_0);
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited), d.clone()]);
    world.status(1, 0);
    shows_its_end(pod.containers.get_mut("c").unwrap(), 1);
    world.later(500).api(ApiEvent::Applied(pod.clone()));
    world.ticks(60);
    assert_eq!(world.died[0].cause, Cause::Unknown, "by its probe, or by somebody else");
    world.later(24 * 3600 * 1000);
    another_exits(&mut world);
    d.state = ContainerState::Exited;
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited), d]);
    pod.phase = "Failed".into();
    world.api(ApiEvent::Applied(pod));
    world.ticks(60);
    let end = &world.ended[0];
    assert!(end.took < Duration::from_secs(60), "{:?} {:?}", end.cause, end.took);
}

/// Somebody on the node sent SIGTERM to a PID 1 that ignores it; a day later the pod is deleted.
#[test]
fn a_stop_signal_of_yesterday_is_not_this_stop() {
    let mut world = running(1);
    world.term(1, false);
    world.ticks(24 * 3600);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(300).term(1, false);
    world.later(30_000).kill(1);
    world.exits(1, KILLED);
    world.stopped(1, 137);
    world.later(100).api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(60);
    let death = &world.ended[0].containers[0];
    let sent = death.milestone(MilestoneKind::TermSent).unwrap().at.boot;
    assert!(
        sent >= at && death.grace_ratio.unwrap() < 2.0,
        "ratio {:?}, phases {:?}, {}",
        death.grace_ratio,
        world.ended[0].phases.iter().map(|p| p.kind).collect::<Vec<_>>(),
        death.proof.message
    );
}

/// A force delete: the kubelet gives the hook a second (pod_workers.go raises 0 to 1).
#[test]
fn a_sleep_in_a_force_delete_is_not_the_kubelets_reaction() {
    let mut world = running(1);
    let at = world.at();
    let mut pod = object(1, true, at);
    pod.deletion_timestamp = Some(coroner_core::time::WallTime(at.0 as i64));
    pod.deletion_grace_seconds = Some(0);
    pod.containers.get_mut("c").unwrap().pre_stop = Some(Hook::Sleep(10));
    world.api(ApiEvent::Applied(pod.clone()));
    world.api(ApiEvent::Deleted(pod));
    world.later(1100).term(1, true);
    world.later(500).exits(1, CODE_0);
    world.stopped(1, 0);
    world.ticks(60);
    let end = &world.ended[0];
    let spent = end.phase(PhaseKind::PreStop);
    assert!(spent >= Duration::from_millis(900), "{:?}", end.phases);
}

/// Somebody had it reload with SIGTERM, through the runtime, three days before its pod was deleted.
#[test]
fn a_reload_through_the_runtime_is_not_the_stop_of_three_days_later() {
    let mut world = running(1);
    let cgroup = Cgroups::of(1).own;
    let taken = || {
        let disposition = Disposition::Handler;
        KernelFact::SignalDelivered { cgroup, task: init(1), signal: 15, disposition }
    };
    world.kernel(signal(cgroup, init(1), 15, runc()));
    world.kernel(taken());
    world.later(3 * 24 * 3600 * 1000);
    let asked = world.at();
    world.api(ApiEvent::Applied(object(1, true, asked)));
    world.later(100).kernel(signal(cgroup, init(1), 15, runc()));
    world.kernel(taken());
    world.later(30_000).kernel(signal(cgroup, init(1), 9, runc()));
    world.exits(1, KILLED);
    world.stopped(1, 137);
    world.later(100).api(ApiEvent::Deleted(object(1, true, asked)));
    world.ticks(60);
    let end = &world.ended[0];
    assert_eq!(end.began, asked, "{:?}", end.milestones);
    let death = &end.containers[0];
    assert_eq!(death.verdict, Verdict::GraceExceeded, "{}", death.proof.message);
    assert!(death.proof.message.contains("30.0 s later"), "{}", death.proof.message);
}

/// While its image is pulled, a pod is deleted; the watch is 10 s late.
#[test]
fn a_pod_without_a_container_is_reported_however_late_the_watch_is() {
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, false, at)));
    world.lists(vec![sandbox(1, true)], Vec::new());
    world.ticks(5);
    let asked = world.at();
    world.later(500).lists(vec![sandbox(1, false)], Vec::new());
    world.ticks(10);
    world.api(ApiEvent::Applied(object(1, true, asked)));
    world.later(100).api(ApiEvent::Deleted(object(1, true, asked)));
    world.ticks(60);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!(end.cause, Cause::ApiDelete, "{}", end.cause_message);
}
