//! Lives and ends of pods as the engine tells them, source by source.

use super::world::{CODE_0, Cgroups, World, container, ids, is_replaced, object, running, sandbox};
use coroner_core::{
    input::{ApiEvent, ContainerState, CriContainer, CriEvent, ExitStatus, Input},
    output::{CriRequest, Report, Request},
    time::{Anchor, BootTime, WallTime},
    types::{Cause, Change, FindingKind, MilestoneKind, PhaseKind, Verdict},
};
use std::time::Duration;

pub(crate) fn delete(world: &mut World, n: u64) {
    let at = world.at();
    world.api(ApiEvent::Applied(object(n, true, at)));
}

/// The sandbox stops, the runtime tells the exit, the object goes.
pub(crate) fn finish(world: &mut World, n: u64, code: i32) {
    world.stopped(n, code);
    let at = world.at();
    world.later(100).api(ApiEvent::Deleted(object(n, true, at)));
}

#[test]
fn a_deleted_pod_is_told_once_with_additive_phases() {
    let mut world = running(1);
    delete(&mut world, 1);
    world.later(150).term(1, true);
    world.ticks(1);
    world.later(1000).exits(1, CODE_0);
    finish(&mut world, 1, 0);
    world.ticks(4);
    assert!(world.ended.is_empty(), "not before the settle window is over");
    world.ticks(60);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!((end.cause, end.life, end.truncated), (Cause::ApiDelete, 1, false));
    let phase = |kind| end.phase(kind).as_millis();
    assert_eq!(phase(PhaseKind::KubeletReaction), 150);
    assert_eq!(phase(PhaseKind::Shutdown), 2000);
    assert_eq!(phase(PhaseKind::Unattributed), 0);
    assert_eq!(end.took, Duration::from_millis(2350));
    let sum: Duration = end.phases.iter().map(|p| p.to.since(p.from)).sum();
    assert_eq!(sum, end.took);
    assert_eq!(world.died.len(), 1);
    assert_eq!(world.died[0].verdict, Verdict::Graceful);
    assert_eq!(world.counted, world.ended, "it is final at once, and counted");
    assert_eq!(world.counted_deaths, world.died);
    assert!(world.requests.iter().any(|o| matches!(o, Request::Cri(CriRequest::StartFastPoll(_)))));
    assert!(world.requests.iter().any(|o| matches!(o, Request::Cri(CriRequest::StopFastPoll(_)))));
}

#[test]
fn the_second_tail_is_an_update() {
    let mut world = running(1);
    delete(&mut world, 1);
    world.term(1, true);
    world.exits(1, CODE_0);
    finish(&mut world, 1, 0);
    world.ticks(30);
    assert!(world.updated.is_empty());
    world.cgroups_go(1);
    world.lists(Vec::new(), Vec::new());
    world.ticks(2);
    let [(end, Change::SandboxRemoved)] = world.updated.as_slice() else {
        panic!("{:?}", world.updated)
    };
    assert_eq!((end.revision, end.is_final), (1, true), "the tail is no new revision");
    assert!(end.milestone(MilestoneKind::SandboxRemoved).is_some());
    assert!(end.milestone(MilestoneKind::CgroupRemoved).is_some());
    assert_eq!(end.took, world.ended[0].took, "the tail is not part of the whole");
}

#[test]
fn a_termination_that_had_begun_is_truncated() {
    let mut world = World::new();
    world.cri(CriEvent::Connected { runtime: "test".into(), process: None });
    world.later(60_000);
    world.starts(1);
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    // Asked for 20 s ago, with a grace of 30 s.
    let asked = BootTime(world.at().0 - 20_000_000_000);
    world.api(ApiEvent::Snapshot { pods: vec![object(1, true, asked)] });
    world.later(1000).kill(1);
    world.exits(1, ExitStatus::Signal { signal: 9, core: false });
    finish(&mut world, 1, 137);
    world.ticks(10);
    let end = &world.ended[0];
    assert!(end.truncated && end.containers[0].truncated);
    assert_eq!(end.began, asked, "the apiserver's figure stands in");
    assert!(end.milestone(MilestoneKind::DeleteRequested).unwrap().uncertainty > Duration::ZERO);
}

#[test]
fn an_outage_of_the_apiserver_suspends_the_account() {
    let mut world = running(1);
    delete(&mut world, 1);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    world.api(ApiEvent::OutOfSync { error: "gone".into() });
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(90);
    assert!(world.ended.is_empty(), "unknown is not gone");
    world.api(ApiEvent::Snapshot { pods: Vec::new() });
    world.ticks(10);
    let gone = world.ended[0].milestone(MilestoneKind::ObjectGone).unwrap();
    assert!(gone.uncertainty >= Duration::from_secs(90), "{gone:?}");
}

/// The watch breaks after the pod's end and before the kubelet's word of it; when it is back, so much
/// time has passed that the object is gone too, and nobody has ever asked for that.
#[test]
fn a_pod_that_ended_just_before_an_outage_is_told_when_its_object_is_found_gone() {
    let mut world = running(1);
    world.exits(1, CODE_0);
    world.later(100).api(ApiEvent::OutOfSync { error: "reset".into() });
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(5);
    world.cgroups_go(1);
    world.lists(Vec::new(), Vec::new());
    world.ticks(90);
    assert!(world.ended.is_empty(), "its sandbox may get a successor");
    world.api(ApiEvent::Snapshot { pods: Vec::new() });
    world.ticks(5);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!(end.containers[0].verdict, Verdict::Completed);
    assert_eq!(end.cause, Cause::Unknown, "perhaps it was deleted before its sandbox stopped");
    assert!(end.milestone(MilestoneKind::ObjectGone).is_none(), "the end was before that");
}

#[test]
fn a_force_delete_may_show_its_deleted_event_only() {
    let mut world = running(1);
    let at = world.at();
    let mut last = object(1, false, at);
    last.phase = "Running".into();
    world.api(ApiEvent::Deleted(last));
    world.later(20).term(1, true);
    world.later(1000).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(10);
    let end = &world.ended[0];
    assert_eq!(end.cause, Cause::ForceDelete);
    assert!(end.findings.iter().any(|f| f.kind == FindingKind::OutlivedObject));
}

#[test]
fn a_restarted_container_dies_alone() {
    let mut world = running(1);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    let mut next = container(1, ContainerState::Running);
    next.id = "c".repeat(64).as_str().into();
    next.attempt = 1;
    let both = vec![container(1, ContainerState::Exited), next];
    world.later(200).lists(vec![sandbox(1, true)], both);
    world.status(1, 0);
    let mut pod = object(1, false, world.at());
    is_replaced(pod.containers.get_mut("c").unwrap(), 1);
    world.api(ApiEvent::Applied(pod));
    world.ticks(30);
    assert!(world.ended.is_empty(), "the pod goes on");
    let [death] = world.died.as_slice() else { panic!("{:?}", world.died) };
    assert_eq!((death.verdict, death.cause), (Verdict::Graceful, Cause::Restart));
    assert_eq!(world.counted_deaths, world.died, "nothing is waited for any more");
}

#[test]
fn a_job_completes_once_and_its_deletion_is_no_second_end() {
    let mut world = running(1);
    world.exits(1, ExitStatus::Code(7));
    let at = world.at();
    let mut done = object(1, false, at);
    done.phase = "Failed".into();
    world.api(ApiEvent::Applied(done));
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 7);
    world.ticks(90);
    delete(&mut world, 1);
    let at = world.at();
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.lists(Vec::new(), Vec::new());
    world.ticks(30);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!((end.cause, end.containers[0].verdict), (Cause::Completed, Verdict::Failed));
    assert!(world.updated.iter().all(|(_, change)| *change == Change::SandboxRemoved));
}

/// A Job with ttlSecondsAfterFinished 0: its object is deleted as soon as its status is final, before
/// the sandbox is seen to stop or after it, with the watch as it should be or just back.
#[test]
fn a_pod_that_completed_and_is_deleted_at_once_completed() {
    for (outage, sandbox_first) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut world = running(1);
        world.ticks(60);
        if outage {
            world.api(ApiEvent::OutOfSync { error: "reset".into() });
            world.ticks(3);
        }
        let sandbox_stops = |world: &mut World| {
            world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
            world.status(1, 0);
        };
        world.exits(1, CODE_0);
        if sandbox_first {
            sandbox_stops(world.later(450));
        }
        if outage {
            world.later(900).api(ApiEvent::Resumed);
        }
        let mut pod = object(1, false, world.at());
        (pod.phase, pod.grace_seconds) = ("Succeeded".into(), Some(30));
        world.later(100).api(ApiEvent::Applied(pod.clone()));
        pod.deletion_timestamp = Some(WallTime(world.at().0 as i64));
        pod.deletion_grace_seconds = Some(0);
        world.later(100).api(ApiEvent::Applied(pod.clone()));
        world.later(20).api(ApiEvent::Deleted(pod));
        if !sandbox_first {
            sandbox_stops(world.later(450));
        }
        world.ticks(60);
        let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
        assert_eq!(end.cause, Cause::Completed, "{} {outage} {sandbox_first}", end.cause_message);
        assert_eq!(end.containers.len(), 1);
        assert_eq!(end.containers[0].verdict, Verdict::Completed);
    }
}

/// It failed before it had a container (evicted, activeDeadlineSeconds), and its controller was quick.
#[test]
fn a_pod_that_failed_without_a_container_and_is_deleted_at_once_is_told() {
    let mut world = World::in_sync();
    let mut pod = object(1, false, world.at());
    world.api(ApiEvent::Applied(pod.clone()));
    world.lists(vec![sandbox(1, true)], Vec::new());
    world.ticks(10);
    pod.phase = "Failed".into();
    world.api(ApiEvent::Applied(pod.clone()));
    pod.deletion_timestamp = Some(WallTime(world.at().0 as i64));
    pod.deletion_grace_seconds = Some(0);
    world.later(100).api(ApiEvent::Applied(pod.clone()));
    world.later(100).api(ApiEvent::Deleted(pod));
    world.later(500).lists(vec![sandbox(1, false)], Vec::new());
    world.ticks(60);
    assert_eq!(world.ended.len(), 1);
}

/// An evicted pod's phase may be final while it still runs: what ends after the request is of it.
#[test]
fn a_pod_that_runs_on_after_its_final_phase_is_deleted() {
    let mut world = running(1);
    let mut pod = object(1, false, world.at());
    pod.phase = "Failed".into();
    world.api(ApiEvent::Applied(pod));
    world.ticks(5);
    delete(&mut world, 1);
    world.later(100).term(1, true);
    world.later(500).exits(1, CODE_0);
    finish(&mut world, 1, 0);
    world.ticks(60);
    assert_eq!(world.ended[0].cause, Cause::ApiDelete, "{}", world.ended[0].cause_message);
    assert_eq!(world.ended[0].containers.len(), 1);
}

/// A sandbox that died gets a successor as long as the kubelet has not ended the pod.
#[test]
fn a_dead_sandbox_alone_ends_no_pod() {
    let mut world = running(1);
    world.exits(1, ExitStatus::Code(1));
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 1);
    world.ticks(120);
    assert!(world.ended.is_empty());
    assert_eq!(world.died.len(), 1, "the container's death is told all the same");
}

/// The runtime says only after 30 s how the container exited.
#[test]
fn late_evidence_is_a_new_revision_and_no_second_count() {
    let mut world = running(1);
    delete(&mut world, 1);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    let at = world.at();
    world.later(100).api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(40);
    let [first] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!((first.revision, first.is_final), (1, false), "the runtime owes its exit status");
    world.status(1, 255);
    world.ticks(2);
    assert_eq!((world.ended.len(), world.died.len()), (1, 1));
    let [(end, Change::Other)] = world.updated.as_slice() else { panic!("{:?}", world.updated) };
    assert_eq!((end.revision, end.is_final), (2, true));
    assert!(end.containers[0].findings.iter().any(|f| f.kind == FindingKind::Contradiction));
    // It changes its mind, and so does the clock.
    world.status(1, 0);
    world.say(Input::Clock(Anchor { boot_ns: 0, wall_ns: 7_000_000_000 }));
    world.ticks(700);
    assert_eq!(world.updated.len(), 1, "final is final");
    assert_eq!(world.counted, [world.updated[0].0.clone()], "with what came within 60 s");
    assert_eq!(world.counted_deaths, world.counted[0].containers);
}

/// A late runtime answers for one container after the other, and changes no verdict.
#[test]
fn evidence_in_pieces_is_one_update() {
    let mut world = running(1);
    let other = |state| CriContainer { id: ids(2).2, name: "d".into(), ..container(1, state) };
    let both = |state| vec![container(1, state), other(state)];
    world.lists(vec![sandbox(1, true)], both(ContainerState::Running));
    delete(&mut world, 1);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, false)], both(ContainerState::Exited));
    let at = world.at();
    world.later(100).api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(40);
    assert_eq!((world.ended.len(), world.ended[0].is_final), (1, false));
    for n in [1, 2] {
        world.status(n, 255);
        world.ticks(2);
        assert_eq!(world.updated.len(), 0, "{:?}", world.updated);
    }
    world.ticks(20);
    let [(end, Change::Other)] = world.updated.as_slice() else { panic!("{:?}", world.updated) };
    assert!(end.containers[0].findings.iter().any(|f| f.kind == FindingKind::Contradiction));
    assert_eq!((end.revision, &world.counted), (2, &vec![end.clone()]));
}

/// The runtime says nothing of the exit until much later.
#[test]
fn what_is_not_final_is_counted_60_s_after_its_end() {
    let mut world = running(1);
    delete(&mut world, 1);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    let at = world.at();
    world.later(100).api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(40);
    world.say(Input::Clock(Anchor { boot_ns: 0, wall_ns: 7_000_000_000 }));
    world.ticks(19);
    assert_eq!((world.ended.len(), world.died.len()), (1, 1));
    assert_eq!(world.updated.len(), 0, "another wall clock is no evidence");
    assert!(world.counted.is_empty() && world.counted_deaths.is_empty());
    world.ticks(1);
    assert_eq!(world.counted_deaths, world.died);
    let [(last, Change::Final)] = world.updated.as_slice() else { panic!("{:?}", world.updated) };
    assert_eq!(world.counted.as_slice(), std::slice::from_ref(last));
    world.status(1, 255);
    world.ticks(2);
    assert_eq!(world.updated.len(), 1, "nothing changes a final report");
    assert_eq!((world.counted.len(), world.counted_deaths.len()), (1, 1), "once");
    assert!(world.engine.count_the_rest().is_empty());
}

#[test]
fn an_agent_that_ends_counts_what_waits() {
    let mut world = running(1);
    delete(&mut world, 1);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    let at = world.at();
    world.later(100).api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(40);
    let [last, death, end] = world.engine.count_the_rest().try_into().unwrap();
    assert_eq!(death, Report::CountDeath(Box::new(world.died[0].clone())));
    let Report::PodUpdated(last, Change::Final) = last else { panic!("{last:?}") };
    assert_eq!(end, Report::CountTermination(last));
    world.ticks(100);
    assert!(world.counted.is_empty(), "once");
}

/// The runtime says only after the pod's report in which cgroup the container was.
#[test]
fn a_verdict_that_is_proven_later_is_a_new_revision() {
    let mut world = World::in_sync();
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.ticks(5);
    delete(&mut world, 1);
    world.term(1, true);
    world.exits(1, CODE_0);
    finish(&mut world, 1, 0);
    world.ticks(10);
    let [first] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!((first.containers[0].verdict, first.is_final), (Verdict::Unknown, false));
    world.cri(CriEvent::ContainerCgroup {
        container: ids(1).2,
        cgroup: Cgroups::of(1).own,
        path: String::new(),
    });
    world.ticks(2);
    let [(end, Change::Verdict)] = world.updated.as_slice() else { panic!("{:?}", world.updated) };
    assert_eq!(
        (end.containers[0].verdict, end.revision, end.is_final),
        (Verdict::Graceful, 2, true)
    );
}
