//! A watch that is two minutes late while a whole node is drained: each deletion is reported and counted once, and what
//! waits is bounded by what was there.

use coroner_core::testkit::*;
use std::collections::BTreeSet;

const PODS: u64 = 250;
/// A watch that hangs is noticed by then (`kube/watch.rs`).
const LATE: u64 = 120;

/// What the watch shows of the pods late.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Watch {
    /// It hangs, and then delivers every event.
    Hangs,
    /// It is broken, and the next list has none of the pods.
    Breaks,
    /// It hangs, and has not even shown that the pods were created.
    HangsFromTheStart,
}

/// All pods of the node are deleted within the two minutes. The runtime has removed each sandbox 10 s after it was
/// stopped; the most that the engine holds meanwhile.
fn drained(watch: Watch) -> (World, Gauges) {
    let mut w = World::in_sync();
    for n in 1..=PODS {
        if watch != Watch::HangsFromTheStart {
            w.applied(n);
        }
        w.starts(n);
    }
    w.list().ticks(10);
    if watch == Watch::Breaks {
        w.breaks();
    }
    let mut most = Gauges::default();
    // Some 2.5 in a second: the last ones end 20 s before the watch is back.
    let of = |second: u64| (second * 5 / 2).min(PODS);
    for second in 0..LATE {
        for n in of(second) + 1..=of(second + 1) {
            w.marked(n, 30).term(n).exits(n, CODE_0).cgroups_go(n).sandbox_stops(n);
        }
        let removed = of(second.saturating_sub(10));
        w.containers.retain(|n, _| *n > removed);
        w.sandboxes.retain(|n, _| *n > removed);
        let now = w.later(100).list().ticks(1).engine.gauges();
        most.cgroups = most.cgroups.max(now.cgroups);
        most.containers = most.containers.max(now.containers);
        most.sandboxes = most.sandboxes.max(now.sandboxes);
        most.objects = most.objects.max(now.objects);
        most.pods = most.pods.max(now.pods);
    }
    if watch == Watch::Breaks {
        w.pods.clear();
        w.snapshot();
    } else {
        (1..=PODS).for_each(|n| _ = w.applied(n).deleted(n));
    }
    let pods = PODS as usize;
    assert!(most.sandboxes <= pods && most.pods <= pods && most.objects <= pods, "{most:?}");
    assert!(most.containers <= 2 * pods && most.cgroups <= 3 * pods, "{watch:?}: {most:?}");
    (w, most)
}

#[test]
fn what_a_late_watch_delays_is_reported_and_counted_once() {
    for watch in [Watch::Hangs, Watch::Breaks] {
        let (mut w, most) = drained(watch);
        assert!(w.ended.is_empty(), "{watch:?}: whether they were deleted is not known yet");
        assert!(w.died.iter().all(|death| death.cause == Cause::Unknown), "{watch:?}: nor why");
        w.ticks(20);
        assert_eq!((w.ended.len() as u64, w.died.len() as u64), (PODS, PODS), "{watch:?}");
        for end in &w.ended {
            assert_eq!(end.cause, Cause::ApiDelete, "{watch:?}: {}", end.cause_message);
            assert_eq!(end.containers[0].verdict, Verdict::Graceful, "{watch:?}");
            let gone = end.milestone(MilestoneKind::ObjectGone);
            assert!(end.is_final && gone.is_some(), "{watch:?}: {end:?}");
        }
        assert_eq!(w.counted, w.ended, "{watch:?}: each at once, and no second time");
        assert_eq!(w.counted_deaths.len(), w.died.len(), "{watch:?}");
        let revised = w.updated.iter().filter(|(_, change)| change.is_revision());
        assert_eq!(revised.count(), 0, "{watch:?}: nothing was reported too early");
        assert_eq!((most.objects, most.sandboxes), (PODS as usize, PODS as usize), "{watch:?}");
        w.lists(Vec::new(), Vec::new()).ticks(120);
        assert_eq!(w.engine.gauges(), Gauges::default(), "{watch:?}: nothing stays");
    }
}

/// The runtime alone has shown these pods: each is reported without the apiserver, and what that shows later makes one
/// update at most.
#[test]
fn pods_that_a_late_watch_never_showed_are_reported_and_counted_once() {
    let (mut w, _) = drained(Watch::HangsFromTheStart);
    w.ticks(20).lists(Vec::new(), Vec::new()).ticks(180);
    assert_eq!((w.ended.len(), w.died.len()), (PODS as usize, PODS as usize));
    assert_eq!((w.counted.len(), w.counted_deaths.len()), (w.ended.len(), w.died.len()));
    for end in w.reports() {
        assert!(end.is_final && end.revision <= 2, "{end:?}");
        assert!(matches!(end.cause, Cause::ApiDelete | Cause::Unknown), "{}", end.cause_message);
        assert_eq!(end.containers[0].verdict, Verdict::Graceful);
    }
    let uids: BTreeSet<_> = (1..=PODS).map(|n| ids(n).0).collect();
    assert_eq!(w.reports().map(|end| end.pod.uid.clone()).collect::<BTreeSet<_>>(), uids);
    assert_eq!(w.engine.gauges(), Gauges::default(), "nothing stays");
}

/// The connection died unnoticed just before the deletion, and the watch that is given up for it was a long one.
#[test]
fn what_a_watch_delivers_after_its_longest_silence_is_dated_by_the_stamp() {
    let mut w = World::running(1);
    w.ticks(200).applied(1).later(500).marked(1, 30);
    let asked = w.at();
    w.later(100).term(1).later(500).exits(1, CODE_0).stopped(1).cgroups_go(1).ticks(123);
    w.applied(1).deleted(1).ticks(60).ends("api_delete; c graceful api_delete");
    let requested = w.end().milestone(MilestoneKind::DeleteRequested).map(|at| at.at.boot);
    assert_eq!(requested, Some(asked), "{w}");
}
