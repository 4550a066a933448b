//! Static pods: the kubelet has them from files, and the apiserver only an image of each.

use super::world::{
    CODE_0, Cgroups, World, container, ids, init, object, of_file, sandbox, second, shim,
};
use coroner_core::{
    api::ApiState,
    dirty::Dirty,
    input::{ApiEvent, ApiPod, ContainerState, CriEvent, CriSandbox, KernelFact},
    time::{Anchor, BootTime, WallTime},
    types::{Cause, MilestoneKind},
};

fn mirror(own_uid: &str) -> ApiPod {
    let object = object(1, false, BootTime(0));
    ApiPod { mirror_of: Some(ids(1).0), uid: own_uid.into(), ..object }
}

#[test]
fn deleting_a_mirror_ends_nothing_and_removing_the_manifest_does() {
    let mut world = World::in_sync();
    world.starts(1);
    world.lists(vec![of_file(sandbox(1, true))], vec![container(1, ContainerState::Running)]);
    world.api(ApiEvent::Applied(mirror("a")));
    world.api(ApiEvent::Deleted(mirror("a")));
    world.later(300).api(ApiEvent::Applied(mirror("b")));
    world.ticks(60);
    assert!(world.ended.is_empty() && world.died.is_empty());
    world.term(1, true);
    world.later(1000).exits(1, CODE_0);
    world
        .later(100)
        .lists(vec![of_file(sandbox(1, false))], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.later(500).api(ApiEvent::Deleted(mirror("b")));
    world.ticks(10);
    let end = &world.ended[0];
    assert_eq!(end.cause, Cause::StaticRemoved);
    assert!(end.milestone(MilestoneKind::ObjectGone).is_some());
}

/// It runs for a second, and leaves when its manifest is removed.
fn life(world: &mut World) {
    world.api(ApiEvent::Applied(mirror("a")));
    world.starts(1);
    world.lists(vec![of_file(sandbox(1, true))], vec![container(1, ContainerState::Running)]);
    world.later(1000).ticks(1);
    world.term(1, true);
    world.later(2000).exits(1, CODE_0);
    world.lists(vec![of_file(sandbox(1, false))], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
}

/// Another manifest of the same name is another pod, which the kubelet starts when the first has ended.
#[test]
fn a_manifest_that_was_changed_is_not_called_removed() {
    let told = |name: &str, next: CriSandbox| {
        let mut world = World::in_sync();
        life(&mut world);
        let mut next = next;
        (next.name, next.created) =
            (name.into(), sandbox(1, true).created.map(|at| WallTime(at.0 + 1)));
        let ended = (of_file(sandbox(1, false)), container(1, ContainerState::Exited));
        world.later(500).lists(vec![ended.0, next], vec![ended.1]);
        world.api(ApiEvent::Deleted(mirror("a")));
        world.ticks(60);
        (world.ended[0].cause, world.ended[0].cause_message.contains("its manifest was changed"))
    };
    let (own, next) = (sandbox(1, true).name, sandbox(2, true));
    assert_eq!(told(&own, of_file(next.clone())), (Cause::StaticRemoved, true));
    assert_eq!(told("another", of_file(next.clone())), (Cause::StaticRemoved, false));
    let by_anyone = CriSandbox { config_source: Some("api".into()), ..next };
    assert_eq!(told(&own, by_anyone), (Cause::StaticRemoved, false));
}

/// The first life has ended a moment ago, and the second one runs.
fn second_life() -> World {
    let mut world = World::in_sync();
    life(&mut world);
    world.ticks(2);
    second_begins(&mut world);
    lists_second(&mut world, true);
    world
}

fn second_begins(world: &mut World) {
    let of = Cgroups::of(2);
    for (cgroup, parent, name) in [
        (of.pause, Some(Cgroups::of(1).pod), ids(2).1.to_string()),
        (of.own, Some(Cgroups::of(1).pod), ids(2).2.to_string()),
    ] {
        world.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    }
    world.kernel(KernelFact::Exec { cgroup: of.own, task: init(2), parent: shim() });
}

fn lists_second(world: &mut World, runs: bool) {
    let state = if runs { ContainerState::Running } else { ContainerState::Exited };
    let (sandbox_2, container_2) = second(runs, state);
    world.lists(
        vec![of_file(sandbox(1, false)), sandbox_2],
        vec![container(1, ContainerState::Exited), container_2],
    );
}

#[test]
fn a_static_pod_that_comes_back_at_once_ends_its_first_life() {
    let mut world = second_life();
    world.ticks(120);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!((end.cause, end.life, world.died.len()), (Cause::StaticRemoved, 1, 1));
}

/// The mirror pod's status names the second instance's container before any list has its sandbox: it does not
/// belong to the sandbox of the first, and a list of that one's containers does not say that it is gone.
#[test]
fn a_container_that_is_not_listed_yet_is_not_the_first_instances() {
    let mut world = World::in_sync();
    life(&mut world);
    second_begins(&mut world);
    let mut pod = mirror("b");
    pod.containers.get_mut("c").unwrap().id = Some(ids(2).2);
    world.api(ApiEvent::Applied(pod));
    world.ticks(2);
    for _ in 0..2 {
        let (asked, only) = (world.at(), Some(ids(1).1));
        let containers = vec![container(1, ContainerState::Exited)];
        world.later(100).cri(CriEvent::Containers { asked, only, containers });
    }
    lists_second(&mut world, true);
    world.later(10_000).ticks(1);
    world.term(2, true);
    world.later(100).exits(2, CODE_0);
    lists_second(&mut world, false);
    world.status(2, 0);
    world.ticks(120);
    assert_eq!(world.ended.len(), 2);
    assert_eq!(world.ended[1].containers[0].findings, []);
}

/// The runtime's lists are late: the second instance's sandbox and container are listed before the first's are
/// listed as ended.
#[test]
fn the_kernel_shows_that_an_instance_is_over_before_the_runtime_does() {
    let mut world = World::in_sync();
    world.api(ApiEvent::Applied(mirror("a")));
    world.starts(1);
    let first = || of_file(sandbox(1, true));
    world.lists(vec![first()], vec![container(1, ContainerState::Running)]);
    world.later(1000).ticks(1);
    world.term(1, true);
    world.later(2000).exits(1, CODE_0);
    let cgroup = Cgroups::of(1).pause;
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    second_begins(&mut world);
    world.ticks(2);
    let (sandbox_2, container_2) = second(true, ContainerState::Running);
    for _ in 0..2 {
        world.lists(vec![sandbox_2.clone()], vec![container_2.clone()]);
        world.ticks(20);
    }
    world.ticks(60);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!((end.cause, end.containers.len()), (Cause::StaticRemoved, 1), "{end:?}");
}

#[test]
fn two_lives_within_the_settle_window_are_two() {
    let mut world = second_life();
    world.ticks(1);
    world.term(2, true);
    world.later(100).exits(2, CODE_0);
    lists_second(&mut world, false);
    world.status(2, 0);
    world.ticks(120);
    assert_eq!(world.ended.iter().map(|e| e.life).collect::<Vec<_>>(), [1, 2]);
    let ids: Vec<_> = world.ended.iter().map(|e| e.containers[0].id.clone()).collect();
    assert_eq!(ids, [super::world::ids(1).2, super::world::ids(2).2]);
}

#[test]
fn a_later_life_has_its_own_number() {
    let mut world = World::in_sync();
    for _ in 0..2 {
        life(&mut world);
        world.api(ApiEvent::Deleted(mirror("a")));
        world.cgroups_go(1);
        world.lists(vec![], vec![]);
        world.ticks(120);
    }
    assert_eq!(world.ended.iter().map(|e| e.life).collect::<Vec<_>>(), [1, 2]);
}

/// The report of an incarnation is final when the next one has a sandbox.
#[test]
fn a_report_is_counted_in_time_although_the_pod_is_back() {
    let mut world = World::in_sync();
    world.api(ApiEvent::Applied(mirror("a")));
    world.starts(1);
    world.lists(vec![of_file(sandbox(1, true))], vec![container(1, ContainerState::Running)]);
    world.later(1000).ticks(1);
    world.term(1, true);
    world.exits(1, CODE_0);
    world.lists(vec![of_file(sandbox(1, false))], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(45);
    let (next, _) = second(true, ContainerState::Running);
    world.lists(vec![of_file(sandbox(1, false)), next], vec![container(1, ContainerState::Exited)]);
    assert_eq!((world.ended.len(), world.counted.len()), (1, 0));
    world.ticks(1);
    assert_eq!((world.counted.len(), world.counted_deaths.len()), (1, 1));
}

#[test]
fn a_pods_own_object_is_kept_beside_one_that_claims_to_mirror_it() {
    let (uid, anchor) = (ids(1).0, Anchor { boot_ns: 0, wall_ns: 0 });
    let mut api = ApiState::default();
    let own = object(1, false, BootTime(0));
    let events = [
        ApiEvent::Applied(own.clone()),
        ApiEvent::Applied(mirror("evil")),
        ApiEvent::Deleted(mirror("evil")),
        ApiEvent::Snapshot { pods: vec![mirror("evil"), own.clone()] },
    ];
    for (at, event) in events.into_iter().enumerate() {
        api.apply(BootTime(at as u64), event, anchor, &mut Dirty::default());
        let kept = api.get(&uid).expect("the pod");
        assert!(kept.exists() && kept.pod == own, "{kept:?}");
    }
    let snapshot = ApiEvent::Snapshot { pods: vec![mirror("evil")] };
    api.apply(BootTime(9), snapshot, anchor, &mut Dirty::default());
    assert!(!api.get(&uid).expect("the pod").exists(), "the list lacks it");
}

/// Whoever creates a pod can annotate it as the mirror of any UID, and have the node own it.
#[test]
fn a_pod_that_claims_to_mirror_another_changes_nothing_of_it() {
    for claimed_first in [false, true] {
        let mut world = World::in_sync();
        let mut pod = object(1, false, world.at());
        pod.containers.get_mut("c").unwrap().id = Some(ids(1).2);
        let claims = || ApiEvent::Applied(mirror("evil"));
        if claimed_first {
            world.api(claims());
        }
        world.starts(1);
        world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
        world.api(ApiEvent::Applied(pod.clone()));
        world.api(claims());
        world.api(ApiEvent::Deleted(mirror("evil")));
        world.ticks(5);
        let deleting = object(1, true, world.at());
        (pod.deletion_timestamp, pod.deletion_grace_seconds) =
            (deleting.deletion_timestamp, deleting.deletion_grace_seconds);
        world.api(ApiEvent::Applied(pod.clone()));
        world.later(100).term(1, true);
        world.later(500).exits(1, CODE_0);
        world.stopped(1, 0);
        world.later(500).api(ApiEvent::Deleted(pod));
        world.ticks(30);
        let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
        assert_eq!((end.cause, end.grace_seconds), (Cause::ApiDelete, Some(30)), "{end:?}");
    }
}
