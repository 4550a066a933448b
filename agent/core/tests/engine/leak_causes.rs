//! Causes: what a source states of this very thing, later than the deletion and not contradicted since.

use super::{
    leaks::{MARGIN, closed, evidence, left, left_with, open},
    node::{LeakyNode, THRESHOLD},
    orphans::group,
    world::{container, ids},
};
use coroner_core::{
    events::NETWORK_FAILURES,
    input::*,
    leak::{Leak, LeakCause, LeakKey},
};

/// The words for a network that could not be removed.
const CNI: Option<&str> = Some(NETWORK_FAILURES[0]);

/// The kubelet posts that it could not stop the pod.
fn post(node: &mut LeakyNode, words: Option<&str>) {
    let mut event = PostedEvent::new(node.at(), 0, EventReason::KillPodFailed);
    event.message = words.map(str::to_owned);
    let (pod, asked, entries) = (ids(1).0, node.at(), Some(vec![event.clone(), event]));
    node.tell(Input::Events(LookupEvent::Events { pod, asked, entries }));
}

/// The kubelet is started again now.
fn restart(node: &mut LeakyNode) {
    let process = DaemonProcess { pid: 900, started: node.now / 10 };
    node.kubelet = DaemonState::Running { process };
}

fn the_leak(mut node: LeakyNode) -> Leak {
    node.seconds(THRESHOLD + MARGIN);
    node.leak(1).unwrap().clone()
}

/// The cause of the sandbox's leak, whose sentence has these words.
fn check(what: &str, node: LeakyNode, wanted: LeakCause, words: &str) {
    let leak = the_leak(node);
    assert_eq!(leak.cause.kind, wanted, "{what}: {leak:#?}");
    assert!(leak.cause.message.contains(words), "{what}: {:?}", leak.cause);
}

#[test]
fn causes_of_a_sandbox_without_a_pod() {
    use LeakCause as C;
    let unanswered = || {
        let mut node = LeakyNode::new();
        node.run(1).seconds(5).stop(1);
        node.cri_answers = false;
        node.delete(1).seconds(4);
        node.cri_answers = true;
        node
    };
    let posted = |network, words| {
        let mut node = left_with(network);
        post(node.seconds(2), words);
        node
    };
    check("1.23 ran through", left(), C::PodWorkerStuck, "in terminating (kubernetes#107730)");
    check(
        "the runtime was away",
        unanswered(),
        C::PodWorkerStuck,
        "runtime killed when the object",
    );
    let mut node = left();
    node.kubelet = DaemonState::Absent;
    check("nobody cleans up", node, C::KubeletDown, "nothing cleans up");
    check("an open network", left_with(open()), C::CniDeleteFailing, "its network is not released");
    let stated = posted(SandboxNetwork::Unknown, CNI);
    check("the runtime's words", stated, C::CniDeleteFailing, NETWORK_FAILURES[0]);
    let mut node = posted(open(), CNI);
    node.networks.insert(ids(1).1, closed());
    check("the network was released since", node, C::PodWorkerStuck, "");
    let node = posted(SandboxNetwork::Unknown, None);
    check("the stop succeeded later", node, C::PodWorkerStuck, "");
    let mut node = LeakyNode::new();
    node.networks.insert(ids(1).1, SandboxNetwork::Unknown);
    post(node.run(1).seconds(5), CNI);
    node.seconds(2).stop(1).delete(1);
    check("posted before the deletion", node, C::PodWorkerStuck, "");

    let mut node = LeakyNode::new();
    node.version = "v1.33.1";
    node.run(1).seconds(5).stop(1).cri_answers = false;
    node.delete(1).seconds(4).cri_answers = true;
    check(
        "a kubelet that cannot hang",
        node,
        C::RuntimeFailing,
        "was down during the pod's teardown",
    );

    let mut node = left();
    node.kubelet = DaemonState::Absent;
    assert!(evidence(&the_leak(node)).contains(&"the kubelet v1.23.1 does not run"));
    let leak = the_leak(unanswered());
    let is_outage = |one: &&str| one.starts_with("the runtime failed (UNAVAILABLE): ");
    assert!(evidence(&leak).iter().any(is_outage), "{leak:#?}");
    let leak = the_leak(posted(SandboxNetwork::Unknown, CNI));
    assert!(evidence(&leak).iter().any(|one| one.ends_with(NETWORK_FAILURES[0])), "{leak:#?}");
}

/// What the kubelet stated before it was started again, or that it was down, holds no longer; nothing else is known
/// before its garbage collection had its time.
#[test]
fn a_kubelet_that_was_started_again_may_remove_it() {
    for is_down in [true, false] {
        let mut node = left_with(SandboxNetwork::Unknown);
        node.seconds(2);
        match is_down {
            true => node.kubelet = DaemonState::Absent,
            false => post(&mut node, CNI),
        }
        node.seconds(THRESHOLD + MARGIN);
        assert!(node.leak(1).is_some());
        restart(&mut node);
        node.seconds(40);
        assert_eq!(node.leak(1).unwrap().cause.kind, LeakCause::CollectionPending);
        node.seconds(120);
        assert_eq!(node.leak(1).unwrap().cause.kind, LeakCause::Unknown);
    }
}

/// A kubelet 1.23 that is not seen to be stuck is not said to be.
#[test]
fn a_status_that_comes_later_shows_the_cause() {
    let mut node = left_with(SandboxNetwork::Unknown);
    node.seconds(THRESHOLD + MARGIN);
    assert_eq!(node.leak(1).unwrap().cause.kind, LeakCause::PodWorkerStuck);
    node.networks.insert(ids(1).1, open());
    node.seconds(700);
    let leak = node.leak(1).unwrap();
    assert_eq!(leak.cause.kind, LeakCause::CniDeleteFailing);
    assert!(leak.resources.netns.is_some());
}

/// Without its exit, a container that was killed is alive; not if the exit may be lost and the runtime saw it.
#[test]
fn a_container_that_survives_sigkill() {
    for is_lost in [false, true] {
        let mut node = LeakyNode::new();
        node.run(1).seconds(2);
        node.starts(1);
        node.seconds(2).kill(1);
        if is_lost {
            node.lost(LossKind::DecidingRingFull);
        }
        node.sandbox(1).ready = false;
        node.containers.insert(1, container(1, ContainerState::Exited));
        node.seconds(1).delete(1);
        let leak = the_leak(node);
        assert_eq!(leak.cause.kind == LeakCause::ProcessesRemain, !is_lost, "{leak:#?}");
        let is_signal = |one: &&str| one.contains("was sent signal 9 and is still alive");
        assert_eq!(evidence(&leak).iter().any(is_signal), !is_lost);
    }
}

/// A pod that is to go since second 105, with a grace of 30 s.
fn terminating() -> LeakyNode {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5);
    node.marked(1, 30);
    node.seconds(1);
    node
}

const UNTIL_STUCK: u64 = 30 + 10 + THRESHOLD + MARGIN;

#[test]
fn a_pod_that_takes_its_time_is_not_stuck() {
    let mut node = terminating();
    node.seconds(30 + 10 + THRESHOLD - 2).stop(1).collect(1).delete(1).seconds(3 * THRESHOLD);
    assert!(node.finds_nothing(), "{:?}", node.found);
}

/// The cause of the pod's leak, whose sentence has these words.
fn check_stuck(what: &str, wanted: LeakCause, words: &str, arrange: impl Fn(&mut LeakyNode)) {
    let mut node = terminating();
    arrange(&mut node);
    node.seconds(UNTIL_STUCK + 5);
    let leak = &node.leaks[&LeakKey::Pod { uid: ids(1).0 }];
    assert_eq!(leak.cause.kind, wanted, "{what}: {leak:#?}");
    assert!(leak.cause.message.contains(words), "{what}: {:?}", leak.cause);
    let is_held = !node.pods[&1].finalizers.is_empty();
    let names_one = |one: &&str| one.starts_with("finalizers: ");
    assert_eq!(evidence(leak).iter().any(names_one), is_held, "{what}: {leak:#?}");
}

#[test]
fn causes_of_a_stuck_pod() {
    use LeakCause as C;
    fn ends(node: &mut LeakyNode) {
        node.stop(1).collect(1);
    }
    fn holds(node: &mut LeakyNode) {
        node.pod(1).finalizers = vec!["example.com/hold".into()];
    }
    /// The kubelet's own last delete.
    fn last_delete(node: &mut LeakyNode) {
        node.marked(1, 0);
    }
    fn down(node: &mut LeakyNode) {
        node.kubelet = DaemonState::Absent;
    }
    check_stuck("nobody kills it", C::Unknown, "c is alive and was not sent SIGKILL", |_| {});
    check_stuck("nothing is left", C::Unknown, "", ends);
    check_stuck("the kubelet is down", C::KubeletDown, "", down);
    check_stuck("a finalizer holds the object", C::Finalizer, "example.com/hold", |n| {
        holds(n);
        ends(n);
        last_delete(n);
    });
    check_stuck("and the kubelet is down", C::Finalizer, "", |n| {
        holds(n);
        ends(n);
        last_delete(n);
        down(n);
    });
    check_stuck("the kubelet went down before its last delete", C::KubeletDown, "", |n| {
        holds(n);
        ends(n);
        down(n);
    });
    check_stuck("a finalizer, but the pod runs", C::KubeletDown, "", |n| {
        holds(n);
        down(n);
    });
    check_stuck("a finalizer, and its network is open", C::CniDeleteFailing, "", |n| {
        holds(n);
        n.networks.insert(ids(1).1, open());
        n.stop(1);
    });
    check_stuck("a finalizer, and tasks", C::ProcessesRemain, "", |n| {
        holds(n);
        ends(n);
        n.survey.pod_cgroups = Some(vec![group(ids(1).0.as_str(), 2)]);
    });
    check_stuck("nothing is left, though the runtime failed", C::Unknown, "", |n| {
        ends(n);
        n.cri_answers = false;
        n.seconds(3).cri_answers = true;
    });
    check_stuck("the runtime failed", C::RuntimeFailing, "was down", |n| {
        n.cri_answers = false;
        n.seconds(3);
        n.cri_answers = true;
    });
    check_stuck("it cannot be stopped", C::RuntimeFailing, "FailedKillPod", |n| post(n, None));
    check_stuck("an open network", C::CniDeleteFailing, "", |n| {
        n.networks.insert(ids(1).1, open());
        n.stop(1);
    });
    check_stuck("its network is not removed", C::CniDeleteFailing, NETWORK_FAILURES[0], |n| {
        n.networks.insert(ids(1).1, SandboxNetwork::Unknown);
        post(n.stop(1), CNI);
    });
    check_stuck("a volume", C::VolumeBusy, "kubernetes.io~nfs/data", |n| {
        ends(n);
        let volume = PodVolume { pod: ids(1).0, volume: "kubernetes.io~nfs/data".into() };
        n.survey.volumes = Some(vec![volume]);
    });
    check_stuck("tasks", C::ProcessesRemain, "", |n| {
        ends(n);
        n.survey.pod_cgroups = Some(vec![group(ids(1).0.as_str(), 2)]);
    });
}
