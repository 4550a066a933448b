//! The look-up of the kubelet's Events: what they prove, and the bounds of what is kept.

use super::{
    stops::{dump, live, next, pod_with, replaced, shows_replacement, taken},
    world::{
        CODE_0, Cgroups, World, container, ids, is_replaced, object, runc, running, sandbox, shim,
        shows_its_end, side, sidecar, signal,
    },
};
use coroner_core::{
    events::EventStore,
    ids::PodUid,
    input::{
        ApiContainer, ApiEvent, ApiPod, ContainerState, EventReason, Input, KernelFact, KillReason,
        LookupEvent, PostedEvent, ProbeKind,
    },
    output::Request,
    pod_view::{PodView, Stores},
    time::BootTime,
    types::{Cause, Source},
};
use std::collections::BTreeSet;

#[test]
fn lookups_are_bounded() {
    let mut state = EventStore::default();
    let uid = |number: u64| PodUid::new(format!("pod-{number}"));
    for number in 0..5_000 {
        let (pod, asked) = (uid(number), BootTime(number));
        state.apply(LookupEvent::Events { pod, asked, entries: Some(Vec::new()) });
    }
    let kept = (0..5_000).filter(|number| state.lookup(&uid(*number), BootTime(0)).is_some());
    assert_eq!(kept.count(), 1_024);
    assert_eq!(state.lookup(&uid(4_999), BootTime(0)), Some(true));
    assert_eq!(state.lookup(&uid(4_999), BootTime(5_000)), None, "that was before");
    let killing = PostedEvent::new(BootTime(0), 0, EventReason::Killing);
    for number in 0..5_000 {
        let (pod, asked, entries) = (uid(number), BootTime(number), vec![killing.clone(); 200]);
        state.apply(LookupEvent::Events { pod, asked, entries: Some(entries) });
    }
    assert_eq!(state.of(&uid(4_999)).len(), 96);
    let kept: usize = (0..5_000).map(|number| state.of(&uid(number)).len()).sum();
    assert_eq!(kept, 8_192 / 96 * 96);
}

#[test]
fn lookups_that_failed_evict_no_events() {
    let mut state = EventStore::default();
    let listed = PodUid::new("listed");
    let event = PostedEvent::new(BootTime(0), 0, EventReason::Killing);
    let answers = std::iter::once((listed.clone(), Some(vec![event])));
    let failed = (0..2_000).map(|number| (PodUid::new(format!("pod-{number}")), None));
    for (pod, entries) in answers.chain(failed) {
        state.apply(LookupEvent::Events { pod, asked: BootTime(1), entries });
    }
    assert_eq!((state.lookup(&listed, BootTime(0)), state.of(&listed).len()), (Some(true), 1));
    assert_eq!(state.lookup(&PodUid::new("pod-1999"), BootTime(0)), Some(false));
}

#[test]
fn evicted_events_are_evidence_that_a_report_lacks() {
    let (mut stores, uid) = (Stores::default(), PodUid::new("p"));
    let list = |pod: &PodUid, entries| LookupEvent::Events {
        pod: pod.clone(),
        asked: BootTime(1),
        entries: Some(entries),
    };
    let evidence = |stores: &Stores| PodView::new(stores, &uid, &BTreeSet::new(), None).evidence();
    let killing = PostedEvent::new(BootTime(0), 0, EventReason::Killing);
    stores.events.apply(list(&uid, vec![killing.clone(); 2]));
    let before = evidence(&stores);
    stores.events.apply(list(&uid, vec![killing]));
    assert!(evidence(&stores).lacks_none_of(&before), "a shorter list evicts nothing");
    for number in 0..1_024 {
        stores.events.apply(list(&PodUid::new(format!("pod-{number}")), Vec::new()));
    }
    assert!(!evidence(&stores).lacks_none_of(&before));
}

#[test]
fn a_lookup_that_failed_does_not_hide_one_that_was_answered() {
    let pod = PodUid::new("p");
    let listed = |asked| (asked, Some(Vec::new()));
    for answers in [[listed(5), (5, None)], [(5, None), listed(5)], [listed(5), (7, None)]] {
        let mut state = EventStore::default();
        for (asked, entries) in answers {
            let asked = BootTime(asked);
            state.apply(LookupEvent::Events { pod: pod.clone(), asked, entries });
        }
        assert_eq!(state.lookup(&pod, BootTime(4)), Some(true));
        assert_eq!(state.lookup(&pod, BootTime(8)), None);
    }
    let mut state = EventStore::default();
    for (asked, entries) in [listed(5), (7, None)] {
        state.apply(LookupEvent::Events { pod: pod.clone(), asked: BootTime(asked), entries });
    }
    assert_eq!(state.lookup(&pod, BootTime(6)), Some(false), "that list was before");
}

/// A container with a tcpSocket probe that was stopped, and started again.
fn stopped(lists: bool) -> (World, ApiPod) {
    let mut w = running(1);
    w.say(Input::Events(LookupEvent::Lookup { lists }));
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
        (Some(Some(KillReason::LivenessProbe)), (Cause::Liveness, Source::Kubelet)),
        // They say nothing of it; they could not be listed; nobody answers.
        (Some(None), (Cause::Restart, Source::Inferred)),
        (None, (Cause::Restart, Source::Inferred)),
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
fn answer(w: &mut World, ended: BootTime, reason: Option<Option<KillReason>>) {
    let of = |reason| {
        let mut event = PostedEvent::new(ended, 0, EventReason::Killing);
        (event.reason, event.container) = (Some(reason), Some("c".into()));
        event
    };
    let (asked, entries) = (w.at(), reason.map(|reason| reason.map(of).into_iter().collect()));
    w.say(Input::Events(LookupEvent::Events { pod: ids(1).0, asked, entries }));
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
    answer(&mut w, ended, Some(Some(KillReason::LivenessProbe)));
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
        assert_eq!(death.cause, Cause::Restart, "\n{}", dump(&w));
        let says = if is_on { "were not listed since" } else { "are not asked for" };
        assert!(death.cause_message.contains(says), "\n{}", dump(&w));
    }
}

#[test]
fn the_events_of_a_pod_are_listed_once_for_all_its_stopped_containers() {
    let mut w = running(1);
    w.say(Input::Events(LookupEvent::Lookup { lists: true }));
    let (cgroup, id, task) = sidecar();
    let (parent, name) = (Some(Cgroups::of(1).pod), id.to_string());
    w.kernel(KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    w.kernel(KernelFact::Exec { cgroup, task: task.clone(), parent: shim() });
    let both = vec![container(1, ContainerState::Running), side(ContainerState::Running)];
    w.lists(vec![sandbox(1, true)], both);
    let mut pod = pod_with(&w, |container| container.liveness = live(None));
    pod.restart_policy = "Never".into();
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
    pod.phase = "Failed".into();
    w.later(100).api(ApiEvent::Applied(pod));
    w.ticks(120);
    assert_eq!((lists(&w), w.died.len(), w.ended.len()), (1, 2, 1), "\n{}", dump(&w));
}

#[test]
fn many_events_of_failed_probes_push_nothing_out() {
    let mut state = EventStore::default();
    let (pod, asked) = (PodUid::new("p"), BootTime(5_000));
    let of = |at, about, probe| {
        let mut event = PostedEvent::new(BootTime(at), 0, about);
        (event.container, event.probe) = (Some("a".into()), probe);
        event
    };
    let mut entries = vec![of(0, EventReason::Killing, None)];
    for at in 1..1_000 {
        let probe = if at % 2 == 0 { ProbeKind::Readiness } else { ProbeKind::Liveness };
        entries.push(of(at, EventReason::Unhealthy, Some(probe)));
    }
    state.apply(LookupEvent::Events { pod: pod.clone(), asked, entries: Some(entries) });
    let kept = state.of(&pod);
    assert_eq!(kept.len(), 2, "{kept:#?}");
    assert_eq!((kept[1].count, kept[1].last), (500, BootTime(999)));
}
