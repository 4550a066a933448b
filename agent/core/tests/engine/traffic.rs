//! The connections of a terminating pod: when they are counted, and what is reported of them.

use coroner_core::{
    input::ConnectionEvent as E, output::TrafficRequest as Asked, report::Traffic, testkit::*,
};

fn counters(established: u64) -> Option<NetworkCounters> {
    Some(NetworkCounters { established, listening: vec![80] })
}

fn none_listens() -> Option<NetworkCounters> {
    Some(NetworkCounters::default())
}

/// `count` events of a kind, spread evenly over this time, in ms.
fn many(peer: TrafficPeer, event: E, count: u64, from: u64, to: u64) -> TrafficCount {
    TrafficCount { peer, event, count, first: ms(from), last: ms(to) }
}

fn client(event: E, count: u64, from: u64, to: u64) -> TrafficCount {
    many(TrafficPeer::Client, event, count, from, to)
}

/// What the adapter was asked since the last call.
fn asked(w: &mut World) -> Vec<Asked> {
    w.wanted(|request| match request {
        Request::Traffic(one) => Some(one.clone()),
        _ => None,
    })
}

/// It was asked to count, by so many processes.
#[track_caller]
fn asked_to_count(w: &mut World, processes: usize) {
    let asked = asked(w);
    let [Asked::Count(count)] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!((&count.sandbox, count.processes.len()), (&ids(1).1, processes));
}

fn began(w: &mut World, at: BootTime, network: Option<NetworkCounters>) -> &mut World {
    let reading = TrafficReading { at, network, ..TrafficReading::default() };
    w.traffic(TrafficFact::Began { reading, sees_refusals: true })
}

/// Counting begins now, with so many connections.
fn begins(w: &mut World, established: u64) -> &mut World {
    begins_with(w, counters(established))
}

fn begins_with(w: &mut World, network: Option<NetworkCounters>) -> &mut World {
    began(w, w.at(), network)
}

fn counts(
    w: &mut World,
    counts: Vec<TrafficCount>,
    network: Option<NetworkCounters>,
) -> &mut World {
    let reading = TrafficReading { at: w.at(), counts, network, ..TrafficReading::default() };
    w.traffic(TrafficFact::Counted { reading })
}

fn blind(w: &mut World, reason: TrafficBlindness) -> &mut World {
    w.traffic(TrafficFact::NotVisible { reason })
}

/// A pod with 12 connections is deleted, at 2 s, and was sent SIGTERM at 3 s.
fn stopping() -> World {
    let mut w = World::running(1);
    w.now = 2_000;
    begins(w.delete(1).later(10), 12);
    w.now = 3_000;
    w.term(1);
    w
}

/// The pod ends, and the adapter has nothing more to add.
fn ends(w: &mut World) -> PodTermination {
    if w.containers[&1].state == ContainerState::Running {
        w.exits(1, CODE_0);
    }
    blind(w, TrafficBlindness::NoProcess).finish(1).ticks(5);
    w.end().clone()
}

fn kinds(report: &PodTermination) -> Vec<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

/// The programs missed events while they counted: the counts are too low, and nothing else is affected. A listener that
/// was missed is no reason for a finding.
#[test]
fn events_that_the_programs_missed_mark_the_reports_of_those_that_terminate() {
    for (skipped, expected) in [
        ([7, 7], "api_delete; c graceful api_delete"),
        ([7, 9], "api_delete -connection_skipped; c graceful api_delete"),
    ] {
        let mut w = World::running(1);
        w.now = 2_000;
        let reading = |at, skipped| {
            let counts = Vec::new();
            TrafficReading { at, counts, network: none_listens(), skipped }
        };
        let before = reading(w.delete(1).later(10).at(), skipped[0]);
        w.traffic(TrafficFact::Began { reading: before, sees_refusals: true }).later(990).term(1);
        w.say(Input::Lost(Loss::new(LossKind::ConnectionSkipped, 2)));
        let after = reading(w.later(300).at(), skipped[1]);
        let reading = TrafficReading { counts: vec![client(E::Refused, 3, 3_100, 3_200)], ..after };
        ends(w.traffic(TrafficFact::Counted { reading }).later(500));
        w.ends(expected);
        assert_eq!(w.engine.gauges().losses[&LossKind::ConnectionSkipped], 2);
    }
}

#[test]
fn counting_begins_with_the_request_and_ends_with_the_report() {
    let read = [Asked::Read(ids(1).1)];
    let mut w = World::running(1);
    let requests = asked(w.pauses(1).delete(1));
    let [Asked::Count(count)] = requests.as_slice() else { panic!("{requests:?}") };
    let processes: Vec<_> = count.processes.iter().map(|(tgid, _)| *tgid).collect();
    assert_eq!(processes, [Tgid(13), Tgid(15)], "the sandbox's, which lives longer, is first");
    assert_eq!(asked(w.applied(1)), [], "once");
    begins(w.later(10), 0);
    assert_eq!(asked(w.later(100).term(1)), read, "what is open at the stop");
    (0..100).for_each(|_| _ = w.later(1).term(1));
    assert_eq!(asked(&mut w), [], "once, however many signals come");
    assert_eq!(asked(w.later(100).exits(1, CODE_0)), read, "every cut is counted by now");
    assert_eq!(
        asked(counts(&mut w, Vec::new(), counters(0)).stopped(1)),
        read,
        "refused until now"
    );
    w.deleted(1).ticks(5).goes_on();
    counts(&mut w, vec![client(E::RefusedAfterStop, 1, 2_400, 2_400)], None).ticks(1);
    assert!(w.ended[0].is_final);
    assert_eq!(kinds(&w.ended[0]), [FindingKind::ConnectionsRefused]);
    assert_eq!(asked(&mut w), [Asked::Forget(ids(1).1)]);
}

/// Where many pods are deleted at once, the adapter is slower than a short shutdown; but no report waits for ever.
#[test]
fn a_report_waits_for_the_counts_at_the_end() {
    let mut w = World::running(1);
    asked_to_count(w.delete(1), 1);
    let at = w.later(100).term(1).later(10).at();
    let read = [Asked::Read(ids(1).1)];
    assert_eq!(asked(w.later(100).exits(1, CODE_0)), read, "before counting has begun");
    began(w.finish(1), at, counters(1)).ticks(5).goes_on();
    assert_eq!(asked(&mut w), read);
    // The answer to one of the requests is enough: the others may be lost.
    counts(&mut w, vec![client(E::Cut, 1, 1, 1)], None).ticks(5);
    let traffic = w.ended[0].traffic.as_ref().expect("counted");
    assert_eq!(traffic.sum(&[TrafficPeer::Client], &[E::Cut]).count, 1);
    assert!(w.ended[0].is_final);

    let mut w = stopping();
    w.later(100).exits(1, CODE_0).finish(1).ticks(25).goes_on();
    w.ticks(10);
    assert!(!w.end().is_final, "the counts may still come");
    counts(&mut w, vec![client(E::Cut, 2, 3, 3)], None).ticks(1);
    assert!(w.end().is_final, "it comes again");
    assert_eq!(kinds(w.end()), [FindingKind::ConnectionsCut]);
}

/// Once an agent has counted, it waits for the beginning, too; and no longer where nothing can come.
#[test]
fn a_report_waits_until_counting_has_begun_or_has_failed() {
    for fails in [false, true] {
        let mut w = World::running(1);
        let stranger = TrafficFact::NotVisible { reason: TrafficBlindness::MapFull };
        w.say(Input::Traffic(TrafficEvent { sandbox: ids(9).1, fact: stranger }));
        let at = w.delete(1).later(10).at();
        w.later(100).exits(1, CODE_0).finish(1).ticks(5).goes_on();
        if fails {
            blind(&mut w, TrafficBlindness::MapFull);
        } else {
            began(&mut w, at, counters(1)).ticks(5).goes_on();
            blind(&mut w, TrafficBlindness::NoProcess);
        }
        let end = w.ticks(1).end().clone();
        assert_eq!(end.traffic.expect("known").not_visible.is_some(), fails);
        assert!(end.is_final);
    }
}

/// Without an apiserver counting begins with the stop signal, and a process may be faster. Or the kernel's records of the
/// whole stop come after the request, whose time is later.
#[test]
fn what_ended_before_counting_began_is_not_zero() {
    for is_requested in [false, true] {
        let mut w = World::running(1);
        w.marked(1, 30).later(10);
        if is_requested {
            w.applied(1).now -= 5;
        }
        begins(w.term(1).later(2).exits(1, CODE_0).later(30), 0).stopped(1);
        counts(&mut w, Vec::new(), None).applied(1).deleted(1).ticks(5);
        let traffic = w.end().traffic.as_ref().expect("known");
        assert_eq!(traffic.not_visible, Some(TrafficBlindness::TooLate));
        assert_eq!((traffic.at_begin.as_ref(), traffic.counts.len()), (None, 0));
    }
}

/// The runtime kills the sandbox's own process when all containers have ended.
fn kills_pause(w: &mut World) -> &mut World {
    let pause = task(13, 1, "pause");
    w.later(50).sends(Signal::to(Cgroups::of(1).pause, pause, 9))
}

/// A young pod is deleted: its stop signal comes before the list of its containers, or before both lists.
#[test]
fn the_stop_of_a_container_that_no_list_has_shown_is_dated() {
    for has_sandbox in [true, false] {
        let mut w = World::in_sync();
        w.applied(1).starts(1).pauses(1);
        if has_sandbox {
            w.lists(vec![sandbox(1, true)], Vec::new());
        }
        let stopped = w.later(1_000).delete(1).later(10).at();
        asked_to_count(w.term(1).later(2).lists(vec![sandbox(1, true)], Vec::new()), 2);
        begins(w.later(10), 3).list().later(500).exits(1, CODE_0);
        kills_pause(counts(&mut w, vec![client(E::Cut, 1, 3, 3)], counters(0)));
        let traffic = ends(&mut w).traffic.expect("counted");
        assert_eq!((traffic.stopped.unwrap().boot, traffic.not_visible), (stopped, None));
        assert_eq!(traffic.counts.len(), 1);
    }
}

#[test]
fn the_sandbox_of_a_pod_that_has_completed_stops_nothing() {
    assert_eq!(asked(kills_pause(World::running(1).exits(1, CODE_0))), []);
}

/// The liveness probe stops a container, the pod is deleted before the kubelet starts it again, or a minute after: what is
/// counted begins with the stop of the pod, not when its sandbox stops, where no process is left.
#[test]
fn what_an_earlier_stop_of_a_container_cost_is_not_the_deletions() {
    for deleted_first in [true, false] {
        let mut w = World::running(1);
        begins(w.later(100).term(1), 3);
        asked_to_count(&mut w, 1);
        (0..100).for_each(|_| _ = w.later(1).term(1));
        assert_eq!(asked(&mut w), [], "what is open at the stop is what is open at the beginning");
        if deleted_first {
            w.later(1_000).delete(1).later(1_000).exits(1, CODE_0).later(100).restarts(1, 2);
            asked(w.later(50));
        } else {
            w.exits(1, CODE_0).later(100).restarts(1, 2).list().ticks(60);
            asked(&mut w);
            asked_to_count(w.delete(1), 1);
            // What is counted now is before the stop signal of this deletion.
            let opened = vec![client(E::Opened, 1, w.now, w.now)];
            counts(begins(&mut w, 3).later(100), opened, counters(4)).later(100);
        }
        let stopped = w.term(2).at();
        if deleted_first {
            asked_to_count(&mut w, 1);
            begins(w.later(10), 3);
        }
        w.list().later(500).exits(2, CODE_0);
        if deleted_first {
            kills_pause(counts(&mut w, Vec::new(), counters(0)));
            assert!(!asked(&mut w).iter().any(|one| matches!(one, Asked::Count(_))));
        }
        blind(&mut w, TrafficBlindness::NoProcess).settles(1);
        let traffic = w.end().traffic.as_ref().expect("counted");
        assert_eq!((traffic.stopped.unwrap().boot, traffic.not_visible), (stopped, None));
        assert_eq!(traffic.counts.len(), usize::from(!deleted_first));
    }
}

/// A container that waits to be restarted has ended: its clients' refusals are of no deletion.
#[test]
fn counting_starts_over_with_a_deletion_that_follows_a_stop() {
    for is_over in [true, false] {
        let mut w = World::running(1);
        begins(w.later(100).term(1), 3);
        if is_over {
            w.later(100).exits(1, CODE_0);
        }
        asked(&mut w);
        let asked_again = asked(w.ticks(if is_over { 60 } else { 10 }).delete(1).applied(1)).len();
        assert_eq!(asked_again, usize::from(is_over), "once, unless the stop is still under way");
    }
}

/// Attaching the programs may take longer than the kubelet: the record of the stop signal comes before the answer, or
/// after it.
#[test]
fn all_that_is_counted_is_after_a_stop_signal_that_comes_while_counting_begins() {
    for is_late in [false, true] {
        let mut w = World::running(1);
        asked_to_count(w.delete(1), 1);
        let at = ms(w.later(10).now + 5);
        if is_late {
            began(&mut w, at, counters(1)).term(1);
        } else {
            assert_eq!(asked(w.term(1)), []);
            began(&mut w, at, counters(1));
        }
        assert_eq!(asked(&mut w), [], "the beginning is after the signal");
        // The programs have seen the second signal only.
        let seen = [(E::Opened, 1), (E::OpenedAfterStop, 2), (E::Refused, 4), (E::CutIdle, 8)];
        let now = w.later(10).term(1).now;
        let seen = seen.map(|(event, count)| client(event, count, now, now + count));
        counts(&mut w, seen.to_vec(), counters(0));
        let traffic = ends(w.later(500)).traffic.expect("counted");
        let all = traffic.counts.iter().map(|one| (one.event, one.count, one.last.boot));
        let expected =
            [(E::OpenedAfterStop, 3, 2), (E::RefusedAfterStop, 4, 4), (E::CutIdle, 8, 8)];
        assert_eq!(
            all.collect::<Vec<_>>(),
            expected.map(|(event, n, last)| (event, n, ms(now + last)))
        );
        assert_eq!((traffic.at_begin.is_some(), traffic.at_stop), (true, None));
    }
}

#[test]
fn without_a_request_counting_begins_with_the_stop_signal() {
    let mut w = World::running(1);
    asked_to_count(w.later(100).term(1), 1);
    // It ignores that, and lives.
    assert_eq!(asked(w.ticks(119)), []);
    assert_eq!(asked(w.ticks(3)), [Asked::Forget(ids(1).1)]);
}

const CLOSED: E = E::ListenerClosed;
const REFUSED: E = E::RefusedAfterStop;

/// What was counted, at least until 700 ms after the stop signal.
fn counted(counted: Vec<TrafficCount>) -> PodTermination {
    let mut w = stopping();
    let last = counted.iter().map(|one| one.last.0 / 1_000_000).max();
    w.now = last.unwrap_or_default().max(3_600) + 100;
    let (first, last) = (counted.first().cloned(), last.map(ms));
    counts(&mut w, counted, counters(12));
    let report = ends(&mut w);
    assert_eq!(report.containers[0].verdict, Verdict::Graceful, "traffic changes no verdict");
    let at = |kind| report.milestone(kind).map(|one| one.at.boot);
    let is = |event| first.as_ref().filter(|one| one.event == event);
    assert_eq!(at(MilestoneKind::ListenerClosed), is(CLOSED).map(|one| one.first));
    let opened = is(E::OpenedAfterStop).and(last);
    assert_eq!(at(MilestoneKind::LastNewConnection), opened);
    report
}

#[test]
fn findings_of_a_pods_connections() {
    let node = |count| many(TrafficPeer::Node, REFUSED, count, 3_200, 3_300);
    let rows: [(Vec<TrafficCount>, &[FindingKind]); 6] = [
        (vec![], &[]),
        (vec![client(E::CutIdle, 12, 3_500, 3_500)], &[]),
        (vec![client(E::Cut, 1, 3_500, 3_500)], &[FindingKind::ConnectionsCut]),
        // The node's own probes.
        (vec![client(CLOSED, 1, 3_010, 3_010), node(3)], &[]),
        // A second is no time.
        (vec![client(E::OpenedAfterStop, 4, 3_050, 3_900)], &[]),
        (vec![client(E::OpenedAfterStop, 4, 3_050, 6_400)], &[FindingKind::LateConnections]),
    ];
    for (row, expected) in rows {
        assert_eq!(kinds(&counted(row)), expected);
    }
}

/// The listener closes 10 ms after the stop signal, or before it, in a preStop hook: each time is after what was before it.
#[test]
fn what_findings_of_connections_say() {
    let cut = [client(E::CutIdle, 9, 3_500, 3_500), client(E::Cut, 3, 3_500, 3_500)];
    let node = many(TrafficPeer::Node, REFUSED, 1, 3_200, 3_200);
    let refused =
        |closed| vec![client(CLOSED, 1, closed, closed), client(REFUSED, 5, 3_100, 3_600)];
    let rows: [(Vec<TrafficCount>, &[&str]); 3] = [
        (
            cut.to_vec(),
            &[
                "The exit of the process cut 3 connection(s) in the middle of a request (the client had sent data last); \
               9 more were idle.",
            ],
        ),
        (
            [refused(3_010), vec![node]].concat(),
            &[
                "5 (and 1 from the node's own addresses) new connection(s) were refused, the first 100 ms and the last \
                 600 ms after the stop signal.",
                "The process closed its listener 10 ms after the stop signal, while clients still connected: the last was \
                 refused 590 ms later.",
            ],
        ),
        (
            refused(2_400),
            &[
                "5 new connection(s) were refused, the first 100 ms and the last 600 ms after the stop signal.",
                "The process closed its listener 390 ms after the deletion request, while clients still connected: the last \
                 was refused 1.2 s later.",
            ],
        ),
    ];
    for (row, expected) in rows {
        let report = counted(row);
        let details = report.findings.iter().map(|finding| finding.detail.as_str());
        assert_eq!(details.collect::<Vec<_>>(), expected);
    }
}

/// A client that connects to a pod that never listens is refused, whether the pod terminates or not. Where the stop
/// signal was before counting began, what was open before is not known.
#[test]
fn a_pod_that_never_listened_refuses_nobody() {
    let opened = || Some(client(E::Opened, 1, 3_005, 3_005));
    for (network, more, is_stopped, is_found) in [
        (none_listens(), None, false, false),
        (counters(0), None, false, true),
        (none_listens(), opened(), false, true),
        (none_listens(), None, true, true),
    ] {
        let mut w = World::running(1);
        w.now = 3_000;
        w.delete(1);
        if is_stopped {
            w.term(1).later(10);
        }
        begins_with(&mut w, network.clone()).later(5).term(1).later(700);
        let refused = client(E::RefusedAfterStop, 1, 3_100, 3_100);
        counts(&mut w, [refused].into_iter().chain(more).collect(), network);
        assert_eq!(kinds(&ends(&mut w)).len(), usize::from(is_found));
    }
}

/// The hook closes the listener before counting begins: on a late watch, or where the agent starts in between.
#[test]
fn a_listener_that_a_hook_may_have_closed_is_not_called_none() {
    let mut w = World::running(1);
    w.now = 3_000;
    w.status_of(1).pre_stop = exec_hook("sh");
    w.delete(1).later(5).enters(1, 700, "sh").later(5);
    begins_with(&mut w, none_listens())
        .later(80)
        .leaves(1, 700, "sh", 0)
        .later(10)
        .term(1)
        .later(700);
    counts(&mut w, vec![client(E::Refused, 1, 3_050, 3_050)], none_listens());
    let report = ends(&mut w);
    assert!(report.milestone(MilestoneKind::PreStopBegan).is_some());
    assert_eq!(kinds(&report), [FindingKind::ConnectionsRefused]);
}

#[test]
fn a_job_has_no_clients_to_lose() {
    let mut w = stopping();
    counts(w.later(500), vec![client(E::Cut, 3, 3_500, 3_500)], counters(9));
    let workload = Some(Workload { kind: "Job".into(), name: "import".into() });
    w.pod(1).workload = workload.clone().map(Box::new);
    let report = ends(w.applied(1));
    assert_eq!((kinds(&report), report.workload), (vec![], workload));
}

#[test]
fn what_is_not_visible_is_not_zero() {
    let mut w = World::running(1);
    blind(w.delete(1), TrafficBlindness::HostNetwork).later(100).term(1);
    asked_to_count(&mut w, 1);
    let traffic = ends(&mut w).traffic.unwrap();
    assert_eq!(traffic.not_visible, Some(TrafficBlindness::HostNetwork));
    assert_eq!(traffic.at_begin, None);
    let mut w = World::running(1);
    w.delete(1).exits(1, CODE_0).finish(1).ticks(5);
    assert_eq!(w.end().traffic, None, "nobody answered");
}

/// Shown by the runtime handler, or only by the shim.
#[test]
fn the_sandbox_of_a_runtime_with_a_stack_of_its_own_is_not_asked_about() {
    for (handler, shim) in [("runsc", "io.containerd.runc.v2"), ("other", "io.containerd.kata.v2")]
    {
        let mut w = World::running(1);
        w.sandboxes.get_mut(&1).unwrap().handler = handler.into();
        w.list().cri(CriEvent::RuntimeType { container: ids(1).2, runtime: shim.into() });
        assert_eq!(asked(w.delete(1)), [], "{handler}");
        let not_visible = ends(&mut w).traffic.and_then(|traffic| traffic.not_visible);
        assert_eq!(not_visible, Some(TrafficBlindness::OwnStack), "{handler}");
    }
}

#[test]
fn answers_about_others_and_out_of_order_change_nothing() {
    let mut w = stopping();
    counts(w.later(100), vec![client(E::Cut, 1, 3_100, 3_100)], None);
    let reading = TrafficReading { at: BootTime(1), ..TrafficReading::default() };
    blind(w.traffic(TrafficFact::Counted { reading }), TrafficBlindness::NoProcess);
    let fact = TrafficFact::NotVisible { reason: TrafficBlindness::MapFull };
    w.say(Input::Traffic(TrafficEvent { sandbox: ids(9).1, fact }));
    let traffic: Traffic = ends(&mut w).traffic.unwrap();
    assert_eq!(traffic.counts.len(), 1);
    assert_eq!(traffic.at_begin.map(|open| open.established), Some(12));
}
