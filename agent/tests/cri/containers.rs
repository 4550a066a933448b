//! What is asked about single containers.

use super::{
    bench::{CriBench, exited, outage},
    runtime::{Call, FakeRuntime, status},
};
use coroner_core::{
    ids::{CgroupId, ContainerId},
    input::{CriEvent, CriExit},
    output::CriRequest,
};
use coroner_cri_api::read::{ContainerState, ImageSpec};
use std::{collections::BTreeMap, os::unix::fs::MetadataExt, path::Path, time::Duration};
use tonic::Status;

const SOON: Duration = Duration::from_millis(1);

fn statuses_asked(bench: &CriBench, id: &str) -> usize {
    bench.calls(|call| *call == Call::Status(id.to_owned()))
}

#[tokio::test]
async fn an_end_is_fetched_once() {
    let mut bench = CriBench::new(FakeRuntime::with_exited(), SOON);
    let exit = bench.until(exited).await;
    let expected = CriExit { container: "c1".into(), exit_code: 143, reason: "Error".into() };
    assert_eq!(exit, expected);
    for _ in 0..5 {
        bench.list_without(exited).await;
    }
    assert_eq!(statuses_asked(&bench, "c1"), 1);

    // Removed and listed again (another container for all that the adapter knows): a new story.
    let gone = std::mem::take(&mut bench.runtime.state().containers);
    let is_empty =
        |event| matches!(event, CriEvent::Containers { containers, .. } if containers.is_empty());
    bench.until(|event| is_empty(event).then_some(())).await;
    bench.runtime.state().containers = gone;
    bench.until(exited).await;
}

#[tokio::test]
async fn a_refused_status_is_asked_for_again_and_no_outage() {
    let runtime = FakeRuntime::with_exited();
    runtime.state().status_failures =
        vec![Status::internal("the shim is busy"), Status::not_found("not yet")];
    let mut bench = CriBench::new(runtime, SOON);
    let exit = bench.until(|event| {
        assert_eq!(outage(event.clone()), None);
        exited(event)
    });
    assert_eq!(exit.await.exit_code, 143);
    assert_eq!(statuses_asked(&bench, "c1"), 3);
    assert_eq!(bench.errors(), 1, "not found is not an error");
}

/// Only where the runtime does not state the stop signal, and once for each image.
#[tokio::test]
async fn an_image_is_asked_for_its_stop_signal_once() {
    let runtime = FakeRuntime::default();
    let containers = [("c1", 0, "quit"), ("c2", 0, "quit"), ("c3", 9, "quit"), ("c4", 0, "gone")];
    for (container, signal, image) in containers {
        let mut state = runtime.state();
        state.add(container, &format!("s-{container}"), ContainerState::ContainerRunning, signal);
        let status = state.statuses.get_mut(container).unwrap().status.as_mut().unwrap();
        status.image = Some(ImageSpec { image: format!("{image}:1") });
        status.image_ref = format!("sha256:{image}");
    }
    let mut bench =
        CriBench::with(runtime, |options| (options.idle, options.images) = (SOON, true));
    let mut found = BTreeMap::new();
    while found.len() < 3 {
        let image = bench.until(|event| match event {
            CriEvent::Image { container, image, stop_signal } => {
                Some((container, (image, stop_signal)))
            }
            _ => None,
        });
        let (container, image) = image.await;
        found.insert(container.to_string(), image);
    }
    let found: Vec<_> = found.into_values().collect();
    let expected = [("quit:1", Some(3)), ("quit:1", Some(3)), ("quit:1", None)];
    assert_eq!(found, expected.map(|(image, signal)| (image.to_owned(), signal)));
    let is_image = |event| matches!(event, CriEvent::Image { .. }).then_some(());
    for _ in 0..5 {
        bench.list_without(is_image).await;
    }
    let asked = bench.calls(|call| matches!(call, Call::Image(_)));
    assert_eq!((asked, bench.errors()), (2, 1), "nothing is said of one that cannot be read");
}

fn stop_signal(event: CriEvent) -> Option<(ContainerId, u8)> {
    match event {
        CriEvent::StopSignal { container, signal } => Some((container, signal)),
        _ => None,
    }
}

#[tokio::test]
async fn learns_stop_signals_where_the_runtime_tells_them() {
    let runtime = FakeRuntime::default();
    let all = [("default", 0), ("rtmin-plus-3", 38), ("unheard-of", 99)];
    for (id, signal) in all {
        runtime.state().add(id, "s1", ContainerState::ContainerRunning, signal);
    }
    let mut bench = CriBench::new(runtime, SOON);
    let first = bench.until(|event| {
        assert_eq!(exited(event.clone()), None, "it runs");
        stop_signal(event)
    });
    assert_eq!(first.await, ("rtmin-plus-3".into(), 37));
    for _ in 0..5 {
        bench.list_without(stop_signal).await;
    }
    for (id, _) in all {
        assert_eq!(statuses_asked(&bench, id), 1, "{id}");
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
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let root = mount.and_then(|line| line.split(' ').nth(4)).expect("cgroup2 is mounted");

    let runtime = FakeRuntime::default();
    let mut answer = status("c1", ContainerState::ContainerRunning, 0);
    answer.info.insert("info".into(), format!(r#"{{"pid":{}}}"#, std::process::id()));
    runtime.state().statuses.insert("c1".into(), answer);
    let mut bench = CriBench::with(runtime, |options| options.cgroup_root = Some(root.into()));
    bench.ask(CriRequest::FindCgroup("gone".into())).await;
    bench.ask(CriRequest::FindCgroup("c1".into())).await;
    let found = bench.until(|event| match event {
        CriEvent::ContainerCgroup { container, cgroup, path } => Some((container, cgroup, path)),
        _ => None,
    });
    let (container, CgroupId(id), path) = found.await;
    assert_eq!(container, "c1".into());
    let of = |path: &str| {
        let directory = Path::new(root).join(path.trim_start_matches('/'));
        std::fs::metadata(directory).ok().map(|found| found.ino())
    };
    assert_eq!(of(&path), Some(id), "{path}");
    let memberships = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let mine = memberships.lines().find_map(|line| line.strip_prefix("0::"));
    assert_eq!(mine.and_then(of), Some(id), "the cgroup of this process under {root}");
}
