//! What is left behind is told after the threshold, and nothing else ever.

use super::{
    node::{LeakyNode, THRESHOLD, key},
    world::{container, ids, of_file, sandbox},
};
use coroner_core::{
    input::{
        ApiEvent, ContainerState, CriSandbox, DaemonProcess, DaemonState, EventReason, Input,
        LookupEvent, PersistedLeak, PostedEvent, SandboxNetwork,
    },
    leak::{DetectionState, Leak, LeakCause, LeakClass, LeakedContainer},
    time::{BootTime, WallTime},
};

/// Beyond the threshold: a tick to see it, one to ask, one to tell, and a survey's period.
pub(crate) const MARGIN: u64 = 8;
pub(crate) const LONG: u64 = 3 * THRESHOLD;

pub(crate) fn open() -> SandboxNetwork {
    SandboxNetwork::Own { path: Some("/run/netns/cni-1".into()), closed: Some(false) }
}

/// A pod whose object went while its stopped sandbox stays.
fn left() -> LeakyNode {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).stop(1).seconds(2).delete(1);
    node
}

fn evidence(leak: &Leak) -> Vec<&str> {
    leak.evidence.iter().map(|one| one.message.as_str()).collect()
}

#[test]
fn a_stopped_sandbox_without_a_pod_is_told_once_after_the_threshold() {
    let mut node = left();
    node.seconds(THRESHOLD);
    assert!(node.is_quiet(), "{:?}", node.found);
    node.seconds(MARGIN).seconds(LONG);
    assert_eq!(node.found, [key(1)]);
    let leak = node.leak(1).unwrap();
    assert_eq!(leak.class, LeakClass::NotreadyNoPod);
    assert_eq!(leak.pod.as_ref().unwrap().name, "p1");
    assert_eq!(leak.workload.as_ref().unwrap().to_string(), "Deployment/web");
    assert_eq!((leak.created.map(|at| at.time), leak.preexisting), (Some(WallTime(1)), false));
    assert_eq!(leak.first_observed.time, WallTime::from_secs(108));
    assert_eq!(leak.cause.kind, LeakCause::PodWorkerStuck, "kubelet 1.23 ran through");
    let said = evidence(leak);
    for wanted in [
        "its object was deleted",
        "its sandbox was no longer ready",
        "the apiserver, queried directly, has no pod of this UID",
        "the kubelet v1.23.1 (pid 800) has not been restarted since",
        "its network namespace is closed",
    ] {
        assert!(said.contains(&wanted), "{wanted}: {said:#?}");
    }
    assert_eq!(leak.resources.netns, None);
}

#[test]
fn cleaned_up_by_hand_it_is_gone_at_once() {
    let mut node = left();
    node.seconds(THRESHOLD + MARGIN).collect(1).seconds(2);
    assert_eq!((node.found.len(), &node.gone[..]), (1, &[key(1)][..]));
}

#[test]
fn gone_while_nothing_can_be_judged_it_is_gone_all_the_same() {
    let mut node = left();
    node.seconds(THRESHOLD + MARGIN);
    node.api_answers = false;
    node.seconds(3).collect(1).seconds(2);
    assert_eq!(node.gone, [key(1)]);
}

#[test]
fn the_kubelet_may_be_late() {
    let mut node = left();
    node.seconds(THRESHOLD - 3).collect(1).seconds(LONG);
    assert!(node.is_quiet());
    assert_eq!(node.engine.gauges().leaks.candidates, 0);
}

/// The runtime's last answer may be older than the threshold's end, and the sandbox gone since.
#[test]
fn what_the_runtime_has_not_listed_after_the_threshold_is_not_reported() {
    for stays in [false, true] {
        let mut node = left();
        node.seconds(THRESHOLD - 3);
        node.cri_is_stalled = true;
        if !stays {
            node.collect(1);
        }
        node.seconds(LONG);
        assert!(node.is_quiet(), "nobody knows whether it is there");
        node.cri_is_stalled = false;
        node.seconds(MARGIN);
        assert_eq!(!node.is_quiet(), stays);
    }
}

#[test]
fn an_outage_of_either_source_pauses_the_count() {
    for api in [true, false] {
        let mut node = left();
        node.seconds(THRESHOLD / 2);
        if api {
            node.api_answers = false
        } else {
            node.cri_answers = false
        }
        node.seconds(LONG);
        assert!(node.is_quiet(), "api {api}");
        let detection_state = node.engine.gauges().leaks.detection_state;
        let wanted =
            if api { DetectionState::ApiOutOfSync } else { DetectionState::CriUnreachable };
        assert_eq!(detection_state, wanted);
        (node.api_answers, node.cri_answers) = (true, true);
        node.seconds(THRESHOLD / 2 - 2);
        assert!(node.is_quiet(), "api {api}: the time before and after count, not that between");
        node.seconds(MARGIN);
        assert_eq!(node.found, [key(1)], "api {api}");
    }
}

#[test]
fn a_leak_that_was_told_stays_told_over_an_outage() {
    let mut node = left();
    node.seconds(THRESHOLD + MARGIN);
    for _ in 0..2 {
        node.cri_answers = !node.cri_answers;
        node.api_answers = !node.api_answers;
        node.seconds(LONG);
    }
    assert_eq!((node.found.len(), node.gone.len()), (1, 0));
}

#[test]
fn without_the_apiservers_own_word_nothing_is_told() {
    let mut node = left();
    node.gets_answer = false;
    node.seconds(2 * LONG);
    assert!(node.is_quiet());
    node.gets_answer = true;
    node.seconds(250);
    assert_eq!(node.found, [key(1)], "asked again");
}

/// The watch has not delivered the pod, and the apiserver knows it.
#[test]
fn a_pod_that_only_the_watch_does_not_know_is_no_leak() {
    let mut node = left();
    node.seconds(3);
    node.watch_is_stalled = true;
    node.create(1);
    node.seconds(LONG);
    assert!(node.is_quiet());
    assert!(node.asked.contains(&ids(1).0));
}

#[test]
fn another_machines_node_and_none_at_all_stop_all_judgement() {
    let mut node = left();
    node.boot_id = "another";
    node.api_answers = false;
    node.seconds(2);
    node.api_answers = true;
    node.seconds(LONG);
    assert!(node.is_quiet());
    assert_eq!(node.engine.gauges().leaks.detection_state, DetectionState::NodeForeign);
    node.say(Input::Api(ApiEvent::NodeUnknown { missing: true, error: "404".into() }));
    node.seconds(LONG);
    assert!(node.is_quiet());
    assert_eq!(node.engine.gauges().leaks.detection_state, DetectionState::NodeMissing);
}

#[test]
fn the_newest_sandbox_of_a_pod_that_exists_is_kept_rightly() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).stop(1).seconds(LONG); // a finished Job, an evicted pod
    assert!(node.is_quiet());
    assert_eq!(node.statuses_asked, 1, "its network is closed: asked once");
}

#[test]
fn static_pods_need_no_object() {
    let mut node = LeakyNode::new();
    node.sandboxes.insert(ids(1).1, of_file(sandbox(1, true)));
    node.sandboxes.insert(ids(2).1, of_file(sandbox(2, false)));
    let hash = CriSandbox {
        pod: "5d41402abc4b2a76b9719d911017c592".into(),
        config_source: None,
        ..sandbox(3, true)
    };
    node.sandboxes.insert(ids(3).1, hash);
    node.seconds(LONG);
    assert!(node.is_quiet(), "{:?}", node.found);
}

#[test]
fn what_was_there_before_the_agent_says_so() {
    let mut node = LeakyNode::new();
    node.sandboxes.insert(ids(1).1, sandbox(1, false));
    node.seconds(THRESHOLD + MARGIN);
    let leak = node.leak(1).expect("found again after a restart of the agent");
    assert!(leak.preexisting);
    assert_eq!(leak.created.map(|at| at.time), Some(WallTime(1)), "the created age is right");
    let is_unknown = |one: &&str| one.starts_with("no record of this pod's object");
    assert!(evidence(leak).iter().any(is_unknown), "{:?}", leak.evidence);
}

#[test]
fn what_an_earlier_run_had_observed_is_remembered() {
    let mut node = LeakyNode::new();
    node.sandboxes.insert(ids(1).1, sandbox(1, false));
    let observed = BootTime(40_000_000_000);
    let leaks = vec![PersistedLeak { key: key(1), first_observed: observed, preexisting: false }];
    node.say(Input::Recalled { leaks });
    node.seconds(5); // until the first survey
    node.seconds(THRESHOLD - 2);
    assert!(node.is_quiet(), "the threshold is this run's own");
    node.seconds(MARGIN);
    let leak = node.leak(1).unwrap();
    assert_eq!((leak.first_observed.time, leak.preexisting), (WallTime::from_secs(40), false));
}

#[test]
fn a_running_sandbox_without_a_pod() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).delete(1).seconds(THRESHOLD + MARGIN);
    let leak = node.leak(1).unwrap();
    assert_eq!(leak.class, LeakClass::ReadyNoPod);
    assert_eq!(leak.cause.kind, LeakCause::PodWorkerGaveUp, "kubelet 1.23");
    let running = LeakedContainer { name: "c".into(), state: ContainerState::Running };
    assert_eq!(leak.resources.containers, [running]);
}

#[test]
fn containers_that_are_not_removed_keep_the_sandbox() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5);
    node.sandbox(1).ready = false;
    node.containers = vec![container(1, ContainerState::Exited)];
    node.delete(1).seconds(THRESHOLD + MARGIN);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NotreadyWithContainers);
    // They go, it stays: the same leak, seen better.
    node.containers.clear();
    node.seconds(5);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NotreadyNoPod);
    assert_eq!((node.found.len(), node.gone.len()), (1, 0));
}

/// A second sandbox of the first pod.
fn newer(node: &mut LeakyNode, ready: bool) {
    let (pod, ..) = ids(1);
    let again = CriSandbox { pod, attempt: 1, ..sandbox(2, ready) };
    node.sandboxes.insert(again.id.clone(), again);
}

#[test]
fn two_sandboxes_of_one_pod() {
    let mut node = LeakyNode::new();
    node.run(1);
    newer(&mut node, true);
    node.seconds(THRESHOLD + MARGIN);
    assert_eq!(node.found, [key(1)], "the newest one is right");
    assert_eq!(node.leak(1).unwrap().class, LeakClass::DuplicateReady);
    assert_eq!(node.leak(1).unwrap().cause.kind, LeakCause::SandboxReplaced);
}

#[test]
fn an_event_of_a_failed_stop_is_evidence() {
    let mut node = left();
    let event = PostedEvent::new(node.at(), 0, EventReason::KillPodFailed);
    let (pod, asked, entries) = (ids(1).0, node.at(), Some(vec![event.clone(), event]));
    node.seconds(2).say(Input::Events(LookupEvent::Events { pod, asked, entries }));
    node.seconds(THRESHOLD + MARGIN);
    let wanted = "by the kubelet's Event, the kubelet failed to stop the pod, 2 times";
    let found = evidence(node.leak(1).unwrap());
    assert!(found.contains(&wanted), "{found:?}");
}

#[test]
fn an_old_sandbox_beside_a_new_one() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(3);
    node.sandbox(1).ready = false;
    node.containers = vec![container(1, ContainerState::Exited)];
    newer(&mut node, true);
    node.seconds(LONG);
    assert!(node.is_quiet(), "its container is kept for `kubectl logs --previous`");
    node.containers.clear();
    node.seconds(THRESHOLD + MARGIN);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NotreadySuperseded);
}

#[test]
fn a_finished_pod_that_keeps_its_network() {
    let mut node = LeakyNode::new();
    node.networks.insert(ids(1).1, open());
    node.run(1).seconds(5).stop(1).seconds(THRESHOLD + MARGIN + 3);
    let leak = node.leak(1).unwrap();
    assert_eq!((leak.class, leak.cause.kind), (LeakClass::NetnsOpen, LeakCause::CniDeleteFailing));
    assert_eq!(leak.resources.netns.as_deref(), Some("/run/netns/cni-1"));
    assert_eq!(leak.resources.ips, ["10.0.0.9", "fd00::9"]);
    assert_eq!(node.engine.gauges().leaks.ips, 1, "a pod's place, not one of each family");
    let closed = SandboxNetwork::Own { path: None, closed: Some(true) };
    node.networks.insert(ids(1).1, closed);
    node.seconds(65);
    assert_eq!(node.gone, [key(1)], "given back");
}

#[test]
fn the_hosts_network_is_never_held() {
    for network in [
        SandboxNetwork::Host,
        SandboxNetwork::Unknown,
        SandboxNetwork::Own { path: Some("/x".into()), closed: None },
    ] {
        let mut node = LeakyNode::new();
        node.networks.insert(ids(1).1, network.clone());
        node.run(1).seconds(5).stop(1).seconds(LONG);
        assert!(node.is_quiet(), "{network:?}");
    }
}

#[test]
fn the_runtime_failed_around_the_end() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).stop(1);
    node.cri_answers = false;
    node.delete(1).seconds(4);
    node.cri_answers = true;
    node.seconds(THRESHOLD + MARGIN);
    let leak = node.leak(1).unwrap();
    assert_eq!(leak.cause.kind, LeakCause::PodWorkerStuck);
    assert!(leak.cause.message.contains("runtime killed when the object was deleted"), "{leak:#?}");
    let said = evidence(leak);
    let is_outage = |one: &&str| one.starts_with("the runtime failed (UNAVAILABLE): ");
    assert!(said.iter().any(is_outage), "{said:#?}");
}

#[test]
fn without_the_kubelet_nobody_cleans_up() {
    let mut node = left();
    node.kubelet = DaemonState::Absent;
    node.seconds(THRESHOLD + MARGIN);
    let leak = node.leak(1).unwrap();
    assert_eq!(leak.cause.kind, LeakCause::KubeletDown);
}

#[test]
fn a_kubelet_that_began_since_is_not_stuck_on_it() {
    let mut node = left();
    node.seconds(3);
    let process = DaemonProcess { pid: 900, started: 120 * 100 };
    node.kubelet = DaemonState::Running { process };
    node.seconds(THRESHOLD + MARGIN);
    assert_eq!(node.leak(1).unwrap().cause.kind, LeakCause::Unknown);
}
