//! Answers of many megabytes.

use super::{
    bench::{CriBench, NEVER, outage},
    runtime::FakeRuntime,
    things::{entries, sandbox},
};
use coroner_core::{input::CriEvent, output::CriRequest};
use coroner_cri_api::read;

fn padded(id: &str, bytes: usize) -> read::PodSandbox {
    let mut one = sandbox(id);
    one.annotations = entries(&[("padding", &"x".repeat(bytes))]);
    one
}

#[tokio::test]
async fn an_answer_above_16_mib_is_named_and_survived_and_one_below_arrives() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes = (0..17).map(|n| padded(&format!("s{n}"), 1 << 20)).collect();
    let mut bench = CriBench::new(runtime, NEVER);
    // The answer in between ends the first outage, so the second one is reported.
    for _ in 0..2 {
        let (error, code) = bench.until(outage).await;
        assert_eq!(code.as_deref(), Some("OUT_OF_RANGE"));
        assert!(error.contains("ListPodSandbox") && error.contains("16 MiB"), "{error}");
        let rest = bench.runtime.state().sandboxes.split_off(15);
        let left = bench.until(|event| match event {
            CriEvent::Connected { .. } => panic!("the connection was good"),
            CriEvent::Sandboxes { sandboxes, .. } => Some(sandboxes.len()),
            _ => None,
        });
        assert_eq!(left.await, 15);
        bench.runtime.state().sandboxes.extend(rest);
        bench.ask(CriRequest::PollNow(None)).await;
    }
}
