//! When the lists are asked for, and what is made of them: also of late, large and costly ones.

use super::{
    bench::{CriBench, NEVER, STUCK, exited, outage},
    runtime::{Call, FakeRuntime, container, entries, sandbox, sandbox_status},
};
use coroner_core::{input::CriEvent, output::CriRequest};
use coroner_cri_api::read::{self, ContainerState::*};
use std::{sync::Arc, time::Duration};

#[tokio::test]
async fn tells_who_answers_before_the_first_answer_and_leaves_nonsense_out() {
    let runtime = FakeRuntime::default();
    {
        let mut state = runtime.state();
        state.add("c1", "s1", ContainerRunning, 0);
        state.sandboxes.push(read::PodSandbox { metadata: None, ..sandbox("no-metadata") });
        state.containers.push(container("no-sandbox", "", ContainerRunning));
    }
    let mut bench = CriBench::new(runtime, NEVER);

    let CriEvent::Connected { runtime, process } = bench.event().await else {
        panic!("not connected first")
    };
    assert_eq!(runtime, "containerd 1.7.24");
    let process = process.expect("the peer is this process");
    assert_eq!(process.pid, std::process::id());
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    assert!(stat.split(' ').any(|field| field == process.started.to_string()));

    assert_eq!(bench.event().await, CriEvent::UnreadableSandboxes { count: 1 });
    let CriEvent::Sandboxes { only: None, sandboxes, .. } = bench.event().await else {
        panic!("no sandboxes")
    };
    assert_eq!(sandboxes.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["s1"]);
    assert_eq!(bench.event().await, CriEvent::UnreadableSandboxes { count: 2 });
    let CriEvent::Containers { only: None, containers, .. } = bench.event().await else {
        panic!("no containers")
    };
    assert_eq!(containers.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["c1"]);
    assert_eq!(bench.skipped(), 2);
}

#[tokio::test]
async fn polls_hurried_sandboxes_only_until_relaxed_or_gone() {
    let runtime = FakeRuntime::default();
    runtime.state().add("c1", "s1", ContainerUnknown, 0);
    runtime.state().add("c2", "s2", ContainerUnknown, 0);
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;
    for (sandbox, container) in [("s1", "c1"), ("s2", "c2")] {
        bench.ask(CriRequest::StartFastPoll(vec![sandbox.into()])).await;
        for _ in 0..3 {
            let listed = bench.until(|event| match event {
                CriEvent::Sandboxes { sandboxes, .. } => Some(sandboxes),
                _ => None,
            });
            assert_eq!(
                listed.await.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(),
                [sandbox]
            );
            let listed = bench.until(|event| match event {
                CriEvent::Containers { containers, .. } => Some(containers),
                _ => None,
            });
            assert_eq!(
                listed.await.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(),
                [container]
            );
        }
        if sandbox == "s1" {
            bench.ask(CriRequest::StopFastPoll(vec!["s1".into()])).await;
        } else {
            bench.runtime.state().sandboxes.remove(1);
        }
        // What was under way comes to its end, and then nothing but what is asked for: so many full lists in a
        // row, of which each takes as long as some filtered ones.
        let mut in_a_row = 0;
        while in_a_row < 20 {
            bench.ask(CriRequest::PollNow(None)).await;
            in_a_row = if bench.list().await.0.is_none() { in_a_row + 1 } else { 0 };
        }
    }
}

#[tokio::test]
async fn looks_at_once_when_asked_to() {
    let runtime = FakeRuntime::default();
    runtime.state().sandboxes = vec![sandbox("s1")];
    let mut bench = CriBench::new(runtime, NEVER);
    bench.full_list().await;
    // An unknown sandbox needs the full list.
    for (wanted, listed) in [(Some("s1"), Some("s1")), (Some("never-seen"), None), (None, None)] {
        bench.ask(CriRequest::PollNow(wanted.map(Into::into))).await;
        assert_eq!(bench.list().await.0, listed.map(Into::into), "{wanted:?}");
    }
}

#[tokio::test]
async fn a_storm_of_requests_neither_waits_nor_multiplies() {
    let runtime = FakeRuntime::default();
    let gate = Arc::clone(&runtime.full);
    let closed = gate.write().await;
    let mut bench = CriBench::new(runtime, NEVER);
    bench.until_asked(1).await;
    // The first list hangs in the runtime; requests are taken all the same.
    for n in 0..1_000 {
        bench.ask(CriRequest::PollNow(Some(format!("s{n}").as_str().into()))).await;
    }
    drop(closed);
    bench.full_list().await; // the first
    bench.full_list().await; // the one for all thousand
    let made = bench.calls(|call| matches!(call, Call::Containers(_)));
    // The request that arrives while the second list is under way may cause a third.
    assert!(made <= 3, "{made} lists for one storm");
}

/// Two pods, one of them with a container that has ended.
fn two_pods() -> FakeRuntime {
    let runtime = FakeRuntime::with_exited();
    runtime.state().add("c2", "s2", ContainerUnknown, 0);
    runtime.state().sandbox_statuses.insert("s1".into(), Ok(sandbox_status("{}")));
    runtime
}

#[tokio::test]
async fn a_late_list_delays_nothing_else_and_is_used() {
    let runtime = two_pods();
    let gate = Arc::clone(&runtime.full);
    let closed = gate.write().await;
    let mut bench = CriBench::new(runtime, NEVER);
    bench.until_asked(1).await;

    // Wanted while it is under way, again and again.
    bench.ask(CriRequest::StartFastPoll(vec!["s1".into()])).await;
    bench.ask(CriRequest::SandboxStatus("s1".into())).await;
    let mut first = None;
    let (mut ends, mut statuses, mut lists) = (0, 0, 0);
    while ends == 0 || statuses == 0 || lists < 5 {
        bench.ask(CriRequest::PollNow(None)).await;
        match bench.event().await {
            CriEvent::ContainerExited(_) => ends += 1,
            CriEvent::SandboxStatus(_) => statuses += 1,
            CriEvent::Containers { asked, only, .. } => {
                assert_eq!(only, Some("s1".into()));
                first.get_or_insert(asked);
                lists += 1;
            }
            CriEvent::Unreachable { error, .. } => panic!("an outage: {error}"),
            _ => {}
        }
    }
    bench.until_asked(1).await; // one call of a kind at a time

    drop(closed);
    let asked = bench.full_list().await;
    assert!(asked < first.expect("a list"), "true as of its request, before all these");
    bench.full_list().await; // the one that was asked for meanwhile
    for _ in 0..3 {
        bench.list_without(exited).await;
    }
}

/// The runtime answers all else meanwhile.
#[tokio::test]
async fn silence_beyond_the_limit_is_an_outage_and_all_begins_again() {
    let runtime = two_pods();
    let gate = Arc::clone(&runtime.full);
    let closed = gate.write().await;
    let mut bench = CriBench::with(runtime, |options| options.timeout = Duration::from_millis(100));
    // On a busy machine an earlier call may take that long, too. It is met again and reported again.
    let of_the_list =
        bench.until(|event| outage(event).filter(|(error, _)| error.contains("ListPodSandbox")));
    assert_eq!(of_the_list.await.1.as_deref(), Some("DEADLINE_EXCEEDED"));
    drop(closed);
    bench.until(|event| matches!(event, CriEvent::Containers { .. }).then_some(())).await;
}

#[tokio::test]
async fn the_end_does_not_wait_for_answers() {
    let runtime = two_pods();
    let gate = Arc::clone(&runtime.full);
    let _closed = gate.write().await;
    let bench = CriBench::new(runtime, NEVER);
    bench.until_asked(1).await;
    let CriBench { events, requests, serving, .. } = bench;
    drop(events);
    tokio::time::timeout(STUCK, requests.closed()).await.expect("the adapter still runs");
    drop(serving);
}

#[tokio::test]
async fn an_answer_above_16_mib_is_named_and_survived_and_one_below_arrives() {
    let runtime = FakeRuntime::default();
    let padding = entries(&[("padding", &"x".repeat(1 << 20))]);
    let padded = |n| read::PodSandbox { annotations: padding.clone(), ..sandbox(&format!("s{n}")) };
    runtime.state().sandboxes = (0..17).map(padded).collect();
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

/// With thousands of leaked sandboxes full lists come more seldom, and the containers' ends are still fetched.
#[tokio::test]
async fn full_lists_take_no_more_than_one_part_in_a_hundred_of_a_core() {
    const MANY: usize = 2_000;
    let mut slowest = Vec::new();
    for number in [MANY, 10] {
        let leaky = FakeRuntime::default();
        (0..number).for_each(|n| leaky.state().add_exited(&format!("c{n}"), &format!("s{n}")));
        let mut bench = CriBench::new(leaky, Duration::from_millis(20));
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
        let asked = bench.calls(|call| matches!(call, Call::Status(_)));
        assert_eq!(asked, number, "each end is fetched once");
    }
    // Never sooner than the interval, however fast the machine is: decoding an item takes more than 100 ns.
    let one = Duration::from_nanos(100);
    assert!(slowest[0] >= one * 100 * 2 * MANY as u32, "{slowest:?}");
    assert!(slowest[1] >= Duration::from_millis(20), "{slowest:?}");
}
