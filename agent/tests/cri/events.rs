//! Container events: a hint, from those runtimes only whose events are for everybody.

use crate::{
    bench::{CriBench, NEVER, outage, unreachable, wait_until},
    runtime::{Call, Events, FakeRuntime},
    things::{container, sandbox},
};
use coroner_core::output::CriRequest;
use coroner_core::{ids::SandboxId, input::CriEvent};
use coroner_cri_api::v1::{ContainerEventResponse, ContainerState, PodSandboxStatus};
use std::{
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::broadcast;

const CONTAINERD: (&str, &str) = ("containerd", "v2.1.9");

/// A runtime of that name and version with one sandbox, and where its events come from.
fn runtime(
    named: (&'static str, &'static str),
) -> (FakeRuntime, broadcast::Sender<ContainerEventResponse>) {
    let runtime = FakeRuntime::default();
    let (events, _) = broadcast::channel(16);
    {
        let mut state = runtime.state();
        state.named = Some(named);
        state.events = Events::Sent(events.clone());
        state.sandboxes.push(sandbox("s1"));
        state.containers.push(container("c1", "s1", ContainerState::ContainerUnknown));
    }
    (runtime, events)
}

fn event(container: &str, sandbox: Option<&str>, age: Duration) -> ContainerEventResponse {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970") - age;
    ContainerEventResponse {
        container_id: container.into(),
        created_at: created.as_nanos() as i64,
        pod_sandbox_status: sandbox
            .map(|id| PodSandboxStatus { id: id.into(), ..Default::default() }),
        ..Default::default()
    }
}

fn subscriptions(bench: &CriBench) -> usize {
    bench.runtime.state().calls.iter().filter(|call| **call == Call::Events).count()
}

async fn subscribed(events: &broadcast::Sender<ContainerEventResponse>) {
    wait_until("a subscription", || events.receiver_count() > 0).await;
}

/// Skips to the next sandbox that is looked at.
async fn looked(bench: &mut CriBench) -> SandboxId {
    bench
        .until(|event| {
            assert_eq!(unreachable(event.clone()), None);
            match event {
                CriEvent::Containers { only, .. } => only,
                _ => None,
            }
        })
        .await
}

#[tokio::test]
async fn an_event_makes_its_sandbox_looked_at_now() {
    for named in [CONTAINERD, ("cri-o", "1.28.0")] {
        let (runtime, events) = runtime(named);
        let mut bench = CriBench::new(runtime, NEVER);
        bench.full_list().await;
        subscribed(&events).await;
        // What the runtime kept from before was in the full list.
        events.send(event("c0", Some("s0"), Duration::from_secs(60))).expect("somebody listens");
        events.send(event("c1", Some("s1"), Duration::ZERO)).expect("somebody listens");
        assert_eq!(looked(&mut bench).await, "s1".into());
        // One that no list has shown yet.
        events.send(event("c2", Some("s2"), Duration::ZERO)).expect("somebody listens");
        assert_eq!(looked(&mut bench).await, "s2".into());
        // The last event of a sandbox is about itself.
        events.send(event("s1", None, Duration::ZERO)).expect("somebody listens");
        assert_eq!(looked(&mut bench).await, "s1".into());
        let state = bench.runtime.state();
        let full = state.calls.iter().filter(|call| **call == Call::Sandboxes(String::new()));
        assert_eq!(full.count(), 1, "an event costs no full list");
    }
}

/// A second subscriber of these takes events away from the kubelet.
#[tokio::test]
async fn runtimes_that_do_not_broadcast_are_never_subscribed_to() {
    for named in [("containerd", "v1.7.27"), ("cri-o", "1.27.8")] {
        let (runtime, _events) = runtime(named);
        let mut bench = CriBench::new(runtime, Duration::from_millis(1));
        for _ in 0..5 {
            bench.full_list().await;
        }
        assert_eq!(subscriptions(&bench), 0, "{named:?}");
    }
}

#[tokio::test]
async fn nobody_is_subscribed_to_without_being_asked_to() {
    let (runtime, _events) = runtime(CONTAINERD);
    let mut bench = CriBench::with(runtime, |options| {
        options.events = false;
        options.idle = Duration::from_millis(1);
    });
    for _ in 0..5 {
        bench.full_list().await;
    }
    assert_eq!(subscriptions(&bench), 0);
}

#[tokio::test]
async fn events_that_are_disabled_are_given_up() {
    for (how, errors) in [(Events::Disabled, 0), (Events::Unimplemented, 0)] {
        let (runtime, _events) = runtime(("cri-o", "1.30.2"));
        runtime.state().events = how;
        let mut bench = CriBench::new(runtime, Duration::from_millis(1));
        for _ in 0..20 {
            bench
                .until(|event| {
                    assert_eq!(unreachable(event.clone()), None);
                    matches!(event, CriEvent::Containers { .. }).then_some(())
                })
                .await;
        }
        assert_eq!(subscriptions(&bench), 1);
        assert_eq!(bench.counters.errors.load(Ordering::Relaxed), errors);
    }
}

#[tokio::test]
async fn their_end_is_no_outage() {
    let (runtime, events) = runtime(CONTAINERD);
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;
    subscribed(&events).await;
    bench.runtime.state().events = Events::Unimplemented;
    drop(events);
    wait_until("an error", || bench.counters.errors.load(Ordering::Relaxed) > 0).await;
    for _ in 0..3 {
        bench.ask(CriRequest::PollNow(None)).await;
        bench
            .until(|event| {
                assert!(!matches!(event, CriEvent::Connected { .. }), "the connection was good");
                assert_eq!(unreachable(event.clone()), None);
                matches!(event, CriEvent::Containers { only: None, .. }).then_some(())
            })
            .await;
    }
    assert_eq!(subscriptions(&bench), 1);
}

#[tokio::test]
async fn a_subscription_keeps_no_broken_connection_alive() {
    let (runtime, events) = runtime(CONTAINERD);
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;
    subscribed(&events).await;
    bench.serving.take().expect("it serves").kill();
    bench.serving = Some(bench.runtime.serve(&bench.socket));
    bench.ask(CriRequest::PollNow(None)).await;
    bench.until(outage).await;
    bench.full_list().await;
    wait_until("another subscription", || subscriptions(&bench) == 2).await;
    events.send(event("c1", Some("s1"), Duration::ZERO)).expect("somebody listens");
    assert_eq!(looked(&mut bench).await, "s1".into());
    assert_eq!(subscriptions(&bench), 2, "one per connection");
}
