//! Why a container was stopped, where the order in which its status showed that is lost or not yet known. The simulation
//! found each of these.

use super::world::{
    CODE_0, Cgroups, World, container, ids, is_replaced, object, replacement, running, sandbox,
    shim, shows_its_end, task,
};
use coroner_core::{
    input::{
        ApiContainer, ApiEvent, ApiPod, ApiProbe, ContainerState, CriContainer, Hook, Input,
        KernelFact,
    },
    report::ContainerDeath,
    time::{Anchor, WallTime},
    types::Cause,
};

fn broken() -> ApiEvent {
    ApiEvent::OutOfSync { error: "connection refused".into() }
}

/// The pod, which the kubelet restarts, with its container as `change` makes it.
fn pod(world: &World, change: impl Fn(&mut ApiContainer)) -> ApiPod {
    let mut pod = object(1, false, world.at());
    pod.restart_policy = "Always".into();
    let one = pod.containers.get_mut("c").expect("it is in the spec");
    (one.id, one.started) = (Some(ids(1).2), Some(true));
    change(one);
    pod
}

fn probed(one: &mut ApiContainer) {
    one.liveness = Some(ApiProbe::default());
    one.pre_stop = Some(Hook::Exec("hook".into()));
}

/// A process that enters the container, and ends.
fn enters(world: &mut World, name: &str) {
    let (cgroup, task) = (Cgroups::of(1).own, task(900, 90, name));
    world.kernel(KernelFact::Exec { cgroup, task: task.clone(), parent: shim() });
    let (status, parent) = (CODE_0, Some(shim()));
    world.later(300).kernel(KernelFact::Exit { cgroup, task, status, parent });
}

fn with_hash(one: CriContainer, hash: &str) -> CriContainer {
    CriContainer { hash: Some(hash.into()), ..one }
}

/// It is stopped and replaced in an outage of the watch, and a list shows the rest.
fn stopped_in_an_outage(change: fn(&mut ApiContainer), hook: bool, next: &str) -> ContainerDeath {
    let mut world = running(1);
    let mut pod = pod(&world, change);
    world.api(ApiEvent::Applied(pod.clone()));
    world.later(500).api(broken());
    world.ticks(2);
    if hook {
        enters(&mut world, "hook");
    }
    world.later(10).term(1, true);
    world.later(500).exits(1, CODE_0);
    let own = with_hash(container(1, ContainerState::Exited), "a");
    world.later(300).lists(vec![sandbox(1, true)], vec![own, with_hash(replacement(), next)]);
    world.status(1, 0);
    is_replaced(pod.containers.get_mut("c").expect("it is in the spec"), 1);
    world.later(5_000).api(ApiEvent::Snapshot { pods: vec![pod] });
    world.ticks(60);
    let [death] = world.died.as_slice() else { panic!("{:?}", world.died) };
    death.clone()
}

/// Only the kubelet runs preStop hooks.
#[test]
fn a_hook_shows_that_the_kubelet_stopped_it() {
    let death = stopped_in_an_outage(probed, true, "a");
    assert_eq!(death.cause, Cause::Liveness, "{}", death.cause_message);
    let death = stopped_in_an_outage(probed, false, "a");
    assert_eq!(death.cause, Cause::Restart, "{}", death.cause_message);
}

/// A probe of the same name may be what was seen.
#[test]
fn a_probe_of_the_hooks_name_shows_nothing() {
    let shared = |one: &mut ApiContainer| {
        probed(one);
        one.liveness = Some(ApiProbe { exec: Some("hook".into()), ..ApiProbe::default() });
    };
    let death = stopped_in_an_outage(shared, true, "a");
    assert_eq!(death.cause, Cause::Restart, "{}", death.cause_message);
}

/// Of the kubelet's reasons only a probe leaves no trace.
#[test]
fn what_the_kubelet_had_no_reason_to_stop_it_did_not() {
    let death = stopped_in_an_outage(|_| (), false, "a");
    assert_eq!(death.cause, Cause::ExternalStop, "{}", death.cause_message);
    let death = stopped_in_an_outage(|_| (), false, "b");
    assert_eq!(death.cause, Cause::DefinitionChanged, "{}", death.cause_message);
    let hook = |one: &mut ApiContainer| one.pre_stop = Some(Hook::Exec("hook".into()));
    let death = stopped_in_an_outage(hook, true, "a");
    assert_eq!(death.cause, Cause::Restart, "{}", death.cause_message);
    let held_up = |one: &mut ApiContainer| {
        (one.post_start, one.started) = (Some(Hook::HttpGet), None);
    };
    let death = stopped_in_an_outage(held_up, false, "a");
    assert_eq!(death.cause, Cause::Restart, "{}", death.cause_message);
}

/// A list that shows the request dates it into the whole outage. The sandbox, stopped twenty seconds after the
/// container, shows that the container was not stopped for it; also where the object is gone by then.
#[test]
fn what_the_rest_of_its_pod_outlived_was_not_stopped_for_the_deletion() {
    for is_gone in [false, true] {
        let mut world = running(1);
        let shown = pod(&world, |_| ());
        world.api(ApiEvent::Applied(shown.clone()));
        world.later(500).api(broken());
        world.later(10).term(1, true);
        world.later(500).exits(1, CODE_0);
        world.later(100).lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
        world.status(1, 0);
        world.ticks(20);
        let mut deleted = ApiPod {
            deletion_timestamp: Some(WallTime(world.at().0 as i64 + 30_000_000_000)),
            deletion_grace_seconds: Some(30),
            ..shown
        };
        if !is_gone {
            world.api(ApiEvent::Snapshot { pods: vec![deleted.clone()] });
        }
        world.later(300).kernel(KernelFact::CgroupEmpty { cgroup: Cgroups::of(1).pause });
        world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
        shows_its_end(deleted.containers.get_mut("c").expect("it is in the spec"), 1);
        deleted.phase = "Succeeded".into();
        let last = if is_gone {
            ApiEvent::Snapshot { pods: Vec::new() }
        } else {
            ApiEvent::Deleted(deleted)
        };
        world.later(1_000).api(last);
        world.ticks(60);
        let death = &world.died[0];
        assert_ne!(death.cause, Cause::ApiDelete, "{is_gone}: {}", death.cause_message);
    }
}

/// The image is changed, the kubelet stops the container for that, and the pod is deleted meanwhile.
#[test]
fn a_deletion_does_not_take_the_place_of_a_changed_image_before_it() {
    let mut world = running(1);
    let mut shown = pod(&world, |_| ());
    world.api(ApiEvent::Applied(shown.clone()));
    world.later(5_000);
    shown.containers.get_mut("c").expect("it is in the spec").image = 2;
    world.api(ApiEvent::Applied(shown.clone()));
    world.later(50).term(1, true);
    shown.deletion_timestamp = Some(WallTime(world.at().0 as i64 + 30_000_000_000));
    shown.deletion_grace_seconds = Some(30);
    world.later(300).api(ApiEvent::Applied(shown.clone()));
    world.later(500).exits(1, CODE_0);
    world.stopped(1, 0);
    shows_its_end(shown.containers.get_mut("c").expect("it is in the spec"), 1);
    shown.phase = "Succeeded".into();
    world.later(1_000).api(ApiEvent::Deleted(shown));
    world.ticks(60);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!(end.cause, Cause::ApiDelete);
    let death = &end.containers[0];
    assert_eq!(death.cause, Cause::DefinitionChanged, "{}", death.cause_message);
}

/// The node's clock is set after the request, by which the request then seems to be older than the stop.
#[test]
fn a_request_is_dated_by_the_clock_at_its_receipt() {
    let mut world = running(1);
    let mut shown = pod(&world, |_| ());
    world.api(ApiEvent::Applied(shown.clone()));
    world.later(20_000).term(1, true);
    world.later(8_000);
    shown.deletion_timestamp = Some(WallTime(world.at().0 as i64 + 30_000_000_000));
    shown.deletion_grace_seconds = Some(30);
    world.api(ApiEvent::Applied(shown.clone()));
    let boot_ns = world.at().0;
    world.say(Input::Clock(Anchor { boot_ns, wall_ns: boot_ns as i64 + 60_000_000_000 }));
    world.later(500).exits(1, CODE_0);
    world.stopped(1, 0);
    shows_its_end(shown.containers.get_mut("c").expect("it is in the spec"), 1);
    shown.phase = "Succeeded".into();
    world.later(1_000).api(ApiEvent::Deleted(shown));
    world.ticks(60);
    let death = &world.died[0];
    assert_ne!(death.cause, Cause::ApiDelete, "{}", death.cause_message);
}

/// Back-off is counted per definition, so what waits in it has the same.
#[test]
fn what_waits_in_back_off_has_the_same_definition() {
    let mut world = World::new();
    let shown = pod(&world, |one| one.liveness = Some(ApiProbe::default()));
    world.api(ApiEvent::Snapshot { pods: vec![shown.clone()] });
    world.cgroups_come(1);
    let (cgroup, task) = (Cgroups::of(1).own, super::world::init(1));
    world.kernel(KernelFact::Running { cgroup, task });
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.ticks(120);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    let mut waits = shown;
    let one = waits.containers.get_mut("c").expect("it is in the spec");
    shows_its_end(one, 1);
    (one.waiting, one.restarts) = (Some("CrashLoopBackOff".into()), 0);
    world.api(ApiEvent::Applied(waits));
    world.ticks(60);
    let [death] = world.died.as_slice() else { panic!("{:?}", world.died) };
    assert_eq!(death.cause, Cause::Liveness, "{}", death.cause_message);
}

/// The pod came, was deleted and collected in an outage, and the watch goes on where it was.
#[test]
fn a_pod_that_came_and_went_in_an_outage_has_its_cause_when_the_watch_is_back() {
    let mut world = World::in_sync();
    world.later(500).api(broken());
    world.starts(1);
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    let mut shown = pod(&world, |_| ());
    world.later(20_000).term(1, true);
    world.later(500).exits(1, CODE_0);
    world.stopped(1, 0);
    let asked = world.at();
    world.later(1_000).cgroups_go(1);
    world.ticks(30);
    world.lists(Vec::new(), Vec::new());
    world.ticks(100);
    assert_eq!(world.ended[0].cause, Cause::Unknown, "nothing shows it yet");
    world.api(ApiEvent::Resumed);
    world.later(100).api(ApiEvent::Applied(shown.clone()));
    world.ticks(2);
    shows_its_end(shown.containers.get_mut("c").expect("it is in the spec"), 1);
    shown.deletion_timestamp = Some(WallTime(asked.0 as i64 + 29_000_000_000));
    shown.deletion_grace_seconds = Some(30);
    shown.phase = "Succeeded".into();
    world.later(100).api(ApiEvent::Deleted(shown));
    world.ticks(20);
    let last = world.reports().last().expect("a report");
    assert_eq!(last.cause, Cause::ApiDelete, "{}", last.cause_message);
}
