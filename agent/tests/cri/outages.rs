//! Runtimes that are away, come back, or hang.

use super::{
    bench::{CriBench, NEVER, STUCK, exited, outage, wait_until},
    runtime::FakeRuntime,
};
use coroner::sources::cri::{self, CriOptions};
use coroner_core::input::{CriEvent, Input};
use std::{sync::atomic::Ordering, time::Duration};
use tokio::sync::mpsc;

#[tokio::test]
async fn a_killed_runtime_is_told_once_and_met_again() {
    let mut bench = CriBench::new(FakeRuntime::with_exited(), Duration::from_millis(5));
    bench.until(exited).await;

    bench.serving.take().expect("it serves").kill();
    let (error, code) = bench.until(outage).await;
    assert!(!error.is_empty());
    assert_eq!(code.as_deref(), Some("UNAVAILABLE"));
    // Some attempts fail meanwhile.
    let before = bench.counters.errors.load(Ordering::Relaxed);
    let errors = || bench.counters.errors.load(Ordering::Relaxed);
    wait_until("two more errors", || errors() >= before + 2).await;
    bench.serving = Some(bench.runtime.serve(&bench.socket));
    let next = bench.event().await;
    assert!(matches!(next, CriEvent::Connected { .. }), "{next:?}");
    let next = bench.event().await;
    assert!(matches!(next, CriEvent::Sandboxes { only: None, .. }), "{next:?}");
    for _ in 0..3 {
        bench.list_without_exits().await;
    }
}

#[tokio::test]
async fn a_missing_socket_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nobody.sock");
    let (to, mut events) = mpsc::channel(4);
    let (_requests, asked) = mpsc::channel(4);
    tokio::spawn(cri::run(CriOptions::new(socket), to, asked));
    let first = tokio::time::timeout(STUCK, events.recv()).await.unwrap().unwrap();
    let Input::Cri(CriEvent::Unreachable { error, code: None }) = first.input else {
        panic!("{first:?}")
    };
    assert!(error.contains("nobody.sock") && error.contains("no such socket"), "{error}");
}

#[tokio::test]
async fn a_runtime_without_v1_is_an_outage_with_a_remedy_and_is_asked_again() {
    let runtime = FakeRuntime::default();
    runtime.state().lacks_v1 = true;
    let mut bench = CriBench::new(runtime, NEVER);
    let (error, code) = bench.until(outage).await;
    assert!(error.contains("upgrade") && error.contains("socket"), "{error}");
    assert_eq!(code.as_deref(), Some("UNIMPLEMENTED"));
    assert!(bench.counters.errors.load(Ordering::Relaxed) > 0);
    // As when the plugin was only not ready yet.
    bench.runtime.state().lacks_v1 = false;
    bench.full_list().await;
}
