//! Lists of the runtime whose answers come in another order than they were asked for: a full one may
//! take a minute, while filtered ones are answered.

use super::world::{
    CODE_0, Cgroups, World, container, ids, init, is_replaced, object, replacement, sandbox, shim,
    task,
};
use coroner_core::{
    cri::CriState,
    dirty::Dirty,
    ids::{CgroupId, SandboxId},
    input::{ApiEvent, ContainerState, CriContainer, CriEvent, KernelFact},
    time::{BootTime, Interval, WallTime},
    types::{Cause, Verdict},
};

fn secs(n: u64) -> BootTime {
    BootTime(n * 1_000_000_000)
}

/// A list of pod 1: of its sandbox' readiness and its container's state, as far as they are listed.
fn list(
    runtime: &mut CriState,
    (asked, answered): (u64, u64),
    only: Option<SandboxId>,
    ready: Option<bool>,
    state: Option<ContainerState>,
) {
    let asked = secs(asked);
    let sandboxes = ready.map(|ready| sandbox(1, ready)).into_iter().collect();
    let containers = state.map(|state| container(1, state)).into_iter().collect();
    for event in [
        CriEvent::Sandboxes { asked, only: only.clone(), sandboxes },
        CriEvent::Containers { asked, only, containers },
    ] {
        runtime.apply(secs(answered), event, &mut Dirty::default());
    }
}

fn only() -> Option<SandboxId> {
    Some(ids(1).1)
}

#[test]
fn a_late_list_takes_back_nothing_that_a_newer_one_showed() {
    let (_, id, app) = ids(1);
    let mut runtime = CriState::default();
    list(&mut runtime, (1, 1), None, Some(true), Some(ContainerState::Running));
    list(&mut runtime, (12, 13), only(), Some(false), Some(ContainerState::Exited));
    // Asked for before that, answered after it.
    list(&mut runtime, (10, 25), None, Some(true), Some(ContainerState::Running));
    let known = runtime.sandbox(&id).unwrap();
    assert!(!known.info.ready);
    let between = Some(Interval { earliest: secs(1), latest: secs(13) });
    assert_eq!((known.ended, known.asked), (between, secs(12)));
    let known = runtime.container(&app).unwrap();
    assert_eq!((known.info.state, known.ended), (ContainerState::Exited, between));
    // What is gone stays gone.
    list(&mut runtime, (30, 31), only(), None, None);
    list(&mut runtime, (28, 40), None, Some(true), Some(ContainerState::Running));
    let gone = Some(Interval { earliest: secs(12), latest: secs(31) });
    assert_eq!(runtime.sandbox(&id).unwrap().removed, gone);
    assert_eq!(runtime.container(&app).unwrap().removed, gone);
}

#[test]
fn what_a_late_list_does_not_have_may_be_younger() {
    let (_, id, app) = ids(1);
    let mut runtime = CriState::default();
    list(&mut runtime, (12, 13), only(), Some(true), Some(ContainerState::Running));
    for late in [(2, 20), (10, 25)] {
        list(&mut runtime, late, None, None, None);
        assert!(runtime.sandbox(&id).unwrap().missing.is_none());
        assert_eq!(runtime.container(&app).unwrap().ended, None);
    }
    assert!(!runtime.has_listed_since(secs(11)), "what is not covered is not known");
    // Two that were asked for after it was listed.
    list(&mut runtime, (30, 45), None, None, None);
    list(&mut runtime, (50, 65), None, None, None);
    let gone = Some(Interval { earliest: secs(12), latest: secs(45) });
    assert_eq!(runtime.sandbox(&id).unwrap().removed, gone);
}

/// The times between which a change lies are those of the requests and the answers, however late.
#[test]
fn a_late_answer_is_true_as_of_its_request() {
    let (_, id, _) = ids(1);
    let mut runtime = CriState::default();
    list(&mut runtime, (0, 15), None, Some(true), Some(ContainerState::Running));
    assert!(runtime.is_current() && !runtime.has_listed_since(secs(1)));
    list(&mut runtime, (20, 70), None, Some(false), Some(ContainerState::Exited));
    let stopped = Some(Interval { earliest: secs(0), latest: secs(70) });
    assert_eq!(runtime.sandbox(&id).unwrap().ended, stopped);
    assert_eq!(
        runtime.connection.gaps.between(secs(0), secs(100)).count(),
        0,
        "lateness is no outage"
    );
}

/// The runtime's lists of containers come when the pod is gone: the kernel and the pod's status have named the
/// container meanwhile, and its report has it.
#[test]
fn a_container_that_no_list_ever_showed_is_in_its_pods_report() {
    let mut world = World::in_sync();
    let mut pod = object(1, false, world.at());
    pod.containers.get_mut("c").unwrap().id = Some(ids(1).2);
    world.starts(1);
    world.api(ApiEvent::Applied(pod.clone()));
    let at = world.at();
    let sandboxes = vec![sandbox(1, true)];
    world.cri(CriEvent::Sandboxes { asked: at, only: None, sandboxes });
    world.ticks(1);
    let at = world.at();
    pod.deletion_timestamp = object(1, true, at).deletion_timestamp;
    world.api(ApiEvent::Applied(pod.clone()));
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    let at = world.at();
    world.cri(CriEvent::Sandboxes { asked: at, only: None, sandboxes: vec![sandbox(1, false)] });
    world.cri(CriEvent::Containers { asked: at, only: None, containers: Vec::new() });
    world.api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let end = world.reports().next().expect("a report");
    let [death] = end.containers.as_slice() else { panic!("{end:?}") };
    assert_eq!((death.name.as_str(), death.verdict), ("c", Verdict::Graceful), "{death:?}");
}

/// An attempt comes and goes between two lists, and its pod goes on: its own report is all there is of it.
#[test]
fn an_attempt_that_no_list_ever_showed_is_reported() {
    let mut world = World::in_sync();
    let mut pod = object(1, false, world.at());
    pod.containers.get_mut("c").unwrap().id = Some(ids(1).2);
    world.lists(vec![sandbox(1, true)], Vec::new());
    world.starts(1);
    world.api(ApiEvent::Applied(pod.clone()));
    world.later(1000).term(1, true);
    world.later(500).exits(1, CODE_0);
    world.ticks(20);
    is_replaced(pod.containers.get_mut("c").unwrap(), 1);
    world.api(ApiEvent::Applied(pod));
    assert!(world.died.is_empty(), "the next list may show it");
    world.lists(vec![sandbox(1, true)], vec![replacement()]);
    world.ticks(60);
    let [death] = world.died.as_slice() else { panic!("{:?}", world.died) };
    assert_eq!((&death.id, death.name.as_str()), (&ids(1).2, "c"));
    assert_eq!((death.verdict, death.cause), (Verdict::Graceful, Cause::Restart), "{death:?}");
}

/// The pod comes and goes while the runtime is down: no list has its sandbox, and `listed` says whether one has
/// its container.
fn comes_and_goes_without_a_list_of_its_sandbox(listed: bool) {
    let mut world = World::in_sync();
    let mut pod = object(1, false, world.at());
    pod.containers.get_mut("c").unwrap().id = Some(ids(1).2);
    world.starts(1);
    world.api(ApiEvent::Applied(pod.clone()));
    world.ticks(1);
    if listed {
        let (asked, containers) = (world.at(), vec![container(1, ContainerState::Running)]);
        world.cri(CriEvent::Containers { asked, only: None, containers });
    }
    world.cri(CriEvent::Unreachable { error: "gone".into(), code: None });
    let deleting = object(1, true, world.at());
    (pod.deletion_timestamp, pod.deletion_grace_seconds) =
        (deleting.deletion_timestamp, deleting.deletion_grace_seconds);
    world.api(ApiEvent::Applied(pod.clone()));
    world.term(1, true);
    world.later(500).exits(1, CODE_0);
    world.cgroups_go(1);
    world.api(ApiEvent::Deleted(pod));
    world.ticks(20);
    assert_eq!(world.ended.len(), 0);
    for _ in 0..2 {
        world.lists(Vec::new(), Vec::new());
        world.ticks(10);
    }
    world.ticks(60);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    let [death] = end.containers.as_slice() else { panic!("{end:?}") };
    assert_eq!((death.name.as_str(), death.verdict), ("c", Verdict::Graceful), "{death:?}");
    assert_eq!(end.cause, Cause::ApiDelete);
    assert_eq!(world.died.len(), 1, "{:?}", world.died);
}

#[test]
fn a_pod_whose_sandbox_no_list_showed_is_reported() {
    comes_and_goes_without_a_list_of_its_sandbox(true);
}

#[test]
fn a_pod_of_which_no_list_showed_anything_is_reported() {
    comes_and_goes_without_a_list_of_its_sandbox(false);
}

/// The runtime leaves out a sandbox that it cannot read, and the kernel shows that it runs.
#[test]
fn a_sandbox_that_runs_is_not_taken_for_removed() {
    let mut world = World::in_sync();
    let mut pod = object(1, false, world.at());
    pod.mirror_of = Some(ids(1).0);
    pod.containers.get_mut("c").unwrap().id = Some(ids(1).2);
    world.starts(1);
    let (cgroup, parent) = (Cgroups::of(1).pause, shim());
    world.kernel(KernelFact::Exec { cgroup, task: task(7, 1, "pause"), parent });
    world.api(ApiEvent::Applied(pod));
    world.later(2000).exits(1, CODE_0);
    for _ in 0..3 {
        world.lists(Vec::new(), Vec::new());
        world.ticks(40);
    }
    assert_eq!(world.ended.len(), 0, "{:?}", world.ended);
}

/// Its first attempt's cgroup is no sandbox.
#[test]
fn the_first_container_of_an_unlisted_pod_is_its_sandbox() {
    let mut world = World::in_sync();
    let mut pod = object(1, false, world.at());
    world.starts(1);
    world.later(1000).exits(1, CODE_0);
    let (cgroup, name) = (CgroupId(19), ids(2).2.to_string());
    let parent = Some(Cgroups::of(1).pod);
    world.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    world.kernel(KernelFact::Exec { cgroup, task: init(2), parent: shim() });
    let second = pod.containers.get_mut("c").unwrap();
    (second.id, second.restarts) = (Some(ids(2).2), 1);
    world.api(ApiEvent::Applied(pod.clone()));
    world.later(1000).kernel(KernelFact::Exit {
        cgroup,
        task: init(2),
        status: CODE_0,
        parent: Some(shim()),
    });
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    world.cgroups_go(1);
    world.api(ApiEvent::Deleted(pod));
    world.ticks(5);
    world.lists(Vec::new(), Vec::new());
    world.ticks(1);
    let held = format!("{:?}", world.engine);
    let sandbox = format!("sandbox: {:?}", ids(1).1);
    assert!(held.contains(&sandbox), "the container's sandbox is the pod's first cgroup: {held}");
    world.ticks(10);
    world.lists(Vec::new(), Vec::new());
    world.ticks(60);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    assert_eq!(end.containers.len(), 1, "{end:?}");
}

/// NTP sets the clock back by ten minutes between two attempts: by the runtime's dates the first is the last.
#[test]
fn a_clock_that_is_set_back_reorders_no_attempts() {
    let mut world = World::in_sync();
    let mut pod = object(1, false, world.at());
    pod.containers.get_mut("c").unwrap().id = Some(ids(1).2);
    world.api(ApiEvent::Applied(pod.clone()));
    world.starts(1);
    let mut first = container(1, ContainerState::Running);
    first.created = Some(WallTime(600_000_000_000));
    world.lists(vec![sandbox(1, true)], vec![first.clone()]);
    world.exits(1, CODE_0);
    first.state = ContainerState::Exited;
    let (next, cgroup) = (replacement(), CgroupId(900));
    let (parent, name) = (Some(Cgroups::of(1).pod), next.id.to_string());
    world.later(1000).kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    world.kernel(KernelFact::Exec { cgroup, task: task(77, 1, "app"), parent: shim() });
    world.lists(vec![sandbox(1, true)], vec![first.clone(), next.clone()]);
    world.status(1, 0);
    is_replaced(pod.containers.get_mut("c").unwrap(), 1);
    world.api(ApiEvent::Applied(pod.clone()));
    world.ticks(20);
    let deleting = object(1, true, world.at());
    (pod.deletion_timestamp, pod.deletion_grace_seconds) =
        (deleting.deletion_timestamp, deleting.deletion_grace_seconds);
    world.api(ApiEvent::Applied(pod.clone()));
    let (exit, parent) = (task(77, 1, "app"), Some(shim()));
    world.kernel(KernelFact::Exit { cgroup, task: exit, status: CODE_0, parent });
    world.kernel(KernelFact::CgroupEmpty { cgroup });
    let ended = CriContainer { state: ContainerState::Exited, ..next.clone() };
    world.lists(vec![sandbox(1, false)], vec![first, ended]);
    world.later(500).api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let [end] = world.ended.as_slice() else { panic!("{:?}", world.ended) };
    let ended: Vec<_> = end.containers.iter().map(|death| &death.id).collect();
    assert_eq!(ended, [&next.id], "{end:?}");
}
