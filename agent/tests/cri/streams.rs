//! Streaming lists (KEP-5825), where the runtime has them.

use crate::{
    bench::{CriBench, NEVER, outage},
    runtime::{Call, FakeRuntime},
    things::{container, sandbox},
};
use coroner_core::input::CriEvent;
use coroner_core::output::CriRequest;
use coroner_cri_api::v1::ContainerState;
use std::{sync::atomic::Ordering, time::Duration};

fn two_of_each(streams: Option<usize>) -> FakeRuntime {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.streams = streams;
        state.sandboxes = vec![sandbox("s1"), sandbox("s2")];
        state.containers = vec![
            container("c1", "s1", ContainerState::ContainerUnknown),
            container("c2", "s2", ContainerState::ContainerUnknown),
        ];
    }
    runtime
}

/// How often the lists were asked for in full: as lists, as streams.
fn full_lists(bench: &CriBench) -> (usize, usize) {
    let state = bench.runtime.state();
    let count = |wanted: &[Call]| state.calls.iter().filter(|call| wanted.contains(call)).count();
    let all = String::new;
    (
        count(&[Call::Sandboxes(all()), Call::Containers(all())]),
        count(&[Call::SandboxStream, Call::ContainerStream]),
    )
}

#[tokio::test]
async fn full_lists_are_streamed_and_filtered_ones_are_not() {
    let mut bench = CriBench::new(two_of_each(Some(1)), NEVER);
    let names: Vec<_> = bench.sandboxes().await.into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["pod-s1", "pod-s2"]);
    let names: Vec<_> = bench.containers().await.into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["name-c1", "name-c2"]);
    bench.ask(CriRequest::PollNow(Some("s2".into()))).await;
    let filtered = bench.until(|event| match event {
        CriEvent::Containers { only, containers, .. } => Some((only, containers.len())),
        _ => None,
    });
    assert_eq!(filtered.await, (Some("s2".into()), 1));
    assert_eq!(full_lists(&bench), (0, 2));
}

#[tokio::test]
async fn a_runtime_without_streams_is_asked_for_one_once_per_connection() {
    let mut bench = CriBench::new(two_of_each(None), NEVER);
    bench.full_list().await;
    for _ in 0..3 {
        bench.ask(CriRequest::PollNow(None)).await;
        bench.full_list().await;
    }
    let (lists, streams) = full_lists(&bench);
    assert!(lists >= 6, "{lists}");
    assert_eq!(streams, 1);
    assert_eq!(bench.counters.errors.load(Ordering::Relaxed), 0, "to lack it is no error");

    // Another runtime may have been installed.
    bench.serving.take().expect("it serves").kill();
    bench.ask(CriRequest::PollNow(None)).await;
    bench.until(outage).await;
    bench.runtime.state().streams = Some(1);
    bench.runtime.state().calls.clear();
    bench.serving = Some(bench.runtime.serve(&bench.socket));
    bench.full_list().await;
    assert_eq!(full_lists(&bench), (0, 2));
}

/// Half a list would say of the other half that it is gone.
#[tokio::test]
async fn a_stream_that_breaks_off_or_is_too_long_is_no_list() {
    for (size, breaks_off, expected) in
        [(1, true, "INTERNAL"), (1 << 14, false, "RESOURCE_EXHAUSTED")]
    {
        let runtime = two_of_each(Some(size));
        runtime.state().breaks_off = breaks_off;
        let too_many = if breaks_off { 0 } else { 1 << 16 };
        runtime.state().sandboxes.extend(vec![sandbox("s3"); too_many]);
        let mut bench = CriBench::new(runtime, Duration::from_millis(1));
        let failure = bench.until(|event| {
            assert!(!matches!(event, CriEvent::Sandboxes { .. }), "{event:?}");
            outage(event)
        });
        let (error, code) = failure.await;
        assert!(error.contains("StreamPodSandboxes"), "{error}");
        assert_eq!(code.as_deref(), Some(expected));
        bench.runtime.state().breaks_off = false;
        bench.runtime.state().sandboxes.truncate(2);
        assert_eq!(bench.sandboxes().await.len(), 2);
    }
}
