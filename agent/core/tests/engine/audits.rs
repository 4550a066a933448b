//! When the main process of a running container is read, and which answers count.

use coroner_core::{report::StopResponse, testkit::*};
use std::collections::BTreeSet;

/// What was requested since the last call, by container.
fn requested(w: &mut World) -> Vec<ReadStopState> {
    let (looks, rest) =
        w.requests.drain(..).partition(|one| matches!(one, Request::ReadStopState(_)));
    w.requests = rest;
    let looks: Vec<Request> = looks;
    let looks = looks.into_iter().filter_map(|one| match one {
        Request::ReadStopState(look) => Some(look),
        _ => None,
    });
    looks.collect()
}

/// PID 1 of container N, without a handler.
fn state() -> StopState {
    let (ns_pid, waits) = (Some(1), Some(false));
    StopState { comm: "app".into(), ns_pid, waits, settled: true, ..StopState::default() }
}

fn answers(w: &mut World, n: u64, state: Option<StopState>) -> &mut World {
    let (looked, unread) = (w.at(), vec!["/proc/15/status: denied".to_owned()]);
    let (container, main, signal) = (ids(n).2, init(n).tgid, 15);
    w.say(Input::StopState(StopStateReport { container, main, signal, looked, state, unread }))
}

/// The image states no stop signal.
fn image_is_read(w: &mut World) -> &mut World {
    w.cri(CriEvent::Image { container: ids(1).2, image: "i".into(), stop_signal: None })
}

fn found(w: &World, n: u64) -> Option<(StopResponse, bool)> {
    w.audits.get(&ids(n).2).map(|audit| (audit.response, audit.certain))
}

const IGNORES: Option<(StopResponse, bool)> = Some((StopResponse::Ignores, true));
const UNKNOWN: Option<(StopResponse, bool)> = Some((StopResponse::Unknown, false));

/// A container that is ready, 20 s old, and was requested.
fn ready() -> World {
    let mut w = World::named(|status| status.ready = true);
    image_is_read(&mut w).ticks(20);
    assert_eq!(requested(&mut w).len(), 1, "{w}");
    w
}

#[test]
fn it_is_read_when_it_is_ready_and_old_enough_and_again() {
    let mut w = World::named(|_| {});
    image_is_read(&mut w).ticks(100);
    assert_eq!(requested(&mut w), [], "it is not ready");
    w.status_of(1).ready = true;
    w.applied(1).ticks(2);
    let look = || ReadStopState { container: ids(1).2, main: init(1).tgid, signal: 15 };
    assert_eq!(requested(&mut w), [look()], "at once: it is old enough");
    answers(&mut w, 1, Some(state())).ticks(200);
    assert_eq!((found(&w, 1), requested(&mut w).len()), (IGNORES, 0));
    assert_eq!(w.audits[&ids(1).2].read.boot, ms(w.now - 200_000));
    w.ticks(110);
    assert_eq!(requested(&mut w), [look()]);
    w.status_of(1).ready = false;
    w.applied(1).ticks(1).status_of(1).ready = true;
    w.applied(1).ticks(2);
    assert_eq!(requested(&mut w), [], "not over and over");
    w.ticks(60);
    assert_eq!(requested(&mut w).len(), 1, "it becomes ready again");
    w.stops(1).list().ticks(1);
    assert_eq!(found(&w, 1), None, "it has ended");
}

#[test]
fn one_that_never_becomes_ready_is_read_late_and_one_that_is_deleted_is_not() {
    let mut w = World::named(|_| {});
    image_is_read(&mut w);
    w.ticks(310);
    assert_eq!(requested(&mut w).len(), 1);
    w.delete(1).ticks(310);
    assert_eq!(requested(&mut w), []);
}

#[test]
fn answers_about_another_process_do_not_count() {
    for (state, expected) in [(Some(state()), IGNORES), (None, UNKNOWN)] {
        let mut w = ready();
        answers(&mut w, 1, state.clone());
        assert_eq!(found(&w, 1), expected, "{state:?}");
    }
    let mut w = ready();
    w.exits(1, CODE_0);
    answers(&mut w, 1, Some(state()));
    assert_eq!(found(&w, 1), None, "it has exited");
    let mut w = ready();
    w.cri(CriEvent::StopSignal { container: ids(1).2, signal: 3 });
    answers(&mut w, 1, Some(state())).ticks(2);
    assert_eq!(found(&w, 1), None, "of another signal");
    assert_eq!(requested(&mut w)[0].signal, 3);
    let mut w = ready();
    w.delete(1);
    answers(&mut w, 1, Some(state()));
    assert_eq!(found(&w, 1), None, "it may be its shutdown");
}

/// An agent that starts reads processes and images at the same time.
#[test]
fn while_the_image_is_not_read_no_answer_is_certain() {
    for (stop_signal, expected) in [(None, 15), (Some(3), 3)] {
        let mut w = World::named(|status| status.ready = true);
        w.ticks(60);
        assert_eq!(requested(&mut w), [], "the runtime has time to answer");
        w.ticks(20);
        assert_eq!(requested(&mut w).len(), 1);
        answers(&mut w, 1, Some(state()));
        assert_eq!(found(&w, 1), Some((StopResponse::Ignores, false)));
        w.cri(CriEvent::Image { container: ids(1).2, image: "i".into(), stop_signal }).ticks(1);
        assert_eq!(requested(&mut w)[0].signal, expected, "at once");
    }
}

/// The start time is that of the exec; the clock of /proc has ticks.
#[test]
fn a_process_that_started_later_is_another_one() {
    const STARTED: u64 = 5_000_000_007;
    for (started, expected) in [(5_000_000_000, IGNORES), (5_010_000_000, UNKNOWN)] {
        let mut w = World::in_sync();
        let main = Task { started: Some(STARTED), ..init(1) };
        w.cgroups_come(1).kernel(exec(Cgroups::of(1).own, main)).list().applied(1);
        image_is_read(&mut w).ticks(310);
        assert_eq!(requested(&mut w).len(), 1);
        answers(&mut w, 1, Some(StopState { started, ..state() }));
        assert_eq!(found(&w, 1), expected);
    }
    // Of one that is older than the agent, the first look shows it.
    let mut w = ready();
    answers(&mut w, 1, Some(StopState { started: STARTED, ..state() }));
    assert_eq!(found(&w, 1), IGNORES);
    answers(&mut w, 1, Some(StopState { started: 2 * STARTED, ..state() }));
    assert_eq!(found(&w, 1), UNKNOWN);
}

#[test]
fn whose_stop_signal_counts() {
    let image =
        |stop_signal| CriEvent::Image { container: ids(1).2, image: "i".into(), stop_signal };
    let runtime = || CriEvent::StopSignal { container: ids(1).2, signal: 10 };
    let table: [(Option<u8>, Vec<CriEvent>, u8); 4] = [
        (None, vec![image(None)], 15),
        (None, vec![image(Some(3))], 3),
        (Some(1), vec![image(Some(3))], 1),
        (Some(1), vec![image(Some(3)), runtime()], 10),
    ];
    for (spec, events, expected) in table {
        let mut w = World::named(|status| (status.ready, status.stop_signal) = (true, spec));
        events.into_iter().for_each(|event| _ = w.cri(event));
        w.ticks(20);
        assert_eq!(requested(&mut w)[0].signal, expected);
        let traced = |one: &Request| matches!(one, Request::TraceSignal { signal, .. } if *signal == expected);
        assert_eq!(w.requests.iter().any(traced), expected == 10, "the others are always traced");
    }
}

#[test]
fn a_container_whose_processes_the_host_does_not_see_is_unknown() {
    let mut w = World::in_sync();
    w.runs(1).applied(1).sandboxes.get_mut(&1).unwrap().handler = "gvisor".into();
    w.list().ticks(400);
    assert_eq!((requested(&mut w).len(), found(&w, 1)), (0, UNKNOWN));
    assert!(w.audits[&ids(1).2].why.contains("gVisor"), "{:?}", w.audits);
}

#[test]
fn five_hundred_containers_never_come_in_one_burst() {
    let mut w = World::in_sync();
    for n in 1..=500 {
        w.cgroups_come(n).execs(n);
    }
    w.list();
    let mut seen = BTreeSet::new();
    for _ in 0..400 {
        let looks = requested(w.ticks(1));
        assert!(looks.len() <= 16, "{}", looks.len());
        seen.extend(looks.into_iter().map(|look| look.container));
    }
    assert_eq!(seen.len(), 500);
}
