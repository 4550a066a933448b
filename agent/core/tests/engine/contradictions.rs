//! Where runtime or apiserver say what the kernel contradicts.

use super::world::{CODE_0, KILLED, World, container, ids, object, running, sandbox};
use coroner_core::{
    ids::ContainerId,
    input::{
        ApiEvent, ApiTerminated, ContainerState, CriEvent, CriExit, Input, KubeletChange,
        KubeletEntry, KubeletEvent, KubeletStatement as Says, Loss, LossKind,
    },
    time::{BootTime, WallTime},
    types::Contradiction,
};
use std::time::Duration;

/// What the kubelet says that does not fit.
type Miss = fn(&World) -> KubeletEntry;

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

/// A line of the kubelet's log about the container, so many milliseconds before this moment.
fn line(world: &World, says: Says, before: u64) -> KubeletEntry {
    let at = world.at() - Duration::from_millis(before);
    let mut entry = KubeletEntry::new(at, 0, WallTime(0), says);
    entry.container_id = Some(ids(1).2);
    entry
}

/// The container ends with code 0, the kubelet's log has this line, and the pod goes.
fn with_line(line: impl FnOnce(&World) -> KubeletEntry) -> World {
    let mut world = stopping();
    world.later(4_000).exits(1, CODE_0);
    let line = line(&world);
    world.later(200).say(Input::Kubelet(KubeletEvent::Entry(Box::new(line))));
    lists(&mut world, ContainerState::Exited);
    world.status(1, 0);
    world
}

#[test]
fn the_kubelet_says_exited_while_processes_remain() {
    let died = |world: &World, before| KubeletEntry {
        change: Some(KubeletChange::Died),
        ..line(world, Says::PlegEvent, before)
    };
    let mut world = with_line(|world| line(world, Says::KillEnd, 2_000));
    assert_eq!(gone(&mut world), [Contradiction::KubeletExitedWithProcesses]);
    let detail = &world.ended[0].containers[0].findings[0].detail;
    let wanted = "The kubelet's log says that the container ended 2.0 s before its last process was gone, according \
                  to the kernel.";
    assert_eq!(detail, wanted);
    let mut world = with_line(|world| died(world, 2_000));
    assert_eq!(gone(&mut world), [Contradiction::KubeletExitedWithProcesses]);
    // Both of them are one finding.
    let mut world = with_line(|world| line(world, Says::KillEnd, 2_000));
    let pleg = died(&world, 1_800);
    world.say(Input::Kubelet(KubeletEvent::Entry(Box::new(pleg))));
    assert_eq!(gone(&mut world), [Contradiction::KubeletExitedWithProcesses]);
    let misses: [(&str, Miss); 7] = [
        ("another clock dates it", |world| line(world, Says::KillEnd, 900)),
        ("its time is not certain", |world| KubeletEntry {
            uncertainty_ns: 2_000_000_000,
            ..line(world, Says::KillEnd, 2_000)
        }),
        ("it is of another container", |world| KubeletEntry {
            container_id: Some(ContainerId::new("other")),
            ..line(world, Says::KillEnd, 2_000)
        }),
        ("it is of the pod", |world| KubeletEntry {
            container_id: None,
            pod: Some(ids(1).0),
            ..line(world, Says::KillEnd, 2_000)
        }),
        ("the stop only began", |world| line(world, Says::KillBegin, 2_000)),
        ("the container started", |world| KubeletEntry {
            change: Some(KubeletChange::Started),
            ..line(world, Says::PlegEvent, 2_000)
        }),
        ("it came after the exit", |world| KubeletEntry {
            time: BootTime(world.at().0 + 100_000_000),
            ..line(world, Says::KillEnd, 0)
        }),
    ];
    for (why, miss) in misses {
        assert_eq!(gone(&mut with_line(miss)), [], "{why}");
    }
}

#[test]
fn the_kubelet_has_another_exit_code() {
    let finished = |world: &World, code| KubeletEntry {
        exit_code: code,
        ..line(world, Says::PlegContainerFinished, 0)
    };
    let mut world = with_line(|world| finished(world, Some(137)));
    assert_eq!(gone(&mut world), [Contradiction::KubeletExitCode]);
    let detail = &world.ended[0].containers[0].findings[0].detail;
    assert_eq!(detail, "The kubelet's log says exit code 137, the kernel recorded exit code 0.");
    let misses: [(&str, Miss); 4] = [
        ("they agree", |world| KubeletEntry {
            exit_code: Some(0),
            ..line(world, Says::PlegContainerFinished, 0)
        }),
        ("the line has none", |world| line(world, Says::PlegContainerFinished, 0)),
        ("it is of another container", |world| KubeletEntry {
            exit_code: Some(137),
            container_id: Some(ContainerId::new("other")),
            ..line(world, Says::PlegContainerFinished, 0)
        }),
        ("it is of another statement", |world| KubeletEntry {
            exit_code: Some(137),
            ..line(world, Says::PlegEvent, 0)
        }),
    ];
    for (why, miss) in misses {
        assert_eq!(gone(&mut with_line(miss)), [], "{why}");
    }
    // As the runtime reports a signal.
    let mut world = stopping();
    world.exits(1, KILLED);
    let killed = finished(&world, Some(137));
    world.say(Input::Kubelet(KubeletEvent::Entry(Box::new(killed))));
    lists(&mut world, ContainerState::Exited);
    world.status(1, 137);
    assert_eq!(gone(&mut world), []);
}

/// With records missing, the kernel's side is not proven.
#[test]
fn a_loss_proves_nothing() {
    let mut world = stopping();
    world.say(Input::Lost(Loss::new(LossKind::DetailRingFull, 1)));
    world.exits(1, CODE_0);
    lists(&mut world, ContainerState::Exited);
    world.status(1, 255);
    let mut entry = line(&world, Says::PlegContainerFinished, 0);
    entry.exit_code = Some(137);
    for entry in [entry, line(&world, Says::KillEnd, 1_500)] {
        world.say(Input::Kubelet(KubeletEvent::Entry(Box::new(entry))));
    }
    assert_eq!(gone(&mut world), []);
}
