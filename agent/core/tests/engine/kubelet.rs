//! The kubelet's own account: bounds of what is kept, and the lookup of Events.

use super::{
    stops::{dump, live, next, pod_with, replaced, shows_replacement, taken},
    world::{
        CODE_0, Cgroups, World, container, ids, is_replaced, object, runc, running, sandbox, shim,
        shows_its_end, side, sidecar, signal,
    },
};
use coroner_core::{
    ids::{ContainerId, PodUid},
    input::{
        ApiContainer, ApiEvent, ApiPod, ContainerState, Input, KernelFact, KubeletEntry,
        KubeletEvent, KubeletKillReason, KubeletLogGap, KubeletLogOrigin, KubeletProbe,
        KubeletStatement as Says,
    },
    kubelet::KubeletState,
    output::Request,
    time::{BootTime, WallTime},
    types::{Cause, Certainty, Source, StageKind},
};
use std::time::Duration;

fn entry(at: BootTime, says: Says, container: &str) -> KubeletEntry {
    let mut entry = KubeletEntry::new(at, 0, WallTime(0), says);
    entry.container_id = Some(ContainerId::new(container));
    entry
}

fn said(state: &mut KubeletState, at: u64, says: Says, container: &str) {
    state.apply(KubeletEvent::Entry(Box::new(entry(BootTime(at), says, container))));
}

#[test]
fn what_is_kept_is_bounded_and_the_newest_stays() {
    let mut state = KubeletState::default();
    for at in 0..1_000 {
        said(&mut state, 2 * at, Says::KillBegin, "one");
        said(&mut state, 2 * at + 1, Says::KillEnd, "one");
    }
    assert_eq!(state.of("one").count(), 96);
    assert_eq!(state.of("one").next_back().map(|last| last.entry.time), Some(BootTime(1_999)));
    assert_eq!(state.len(), 96);
    for at in 0..100_000 {
        said(&mut state, 10_000 + at, Says::KillBegin, &format!("container-{at}"));
    }
    assert_eq!(state.len(), 8_192);
    assert_eq!(state.of("one").count(), 0, "the oldest went");
    assert_eq!(state.of("container-99999").count(), 1);
}

#[test]
fn repetitions_are_counted_and_take_no_room() {
    let mut state = KubeletState::default();
    for at in 0..10_000 {
        said(&mut state, at, Says::ProbeFailed, "a");
    }
    // Most of a log is about pods that start or keep running.
    said(&mut state, 10_000, Says::SyncBegin, "a");
    let only = state.of("a").next().expect("a statement");
    assert_eq!((state.len(), only.count, only.last), (1, 10_000, BootTime(9_999)));
}

#[test]
fn a_gap_makes_a_log_incomplete() {
    let mut state = KubeletState::default();
    let whole = |state: &KubeletState| state.is_complete(BootTime(10), BootTime(20), 2);
    assert!(!whole(&state), "it is not read");
    state.apply(KubeletEvent::Reading { origin: KubeletLogOrigin::File, since: BootTime(5) });
    state.apply(KubeletEvent::Verbosity { at_least: 2 });
    said(&mut state, 20, Says::KillBegin, "a");
    assert!(!whole(&state), "a later line may still be about this time");
    said(&mut state, 21, Says::KillBegin, "a");
    assert!(whole(&state));
    assert!(!state.is_complete(BootTime(10), BootTime(20), 3), "its verbosity is not known");
    let gap = |from, to| KubeletEvent::Gap {
        from: BootTime(from),
        to: BootTime(to),
        cause: KubeletLogGap::Damaged,
        lines: 1,
    };
    state.apply(gap(21, 22));
    assert!(whole(&state));
    state.apply(gap(19, 20));
    assert!(!whole(&state));
}

#[test]
fn in_a_gap_the_kubelet_may_have_been_restarted_with_another_verbosity() {
    let mut state = KubeletState::default();
    let whole = |state: &KubeletState, from, to, level| {
        state.is_complete(BootTime(from), BootTime(to), level)
    };
    state.apply(KubeletEvent::Reading { origin: KubeletLogOrigin::File, since: BootTime(5) });
    for at_least in [2, 4] {
        state.apply(KubeletEvent::Verbosity { at_least });
    }
    // Even of a moment.
    for to in [40, 50] {
        let cause = KubeletLogGap::RateLimit;
        state.apply(KubeletEvent::Gap { from: BootTime(40), to: BootTime(to), cause, lines: 1 });
    }
    said(&mut state, 90, Says::KillBegin, "a");
    assert!(whole(&state, 10, 30, 4) && state.level(BootTime(30)) == Some(4));
    assert!(!whole(&state, 60, 70, 2) && state.level(BootTime(70)).is_none());
    state.apply(KubeletEvent::Verbosity { at_least: 3 });
    assert!(whole(&state, 60, 70, 3) && !whole(&state, 60, 70, 4));
    assert!(!whole(&state, 10, 30, 3), "a line after the gap shows nothing of the time before");
}

#[test]
fn what_is_dropped_is_not_claimed_to_be_whole() {
    let begun = || {
        let mut state = KubeletState::default();
        state.apply(KubeletEvent::Reading { origin: KubeletLogOrigin::File, since: BootTime(5) });
        state.apply(KubeletEvent::Verbosity { at_least: 2 });
        said(&mut state, 1_000_000, Says::PlegEvent, "z");
        state
    };
    let whole = |state: &KubeletState, from| state.is_complete(BootTime(from), BootTime(900), 2);
    // Of one container 96 statements are kept, of all 8,192; of what says no stop, nothing is claimed.
    for (says, same, count, wanted) in [
        (Says::KillBegin, true, 97, [false, true]),
        (Says::CgroupsRemoved, true, 97, [true, true]),
        (Says::KillBegin, false, 8_193, [false, true]),
    ] {
        let mut state = begun();
        assert!(whole(&state, 10));
        for at in 0..count {
            said(&mut state, 20, says, &if same { "a".into() } else { format!("{at}") });
        }
        assert_eq!([whole(&state, 19), whole(&state, 21)], wanted, "{says:?}");
    }
    let gap = |from: u64, to: u64| KubeletEvent::Gap {
        from: BootTime(from),
        to: BootTime(to),
        cause: KubeletLogGap::Budget,
        lines: 1,
    };
    // 64 gaps are kept; those that touch are one.
    for (step, wanted) in [(2, false), (1, true)] {
        let mut state = begun();
        (0..65).for_each(|at| state.apply(gap(1_000 + at * step, 1_001 + at * step)));
        assert_eq!(whole(&state, 10), wanted, "{step}");
    }
}

#[test]
fn a_log_that_is_read_again_closes_the_gap_where_reading_begins() {
    for (since, wanted) in [(15, true), (30, false)] {
        let reading = |since| KubeletEvent::Reading {
            origin: KubeletLogOrigin::File,
            since: BootTime(since),
        };
        let mut state = KubeletState::default();
        state.apply(reading(5));
        said(&mut state, 20, Says::KillBegin, "a");
        state.apply(KubeletEvent::Unreadable { error: String::new() });
        state.apply(reading(since));
        state.apply(KubeletEvent::Verbosity { at_least: 2 });
        said(&mut state, 50, Says::KillBegin, "a");
        assert_eq!(state.is_complete(BootTime(10), BootTime(25), 2), wanted, "{since}");
    }
}

#[test]
fn the_verbosity_is_one_of_a_run_of_the_kubelet() {
    let read = KubeletEvent::Reading { origin: KubeletLogOrigin::File, since: BootTime(5) };
    let mut state = KubeletState::default();
    state.apply(read.clone());
    // Of --vmodule.
    state.apply(KubeletEvent::Verbosity { at_least: 4 });
    said(&mut state, 50, Says::KillBegin, "a");
    let whole = |state: &KubeletState, from| state.is_complete(BootTime(from), BootTime(40), 2);
    assert!(!whole(&state, 10) && state.level(BootTime(40)) == Some(4));
    state.apply(KubeletEvent::Verbosity { at_least: 2 });
    assert!(whole(&state, 10));
    for (at, begins) in [(20, Says::KubeletVersion), (21, Says::KubeletStarted)] {
        state.apply(KubeletEvent::Verbosity { at_least: 2 });
        said(&mut state, at, begins, "");
        assert!(!whole(&state, 30) && state.level(BootTime(40)).is_none(), "{begins:?}");
    }
    state.apply(KubeletEvent::Verbosity { at_least: 2 });
    assert!(whole(&state, 21) && !whole(&state, 20), "the run before may have had another");
    state.apply(read);
    assert!(!whole(&state, 21), "it may have been restarted in between");
}

#[test]
fn how_an_end_was_noticed_may_need_a_higher_verbosity() {
    for (level, is_whole, wanted) in
        [(2, true, true), (3, true, true), (4, true, false), (2, false, false)]
    {
        let mut state = KubeletState::default();
        let since = BootTime(5);
        state.apply(KubeletEvent::Reading { origin: KubeletLogOrigin::File, since });
        if !is_whole {
            let (from, to, cause) = (BootTime(40), BootTime(60), KubeletLogGap::RateLimit);
            state.apply(KubeletEvent::Gap { from, to, lines: 1, cause });
        }
        state.apply(KubeletEvent::Verbosity { at_least: level });
        said(&mut state, 70, Says::Evicted, "a");
        let all: Vec<_> = state.of("a").map(|said| (said, None)).collect();
        let lane = state.lane(&all, false, BootTime(50), BootTime(80));
        assert_eq!(lane.not_logged.contains(&StageKind::Noticed), wanted, "{level}: {lane:?}");
    }
}

#[test]
fn lookups_are_bounded() {
    let mut state = KubeletState::default();
    let uid = |number: u64| PodUid::new(format!("pod-{number}"));
    for number in 0..5_000 {
        let (pod, asked) = (uid(number), BootTime(number));
        state.apply(KubeletEvent::Events { pod, asked, entries: Some(Vec::new()) });
        let pods = vec![(uid(number), true)];
        state.apply(KubeletEvent::Known { asked, pods });
    }
    let kept = (0..5_000).filter(|number| state.lookup(&uid(*number), BootTime(0)).is_some());
    assert_eq!(kept.count(), 1_024);
    assert_eq!(state.lookup(&uid(4_999), BootTime(0)), Some(true));
    assert_eq!(state.lookup(&uid(4_999), BootTime(5_000)), None, "that was before");
    let known = (0..5_000).filter(|number| state.knows(&uid(*number)).is_some());
    assert_eq!(known.count(), 1_024);
}

#[test]
fn a_lookup_that_failed_does_not_hide_one_that_was_answered() {
    let pod = PodUid::new("p");
    let listed = |asked| (asked, Some(Vec::new()));
    for answers in [[listed(5), (5, None)], [(5, None), listed(5)], [listed(5), (7, None)]] {
        let mut state = KubeletState::default();
        for (asked, entries) in answers {
            let asked = BootTime(asked);
            state.apply(KubeletEvent::Events { pod: pod.clone(), asked, entries });
        }
        assert_eq!(state.lookup(&pod, BootTime(4)), Some(true));
        assert_eq!(state.lookup(&pod, BootTime(8)), None);
    }
    let mut state = KubeletState::default();
    for (asked, entries) in [listed(5), (7, None)] {
        state.apply(KubeletEvent::Events { pod: pod.clone(), asked: BootTime(asked), entries });
    }
    assert_eq!(state.lookup(&pod, BootTime(6)), Some(false), "that list was before");
}

/// A container with a tcpSocket probe that was stopped, and started again.
fn stopped(lists: bool) -> (World, ApiPod) {
    let mut w = running(1);
    w.say(Input::Kubelet(KubeletEvent::Lookup { lists }));
    let pod = pod_with(&w, |container| container.liveness = live(None));
    w.api(ApiEvent::Applied(pod.clone()));
    w.later(60_000).term(1, true);
    taken(&mut w, 15);
    w.later(50).exits(1, CODE_0);
    (w, pod)
}

fn lists(w: &World) -> usize {
    w.requests.iter().filter(|one| matches!(one, Request::ListEvents(_))).count()
}

#[test]
fn the_events_of_a_stopped_container_are_listed_once() {
    for (answers, expected) in [
        (Some(Some(KubeletKillReason::LivenessProbe)), (Cause::Liveness, Source::Kubelet)),
        // They say nothing of it; they could not be listed; nobody answers.
        (Some(None), (Cause::Liveness, Source::Inferred)),
        (None, (Cause::Liveness, Source::Inferred)),
    ] {
        let (mut w, pod) = stopped(true);
        let ended = w.at();
        replaced_until_asked(&mut w, &pod);
        assert_eq!(lists(&w), 1, "\n{}", dump(&w));
        assert!(w.died.is_empty(), "it waits for the answer");
        answer(&mut w, ended, answers);
        w.ticks(120);
        let death = &w.died[0];
        assert_eq!((death.cause, death.cause_source), expected, "\n{}", dump(&w));
        let unlisted = death.cause_message.contains("could not be listed");
        assert_eq!(unlisted, answers.is_none(), "\n{}", dump(&w));
        assert_eq!(lists(&w), 1, "once for each end");
    }
}

/// The Events of the pod, with this reason of a stop; `None`: they could not be listed.
fn answer(w: &mut World, ended: BootTime, reason: Option<Option<KubeletKillReason>>) {
    let of = |reason| {
        let mut event = entry(ended, Says::EventKilling, ids(1).2.as_str());
        (event.reason, event.container_id) = (Some(reason), None);
        (event.pod, event.container) = (Some(ids(1).0), Some("c".into()));
        event
    };
    let (asked, entries) = (w.at(), reason.map(|reason| reason.map(of).into_iter().collect()));
    w.say(Input::Kubelet(KubeletEvent::Events { pod: ids(1).0, asked, entries }));
}

#[test]
fn the_end_of_a_pod_waits_for_the_events_of_a_stop_shortly_before() {
    let (mut w, mut pod) = stopped(true);
    let ended = w.at();
    shows_replacement(&mut w, pod.clone());
    let at = w.at();
    let containers = std::mem::take(&mut pod.containers);
    let mut gone = object(1, true, at);
    gone.containers = containers;
    is_replaced(gone.containers.get_mut("c").unwrap(), 1);
    w.api(ApiEvent::Applied(gone.clone()));
    let mut last = next(&w);
    last.state = ContainerState::Exited;
    w.later(300).lists(vec![sandbox(1, false)], vec![container(1, ContainerState::Exited), last]);
    w.api(ApiEvent::Deleted(gone));
    for _ in 0..120 {
        w.ticks(u64::from(lists(&w) == 0));
    }
    assert_eq!((lists(&w), w.died.len(), w.ended.len()), (1, 0, 0), "\n{}", dump(&w));
    answer(&mut w, ended, Some(Some(KubeletKillReason::LivenessProbe)));
    w.ticks(120);
    let death = &w.died[0];
    assert_eq!((death.cause, death.cause_source), (Cause::Liveness, Source::Kubelet));
    assert_eq!((lists(&w), w.ended.len()), (1, 1), "\n{}", dump(&w));
}

/// Until the engine has asked.
fn replaced_until_asked(w: &mut World, pod: &ApiPod) {
    shows_replacement(w, pod.clone());
    for _ in 0..120 {
        if lists(w) > 0 {
            return;
        }
        w.ticks(1);
    }
}

#[test]
fn an_answer_that_never_comes_holds_no_report_up_and_off_asks_nothing() {
    for is_on in [true, false] {
        let (mut w, pod) = stopped(is_on);
        replaced(&mut w, pod);
        assert_eq!(lists(&w), usize::from(is_on), "\n{}", dump(&w));
        let death = &w.died[0];
        let found = (death.cause, death.cause_certainty);
        assert_eq!(found, (Cause::Liveness, Certainty::Inferred), "\n{}", dump(&w));
    }
}

/// What the kubelet posted about the container of a pod that is not restarted: each at this many ms after the stop
/// began, where a whole second begins.
type Posted = (i64, Says, Option<KubeletProbe>, u32);

fn killing(at: i64) -> Posted {
    (at, Says::EventKilling, None, 1)
}

/// For the third time, which is the threshold.
fn unhealthy(at: i64, probe: KubeletProbe) -> Posted {
    times(3, at, probe)
}

fn times(count: u32, at: i64, probe: KubeletProbe) -> Posted {
    (at, Says::EventUnhealthy, Some(probe), count)
}

/// restartPolicy Never: the container and its sandbox are stopped together, and the phase is then this one.
fn ends_with_events(policy: &str, phase: &str, container: &str, posted: &[Posted]) -> World {
    let mut w = running(1);
    w.say(Input::Kubelet(KubeletEvent::Lookup { lists: true }));
    let mut pod = pod_with(&w, |container| container.liveness = live(None));
    (pod.restart_policy, pod.sandbox_ready) = (policy.into(), Some(true));
    w.api(ApiEvent::Applied(pod.clone()));
    w.later(60_000).term(1, true);
    let began = w.at();
    w.later(3_000).exits(1, CODE_0);
    w.cgroups_go(1);
    w.stopped(1, 0);
    shows_its_end(pod.containers.get_mut("c").unwrap(), 1);
    (pod.phase, pod.sandbox_ready) = (phase.into(), Some(false));
    w.later(100).api(ApiEvent::Applied(pod));
    for _ in 0..120 {
        w.ticks(u64::from(lists(&w) == 0 && w.ended.is_empty()));
    }
    let of = |&(ms, says, probe, count): &Posted| {
        let second = BootTime(began.0.checked_add_signed(1_000_000 * ms).unwrap());
        let mut event = entry(second + Duration::from_millis(500), says, "");
        event.uncertainty_ns = 500_000_000;
        (event.pod, event.container_id) = (Some(ids(1).0), None);
        (event.container, event.probe) = (Some(container.into()), probe);
        event.posted = Some(count);
        event.reason = probe.is_none().then_some(KubeletKillReason::Stopping);
        event
    };
    let (asked, entries) = (w.at(), Some(posted.iter().map(of).collect()));
    if lists(&w) > 0 {
        w.say(Input::Kubelet(KubeletEvent::Events { pod: ids(1).0, asked, entries }));
    }
    w.ticks(120);
    w
}

#[test]
fn an_event_of_a_failed_probe_proves_the_stop_of_a_pod_that_is_not_restarted() {
    use KubeletProbe::{Liveness, Readiness, Startup};
    let before = [unhealthy(-1_000, Liveness), killing(0)];
    let told = |posted: &[Posted]| {
        let w = ends_with_events("Never", "Failed", "c", posted);
        assert_eq!(lists(&w), 1, "\n{}", dump(&w));
        let (end, death) = (&w.ended[0], &w.died[0]);
        assert_eq!((end.cause, death.cause), (Cause::Liveness, Cause::Liveness), "\n{}", dump(&w));
        assert_eq!(end.cause_certainty, death.cause_certainty, "\n{}", dump(&w));
        (end.cause_certainty, end.cause_source)
    };
    let proven = (Certainty::Proven, Source::Kubelet);
    let inferred = (Certainty::Inferred, Source::Inferred);
    for (posted, expected, why) in [
        (&before[..], proven, "just before"),
        (
            &[killing(0), unhealthy(0, Liveness)],
            inferred,
            "in the same second, perhaps because of the stop",
        ),
        (
            &[unhealthy(-9_000, Liveness), unhealthy(0, Liveness), killing(0)],
            proven,
            "in the same second, and before",
        ),
        (
            &[times(2, -9_000, Liveness), times(2, 0, Liveness), killing(0)],
            inferred,
            "in the same second, and too few before",
        ),
        (&[times(1, -1_000, Liveness), killing(0)], inferred, "one failed run is too few"),
        (
            &[unhealthy(-9_000, Liveness), unhealthy(-1_000, Liveness), killing(0)],
            proven,
            "first, last",
        ),
        (
            &[unhealthy(-2_000, Liveness), killing(-1_000)],
            proven,
            "its preStop hook came before the signal",
        ),
        (
            &[unhealthy(0, Readiness), unhealthy(-1_000, Liveness), killing(0)],
            proven,
            "and readiness",
        ),
        (&[unhealthy(-1_000, Readiness), killing(0)], inferred, "readiness stops nothing"),
        (&[unhealthy(-1_000, Startup), killing(0)], inferred, "it has no startup probe"),
        (&[unhealthy(1_000, Liveness), killing(0)], inferred, "because it is stopping"),
        (
            &[unhealthy(-1_000, Liveness), killing(-2_000)],
            inferred,
            "the same, in an unseen preStop hook",
        ),
        (
            &[unhealthy(-1_000, Liveness), unhealthy(1_000, Liveness), killing(0)],
            inferred,
            "it ran on",
        ),
        (&[unhealthy(-60_000, Liveness), killing(0)], inferred, "it had recovered"),
        (&[unhealthy(-1_000, Liveness), killing(1_000)], inferred, "something else had stopped it"),
        (&[unhealthy(-1_000, Liveness)], inferred, "the kubelet did not stop it"),
        (&[killing(0)], inferred, "no probe failed"),
    ] {
        assert_eq!(told(posted), expected, "{why}");
    }
    // A kubelet that starts it again says for which probe; another container; a phase that hides other reasons.
    for (policy, phase, container) in
        [("OnFailure", "Failed", "c"), ("Never", "Failed", "d"), ("Never", "Succeeded", "c")]
    {
        let w = ends_with_events(policy, phase, container, &before);
        assert_ne!(w.ended[0].cause_certainty, Certainty::Proven, "{policy}\n{}", dump(&w));
    }
}

#[test]
fn the_events_of_a_pod_are_listed_once_for_all_its_stopped_containers() {
    let mut w = running(1);
    w.say(Input::Kubelet(KubeletEvent::Lookup { lists: true }));
    let (cgroup, id, task) = sidecar();
    let (parent, name) = (Some(Cgroups::of(1).pod), id.to_string());
    w.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    w.kernel(KernelFact::Exec { cgroup, task: task.clone(), parent: shim() });
    let both = vec![container(1, ContainerState::Running), side(ContainerState::Running)];
    w.lists(vec![sandbox(1, true)], both);
    let mut pod = pod_with(&w, |container| container.liveness = live(None));
    (pod.restart_policy, pod.sandbox_ready) = ("Never".into(), Some(true));
    let other = ApiContainer { id: Some(id.clone()), ..pod.containers["c"].clone() };
    pod.containers.insert("s".into(), other);
    w.api(ApiEvent::Applied(pod.clone()));
    w.later(60_000).term(1, true);
    w.kernel(signal(cgroup, task.clone(), 15, runc()));
    w.later(3_000).exits(1, CODE_0);
    w.kernel(KernelFact::Exit { cgroup, task, status: CODE_0, parent: Some(shim()) });
    w.kernel(KernelFact::CgroupEmpty { cgroup });
    w.kernel(KernelFact::CgroupRemoved { cgroup });
    w.cgroups_go(1);
    w.stopped(1, 0);
    let both = vec![container(1, ContainerState::Exited), side(ContainerState::Exited)];
    w.lists(vec![sandbox(1, false)], both);
    for name in ["c", "s"] {
        shows_its_end(pod.containers.get_mut(name).unwrap(), 1);
    }
    pod.containers.get_mut("s").unwrap().id = Some(id.clone());
    pod.containers.get_mut("s").unwrap().terminated[0].id = Some(id);
    (pod.phase, pod.sandbox_ready) = ("Failed".into(), Some(false));
    w.later(100).api(ApiEvent::Applied(pod));
    w.ticks(120);
    assert_eq!((lists(&w), w.died.len(), w.ended.len()), (1, 2, 1), "\n{}", dump(&w));
}

#[test]
fn many_events_of_failed_probes_push_nothing_out() {
    let mut state = KubeletState::default();
    let (pod, asked) = (PodUid::new("p"), BootTime(5_000));
    let of = |at, says, probe| {
        let mut event = entry(BootTime(at), says, "a");
        (event.pod, event.probe) = (Some(pod.clone()), probe);
        event
    };
    let mut entries = vec![of(0, Says::EventKilling, None)];
    for at in 1..1_000 {
        let probe = if at % 2 == 0 { KubeletProbe::Readiness } else { KubeletProbe::Liveness };
        entries.push(of(at, Says::EventUnhealthy, Some(probe)));
    }
    state.apply(KubeletEvent::Events { pod, asked, entries: Some(entries) });
    let kept: Vec<_> = state.of("p").collect();
    assert_eq!(kept.len(), 2, "{kept:#?}");
    assert_eq!((kept[1].count, kept[1].last), (500, BootTime(999)));
}
