//! A runtime that answers late, but answers. How late makes no difference, so that no test waits.

use super::{
    bench::{CriBench, NEVER, STUCK, exited, outage, unreachable, wait_until},
    runtime::{Call, FakeRuntime},
    things::{container, sandbox, sandbox_status},
};
use coroner_core::output::CriRequest;
use coroner_core::{ids::SandboxId, input::CriEvent, time::BootTime};
use coroner_cri_api::read::ContainerState;
use std::{sync::Arc, time::Duration};

/// Two pods, one of them with a container that has ended.
fn runtime() -> FakeRuntime {
    let runtime = FakeRuntime::with_exited();
    {
        let mut state = runtime.state();
        state.sandboxes.push(sandbox("s2"));
        state.containers.push(container("c2", "s2", ContainerState::ContainerUnknown));
        state.sandbox_statuses.insert("s1".into(), Ok(sandbox_status("{}")));
    }
    runtime
}

fn full_lists_asked(bench: &CriBench) -> usize {
    let full = Call::Sandboxes(String::new());
    bench.runtime.state().calls.iter().filter(|call| **call == full).count()
}

/// The sandboxes of the next list of this kind, and when it was asked for.
async fn listed(bench: &mut CriBench, wanted: Option<SandboxId>) -> (BootTime, Vec<SandboxId>) {
    bench
        .until(|event| {
            assert_eq!(unreachable(event.clone()), None);
            match event {
                CriEvent::Sandboxes { asked, only, sandboxes } if only == wanted => {
                    Some((asked, sandboxes.into_iter().map(|one| one.id).collect()))
                }
                _ => None,
            }
        })
        .await
}

#[tokio::test]
async fn a_late_list_delays_nothing_else_and_is_used() {
    let runtime = runtime();
    let gate = Arc::clone(&runtime.full);
    let closed = gate.write().await;
    let mut bench = CriBench::new(runtime, NEVER);
    wait_until("a full list", || full_lists_asked(&bench) == 1).await;

    // Wanted while it is under way, again and again.
    bench.ask(CriRequest::StartFastPoll(vec!["s1".into()])).await;
    bench.ask(CriRequest::SandboxStatus("s1".into())).await;
    let mut first = None;
    let (mut ends, mut statuses, mut lists) = (0, 0, 0);
    while ends == 0 || statuses == 0 || lists < 5 {
        bench.ask(CriRequest::PollNow(None)).await;
        match bench.event().await {
            CriEvent::ContainerExited(_) => ends += 1,
            CriEvent::SandboxStatus(_) => statuses += 1,
            CriEvent::Containers { asked, only, .. } => {
                assert_eq!(only, Some("s1".into()));
                first.get_or_insert(asked);
                lists += 1;
            }
            CriEvent::Unreachable { error, .. } => panic!("an outage: {error}"),
            _ => {}
        }
    }
    assert_eq!(full_lists_asked(&bench), 1, "one call of a kind at a time");

    drop(closed);
    let (asked, ids) = listed(&mut bench, None).await;
    assert_eq!(ids, ["s1".into(), "s2".into()]);
    assert!(asked < first.expect("a list"), "true as of its request, before all these");
    bench.full_list().await;
    bench.full_list().await; // the one that was asked for meanwhile
}

#[tokio::test]
async fn an_end_is_told_once_however_late_the_lists_are() {
    let runtime = runtime();
    let gate = Arc::clone(&runtime.full);
    let closed = gate.write().await;
    let mut bench = CriBench::new(runtime, NEVER);
    bench.ask(CriRequest::StartFastPoll(vec!["s1".into()])).await;
    bench.until(exited).await;
    drop(closed);
    for _ in 0..3 {
        bench
            .until(|event| {
                assert_eq!(exited(event.clone()), None, "told twice");
                matches!(event, CriEvent::Containers { only: None, .. }).then_some(())
            })
            .await;
        bench.ask(CriRequest::PollNow(None)).await;
    }
}

#[tokio::test]
async fn a_candidates_late_status_is_used_while_nothing_else_is_answered() {
    let runtime = runtime();
    let (shims, versions) = (Arc::clone(&runtime.shims), Arc::clone(&runtime.versions));
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;
    let (hung, slow) = (shims.write().await, versions.write().await);
    bench.ask(CriRequest::SandboxStatus("s1".into())).await;
    // The second Version asks whether it is the shim that hangs, or the runtime that is slow.
    let asked = || {
        let state = bench.runtime.state();
        state.calls.iter().filter(|call| **call == Call::Version).count()
    };
    wait_until("a question about the runtime", || asked() == 2).await;
    drop(hung);
    let told = bench.until(|event| match event {
        CriEvent::SandboxStatus(status) => Some(status.sandbox),
        CriEvent::SandboxStatusRefused { code, .. } => panic!("refused: {code}"),
        _ => None,
    });
    assert_eq!(told.await, "s1".into());
    drop(slow);
}

/// The runtime answers all else meanwhile.
#[tokio::test]
async fn silence_beyond_the_limit_is_an_outage_and_all_begins_again() {
    let runtime = runtime();
    let gate = Arc::clone(&runtime.full);
    let closed = gate.write().await;
    let mut bench = CriBench::with(runtime, |options| options.timeout = Duration::from_millis(100));
    // On a busy machine an earlier call may take that long, too. It is met again and reported again.
    let of_the_list =
        bench.until(|event| outage(event).filter(|(error, _)| error.contains("ListPodSandbox")));
    assert_eq!(of_the_list.await.1.as_deref(), Some("DEADLINE_EXCEEDED"));
    drop(closed);
    bench.full_list().await;
}

#[tokio::test]
async fn the_end_does_not_wait_for_answers() {
    let runtime = runtime();
    let gate = Arc::clone(&runtime.lists);
    let _closed = gate.write().await;
    let bench = CriBench::new(runtime, NEVER);
    wait_until("a full list", || full_lists_asked(&bench) == 1).await;
    let CriBench { events, requests, serving, .. } = bench;
    drop(events);
    tokio::time::timeout(STUCK, requests.closed()).await.expect("the adapter still runs");
    drop(serving);
}
