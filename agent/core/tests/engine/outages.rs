//! What is said of ends that came while the watch of the apiserver was broken: what it would have
//! told is not known, and is not made up.

use super::world::{
    CODE_0, Cgroups, World, container, ids, init, is_replaced, object, replacement, runc, running,
    sandbox, shim, side, sidecar, signal,
};
use coroner_core::{
    engine::{Engine, Settings},
    input::{
        ApiContainer, ApiEvent, ApiPod, ApiProbe, ApiTerminated, ContainerState, CriContainer,
        CriEvent, CriExit, CriSandbox, KernelFact,
    },
    report::ContainerDeath,
    time::Anchor,
    types::{Cause, MilestoneKind, PhaseKind, Verdict},
};
use std::time::Duration;

fn broken() -> ApiEvent {
    ApiEvent::OutOfSync { error: "connection refused".into() }
}

/// The pod's object, with a liveness probe on its first container; its deletion was asked for a
/// second ago.
fn probed(world: &World, deleting: bool) -> ApiPod {
    let mut pod = object(1, deleting, world.at() - Duration::from_secs(1));
    let c = pod.containers.get_mut("c").unwrap();
    (c.liveness, c.id) = (Some(ApiProbe::default()), Some(ids(1).2));
    pod
}

/// A pod of two containers, the first with a liveness probe.
fn with_a_sidecar() -> World {
    let mut world = running(1);
    let pod = probed(&world, false);
    world.api(ApiEvent::Applied(pod));
    let (cgroup, id, task) = sidecar();
    let (parent, name) = (Some(Cgroups::of(1).pod), id.to_string());
    world.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    world.kernel(KernelFact::Exec { cgroup, task, parent: shim() });
    let both = vec![container(1, ContainerState::Running), side(ContainerState::Running)];
    world.lists(vec![sandbox(1, true)], both);
    world.ticks(1);
    world
}

/// The second container is told to stop, too, and ends.
fn side_ends(world: &mut World) {
    let (cgroup, id, task) = sidecar();
    world.kernel(signal(cgroup, task.clone(), 15, runc()));
    world.kernel(KernelFact::Exit { cgroup, task, status: CODE_0, parent: Some(shim()) });
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    world.kernel(KernelFact::CgroupRemoved { cgroup });
    let both = vec![container(1, ContainerState::Exited), side(ContainerState::Exited)];
    world.later(100).lists(vec![sandbox(1, false)], both);
    world.cri(CriEvent::ContainerExited(CriExit {
        container: id,
        started: None,
        finished: None,
        exit_code: 0,
        reason: "Completed".into(),
    }));
}

/// The first container of the pod is stopped while the watch is broken; the second takes its time.
fn first_of_two_ends() -> World {
    let mut world = with_a_sidecar();
    world.api(broken());
    world.ticks(10);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    let both = vec![container(1, ContainerState::Exited), side(ContainerState::Running)];
    world.later(100).lists(vec![sandbox(1, true)], both);
    world.status(1, 0);
    world
}

fn first_death(world: &World) -> &ContainerDeath {
    world.died.iter().find(|d| d.id == ids(1).2).unwrap()
}

/// The kubelet heard of the deletion, this agent did not: "the pod goes on" would be made up.
#[test]
fn a_stop_that_nobody_watched_is_no_liveness_kill() {
    let mut world = first_of_two_ends();
    world.ticks(20);
    assert!(world.died.is_empty(), "the watch may soon be back");
    world.ticks(240);
    let death = first_death(&world);
    assert_eq!(death.cause, Cause::Unknown, "{}", death.cause_message);
    assert!(death.cause_message.contains("the watch of the apiserver is broken"));
}

/// The same of a pod with one container.
#[test]
fn the_last_stop_that_nobody_watched_is_no_liveness_kill() {
    let mut world = running(1);
    let pod = probed(&world, false);
    world.api(ApiEvent::Applied(pod));
    world.api(broken());
    world.ticks(10);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    world.stopped(1, 0);
    world.ticks(250);
    let death = first_death(&world);
    assert_eq!(death.cause, Cause::Unknown, "{}", death.cause_message);
    assert!(world.ended.is_empty());
}

/// The watch is back before patience is over, and tells which of the two it was.
#[test]
fn a_short_outage_is_waited_out() {
    for (deleting, expected) in [(true, Cause::ApiDelete), (false, Cause::Restart)] {
        let mut world = first_of_two_ends();
        let mut pod = probed(&world, deleting);
        // The kubelet starts no container of a pod that it deletes.
        if !deleting {
            is_replaced(pod.containers.get_mut("c").unwrap(), 1);
        }
        world.ticks(15);
        world.api(ApiEvent::Resumed);
        world.ticks(2);
        assert!(world.died.is_empty(), "what had queued up may still come");
        world.api(ApiEvent::Applied(pod));
        if !deleting {
            let both = vec![replacement(), side(ContainerState::Running)];
            world.lists(vec![sandbox(1, true)], both);
        }
        world.ticks(60);
        let death = first_death(&world);
        assert_eq!(death.cause, expected, "{}", death.cause_message);
    }
}

/// Nobody had to tell an end by itself from one in the pod's end.
#[test]
fn an_end_by_itself_is_told_at_once_in_an_outage() {
    let mut world = with_a_sidecar();
    world.api(broken());
    world.exits(1, CODE_0);
    let both = vec![container(1, ContainerState::Exited), side(ContainerState::Running)];
    world.later(100).lists(vec![sandbox(1, true)], both);
    world.status(1, 0);
    world.ticks(8);
    assert_eq!(first_death(&world).cause, Cause::Completed);
}

/// The object is found gone while the second container still stops: the pod was deleted, and whether the first container
/// was stopped before that nothing says.
#[test]
fn a_stop_before_its_object_is_found_gone_has_no_cause() {
    let mut world = first_of_two_ends();
    world.ticks(20);
    world.api(ApiEvent::Snapshot { pods: Vec::new() });
    world.ticks(60);
    let death = first_death(&world);
    assert_eq!(death.cause, Cause::Unknown, "{}", death.cause_message);
    side_ends(&mut world);
    world.ticks(60);
    assert_eq!(world.ended.len(), 1);
    assert_eq!(world.ended[0].cause, Cause::ApiDelete, "{}", world.ended[0].cause_message);
}

/// The apiserver's clock is 90 s behind, or ahead, or the request came when it says: a relist dates
/// no request back before the last moment at which the watch showed none.
#[test]
fn a_relist_dates_a_request_no_further_back_than_the_watch_was_told() {
    for behind in [-90, 0, 90_i64] {
        let mut world = running(1);
        world.ticks(120);
        let pod = object(1, false, world.at());
        world.api(ApiEvent::Applied(pod));
        world.later(1000).api(broken());
        let broke = world.at();
        world.ticks(5);
        let mut pod = object(1, true, world.at());
        let deadline = &mut pod.deletion_timestamp.as_mut().unwrap().0;
        *deadline -= behind * 1_000_000_000;
        let asked = world.at();
        world.later(300).term(1, true);
        world.ticks(4);
        world.api(ApiEvent::Snapshot { pods: vec![pod.clone()] });
        world.later(100).exits(1, CODE_0);
        world.stopped(1, 0);
        world.api(ApiEvent::Deleted(pod));
        world.ticks(60);
        let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
        assert_eq!(end.cause, Cause::ApiDelete, "{}", end.cause_message);
        assert!(end.began.boot >= broke, "{behind}: {:?}, before {broke:?}", end.began);
        assert!(end.began.boot <= asked + Duration::from_millis(300), "{behind}: {:?}", end.began);
    }
}

/// The apiserver's clock is some seconds ahead: by it the pod was to go when it had gone already.
#[test]
fn a_stop_in_an_outage_belongs_to_the_request_whatever_the_apiservers_clock_says() {
    for (shown, ahead) in [(true, 0), (true, 3), (true, 6), (false, 0), (false, 3), (false, 6)] {
        let mut world = if shown { running(1) } else { World::in_sync() };
        world.ticks(120);
        world.later(1000).api(broken());
        if !shown {
            world.starts(1);
            world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
        }
        world.ticks(2);
        let mut pod = object(1, true, world.at());
        pod.deletion_timestamp.as_mut().unwrap().0 += ahead * 1_000_000_000;
        world.later(300).term(1, true);
        world.later(200).exits(1, CODE_0);
        world.stopped(1, 0);
        world.ticks(8);
        world.api(ApiEvent::Snapshot { pods: vec![pod.clone()] });
        world.later(100).api(ApiEvent::Deleted(pod));
        world.ticks(60);
        let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
        assert_eq!(end.cause, Cause::ApiDelete, "{ahead}: {}", end.cause_message);
        let [death] = end.containers.as_slice() else { panic!("{ahead}: {:?}", end.containers) };
        assert_eq!(death.verdict, Verdict::Graceful, "{ahead}: {}", death.proof.message);
    }
}

/// The last that the watch told, hours ago, was that one of two containers is done. How long ago the
/// pod was deleted, in an outage just now, has nothing to do with it.
#[test]
fn what_had_ended_before_an_outage_belongs_to_no_request_in_it() {
    for shown in [true, false] {
        let mut world = with_a_sidecar();
        side_ends_alone(&mut world);
        let mut pod = probed(&world, false);
        let id = Some(sidecar().1);
        let reason = "Completed".into();
        let end = ApiTerminated { id: id.clone(), exit_code: 0, reason, finished: None };
        let done = ApiContainer { id, terminated: vec![end], ..ApiContainer::default() };
        if shown {
            pod.containers.insert("s".into(), done);
        }
        world.later(1000).api(ApiEvent::Applied(pod.clone()));
        // As shown, the break may have followed at once; unshown, nothing but time tells.
        world.ticks(if shown { 1 } else { 7200 });
        world.api(broken());
        world.ticks(5);
        pod.deletion_timestamp = object(1, true, world.at()).deletion_timestamp;
        pod.deletion_grace_seconds = Some(30);
        world.later(100).term(1, true);
        world.later(500).exits(1, CODE_0);
        world.later(500).api(ApiEvent::Snapshot { pods: vec![pod.clone()] });
        let both = vec![container(1, ContainerState::Exited), side(ContainerState::Exited)];
        world.lists(vec![sandbox(1, false)], both);
        world.status(1, 0);
        world.api(ApiEvent::Deleted(pod));
        world.ticks(90);
        let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
        let told: Vec<_> = end.containers.iter().map(|death| death.name.as_str()).collect();
        assert_eq!((end.cause, told), (Cause::ApiDelete, vec!["c"]), "shown: {shown}");
    }
}

/// The second container is done.
fn side_ends_alone(world: &mut World) {
    let (cgroup, container, task) = sidecar();
    world.kernel(KernelFact::Exit { cgroup, task, status: CODE_0, parent: Some(shim()) });
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    world.kernel(KernelFact::CgroupRemoved { cgroup });
    let both =
        vec![super::world::container(1, ContainerState::Running), side(ContainerState::Exited)];
    world.later(100).lists(vec![sandbox(1, true)], both);
    let exit = CriExit {
        container,
        started: None,
        finished: None,
        exit_code: 0,
        reason: "Completed".into(),
    };
    world.cri(CriEvent::ContainerExited(exit));
    world.ticks(2);
}

/// A Job is done while the watch is broken, and its object is deleted after that: nobody knows that
/// it was not deleted before, and nothing says that it was.
#[test]
fn a_pod_that_ended_by_itself_in_an_outage_was_perhaps_not_deleted() {
    for (stopped, expected) in [(false, Cause::Unknown), (true, Cause::ApiDelete)] {
        let mut world = running(1);
        world.ticks(60);
        world.api(broken());
        world.ticks(5);
        if stopped {
            world.term(1, true);
        }
        world.later(500).exits(1, CODE_0);
        world.stopped(1, 0);
        world.ticks(20);
        world.api(ApiEvent::Snapshot { pods: Vec::new() });
        world.ticks(60);
        let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
        assert_eq!(end.cause, expected, "{}", end.cause_message);
        let death = &end.containers[0];
        // Whether it was stopped for the deletion nothing says.
        let own = if stopped { Cause::Unknown } else { Cause::Completed };
        assert_eq!(death.cause, own, "{}", death.cause_message);
    }
}

/// The object goes in an outage, and what it stood for runs on: that was a deletion.
#[test]
fn what_still_ran_when_its_object_was_found_gone_had_been_deleted() {
    let mut world = running(1);
    world.api(broken());
    world.ticks(20);
    world.api(ApiEvent::Snapshot { pods: Vec::new() });
    world.later(2000).exits(1, CODE_0);
    world.stopped(1, 0);
    world.ticks(60);
    assert_eq!(world.ended.len(), 1);
    assert_eq!(world.ended[0].cause, Cause::ApiDelete, "{}", world.ended[0].cause_message);
}

/// An agent that has just begun, with the runtime there and the apiserver away; a pod runs.
fn never_in_sync(uses_api: bool) -> World {
    let mut world = World::new();
    let anchor = Anchor { boot_ns: 0, wall_ns: 0 };
    world.engine = Engine::new(Settings { uses_api, ..Settings::new(anchor) });
    world.cri(CriEvent::Connected { runtime: "test".into(), process: None });
    world.starts(1);
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.ticks(60);
    world
}

/// Its sandbox dies, and what runs in it.
fn sandbox_dies(world: &mut World) {
    world.exits(1, CODE_0);
    world.kernel(KernelFact::CgroupEmpty { cgroup: Cgroups::of(1).pause });
    world.kernel(KernelFact::CgroupRemoved { cgroup: Cgroups::of(1).pause });
    world.stopped(1, 0);
}

/// The sandbox of a pod dies, and while the apiserver is away CNI makes it no other for a minute.
#[test]
fn a_pod_that_the_apiserver_never_told_of_is_not_over_with_its_sandbox() {
    let mut world = never_in_sync(true);
    sandbox_dies(&mut world);
    world.ticks(60);
    assert!(world.ended.is_empty(), "it may get another sandbox");
    assert_eq!(world.died.len(), 1, "the container's death is told all the same");

    let (pod, of) = (ids(1).0, Cgroups::of(2));
    let (parent, name) = (Some(Cgroups::of(1).pod), ids(2).2.to_string());
    world.kernel(KernelFact::CgroupCreated { cgroup: of.own, parent, name, scanned: false });
    let (cgroup, task) = (of.own, init(2));
    world.kernel(KernelFact::Exec { cgroup, task, parent: shim() });
    let lists = |world: &mut World, ready, state| {
        let next = CriSandbox { pod: pod.clone(), attempt: 1, ..sandbox(2, ready) };
        let again = CriContainer { pod: Some(pod.clone()), attempt: 1, ..container(2, state) };
        let containers = vec![container(1, ContainerState::Exited), again];
        world.later(100).lists(vec![sandbox(1, false), next], containers);
    };
    lists(&mut world, true, ContainerState::Running);
    world.ticks(60);
    world.exits(2, CODE_0);
    lists(&mut world, false, ContainerState::Exited);
    world.status(2, 0);
    world.later(100).kernel(KernelFact::CgroupRemoved { cgroup: Cgroups::of(1).pod });
    world.ticks(60);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!((end.life, end.cause), (1, Cause::Completed), "{}", end.cause_message);
    assert_eq!(world.died.len(), 2);
}

/// Nobody waits for an apiserver that is none of the sources.
#[test]
fn without_an_apiserver_a_pod_is_over_with_its_sandbox() {
    let mut world = never_in_sync(false);
    sandbox_dies(&mut world);
    world.ticks(10);
    assert_eq!(world.ended.len(), 1);
}

/// The apiserver comes after the end: it tells whether that was the pod's.
#[test]
fn what_the_first_answer_tells_of_an_end_before_it() {
    for (listed, told) in [(true, 0), (false, 1)] {
        let mut world = never_in_sync(true);
        sandbox_dies(&mut world);
        world.ticks(60);
        let pod = object(1, false, world.at());
        world.api(ApiEvent::Snapshot { pods: listed.then_some(pod).into_iter().collect() });
        world.ticks(60);
        assert_eq!(world.ended.len(), told, "listed: {listed}");
    }
}

/// Nothing is kept for an apiserver that never comes once the runtime has removed the sandbox, seen
/// to lose its pod's cgroup or not.
#[test]
fn nothing_waits_for_ever_for_an_apiserver_that_never_comes() {
    for cgroups_go in [true, false] {
        let mut world = never_in_sync(true);
        sandbox_dies(&mut world);
        world.ticks(60);
        if cgroups_go {
            world.kernel(KernelFact::CgroupRemoved { cgroup: Cgroups::of(1).pod });
        }
        world.lists(Vec::new(), Vec::new());
        world.later(500).lists(Vec::new(), Vec::new());
        world.ticks(60);
        assert_eq!(world.ended.len(), 1, "{cgroups_go}");
        world.ticks(700);
        let gauges = world.engine.gauges();
        assert_eq!((gauges.containers, gauges.sandboxes), (0, 0), "{cgroups_go}: {gauges:?}");
    }
}

/// The object went at some time in an outage of 100 s: how long the pod took is known as an interval, and so
/// is the phase that ended with the object.
#[test]
fn a_duration_that_ends_in_an_outage_is_an_interval() {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.term(1, true);
    world.later(2000).exits(1, CODE_0);
    world.stopped(1, 0);
    world.api(broken());
    world.ticks(100);
    world.api(ApiEvent::Snapshot { pods: Vec::new() });
    world.ticks(60);
    let end = world.reports().next().expect("a report");
    let gone = end.milestone(MilestoneKind::ObjectGone).expect("it is gone");
    assert!(gone.uncertainty > Duration::from_secs(95), "{end:?}");
    let known_to = end.took - end.uncertainty;
    assert!(!end.is_exact() && known_to < Duration::from_secs(5), "{known_to:?}: {end:?}");
    let cleanup = end.phases.iter().find(|p| p.kind == PhaseKind::Cleanup).expect("a cleanup");
    assert!(!cleanup.is_exact() && cleanup.uncertainty > Duration::from_secs(95), "{cleanup:?}");
    let shutdown = end.phases.iter().find(|p| p.kind == PhaseKind::Shutdown).expect("a shutdown");
    assert!(shutdown.is_exact(), "{shutdown:?}");
}
