//! Runtimes of other versions of the protocol.

use crate::{
    bench::{CriBench, NEVER, exited, outage},
    runtime::{Call, FakeRuntime, Speaks},
    things::sandbox_status,
};
use coroner_core::input::CriEvent;
use coroner_core::output::CriRequest;
use std::sync::atomic::Ordering;

/// containerd 1.4 and 1.5 have only v1alpha2: all that is asked of others is asked of them.
#[tokio::test]
async fn a_runtime_of_v1alpha2_alone_is_understood() {
    let runtime = FakeRuntime::with_exited();
    {
        let mut state = runtime.state();
        state.speaks = Speaks::V1Alpha2;
        state.named = Some(("containerd", "1.4.13~ds1"));
        state.sandbox_statuses.insert("s1".into(), Ok(sandbox_status("s1", "{}")));
    }
    let mut bench = CriBench::new(runtime, NEVER);
    let CriEvent::Connected { runtime, .. } = bench.event().await else {
        panic!("not connected first")
    };
    assert_eq!(runtime, "containerd 1.4.13~ds1");
    let CriEvent::Sandboxes { sandboxes, .. } = bench.event().await else { panic!("no sandboxes") };
    assert_eq!(sandboxes[0].name, "pod-s1");
    let CriEvent::Containers { containers, .. } = bench.event().await else {
        panic!("no containers")
    };
    assert_eq!(containers[0].name, "name-c1");
    assert_eq!(bench.until(exited).await.exit_code, 143);
    bench.ask(CriRequest::SandboxStatus("s1".into())).await;
    let told = |event| match event {
        CriEvent::SandboxStatus(status) => Some(status),
        _ => None,
    };
    assert_eq!(bench.until(told).await.ips, ["10.88.0.2", "fd00::2"]);
    assert_eq!(bench.counters.errors.load(Ordering::Relaxed), 0, "an old runtime is no error");
    let versions =
        bench.runtime.state().calls.iter().filter(|call| **call == Call::Version).count();
    assert_eq!(versions, 1, "it is asked once per connection");
}

#[tokio::test]
async fn what_speaks_neither_is_told_so_and_asked_again() {
    let runtime = FakeRuntime::default();
    runtime.state().speaks = Speaks::Neither;
    let mut bench = CriBench::new(runtime, NEVER);
    let (error, code) = bench.until(outage).await;
    assert!(error.contains("v1alpha2") && error.contains("socket"), "{error}");
    assert_eq!(code.as_deref(), Some("UNIMPLEMENTED"));
    assert!(bench.counters.errors.load(Ordering::Relaxed) > 0);
    // As when the plugin was only not ready yet.
    bench.runtime.state().speaks = Speaks::V1;
    bench.full_list().await;
}
