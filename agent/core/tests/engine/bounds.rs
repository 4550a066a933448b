//! The engine's memory is bounded: after any number of pods it holds what it held after a few, and what it has no room
//! for, or never explained, is refused and counted.

use coroner_core::testkit::*;

#[test]
fn nothing_stays_of_pods_that_are_gone() {
    let mut w = World::in_sync();
    for n in 1..=3_000 {
        w.applied(n).starts(n).list().delete(n).exits(n, CODE_0).cgroups_go(n).sandbox_stops(n);
        w.list().deleted(n).removed(n).ticks(1);
    }
    w.ticks(200);
    assert_eq!((w.ended.len(), w.died.len()), (3_000, 3_000), "each is reported once");
    assert!(w.reports().all(|report| report.is_final), "nothing waits for ever");
    assert_eq!((w.counted.len(), w.counted_deaths.len()), (3_000, 3_000));
    assert_eq!(w.engine.gauges(), Gauges::default(), "and then dropped");
}

/// A cgroup with a container's name that no runtime ever explains.
fn unexplained(w: &mut World, n: u64) -> &mut World {
    w.kernel(created(CgroupId(n), None, &format!("/kubepods/pod{}/{}", ids(n).0, ids(n).2)))
}

/// They are given up, and counted; later where the runtime does not answer.
#[test]
fn unexplained_containers_are_given_up() {
    for (seconds, answers) in [(130, true), (3_700, false)] {
        let mut w = World::new();
        w.connects();
        for n in 1..=100 {
            let cgroup = CgroupId(n);
            unexplained(&mut w, n).kernel(KernelFact::CgroupEmpty { cgroup });
            w.kernel(KernelFact::CgroupRemoved { cgroup });
        }
        if answers {
            w.list();
        }
        let gauges = w.ticks(seconds).engine.gauges();
        assert_eq!((gauges.cgroups, gauges.containers), (0, 0));
        assert_eq!(gauges.losses, [(LossKind::NeverResolved, 100)].into());
    }
}

/// Cgroups that are made and removed by thousands with nobody in them: nothing died, so nothing is lost, and few are
/// kept.
#[test]
fn cgroups_that_nobody_was_in_are_no_loss() {
    let mut w = World::new();
    w.connects();
    for n in 1..=5_000 {
        unexplained(&mut w, n).kernel(KernelFact::CgroupRemoved { cgroup: CgroupId(n) });
    }
    let gauges = w.engine.gauges();
    assert!(gauges.containers <= 256 && gauges.cgroups <= 256, "{gauges:?}");
    assert_eq!(w.list().ticks(130).engine.gauges(), Gauges::default());
}

/// More containers than the engine follows: the rest is refused and counted, never a panic.
#[test]
fn too_many_containers_are_refused() {
    let mut w = World::new();
    (1..=20_000).for_each(|n| _ = unexplained(&mut w, n));
    let gauges = w.engine.gauges();
    assert!(gauges.containers <= 16_384, "{}", gauges.containers);
    assert_eq!(gauges.losses[&LossKind::EngineFull] + gauges.containers as u64, 20_000);
}

#[test]
fn late_records_of_dropped_cgroups_do_not_stay() {
    let mut w = World::in_sync();
    (1..=100).for_each(|n| _ = w.kernel(exit(Cgroups::of(n).own, init(n), CODE_0)));
    assert_eq!(w.ticks(48 * 3600).engine.gauges().containers, 0);
}

/// A finalizer that holds the object for 25 hours: the pod's end is reported all the same, once, and then dropped.
#[test]
fn a_pod_held_by_a_finalizer_for_a_day_is_reported() {
    let mut w = World::running(1);
    w.delete(1).later(300).term(1).later(100).exits(1, CODE_0).stopped(1).cgroups_go(1).removed(1);
    w.lists_all().ticks(25 * 3600).goes_on();
    w.deleted(1).ticks(120).ends("api_delete; c graceful api_delete");
    assert_eq!(w.lists_all().ticks(600).engine.gauges(), Gauges::default());
}

/// A tenant makes more cgroups of its own than are kept, and something ends in each: the next container is followed all
/// the same.
#[test]
fn evicted_cgroups_of_a_tenant_leave_room_for_other_containers() {
    let mut w = World::running(1);
    let parent = Some(Cgroups::of(1).own);
    (0..18_000)
        .for_each(|n| _ = w.kernel(created(CgroupId(100_000 + n), parent, &format!("unit{n}"))));
    for n in 0..18_000 {
        w.kernel(exit(CgroupId(100_000 + n), task(20_000 + n as u32, 2, "worker"), CODE_0));
    }
    let followed = w.engine.gauges().containers;
    assert!(followed <= 1_100, "{followed}");
    w.starts(2).list().later(1_000).exits(2, ExitStatus::Code(3)).list().ticks(60);
    assert_eq!(w.death(2).verdict, Verdict::Failed, "{w}");
}

/// Container and sandbox come between two lists of the sandboxes, and go before the next: no pod's report can have the
/// container, so that it counts.
#[test]
fn a_container_whose_sandbox_was_never_listed_counts_as_lost() {
    for listed_late in [false, true] {
        let mut w = World::in_sync();
        w.starts(1).lists(vec![], vec![container(1, ContainerState::Running)]);
        w.later(1_000).exits(1, ExitStatus::Code(3));
        if listed_late {
            w.stopped(1).ticks(20);
        }
        w.removed(1).lists_all().ticks(180);
        let gauges = w.engine.gauges();
        let counted = gauges.losses.get(&LossKind::NeverResolved).copied().unwrap_or_default();
        assert_eq!((w.died.len(), counted), if listed_late { (1, 0) } else { (0, 1) });
        assert_eq!(gauges.containers, usize::from(!listed_late), "its sandbox's own");
    }
}
