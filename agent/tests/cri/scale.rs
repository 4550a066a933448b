//! A node with as many leaked sandboxes as a message holds.

use super::{
    bench::CriBench,
    runtime::{Call, FakeRuntime},
    things::{leaked_container, leaked_sandbox, status},
};
use coroner_core::input::{ContainerState, CriEvent};
use coroner_cri_api::read;
use prost::Message;
use std::time::Duration;

const NUMBER: usize = 14_000;

fn leaky(number: usize) -> FakeRuntime {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.sandboxes = (0..number).map(leaked_sandbox).collect();
        state.containers = (0..number).map(leaked_container).collect();
        for n in 0..number {
            let id = leaked_container(n).id;
            state
                .statuses
                .insert(id.clone(), status(&id, read::ContainerState::ContainerExited, 0));
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
    let runtime = leaky(NUMBER);
    let bytes: usize = runtime.state().sandboxes.iter().map(|one| one.encoded_len() + 4).sum();
    assert!((13 << 20..16 << 20).contains(&bytes), "{bytes} bytes prove nothing");
    whole(&mut CriBench::new(runtime, Duration::from_secs(3_600)), NUMBER).await;
}

/// With so many, full lists come more seldom, and the containers' ends are still fetched.
#[tokio::test]
async fn full_lists_take_no_more_than_one_part_in_a_hundred_of_a_core() {
    const MANY: usize = 2_000;
    let mut slowest = Vec::new();
    for number in [MANY, 10] {
        let mut bench = CriBench::new(leaky(number), Duration::from_millis(20));
        let mut ends = 0;
        let mut began = Vec::new();
        while began.len() < 3 || ends < number {
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
    // Never sooner than the interval, however fast the machine is: decoding an item takes more than 100 ns.
    let one = Duration::from_nanos(100);
    assert!(slowest[0] >= one * 100 * 2 * MANY as u32, "{slowest:?}");
    assert!(slowest[1] >= Duration::from_millis(20), "{slowest:?}");
}
