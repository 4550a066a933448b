//! Circumstances → cause, with what says so.

use super::world::{
    CODE_0, Cgroups, World, container, ids, init, object as seen, of_file, running, sandbox, shim,
    signal, task,
};
use coroner_core::{
    api::{DeletionRequest, PodObject},
    cause::{AttributedCause, Stop, by_kubelet, deletion},
    input::{
        ApiContainer, ApiEvent, ApiPod, ApiProbe, ApiTerminated, ContainerKind, ContainerState,
        ExitStatus, Hook, Input, KernelFact, Loss, LossKind,
    },
    process::{ContainerProcesses, Origin, SentSignal},
    time::{BootTime, Interval, WallTime},
    types::{Cause, Source, Verdict},
};

fn object(disruption: Option<&str>, reason: &str, grace: Option<i64>) -> PodObject {
    let pod = ApiPod {
        disruption: disruption.map(Into::into),
        reason: reason.into(),
        ..ApiPod::default()
    };
    let requested = grace.map(|grace_seconds| DeletionRequest {
        made: Interval { earliest: BootTime(1), latest: BootTime(1) },
        date: BootTime(1),
        grace_seconds,
        stamp: WallTime(0),
    });
    let mut object = PodObject::new(pod);
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
        (false, true, "the apiserver has not reported the pod"),
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

/// One source states one thing; the first of these that does is the cause.
#[test]
fn causes_of_a_containers_own_stop() {
    let probe =
        |exec: Option<&str>| Some(ApiProbe { exec: exec.map(Into::into), ..ApiProbe::default() });
    let spec = |liveness, startup| ApiContainer { liveness, startup, ..ApiContainer::default() };
    let hooked = |hook: &str| ApiContainer {
        pre_stop: Some(Hook::Exec(hook.into())),
        ..ApiContainer::default()
    };
    let (plain, http) = (spec(None, None), spec(probe(None), None));
    let liveness = spec(probe(Some("check")), None);
    let both = spec(probe(Some("check")), probe(Some("a-rather-long-name")));
    let hook = hooked("bye");
    let processes = with_failed(&["check", "a-rather-long-n"]);
    let sent_by = |comm: &str, origin| {
        let mut sender = shim();
        sender.comm = comm.into();
        let KernelFact::SignalGenerated(signal) = signal(Cgroups::of(1).own, init(1), 15, sender)
        else {
            unreachable!()
        };
        SentSignal { at: BootTime(900), signal, origin }
    };
    let runc = sent_by("runc", Origin::Outside);
    let host = sent_by("bash", Origin::Outside);
    let exec = sent_by("kill", Origin::Entered);
    let deleted = AttributedCause::new(Cause::ApiDelete, Source::Api, "");
    let event = AttributedCause::new(Cause::DefinitionChanged, Source::Kubelet, "");
    let none = Stop {
        began: BootTime(1000),
        container: "c",
        processes: &processes,
        sent: Some(&runc),
        neighbour: None,
        hook: None,
        spec: Some(&plain),
        started: true,
        pod: None,
        status: None,
        event: None,
    };
    macro_rules! rows {
        ($($($field:ident = $value:expr),+ => $expected:expr;)+) => {$({
            let mut stop = none.clone();
            $(stop.$field = $value;)+
            let stated = stop.stated().map(|told| (told.cause, told.source));
            assert_eq!(stated, $expected, stringify!($($field = $value),+));
        })+};
    }
    use {Cause as C, Source as S};
    rows! {
        began = BootTime(1000) => None;
        // Who sent the signal.
        sent = Some(&exec) => Some((C::ExternalStop, S::Kernel));
        neighbour = Some("other") => Some((C::ExternalStop, S::Kernel));
        sent = Some(&host) => Some((C::ExternalStop, S::Inferred));
        // It may be the hook's.
        sent = Some(&exec), spec = Some(&hook) => None;
        sent = Some(&exec), spec = None => None;
        // What the pod ended for, unless another container's process sent the signal.
        pod = Some(&deleted), event = Some(event.clone()) => Some((C::ApiDelete, S::Api));
        pod = Some(&deleted), sent = Some(&host) => Some((C::ApiDelete, S::Api));
        pod = Some(&deleted), sent = Some(&exec) => Some((C::ExternalStop, S::Kernel));
        // What the status says of the container.
        status = Some(C::PostStartFailed), event = Some(event.clone()) => Some((C::PostStartFailed, S::Api));
        status = Some(C::RestartAllContainers) => Some((C::RestartAllContainers, S::Api));
        // An Event.
        event = Some(event.clone()), spec = Some(&liveness) => Some((C::DefinitionChanged, S::Kubelet));
        event = Some(event.clone()), sent = Some(&host) => Some((C::DefinitionChanged, S::Kubelet));
        // Runs of an exec probe that failed.
        spec = Some(&liveness) => Some((C::Liveness, S::Kernel));
        spec = Some(&both), started = false => Some((C::Startup, S::Kernel));
        spec = Some(&both) => Some((C::Liveness, S::Kernel));
        spec = Some(&http) => None;
    }
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
