//! The engine's memory is bounded: after any number of pods it holds what it held after a few.

use super::world::{CODE_0, Cgroups, World, container, ids, init, object, sandbox, shim};
use coroner::domain::{
    engine::Gauges,
    ids::CgroupId,
    input::{ApiEvent, CriEvent, CriState, ExitStatus, KernelFact, LossKind},
};

/// One pod from its beginning to its end, with all three sources telling.
fn life(world: &mut World, n: u64) {
    let at = world.at();
    world.api(ApiEvent::Applied(object(n, false, at)));
    world.starts(n);
    world.lists(vec![sandbox(n, true)], vec![container(n, CriState::Running)]);
    world.api(ApiEvent::Applied(object(n, true, at)));
    world.exits(n, ExitStatus::Code(0));
    world.cgroups_go(n);
    world.lists(vec![sandbox(n, false)], vec![container(n, CriState::Exited)]);
    world.status(n, 0);
    world.api(ApiEvent::Deleted(object(n, true, at)));
    world.lists(Vec::new(), Vec::new());
    world.ticks(1);
}

fn after(pods: u64) -> (Gauges, usize, usize) {
    let mut world = World::in_sync();
    for n in 1..=pods {
        life(&mut world, n);
    }
    world.ticks(200);
    (world.engine.gauges(), world.ended.len(), world.died.len())
}

#[test]
fn nothing_stays_of_pods_that_are_gone() {
    let (gauges, ended, died) = after(3_000);
    assert_eq!((ended, died), (3_000, 3_000), "each is told once");
    assert_eq!(gauges, Gauges::default(), "and then forgotten");
}

/// Cgroups that no runtime ever explains are given up, and counted.
#[test]
fn unexplained_containers_are_given_up() {
    let mut world = World::new();
    world.cri(CriEvent::Connected { runtime: "test".into(), process: None });
    for n in 1..=100 {
        let (pod, _, id) = ids(n);
        let name = format!("/kubepods/pod{pod}/{id}");
        let cgroup = CgroupId(n);
        world.kernel(KernelFact::CgroupCreated { cgroup, parent: None, name, scanned: false });
        world.kernel(KernelFact::CgroupEmpty { cgroup });
        world.kernel(KernelFact::CgroupRemoved { cgroup });
    }
    world.ticks(120);
    let gauges = world.engine.gauges();
    assert_eq!((gauges.cgroups, gauges.containers), (0, 0));
    let lost: Vec<_> = gauges.losses.into_iter().collect();
    assert_eq!(lost, [(LossKind::NeverResolved, 100)]);
}

/// More containers than the engine follows: the rest is refused and counted, never a panic.
#[test]
fn too_many_containers_are_refused() {
    let mut world = World::new();
    for n in 1..=20_000 {
        let (pod, _, id) = ids(n);
        let name = format!("/kubepods/pod{pod}/{id}");
        let cgroup = CgroupId(n);
        world.kernel(KernelFact::CgroupCreated { cgroup, parent: None, name, scanned: false });
    }
    let gauges = world.engine.gauges();
    assert!(gauges.containers <= 16_384, "{}", gauges.containers);
    let refused = gauges.losses[&LossKind::EngineFull];
    assert_eq!(refused + gauges.containers as u64, 20_000);
}

#[test]
fn late_records_of_forgotten_cgroups_do_not_stay() {
    let mut world = World::in_sync();
    for n in 1..=100 {
        world.kernel(KernelFact::Exit {
            cgroup: Cgroups::of(n).own,
            task: init(n),
            status: CODE_0,
            parent: Some(shim()),
        });
    }
    world.ticks(48 * 3600);
    assert_eq!(world.engine.gauges().containers, 0);
}
