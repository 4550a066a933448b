//! Whose evidence a loss touches.

use super::world::{CODE_0, Cgroups, World, container, ids, object, running, sandbox};
use coroner_core::{
    input::{ApiEvent, ContainerState, CriEvent, ExitStatus, Input, KernelFact, Loss, LossKind},
    report::ContainerDeath,
    types::Verdict,
};
use std::time::Duration;

/// Two pods that run.
fn two() -> World {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(2, false, at)));
    world.starts(2);
    let all = |state| vec![container(1, state), container(2, state)];
    world.lists(vec![sandbox(1, true), sandbox(2, true)], all(ContainerState::Running));
    world.later(1000).ticks(1);
    world
}

fn death(world: &World, n: u64) -> &ContainerDeath {
    let of = ids(n).2;
    world.died.iter().find(|death| death.id == of).expect("its death was told")
}

#[test]
fn a_budget_that_is_spent_is_missed_by_nobody_else() {
    let mut world = two();
    let until = world.at() + Duration::from_secs(1);
    world.kernel(KernelFact::BudgetSpent { cgroup: Cgroups::of(1).own, until });
    let since = Some(world.at());
    world.later(100);
    world.say(Input::Lost(Loss { since, ..Loss::new(LossKind::BudgetSpent, 40) }));
    for n in [1, 2] {
        world.later(10).exits(n, ExitStatus::Code(3));
    }
    let exited = vec![container(1, ContainerState::Exited), container(2, ContainerState::Exited)];
    world.lists(vec![sandbox(1, true), sandbox(2, true)], exited);
    for n in [1, 2] {
        world.status(n, 3);
    }
    world.ticks(120);
    assert_eq!(death(&world, 1).incomplete, [LossKind::BudgetSpent]);
    assert_eq!(death(&world, 2).incomplete, []);
    assert_eq!(world.engine.gauges().losses[&LossKind::BudgetSpent], 40);
}

/// A month later it is forgotten, even if the container had no main process yet: what tells of that
/// one is no detail.
#[test]
fn a_budget_that_was_spent_is_not_missed_for_ever() {
    let mut world = World::in_sync();
    world.cgroups_come(1);
    let cgroup = Cgroups::of(1).own;
    let until = world.at() + Duration::from_secs(1);
    world.kernel(KernelFact::BudgetSpent { cgroup, until });
    world.starts(1);
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.later(30 * 24 * 3600 * 1000).exits(1, ExitStatus::Code(3));
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 3);
    world.ticks(120);
    assert_eq!(death(&world, 1).incomplete, []);
}

/// The agent had no processor for some seconds: what was lost is noticed long after the container
/// that it was about has ended.
#[test]
fn a_loss_that_is_noticed_late_touches_all_that_ended_since_the_last_look() {
    for (stalled, verdict, incomplete) in [
        (true, Verdict::Unknown, vec![LossKind::DetailRingFull]),
        (false, Verdict::Completed, vec![]),
    ] {
        let mut world = running(1);
        let before = world.at();
        world.later(100).api(ApiEvent::Applied(object(1, true, before)));
        // Its delivery to a handler was lost.
        world.later(100).term(1, false);
        world.later(100).exits(1, CODE_0);
        let after = world.later(3000).at();
        let since = Some(if stalled { before } else { after });
        let at = world.later(1000).at();
        world.say(Input::Lost(Loss { since, ..Loss::new(LossKind::DetailRingFull, 3) }));
        world.stopped(1, 0);
        world.later(100).api(ApiEvent::Deleted(object(1, true, at)));
        world.ticks(20);
        let told = &world.ended[0];
        assert_eq!((told.containers[0].verdict, &told.incomplete), (verdict, &incomplete));
    }
}

/// A runtime that is away for longer than an unexplained container is remembered while it is there.
#[test]
fn a_death_in_a_long_outage_of_the_runtime_is_told_after_it() {
    let mut world = World::in_sync();
    world.cri(CriEvent::Unreachable { error: "connection refused".into(), code: None });
    let at = world.at();
    world.later(100).api(ApiEvent::Applied(object(1, false, at)));
    world.starts(1);
    world.later(1000).exits(1, ExitStatus::Code(3));
    world.ticks(600);
    world.cri(CriEvent::Connected { runtime: "test".into(), process: None });
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 3);
    world.ticks(120);
    assert_eq!(death(&world, 1).verdict, Verdict::Failed);
    assert!(world.engine.gauges().losses.is_empty());
}
