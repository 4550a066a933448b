//! The connections of a terminating pod: when they are counted, and what is reported of them.

use super::world::{
    CODE_0, Cgroups, World, container, ids, init, object, running, sandbox, sent, shim, task,
};
use coroner_core::{
    ids::{CgroupId, ContainerId, Tgid},
    input::{
        ApiEvent, ApiPod, ConnectionEvent as E, ContainerState, CriContainer, CriEvent, Hook,
        Input, KernelFact, Loss, LossKind, NetworkCounters, SignalGenerated, TrafficBlindness,
        TrafficCount, TrafficEvent, TrafficFact, TrafficPeer, TrafficReading, Workload,
    },
    output::{Request, TrafficRequest},
    report::{PodTermination, Traffic},
    time::BootTime,
    types::{FindingKind, MilestoneKind, Verdict},
};
use std::time::Duration;

fn counters(established: u64) -> Option<NetworkCounters> {
    Some(NetworkCounters { established, listening: vec![80] })
}

/// `count` events of a kind, spread evenly over this time, in ms.
fn many(peer: TrafficPeer, event: E, count: u64, from: u64, to: u64) -> TrafficCount {
    let (first, last) = (BootTime(from * 1_000_000), BootTime(to * 1_000_000));
    TrafficCount { peer, event, count, first, last }
}

fn client(event: E, count: u64, from: u64, to: u64) -> TrafficCount {
    many(TrafficPeer::Client, event, count, from, to)
}

impl World {
    fn asked(&mut self) -> Vec<TrafficRequest> {
        let mut asked = Vec::new();
        self.requests.retain(|request| match request {
            Request::Traffic(one) => {
                asked.push(one.clone());
                false
            }
            _ => true,
        });
        asked
    }

    fn says(&mut self, fact: TrafficFact) {
        self.say(Input::Traffic(TrafficEvent { sandbox: ids(1).1, fact }));
    }

    fn begins(&mut self, established: u64) {
        self.began(self.at(), established);
    }

    fn began(&mut self, at: BootTime, established: u64) {
        let network = counters(established);
        let reading = TrafficReading { at, network, ..TrafficReading::default() };
        self.says(TrafficFact::Began { reading, sees_refusals: true });
    }

    fn counts(&mut self, counts: Vec<TrafficCount>, network: Option<NetworkCounters>) {
        let reading =
            TrafficReading { at: self.at(), counts, network, ..TrafficReading::default() };
        self.says(TrafficFact::Counted { reading });
    }

    fn ends(&mut self, pod: ApiPod) -> PodTermination {
        self.exits(1, CODE_0);
        // The adapter has nothing more to say.
        self.says(TrafficFact::NotVisible { reason: TrafficBlindness::NoProcess });
        self.stopped(1, 0);
        self.api(ApiEvent::Deleted(pod));
        self.ticks(5);
        self.ended.last().cloned().expect("a report")
    }
}

fn kinds(report: &PodTermination) -> Vec<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

/// The programs missed events while they counted: the counts are too low, and nothing else is affected.
#[test]
fn events_that_the_programs_missed_mark_the_reports_of_those_that_terminate() {
    for (skipped, incomplete) in [([7, 7], vec![]), ([7, 9], vec![LossKind::ConnectionSkipped])] {
        let mut world = running(1);
        world.now = 2_000;
        let at = world.at();
        world.api(ApiEvent::Applied(object(1, true, at)));
        let network = Some(NetworkCounters { listening: vec![], ..counters(0).unwrap() });
        let [before, after] = skipped.map(|skipped| TrafficReading {
            network: network.clone(),
            skipped,
            ..TrafficReading::default()
        });
        let reading = TrafficReading { at: world.later(10).at(), ..before };
        world.says(TrafficFact::Began { reading, sees_refusals: true });
        world.now = 3_000;
        world.term(1, true);
        world.say(Input::Lost(Loss::new(LossKind::ConnectionSkipped, 2)));
        let counts = vec![client(E::Refused, 3, 3_100, 3_200)];
        let reading = TrafficReading { at: world.later(300).at(), counts, ..after };
        world.says(TrafficFact::Counted { reading });
        let report = world.later(500).ends(object(1, true, at));
        assert_eq!(report.incomplete, incomplete);
        assert_eq!(report.containers[0].verdict, Verdict::Graceful);
        assert_eq!(report.containers[0].incomplete, []);
        // A listener that was missed is no reason for a finding.
        assert_eq!(kinds(&report), []);
        assert_eq!(world.engine.gauges().losses[&LossKind::ConnectionSkipped], 2);
    }
}

/// A pod with 12 connections is deleted, at 1 s, and was sent SIGTERM at 2 s.
fn stopping() -> World {
    let mut world = running(1);
    world.now = 2_000;
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(10).begins(12);
    world.now = 3_000;
    world.term(1, true);
    world
}

fn deleted(world: &World) -> ApiPod {
    object(1, true, world.at())
}

#[test]
fn counting_begins_with_the_request_and_ends_with_the_report() {
    let mut world = running(1);
    let cgroup = Cgroups::of(1).pause;
    world.kernel(KernelFact::Exec { cgroup, task: init(3), parent: shim() });
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    let asked = world.asked();
    let [TrafficRequest::Count(count)] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(count.sandbox, ids(1).1);
    let processes: Vec<_> = count.processes.iter().map(|(tgid, _)| *tgid).collect();
    assert_eq!(processes, [Tgid(35), Tgid(15)], "the sandbox's, which lives longer, is first");
    world.api(ApiEvent::Applied(object(1, true, at)));
    assert_eq!(world.asked(), [], "once");

    world.later(10).begins(0);
    world.later(100).term(1, true);
    assert_eq!(world.asked(), [TrafficRequest::Read(ids(1).1)], "what is open at the stop");
    for _ in 0..100 {
        world.later(1).term(1, true);
    }
    assert_eq!(world.asked(), [], "once, however many signals come");
    world.later(100).exits(1, CODE_0);
    assert_eq!(world.asked(), [TrafficRequest::Read(ids(1).1)], "every cut is counted by now");
    world.counts(Vec::new(), counters(0));
    world.stopped(1, 0);
    assert_eq!(world.asked(), [TrafficRequest::Read(ids(1).1)], "clients are refused until now");
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(5);
    assert!(world.ended.is_empty(), "the last counts have not come");
    world.counts(vec![client(E::RefusedAfterStop, 1, 2_400, 2_400)], None);
    world.ticks(1);
    assert!(world.ended[0].is_final);
    assert_eq!(kinds(&world.ended[0]), [FindingKind::ConnectionsRefused]);
    assert_eq!(world.asked(), [TrafficRequest::Forget(ids(1).1)]);
}

/// Where many pods are deleted at once, the adapter is slower than a short shutdown.
#[test]
fn a_report_waits_for_the_counts_at_the_end() {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    assert!(matches!(world.asked().as_slice(), [TrafficRequest::Count(_)]));
    world.later(100).term(1, true);
    let began = world.later(10).at();
    world.later(100).exits(1, CODE_0);
    assert_eq!(world.asked(), [TrafficRequest::Read(ids(1).1)], "before counting has begun");
    world.stopped(1, 0);
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.began(began, 1);
    world.ticks(5);
    assert!(world.ended.is_empty(), "the end of its connections has not come");
    assert_eq!(world.asked(), [TrafficRequest::Read(ids(1).1)]);
    // The answer to one of the requests is enough: the others may be lost.
    world.counts(vec![client(E::Cut, 1, 1, 1)], None);
    world.ticks(5);
    let traffic = world.ended[0].traffic.as_ref().expect("counted");
    assert_eq!(traffic.sum(&[TrafficPeer::Client], &[E::Cut]).count, 1);
    assert!(world.ended[0].is_final);
}

#[test]
fn a_report_does_not_wait_for_ever_for_counts() {
    let mut world = stopping();
    world.later(100).exits(1, CODE_0);
    world.stopped(1, 0);
    let pod = deleted(&world);
    world.api(ApiEvent::Deleted(pod));
    world.ticks(25);
    assert!(world.ended.is_empty());
    world.ticks(10);
    assert!(!world.ended[0].is_final, "the counts may still come");
    world.counts(vec![client(E::Cut, 2, 3, 3)], None);
    world.ticks(1);
    let (last, _) = world.updated.last().expect("it comes again");
    assert!(last.is_final);
    assert_eq!(kinds(last), [FindingKind::ConnectionsCut]);
}

/// Once an agent has counted, it waits for the beginning, too; and no longer where nothing can come.
#[test]
fn a_report_waits_until_counting_has_begun_or_has_failed() {
    for fails in [false, true] {
        let mut world = running(1);
        let stranger = TrafficFact::NotVisible { reason: TrafficBlindness::MapFull };
        world.say(Input::Traffic(TrafficEvent { sandbox: ids(9).1, fact: stranger }));
        let at = world.at();
        world.api(ApiEvent::Applied(object(1, true, at)));
        let began = world.later(10).at();
        world.later(100).exits(1, CODE_0);
        world.stopped(1, 0);
        world.api(ApiEvent::Deleted(object(1, true, at)));
        world.ticks(5);
        assert!(world.ended.is_empty(), "nobody has answered");
        if fails {
            world.says(TrafficFact::NotVisible { reason: TrafficBlindness::MapFull });
        } else {
            world.began(began, 1);
            world.ticks(5);
            assert!(world.ended.is_empty(), "what the end cost has not come");
            world.says(TrafficFact::NotVisible { reason: TrafficBlindness::NoProcess });
        }
        world.ticks(1);
        let traffic = world.ended[0].traffic.as_ref().expect("known");
        assert_eq!(traffic.not_visible.is_some(), fails);
        assert!(world.ended[0].is_final);
    }
}

/// Without an apiserver counting begins with the stop signal, and a process may be faster. Or the kernel's records of the
/// whole stop come after the request, whose time is later.
#[test]
fn what_ended_before_counting_began_is_not_zero() {
    for is_requested in [false, true] {
        let mut world = running(1);
        let at = world.at();
        world.later(10);
        if is_requested {
            world.api(ApiEvent::Applied(object(1, true, at)));
            world.now -= 5;
        }
        world.term(1, true);
        world.later(2).exits(1, CODE_0);
        world.later(30).begins(0);
        world.stopped(1, 0);
        world.counts(Vec::new(), None);
        world.api(ApiEvent::Applied(object(1, true, at)));
        world.api(ApiEvent::Deleted(object(1, true, at)));
        world.ticks(5);
        let traffic = world.ended[0].traffic.as_ref().expect("known");
        assert_eq!(traffic.not_visible, Some(TrafficBlindness::TooLate));
        assert_eq!((traffic.at_begin.as_ref(), traffic.counts.len()), (None, 0));
    }
}

/// The runtime kills the sandbox's own process when all containers have ended.
fn kills_pause(world: &mut World) {
    let cgroup = Cgroups::of(1).pause;
    let signal = SignalGenerated { cgroup, target: init(3), ..sent(1, 9, true) };
    world.later(50).kernel(KernelFact::SignalGenerated(signal));
}

/// A young pod is deleted: its stop signal comes before the list of its containers, or before both lists.
#[test]
fn the_stop_of_a_container_that_no_list_has_shown_is_dated() {
    for has_sandbox in [true, false] {
        let mut world = World::in_sync();
        let at = world.at();
        world.api(ApiEvent::Applied(object(1, false, at)));
        world.starts(1);
        world.kernel(KernelFact::Exec {
            cgroup: Cgroups::of(1).pause,
            task: init(3),
            parent: shim(),
        });
        if has_sandbox {
            world.lists(vec![sandbox(1, true)], Vec::new());
        }
        let at = world.later(1_000).at();
        world.api(ApiEvent::Applied(object(1, true, at)));
        let stopped = world.later(10).at();
        world.term(1, true);
        world.later(2).lists(vec![sandbox(1, true)], Vec::new());
        let asked = world.asked();
        let [TrafficRequest::Count(count)] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!(count.processes.len(), 2);
        world.later(10).begins(3);
        world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Running)]);
        world.later(500).exits(1, CODE_0);
        world.counts(vec![client(E::Cut, 1, 3, 3)], counters(0));
        kills_pause(&mut world);
        let pod = deleted(&world);
        let traffic = world.ends(pod).traffic.expect("counted");
        assert_eq!((traffic.stopped.unwrap().boot, traffic.not_visible), (stopped, None));
        assert_eq!(traffic.counts.len(), 1);
    }
}

#[test]
fn the_sandbox_of_a_pod_that_has_completed_stops_nothing() {
    let mut world = running(1);
    world.exits(1, CODE_0);
    kills_pause(&mut world);
    assert_eq!(world.asked(), []);
}

/// The liveness probe stops a container, the pod is deleted, and the kubelet restarts the container before it stops
/// the pod: what is counted begins with the stop of the pod, not when its sandbox stops, where no process is left.
#[test]
fn counting_starts_over_with_the_stop_of_a_container_that_no_list_has_shown() {
    let mut world = running(1);
    world.later(100).term(1, true);
    world.begins(3);
    let at = world.later(1_000).at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.later(1_000).exits(1, CODE_0);
    let (cgroup, parent) = (CgroupId(99), Some(Cgroups::of(1).pod));
    let name = "c".repeat(64);
    world.later(100).kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    world.kernel(KernelFact::Exec { cgroup, task: init(2), parent: shim() });
    world.asked();
    let stopped = world.later(50).at();
    let signal = SignalGenerated { cgroup, ..sent(2, 15, true) };
    world.kernel(KernelFact::SignalGenerated(signal));
    assert!(matches!(world.asked().as_slice(), [TrafficRequest::Count(_)]));
    world.later(10).begins(3);
    let next = CriContainer {
        id: ContainerId::new("c".repeat(64)),
        attempt: 1,
        ..container(1, ContainerState::Running)
    };
    world.lists(vec![sandbox(1, true)], vec![container(1, ContainerState::Exited), next.clone()]);
    let pod = deleted(&world);
    world.later(500).kernel(KernelFact::CgroupEmpty { cgroup });
    world.counts(Vec::new(), counters(0));
    kills_pause(&mut world);
    assert!(!world.asked().iter().any(|one| matches!(one, TrafficRequest::Count(_))));
    let next = CriContainer { state: ContainerState::Exited, ..next };
    world.lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited), next]);
    world.counts(Vec::new(), None);
    world.api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let traffic = world.ended[0].traffic.as_ref().expect("counted");
    assert_eq!((traffic.stopped.unwrap().boot, traffic.not_visible), (stopped, None));
}

/// A container that waits to be restarted has ended: its clients' refusals are of no deletion.
#[test]
fn counting_starts_over_with_a_deletion_that_follows_a_stop() {
    let mut world = running(1);
    world.later(100).term(1, true);
    world.begins(3);
    world.later(100).exits(1, CODE_0);
    world.asked();
    world.ticks(60);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    assert!(matches!(world.asked().as_slice(), [TrafficRequest::Count(_)]));
    world.api(ApiEvent::Applied(object(1, true, at)));
    assert_eq!(world.asked(), [], "once");

    let mut world = running(1);
    world.later(100).term(1, true);
    world.begins(3);
    world.asked();
    world.ticks(10);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    assert_eq!(world.asked(), [], "the stop is still under way");
}

/// Attaching the programs may take longer than the kubelet.
#[test]
fn all_that_is_counted_is_after_a_stop_signal_that_comes_while_counting_begins() {
    // Its record comes before the answer, or after it.
    for is_late in [false, true] {
        let mut world = running(1);
        let at = world.at();
        world.api(ApiEvent::Applied(object(1, true, at)));
        assert!(matches!(world.asked().as_slice(), [TrafficRequest::Count(_)]));
        world.later(10);
        let stopped = world.at();
        let began = TrafficReading {
            at: stopped + Duration::from_millis(5),
            counts: Vec::new(),
            network: counters(1),
            ..TrafficReading::default()
        };
        let began = TrafficFact::Began { reading: began, sees_refusals: true };
        if is_late {
            world.says(began);
            world.term(1, true);
        } else {
            world.term(1, true);
            assert_eq!(world.asked(), []);
            world.says(began);
        }
        assert_eq!(world.asked(), [], "the beginning is after the signal");
        world.later(10).term(1, true);
        // The programs have seen the second signal only.
        let counts = [(E::Opened, 1), (E::OpenedAfterStop, 2), (E::Refused, 4), (E::CutIdle, 8)];
        let time = world.at().0 / 1_000_000;
        let counts = counts.map(|(event, count)| client(event, count, time, time + count));
        world.counts(counts.to_vec(), counters(0));
        let pod = deleted(&world);
        let traffic = world.later(500).ends(pod).traffic.expect("counted");
        let counts =
            traffic.counts.iter().map(|one| (one.event, one.count, one.last.boot.0 / 1_000_000));
        let all = [
            (E::OpenedAfterStop, 3, time + 2),
            (E::RefusedAfterStop, 4, time + 4),
            (E::CutIdle, 8, time + 8),
        ];
        assert_eq!(counts.collect::<Vec<_>>(), all);
        assert_eq!((traffic.at_begin.is_some(), traffic.at_stop), (true, None));
    }
}

#[test]
fn without_a_request_counting_begins_with_the_stop_signal() {
    let mut world = running(1);
    world.later(100).term(1, true);
    assert!(matches!(world.asked().as_slice(), [TrafficRequest::Count(_)]));
    // It ignores that, and lives.
    world.ticks(119);
    assert_eq!(world.asked(), []);
    world.ticks(3);
    assert_eq!(world.asked(), [TrafficRequest::Forget(ids(1).1)]);
}

#[test]
fn an_idle_connection_is_no_finding_and_an_unanswered_request_is() {
    let mut world = stopping();
    let idle = client(E::CutIdle, 12, 3_500, 3_500);
    world.later(500).counts(vec![idle], counters(0));
    let pod = deleted(&world);
    let report = world.ends(pod);
    assert_eq!(kinds(&report), []);

    let mut world = stopping();
    let cut = [(E::CutIdle, 9), (E::Cut, 3)];
    let cut = cut.map(|(event, count)| client(event, count, 3_500, 3_500));
    world.later(500).counts(cut.into(), counters(0));
    let pod = deleted(&world);
    let report = world.ends(pod);
    assert_eq!(kinds(&report), [FindingKind::ConnectionsCut]);
    assert_eq!(
        report.findings[0].detail,
        "The exit of the process cut 3 connection(s) in the middle of a request (the client had sent data last); \
         9 more were idle."
    );
    assert_eq!(report.containers[0].verdict, Verdict::Graceful, "traffic changes no verdict");
}

#[test]
fn a_listener_that_closes_before_its_clients_know_is_named() {
    let mut world = stopping();
    let counts = vec![
        client(E::ListenerClosed, 1, 3_010, 3_010),
        client(E::RefusedAfterStop, 5, 3_100, 3_600),
        many(TrafficPeer::Node, E::RefusedAfterStop, 1, 3_200, 3_200),
    ];
    world.later(700).counts(counts, counters(12));
    let pod = deleted(&world);
    let report = world.ends(pod);
    let expected = [FindingKind::ConnectionsRefused, FindingKind::ListenerClosedEarly];
    assert_eq!(kinds(&report), expected);
    assert_eq!(
        report.findings[0].detail,
        "5 (and 1 from the node's own addresses) new connection(s) were refused, the first 100 ms and the last \
         600 ms after the stop signal."
    );
    assert_eq!(
        report.findings[1].detail,
        "The process closed its listener 10 ms after the stop signal, while clients still connected: the last was \
         refused 590 ms later."
    );
    let closed = report.milestone(MilestoneKind::ListenerClosed).unwrap();
    assert_eq!(closed.at, BootTime(3_010_000_000));
}

/// A preStop hook closes the listener: each time is after what was before it.
#[test]
fn a_listener_that_a_hook_closes_is_dated_from_the_request() {
    let mut world = stopping();
    let counts = vec![
        client(E::ListenerClosed, 1, 2_400, 2_400),
        client(E::RefusedAfterStop, 5, 3_100, 3_600),
    ];
    world.later(700).counts(counts, counters(12));
    let pod = deleted(&world);
    let report = world.ends(pod);
    assert!(
        report.findings[0]
            .detail
            .contains("the first 100 ms and the last 600 ms after the stop signal")
    );
    assert_eq!(
        report.findings[1].detail,
        "The process closed its listener 390 ms after the deletion request, while clients still connected: the last \
         was refused 1.2 s later."
    );
}

/// A client that connects to a pod that never listens is refused, whether the pod terminates or not. Where the stop
/// signal was before counting began, what was open before is not known.
#[test]
fn a_pod_that_never_listened_refuses_nobody() {
    let none = Some(NetworkCounters { listening: Vec::new(), ..counters(0).unwrap() });
    let found =
        |world: &mut World, network: Option<NetworkCounters>, more: Option<TrafficCount>| {
            let reading =
                TrafficReading { at: world.at(), network: network.clone(), ..Default::default() };
            world.says(TrafficFact::Began { reading, sees_refusals: true });
            world.later(5).term(1, true);
            let counts = [client(E::RefusedAfterStop, 1, 3_100, 3_100)].into_iter().chain(more);
            world.later(700).counts(counts.collect(), network);
            let pod = deleted(world);
            kinds(&world.ends(pod))
        };
    let asked = || {
        let mut world = running(1);
        world.now = 3_000;
        let at = world.at();
        world.api(ApiEvent::Applied(object(1, true, at)));
        world
    };
    let refused = [FindingKind::ConnectionsRefused];
    assert_eq!(found(&mut asked(), none.clone(), None), []);
    assert_eq!(found(&mut asked(), counters(0), None), refused);
    let opened = client(E::Opened, 1, 3_005, 3_005);
    assert_eq!(found(&mut asked(), none.clone(), Some(opened)), refused);
    let mut stopped = asked();
    stopped.term(1, true);
    assert_eq!(found(stopped.later(10), none, None), refused);
}

/// The hook closes the listener before counting begins: on a late watch, or where the agent starts in between.
#[test]
fn a_listener_that_a_hook_may_have_closed_is_not_called_none() {
    let mut world = running(1);
    world.now = 3_000;
    let mut pod = object(1, true, world.at());
    pod.containers.get_mut("c").unwrap().pre_stop = Some(Hook::Exec("sh".into()));
    world.api(ApiEvent::Applied(pod.clone()));
    let cgroup = Cgroups::of(1).own;
    let task = task(700, 40, "sh");
    world.later(5).kernel(KernelFact::Exec { cgroup, task: task.clone(), parent: shim() });
    let network = Some(NetworkCounters { listening: Vec::new(), ..counters(0).unwrap() });
    let reading =
        TrafficReading { at: world.later(5).at(), network: network.clone(), ..Default::default() };
    world.says(TrafficFact::Began { reading, sees_refusals: true });
    let exit = KernelFact::Exit { cgroup, task, status: CODE_0, parent: Some(shim()) };
    world.later(80).kernel(exit);
    world.later(10).term(1, true);
    world.later(700).counts(vec![client(E::Refused, 1, 3_050, 3_050)], network);
    let report = world.ends(pod);
    assert!(report.milestone(MilestoneKind::PreStopBegan).is_some());
    assert_eq!(kinds(&report), [FindingKind::ConnectionsRefused]);
}

#[test]
fn only_the_nodes_own_refused_probes_are_no_finding() {
    let mut world = stopping();
    let counts = vec![
        client(E::ListenerClosed, 1, 3_010, 3_010),
        many(TrafficPeer::Node, E::RefusedAfterStop, 3, 3_200, 3_300),
    ];
    world.later(700).counts(counts, counters(10));
    let pod = deleted(&world);
    assert_eq!(kinds(&world.ends(pod)), []);
}

#[test]
fn connections_that_keep_coming_for_more_than_a_second_are_late() {
    for (last, late) in [(3_900, false), (6_400, true)] {
        let mut world = stopping();
        let counts = vec![client(E::OpenedAfterStop, 4, 3_050, last)];
        world.now = last + 100;
        world.counts(counts, counters(16));
        let pod = deleted(&world);
        let report = world.ends(pod);
        let expected = if late { vec![FindingKind::LateConnections] } else { Vec::new() };
        assert_eq!(kinds(&report), expected);
        let milestone = report.milestone(MilestoneKind::LastNewConnection).unwrap();
        assert_eq!(milestone.at, BootTime(last * 1_000_000));
    }
}

#[test]
fn a_job_has_no_clients_to_lose() {
    let mut world = stopping();
    let counts = vec![client(E::Cut, 3, 3_500, 3_500)];
    world.later(500).counts(counts, counters(9));
    let workload = Some(Workload { kind: "Job".into(), name: "import".into() });
    let pod = ApiPod { workload: workload.clone().map(Box::new), ..deleted(&world) };
    world.api(ApiEvent::Applied(pod.clone()));
    let report = world.ends(pod);
    assert_eq!(kinds(&report), []);
    assert_eq!(report.workload, workload);
}

#[test]
fn what_is_not_visible_is_not_zero() {
    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.says(TrafficFact::NotVisible { reason: TrafficBlindness::HostNetwork });
    world.later(100).term(1, true);
    assert_eq!(world.asked().len(), 1, "nothing to read");
    let report = world.ends(object(1, true, at));
    let traffic = report.traffic.unwrap();
    assert_eq!(traffic.not_visible, Some(TrafficBlindness::HostNetwork));
    assert_eq!(traffic.at_begin, None);

    let mut world = running(1);
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    world.exits(1, CODE_0);
    world.stopped(1, 0);
    world.api(ApiEvent::Deleted(object(1, true, at)));
    world.ticks(5);
    assert_eq!(world.ended[0].traffic, None, "nobody answered");
}

#[test]
fn the_sandbox_of_a_runtime_with_a_stack_of_its_own_is_not_asked_about() {
    // Shown by the runtime handler, or only by the shim.
    for (handler, shim) in [("runsc", "io.containerd.runc.v2"), ("other", "io.containerd.kata.v2")]
    {
        let mut world = running(1);
        let mut isolated = sandbox(1, true);
        isolated.handler = handler.into();
        world.lists(vec![isolated], vec![container(1, ContainerState::Running)]);
        world.cri(CriEvent::RuntimeType { container: ids(1).2, runtime: shim.into() });
        let at = world.at();
        world.api(ApiEvent::Applied(object(1, true, at)));
        assert_eq!(world.asked(), [], "{handler}");
        let report = world.ends(object(1, true, at));
        let not_visible = report.traffic.and_then(|traffic| traffic.not_visible);
        assert_eq!(not_visible, Some(TrafficBlindness::OwnStack), "{handler}");
    }
}

#[test]
fn answers_about_others_and_out_of_order_change_nothing() {
    let mut world = stopping();
    world.later(100).counts(vec![client(E::Cut, 1, 3_100, 3_100)], None);
    let early = TrafficReading { at: BootTime(1), ..TrafficReading::default() };
    world.says(TrafficFact::Counted { reading: early });
    world.says(TrafficFact::NotVisible { reason: TrafficBlindness::NoProcess });
    let stranger = TrafficEvent {
        sandbox: ids(9).1,
        fact: TrafficFact::NotVisible { reason: TrafficBlindness::MapFull },
    };
    world.say(Input::Traffic(stranger));
    let pod = deleted(&world);
    let report = world.ends(pod);
    let traffic: Traffic = report.traffic.unwrap();
    assert_eq!(traffic.counts.len(), 1);
    assert_eq!(traffic.at_begin.map(|open| open.established), Some(12));
}

#[test]
fn what_an_earlier_stop_of_a_container_cost_is_not_the_deletions() {
    let mut world = running(1);
    world.later(100).term(1, true);
    assert_eq!(world.asked().len(), 1);
    world.begins(3);
    for _ in 0..100 {
        world.later(1).term(1, true);
    }
    assert_eq!(world.asked(), [], "what is open at the stop is what is open at the beginning");
    world.exits(1, CODE_0);
    // It is started again in the same sandbox, and the pod is deleted a minute later.
    let cgroup = CgroupId(99);
    let id = ContainerId::new("c".repeat(64));
    let (parent, name) = (Some(Cgroups::of(1).pod), id.to_string());
    world.later(100).kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    world.kernel(KernelFact::Exec { cgroup, task: init(2), parent: shim() });
    let next = |state| CriContainer { id: id.clone(), attempt: 1, ..container(1, state) };
    let both = |state| vec![container(1, ContainerState::Exited), next(state)];
    world.lists(vec![sandbox(1, true)], both(ContainerState::Running));
    world.ticks(60);
    world.asked();
    let at = world.at();
    world.api(ApiEvent::Applied(object(1, true, at)));
    let asked = world.asked();
    let [TrafficRequest::Count(count)] = asked.as_slice() else { panic!("{asked:?}") };
    assert!(count.processes.iter().any(|(tgid, _)| *tgid == init(2).tgid));
    // What is counted now is before the stop signal of this deletion.
    world.begins(3);
    let time = world.at().0 / 1_000_000;
    world.later(100).counts(vec![client(E::Opened, 1, time, time)], counters(4));
    world.later(100);
    let stopped = world.at();
    let signal = SignalGenerated { cgroup, ..sent(2, 15, true) };
    world.kernel(KernelFact::SignalGenerated(signal));
    let pod = deleted(&world);
    world.later(100).kernel(KernelFact::CgroupEmpty { cgroup });
    world.says(TrafficFact::NotVisible { reason: TrafficBlindness::NoProcess });
    world.lists(vec![sandbox(1, false)], both(ContainerState::Exited));
    world.api(ApiEvent::Deleted(pod));
    world.ticks(60);
    let traffic = world.ended[0].traffic.as_ref().expect("counted");
    assert_eq!(traffic.stopped.unwrap(), stopped);
    assert_eq!(traffic.counts[0].event, E::Opened);
}
