//! A node with as many leaked sandboxes as a message holds.

use crate::{
    bench::CriBench,
    runtime::{Call, FakeRuntime},
    things::{leaked_container, leaked_sandbox, status},
};
use coroner_core::input::{ContainerState, CriEvent};
use coroner_cri_api::v1::{self, ListPodSandboxResponse};
use prost::Message;
use std::time::Duration;

const NUMBER: usize = 14_000;

fn leaky(number: usize, streams: Option<usize>) -> FakeRuntime {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.streams = streams;
        state.sandboxes = (0..number).map(leaked_sandbox).collect();
        state.containers = (0..number).map(leaked_container).collect();
        for n in 0..number {
            let id = leaked_container(n).id;
            state.statuses.insert(id.clone(), status(&id, v1::ContainerState::ContainerExited, 0));
        }
    }
    runtime
}

/// The next full list, and that it is whole.
async fn whole(bench: &mut CriBench, number: usize) {
    let sandboxes = bench.sandboxes().await;
    assert_eq!(sandboxes.len(), number);
    assert!(sandboxes.iter().all(|one| !one.ready && one.config_source.as_deref() == Some("api")));
    let containers = bench.containers().await;
    assert_eq!(containers.len(), number);
    let ended = |state| state == ContainerState::Exited;
    assert!(containers.iter().all(|one| ended(one.state) && one.pre_stop.is_some()));
    assert_eq!(bench.skipped(), 0);
}

#[tokio::test]
async fn fourteen_thousand_leaked_sandboxes_arrive() {
    let size = |runtime: &FakeRuntime| {
        let items = runtime.state().sandboxes.clone();
        ListPodSandboxResponse { items }.encoded_len()
    };
    let runtime = leaky(NUMBER, None);
    let bytes = size(&runtime);
    assert!((13 << 20..16 << 20).contains(&bytes), "{bytes} bytes prove nothing");
    whole(&mut CriBench::new(runtime, Duration::from_secs(3_600)), NUMBER).await;

    let runtime = leaky(2 * NUMBER, Some(500));
    whole(&mut CriBench::new(runtime, Duration::from_secs(3_600)), 2 * NUMBER).await;
}

/// With so many, full lists come a third as often, and the containers' ends are still fetched.
#[tokio::test]
async fn full_lists_are_made_less_often() {
    const IDLE: Duration = Duration::from_millis(200);
    let mut slowest = Vec::new();
    for number in [1_001, 10] {
        let mut bench = CriBench::new(leaky(number, None), IDLE);
        let mut ends = 0;
        let mut began = Vec::new();
        while began.len() < 4 || ends < number {
            match bench.event().await {
                CriEvent::Sandboxes { asked, .. } => began.push(asked.0),
                CriEvent::ContainerExited(_) => ends += 1,
                CriEvent::Unreachable { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        let gaps = began.windows(2).map(|pair| Duration::from_nanos(pair[1] - pair[0]));
        slowest.push(gaps.min().expect("there are gaps"));
        let state = bench.runtime.state();
        let asked = state.calls.iter().filter(|call| matches!(call, Call::Status { .. })).count();
        assert_eq!(asked, number, "each end is fetched once");
    }
    // Never sooner than the interval, however fast the machine is.
    assert!(slowest[0] >= 3 * IDLE && slowest[1] >= IDLE, "{slowest:?}");
}
