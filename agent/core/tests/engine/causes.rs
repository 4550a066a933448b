//! Circumstances → cause, with what says so.

use super::world::{
    CODE_0, Cgroups, World, container, ids, init, is_replaced, object as seen, of_file,
    replacement, running, sandbox, shim, shows_its_end, task,
};
use coroner_core::{
    api::{Attempt, DeletionRequest, PodObject, Shown},
    cause::{by_kubelet, deletion},
    input::{
        ApiContainer, ApiEvent, ApiPod, ApiProbe, ApiTerminated, ContainerKind, ContainerState,
        CriContainer, ExitStatus, Input, KernelFact, Loss, LossKind,
    },
    process::ContainerProcesses,
    stop::StopEvidence,
    time::{BootTime, WallTime},
    types::{Cause, Certainty, Source, Verdict},
};
use std::time::Duration;

fn object(disruption: Option<&str>, reason: &str, grace: Option<i64>) -> PodObject {
    let pod = ApiPod {
        disruption: disruption.map(Into::into),
        reason: reason.into(),
        ..ApiPod::default()
    };
    let requested = grace.map(|grace_seconds| DeletionRequest {
        estimate: BootTime(1),
        uncertainty: Duration::ZERO,
        earliest: BootTime(1),
        latest: BootTime(1),
        grace_seconds,
        api_time: WallTime(0),
        by_its_clock: BootTime(0),
    });
    let mut object = PodObject::new(BootTime(0), pod);
    object.requested = requested;
    object
}

#[test]
fn causes_of_deletions() {
    let rows = [
        (None, Some(30), false, Cause::ApiDelete),
        (None, Some(0), true, Cause::ForceDelete),
        // Its processes outlived the object although there was a grace: no force.
        (None, Some(30), true, Cause::ApiDelete),
        (Some("EvictionByEvictionAPI"), Some(30), false, Cause::ApiEviction),
        (Some("PreemptionByScheduler"), Some(30), false, Cause::Preemption),
        (Some("DeletionByTaintManager"), Some(30), false, Cause::TaintEviction),
        (Some("DeletionByPodGC"), Some(0), true, Cause::PodGc),
        (Some("SomethingNew"), Some(30), false, Cause::ApiDelete),
    ];
    for (disruption, grace, outlived, expected) in rows {
        let object = object(disruption, "", grace);
        let told = deletion(Some(&object), outlived).cause;
        assert_eq!(told, expected, "{disruption:?} {grace:?} {outlived}");
    }
}

#[test]
fn causes_without_a_deletion() {
    let by = |disruption, reason: &str| {
        by_kubelet(&object(disruption, reason, None)).map(|told| told.cause)
    };
    assert_eq!(by(None, "Evicted"), Some(Cause::NodePressureEviction));
    assert_eq!(by(Some("TerminationByKubelet"), "Evicted"), Some(Cause::NodePressureEviction));
    assert_eq!(by(Some("TerminationByKubelet"), "Terminated"), Some(Cause::NodeShutdown));
    assert_eq!(by(None, ""), None);
}

/// What is missing is said.
#[test]
fn an_unknown_cause_says_what_is_missing() {
    for (is_shown, is_recorded, says) in [
        (false, true, "the apiserver never reported the pod"),
        (true, true, "its status names no reason"),
        (true, false, "record of how one of its containers ended is missing"),
    ] {
        let mut world = World::new();
        if is_shown {
            world.api(ApiEvent::Snapshot { pods: vec![seen(1, false, world.at())] });
        }
        world.starts(1);
        world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
        world.ticks(60);
        if is_recorded {
            world.term(1, true);
            world.later(500).exits(1, CODE_0);
        } else {
            let cgroup = Cgroups::of(1).own;
            world.kernel(KernelFact::CgroupRemoved { cgroup });
        }
        world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
        world.status(1, 0);
        if is_shown {
            let mut pod = seen(1, false, world.at());
            pod.phase = "Failed".into();
            world.api(ApiEvent::Applied(pod));
        }
        world.cgroups_go(1);
        world.ticks(120);
        let end = &world.ended[0];
        assert_eq!((end.cause, end.cause_source), (Cause::Unknown, Source::Inferred));
        assert!(end.cause_message.contains(says), "{}", end.cause_message);
    }
}

/// A container in which these processes from outside failed, one after the other.
fn with_failed(names: &[&str]) -> ContainerProcesses {
    let mut processes = ContainerProcesses::default();
    processes.apply(BootTime(1), exec(1, 1, "app"), |_| false);
    for (n, name) in (0..).zip(names) {
        let at = BootTime(100 + 10 * u64::from(n));
        processes.apply(at, exec(100 + n, 30 + n, name), |_| false);
        let (cgroup, status) = (Cgroups::of(1).own, ExitStatus::Code(1));
        let task = task(100 + n, 30 + n, name);
        let parent = Some(shim());
        let exit = KernelFact::Exit { cgroup, task, status, parent };
        processes.apply(at, exit, |_| false);
    }
    processes
}

fn exec(pid: u32, ns: u32, comm: &str) -> KernelFact {
    let cgroup = Cgroups::of(1).own;
    KernelFact::Exec { cgroup, task: task(pid, ns, comm), parent: shim() }
}

#[test]
fn causes_of_a_containers_own_stop() {
    let probe =
        |exec: Option<&str>| Some(ApiProbe { exec: exec.map(Into::into), ..ApiProbe::default() });
    let with = |liveness: Option<ApiProbe>, startup: Option<ApiProbe>| {
        let mut object = object(None, "", None);
        object
            .pod
            .containers
            .insert("c".into(), ApiContainer { liveness, startup, ..ApiContainer::default() });
        object
    };
    let plain = with(None, None);
    let http = with(probe(None), None);
    let liveness = with(probe(Some("check")), None);
    let startup = with(None, probe(None));
    let both = with(probe(Some("check")), probe(Some("a-rather-long-name")));
    let (kernel, inferred) = (Source::Kernel, Source::Inferred);
    let (yes, no) = (Some(true), Some(false));
    let (three, other) = (&["check", "check", "check"][..], &["grep", "sh"][..]);
    let long = &["check", "a-rather-long-n"][..];
    let (at_once, first) = (Some(Shown::Replaced), Some(Shown::Terminated));
    let rows = [
        (Some(&plain), no, at_once, other, Cause::Restart, inferred, "no liveness or startup"),
        (Some(&http), yes, at_once, three, Cause::Liveness, inferred, "started it again at once: "),
        (Some(&liveness), yes, at_once, other, Cause::Liveness, inferred, "has a liveness probe"),
        (Some(&liveness), None, at_once, three, Cause::Liveness, kernel, "last 3 run(s)"),
        // Runs of its probe that failed say so even where the status showed no order.
        (Some(&liveness), None, None, three, Cause::Liveness, kernel, "last 3 run(s)"),
        (Some(&http), yes, None, three, Cause::Restart, inferred, "perhaps for its liveness probe"),
        (Some(&http), yes, first, three, Cause::ExternalStop, inferred, "did not stop it"),
        (Some(&plain), no, first, other, Cause::ExternalStop, inferred, "did not stop it"),
        (Some(&startup), no, at_once, other, Cause::Startup, inferred, "it has a startup probe"),
        (Some(&startup), yes, at_once, other, Cause::Restart, inferred, "had succeeded"),
        (Some(&startup), None, at_once, other, Cause::Restart, inferred, "no status was received"),
        (Some(&both), no, at_once, long, Cause::Startup, kernel, "last 1 run(s)"),
        (Some(&both), no, at_once, three, Cause::Startup, inferred, "it has a startup probe"),
        (Some(&both), yes, at_once, three, Cause::Liveness, kernel, "(check) of c failed"),
        (Some(&both), None, at_once, three, Cause::Restart, inferred, "its startup probe, its"),
        (None, None, at_once, three, Cause::Unknown, inferred, "has not reported the pod"),
    ];
    for (object, started, ended, failed, expected, source, says) in rows {
        let mut attempt = Attempt::default();
        (attempt.started, attempt.ended) = (started, ended);
        let processes = with_failed(failed);
        let told = StopEvidence {
            began: BootTime(1000),
            ended: None,
            container: "c",
            processes: &processes,
            signal: None,
            killed: None,
            neighbour: None,
            hook: None,
            interrupted: false,
            moved: false,
            object,
            attempt: Some(&attempt),
            sandbox_died: None,
            redefined: None,
            sandbox_followed: None,
            stated: None,
            unhealthy: None,
        }
        .reason();
        assert_eq!((told.cause, told.source), (expected, source), "{}", told.message);
        assert!(told.message.contains(says), "{}", told.message);
    }
}

/// A `kubectl exec` that failed is no proof of a failed httpGet liveness probe.
#[test]
fn a_shell_that_failed_proves_no_liveness_kill() {
    let mut world = running(1);
    let mut pod = seen(1, false, world.at());
    let c = pod.containers.get_mut("c").unwrap();
    (c.liveness, c.id) = (Some(ApiProbe::default()), Some(ids(1).2));
    world.api(ApiEvent::Applied(pod.clone()));
    let (cgroup, task) = (Cgroups::of(1).own, task(600, 30, "grep"));
    world.kernel(KernelFact::Exec { cgroup, task: task.clone(), parent: shim() });
    let (status, parent) = (ExitStatus::Code(1), Some(shim()));
    world.later(10).kernel(KernelFact::Exit { cgroup, task, status, parent });
    world.later(100_000).term(1, true);
    world.later(500).exits(1, CODE_0);
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    is_replaced(pod.containers.get_mut("c").unwrap(), 1);
    world.later(500).api(ApiEvent::Applied(pod));
    world.ticks(120);
    assert_eq!(world.died.len(), 0, "the next attempt's hash may exclude the probe");
    world.lists(vec![sandbox(1, true)], vec![replacement()]);
    world.ticks(2);
    let death = &world.died[0];
    assert_eq!((death.cause, death.cause_source), (Cause::Liveness, Source::Inferred));
}

/// A container that has long started, with a startup and a liveness probe, is stopped; `before` and
/// `after` are what its status says of it while it runs, and once it is stopped.
fn told_of_a_stop(before: Option<bool>, after: Option<bool>) -> Cause {
    let mut world = running(1);
    let mut pod = seen(1, false, world.at());
    let c = pod.containers.get_mut("c").unwrap();
    (c.liveness, c.startup) = (Some(ApiProbe::default()), Some(ApiProbe::default()));
    (c.started, c.id) = (before, Some(ids(1).2));
    world.api(ApiEvent::Applied(pod.clone()));
    world.ticks(3600);
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    let mut next = container(1, ContainerState::Running);
    next.id = "c".repeat(64).as_str().into();
    next.attempt = 1;
    world
        .later(500)
        .lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited), next]);
    world.status(1, 0);
    let c = pod.containers.get_mut("c").unwrap();
    c.started = after;
    world.later(200).api(ApiEvent::Applied(pod.clone()));
    let c = pod.containers.get_mut("c").unwrap();
    is_replaced(c, 1);
    c.started = Some(false);
    world.later(500).api(ApiEvent::Applied(pod));
    world.ticks(30);
    world.died[0].cause
}

/// The kubelet sets `started: false` for whatever does not run (prober_manager.go), and the next
/// attempt has not started yet.
#[test]
fn a_liveness_kill_is_no_startup_kill() {
    assert_eq!(told_of_a_stop(Some(true), Some(false)), Cause::Liveness);
    assert_eq!(told_of_a_stop(Some(false), Some(false)), Cause::Startup);
    assert_eq!(told_of_a_stop(None, None), Cause::Restart);
}

/// The agent came while a static pod was being removed, perhaps: the verdict is unknown for that
/// reason, and so is whether it was told to stop.
#[test]
fn a_cause_that_rests_on_an_absence_of_a_container_found_late() {
    let mut world = World::in_sync();
    let (pod, _, id) = ids(1);
    let of = Cgroups::of(1);
    let name = format!("/kubepods/pod{pod}/{id}");
    world.kernel(KernelFact::CgroupCreated { cgroup: of.own, parent: None, name, scanned: true });
    world.kernel(KernelFact::Running { cgroup: of.own, task: init(1) });
    world.lists(vec![of_file(sandbox(1, true))], vec![container(1, ContainerState::Running)]);
    world.ticks(3);
    world.exits(1, CODE_0);
    world.lists(vec![of_file(sandbox(1, false))], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(120);
    let end = &world.ended[0];
    assert_eq!(end.containers[0].verdict, Verdict::Unknown);
    assert_eq!((end.cause, end.cause_source), (Cause::Unknown, Source::Inferred));
    assert!(
        end.cause_message.contains("the agent began to watch it only"),
        "{}",
        end.cause_message
    );
}

/// The stop signal of a liveness kill was lost with the deciding ring.
#[test]
fn a_containers_cause_that_rests_on_a_lost_record() {
    let mut world = running(1);
    world.say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 1)));
    world.later(500).exits(1, CODE_0);
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(120);
    let death = &world.died[0];
    assert_eq!(death.verdict, Verdict::Unknown);
    assert_eq!((death.cause, death.cause_source), (Cause::Unknown, Source::Inferred));
    assert!(death.cause_message.contains("evidence was lost"), "{}", death.cause_message);
}

/// The kubelet deletes the object with a grace of 0 when all containers have ended, by its own
/// knowledge: the runtime may have lost a process (kubernetes/kubernetes#88613).
fn deleted_before_its_end(change: fn(&mut ApiPod)) -> Cause {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(seen(1, true, at)));
    world.later(300).term(1, true);
    let mut last = seen(1, true, at);
    last.deletion_grace_seconds = Some(0);
    change(&mut last);
    world.later(1000).api(ApiEvent::Applied(last.clone()));
    world.api(ApiEvent::Deleted(last));
    world.later(5000).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.ticks(60);
    world.ended[0].cause
}

#[test]
fn the_kubelets_own_final_delete_is_no_force() {
    assert_eq!(deleted_before_its_end(|pod| pod.phase = "Failed".into()), Cause::ApiDelete);
    // Kubelets up to 1.26 leave the phase at Running.
    let terminated = |pod: &mut ApiPod| {
        let c = pod.containers.get_mut("c").unwrap();
        c.id = Some(ids(1).2);
        let reason = "Completed".into();
        c.terminated =
            vec![ApiTerminated { id: c.id.clone(), exit_code: 0, reason, finished: None }];
    };
    assert_eq!(deleted_before_its_end(terminated), Cause::ApiDelete);
    // Somebody did not wait for it.
    let runs = |pod: &mut ApiPod| pod.containers.get_mut("c").unwrap().id = Some(ids(1).2);
    assert_eq!(deleted_before_its_end(runs), Cause::ForceDelete);
}

/// activeDeadlineSeconds of a pod: the kubelet stops it and sets the reason DeadlineExceeded.
#[test]
fn a_status_reason_that_is_there_is_not_called_missing() {
    for (told, expected) in
        [("DeadlineExceeded", Cause::DeadlineExceeded), ("SomethingNew", Cause::Unknown)]
    {
        let mut world = running(1);
        world.term(1, true);
        world.later(500).exits(1, CODE_0);
        world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
        world.status(1, 0);
        let mut pod = seen(1, false, world.at());
        (pod.phase, pod.reason) = ("Failed".into(), told.into());
        world.api(ApiEvent::Applied(pod));
        world.ticks(60);
        let end = &world.ended[0];
        assert_eq!((end.cause, end.cause_source), (expected, Source::Api));
        assert!(end.cause_message.contains(told), "{}", end.cause_message);
    }
}

/// Graceful node shutdown ends static pods as well, and so does an eviction.
#[test]
fn a_static_pod_of_a_node_that_shuts_down() {
    for (told, expected) in [
        ("Terminated", Cause::NodeShutdown),
        ("Evicted", Cause::NodePressureEviction),
        ("", Cause::StaticRemoved),
    ] {
        let mut world = World::in_sync();
        let mut mirror = seen(7, false, world.at());
        mirror.mirror_of = Some(ids(1).0);
        world.api(ApiEvent::Applied(mirror.clone()));
        world.starts(1);
        world.lists(vec![of_file(sandbox(1, true))], vec![container(1, ContainerState::Running)]);
        world.ticks(60);
        world.term(1, true);
        world.later(500).exits(1, CODE_0);
        world.lists(vec![of_file(sandbox(1, false))], vec![container(1, ContainerState::Exited)]);
        world.status(1, 0);
        (mirror.phase, mirror.reason) = ("Failed".into(), told.into());
        world.api(ApiEvent::Applied(mirror));
        world.ticks(120);
        assert_eq!(world.ended[0].cause, expected, "{}", world.ended[0].cause_message);
    }
}

/// An init container failed, restartPolicy Never: no main container ever was.
#[test]
fn a_pod_whose_init_container_failed_had_no_main_container() {
    for (told_to_stop, expected, says) in [
        (false, Cause::Completed, "None of its main containers ran"),
        (true, Cause::Unknown, "It was stopped without a deletion"),
    ] {
        let mut world = running(1);
        let mut pod = seen(1, false, world.at());
        pod.containers.get_mut("c").unwrap().kind = ContainerKind::Init;
        pod.containers.insert("main".into(), ApiContainer::default());
        world.api(ApiEvent::Applied(pod.clone()));
        if told_to_stop {
            world.term(1, true);
        }
        world.later(500).exits(1, ExitStatus::Code(1));
        world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
        world.status(1, 1);
        pod.phase = "Failed".into();
        world.api(ApiEvent::Applied(pod));
        world.ticks(60);
        let end = &world.ended[0];
        assert_eq!(end.cause, expected, "{}", end.cause_message);
        assert!(end.cause_message.contains(says), "{}", end.cause_message);
    }
}

/// The liveness probe stops the container, and its image is changed while it is in back-off. A watch that was away
/// meanwhile delivers all of that at once, in order.
#[test]
fn an_image_that_was_changed_after_the_end_did_not_cause_it() {
    let mut world = running(1);
    let mut pod = seen(1, false, world.at());
    let c = pod.containers.get_mut("c").unwrap();
    (c.liveness, c.id) = (Some(ApiProbe::default()), Some(ids(1).2));
    world.api(ApiEvent::Applied(pod.clone()));
    world.later(10_000).term(1, true);
    world.later(500).exits(1, CODE_0);
    let hashed = |mut one: CriContainer, hash: &str| {
        one.hash = Some(hash.into());
        one
    };
    let ended = hashed(container(1, ContainerState::Exited), "a");
    world.lists(vec![sandbox(1, true)], vec![ended.clone()]);
    world.status(1, 0);
    world.ticks(60);
    let c = pod.containers.get_mut("c").unwrap();
    shows_its_end(c, 1);
    c.waiting = Some("CrashLoopBackOff".into());
    world.api(ApiEvent::Applied(pod.clone()));
    pod.containers.get_mut("c").unwrap().image = 7;
    world.api(ApiEvent::Applied(pod.clone()));
    let c = pod.containers.get_mut("c").unwrap();
    is_replaced(c, 1);
    c.waiting = None;
    world.api(ApiEvent::Applied(pod));
    world.lists(vec![sandbox(1, true)], vec![ended, hashed(replacement(), "b")]);
    world.ticks(10);
    let death = &world.died[0];
    assert_ne!(death.cause_certainty, Certainty::Proven, "{}", death.cause_message);
}
