//! What looks leaked is reported after the threshold, once it is confirmed, and nothing else ever.

use super::{
    node::{LeakyNode, THRESHOLD, key},
    world::{container, ids, of_file, sandbox},
};
use coroner_core::{
    input::{
        ApiEvent, ContainerState, CriEvent, CriSandbox, CriSandboxStatus, Input, PersistedLeak,
        SandboxNetwork,
    },
    leak::{DetectionState, Leak, LeakClass, LeakKey, LeakedContainer},
    time::{BootTime, WallTime},
};

/// Beyond the threshold: a tick to see it, one to ask, one to report, and a survey's period.
pub(crate) const MARGIN: u64 = 8;
pub(crate) const LONG: u64 = 3 * THRESHOLD;

pub(crate) fn open() -> SandboxNetwork {
    SandboxNetwork::Own { path: Some("/run/netns/cni-1".into()), closed: Some(false) }
}

pub(crate) fn closed() -> SandboxNetwork {
    SandboxNetwork::Own { path: None, closed: Some(true) }
}

/// A pod whose object went while its stopped sandbox stays.
pub(crate) fn left() -> LeakyNode {
    left_with(closed())
}

pub(crate) fn left_with(network: SandboxNetwork) -> LeakyNode {
    let mut node = LeakyNode::new();
    node.networks.insert(ids(1).1, network);
    node.run(1).seconds(5).stop(1).seconds(2).delete(1);
    node
}

/// A second sandbox of the first pod.
pub(crate) fn newer(node: &mut LeakyNode, ready: bool) {
    let again = CriSandbox { pod: ids(1).0, attempt: 1, ..sandbox(2, ready) };
    node.sandboxes.insert(2, again);
}

/// Another manifest of the same static pod, which has another UID.
fn manifest(node: &mut LeakyNode, n: u64, hash: char, ready: bool) {
    let pod = hash.to_string().repeat(32).as_str().into();
    let one = CriSandbox { pod, name: "etcd".into(), ..of_file(sandbox(n, ready)) };
    node.sandboxes.insert(n, one);
}

pub(crate) fn evidence(leak: &Leak) -> Vec<&str> {
    leak.evidence.iter().map(|one| one.message.as_str()).collect()
}

/// Arranges a node; the first pod's sandbox is a leak of this class after the threshold, and gone when it is removed.
fn check(what: &str, wanted: Option<LeakClass>, arrange: impl Fn(&mut LeakyNode)) {
    let mut node = LeakyNode::new();
    arrange(&mut node);
    node.seconds(THRESHOLD - 2);
    assert!(node.finds_nothing(), "{what}: too early");
    node.seconds(2 * MARGIN);
    assert_eq!(node.leak(1).map(|leak| leak.class), wanted, "{what}");
    assert_eq!(node.found.len(), usize::from(wanted.is_some()), "{what}: {:?}", node.found);
    node.stop_and_collect(1);
    node.seconds(2);
    assert_eq!(node.gone, node.found, "{what}: gone at once");
}

/// One row for each class, and for what only looks like it.
#[test]
fn what_leaks_and_what_does_not() {
    use LeakClass as C;
    let exited = |n: &mut LeakyNode| {
        n.run(1).seconds(5).sandbox(1).ready = false;
        n.containers.insert(1, container(1, ContainerState::Exited));
    };
    let stopped = |network: SandboxNetwork| {
        move |n: &mut LeakyNode| {
            n.networks.insert(ids(1).1, network.clone());
            n.run(1).seconds(5).stop(1);
        }
    };
    let listed =
        |one: CriSandbox| move |n: &mut LeakyNode| drop(n.sandboxes.insert(1, one.clone()));
    check("runs without a pod", Some(C::ReadyNoPod), |n| {
        n.run(1).seconds(5).delete(1);
    });
    check("within its first grace, though deleted by force since", None, |n| {
        n.run(1).seconds(5);
        n.marked(1, 3_600);
        n.seconds(5).delete(1);
    });
    check("its object is gone", Some(C::NotreadyNoPod), |n| {
        n.run(1).seconds(5).stop(1).delete(1);
    });
    check("with a container", Some(C::NotreadyWithContainers), |n| {
        exited(n);
        n.delete(1);
    });
    check("never seen with a pod", Some(C::NotreadyNoPod), listed(sandbox(1, false)));
    check("a finished Job, an evicted pod", None, stopped(closed()));
    check("a manifest", None, listed(of_file(sandbox(1, true))));
    check("a stopped manifest", None, listed(of_file(sandbox(1, false))));
    let pod = "5d41402abc4b2a76b9719d911017c592".into();
    let by_uid = CriSandbox { pod, config_source: None, ..sandbox(1, true) };
    check("a manifest by its UID", None, listed(by_uid));
    check("a manifest that was replaced", Some(C::NotreadySuperseded), |n| {
        manifest(n, 1, 'a', false);
        manifest(n, 2, 'b', true);
    });
    check("a newer one runs", Some(C::DuplicateReady), |n| newer(n.run(1), true));
    check("its container is kept for `kubectl logs --previous`", None, |n| {
        exited(n);
        newer(n, true);
    });
    check("a newer one", Some(C::NotreadySuperseded), |n| {
        newer(n.run(1).seconds(3).stop(1), true);
    });
    check("keeps its network", Some(C::NetnsOpen), stopped(open()));
    check("the host's network", None, stopped(SandboxNetwork::Host));
    check("nothing is reported of its network", None, stopped(SandboxNetwork::Unknown));
}

#[test]
fn a_leak_has_its_pod_its_ages_and_its_evidence() {
    let mut node = left();
    node.seconds(THRESHOLD + MARGIN + LONG);
    assert_eq!(node.found, [key(1)], "once");
    let leak = node.leak(1).unwrap();
    assert_eq!(leak.pod.as_ref().unwrap().name, "p1");
    assert_eq!(leak.workload.as_ref().unwrap().to_string(), "Deployment/web");
    assert_eq!(leak.created.map(|at| at.time), Some(WallTime(1)));
    assert_eq!(leak.first_observed.time, WallTime::from_secs(108));
    let said = evidence(leak);
    for wanted in [
        "its object was deleted",
        "its sandbox was no longer ready",
        "the apiserver, queried directly, has no pod of this UID",
        "the kubelet v1.23.1 has not been restarted since",
        "its network namespace is closed",
    ] {
        assert!(said.contains(&wanted), "{wanted}: {said:#?}");
    }
    assert_eq!(leak.resources.netns, None);
}

#[test]
fn what_it_holds_is_reported_until_it_is_released() {
    let mut node = LeakyNode::new();
    node.networks.insert(ids(1).1, open());
    node.run(1).seconds(5);
    node.sandbox(1).ready = false;
    node.containers.insert(1, container(1, ContainerState::Exited));
    node.seconds(THRESHOLD + MARGIN + 3);
    let held = &node.leak(1).unwrap().resources;
    assert_eq!(held.netns.as_deref(), Some("/run/netns/cni-1"));
    assert_eq!(held.ips, ["10.0.0.9", "fd00::9"]);
    let exited = LeakedContainer { name: "c".into(), state: ContainerState::Exited };
    assert_eq!(held.containers, [exited]);
    assert_eq!(node.engine.gauges().leaks.ips, 1, "a pod's place, not one of each family");
    node.networks.insert(ids(1).1, closed());
    node.seconds(65);
    assert_eq!(node.gone, [key(1)]);
}

/// A pod that is being deleted is the leak if it hangs, and its sandbox is none beside it.
#[test]
fn one_fault_is_one_leak() {
    let mut node = LeakyNode::new();
    node.networks.insert(ids(1).1, open());
    node.run(1).seconds(5);
    node.marked(1, 5);
    node.seconds(1).stop(1).seconds(LONG);
    let pod = LeakKey::Pod { uid: ids(1).0 };
    assert_eq!(node.found, std::slice::from_ref(&pod));
    assert!(node.leaks[&pod].resources.netns.is_some(), "it has what the sandbox holds");
    node.delete(1).seconds(2);
    assert_eq!(node.gone, [pod]);
    node.seconds(THRESHOLD + MARGIN);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NotreadyNoPod);
}

#[test]
fn another_class_without_a_pod_is_the_same_leak() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).delete(1).seconds(THRESHOLD + MARGIN);
    node.stop(1).seconds(5);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NotreadyNoPod);
    assert_eq!((node.found.len(), node.gone.len()), (1, 0));
}

#[test]
fn a_leak_of_another_kind_has_a_threshold_of_its_own() {
    for superseded in [true, false] {
        let mut node = LeakyNode::new();
        node.networks.insert(ids(1).1, open());
        node.run(1).seconds(5).stop(1);
        if superseded {
            newer(&mut node, true);
        }
        node.seconds(THRESHOLD + 12);
        assert!(node.leak(1).is_some());
        node.networks.insert(ids(1).1, closed());
        node.delete(1).seconds(1);
        assert!(node.leak(1).is_none(), "its object went one second ago");
        node.seconds(THRESHOLD - 3);
        assert_eq!(node.found.len(), 1);
        node.seconds(15);
        assert_eq!(node.leak(1).unwrap().class, LeakClass::NotreadyNoPod);
        assert!(node.asked.contains(&ids(1).0));
    }
}

#[test]
fn what_certainly_is_gone_is_resolved_even_while_detection_is_suspended() {
    let mut node = left();
    node.seconds(THRESHOLD + MARGIN);
    node.api_answers = false;
    node.seconds(3).collect(1).seconds(2);
    assert_eq!(node.gone, [key(1)]);
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
        assert!(node.finds_nothing(), "nobody knows whether it is there");
        node.cri_is_stalled = false;
        node.seconds(MARGIN);
        assert_eq!(!node.finds_nothing(), stays);
    }
}

#[test]
fn an_outage_of_either_source_pauses_the_count_and_resolves_nothing() {
    for api in [true, false] {
        let mut node = left();
        node.seconds(THRESHOLD / 2);
        (node.api_answers, node.cri_answers) = (!api, api);
        node.seconds(LONG);
        assert!(node.finds_nothing(), "api {api}");
        let wanted =
            if api { DetectionState::ApiOutOfSync } else { DetectionState::CriUnreachable };
        assert_eq!(node.engine.gauges().leaks.detection_state, wanted);
        (node.api_answers, node.cri_answers) = (true, true);
        node.seconds(THRESHOLD / 2 - 2);
        assert!(
            node.finds_nothing(),
            "api {api}: the time before and after count, not that between"
        );
        node.seconds(MARGIN);
        assert_eq!(node.found, [key(1)], "api {api}");
        (node.api_answers, node.cri_answers) = (!api, api);
        node.seconds(LONG);
        (node.api_answers, node.cri_answers) = (true, true);
        node.seconds(LONG);
        assert_eq!((node.found.len(), node.gone.len()), (1, 0));
    }
}

#[test]
fn the_apiserver_must_confirm() {
    let mut node = left();
    node.gets_answer = false;
    node.seconds(2 * LONG);
    assert!(node.finds_nothing());
    node.gets_answer = true;
    node.seconds(250);
    assert_eq!(node.found, [key(1)], "asked again");
}

/// The watch stands and carries nothing: of pods that come meanwhile their sandboxes are all that is known. Each is
/// as old a candidate as its sandbox, and no leak for that when its object goes.
#[test]
fn a_pod_that_the_watch_never_showed_is_gone_since_the_apiserver_answered_so() {
    for lived in [5, THRESHOLD - 1, THRESHOLD + 5, 2 * THRESHOLD + 10] {
        let mut node = LeakyNode::new();
        node.seconds(3);
        node.watch_is_stalled = true;
        node.run(1).seconds(lived);
        node.stop(1).delete(1).seconds(THRESHOLD - 1);
        assert!(node.finds_nothing(), "it lived for {lived} s: {:?}", node.leaks);
        node.seconds(2 * THRESHOLD + 5);
        assert!(node.leak(1).is_some(), "it lived for {lived} s");
    }
}

#[test]
fn another_machines_node_and_none_at_all_suspend_detection() {
    let mut node = left();
    node.boot_id = "another";
    node.api_answers = false;
    node.seconds(2);
    node.api_answers = true;
    node.seconds(LONG);
    assert_eq!(node.engine.gauges().leaks.detection_state, DetectionState::NodeForeign);
    node.tell(Input::Api(ApiEvent::NodeUnknown { missing: true, error: "404".into() }));
    node.seconds(LONG);
    assert!(node.finds_nothing());
    assert_eq!(node.engine.gauges().leaks.detection_state, DetectionState::NodeMissing);
}

#[test]
fn what_an_earlier_run_had_observed_is_remembered_for_a_while() {
    let leaks = || vec![PersistedLeak { key: key(1), first_observed: BootTime(40_000_000_000) }];
    let mut node = LeakyNode::new();
    node.sandboxes.insert(1, sandbox(1, false));
    node.tell(Input::Recalled { leaks: leaks() });
    node.seconds(5); // until the first survey
    node.seconds(THRESHOLD - 2);
    assert!(node.finds_nothing(), "the threshold is this run's own");
    node.seconds(MARGIN);
    assert_eq!(node.leak(1).unwrap().first_observed.time, WallTime::from_secs(40));
    // It is healthy for an hour: what was wrong once is over.
    let mut node = LeakyNode::new();
    node.run(1).seconds(3).tell(Input::Recalled { leaks: leaks() });
    node.seconds(3_600).stop(1).delete(1).seconds(THRESHOLD + MARGIN);
    assert!(node.leak(1).unwrap().first_observed.time >= WallTime::from_secs(3_600));
}

/// What the runtime answers while detection is suspended counts later.
#[test]
fn an_answer_in_an_outage_of_the_apiserver_is_not_lost() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).stop(1).seconds(5);
    node.api_answers = false;
    node.seconds(2);
    node.networks.insert(ids(1).1, open());
    let (sandbox, asked, network) = (ids(1).1, node.at(), open());
    let status = CriSandboxStatus { sandbox, asked, pid: None, ips: Vec::new(), network };
    node.tell(Input::Cri(CriEvent::SandboxStatus(status)));
    node.seconds(5);
    node.api_answers = true;
    node.seconds(THRESHOLD + MARGIN);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NetnsOpen);
}

/// The first status is from before the stop, and the runtime has not answered since.
#[test]
fn a_status_from_before_the_stop_is_no_evidence() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(3);
    let (sandbox, asked, network) = (ids(1).1, node.at(), open());
    let status = CriSandboxStatus { sandbox, asked, pid: None, ips: Vec::new(), network };
    node.tell(Input::Cri(CriEvent::SandboxStatus(status)));
    node.status = None;
    node.seconds(2).stop(1).seconds(LONG);
    assert!(node.finds_nothing(), "{:?}", node.found);
}

#[test]
fn each_sandbox_gets_its_turn_to_be_asked_about() {
    let mut node = LeakyNode::new();
    for n in 1..=400 {
        node.sandboxes.insert(n, sandbox(n, false));
        node.networks.insert(ids(n).1, open());
    }
    // A finished pod beside them, whose network is open as well.
    node.networks.insert(ids(900).1, open());
    node.run(900).seconds(5).stop(900).seconds(1_500);
    assert!(node.leak(900).is_some());
    assert!(node.engine.gauges().leaks.ips >= 400);
}
