//! A node with thousands of leaked sandboxes.

use super::{
    bench::CriBench,
    runtime::{Call, FakeRuntime},
};
use coroner_core::input::CriEvent;
use std::time::Duration;

fn leaky(number: usize) -> FakeRuntime {
    let runtime = FakeRuntime::default();
    (0..number).for_each(|n| runtime.state().add_exited(&format!("c{n}"), &format!("s{n}")));
    runtime
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
