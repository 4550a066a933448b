//! Static pods: the kubelet has them from files, and the apiserver only an image of each.

use super::world::{
    CODE_0, Cgroups, World, container, ids, init, object, of_file, sandbox, second, shim,
};
use coroner::domain::{
    input::{ApiEvent, ApiPod, CriState, KernelFact},
    observation::{Cause, MilestoneKind},
    time::BootTime,
};

fn mirror(own_uid: &str) -> ApiPod {
    let object = object(1, false, BootTime(0));
    ApiPod { mirror_of: Some(ids(1).0), uid: own_uid.into(), ..object }
}

#[test]
fn deleting_a_mirror_ends_nothing_and_removing_the_manifest_does() {
    let mut world = World::in_sync();
    world.starts(1);
    world.lists(vec![of_file(sandbox(1, true))], vec![container(1, CriState::Running)]);
    world.api(ApiEvent::Applied(mirror("a")));
    world.api(ApiEvent::Deleted(mirror("a")));
    world.later(300).api(ApiEvent::Applied(mirror("b")));
    world.ticks(60);
    assert!(world.ended.is_empty() && world.died.is_empty());
    world.term(1, true);
    world.later(1000).exits(1, CODE_0);
    world.later(100).lists(vec![of_file(sandbox(1, false))], vec![container(1, CriState::Exited)]);
    world.status(1, 0);
    world.later(500).api(ApiEvent::Deleted(mirror("b")));
    world.ticks(10);
    let end = &world.ended[0];
    assert_eq!(end.cause, Cause::StaticRemoved);
    assert!(end.milestone(MilestoneKind::ObjectGone).is_some());
}

#[test]
fn a_static_pod_that_comes_back_at_once_ends_its_first_life() {
    let mut world = World::in_sync();
    world.api(ApiEvent::Applied(mirror("a")));
    world.starts(1);
    world.lists(vec![of_file(sandbox(1, true))], vec![container(1, CriState::Running)]);
    world.later(1000).ticks(1);
    world.term(1, true);
    world.later(2000).exits(1, CODE_0);
    world.lists(vec![of_file(sandbox(1, false))], vec![container(1, CriState::Exited)]);
    world.status(1, 0);
    world.ticks(3);
    let (s, c) = second(true, CriState::Running);
    let of = Cgroups::of(2);
    for (cgroup, parent, name) in [
        (of.pause, Some(Cgroups::of(1).pod), ids(2).1.to_string()),
        (of.own, Some(Cgroups::of(1).pod), ids(2).2.to_string()),
    ] {
        world.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    }
    world.kernel(KernelFact::Exec { cgroup: of.own, task: init(2), parent: shim() });
    world.lists(vec![of_file(sandbox(1, false)), s], vec![container(1, CriState::Exited), c]);
    world.ticks(120);
    assert_eq!(world.died.len(), 1);
    assert_eq!(
        world.ended.len(),
        1,
        "the first life's end; the death said {:?}",
        world.died[0].cause
    );
}

#[test]
fn a_later_life_has_its_own_number() {
    let mut world = World::in_sync();
    for _ in 0..2 {
        world.api(ApiEvent::Applied(mirror("a")));
        world.starts(1);
        world.lists(vec![of_file(sandbox(1, true))], vec![container(1, CriState::Running)]);
        world.later(1000).ticks(1);
        world.term(1, true);
        world.later(2000).exits(1, CODE_0);
        world.lists(vec![of_file(sandbox(1, false))], vec![container(1, CriState::Exited)]);
        world.status(1, 0);
        world.api(ApiEvent::Deleted(mirror("a")));
        world.cgroups_go(1);
        world.lists(vec![], vec![]);
        world.ticks(120);
    }
    assert_eq!(world.ended.iter().map(|e| e.life).collect::<Vec<_>>(), [1, 2]);
}
