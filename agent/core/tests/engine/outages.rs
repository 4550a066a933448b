//! What is reported where the watch of the apiserver is late or broken, or the agent came late: what it would have shown
//! is not known, and is not made up; and what it delivers later counts by the time that it carries.

use coroner_core::testkit::*;
use std::time::Duration;

/// A pod of two containers.
fn two() -> World {
    let mut w = World::named(|c| c.liveness = Some(ApiProbe::default()));
    w.joins(2, 1, "s").starts(2).list().ticks(1);
    w
}

/// The first container is stopped while the watch is broken; the second takes its time.
fn first_stops() -> World {
    let mut w = two();
    w.breaks().ticks(10).stops(1).later(100).list();
    w
}

/// The kubelet saw the deletion, this agent did not: "the pod goes on" would be made up.
#[test]
fn a_stop_that_nobody_watched_has_no_cause() {
    let mut w = first_stops();
    w.ticks(20).is_quiet();
    w.ticks(240).dies(1, "graceful unknown").says(1, "the watch of the apiserver is broken");
    let mut w = World::running(1);
    w.breaks().ticks(10).stops(1).stopped(1).ticks(250);
    w.dies(1, "graceful unknown").goes_on();
}

#[test]
fn an_exit_without_a_stop_is_reported_at_once_in_an_outage() {
    let mut w = two();
    w.breaks().exits(1, CODE_0).later(100).list().ticks(8).dies(1, "completed completed");
}

/// The object is found gone: the pod was deleted, and whether a container was stopped for that nothing says.
#[test]
fn the_causes_of_a_pod_that_is_found_gone() {
    let finds: Story = |w| w.vanishes(1).snapshot();
    // While the second container still stops.
    let mut w = first_stops();
    finds(w.ticks(20)).ticks(60).dies(1, "graceful unknown");
    w.term(2).exits(2, CODE_0).stopped(1).ticks(60);
    assert_eq!(w.end().cause, Cause::ApiDelete, "{w}");
    for (stopped, expected) in
        [(false, "unknown; c completed completed"), (true, "api_delete; c graceful unknown")]
    {
        let mut w = World::running(1);
        w.ticks(60).breaks().ticks(5);
        if stopped {
            w.term(1);
        }
        w.later(500).exits(1, CODE_0).stopped(1).cgroups_go(1).removed(1).ticks(90).goes_on();
        finds(&mut w).ticks(60).ends(expected);
    }
    // What it stood for runs on.
    let mut w = World::running(1);
    finds(w.breaks().ticks(20)).later(2000).exits(1, CODE_0).stopped(1).ticks(60);
    assert_eq!(w.end().cause, Cause::ApiDelete, "{w}");
    // It ended just before the outage, which the kubelet had not shown yet.
    let mut w = World::running(1);
    w.exits(1, CODE_0).later(100).breaks().stopped(1).ticks(5).cgroups_go(1).removed(1).ticks(90);
    finds(w.then(|w| _ = w.goes_on())).ticks(5).ends("unknown; c completed completed");
    assert!(w.end().milestone(MilestoneKind::ObjectGone).is_none(), "the end was before that");
}

/// A DaemonSet's pod is evicted, and its controller deletes it, all in an outage: that it is gone does not say why it was
/// stopped, and the kubelet's Event does.
#[test]
fn an_event_states_why_a_pod_that_is_found_gone_was_stopped() {
    let mut w = World::running(1);
    w.ticks(60).breaks().ticks(5);
    let mut evicted = PostedEvent::new(w.at(), 0, EventReason::Evicted);
    evicted.message = Some("The node was low on resource: memory".into());
    w.term(1).later(500).exits(1, CODE_0).stopped(1).cgroups_go(1).removed(1).ticks(20);
    let (pod, asked, entries) = (ids(1).0, w.at(), Some(vec![evicted]));
    w.say(Input::Events(LookupEvent::Events { pod, asked, entries }));
    w.vanishes(1).snapshot().ticks(60);
    w.ends("node_pressure_eviction; c graceful node_pressure_eviction");
}

/// The apiserver's clock is 90 s behind, or ahead, or right: a relist dates no request back before the last moment at
/// which the watch showed none.
#[test]
fn a_relist_dates_a_request_no_further_back_than_the_watch_showed() {
    for behind in [-90, 0, 90_i64] {
        let mut w = World::running(1);
        w.ticks(120).applied(1).later(1000).breaks();
        let broke = w.at();
        w.ticks(5).marked(1, 30);
        w.pod(1).deletion_timestamp.as_mut().unwrap().0 -= behind * 1_000_000_000;
        let asked = w.at();
        w.later(300).term(1).ticks(4).snapshot().later(100).exits(1, CODE_0).settles(1);
        let end = w.end();
        assert_eq!(end.cause, Cause::ApiDelete, "{w}");
        let (earliest, latest) = (broke, asked + Duration::from_millis(300));
        assert!((earliest..=latest).contains(&end.began.boot), "{behind}: {:?}", end.began);
    }
}

/// The apiserver's clock is some seconds ahead: by it the pod was to go when it had gone already.
#[test]
fn a_stop_in_an_outage_belongs_to_the_request_whatever_the_apiservers_clock_says() {
    for (shown, ahead) in [(true, 0), (true, 3), (true, 6), (false, 0), (false, 3), (false, 6)] {
        let mut w = if shown { World::running(1) } else { World::in_sync() };
        w.ticks(120).later(1000).breaks();
        if !shown {
            w.starts(1).list();
        }
        w.ticks(2).marked(1, 30).pod(1).deletion_timestamp.as_mut().unwrap().0 +=
            ahead * 1_000_000_000;
        w.later(300).term(1).later(200).exits(1, CODE_0).stopped(1).ticks(8).snapshot();
        w.later(100).deleted(1).ticks(60);
        assert_eq!(w.end().cause, Cause::ApiDelete, "{ahead}\n{w}");
        assert_eq!(w.end().containers[0].verdict, Verdict::Graceful, "{ahead}\n{w}");
    }
}

/// An agent that has just begun, with the runtime there and the apiserver away; a pod's sandbox dies.
fn without_an_apiserver(uses_api: bool) -> World {
    let mut w = World::new();
    w.engine = Engine::new(Settings { uses_api, ..Settings::new(ANCHOR) });
    w.connects().starts(1).list().ticks(60).exits(1, CODE_0);
    w.kernel(KernelFact::CgroupEmpty { cgroup: Cgroups::of(1).pause });
    w.kernel(KernelFact::CgroupRemoved { cgroup: Cgroups::of(1).pause }).stopped(1).ticks(60);
    w
}

/// While the apiserver is away CNI makes the pod no other sandbox for a minute.
#[test]
fn a_pod_that_the_apiserver_never_showed_is_not_over_with_its_sandbox() {
    let mut w = without_an_apiserver(true);
    w.goes_on().dies(1, "completed completed");
    w.comes_back(2, 1).starts(2).list().ticks(60).exits(2, CODE_0).stopped(2);
    w.later(100).kernel(KernelFact::CgroupRemoved { cgroup: Cgroups::of(1).pod }).ticks(60);
    assert_eq!((w.end().life, w.end().cause, w.died.len()), (1, Cause::Completed, 2), "{w}");
    assert_eq!(
        without_an_apiserver(false).ended.len(),
        1,
        "nobody waits for one that is no source"
    );
    // The first answer shows whether that was the end of the pod.
    for listed in [true, false] {
        let mut w = without_an_apiserver(true);
        if listed {
            w.pod(1);
        }
        assert_eq!(w.snapshot().ticks(60).ended.len(), usize::from(!listed));
    }
    // Once the runtime has removed the sandbox nothing is kept.
    for cgroups_go in [true, false] {
        let mut w = without_an_apiserver(true);
        if cgroups_go {
            w.kernel(KernelFact::CgroupRemoved { cgroup: Cgroups::of(1).pod });
        }
        w.removed(1).later(500).lists_all().ticks(60);
        assert_eq!(w.ended.len(), 1, "{cgroups_go}");
        let gauges = w.ticks(700).engine.gauges();
        assert_eq!((gauges.containers, gauges.sandboxes), (0, 0), "{cgroups_go}: {gauges:?}");
    }
}

/// The object went at some time in an outage of 100 s: how long the pod took is known as an interval, and so is the
/// phase that ended with the object. Nothing is reported meanwhile.
#[test]
fn a_duration_that_ends_in_an_outage_is_an_interval() {
    let mut w = World::running(1);
    w.delete(1).term(1).later(2000).exits(1, CODE_0).stopped(1).breaks().ticks(100).goes_on();
    w.vanishes(1).snapshot().ticks(60);
    let end = w.end();
    let gone = end.milestone(MilestoneKind::ObjectGone).expect("it is gone");
    assert!(gone.uncertainty > Duration::from_secs(95), "{end:?}");
    let known_to = end.took - end.uncertainty;
    assert!(!end.is_exact() && known_to < Duration::from_secs(5), "{known_to:?}: {end:?}");
    let phase = |kind| end.phases.iter().find(|one| one.kind == kind).expect("a phase");
    let cleanup = phase(PhaseKind::Cleanup);
    assert!(!cleanup.is_exact() && cleanup.uncertainty > Duration::from_secs(95), "{cleanup:?}");
    assert!(phase(PhaseKind::Shutdown).is_exact());
}

/// The apiserver's own timestamp dates the request that comes after an outage, and nothing dates the end of the object.
#[test]
fn what_was_queued_in_an_outage_is_not_dated_by_its_delivery() {
    let mut w = World::running(1);
    w.ticks(10).breaks().ticks(10).marked(1, 30);
    let asked = w.at();
    w.term(1).later(1000).exits(1, CODE_0).stopped(1).ticks(20);
    let back = w.at();
    w.resumes().applied(1).deleted(1).ticks(10);
    let end = w.ends("api_delete; c graceful api_delete").end();
    let milestone = |kind| end.milestone(kind).expect("a milestone");
    assert!(milestone(MilestoneKind::DeleteRequested).at.boot <= asked, "{end:?}");
    let gone = milestone(MilestoneKind::ObjectGone);
    assert!(gone.at == back && gone.uncertainty.as_secs() >= 20 && !end.is_exact(), "{end:?}");
}

/// The watch is 3 s late, and there was an exec hook of 2.4 s.
#[test]
fn a_late_watch_event_hides_no_hook() {
    let mut w = World::running(1);
    w.marked(1, 30).status_of(1).pre_stop = exec_hook("sh");
    w.later(100).enters(1, 700, "sh").later(2400).leaves(1, 700, "sh", 0).later(10).term(1);
    w.later(490).applied(1).later(500).exits(1, CODE_0).settles(1);
    assert_eq!(w.phase_ms(PhaseKind::PreStop), 2400, "{:?}", w.end().phases);
}

/// The kernel's records of a container are missing, and the runtime did not answer for 10 s. The object went in between,
/// by the kubelet's own last delete (grace 0, as in every normal end).
#[test]
fn what_may_have_ended_before_the_object_did_not_outlive_it() {
    let mut w = World::in_sync();
    w.applied(1).runs(1).list().ticks(5).delete(1).later(100).list().unreachable().ticks(3);
    w.pod(1).deletion_grace_seconds = Some(0);
    w.applied(1).deleted(1).ticks(7).is_over(1, CODE_0).stopped(1).ticks(60);
    assert_eq!((w.end().cause, w.end().findings.len()), (Cause::ApiDelete, 0), "{w}");
}

/// A container that exits during its preStop hook was sent no signal, and records of it were lost: the hook is the
/// beginning of the stop, long before the grace ends. A SIGKILL before that, without a stop signal, is of another stop.
#[test]
fn what_begins_the_stop_of_a_deletion_although_records_are_lost() {
    let mut w = World::running(1);
    w.status_of(1).pre_stop = exec_hook("sh");
    w.delete(1).later(100).enters(1, 700, "sh").later(500).exits(1, CODE_0);
    w.lost(LossKind::DecidingRingFull).settles(1);
    assert_eq!(w.death(1).cause, Cause::ApiDelete, "{w}");
    let mut w = World::running(1);
    w.delete(1).later(5_000).kill(1).exits(1, KILLED).lost(LossKind::DecidingRingFull).stopped(1);
    w.later(100).pod(1).deletion_grace_seconds = Some(0);
    w.applied(1).deleted(1).ticks(60);
    assert_eq!(w.death(1).cause, Cause::Unknown, "{w}");
}

/// The kubelet and the agent were both away from the apiserver for 40 s: that is no hook that used up the grace. Where
/// only the agent's watch was away, a hook that did is found.
#[test]
fn an_outage_before_a_deletion_is_no_hook() {
    for kubelet_saw in [false, true] {
        let mut w = World::running(1);
        if !kubelet_saw {
            // PID 1 is not killed from inside its namespace.
            w.sends(Signal::new(1, 9).ignored());
        }
        w.breaks().marked(1, 30);
        (w.pod(1).grace_seconds, w.status_of(1).pre_stop) = (Some(30), Some(Hook::HttpGet));
        if kubelet_saw {
            w.ticks(29).later(500).term(1).later(1000).resumes().applied(1);
            w.later(1000).kill(1).exits(1, KILLED).settles(1);
        } else {
            w.ticks(40).resumes().applied(1).later(200).term(1).later(100).exits(1, CODE_0);
            w.settles(1);
        }
        let expected = if kubelet_saw { Verdict::PrestopExhaustedGrace } else { Verdict::Graceful };
        assert_eq!(w.death(1).verdict, expected, "{w}");
    }
}

/// A container is stopped before the watch has shown its pod: why is known only from the watch.
#[test]
fn a_death_waits_for_the_first_state_of_its_pod() {
    let mut w = World::in_sync();
    w.starts(1).list().later(2000).stops(1).later(100).list().ticks(50);
    w.is_quiet();
    w.status_of(1).id = Some(ids(1).2);
    w.applied(1).again(1, 2).ticks(10).dies(1, "graceful restart");
}

/// All that the watch shows comes 9 s late, as the stamp of the deletion shows: when the object went is uncertain by as
/// much.
#[test]
fn a_late_watch_makes_what_it_dates_uncertain() {
    let mut w = World::running(1);
    w.later(20_000).marked(1, 30).later(200).stops(1).stopped(1).cgroups_go(1);
    w.later(8_800).applied(1).later(1_500).deleted(1).ticks(10);
    w.ends("api_delete; c graceful api_delete");
    let (took, uncertain) = (w.end().took.as_secs(), w.end().uncertainty.as_secs());
    assert!((9..=12).contains(&uncertain) && (9..=12).contains(&took), "{uncertain} {took}\n{w}");
}
