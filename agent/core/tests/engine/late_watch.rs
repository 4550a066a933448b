//! A watch that is two minutes late while a whole node is drained: each deletion is reported and counted
//! once, and what waits is bounded by what was there.

use super::world::{CODE_0, World, container, ids, object, sandbox};
use coroner_core::{
    engine::Gauges,
    input::{ApiEvent, ContainerState, CriContainer, CriSandbox},
    types::{Cause, MilestoneKind, Verdict},
};
use std::collections::BTreeSet;

const PODS: u64 = 250;
/// A watch that hangs is noticed by then (`kube/watch.rs`).
const LATE: u64 = 120;

/// What the watch shows of the pods that it learns late.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Watch {
    /// It hangs, and then delivers every event.
    Hangs,
    /// It is broken, and the next list has none of the pods.
    Breaks,
    /// It hangs, and has not even shown that the pods were created.
    HangsFromTheStart,
}

/// The runtime's lists: of the pods from the first on, so many are removed, and so many are stopped.
fn lists(world: &mut World, removed: u64, stopped: u64) {
    let state = |n| if n <= stopped { ContainerState::Exited } else { ContainerState::Running };
    let left = removed + 1..=PODS;
    let sandboxes: Vec<CriSandbox> = left.clone().map(|n| sandbox(n, n > stopped)).collect();
    let containers: Vec<CriContainer> = left.map(|n| container(n, state(n))).collect();
    world.lists(sandboxes, containers);
}

/// All pods of the node are deleted within the two minutes. The runtime has removed each sandbox 10 s after
/// it was stopped; the most that the engine holds meanwhile.
fn drained(watch: Watch) -> (World, Gauges) {
    let mut world = World::in_sync();
    for n in 1..=PODS {
        if watch != Watch::HangsFromTheStart {
            let at = world.at();
            world.api(ApiEvent::Applied(object(n, false, at)));
        }
        world.starts(n);
    }
    lists(&mut world, 0, 0);
    world.ticks(10);
    if watch == Watch::Breaks {
        world.api(ApiEvent::OutOfSync { error: "reset".into() });
    }
    let mut most = Gauges::default();
    let mut asked = Vec::new();
    // Some 2.5 in a second: the last ones end 20 s before the watch is back.
    for second in 0..LATE {
        let of = |second: u64| (second * 5 / 2).min(PODS);
        for n in of(second) + 1..=of(second + 1) {
            asked.push(world.at());
            world.term(n, true);
            world.exits(n, CODE_0);
            world.cgroups_go(n);
        }
        world.later(100);
        let removed = of(second.saturating_sub(10));
        lists(&mut world, removed, of(second + 1));
        for n in of(second) + 1..=of(second + 1) {
            world.status(n, 0);
        }
        world.ticks(1);
        let now = world.engine.gauges();
        most.cgroups = most.cgroups.max(now.cgroups);
        most.containers = most.containers.max(now.containers);
        most.sandboxes = most.sandboxes.max(now.sandboxes);
        most.objects = most.objects.max(now.objects);
        most.pods = most.pods.max(now.pods);
    }
    if watch == Watch::Breaks {
        world.api(ApiEvent::Snapshot { pods: Vec::new() });
    } else {
        for (n, at) in (1..).zip(asked) {
            world.api(ApiEvent::Applied(object(n, true, at)));
            world.api(ApiEvent::Deleted(object(n, true, at)));
        }
    }
    (world, most)
}

#[test]
fn what_a_late_watch_delays_is_reported_and_counted_once() {
    for watch in [Watch::Hangs, Watch::Breaks] {
        let (mut world, most) = drained(watch);
        assert!(world.ended.is_empty(), "{watch:?}: whether they were deleted is not known yet");
        let of_unknown_cause = world.died.iter().filter(|death| death.cause == Cause::Unknown);
        assert_eq!(of_unknown_cause.count(), world.died.len(), "{watch:?}: nor why");
        world.ticks(20);
        assert_eq!(world.ended.len() as u64, PODS, "{watch:?}");
        assert_eq!(world.died.len() as u64, PODS, "{watch:?}");
        for end in &world.ended {
            assert_eq!(end.cause, Cause::ApiDelete, "{watch:?}: {}", end.cause_message);
            assert_eq!(end.containers[0].verdict, Verdict::Graceful, "{watch:?}");
            assert!(end.milestone(MilestoneKind::ObjectGone).is_some(), "{watch:?}: {end:?}");
            assert!(end.is_final, "{watch:?}: {end:?}");
        }
        assert_eq!(world.counted, world.ended, "{watch:?}: each at once, and no second time");
        assert_eq!(world.counted_deaths.len(), world.died.len(), "{watch:?}");
        let revised = world.updated.iter().filter(|(_, change)| change.is_revision());
        assert_eq!(revised.count(), 0, "{watch:?}: nothing was reported too early");

        let pods = PODS as usize;
        assert_eq!((most.objects, most.sandboxes, most.pods), (pods, pods, pods), "{watch:?}");
        assert!(most.containers <= 2 * pods && most.cgroups <= 3 * pods, "{watch:?}: {most:?}");
        lists(&mut world, PODS, PODS);
        world.ticks(120);
        assert_eq!(world.engine.gauges(), Gauges::default(), "{watch:?}: nothing stays");
    }
}

/// The runtime alone has shown these pods: each is reported without the apiserver, and what that tells
/// later makes one update at most.
#[test]
fn pods_that_a_late_watch_never_showed_are_reported_and_counted_once() {
    let (mut world, most) = drained(Watch::HangsFromTheStart);
    world.ticks(20);
    lists(&mut world, PODS, PODS);
    world.ticks(180);
    assert_eq!((world.ended.len(), world.died.len()), (PODS as usize, PODS as usize));
    assert_eq!(world.counted.len(), world.ended.len());
    assert_eq!(world.counted_deaths.len(), world.died.len());
    for end in world.reports() {
        assert!(end.is_final && end.revision <= 2, "{end:?}");
        assert!(matches!(end.cause, Cause::ApiDelete | Cause::Unknown), "{}", end.cause_message);
        assert_eq!(end.containers[0].verdict, Verdict::Graceful);
    }
    let uids: BTreeSet<_> = (1..=PODS).map(|n| ids(n).0).collect();
    assert_eq!(world.reports().map(|end| end.pod.uid.clone()).collect::<BTreeSet<_>>(), uids);
    let pods = PODS as usize;
    assert!(most.sandboxes <= pods && most.pods <= pods, "{most:?}");
    assert!(most.containers <= 2 * pods && most.cgroups <= 3 * pods, "{most:?}");
    assert_eq!(world.engine.gauges(), Gauges::default(), "nothing stays");
}

/// A container is stopped before the watch has shown its pod: why is known only from the watch.
#[test]
fn a_death_waits_for_the_first_state_of_its_pod() {
    let mut world = World::in_sync();
    world.starts(1);
    let listed = |state| (vec![sandbox(1, true)], vec![container(1, state)]);
    let (sandboxes, containers) = listed(ContainerState::Running);
    world.lists(sandboxes, containers);
    world.later(2000).term(1, true);
    world.later(500).exits(1, CODE_0);
    let (sandboxes, containers) = listed(ContainerState::Exited);
    world.later(100).lists(sandboxes, containers);
    world.status(1, 0);
    world.ticks(50);
    assert_eq!(world.died.len(), 0, "{:?}", world.died);
    let mut pod = object(1, false, world.at());
    pod.containers.get_mut("c").expect("it has one").id = Some(ids(1).2);
    world.api(ApiEvent::Applied(pod.clone()));
    super::world::is_replaced(pod.containers.get_mut("c").expect("it has one"), 1);
    world.api(ApiEvent::Applied(pod));
    world.lists(vec![sandbox(1, true)], vec![super::world::replacement()]);
    world.ticks(10);
    assert_eq!(world.died[0].cause, Cause::Restart, "{:?}", world.died);
}

/// What a watch delivers after an outage happened at some time in it: the apiserver's own timestamp dates the
/// request, and nothing dates the end of the object.
#[test]
fn what_was_queued_in_an_outage_is_not_dated_by_its_delivery() {
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, false, at)));
    world.starts(1);
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.ticks(10);
    world.api(ApiEvent::OutOfSync { error: "reset".into() });
    world.ticks(10);
    let asked = world.at();
    world.term(1, true);
    world.later(1000).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(20);
    let back = world.at();
    world.api(ApiEvent::Resumed);
    world.api(ApiEvent::Applied(object(1, true, asked)));
    world.api(ApiEvent::Deleted(object(1, true, asked)));
    world.ticks(10);
    let end = &world.ended[0];
    let milestone = |kind| end.milestone(kind).unwrap_or_else(|| panic!("no {kind}: {end:?}"));
    assert_eq!(end.cause, Cause::ApiDelete);
    assert!(milestone(MilestoneKind::DeleteRequested).at.boot <= asked, "{end:?}");
    let gone = milestone(MilestoneKind::ObjectGone);
    assert!(gone.at == back && gone.uncertainty.as_secs() >= 20, "{end:?}");
    assert!(!end.is_exact(), "{end:?}");
}
