//! What is asked about single containers.

use super::{
    bench::{CriBench, exited, unreachable},
    runtime::{Call, FakeRuntime},
    things::{container, status},
};
use coroner_core::output::CriRequest;
use coroner_core::{
    ids::CgroupId,
    input::{CriEvent, CriExit},
    time::WallTime,
};
use coroner_cri_api::read::ContainerState;
use std::{os::unix::fs::MetadataExt, path::Path, sync::atomic::Ordering, time::Duration};
use tonic::Status;

#[tokio::test]
async fn an_end_is_fetched_once() {
    let mut bench = CriBench::new(FakeRuntime::with_exited(), Duration::from_millis(1));
    let exit = bench.until(exited).await;
    let expected = CriExit {
        container: "c1".into(),
        started: Some(WallTime(5)),
        finished: Some(WallTime(9)),
        exit_code: 143,
        reason: "Error".into(),
    };
    assert_eq!(exit, expected);
    for _ in 0..5 {
        bench.list_without_exits().await;
    }
    assert_eq!(bench.statuses_asked("c1"), 1);

    // Removed and listed again (another container for all that the adapter knows): a new story.
    let gone = std::mem::take(&mut bench.runtime.state().containers);
    while !bench.containers().await.is_empty() {}
    bench.runtime.state().containers = gone;
    bench.until(exited).await;
}

#[tokio::test]
async fn a_refused_status_is_asked_for_again_and_no_outage() {
    let runtime = FakeRuntime::with_exited();
    runtime.state().status_failures =
        vec![Status::internal("the shim is busy"), Status::not_found("not yet")];
    let mut bench = CriBench::new(runtime, Duration::from_millis(1));
    let exit = bench.until(|event| {
        assert_eq!(unreachable(event.clone()), None);
        exited(event)
    });
    assert_eq!(exit.await.exit_code, 143);
    assert_eq!(bench.statuses_asked("c1"), 3);
    assert_eq!(bench.counters.errors.load(Ordering::Relaxed), 1, "not found is not an error");
}

#[tokio::test]
async fn learns_stop_signals_where_the_runtime_tells_them() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        for (id, signal) in [("default", 0), ("rtmin-plus-3", 38), ("unheard-of", 99)] {
            state.containers.push(container(id, "s1", ContainerState::ContainerRunning));
            let answer = status(id, ContainerState::ContainerRunning, signal);
            state.statuses.insert(id.into(), answer);
        }
    }
    let mut bench = CriBench::new(runtime, Duration::from_millis(1));
    let told = bench.until(|event| match event {
        CriEvent::StopSignal { container, signal } => Some((container, signal)),
        _ => None,
    });
    assert_eq!(told.await, ("rtmin-plus-3".into(), 37));
    for _ in 0..5 {
        bench
            .until(|event| match event {
                CriEvent::StopSignal { container, .. } => panic!("told again of {container}"),
                CriEvent::Containers { .. } => Some(()),
                _ => None,
            })
            .await;
    }
    for id in ["default", "rtmin-plus-3", "unheard-of"] {
        assert_eq!(bench.statuses_asked(id), 1, "{id}");
    }

    // Its end is asked for all the same.
    let end = status("default", ContainerState::ContainerExited, 0);
    bench.runtime.state().statuses.insert("default".into(), end);
    bench.runtime.state().containers[0].state = ContainerState::ContainerExited.into();
    assert_eq!(bench.until(exited).await.container, "default".into());
}

#[tokio::test]
async fn finds_the_cgroup_of_a_container() {
    // This process plays the container's main process.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = mounts
        .lines()
        .find(|line| line.contains(" - cgroup2 "))
        .and_then(|line| line.split(' ').nth(4))
        .expect("cgroup2 is mounted");

    let runtime = FakeRuntime::default();
    let mut answer = status("c1", ContainerState::ContainerRunning, 0);
    answer.info.insert("info".into(), format!(r#"{{"pid":{}}}"#, std::process::id()));
    runtime.state().statuses.insert("c1".into(), answer);
    let mut bench = CriBench::with(runtime, |options| options.cgroup_root = Some(root.into()));
    bench.ask(CriRequest::FindCgroup("gone".into())).await;
    bench.ask(CriRequest::FindCgroup("c1".into())).await;
    let (container, CgroupId(id), path) = bench
        .until(|event| match event {
            CriEvent::ContainerCgroup { container, cgroup, path } => {
                Some((container, cgroup, path))
            }
            _ => None,
        })
        .await;
    assert_eq!(container, "c1".into());
    let memberships = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let of = |path: &str| {
        let directory = Path::new(root).join(path.trim_start_matches('/'));
        std::fs::metadata(directory).ok().map(|found| found.ino())
    };
    assert_eq!(of(&path), Some(id), "{path}");
    let mine = memberships.lines().find_map(|line| line.strip_prefix("0::"));
    assert_eq!(mine.and_then(of), Some(id), "the cgroup of this process under {root}");
    assert!(
        bench
            .runtime
            .state()
            .calls
            .contains(&Call::Status { container: "c1".into(), verbose: true })
    );
}
