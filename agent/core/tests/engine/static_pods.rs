//! Static pods: the kubelet has them from files, and the apiserver only an image of each.

use coroner_core::testkit::*;

/// A static pod that runs; its mirror is shown if it has one.
fn runs(w: &mut World, has_mirror: bool) -> &mut World {
    if has_mirror {
        w.pods.insert(1, mirror("a"));
        w.applied(1);
    }
    w.starts(1).sandboxes.insert(1, of_file(sandbox(1, true)));
    w.list().later(1000).ticks(1)
}

/// One that has run, and left when its manifest was removed.
fn ended() -> World {
    let mut w = World::in_sync();
    runs(&mut w, true).term(1).later(2000).exits(1, CODE_0).stopped(1);
    w
}

#[test]
fn deleting_a_mirror_ends_nothing_and_removing_the_manifest_does() {
    let mut w = World::in_sync();
    runs(&mut w, true).api(ApiEvent::Deleted(mirror("a"))).later(300).pods.insert(1, mirror("b"));
    w.applied(1).ticks(60).is_quiet();
    w.term(1).later(1000).exits(1, CODE_0).stopped(1).later(500).deleted(1).ticks(10);
    let end = w.ends("static_removed; c graceful static_removed").end();
    assert!(end.milestone(MilestoneKind::ObjectGone).is_some());
}

/// Another manifest of the same name is another pod, which the kubelet starts when the first has ended.
#[test]
fn a_manifest_that_was_changed_is_not_called_removed() {
    let (same, api) = ("p1", Some("api".to_owned()));
    for (name, config_source, is_changed) in [
        (same, Some("file".to_owned()), true),
        ("another", Some("file".to_owned()), false),
        (same, api, false),
    ] {
        let mut w = ended();
        let created = sandbox(1, true).created.map(|at| WallTime(at.0 + 1));
        let next = CriSandbox { name: name.into(), created, config_source, ..sandbox(2, true) };
        w.sandboxes.insert(2, next);
        w.later(500).list().deleted(1).ticks(60).ends("static_removed; c graceful static_removed");
        let said = w.end().cause_message.contains("its manifest was changed");
        assert_eq!(said, is_changed, "{w}");
    }
}

/// The second instance comes at once, and ends within the settle window, or does not.
#[test]
fn an_instance_that_follows_at_once_is_another() {
    for ends in [false, true] {
        let mut w = ended();
        w.ticks(2).comes_back(2, 1).starts(2).list().ticks(1);
        if ends {
            w.term(2).later(100).exits(2, CODE_0).stopped(2);
        }
        w.ticks(120);
        let told = w.ended.iter().map(|end| (end.life, end.cause, end.containers[0].id.clone()));
        let life = |n: u64| (n as u32, Cause::StaticRemoved, ids(n).2);
        let expected: Vec<_> = (1..=1 + u64::from(ends)).map(life).collect();
        assert_eq!(told.collect::<Vec<_>>(), expected, "{w}");
        assert_eq!(w.died.len(), expected.len());
    }
}

/// The mirror pod's status names the second instance's container before any list has its sandbox: it does not belong to
/// the sandbox of the first, and a list of that one's containers does not say that it is gone.
#[test]
fn a_container_that_is_not_listed_yet_is_not_the_first_instances() {
    let mut w = ended();
    w.comes_back(2, 1).starts(2).pods.insert(1, mirror("b"));
    w.status_of(2).id = Some(ids(2).2);
    w.applied(1).ticks(2);
    for _ in 0..2 {
        let (asked, only, containers) = (w.at(), Some(ids(1).1), vec![w.containers[&1].clone()]);
        w.later(100).cri(CriEvent::Containers { asked, only, containers });
    }
    w.list().later(10_000).ticks(1).term(2).later(100).exits(2, CODE_0).stopped(2).ticks(120);
    assert_eq!(w.ended.len(), 2);
    assert_eq!(w.ended[1].containers[0].findings, []);
}

/// The runtime's lists are late: the second instance's sandbox and container are listed before the first's are listed as
/// ended.
#[test]
fn the_kernel_shows_that_an_instance_is_over_before_the_runtime_does() {
    let mut w = World::in_sync();
    runs(&mut w, true).term(1).later(2000).exits(1, CODE_0);
    w.kernel(KernelFact::CgroupEmpty { cgroup: Cgroups::of(1).pause })
        .comes_back(2, 1)
        .starts(2)
        .ticks(2);
    (0..2).for_each(|_| _ = w.removed(1).ticks(20));
    w.ticks(60);
    assert_eq!((w.end().cause, w.end().containers.len()), (Cause::StaticRemoved, 1), "{w}");
}

#[test]
fn a_later_instance_has_its_own_number() {
    let mut w = World::in_sync();
    for _ in 0..2 {
        runs(&mut w, true).term(1).later(2000).exits(1, CODE_0).stopped(1).deleted(1);
        w.cgroups_go(1).removed(1).ticks(120);
    }
    assert_eq!(w.ended.iter().map(|end| end.life).collect::<Vec<_>>(), [1, 2]);
}

/// The report of an incarnation is final when the next one has a sandbox.
#[test]
fn a_report_is_counted_in_time_although_the_pod_is_back() {
    let mut w = World::in_sync();
    runs(&mut w, true).term(1).exits(1, CODE_0).stopped(1).ticks(45).comes_back(2, 1);
    w.containers.remove(&2);
    assert_eq!((w.ended.len(), w.counted.len()), (1, 0));
    w.list().ticks(1);
    assert_eq!((w.counted.len(), w.counted_deaths.len()), (1, 1));
}

/// The UID of a static pod lives for as long as the node does; its sandboxes do not.
#[test]
fn nothing_stays_of_the_instances_of_a_static_pod() {
    let mut w = World::in_sync();
    runs(&mut w, false);
    for n in 1..=5 {
        w.ticks(10).term(n).exits(n, CODE_0).stopped(n).ticks(60).comes_back(n + 1, 1);
        w.removed(n).starts(n + 1).list();
    }
    w.ticks(1200);
    assert_eq!(w.ended.len(), 5);
    let held = format!("{:?}", w.engine);
    for n in 1..=5 {
        assert!(!held.contains(ids(n).1.as_str()), "the sandbox of instance {n}");
        assert!(!held.contains(ids(n).2.as_str()), "the container of instance {n}");
    }
}

/// Anyone who creates a pod can annotate it as the mirror of any UID, and have the node own it.
#[test]
fn a_pod_that_claims_to_mirror_another_changes_nothing_of_it() {
    for claimed_first in [false, true] {
        let mut w = World::in_sync();
        if claimed_first {
            w.api(ApiEvent::Applied(mirror("evil")));
        }
        w.starts(1).list().status_of(1).id = Some(ids(1).2);
        w.applied(1).api(ApiEvent::Applied(mirror("evil"))).api(ApiEvent::Deleted(mirror("evil")));
        let own = w.pods[&1].clone();
        w.api(ApiEvent::Snapshot { pods: vec![mirror("evil"), own] });
        w.ticks(5).delete(1).stops(1).finish(1).ticks(30);
        assert_eq!((w.end().cause, w.end().grace_seconds), (Cause::ApiDelete, Some(30)), "{w}");
    }
}
