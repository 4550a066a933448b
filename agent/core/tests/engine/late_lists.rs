//! Lists of the runtime that come in another order than they were asked for, or that lack what there is: a full one may
//! take a minute, while filtered ones are answered.

use coroner_core::{cri::CriState, dirty::Dirty, testkit::*, time::Interval};

/// A list of pod 1 that was asked for and answered at these seconds: of its sandbox' readiness and its container's
/// state, as far as they are listed.
fn list(
    runtime: &mut CriState,
    (asked, answered): (u64, u64),
    only: Option<SandboxId>,
    ready: Option<bool>,
) {
    let state = |ready| if ready { ContainerState::Running } else { ContainerState::Exited };
    let (asked, answered) = (ms(asked * 1000), ms(answered * 1000));
    let sandboxes = ready.map(|ready| sandbox(1, ready)).into_iter().collect();
    let containers = ready.map(|ready| container(1, state(ready))).into_iter().collect();
    for event in [
        CriEvent::Sandboxes { asked, only: only.clone(), sandboxes },
        CriEvent::Containers { asked, only, containers },
    ] {
        runtime.apply(answered, event, &mut Dirty::default());
    }
}

fn only() -> Option<SandboxId> {
    Some(ids(1).1)
}

fn between(earliest: u64, latest: u64) -> Option<Interval> {
    Some(Interval { earliest: ms(earliest * 1000), latest: ms(latest * 1000) })
}

#[test]
fn a_late_list_takes_back_nothing_that_a_newer_one_showed() {
    let (_, id, app) = ids(1);
    let mut runtime = CriState::default();
    list(&mut runtime, (1, 1), None, Some(true));
    list(&mut runtime, (12, 13), only(), Some(false));
    // Asked for before that, answered after it.
    list(&mut runtime, (10, 25), None, Some(true));
    let known = runtime.sandbox(&id).unwrap();
    assert!(!known.info.ready);
    assert_eq!((known.ended, known.asked), (between(1, 13), ms(12_000)));
    let known = runtime.container(&app).unwrap();
    assert_eq!((known.info.state, known.ended), (ContainerState::Exited, between(1, 13)));
    // What is gone stays gone.
    list(&mut runtime, (30, 31), only(), None);
    list(&mut runtime, (28, 40), None, Some(true));
    assert_eq!(runtime.sandbox(&id).unwrap().removed, between(12, 31));
    assert_eq!(runtime.container(&app).unwrap().removed, between(12, 31));
}

#[test]
fn what_a_late_list_does_not_have_may_be_younger() {
    let (_, id, app) = ids(1);
    let mut runtime = CriState::default();
    list(&mut runtime, (12, 13), only(), Some(true));
    for late in [(2, 20), (10, 25)] {
        list(&mut runtime, late, None, None);
        assert!(runtime.sandbox(&id).unwrap().missing.is_none());
        assert_eq!(runtime.container(&app).unwrap().ended, None);
    }
    assert!(!runtime.has_listed_since(ms(11_000)), "what is not covered is not known");
    // Two that were asked for after it was listed.
    list(&mut runtime, (30, 45), None, None);
    list(&mut runtime, (50, 65), None, None);
    assert_eq!(runtime.sandbox(&id).unwrap().removed, between(12, 45));
}

/// The times between which a change lies are those of the requests and the answers, however late.
#[test]
fn a_late_answer_is_true_as_of_its_request() {
    let mut runtime = CriState::default();
    list(&mut runtime, (0, 15), None, Some(true));
    assert!(runtime.is_current() && !runtime.has_listed_since(ms(1000)));
    list(&mut runtime, (20, 70), None, Some(false));
    assert_eq!(runtime.sandbox(&ids(1).1).unwrap().ended, between(0, 70));
    let gaps = runtime.connection.gaps.between(ms(0), ms(100_000));
    assert_eq!(gaps.count(), 0, "lateness is no outage");
}

/// A pod whose status names its container, and of which no list has anything yet.
fn unlisted() -> World {
    let mut w = World::in_sync();
    w.starts(1).status_of(1).id = Some(ids(1).2);
    w.applied(1);
    w
}

fn lists_sandbox(w: &mut World) -> &mut World {
    let (asked, sandboxes) = (w.at(), w.sandboxes.values().cloned().collect());
    w.cri(CriEvent::Sandboxes { asked, only: None, sandboxes })
}

/// No list ever shows the container, its sandbox, or both: the kernel and the pod's status name it meanwhile.
#[test]
fn what_no_list_ever_showed_is_in_its_pods_report() {
    for (sandbox, container) in [(true, false), (false, true), (false, false)] {
        let mut w = unlisted();
        if sandbox {
            lists_sandbox(&mut w);
        }
        if container {
            let (asked, containers) = (w.at(), w.containers.values().cloned().collect());
            w.cri(CriEvent::Containers { asked, only: None, containers });
        }
        w.ticks(1);
        if !sandbox {
            w.unreachable();
        }
        w.delete(1).stops(1).cgroups_go(1).sandbox_stops(1);
        if sandbox {
            lists_sandbox(&mut w);
        }
        w.deleted(1).ticks(20);
        if !sandbox {
            w.goes_on();
        }
        w.removed(1).ticks(10).lists_all().ticks(70).ends("api_delete; c graceful api_delete");
        assert_eq!(w.died.len(), 1, "{w}");
    }
}

/// An attempt comes and goes between two lists, and its pod goes on: its own report is all there is of it.
#[test]
fn an_attempt_that_no_list_ever_showed_is_reported() {
    let mut w = World::in_sync();
    w.sandboxes.insert(1, sandbox(1, true));
    w.list().starts(1).status_of(1).id = Some(ids(1).2);
    w.applied(1).later(1000).stops(1).ticks(20);
    w.restarts(1, 2).replaced(1, 2).applied(1).is_quiet();
    w.containers.remove(&1);
    w.lists_all().ticks(60).dies(1, "graceful restart");
    assert_eq!((w.died.len(), w.died[0].name.as_str()), (1, "c"));
}

/// The runtime leaves out a sandbox that it cannot read, and the kernel shows that it runs.
#[test]
fn a_sandbox_that_runs_is_not_taken_for_removed() {
    let mut w = unlisted();
    w.pauses(1).pod(1).mirror_of = Some(ids(1).0);
    w.applied(1).later(2000).exits(1, CODE_0);
    (0..3).for_each(|_| _ = w.lists(Vec::new(), Vec::new()).ticks(40));
    w.goes_on();
}

/// Its first attempt's cgroup is no sandbox.
#[test]
fn the_first_container_of_an_unlisted_pod_is_its_sandbox() {
    let mut w = World::in_sync();
    w.starts(1).later(1000).exits(1, CODE_0).restarts(1, 2);
    (w.status_of(2).id, w.status_of(2).restarts) = (Some(ids(2).2), 1);
    w.applied(1).later(1000).exits(2, CODE_0).cgroups_go(1).deleted(1).ticks(5).removed(1).ticks(1);
    let (held, sandbox) = (format!("{:?}", w.engine), format!("sandbox: {:?}", ids(1).1));
    assert!(held.contains(&sandbox), "the container's sandbox is the pod's first cgroup: {held}");
    w.ticks(10).lists_all().ticks(60);
    assert_eq!(w.end().containers.len(), 1, "{w}");
}

/// NTP sets the clock back by ten minutes between two attempts: by the runtime's dates the first is the last.
#[test]
fn a_clock_that_is_set_back_reorders_no_attempts() {
    let mut w = unlisted();
    w.containers.get_mut(&1).unwrap().created = Some(WallTime(600_000_000_000));
    w.list().exits(1, CODE_0).later(1000).again(1, 2).ticks(20).delete(1);
    w.exits(2, CODE_0).settles(1);
    let ended: Vec<_> = w.end().containers.iter().map(|death| death.id.clone()).collect();
    assert_eq!(ended, [ids(2).2], "{w}");
}

/// The sandbox is replaced just before the deletion, and a list is slow: the pod is one, with what ran last.
#[test]
fn a_pod_is_not_over_before_what_its_status_names_is_listed() {
    let mut w = World::named(|_| ());
    w.ticks(60).exits(1, CODE_0);
    w.kernel(KernelFact::CgroupEmpty { cgroup: Cgroups::of(1).pause }).stopped(1).ticks(3);
    w.comes_back(2, 1).starts(2).later(200).delete(1).later(100).term(2).later(300);
    w.exits(2, CODE_0).cgroups_go(2).sandbox_stops(2).later(200).replaced(1, 2).shows_exit(2);
    w.applied(1).later(100).deleted(1).ticks(12).goes_on();
    w.list().ticks(70).ends("api_delete; c graceful api_delete");
    assert_eq!((w.counted.len(), w.counted_deaths.len()), (1, 2), "{w}");
}
