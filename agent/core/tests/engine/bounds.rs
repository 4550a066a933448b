//! The engine's memory is bounded: after any number of pods it holds what it held after a few.

use super::world::{
    CODE_0, Cgroups, World, container, ids, init, object, of_file, running, sandbox, shim, task,
};
use coroner_core::{
    engine::Gauges,
    ids::{CgroupId, PodUid},
    input::{
        ApiEvent, ContainerState, CriContainer, CriEvent, CriSandbox, ExitStatus, Hook, KernelFact,
        LossKind,
    },
    types::Verdict,
};

/// One pod from its beginning to its end, with all three sources telling.
fn life(world: &mut World, n: u64) {
    let at = world.at();
    world.api(ApiEvent::Applied(object(n, false, at)));
    world.starts(n);
    world.lists(vec![sandbox(n, true)], vec![container(n, ContainerState::Running)]);
    world.api(ApiEvent::Applied(object(n, true, at)));
    world.exits(n, ExitStatus::Code(0));
    world.cgroups_go(n);
    world.lists(vec![sandbox(n, false)], vec![container(n, ContainerState::Exited)]);
    world.status(n, 0);
    world.api(ApiEvent::Deleted(object(n, true, at)));
    world.lists(Vec::new(), Vec::new());
    world.ticks(1);
}

fn after(pods: u64) -> (Gauges, usize, usize) {
    let mut world = World::in_sync();
    for n in 1..=pods {
        life(&mut world, n);
    }
    world.ticks(200);
    assert!(world.reports().all(|report| report.is_final), "nothing waits for ever");
    assert_eq!(world.counted.len(), world.ended.len());
    assert_eq!(world.counted_deaths.len(), world.died.len());
    (world.engine.gauges(), world.ended.len(), world.died.len())
}

#[test]
fn nothing_stays_of_pods_that_are_gone() {
    let (gauges, ended, died) = after(3_000);
    assert_eq!((ended, died), (3_000, 3_000), "each is told once");
    assert_eq!(gauges, Gauges::default(), "and then forgotten");
}

/// Cgroups that no runtime ever explains are given up, and counted; later where it does not answer.
#[test]
fn unexplained_containers_are_given_up() {
    given_up(120, true);
    given_up(3_700, false);
}

fn given_up(seconds: u64, answers: bool) {
    let mut world = World::new();
    world.cri(CriEvent::Connected { runtime: "test".into(), process: None });
    for n in 1..=100 {
        let (pod, _, id) = ids(n);
        let name = format!("/kubepods/pod{pod}/{id}");
        let cgroup = CgroupId(n);
        world.kernel(KernelFact::CgroupCreated { cgroup, parent: None, name, scanned: false });
        world.kernel(KernelFact::CgroupEmpty { cgroup });
        world.kernel(KernelFact::CgroupRemoved { cgroup });
    }
    if answers {
        world.lists(Vec::new(), Vec::new());
    }
    world.ticks(seconds);
    let gauges = world.engine.gauges();
    assert_eq!((gauges.cgroups, gauges.containers), (0, 0));
    let lost: Vec<_> = gauges.losses.into_iter().collect();
    assert_eq!(lost, [(LossKind::NeverResolved, 100)]);
}

/// Cgroups that are made and removed by thousands, with names like containers' and nobody in them:
/// nothing died, so nothing is lost, and few are remembered.
#[test]
fn cgroups_that_nobody_was_in_are_no_loss() {
    let mut world = World::new();
    world.cri(CriEvent::Connected { runtime: "test".into(), process: None });
    for n in 1..=5_000 {
        let (pod, _, id) = ids(n);
        let name = format!("/kubepods/pod{pod}/{id}");
        let cgroup = CgroupId(n);
        world.kernel(KernelFact::CgroupCreated { cgroup, parent: None, name, scanned: false });
        world.kernel(KernelFact::CgroupRemoved { cgroup });
    }
    let gauges = world.engine.gauges();
    assert!(gauges.containers <= 256 && gauges.cgroups <= 256, "{gauges:?}");
    world.lists(Vec::new(), Vec::new());
    world.ticks(120);
    let gauges = world.engine.gauges();
    assert_eq!((gauges.cgroups, gauges.containers), (0, 0));
    assert!(gauges.losses.is_empty(), "{:?}", gauges.losses);
}

/// More containers than the engine follows: the rest is refused and counted, never a panic.
#[test]
fn too_many_containers_are_refused() {
    let mut world = World::new();
    for n in 1..=20_000 {
        let (pod, _, id) = ids(n);
        let name = format!("/kubepods/pod{pod}/{id}");
        let cgroup = CgroupId(n);
        world.kernel(KernelFact::CgroupCreated { cgroup, parent: None, name, scanned: false });
    }
    let gauges = world.engine.gauges();
    assert!(gauges.containers <= 16_384, "{}", gauges.containers);
    let refused = gauges.losses[&LossKind::EngineFull];
    assert_eq!(refused + gauges.containers as u64, 20_000);
}

#[test]
fn late_records_of_forgotten_cgroups_do_not_stay() {
    let mut world = World::in_sync();
    for n in 1..=100 {
        world.kernel(KernelFact::Exit {
            cgroup: Cgroups::of(n).own,
            task: init(n),
            status: CODE_0,
            parent: Some(shim()),
        });
    }
    world.ticks(48 * 3600);
    assert_eq!(world.engine.gauges().containers, 0);
}

/// A finalizer that holds the object for 25 hours: the pod's end is told all the same, once, and
/// then forgotten.
#[test]
fn a_pod_held_by_a_finalizer_for_a_day_is_told() {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(300).term(1, true);
    world.later(100).exits(1, CODE_0);
    world.later(100).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited)]);
    world.status(1, 0);
    world.cgroups_go(1);
    world.lists(vec![], vec![]);
    world.lists(vec![], vec![]);
    world.ticks(25 * 3600);
    assert_eq!(world.ended.len(), 0);
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(120);
    assert_eq!(world.ended.len(), 1, "told");
    assert_eq!(world.ended[0].containers.len(), 1);
    world.lists(vec![], vec![]);
    world.ticks(600);
    assert_eq!(world.engine.gauges(), Gauges::default(), "and forgotten");
}

/// The UID of a static pod lives for as long as the node does; its sandboxes do not.
#[test]
fn nothing_stays_of_the_lives_of_a_static_pod() {
    let mut world = World::in_sync();
    let uid: PodUid = ids(1).0;
    let of_static = |n, ready, state| {
        let pod = uid.clone();
        let sandbox = CriSandbox { pod: pod.clone(), ..of_file(sandbox(n, ready)) };
        (sandbox, CriContainer { pod: Some(pod), ..container(n, state) })
    };
    for n in 1..=5 {
        world.starts(n);
        let (sandbox, container) = of_static(n, true, ContainerState::Running);
        world.lists(vec![sandbox], vec![container]);
        world.ticks(10);
        world.term(n, true);
        world.exits(n, CODE_0);
        let (sandbox, container) = of_static(n, false, ContainerState::Exited);
        world.lists(vec![sandbox], vec![container]);
        world.status(n, 0);
        world.ticks(60);
    }
    let (sandbox, container) = of_static(6, true, ContainerState::Running);
    world.starts(6);
    world.lists(vec![sandbox], vec![container]);
    world.ticks(1200);
    assert_eq!(world.ended.len(), 5);
    let held = format!("{:?}", world.engine);
    for n in 1..=5 {
        assert!(!held.contains(ids(n).1.as_str()), "the sandbox of life {n}");
        assert!(!held.contains(ids(n).2.as_str()), "the container of life {n}");
    }
}

/// A number out of a recording.
#[test]
fn a_grace_out_of_range_is_no_panic() {
    for grace in [i64::MIN, -1, i64::MAX] {
        let mut world = World::in_sync();
        world.starts(1);
        let odd = |state| CriContainer {
            grace_seconds: Some(grace),
            pre_stop: Some(Hook::Sleep(5)),
            ..container(1, state)
        };
        world.later(60_000).lists(vec![sandbox(1, true)], vec![odd(ContainerState::Running)]);
        world.term(1, true);
        world.exits(1, CODE_0);
        world.lists(vec![sandbox(1, true)], vec![odd(ContainerState::Exited)]);
        world.status(1, 0);
        world.ticks(300); // the apiserver, which may be late, never reports the pod
        assert_eq!(world.died.len(), 1, "grace {grace}");
    }
}

/// A tenant makes more cgroups of its own than are kept, and something ends in each: the next container
/// is followed all the same.
#[test]
fn evicted_cgroups_of_a_tenant_leave_room_for_other_containers() {
    let mut world = running(1);
    let parent = Some(Cgroups::of(1).own);
    for n in 0..18_000 {
        let (cgroup, name) = (CgroupId(100_000 + n), format!("unit{n}"));
        world.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    }
    for n in 0..18_000 {
        let (cgroup, task) = (CgroupId(100_000 + n), task(20_000 + n as u32, 2, "worker"));
        world.kernel(KernelFact::Exit { cgroup, task, status: CODE_0, parent: Some(shim()) });
    }
    let followed = world.engine.gauges().containers;
    assert!(followed <= 1_100, "{followed}");
    world.starts(2);
    world.lists(
        vec![sandbox(1, true), sandbox(2, true)],
        vec![container(1, ContainerState::Running), container(2, ContainerState::Running)],
    );
    world.later(1_000).exits(2, ExitStatus::Code(3));
    world.lists(
        vec![sandbox(1, true), sandbox(2, true)],
        vec![container(1, ContainerState::Running), container(2, ContainerState::Exited)],
    );
    world.status(2, 3);
    world.ticks(60);
    assert_eq!(world.died[0].verdict, Verdict::Failed, "{}", world.died[0].proof.message);
}

/// Container and sandbox come between two lists of the sandboxes, and go before the next: no pod's report
/// can have the container, so that it counts.
#[test]
fn a_container_whose_sandbox_was_never_listed_counts_as_lost() {
    for listed_late in [false, true] {
        let mut world = World::in_sync();
        world.starts(1);
        world.lists(vec![], vec![container(1, ContainerState::Running)]);
        world.later(1_000).exits(1, ExitStatus::Code(3));
        if listed_late {
            let all = vec![container(1, ContainerState::Exited)];
            world.later(100).lists(vec![sandbox(1, false)], all);
            world.status(1, 3);
            world.ticks(20);
        }
        world.lists(vec![], vec![]);
        world.lists(vec![], vec![]);
        world.ticks(180);
        let losses = world.engine.gauges().losses;
        let counted = losses.get(&LossKind::NeverResolved).copied().unwrap_or_default();
        assert_eq!((world.died.len(), counted), if listed_late { (1, 0) } else { (0, 1) });
        assert_eq!(
            world.engine.gauges().containers,
            usize::from(!listed_late),
            "its sandbox's own"
        );
    }
}
