//! Why a container was stopped, and why its pod ended: what happens → the cause, with what states it.

use coroner_core::testkit::*;

fn exec_probe() -> Option<ApiProbe> {
    Some(ApiProbe { exec: Some("check".into()), grace_seconds: None, failures: 3 })
}

/// Its exec probe, which fails three times in a row.
fn fails(w: &mut World) -> &mut World {
    for pid in 900..903 {
        w.enters(1, pid, "check").later(50).leaves(1, pid, "check", 1).later(9_950);
    }
    w
}

fn administrator() -> ProcessRef {
    ProcessRef { tgid: Tgid(4242), ..outside("bash") }
}

/// A process of another container, named like a runtime.
fn by_neighbour(w: &mut World, signal: u8) -> &mut World {
    w.joins(3, 1, "s").starts(3).list().signals(1, signal, within(3, &task(35, 1, "runc")))
}

/// What a deletion was for: the condition DisruptionTarget, then the grace.
#[test]
fn causes_of_deletions() {
    let delete: Story = |w| w.applied(1).stops(1).finish(1);
    // Its processes outlive the object.
    let outlives: Story =
        |w| w.applied(1).deleted(1).later(20).term(1).later(1000).exits(1, CODE_0).stopped(1);
    for (disruption, grace, story, expected) in [
        ("", 30, delete, "api_delete; c graceful api_delete"),
        ("", 0, outlives, "force_delete +outlived_object; c graceful force_delete"),
        // There was a grace: no force.
        ("", 30, outlives, "api_delete +outlived_object; c graceful api_delete"),
        ("EvictionByEvictionAPI", 30, delete, "api_eviction; c graceful api_eviction"),
        ("PreemptionByScheduler", 30, delete, "preemption; c graceful preemption"),
        ("DeletionByTaintManager", 30, delete, "taint_eviction; c graceful taint_eviction"),
        ("DeletionByPodGC", 0, outlives, "pod_gc +outlived_object; c graceful pod_gc"),
        ("SomethingNew", 30, delete, "api_delete; c graceful api_delete"),
    ] {
        let mut w = World::running(1);
        w.pod(1).disruption = (!disruption.is_empty()).then(|| disruption.into());
        story(w.marked(1, grace)).ticks(60).ends(expected);
    }
}

/// The kubelet ends a pod, static or not, for the reason in its status; one that is not known is quoted.
#[test]
fn causes_of_the_kubelet() {
    for (disruption, reason, cause, cause_of_static) in [
        ("", "Evicted", Cause::NodePressureEviction, Cause::NodePressureEviction),
        (
            "TerminationByKubelet",
            "Evicted",
            Cause::NodePressureEviction,
            Cause::NodePressureEviction,
        ),
        ("TerminationByKubelet", "Terminated", Cause::NodeShutdown, Cause::NodeShutdown),
        ("", "Terminated", Cause::NodeShutdown, Cause::NodeShutdown),
        ("", "DeadlineExceeded", Cause::DeadlineExceeded, Cause::DeadlineExceeded),
        ("", "SomethingNew", Cause::Unknown, Cause::Unknown),
        ("", "", Cause::Unknown, Cause::StaticRemoved),
    ] {
        for is_static in [false, true] {
            let mut w = World::in_sync();
            if is_static {
                w.pods.insert(1, mirror("a"));
                w.sandboxes.insert(1, of_file(sandbox(1, true)));
            }
            w.applied(1).starts(1).list().ticks(60).stops(1).stopped(1);
            let pod = w.pod(1);
            pod.disruption = (!disruption.is_empty()).then(|| disruption.into());
            pod.reason = reason.into();
            w.phase(1, "Failed").ticks(120);
            let (end, expected) = (w.end(), if is_static { cause_of_static } else { cause });
            assert_eq!(end.cause, expected, "{reason} {is_static}\n{w}");
            assert!(is_static || reason.is_empty() || end.cause_source == Source::Api, "{w}");
            assert!(end.cause != Cause::Unknown || end.cause_message.contains(reason), "{w}");
        }
    }
    // Every status after the deadline has it.
    let mut w = World::running(1);
    w.pod(1).reason = "DeadlineExceeded".into();
    w.exits(1, CODE_0).stopped(1).phase(1, "Succeeded").ticks(60);
    w.ends("completed; c completed completed");
}

#[test]
fn an_unknown_cause_names_what_is_missing() {
    for (is_shown, is_recorded, says) in [
        (false, true, "the apiserver has not reported the pod"),
        (true, true, "its status names no reason"),
        (true, false, "record of how one of its containers ended is missing"),
    ] {
        let mut w = World::new();
        if is_shown {
            w.pod(1);
            w.snapshot();
        }
        w.connects().starts(1).list().ticks(60);
        if is_recorded {
            w.stops(1).stopped(1);
        } else {
            let cgroup = Cgroups::of(1).own;
            w.is_over(1, CODE_0).kernel(KernelFact::CgroupRemoved { cgroup }).stopped(1);
        }
        if is_shown {
            w.phase(1, "Failed");
        }
        w.cgroups_go(1).ticks(120);
        let end = w.end();
        assert_eq!((end.cause, end.cause_source), (Cause::Unknown, Source::Inferred));
        assert!(end.cause_message.contains(says), "{w}");
    }
}

/// The agent came while a static pod was being removed, perhaps.
#[test]
fn a_cause_that_rests_on_an_absence_of_records_is_unknown() {
    let mut w = World::in_sync();
    w.finds(1).sandboxes.insert(1, of_file(sandbox(1, true)));
    w.list().ticks(3).exits(1, CODE_0).stopped(1).ticks(120).ends("unknown; c unknown unknown");
    assert!(w.end().cause_message.contains("the agent began to watch it only"), "{w}");
}

/// The kubelet deletes the object with a grace of 0 when, by its own knowledge, all containers have ended: the runtime
/// may have lost a process (kubernetes/kubernetes#88613). Kubelets up to 1.26 leave the phase at Running.
#[test]
fn the_kubelets_own_final_delete_is_no_force() {
    let rows: [(Story, Cause); 3] = [
        (|w| w.phase(1, "Failed"), Cause::ApiDelete),
        (|w| w.shows_exit(1), Cause::ApiDelete),
        // Somebody did not wait for it.
        (|w| w.then(|w| w.status_of(1).id = Some(ids(1).2)), Cause::ForceDelete),
    ];
    for (happens, expected) in rows {
        let mut w = World::running(1);
        w.delete(1).later(300).term(1).later(1000).pod(1).deletion_grace_seconds = Some(0);
        happens(&mut w).applied(1).deleted(1).later(5000).exits(1, CODE_0).stopped(1).ticks(60);
        assert_eq!(w.end().cause, expected, "{w}");
    }
}

/// An init container failed, restartPolicy Never: no main container ever was.
#[test]
fn a_pod_whose_init_container_failed_had_no_main_container() {
    for (stopped, expected, says) in [
        (false, Cause::Completed, "None of its main containers ran"),
        (true, Cause::Unknown, "It was stopped without a deletion"),
    ] {
        let mut w = World::running(1);
        w.status_of(1).kind = ContainerKind::Init;
        w.pod(1).containers.insert("main".into(), ApiContainer::default());
        w.applied(1);
        if stopped {
            w.term(1);
        }
        w.later(500).exits(1, ExitStatus::Code(1)).stopped(1).phase(1, "Failed").ticks(60);
        assert_eq!(w.end().cause, expected, "{w}");
        assert!(w.end().cause_message.contains(says), "{w}");
    }
}

/// A process that has entered the container sends its main process a signal.
fn sent<'a>(w: &'a mut World, comm: &str, signal: u8) -> &'a mut World {
    w.enters(1, 950, comm).later(20).signals(1, signal, inside(&task(950, 970, comm)))
}

fn left(w: &mut World) -> &mut World {
    w.leaves(1, 950, "sh", 0)
}

/// So long after a thread dump (jcmd, jstack: SIGQUIT).
fn dumped(w: &mut World) -> &mut World {
    sent(w, "jcmd", 3).leaves(1, 950, "jcmd", 0).later(9_980)
}

/// Stops of a container that was restarted, as kubelets, runtimes and people make them.
#[test]
fn causes_of_a_containers_own_stop() {
    type Spec = fn(&mut ApiContainer);
    let plain: Spec = |_| ();
    let probed: Spec = |c| c.liveness = exec_probe();
    let hooked: Spec = |c| (c.liveness, c.pre_stop) = (exec_probe(), exec_hook("sh"));
    let killed: Spec = |c| (c.liveness, c.stop_signal) = (exec_probe(), Some(9));
    let starting: Spec = |c| {
        (c.liveness, c.startup, c.started) = (exec_probe(), exec_probe(), Some(false));
    };
    let rows: [(Spec, Story, &str); 22] = [
        (probed, |w| fails(w).term(1), "graceful liveness: check"),
        (starting, |w| fails(w).term(1), "graceful startup: check"),
        (plain, |w| fails(w).term(1), "graceful restart: "),
        // Its hook makes PID 1 leave (nginx -s quit), or sends the signal before runc does.
        (hooked, |w| left(sent(fails(w), "sh", 3)).later(5_000), "graceful liveness: "),
        (hooked, |w| left(sent(fails(w), "sh", 15)).later(60).term(1), "graceful liveness: "),
        (
            killed,
            |w| fails(w).kill(1).exits(1, KILLED),
            "force_killed liveness: is its stop signal.",
        ),
        (probed, failed_long_before, "graceful restart: "),
        (plain, |w| w.signals(1, 15, administrator()), "graceful external_stop: bash (pid 4242)"),
        (plain, |w| w.signals(1, 2, administrator()), "graceful external_stop: bash (pid 4242)"),
        // The name of a runtime proves nothing inside a container.
        (plain, |w| sent(w, "kill", 15), "graceful external_stop: kill (pid 950"),
        (plain, |w| sent(w, "runc", 15), "graceful external_stop: runc (pid 950"),
        (plain, |w| by_neighbour(w, 15), "graceful external_stop: runc (pid 35)"),
        (plain, |w| by_neighbour(w, 1).later(3_600_000), "completed completed: "),
        (plain, by_subshell, "completed completed: SIGTERM by sh (pid 951) had been sent to it"),
        (plain, reused, "completed completed: "),
        // It may have reloaded: the signal is named, and explains nothing.
        (plain, |w| sent(w, "kill", 1), "completed completed: SIGHUP by kill (pid 950, which had"),
        (plain, dumped, "completed completed: "),
        (plain, |w| dumped(w).exits(1, SEGV), "crashed completed: "),
        (plain, |w| dumped(w).kill(1).exits(1, KILLED), "force_killed restart: "),
        // A runtime of another name; which signal it is to send, it states itself.
        (probed, |w| fails(w).signals(1, 15, outside("sysbox-runc")), "graceful liveness: "),
        (probed, by_another_signal, "graceful liveness: "),
        (probed, runtime_restarted, "graceful liveness: "),
    ];
    for (number, (spec, happens, expected)) in rows.into_iter().enumerate() {
        println!("row {number}");
        let (expected, says) = expected.split_once(": ").expect("two parts");
        let mut w = World::named(spec);
        happens(&mut w).later(10);
        if w.containers[&1].state == ContainerState::Running {
            w.exits(1, CODE_0);
        }
        w.later(300).again(1, 2).ticks(120).dies(1, expected).says(1, says);
    }
}

/// One failed run, perhaps of an exec.
fn failed_long_before(w: &mut World) -> &mut World {
    w.enters(1, 9, "check").leaves(1, 9, "check", 1).later(100_000).term(1)
}

/// `sh -c 'kill 1 &'`: the subshell has forked and executed nothing.
fn by_subshell(w: &mut World) -> &mut World {
    w.enters(1, 950, "sh").signals(1, 15, inside(&task(951, 96, "sh")))
}

fn by_another_signal(w: &mut World) -> &mut World {
    fails(w).cri(CriEvent::StopSignal { container: ids(1).2, signal: 37 });
    w.signals(1, 37, outside("sysbox-runc"))
}

/// While the stop is under way; and the status shows the exit before the next attempt.
fn runtime_restarted(w: &mut World) -> &mut World {
    fails(w).term(1).later(2000).exits(1, CODE_0).connects().list().shows_exit(1).applied(1)
}

/// The pid of a probe that has ended is used again by the container's own process.
fn reused(w: &mut World) -> &mut World {
    let (cgroup, task, parent) = (Cgroups::of(1).own, task(950, 500, "worker"), inside(&init(1)));
    w.enters(1, 950, "check").leaves(1, 950, "check", 0).later(86_400_000);
    w.kernel(KernelFact::Exec { cgroup, task: task.clone(), parent });
    w.later(100).signals(1, 15, inside(&task))
}

/// A pod of two main containers that is not restarted.
fn two(change: impl Fn(&mut ApiContainer)) -> World {
    let mut w = World::named(change);
    w.joins(2, 1, "s").starts(2).list().pod(1).restart_policy = "Never".into();
    (w.status_of(2).id, w.status_of(2).started) = (Some(ids(2).2), Some(true));
    w.applied(1).ticks(2);
    w
}

/// One of two completes, before or after the other is stopped: by an exec, or for its probe, whose grace of 3 s its own
/// report and its pod's have.
#[test]
fn the_cause_of_one_container_is_not_the_others() {
    let by_exec: Story = |w| sent(w, "kill", 15);
    let by_probe: Story = |w| fails(w).term(1).later(2_900);
    for (completes_first, happens, cause, grace) in [
        (true, by_exec, "external_stop", None),
        (false, by_exec, "external_stop", None),
        (false, by_probe, "liveness", Some(3)),
    ] {
        let mut w = two(|c| {
            c.liveness = exec_probe();
            c.liveness.as_mut().unwrap().grace_seconds = Some(3);
        });
        if completes_first {
            w.exits(2, CODE_0).later(5_000);
        }
        happens(&mut w).later(10).exits(1, CODE_0).later(100).list().shows_exit(1).applied(1);
        w.ticks(20);
        if !completes_first {
            w.exits(2, CODE_0);
        }
        w.later(200).stopped(1).phase(1, "Succeeded").ticks(120);
        w.dies(1, &format!("graceful {cause}")).dies(2, "completed completed");
        let of_pod = w.end().containers.iter().find(|one| one.name == "c");
        let own = w.death(1);
        assert!(
            of_pod
                .is_none_or(|one| one.cause == own.cause && one.grace_seconds == own.grace_seconds),
            "{w}"
        );
        assert_eq!(own.grace_seconds, grace, "{w}");
    }
}

/// `kubectl delete --now`: the kubelet gives 2 s at least, also if the grace is shortened later, in an event or in a list
/// (the apiserver keeps when the first request was made); the share of the grace is a share of that.
#[test]
fn a_short_grace_is_raised_to_the_floor() {
    for (first, is_listed, ran, share) in
        [(None, false, 1_000, 0.5), (Some(30), false, 2_000, 1.0), (Some(30), true, 2_000, 1.0)]
    {
        let mut w = World::named(|_| ());
        let asked = w.at().0 as i64;
        w.marked(1, first.unwrap_or(1)).applied(1).term(1);
        if first.is_some() {
            let due = Some(WallTime(asked + 1_000_000_000));
            (w.pod(1).deletion_timestamp, w.pod(1).deletion_grace_seconds) = (due, Some(1));
            w.later(2_000);
            _ = if is_listed { w.snapshot() } else { w.applied(1) };
        }
        w.later(ran).exits(1, CODE_0).finish(1).ticks(120);
        let death = &w.end().containers[0];
        if first.is_none() {
            assert_eq!((w.end().grace_seconds, death.grace_seconds), (Some(1), Some(2)), "{w}");
        }
        assert!(death.grace_ratio.is_some_and(|one| (one - share).abs() < 0.1), "{w}");
    }
}

/// A sleep in the spec leaves no trace: it is not reported to have run where nobody runs it.
#[test]
fn a_hook_that_nobody_runs_is_not_reported() {
    let rows: [(Story, &str, bool); 3] = [
        (|w| w.shows_exit(1), "graceful restart", true),
        (all_restart, "graceful restart_all_containers", false),
        (|w| w, "graceful restart", true),
    ];
    for (happens, expected, slept) in rows {
        let mut w = World::named(|c| c.pre_stop = Some(Hook::Sleep(1)));
        w.later(10_000).stops(1);
        happens(&mut w).later(300).applied(1).later(300).again(1, 2).ticks(120).dies(1, expected);
        let began = w.death(1).milestone(MilestoneKind::PreStopBegan);
        assert_eq!((began.is_some(), w.death(1).pre_stop.is_some()), (slept, true));
    }
}

fn all_restart(w: &mut World) -> &mut World {
    let status = w.status_of(1);
    (status.id, status.restarts) = (None, 1);
    status.waiting = Some("RestartingAllContainers".into());
    w
}

/// A list that shows the request dates it into the whole outage. The sandbox, stopped twenty seconds after the
/// container, shows that the container was not stopped for it; also where the object is gone by then.
#[test]
fn what_the_rest_of_its_pod_outlived_was_not_stopped_for_the_deletion() {
    for is_gone in [false, true] {
        let mut w = World::named(|_| ());
        w.later(500).breaks().later(10).stops(1).later(100).list();
        w.ticks(20).marked(1, 30);
        if !is_gone {
            w.snapshot();
        }
        w.later(300).kernel(KernelFact::CgroupEmpty { cgroup: Cgroups::of(1).pause });
        w.stopped(1).shows_exit(1).later(1_000).pod(1).phase = "Succeeded".into();
        _ = if is_gone { w.vanishes(1).snapshot() } else { w.deleted(1) };
        w.ticks(60);
        assert_ne!(w.death(1).cause, Cause::ApiDelete, "{is_gone}\n{w}");
    }
}

/// The node's clock is set after the request, by which the request then seems to be older than the stop.
#[test]
fn a_request_is_dated_by_the_clock_at_its_receipt() {
    let mut w = World::named(|_| ());
    w.later(20_000).term(1).later(8_000).delete(1);
    let boot_ns = w.at().0;
    w.say(Input::Clock(Anchor { boot_ns, wall_ns: boot_ns as i64 + 60_000_000_000 }));
    w.later(500).exits(1, CODE_0).stopped(1).shows_exit(1).pod(1).phase = "Succeeded".into();
    w.later(1_000).deleted(1).ticks(60);
    assert_ne!(w.death(1).cause, Cause::ApiDelete, "{w}");
}

/// The kubelet sends its reason only with the final phase, seconds after a status that shows the exit. Of a container that
/// was to be restarted by then it is not the reason.
#[test]
fn a_container_has_the_reason_that_its_pods_last_status_has() {
    for (waiting, expected) in
        [(None, "node_pressure_eviction"), (Some("CrashLoopBackOff"), "restart")]
    {
        let mut w = World::named(|_| ());
        w.ticks(30).kill(1).exits(1, KILLED).list().later(100).shows_exit(1);
        w.status_of(1).waiting = waiting.map(str::to_owned);
        w.applied(1).ticks(2).pod(1).reason = "Evicted".into();
        w.phase(1, "Failed").stopped(1).ticks(70);
        w.ends(&format!("node_pressure_eviction; c force_killed {expected}"));
    }
}

/// `crictl stop` of the only container, and the pod is deleted seconds later: the deletion's time is its own.
#[test]
fn a_request_is_not_dated_by_the_stop_of_somebody_else() {
    for before in [1_500, 2_500, 4_000] {
        let mut w = World::running(1);
        w.ticks(60).term(1).later(before).delete(1);
        let asked = w.at();
        w.later(2_000).exits(1, CODE_0).settles(1).ends("api_delete; c graceful unknown");
        let requested = w.end().milestone(MilestoneKind::DeleteRequested).expect("it was");
        assert_eq!((w.end().began.boot, requested.source), (asked, Source::Api), "{before}\n{w}");
        assert_eq!(w.end().request_lag_seconds, Some(0.0), "{before}");
    }
}

/// `kubectl delete --grace-period=5` of a pod that is being deleted with 60 s: the stamp stays that of the first request.
#[test]
fn a_shorter_grace_is_dated_by_its_receipt() {
    for after in [1, 10] {
        let mut w = World::running(1);
        w.marked(1, 60).applied(1).later(100).term(1).ticks(after).marked(1, 5);
        let shortened = w.at();
        w.pod(1).deletion_timestamp.as_mut().expect("it is").0 -=
            100_000_000 + after as i64 * 1_000_000_000;
        w.applied(1).ticks(5).kill(1).exits(1, KILLED).settles(1);
        let milestone = w.end().milestone(MilestoneKind::GraceShortened);
        assert_eq!(milestone.map(|at| at.at.boot), Some(shortened), "after {after} s\n{w}");
    }
}

/// What the Events of a stopped container state. They are listed once for each stop, and the report waits for the answer.
#[test]
fn the_events_of_a_stopped_container_are_listed_once() {
    for (answers, expected, says) in [
        (Some(Some(KillReason::LivenessProbe)), "graceful liveness", ""),
        (Some(Some(KillReason::DefinitionChanged)), "graceful definition_changed", ""),
        (Some(None), "graceful restart", ""),
        (None, "graceful restart", "could not be listed"),
    ] {
        let mut w = stopped(true);
        let ended = w.at();
        until_asked(w.later(300).again(1, 2));
        assert!(w.died.is_empty(), "it waits for the answer");
        answer(&mut w, ended, answers);
        w.ticks(120).dies(1, expected).says(1, says);
        let is_stated = !expected.ends_with("restart");
        assert_eq!(w.death(1).cause_source == Source::Kubelet, is_stated, "{w}");
        assert_eq!(asked(&w), 1, "once for each end");
    }
    for (is_on, says) in [(true, "were not listed since"), (false, "are not asked for")] {
        let mut w = stopped(is_on);
        w.later(300).again(1, 2).ticks(120).dies(1, "graceful restart").says(1, says);
        assert_eq!(
            asked(&w),
            usize::from(is_on),
            "no answer holds a report up, and off asks nothing"
        );
    }
}

/// A container with a probe by TCP that was stopped. `lists`: Events are looked up.
fn stopped(lists: bool) -> World {
    let mut w =
        World::named(|c| c.liveness = Some(ApiProbe { failures: 3, ..ApiProbe::default() }));
    w.say(Input::Events(LookupEvent::Lookup { lists }));
    w.later(60_000).term(1).later(50).exits(1, CODE_0);
    w
}

fn asked(w: &World) -> usize {
    w.requests.iter().filter(|one| matches!(one, Request::ListEvents(_))).count()
}

fn until_asked(w: &mut World) {
    for _ in 0..120 {
        w.ticks(u64::from(asked(w) == 0));
    }
    assert_eq!(asked(w), 1, "\n{w}");
}

/// The Events of the pod, with this reason of a stop; `None`: they could not be listed.
fn answer(w: &mut World, ended: BootTime, reason: Option<Option<KillReason>>) {
    let of = |reason| {
        let event = PostedEvent::new(ended, 0, EventReason::Killing);
        PostedEvent { reason: Some(reason), container: Some("c".into()), ..event }
    };
    let (asked, entries) = (w.at(), reason.map(|reason| reason.map(of).into_iter().collect()));
    w.say(Input::Events(LookupEvent::Events { pod: ids(1).0, asked, entries }));
}

#[test]
fn the_end_of_a_pod_waits_for_the_events_of_a_stop_shortly_before() {
    let mut w = stopped(true);
    let ended = w.at();
    w.later(300).again(1, 2).delete(1).later(200).is_over(2, CODE_0);
    until_asked(w.stopped(1).deleted(1));
    w.is_quiet();
    answer(&mut w, ended, Some(Some(KillReason::LivenessProbe)));
    w.ticks(120).dies(1, "graceful liveness");
    assert_eq!((asked(&w), w.ended.len()), (1, 1), "\n{w}");
}

#[test]
fn the_events_of_a_pod_are_listed_once_for_all_its_stopped_containers() {
    let mut w = two(|c| c.liveness = Some(ApiProbe::default()));
    w.say(Input::Events(LookupEvent::Lookup { lists: true }));
    w.later(60_000).term(1).term(2).later(3_000).exits(1, CODE_0).exits(2, CODE_0).cgroups_go(1);
    w.stopped(1).shows_exit(1).shows_exit(2).later(100).phase(1, "Failed");
    until_asked(&mut w);
    w.is_quiet();
    w.ticks(120);
    assert_eq!((asked(&w), w.died.len(), w.ended.len()), (1, 2, 1), "\n{w}");
}

/// The pod came, was deleted and collected in an outage, and the watch goes on where it was.
#[test]
fn a_pod_that_came_and_went_in_an_outage_has_its_cause_when_the_watch_is_back() {
    let mut w = World::in_sync();
    w.later(500).breaks().starts(1).list().later(20_000).stops(1);
    w.stopped(1)
        .later(1_000)
        .cgroups_go(1)
        .ticks(30)
        .removed(1)
        .ticks(10)
        .ends("unknown; c graceful unknown");
    (w.status_of(1).id, w.status_of(1).started) = (Some(ids(1).2), Some(true));
    w.resumes().later(100).applied(1).ticks(2);
    let due = WallTime(w.ended[0].began.boot.0 as i64 + 30_000_000_000);
    (w.pod(1).deletion_timestamp, w.pod(1).deletion_grace_seconds) = (Some(due), Some(30));
    w.shows_exit(1).pod(1).phase = "Succeeded".into();
    w.later(100).deleted(1).ticks(20);
    assert_eq!(w.end().cause, Cause::ApiDelete, "{w}");
}
