//! Where runtime or apiserver say what the kernel contradicts.

use super::world::{CODE_0, World, container, ids, object, running, sandbox};
use coroner_core::{
    input::{ApiEvent, ApiTerminated, ContainerState, CriEvent, CriExit, Input, Loss, LossKind},
    types::Contradiction,
};

/// A pod that was told to go, and whose container handled that.
fn stopping() -> World {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.term(1, true);
    world.later(500);
    world
}

fn gone(world: &mut World) -> Vec<Contradiction> {
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(120);
    let findings = &world.ended[0].containers[0].findings;
    findings.iter().filter_map(|f| f.contradiction).collect()
}

fn lists(world: &mut World, state: ContainerState) {
    let ready = state == ContainerState::Running;
    world.lists(vec![sandbox(1, ready)], vec![container(1, state)]);
}

#[test]
fn agreement_is_no_finding() {
    let mut world = stopping();
    world.exits(1, CODE_0);
    lists(&mut world, ContainerState::Exited);
    world.status(1, 0);
    assert_eq!(gone(&mut world), []);
}

#[test]
fn exit_codes() {
    let mut world = stopping();
    world.exits(1, CODE_0);
    lists(&mut world, ContainerState::Exited);
    world.status(1, 255);
    let mut pod = object(1, true, world.at());
    let told = ApiTerminated {
        id: Some(ids(1).2),
        exit_code: 137,
        reason: "Error".into(),
        finished: None,
    };
    pod.containers.get_mut("c").unwrap().terminated.push(told);
    world.api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let findings = &world.ended[0].containers[0].findings;
    let kinds: Vec<_> = findings.iter().filter_map(|f| f.contradiction).collect();
    assert_eq!(kinds, [Contradiction::RuntimeExitCode, Contradiction::ApiExitCode]);
    assert!(
        findings[1].detail.ends_with("the kernel recorded exit code 0."),
        "{}",
        findings[1].detail
    );
}

#[test]
fn an_oom_kill_that_the_kernel_never_made() {
    let mut world = stopping();
    world.exits(1, CODE_0);
    lists(&mut world, ContainerState::Exited);
    world.cri(CriEvent::ContainerExited(CriExit {
        container: ids(1).2,
        started: None,
        finished: None,
        exit_code: 0,
        reason: "OOMKilled".into(),
    }));
    assert_eq!(gone(&mut world), [Contradiction::RuntimeOomKilled]);
}

#[test]
fn running_without_processes() {
    let mut world = stopping();
    world.exits(1, CODE_0);
    lists(&mut world, ContainerState::Running);
    world.ticks(4);
    lists(&mut world, ContainerState::Running);
    world.later(100);
    lists(&mut world, ContainerState::Exited);
    world.status(1, 0);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    assert_eq!(gone(&mut world), [], "the runtime may need a moment to notice");

    let mut world = stopping();
    world.exits(1, CODE_0);
    world.ticks(8);
    lists(&mut world, ContainerState::Running);
    world.later(100);
    lists(&mut world, ContainerState::Exited);
    world.status(1, 0);
    assert_eq!(gone(&mut world), [Contradiction::RunningWithoutProcesses]);
}

#[test]
fn exited_with_processes() {
    let mut world = stopping();
    lists(&mut world, ContainerState::Exited);
    world.status(1, 0);
    world.ticks(8);
    world.exits(1, CODE_0);
    assert_eq!(gone(&mut world), [Contradiction::ExitedWithProcesses]);
}

/// With records missing, the kernel's side is not proven.
#[test]
fn a_loss_proves_nothing() {
    let mut world = stopping();
    world.say(Input::Lost(Loss::new(LossKind::DetailRingFull, 1)));
    world.exits(1, CODE_0);
    lists(&mut world, ContainerState::Exited);
    world.status(1, 255);
    assert_eq!(gone(&mut world), []);
}
