//! Verbose PodSandboxStatus, for leak candidates only.

use super::{
    bench::{CriBench, NEVER, outage, wait_until},
    runtime::{Call, FakeRuntime},
    things::{sandbox, sandbox_status},
};
use coroner_core::output::CriRequest;
use coroner_core::{
    ids::SandboxId,
    input::{CriEvent, CriSandboxStatus, SandboxNetwork},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tonic::Status;

const INFO: &str = r#"{"pid":0,"netNamespaceClosed":false,"config":{"annotations":{"a":"b"}},
    "runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/var/run/netns/cni-1"}]}}}"#;

/// An answer about a candidate: its status, or the code of the refusal.
fn told(event: CriEvent) -> Option<Result<CriSandboxStatus, (SandboxId, String)>> {
    match event {
        CriEvent::SandboxStatus(status) => Some(Ok(status)),
        CriEvent::SandboxStatusRefused { sandbox, code } => Some(Err((sandbox, code))),
        CriEvent::Unreachable { error, .. } => panic!("an outage: {error}"),
        _ => None,
    }
}

fn asked(bench: &CriBench) -> Vec<String> {
    let state = bench.runtime.state();
    let asked = |call: &Call| match call {
        Call::SandboxStatus { sandbox, verbose } => {
            assert!(verbose, "what is wanted stands in the info");
            Some(sandbox.clone())
        }
        _ => None,
    };
    state.calls.iter().filter_map(asked).collect()
}

#[tokio::test]
async fn is_asked_about_nobody_else_and_once() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.sandboxes = vec![sandbox("s1"), sandbox("s2")];
        state.sandbox_statuses.insert("s1".into(), Ok(sandbox_status(INFO)));
    }
    let mut bench = CriBench::new(runtime, Duration::from_millis(1));
    bench.full_list().await;
    bench.ask(CriRequest::SandboxStatus("gone".into())).await;
    bench.ask(CriRequest::SandboxStatus("s1".into())).await;
    let status = bench.until(told).await.expect("it was not refused");
    assert_eq!(status.sandbox, "s1".into());
    assert_eq!(status.pid, None);
    assert_eq!(status.ips, ["10.88.0.2", "fd00::2"]);
    let path = Some("/var/run/netns/cni-1".to_owned());
    assert_eq!(status.network, SandboxNetwork::Own { path, closed: Some(false) });
    for _ in 0..5 {
        bench
            .until(|event| {
                assert_eq!(told(event.clone()), None, "told again, or of one that is gone");
                matches!(event, CriEvent::Containers { .. }).then_some(())
            })
            .await;
    }
    assert_eq!(asked(&bench), ["gone", "s1"]);
}

/// A shim that hangs is asked about again and again: it must not push in before the others.
#[tokio::test]
async fn the_first_to_come_is_served_first() {
    let runtime = FakeRuntime::default();
    for id in ["a", "b", "c"] {
        let hung = Status::deadline_exceeded("context deadline exceeded");
        runtime.state().sandbox_statuses.insert(id.into(), Err(hung));
    }
    let shims = Arc::clone(&runtime.shims);
    let hung = shims.write().await;
    let mut bench = CriBench::new(runtime, NEVER);
    for id in ["b", "c", "a", "b", "c"] {
        bench.ask(CriRequest::SandboxStatus(id.into())).await;
    }
    drop(hung);
    let mut served = Vec::new();
    while served.len() < 3 {
        served.push(bench.until(told).await.expect_err("it was refused").0);
    }
    assert_eq!(served, ["b".into(), "c".into(), "a".into()]);
}

#[tokio::test]
async fn info_that_cannot_be_read_tells_nothing() {
    let runtime = FakeRuntime::default();
    let huge = format!(r#"{{"pid":7,"config":"{}"}}"#, "x".repeat(3 << 20));
    for (id, info) in [("garbage", "{"), ("huge", huge.as_str())] {
        let mut answer = sandbox_status(info);
        answer.status.as_mut().expect("it has one").linux = None;
        runtime.state().sandbox_statuses.insert(id.into(), Ok(answer));
    }
    let mut bench = CriBench::new(runtime, NEVER);
    // Length alone makes nothing unreadable.
    for (id, pid) in [("garbage", None), ("huge", Some(7))] {
        bench.ask(CriRequest::SandboxStatus(id.into())).await;
        let status = bench.until(told).await.expect("it was not refused");
        assert_eq!((status.pid, status.network), (pid, SandboxNetwork::Unknown), "{id}");
        assert_eq!(bench.skipped(), 1);
    }
}

/// `UNAVAILABLE` is what containerd says of a dead shim: the runtime is not away.
#[tokio::test]
async fn a_refusal_is_told_with_its_code_and_is_no_outage() {
    let runtime = FakeRuntime::default();
    // A runtime that lacks the call says nothing of the sandbox.
    let lacking = Status::unimplemented("unknown method");
    runtime.state().sandbox_statuses.insert("s0".into(), Err(lacking));
    let refusals = [
        ("s1", Status::internal("the shim is broken"), "INTERNAL"),
        ("s2", Status::unavailable("ttrpc: closed"), "UNAVAILABLE"),
        ("s3", Status::unknown("check network namespace closed"), "UNKNOWN"),
        ("s4", Status::deadline_exceeded("context deadline exceeded"), "DEADLINE_EXCEEDED"),
    ];
    for (id, status, _) in &refusals {
        runtime.state().sandbox_statuses.insert((*id).into(), Err(status.clone()));
    }
    let mut bench = CriBench::new(runtime, NEVER);
    bench.ask(CriRequest::SandboxStatus("s0".into())).await;
    for (id, _, code) in refusals {
        bench.ask(CriRequest::SandboxStatus(id.into())).await;
        let refused = bench.until(told).await.expect_err("it was refused");
        assert_eq!(refused, (id.into(), code.into()));
    }
}

#[tokio::test]
async fn a_shim_that_hangs_is_no_outage() {
    let runtime = FakeRuntime::default();
    let shims = Arc::clone(&runtime.shims);
    let _hung = shims.write().await;
    // This call has a deadline of its own, which is sooner than that of the others.
    let mut bench = CriBench::new(runtime, NEVER);
    bench.ask(CriRequest::SandboxStatus("s1".into())).await;
    let refused = bench.until(told).await.expect_err("nobody answers");
    assert_eq!(refused, ("s1".into(), "DEADLINE_EXCEEDED".into()));
    assert_eq!(bench.counters.errors.load(Ordering::Relaxed), 1);
    // The connection goes on.
    bench.ask(CriRequest::PollNow(None)).await;
    bench
        .until(|event| {
            assert!(!matches!(event, CriEvent::Connected { .. }), "it was cut");
            assert_eq!(outage(event.clone()), None);
            matches!(event, CriEvent::Containers { only: None, .. }).then_some(())
        })
        .await;
}

#[tokio::test]
async fn a_runtime_that_dies_of_the_question_is_not_asked_it_again() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes.push(sandbox("s1"));
    let shims = Arc::clone(&runtime.shims);
    let hung = shims.write().await;
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;
    bench.ask(CriRequest::SandboxStatus("s1".into())).await;
    wait_until("a question", || !asked(&bench).is_empty()).await;
    bench.serving.take().expect("it serves").kill();
    // Should the question have been given up before that, this is what finds nobody.
    bench.ask(CriRequest::PollNow(None)).await;
    bench.until(outage).await;
    drop(hung);
    bench.serving = Some(bench.runtime.serve(&bench.socket));
    for _ in 0..2 {
        bench.ask(CriRequest::PollNow(None)).await;
        bench.full_list().await;
    }
    assert_eq!(asked(&bench), ["s1"]);
}

/// With the lists always due, hundreds of ended containers and hundreds of candidates, none keeps the
/// others waiting.
#[tokio::test]
async fn candidates_containers_and_lists_do_not_wait_for_each_other() {
    const MANY: usize = 300;
    let runtime = FakeRuntime::default();
    for n in 0..MANY {
        let mut state = runtime.state();
        let (pod, name) = (format!("s{n}"), format!("c{n}"));
        state.add_exited(&name, &pod);
        state.sandbox_statuses.insert(pod.clone(), Ok(sandbox_status(INFO)));
    }
    let mut bench = CriBench::new(runtime, Duration::from_nanos(1));
    // Full lists come more seldom if they cost more than they may.
    bench.ask(CriRequest::StartFastPoll(vec!["s0".into()])).await;
    for n in 0..MANY {
        bench.ask(CriRequest::SandboxStatus(format!("s{n}").as_str().into())).await;
    }
    let (mut candidates, mut ends, mut lists) = (0, 0, 0);
    while candidates < MANY / 2 || ends < MANY / 2 || lists < 3 {
        assert!(candidates < MANY && ends < MANY, "{candidates}, {ends}, {lists}: all of one kind");
        match bench.event().await {
            CriEvent::SandboxStatus(_) => candidates += 1,
            CriEvent::ContainerExited(_) => ends += 1,
            CriEvent::Containers { .. } => lists += 1,
            CriEvent::Unreachable { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
}
