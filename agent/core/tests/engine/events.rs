//! The bounds of what is kept of the kubelet's Events, and what a look-up that failed hides.

use coroner_core::{events::EventStore, testkit::*};

fn uid(number: u64) -> PodUid {
    PodUid::new(format!("pod-{number}"))
}

fn lists(store: &mut EventStore, number: u64, asked: u64, entries: Option<Vec<PostedEvent>>) {
    store.apply(LookupEvent::Events { pod: uid(number), asked: BootTime(asked), entries });
}

fn killing() -> PostedEvent {
    PostedEvent::new(BootTime(0), 0, EventReason::Killing)
}

#[test]
fn lookups_are_bounded() {
    let mut store = EventStore::default();
    (0..5_000).for_each(|number| lists(&mut store, number, number, Some(Vec::new())));
    let kept = (0..5_000).filter(|number| store.lookup(&uid(*number), BootTime(0)).is_some());
    assert_eq!(kept.count(), 1_024);
    assert_eq!(store.lookup(&uid(4_999), BootTime(0)), Some(true));
    assert_eq!(store.lookup(&uid(4_999), BootTime(5_000)), None, "that was before");
    (0..5_000).for_each(|number| lists(&mut store, number, number, Some(vec![killing(); 200])));
    assert_eq!(store.of(&uid(4_999)).len(), 96);
    let kept: usize = (0..5_000).map(|number| store.of(&uid(number)).len()).sum();
    assert_eq!(kept, 8_192 / 96 * 96);
}

/// It neither evicts the Events of another pod, nor hides an answer.
#[test]
fn a_lookup_that_failed_hides_nothing() {
    let mut store = EventStore::default();
    lists(&mut store, 0, 1, Some(vec![killing()]));
    (1..2_000).for_each(|number| lists(&mut store, number, 1, None));
    assert_eq!((store.lookup(&uid(0), BootTime(0)), store.of(&uid(0)).len()), (Some(true), 1));
    assert_eq!(store.lookup(&uid(1_999), BootTime(0)), Some(false));
    let listed = |asked| (asked, Some(Vec::new()));
    for answers in [[listed(5), (5, None)], [(5, None), listed(5)], [listed(5), (7, None)]] {
        let mut store = EventStore::default();
        let is_later = answers[1].0 == 7;
        answers.into_iter().for_each(|(asked, entries)| lists(&mut store, 0, asked, entries));
        assert_eq!(store.lookup(&uid(0), BootTime(4)), Some(true));
        assert_eq!(
            store.lookup(&uid(0), BootTime(6)),
            is_later.then_some(false),
            "that list was before"
        );
        assert_eq!(store.lookup(&uid(0), BootTime(8)), None);
    }
}

#[test]
fn many_events_of_failed_probes_push_nothing_out() {
    let mut store = EventStore::default();
    let failed = |at: u64| {
        let kind = if at.is_multiple_of(2) { ProbeKind::Readiness } else { ProbeKind::Liveness };
        let event = PostedEvent::new(BootTime(at), 0, EventReason::Unhealthy);
        PostedEvent { container: Some("a".into()), probe: Some(kind), ..event }
    };
    let entries = std::iter::once(killing()).chain((1..1_000).map(failed)).collect();
    lists(&mut store, 0, 5_000, Some(entries));
    let kept = store.of(&uid(0));
    assert_eq!(kept.len(), 2, "{kept:#?}");
    assert_eq!((kept[1].count, kept[1].last), (500, BootTime(999)));
}
