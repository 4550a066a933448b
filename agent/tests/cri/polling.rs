//! When the lists are asked for, and what is made of them.

use super::{
    bench::{CriBench, NEVER, wait_until},
    runtime::{Call, FakeRuntime},
    things::{container, sandbox},
};
use coroner_core::input::CriEvent;
use coroner_core::output::CriRequest;
use coroner_cri_api::read::{self, ContainerState};
use std::sync::Arc;

#[tokio::test]
async fn tells_who_answers_before_the_first_answer() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes.push(sandbox("s1"));
    runtime.state().containers.push(container("c1", "s1", ContainerState::ContainerRunning));
    let mut bench = CriBench::new(runtime, NEVER);

    let CriEvent::Connected { runtime, process } = bench.event().await else {
        panic!("not connected first")
    };
    assert_eq!(runtime, "containerd 1.7.24");
    let process = process.expect("the peer is this process");
    assert_eq!(process.pid, std::process::id());
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    assert!(stat.split(' ').any(|field| field == process.started.to_string()));

    let CriEvent::Sandboxes { only: None, sandboxes, .. } = bench.event().await else {
        panic!("no sandboxes")
    };
    assert_eq!(sandboxes.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["s1"]);
    let CriEvent::Containers { only: None, containers, .. } = bench.event().await else {
        panic!("no containers")
    };
    assert_eq!(containers.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["c1"]);
}

#[tokio::test]
async fn leaves_nonsense_out_and_counts_it() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.sandboxes =
            vec![read::PodSandbox { metadata: None, ..sandbox("no-metadata") }, sandbox("good")];
        state.containers = vec![
            container("no-sandbox", "", ContainerState::ContainerRunning),
            container("good", "good", ContainerState::ContainerRunning),
        ];
    }
    let mut bench = CriBench::new(runtime, NEVER);
    let (sandboxes, containers) = (bench.sandboxes().await, bench.containers().await);
    assert_eq!(sandboxes.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(containers.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(bench.skipped(), 2);
}

#[tokio::test]
async fn polls_hurried_sandboxes_only_until_relaxed() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes = vec![sandbox("s1"), sandbox("s2")];
    runtime.state().containers = vec![
        container("c1", "s1", ContainerState::ContainerUnknown),
        container("c2", "s2", ContainerState::ContainerUnknown),
    ];
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;

    bench.ask(CriRequest::StartFastPoll(vec!["s1".into()])).await;
    for _ in 0..3 {
        let CriEvent::Sandboxes { only, sandboxes, .. } =
            bench.until(|event| matches!(event, CriEvent::Sandboxes { .. }).then_some(event)).await
        else {
            unreachable!()
        };
        assert_eq!(only, Some("s1".into()));
        assert_eq!(sandboxes.len(), 1);
        let CriEvent::Containers { only, containers, .. } = bench
            .until(|event| matches!(event, CriEvent::Containers { .. }).then_some(event))
            .await
        else {
            unreachable!()
        };
        assert_eq!(only, Some("s1".into()));
        assert_eq!(containers[0].id, "c1".into());
    }

    bench.ask(CriRequest::StopFastPoll(vec!["s1".into()])).await;
    nothing_but_full_lists(&mut bench).await;
}

#[tokio::test]
async fn a_hurried_sandbox_that_is_gone_is_not_polled_any_more() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes = vec![sandbox("s1"), sandbox("s2")];
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;
    bench.ask(CriRequest::StartFastPoll(vec!["s1".into()])).await;
    bench
        .until(|event| match event {
            CriEvent::Sandboxes { only, .. } => only,
            _ => None,
        })
        .await;
    bench.runtime.state().sandboxes.remove(0);
    nothing_but_full_lists(&mut bench).await;
}

/// What was under way comes to its end, and then nothing but what is asked for: so many full lists
/// in a row, of which each takes as long as some filtered ones.
async fn nothing_but_full_lists(bench: &mut CriBench) {
    let mut in_a_row = 0;
    while in_a_row < 20 {
        bench.ask(CriRequest::PollNow(None)).await;
        in_a_row += 1;
        bench
            .until(|event| match event {
                CriEvent::Sandboxes { only: None, .. } => None,
                CriEvent::Containers { only: None, .. } => Some(()),
                _ => {
                    in_a_row = 0;
                    None
                }
            })
            .await;
    }
}

#[tokio::test]
async fn looks_at_once_when_asked_to() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes = vec![sandbox("s1")];
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;

    let looked = |event| match event {
        CriEvent::Containers { only, .. } => Some(only),
        _ => None,
    };
    bench.ask(CriRequest::PollNow(Some("s1".into()))).await;
    assert_eq!(bench.until(looked).await, Some("s1".into()));
    bench.ask(CriRequest::PollNow(Some("never-seen".into()))).await;
    assert_eq!(bench.until(looked).await, None, "an unknown sandbox needs the full list");
    bench.ask(CriRequest::PollNow(None)).await;
    assert_eq!(bench.until(looked).await, None);
}

#[tokio::test]
async fn a_storm_of_requests_neither_waits_nor_multiplies() {
    let runtime = FakeRuntime::default();
    let lists = Arc::clone(&runtime.lists);
    let closed = lists.write().await;
    let mut bench = CriBench::new(runtime, NEVER);
    let full = Call::Sandboxes(String::new());
    wait_until("a full list", || bench.runtime.state().calls.contains(&full)).await;
    // The first list hangs in the runtime; requests are taken all the same.
    for n in 0..1_000 {
        bench.ask(CriRequest::PollNow(Some(format!("s{n}").as_str().into()))).await;
    }
    drop(closed);
    bench.full_list().await; // the first
    bench.full_list().await; // the one for all thousand
    let state = bench.runtime.state();
    let made = state.calls.iter().filter(|call| matches!(call, Call::Containers(_))).count();
    // The request that arrives while the second list is under way may cause a third.
    assert!(made <= 3, "{made} lists for one storm");
}
