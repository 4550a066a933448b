//! Terminations of pods and deaths of containers, source by source.

use coroner_core::testkit::*;
use std::{collections::BTreeSet, time::Duration};

#[test]
fn a_deleted_pod_is_reported_once_with_additive_phases() {
    let mut w = World::running(1);
    w.delete(1).later(150).term(1).ticks(1).later(1000).exits(1, CODE_0).finish(1);
    w.ticks(4).goes_on();
    assert!(!hurried(&w).is_empty());
    w.ticks(60).ends("api_delete; c graceful api_delete");
    let end = w.end().clone();
    assert_eq!((end.life, end.truncated, end.took.as_millis()), (1, false, 2350));
    assert_eq!(w.phase_ms(PhaseKind::KubeletReaction), 150);
    assert_eq!(w.phase_ms(PhaseKind::Shutdown), 2000);
    assert_eq!(
        end.phases.iter().map(|phase| phase.to.since(phase.from)).sum::<Duration>(),
        end.took
    );
    assert_eq!(w.counted, w.ended, "it is final at once, and counted");
    assert_eq!(w.counted_deaths, w.died);
    assert!(w.updated.is_empty());
    let polled = w.wanted(|request| match request {
        Request::Cri(CriRequest::StartFastPoll(_)) => Some(true),
        Request::Cri(CriRequest::StopFastPoll(_)) => Some(false),
        _ => None,
    });
    assert_eq!(polled, [true, false], "the runtime is asked often until the report is settled");
    w.cgroups_go(1).removed(1).ticks(2);
    let [(last, Change::SandboxRemoved)] = w.updated.as_slice() else { panic!("{:?}", w.updated) };
    assert_eq!((last.revision, last.is_final, last.took), (1, true, end.took), "no new revision");
    assert!(last.milestone(MilestoneKind::SandboxRemoved).is_some());
    assert!(last.milestone(MilestoneKind::CgroupRemoved).is_some());
}

#[test]
fn a_termination_that_had_begun_is_truncated() {
    let mut w = World::new();
    w.connects().later(60_000).starts(1).list();
    let asked = ms(w.now - 20_000);
    w.pods.insert(1, object(1, true, asked));
    w.snapshot().later(1000).kill(1).exits(1, KILLED).finish(1).ticks(10);
    let end = w.end();
    assert!(end.truncated && end.containers[0].truncated);
    assert_eq!(end.began, asked, "as the apiserver dates it");
    assert!(end.milestone(MilestoneKind::DeleteRequested).unwrap().uncertainty > Duration::ZERO);
}

/// The runtime lists the pod's second sandbox only after the report of the end of the first.
#[test]
fn a_pod_that_is_gone_ends_once_however_late_the_lists_are() {
    let mut w = World::running(1);
    w.stops(1).stopped(1).comes_back(2, 1).starts(2).later(500).deleted(1).stops(2).ticks(40);
    assert_eq!(w.ended.len(), 1);
    w.stopped(2).ticks(60).ends("force_delete; c graceful unknown");
    w.dies(2, "graceful force_delete");
}

/// A Job with ttlSecondsAfterFinished 0: its object is deleted as soon as its status is final, before the sandbox is
/// seen to stop or after it, with the watch as it should be or just back.
#[test]
fn a_pod_that_completed_and_is_deleted_at_once_completed() {
    for (outage, sandbox_first) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut w = World::running(1);
        w.ticks(60);
        if outage {
            w.breaks().ticks(3);
        }
        w.exits(1, CODE_0);
        if sandbox_first {
            w.later(350).stopped(1);
        }
        if outage {
            w.later(900).resumes();
        }
        w.later(100).phase(1, "Succeeded").later(100).marked(1, 0).applied(1).later(20).deleted(1);
        if !sandbox_first {
            w.later(350).stopped(1);
        }
        w.ticks(60).ends("completed; c completed completed");
    }
}

/// It failed before it had a container, and its controller was quick; or it is deleted while its image is pulled, and
/// the watch is in time or 10 s late.
#[test]
fn a_pod_without_a_container_is_reported() {
    let rows: [Story; 3] = [
        |w| {
            w.phase(1, "Failed").later(100).marked(1, 0).applied(1).later(400).deleted(1).stopped(1)
        },
        |w| w.delete(1).later(400).stopped(1).deleted(1),
        |w| w.marked(1, 30).later(400).stopped(1).ticks(10).applied(1).later(100).deleted(1),
    ];
    for happens in rows {
        let mut w = World::in_sync();
        w.applied(1).sandboxes.insert(1, sandbox(1, true));
        happens(w.list().ticks(5)).ticks(60).ends("api_delete");
    }
}

/// An evicted pod's phase may be final while it still runs: what ends after the request is of it.
#[test]
fn a_pod_that_runs_on_after_its_final_phase_is_deleted() {
    let mut w = World::running(1);
    w.phase(1, "Failed").ticks(5).delete(1).stops(1).finish(1);
    w.ticks(60).ends("api_delete; c graceful api_delete");
}

/// A sandbox that died gets a successor as long as the kubelet has not ended the pod.
#[test]
fn a_dead_sandbox_alone_ends_no_pod() {
    let mut w = World::running(1);
    w.exits(1, ExitStatus::Code(1)).stopped(1).ticks(50).is_quiet();
    w.ticks(70).goes_on().dies(1, "failed completed");
}

/// Its pod is gone, and the runtime has not stated how the container exited.
fn owed() -> World {
    let mut w = World::running(1);
    w.delete(1).stops(1).later(100).sandbox_stops(1).lists_all();
    w.later(100).deleted(1).ticks(40);
    assert_eq!((w.end().revision, w.end().is_final), (1, false), "the exit status is missing");
    w
}

#[test]
fn late_evidence_is_a_new_revision_and_no_second_count() {
    let mut w = owed();
    w.status(1, 255, "Error").ticks(2);
    assert_eq!((w.ended.len(), w.died.len()), (1, 1));
    let [(end, Change::Other)] = w.updated.as_slice() else { panic!("{:?}", w.updated) };
    assert_eq!((end.revision, end.is_final), (2, true));
    w.ends("api_delete; c graceful api_delete +contradiction");
    // It changes its mind, and so does the clock.
    w.status(1, 0, "Completed").say(Input::Clock(Anchor { boot_ns: 0, wall_ns: 7_000_000_000 }));
    w.ticks(700);
    assert_eq!(w.updated.len(), 1, "final is final");
    assert_eq!(w.counted, [w.updated[0].0.clone()], "with what came within 60 s");
    assert_eq!(w.counted_deaths, w.counted[0].containers);
}

#[test]
fn what_is_not_final_is_counted_60_s_after_its_end() {
    let mut w = owed();
    w.say(Input::Clock(Anchor { boot_ns: 0, wall_ns: 7_000_000_000 })).ticks(19);
    assert_eq!((w.ended.len(), w.died.len()), (1, 1));
    assert_eq!(w.updated.len(), 0, "another wall clock is no evidence");
    assert!(w.counted.is_empty() && w.counted_deaths.is_empty());
    w.ticks(1);
    let [(last, Change::Final)] = w.updated.as_slice() else { panic!("{:?}", w.updated) };
    assert_eq!((w.counted.as_slice(), &w.counted_deaths), (std::slice::from_ref(last), &w.died));
    w.status(1, 255, "Error").ticks(2);
    assert_eq!((w.updated.len(), w.counted.len(), w.counted_deaths.len()), (1, 1, 1), "once");
    assert!(w.engine.count_the_rest().is_empty());
}

#[test]
fn a_removal_is_no_revision_and_has_the_reports_clock() {
    let mut w = owed();
    w.cgroups_go(1).removed(1).ticks(30);
    assert!(w.updated.iter().all(|(report, _)| report.revision == 1), "{:?}", w.updated);

    let clock = |wall_ns| Input::Clock(Anchor { boot_ns: 0, wall_ns });
    let mut w = World::running(1);
    w.say(clock(7_000_000_000)).delete(1).stops(1).finish(1).ticks(10);
    w.say(clock(0)).cgroups_go(1).removed(1).ticks(2);
    let (last, _) = w.updated.last().expect("its removal");
    assert_eq!(last.began.time, w.ended[0].began.time);
}

#[test]
fn an_agent_that_ends_counts_what_waits() {
    let mut w = owed();
    let [last, death, end] = w.engine.count_the_rest().try_into().unwrap();
    assert_eq!(death, Report::CountDeath(Box::new(w.died[0].clone())));
    let Report::PodUpdated(last, Change::Final) = last else { panic!("{last:?}") };
    assert_eq!(end, Report::CountTermination(last));
    w.ticks(100);
    assert!(w.counted.is_empty(), "once");
}

/// A late runtime answers for one container after the other, and changes no verdict.
#[test]
fn evidence_in_pieces_is_one_update() {
    let mut w = World::running(1);
    w.joins(2, 1, "d").list().delete(1).stops(1).is_over(2, CODE_0);
    w.later(100).sandbox_stops(1).lists_all().later(100).deleted(1).ticks(40);
    assert!(!w.end().is_final);
    for n in [1, 2] {
        w.status(n, 255, "Error").ticks(2);
        assert_eq!(w.updated.len(), 0, "{:?}", w.updated);
    }
    w.ticks(20);
    let [(end, Change::Other)] = w.updated.as_slice() else { panic!("{:?}", w.updated) };
    assert_eq!((end.revision, &w.counted), (2, &vec![end.clone()]));
}

/// The runtime says only after the pod's report in which cgroup the container was.
#[test]
fn a_verdict_that_is_proven_later_is_a_new_revision() {
    let mut w = World::in_sync();
    w.runs(1).list().ticks(5).delete(1).term(1).exits(1, CODE_0).finish(1).ticks(10);
    assert_eq!((w.end().containers[0].verdict, w.end().is_final), (Verdict::Unknown, false));
    let (container, cgroup) = (ids(1).2, Cgroups::of(1).own);
    w.cri(CriEvent::ContainerCgroup { container, cgroup, path: String::new() }).ticks(2);
    let [(end, Change::Verdict)] = w.updated.as_slice() else { panic!("{:?}", w.updated) };
    assert_eq!((end.revision, end.is_final), (2, true));
    w.ends("api_delete; c graceful api_delete");
}

/// cgroupsPerQOS=false and custom roots: the runtime shows where the container is. Its uncommon stop signal is let
/// through once that is known, and once.
#[test]
fn a_container_without_a_known_cgroup_is_looked_for_and_joined() {
    let mut w = World::in_sync();
    w.applied(1)
        .runs(1)
        .list()
        .cri(CriEvent::StopSignal { container: ids(1).2, signal: 37 })
        .ticks(5);
    let signals = |request: &Request| match request {
        Request::TraceSignal { signal, .. } => Some(*signal),
        _ => None,
    };
    let find = Request::Cri(CriRequest::FindCgroup(ids(1).2));
    assert_eq!(w.wanted(|one| (*one == find).then_some(())).len(), 1);
    assert!(w.wanted(signals).is_empty(), "for which cgroup?");
    let own = Cgroups::of(1).own;
    for (cgroup, path) in [(CgroupId(1), "/"), (own, "/odd")] {
        w.cri(CriEvent::ContainerCgroup { container: ids(1).2, cgroup, path: path.into() });
    }
    let watched = w.wanted(|one| match one {
        Request::WatchCgroup { cgroup, path } => Some((*cgroup, path.clone())),
        _ => None,
    });
    assert_eq!(watched, [(own, "/odd".to_owned())], "the root is no container's");
    assert_eq!(w.ticks(5).wanted(signals), [37]);
    w.delete(1).sends(Signal::new(1, 37).handler()).takes(1, 37).exits(1, CODE_0).finish(1);
    w.ticks(10).ends("api_delete; c graceful api_delete");
}

/// A restart of the runtime during the termination is named; a single call that failed (an answer too large, say) is an
/// outage, not a restart.
#[test]
fn a_runtime_that_went_away_is_a_finding() {
    for (is_new, expected) in [
        (true, "api_delete +runtime_restarted; c graceful api_delete"),
        (false, "api_delete; c graceful api_delete"),
    ] {
        let mut w = World::running(1);
        w.delete(1).term(1).unreachable().later(500).exits(1, CODE_0);
        if is_new {
            w.later(3000).connects();
        }
        w.finish(1).ticks(10).ends(expected);
    }
}

/// Its process ended, and another one began before the pod was gone.
#[test]
fn a_kubelet_that_was_restarted_is_a_finding() {
    let kubelet = |state| Input::Host(HostEvent::Daemon { daemon: Daemon::Kubelet, state });
    let process = DaemonProcess { pid: 10, started: 50 };
    let mut w = World::running(1);
    w.say(kubelet(DaemonState::Running { process })).delete(1).later(300).term(1);
    w.say(kubelet(DaemonState::Ended { process })).later(700).exits(1, CODE_0);
    let process = DaemonProcess { pid: 11, started: (w.now + 200) / 10 };
    w.later(1000).say(kubelet(DaemonState::Running { process })).finish(1).ticks(10);
    w.ends("api_delete +kubelet_restarted; c graceful api_delete");
    let detail =
        "The kubelet ended 300 ms after the beginning and restarted 1.2 s after the beginning.";
    assert_eq!(w.end().findings[0].detail, detail);
}

/// Whatever grace the runtime states: the apiserver, which may be late, never reports the pod.
#[test]
fn a_report_waits_no_longer_for_an_absurd_grace() {
    for grace in [i64::MIN, -1, i64::MAX] {
        let mut w = World::in_sync();
        let one = w.starts(1).containers.get_mut(&1).unwrap();
        (one.grace_seconds, one.pre_stop) = (Some(grace), Some(Hook::Sleep(5)));
        w.later(60_000).list().term(1).exits(1, CODE_0).list().ticks(300);
        assert_eq!(w.died.len(), 1, "grace {grace}");
    }
}

/// A pod that lives and dies between two polls is reported all the same.
#[test]
fn a_pod_that_the_runtime_was_never_asked_about_alive() {
    let mut w = World::in_sync();
    w.list();
    let listed = w.at();
    w.later(500).applied(1).starts(1).delete(1);
    assert!(
        w.requests.contains(&Request::Cri(CriRequest::PollNow(None))),
        "there is no time to lose"
    );
    w.later(300).term(1).later(200).exits(1, CODE_0).finish(1).ticks(10);
    w.ends("api_delete; c graceful api_delete");
    let stopped = w.end().milestone(MilestoneKind::SandboxStopped).unwrap();
    assert_eq!(stopped.at.boot - stopped.uncertainty, listed, "after the last list without it");
    assert_eq!(w.phase_ms(PhaseKind::Unattributed), 0);
}

#[test]
fn a_job_that_was_restarted_by_its_probe_still_completes() {
    let mut w = World::running(1);
    w.term(1).later(100).exits(1, CODE_0).restarts(1, 2).list().ticks(30);
    w.exits(2, CODE_0).stopped(1).phase(1, "Succeeded").ticks(60);
    w.ends("completed; c completed completed");
    assert_eq!(w.died.len(), 2);
}

/// An init container that completed two days ago was not evicted.
#[test]
fn an_init_container_does_not_die_of_the_eviction() {
    let mut w = World::running(1);
    w.joins(2, 1, "i").starts(2).list().status_of(2).kind = ContainerKind::Init;
    w.applied(1).exits(2, CODE_0).list().ticks(60).dies(2, "completed completed");
    w.later(2 * 24 * 3600 * 1000).stops(1).stopped(1);
    w.pod(1).reason = "Evicted".into();
    w.phase(1, "Failed")
        .ticks(60)
        .ends("node_pressure_eviction; c graceful node_pressure_eviction");
}

/// restartPolicy Never: one of two containers is stopped; a day later the other completes. The pod did not take a day.
#[test]
fn a_day_between_two_containers_is_no_termination_of_a_day() {
    let mut w = World::running(1);
    w.joins(2, 1, "d").starts(2).pod(1).restart_policy = "Never".into();
    w.status_of(1).liveness = Some(ApiProbe::default());
    w.status_of(2).id = Some(ids(2).2);
    w.applied(1).list().later(1000).stops(1).list().shows_exit(1);
    w.later(500).applied(1).ticks(60).dies(1, "graceful unknown");
    w.later(24 * 3600 * 1000).exits(2, CODE_0).stopped(1).phase(1, "Failed").ticks(60);
    assert!(w.end().took < Duration::from_secs(60), "{:?}", w.end().took);
}

/// SIGTERM that PID 1 ignored a day before its pod is deleted, or took as a reload three days before, is not this stop's.
#[test]
fn a_stop_signal_of_days_ago_is_not_this_stop() {
    let rows: [(Story, u64, &str); 2] = [
        (|w| w.discards(1), 24 * 3600, "stop_signal_ignored api_delete"),
        (|w| w.term(1), 3 * 24 * 3600, "grace_exceeded api_delete"),
    ];
    for (signal, ago, expected) in rows {
        let mut w = World::running(1);
        signal(&mut w);
        w.later((ago - 60) * 1000).ticks(60);
        let asked = w.at();
        signal(w.delete(1).later(100));
        w.later(30_000).kill(1).exits(1, KILLED).settles(1);
        assert_eq!(w.end().began, asked, "{w}");
        let of = &w.end().containers[0];
        let sent = of.milestone(MilestoneKind::TermSent).unwrap().at.boot;
        assert!(sent >= asked && of.grace_ratio.unwrap() < 2.0, "{w}");
        w.dies(1, expected).says(1, "30.0 s later");
    }
}

/// A force delete: the kubelet gives the hook a second (pod_workers.go raises 0 to 1).
#[test]
fn a_sleep_in_a_force_delete_is_not_the_kubelets_reaction() {
    let mut w = World::running(1);
    w.status_of(1).pre_stop = Some(Hook::Sleep(10));
    w.marked(1, 0).applied(1).deleted(1).later(1100).stops(1).stopped(1);
    w.ticks(60);
    assert!(w.phase_ms(PhaseKind::PreStop) >= 900, "{:?}", w.end().phases);
}

/// The kubelet's last delete, with a grace of 0, is the first of them.
#[test]
fn what_a_finalizer_took_is_a_phase_after_the_kubelets_last_delete() {
    let mut w = World::running(1);
    w.pod(1).finalizers = vec!["example.com/held".into()];
    w.delete(1).stops(1).stopped(1).later(900).pod(1).deletion_grace_seconds = Some(0);
    w.applied(1).later(2_000).phase(1, "Succeeded").later(3_000).deleted(1).ticks(60);
    assert_eq!(w.phase_ms(PhaseKind::Cleanup), 900, "{:?}", w.end().phases);
    assert_eq!(w.phase_ms(PhaseKind::Finalizers), 5_000, "{:?}", w.end().phases);
}

/// The sandboxes that the poller looks at often by now.
fn hurried(w: &World) -> BTreeSet<SandboxId> {
    let mut hurried = BTreeSet::new();
    for request in &w.requests {
        match request {
            Request::Cri(CriRequest::StartFastPoll(all)) => hurried.extend(all.iter().cloned()),
            Request::Cri(CriRequest::StopFastPoll(all)) => hurried.retain(|one| !all.contains(one)),
            _ => {}
        }
    }
    hurried
}

/// A finalizer, a sandbox that does not stop, a restart that is explained, and a container that is never killed, which
/// kubelets 1.23 and 1.25 leave running after a force delete: each makes the poller look often for a while.
#[test]
fn nothing_keeps_the_poller_busy_for_ever() {
    let one = BTreeSet::from([ids(1).1]);
    let dying = |w: &mut World| _ = w.delete(1).ticks(1).term(1).later(100).exits(1, CODE_0);
    let rows: [(Story, u64); 4] = [
        (|w| w.stopped(1).cgroups_go(1).removed(1), 10),
        (|w| w.list(), 600),
        (|w| w.list(), 120),
        (|w| w, 3_600),
    ];
    for (number, (happens, seconds)) in rows.into_iter().enumerate() {
        let mut w = World::running(1);
        match number {
            0 | 1 => dying(&mut w),
            2 => _ = w.exits(1, CODE_0),
            _ => _ = w.delete(1).ticks(299),
        }
        assert_eq!(hurried(w.ticks(1)), one, "{number}");
        happens(&mut w);
        assert!(hurried(w.ticks(seconds)).is_empty(), "{number}");
        if number == 3 {
            assert_eq!(hurried(w.exits(1, CODE_0).ticks(1)), one, "it ends after all");
        }
    }
}
