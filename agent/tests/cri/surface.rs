//! What the adapter may ask of a runtime at all.

use crate::rust_files::rust_files;
use crate::{
    bench::{CriBench, exited},
    runtime::{Call, FakeRuntime},
};
use coroner_core::output::CriRequest;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

#[tokio::test]
async fn makes_no_call_but_those_that_read() {
    let mut bench = CriBench::new(FakeRuntime::with_exited(), Duration::from_millis(1));
    bench.ask(CriRequest::StartFastPoll(vec!["s1".into()])).await;
    bench.ask(CriRequest::FindCgroup("c1".into())).await;
    bench.ask(CriRequest::SandboxStatus("s1".into())).await;
    bench.until(exited).await;
    bench.full_list().await;
    let state = bench.runtime.state();
    assert!(!state.calls.iter().any(|call| matches!(call, Call::Other(_))), "{:?}", state.calls);
}

/// The calls that the adapter's source can make, and the source of all of it.
fn source() -> (Vec<String>, Vec<(PathBuf, String)>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sources/cri");
    let read = |path: PathBuf| (path.clone(), std::fs::read_to_string(path).unwrap());
    let files: Vec<_> = rust_files(&folder).into_iter().map(read).collect();
    let calls = files.iter().find(|(path, _)| path.ends_with("cri/calls.rs")).unwrap();
    let names = calls.1.split("call!(\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let names = names.map(str::to_owned).collect();
    (names, files)
}

#[test]
fn all_calls_that_can_be_made_only_read() {
    let (mut names, files) = source();
    names.sort();
    assert_eq!(
        names,
        [
            "ContainerStatus",
            // Where it takes no event away from the kubelet: see events.rs.
            "GetContainerEvents",
            "ListContainers",
            "ListPodSandbox",
            "PodSandboxStatus",
            "StreamContainers",
            "StreamPodSandboxes",
            "Version",
        ]
    );
    for (path, text) in files {
        assert!(!text.contains("runtime_service_client"), "{}: it can do all", path.display());
        let paths = text.matches("RuntimeService/").count();
        assert_eq!(
            paths,
            usize::from(path.ends_with("cri/calls.rs")),
            "{} has calls of its own",
            path.display()
        );
    }
    let source: String = source().1.into_iter().map(|(_, text)| text).collect();
    for once in ["Call::EVENTS", ".subscribe(", "events::broadcast(&"] {
        assert_eq!(source.matches(once).count(), 1, "{once}");
    }
}
