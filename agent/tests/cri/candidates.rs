//! Verbose PodSandboxStatus, for leak candidates only.

use super::{
    bench::{CriBench, NEVER, outage, wait_until},
    runtime::{Call, FakeRuntime, sandbox, sandbox_status},
};
use coroner_core::{
    input::{CriEvent, CriSandboxStatus, SandboxNetwork},
    output::CriRequest,
};
use std::{sync::Arc, time::Duration};
use tonic::Status;

const INFO: &str = r#"{"pid":0,"netNamespaceClosed":false,"config":{"annotations":{"a":"b"}},
    "runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/var/run/netns/cni-1"}]}}}"#;

/// The status of a candidate.
fn told(event: CriEvent) -> Option<CriSandboxStatus> {
    match event {
        CriEvent::SandboxStatus(status) => Some(status),
        CriEvent::Unreachable { error, .. } => panic!("an outage: {error}"),
        _ => None,
    }
}

/// The candidates that were asked about.
fn asked(bench: &CriBench) -> Vec<String> {
    let of = |call: &Call| match call {
        Call::SandboxStatus(sandbox) => Some(sandbox.clone()),
        _ => None,
    };
    bench.runtime.state().calls.iter().filter_map(of).collect()
}

#[tokio::test]
async fn is_asked_about_nobody_else_and_once() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.sandboxes = ["s1", "s2", "odd"].map(sandbox).into();
        state.sandbox_statuses.insert("s1".into(), Ok(sandbox_status(INFO)));
        state.sandbox_statuses.insert("odd".into(), Ok(sandbox_status("{")));
    }
    let mut bench = CriBench::new(runtime, Duration::from_millis(1));
    bench.full_list().await;
    for id in ["gone", "s1", "odd"] {
        bench.ask(CriRequest::SandboxStatus(id.into())).await;
    }
    let status = bench.until(told).await;
    assert_eq!((status.sandbox, status.pid), ("s1".into(), None));
    assert_eq!(status.ips, ["10.88.0.2", "fd00::2"]);
    let path = Some("/var/run/netns/cni-1".to_owned());
    assert_eq!(status.network, SandboxNetwork::Own { path, closed: Some(false) });
    bench.until(told).await;
    assert_eq!(bench.skipped(), 1, "its info cannot be read");
    for _ in 0..5 {
        bench.list_without(told).await;
    }
    assert_eq!(asked(&bench), ["gone", "s1", "odd"]);
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
    let bench = CriBench::new(runtime, NEVER);
    for id in ["b", "c", "a", "b", "c"] {
        bench.ask(CriRequest::SandboxStatus(id.into())).await;
    }
    drop(hung);
    wait_until("the third question", || asked(&bench).len() == 3).await;
    assert_eq!(asked(&bench), ["b", "c", "a"]);
}

/// `UNAVAILABLE` is what containerd says of a dead shim: the runtime is not away. A runtime that lacks the call says
/// nothing of the sandbox, and a shim that hangs has a deadline that is sooner than that of the other calls.
#[tokio::test]
async fn a_shim_that_is_dead_or_hangs_is_no_outage() {
    let runtime = FakeRuntime::default();
    let lacking = Status::unimplemented("unknown method");
    runtime.state().sandbox_statuses.insert("s0".into(), Err(lacking));
    let dead = Status::unavailable("ttrpc: closed");
    runtime.state().sandbox_statuses.insert("dead".into(), Err(dead));
    let shims = Arc::clone(&runtime.shims);
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;
    bench.ask(CriRequest::SandboxStatus("s0".into())).await;
    bench.ask(CriRequest::SandboxStatus("dead".into())).await;
    wait_until("two refusals", || bench.errors() == 2).await;
    let _hung = shims.write().await;
    bench.ask(CriRequest::SandboxStatus("hung".into())).await;
    wait_until("a timeout", || bench.errors() == 3).await;
    // The connection goes on.
    bench.ask(CriRequest::PollNow(None)).await;
    let of_another = |event| matches!(event, CriEvent::Connected { .. }).then_some(());
    bench.list_without(of_another).await;
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
        bench.until(|event| matches!(event, CriEvent::Containers { .. }).then_some(())).await;
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

#[tokio::test]
async fn a_candidates_late_status_is_used_while_nothing_else_is_answered() {
    let runtime = FakeRuntime::default();
    runtime.state().sandbox_statuses.insert("s1".into(), Ok(sandbox_status("{}")));
    let (shims, versions) = (Arc::clone(&runtime.shims), Arc::clone(&runtime.versions));
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;
    let (hung, slow) = (shims.write().await, versions.write().await);
    bench.ask(CriRequest::SandboxStatus("s1".into())).await;
    // The second Version asks whether it is the shim that hangs, or the runtime that is slow.
    let asked = || bench.calls(|call| *call == Call::Version);
    wait_until("a question about the runtime", || asked() == 2).await;
    drop(hung);
    assert_eq!(bench.until(told).await.sandbox, "s1".into());
    drop(slow);
}
