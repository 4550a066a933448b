//! Why a container was stopped, where the order in which its status showed that is lost or not yet known. The simulation
//! found each of these.

use super::world::{
    CODE_0, Cgroups, World, container, ids, object, running, sandbox, shows_its_end,
};
use coroner_core::{
    input::{ApiContainer, ApiEvent, ApiPod, ContainerState, Input, KernelFact},
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
    world.ticks(10);
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
