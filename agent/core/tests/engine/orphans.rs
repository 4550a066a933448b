//! Leaks without a sandbox, and a node full of leaks.

use super::leaks::{LONG, MARGIN, closed};
use super::{
    node::{LeakyNode, THRESHOLD},
    world::{ids, sandbox},
};
use coroner_core::{
    ids::CgroupId,
    input::{
        ApiContainer, CriEvent, DaemonProcess, HostSurvey, Input, NetNamespace, PodCgroup,
        SandboxNetwork, Shim,
    },
    leak::{LeakCause, LeakClass, LeakKey},
};

pub(crate) fn surveyed(survey: HostSurvey) -> LeakyNode {
    let mut node = LeakyNode::new();
    node.run(1);
    node.survey = survey;
    node
}

pub(crate) fn shim(pid: u32, id: &str) -> Shim {
    let process = DaemonProcess { pid, started: 77 };
    Shim { process, id: id.into() }
}

#[test]
fn a_shim_of_nothing() {
    let (_, sandbox, container) = ids(1);
    let known = [shim(1, sandbox.as_str()), shim(2, container.as_str())];
    let all = known.into_iter().chain([shim(3, "gone")]).collect();
    let mut node = surveyed(HostSurvey { shims: Some(all), ..HostSurvey::default() });
    node.seconds(THRESHOLD + 2 * MARGIN);
    let orphan = LeakKey::Shim { pid: 3, started: 77, id: "gone".into() };
    assert_eq!(node.found, std::slice::from_ref(&orphan));
    assert_eq!(node.leaks[&orphan].class, LeakClass::OrphanShim);
    node.survey.shims = None;
    node.seconds(LONG);
    assert!(node.gone.is_empty(), "a survey that failed shows nothing to be gone");
    node.survey.shims = Some(Vec::new());
    node.seconds(MARGIN);
    assert_eq!(node.gone, [orphan]);
}

fn namespace(name: &str, inode: Option<u64>, processes: u32) -> NetNamespace {
    NetNamespace { name: name.into(), inode, processes }
}

/// A node on which one namespace has no process.
pub(crate) fn with_unused() -> LeakyNode {
    let all = vec![namespace("cni-orphan", Some(3), 0)];
    surveyed(HostSurvey { netns: Some(all), ..HostSurvey::default() })
}

#[test]
fn a_network_namespace_of_nobody() {
    let mut node = with_unused();
    node.survey.netns.as_mut().unwrap().extend([
        namespace("cni-used", Some(1), 2),
        namespace("cni-claimed", Some(2), 0),
        namespace("cni-file", None, 0),
    ]);
    let path = Some("/var/run/netns/cni-claimed".into());
    node.networks.insert(ids(1).1, SandboxNetwork::Own { path, closed: Some(false) });
    node.seconds(THRESHOLD + 2 * MARGIN);
    let orphan = LeakKey::Netns { name: "cni-orphan".into(), inode: 3 };
    assert_eq!(node.found, std::slice::from_ref(&orphan));
    assert_eq!(node.leaks[&orphan].resources.netns.as_deref(), Some("cni-orphan"));
}

#[test]
fn a_namespace_that_a_sandbox_may_claim_is_no_orphan() {
    let mut node = with_unused();
    node.networks.insert(ids(1).1, SandboxNetwork::Unknown);
    node.seconds(LONG);
    assert!(node.finds_nothing());
    let mut node = with_unused();
    node.networks.insert(ids(1).1, closed());
    node.seconds(3).stop(1).seconds(1_000);
    assert_eq!(node.found.len(), 1, "a closed one claims nothing");
    // RunPodSandbox is in CNI ADD: not listed yet, its namespace is empty.
    let mut node = with_unused();
    node.pod(2);
    node.seconds(THRESHOLD + 12);
    assert!(node.finds_nothing(), "{:?}", node.found);
}

/// Its remedy would delete the network below a sandbox that still exists (containerd#9673).
#[test]
fn what_an_unreadable_sandbox_may_own_is_no_orphan() {
    let mut node = with_unused();
    node.survey.shims = Some(vec![shim(3, "gone")]);
    node.tell(Input::Cri(CriEvent::UnreadableSandboxes { count: 1 }));
    node.seconds(LONG);
    assert!(node.finds_nothing());
    node.tell(Input::Cri(CriEvent::UnreadableSandboxes { count: 0 }));
    node.seconds(LONG);
    assert_eq!(node.found.len(), 2);
}

pub(crate) fn group(pod: &str, tasks: u32) -> PodCgroup {
    let pids = (0..tasks).map(|n| 4000 + n).collect();
    let path = format!("/kubepods/pod{pod}");
    PodCgroup { pod: pod.into(), cgroup: CgroupId(9), path, tasks, pids }
}

#[test]
fn a_cgroup_of_no_pod() {
    let orphan = "0000000f-0000-4000-8000-000000000000";
    let of_file = "5d41402abc4b2a76b9719d911017c592";
    let [one, pulls_its_image] = [1, 2].map(|n| group(ids(n).0.as_str(), 3));
    let all = vec![one, pulls_its_image, group(of_file, 1), group(orphan, 2)];
    let mut node = surveyed(HostSurvey { pod_cgroups: Some(all), ..HostSurvey::default() });
    node.pod(2);
    node.seconds(THRESHOLD + 2 * MARGIN);
    let wanted = LeakKey::PodCgroup { pod: orphan.into(), cgroup: CgroupId(9) };
    assert_eq!(node.found, std::slice::from_ref(&wanted));
    let leak = &node.leaks[&wanted];
    assert_eq!(leak.cause.kind, LeakCause::ProcessesRemain);
    assert_eq!(leak.resources.pids, [4000, 4001]);
}

/// Its sandbox and it are gone since the last survey before the threshold.
#[test]
fn a_survey_from_before_the_threshold_is_no_evidence() {
    let mut node =
        surveyed(HostSurvey { shims: Some(vec![shim(3, "gone")]), ..HostSurvey::default() });
    node.seconds(5 + THRESHOLD - 1);
    node.survey.shims = Some(Vec::new());
    node.seconds(LONG);
    assert!(node.finds_nothing(), "{:?}", node.found);
}

#[test]
fn a_node_full_of_leaks_is_reported_over_some_seconds() {
    let mut node = LeakyNode::new();
    for n in 1..=2_000 {
        node.sandboxes.insert(n, sandbox(n, false));
    }
    let mut most = 0;
    for _ in 0..THRESHOLD + 2 * MARGIN {
        let before = node.found.len();
        node.seconds(1);
        most = most.max(node.found.len() - before);
    }
    assert_eq!((node.found.len(), most), (2_000, 500));
    assert_eq!(node.asked.len(), 2_000);
    assert!(node.leaks.values().all(|leak| leak.evidence.is_empty()), "it would only use memory");
    let gauges = node.engine.gauges().leaks;
    assert_eq!((gauges.reported.values().sum::<usize>(), gauges.candidates), (2_000, 0));
    (1_001..=2_000).for_each(|n| node.stop_and_collect(n));
    node.seconds(40);
    assert!(node.leaks.values().all(|leak| !leak.evidence.is_empty()), "there is room again");
}

/// The object of a pod whose sandbox is leaked may be large; a leak needs little of it.
#[test]
fn little_stays_of_the_object_of_a_leaked_sandbox() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(1);
    let pod = node.pod(1);
    let large = ApiContainer { waiting: Some("a-reason".into()), ..ApiContainer::default() };
    pod.containers.insert("a-large-container".into(), large);
    node.seconds(5).stop(1).seconds(2).delete(1).seconds(300);
    let before = node.leak(1).unwrap().clone();
    node.seconds(600);
    let held = format!("{:?}", node.engine);
    assert!(!held.contains("a-large-container") && !held.contains("a-reason"));
    assert_eq!(node.leak(1), Some(&before), "and it is reported as before");
    assert!(node.gone.is_empty());
}
