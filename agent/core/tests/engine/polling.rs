//! When the runtime is to be asked often, and when no longer.

use super::world::{CODE_0, World, container, ids, object, running, sandbox};
use coroner_core::{
    ids::SandboxId,
    input::{ApiEvent, ContainerState},
    output::{CriRequest, Request},
};
use std::collections::BTreeSet;

/// The sandboxes that the poller looks at often by now.
fn hurried(world: &World) -> BTreeSet<SandboxId> {
    let mut hurried = BTreeSet::new();
    for request in &world.requests {
        match request {
            Request::Cri(CriRequest::StartFastPoll(sandboxes)) => {
                hurried.extend(sandboxes.iter().cloned())
            }
            Request::Cri(CriRequest::StopFastPoll(sandboxes)) => {
                hurried.retain(|sandbox| !sandboxes.contains(sandbox));
            }
            _ => {}
        }
    }
    hurried
}

/// The pod is to go, and its processes have gone.
fn dying() -> World {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.ticks(1);
    assert_eq!(hurried(&world), BTreeSet::from([ids(1).1]));
    world.term(1, true);
    world.later(100).exits(1, CODE_0);
    world
}

#[test]
fn a_finalizer_does_not_keep_the_poller_busy() {
    let mut world = dying();
    world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.cgroups_go(1);
    world.lists(vec![], vec![]);
    world.ticks(10);
    assert!(hurried(&world).is_empty());
    world.ticks(25 * 3600);
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(120);
    assert!(hurried(&world).is_empty());
}

#[test]
fn a_sandbox_that_will_not_stop_does_not_keep_the_poller_busy() {
    let mut world = dying();
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(60);
    assert_eq!(hurried(&world), BTreeSet::from([ids(1).1]));
    world.ticks(600);
    assert!(hurried(&world).is_empty());
}

#[test]
fn a_restart_hurries_until_it_is_explained() {
    let mut world = running(1);
    world.exits(1, CODE_0);
    world.ticks(1);
    assert_eq!(hurried(&world), BTreeSet::from([ids(1).1]));
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(120);
    assert!(hurried(&world).is_empty());
}

/// Kubelets 1.23 and 1.25 leave the container of a force-deleted pod running for good (FACTS §7).
#[test]
fn a_container_that_is_never_killed_does_not_keep_the_poller_busy() {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.ticks(300);
    assert_eq!(hurried(&world), BTreeSet::from([ids(1).1]), "its grace has not been over for long");
    world.ticks(3600);
    assert!(hurried(&world).is_empty());
    // It ends after all.
    world.exits(1, CODE_0);
    world.ticks(1);
    assert_eq!(hurried(&world), BTreeSet::from([ids(1).1]));
}
