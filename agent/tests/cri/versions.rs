//! Runtimes without CRI v1.

use crate::{
    bench::{CriBench, NEVER, outage},
    runtime::FakeRuntime,
};
use std::sync::atomic::Ordering;

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
