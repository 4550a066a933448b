//! Sources that are late, or that the agent came too late for.

use super::world::{
    CODE_0, Cgroups, KILLED, World, container, ids, init, object, running, sandbox, sent, shim,
    task,
};
use coroner_core::{
    input::{
        ApiEvent, ContainerState, CriEvent, Hook, Input, KernelFact, Loss, LossKind,
        SignalGenerated, SignalResult,
    },
    types::{Cause, FindingKind, PhaseKind, Verdict},
};
use std::time::Duration;

/// The watch is 3 s late (a busy apiserver), less than the settle window: design invariant 5.
#[test]
fn a_late_watch_event_is_a_deletion_all_the_same() {
    let mut world = running(1);
    let asked = world.at();
    world.later(100).term(1, true);
    world.later(200).exits(1, CODE_0);
    world.stopped(1, 0);
    world.later(2600).api(ApiEvent::Applied(object(1, true, asked)));
    let mut last = object(1, true, asked);
    last.phase = "Succeeded".into();
    world.later(100).api(ApiEvent::Deleted(last));
    world.ticks(300);
    assert_eq!(world.ended.len(), 1);
    assert_eq!(world.ended[0].cause, Cause::ApiDelete, "{}", world.ended[0].cause_message);
}

/// As above; kubelets up to 1.26 leave the phase at Running.
#[test]
fn a_late_watch_event_of_an_old_kubelet() {
    let mut world = running(1);
    let asked = world.at();
    world.later(100).term(1, true);
    world.later(200).exits(1, CODE_0);
    world.stopped(1, 0);
    world.later(2600).api(ApiEvent::Applied(object(1, true, asked)));
    world.later(100).api(ApiEvent::Deleted(object(1, true, asked)));
    world.ticks(300);
    assert_eq!(world.ended.len(), 1, "told");
}

/// The watch breaks for 20 s and is taken up again where it was: the events come all at once.
#[test]
fn a_pod_that_goes_while_the_watch_is_broken_and_resumed() {
    let mut world = running(1);
    world.api(ApiEvent::OutOfSync { error: "connection reset".into() });
    let asked = world.at();
    world.later(300).term(1, true);
    world.later(300).exits(1, CODE_0);
    world.stopped(1, 0);
    world.ticks(20);
    world.api(ApiEvent::Resumed);
    world.api(ApiEvent::Applied(object(1, true, asked)));
    world.api(ApiEvent::Deleted(object(1, true, asked)));
    world.ticks(300);
    assert_eq!(world.ended.len(), 1, "told");
    assert_eq!(world.ended[0].cause, Cause::ApiDelete);
}

/// The watch breaks for 20 s and is listed anew: the object is just not there any more.
#[test]
fn a_pod_that_goes_between_two_snapshots() {
    let mut world = running(1);
    world.api(ApiEvent::OutOfSync { error: "too old".into() });
    world.later(300).term(1, true);
    world.later(300).exits(1, CODE_0);
    world.stopped(1, 0);
    world.ticks(20);
    world.api(ApiEvent::Snapshot { pods: Vec::new() });
    world.ticks(300);
    assert_eq!(world.ended.len(), 1, "told");
}

/// The watch is 3 s late, and there was an exec hook of 2.4 s.
#[test]
fn a_late_watch_event_hides_no_hook() {
    let mut world = running(1);
    let asked = world.at();
    let cgroup = Cgroups::of(1).own;
    let t = task(700, 40, "sh");
    let mut pod = object(1, true, asked);
    pod.containers.get_mut("c").unwrap().pre_stop = Some(Hook::Exec("sh".into()));
    world.later(100).kernel(KernelFact::Exec { cgroup, task: t.clone(), parent: shim() });
    let end = KernelFact::Exit { cgroup, task: t, status: CODE_0, parent: Some(shim()) };
    world.later(2400).kernel(end);
    world.later(10).term(1, true);
    world.later(490).api(ApiEvent::Applied(pod.clone()));
    world.later(500).exits(1, CODE_0);
    world.stopped(1, 0);
    world.later(100).api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let end = &world.ended[0];
    let spent = end.phase(PhaseKind::PreStop);
    assert_eq!(spent, Duration::from_millis(2400), "{:?} {:?}", end.took, end.phases);
}

/// The kernel's records of a container are missing, and the runtime did not answer the agent for
/// 10 s: when it ended is known to 10 s only. Its object went in between, by the kubelet's own
/// last delete (grace 0, as in every normal end).
#[test]
fn what_may_have_ended_before_the_object_did_not_outlive_it() {
    let mut world = World::in_sync();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, false, at)));
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.ticks(5);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(100).lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    world.cri(CriEvent::Unreachable { error: "timed out".into(), code: None });
    world.ticks(3);
    let mut last = object(1, true, at);
    last.deletion_grace_seconds = Some(0);
    world.api(ApiEvent::Applied(last.clone()));
    world.api(ApiEvent::Deleted(last));
    world.ticks(7);
    world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(60);
    let end = &world.ended[0];
    let wrong = end.findings.iter().any(|f| f.kind == FindingKind::OutlivedObject);
    assert!(!wrong && end.cause == Cause::ApiDelete, "{:?} {:?}", end.cause, end.findings);
}

/// The agent comes to a pod that has been stuck in termination for two minutes: SIGTERM is long
/// gone. The runtime kills it again a minute later.
#[test]
fn a_stop_that_began_before_the_agent_is_no_force_kill() {
    let mut world = World::new();
    world.now = 600_000;
    world.cri(CriEvent::Connected { runtime: "test".into(), process: None });
    let (pod, _, id) = ids(1);
    let of = Cgroups::of(1);
    let name = format!("/kubepods/pod{pod}/{id}");
    world.kernel(KernelFact::CgroupCreated { cgroup: of.own, parent: None, name, scanned: true });
    world.kernel(KernelFact::Running { cgroup: of.own, task: init(1) });
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
    let asked = coroner_core::time::BootTime(world.at().0 - 120_000_000_000);
    world.api(ApiEvent::Snapshot { pods: vec![object(1, true, asked)] });
    world.ticks(60);
    world.kill(1);
    world.exits(1, KILLED);
    world.stopped(1, 137);
    world.later(100).api(ApiEvent::Deleted(object(1, true, asked)));
    world.ticks(60);
    let death = &world.ended[0].containers[0];
    assert_eq!(death.verdict, Verdict::Unknown, "{}", death.proof.message);
}

/// A container that exits during its preStop hook was sent no signal, and records of it were lost: the hook is the
/// beginning of the stop, long before the grace ends.
#[test]
fn a_hook_begins_the_stop_of_a_deletion_although_records_are_lost() {
    let mut world = running(1);
    let cgroup = Cgroups::of(1).own;
    let asked = world.at();
    let mut pod = object(1, true, asked);
    pod.containers.get_mut("c").unwrap().pre_stop = Some(Hook::Exec("sh".into()));
    world.api(ApiEvent::Applied(pod.clone()));
    let t = task(700, 40, "sh");
    world.later(100).kernel(KernelFact::Exec { cgroup, task: t, parent: shim() });
    world.later(500).exits(1, CODE_0);
    world.say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 1)));
    world.stopped(1, 0);
    world.later(100).api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let death = &world.ended[0].containers[0];
    assert_eq!(death.cause, Cause::ApiDelete, "{}", death.cause_message);
}

/// Without its stop signal's record, a SIGKILL before the end of the grace belongs to an earlier stop.
#[test]
fn a_kill_before_the_end_of_the_grace_is_not_for_the_deletion() {
    let mut world = running(1);
    let asked = world.at();
    world.api(ApiEvent::Applied(object(1, true, asked)));
    world.later(5_000).kernel(KernelFact::SignalGenerated(sent(1, 9, false)));
    world.exits(1, KILLED);
    world.say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 1)));
    world.stopped(1, 137);
    let mut last = object(1, true, asked);
    last.deletion_grace_seconds = Some(0);
    world.later(100).api(ApiEvent::Applied(last.clone()));
    world.api(ApiEvent::Deleted(last));
    world.ticks(60);
    let death = &world.ended[0].containers[0];
    assert_eq!(death.cause, Cause::Unknown, "{}", death.cause_message);
}

/// The kubelet and the agent were both away from the apiserver for 40 s: that is no hook that used up the grace.
#[test]
fn an_outage_before_a_deletion_is_no_hook() {
    let mut world = running(1);
    // PID 1 is not killed from inside its namespace.
    let discarded = SignalGenerated { result: SignalResult::Ignored, ..sent(1, 9, false) };
    world.kernel(KernelFact::SignalGenerated(discarded));
    world.api(ApiEvent::OutOfSync { error: "reset".into() });
    let asked = world.at();
    world.ticks(40);
    let mut pod = object(1, true, asked);
    pod.grace_seconds = Some(30);
    pod.containers.get_mut("c").unwrap().pre_stop = Some(Hook::HttpGet);
    world.api(ApiEvent::Resumed);
    world.api(ApiEvent::Applied(pod.clone()));
    world.later(200).term(1, true);
    world.later(100).exits(1, CODE_0);
    world.stopped(1, 0);
    world.later(100).api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let death = &world.ended[0].containers[0];
    assert_eq!(death.verdict, Verdict::Graceful, "{}", death.proof.message);
}

/// The kubelet saw the deletion at once, and its hook used up the grace; the agent's watch was away.
#[test]
fn a_hook_that_used_up_the_grace_is_found_although_the_watch_was_away() {
    let mut world = running(1);
    world.api(ApiEvent::OutOfSync { error: "reset".into() });
    let asked = world.at();
    let mut pod = object(1, true, asked);
    pod.grace_seconds = Some(30);
    pod.containers.get_mut("c").unwrap().pre_stop = Some(Hook::HttpGet);
    world.ticks(29);
    world.later(500).term(1, true);
    world.later(1000).api(ApiEvent::Resumed);
    world.api(ApiEvent::Applied(pod.clone()));
    world.later(1000).kernel(KernelFact::SignalGenerated(sent(1, 9, true)));
    world.exits(1, KILLED);
    world.stopped(1, 137);
    world.later(100).api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let death = &world.ended[0].containers[0];
    assert_eq!(death.verdict, Verdict::PrestopExhaustedGrace, "{}", death.proof.message);
}
