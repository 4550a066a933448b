//! Leaks without a sandbox: shims, network namespaces and cgroups of no pod, and pods that are stuck.

use super::leaks::{LONG, MARGIN, open};
use super::{
    node::{LeakyNode, THRESHOLD},
    world::{ids, sandbox},
};
use coroner_core::{
    ids::CgroupId,
    input::{
        ApiContainer, CriEvent, DaemonProcess, DaemonState, HostSurvey, Input, NetNamespace,
        PodCgroup, PodVolume, SandboxNetwork, Shim,
    },
    leak::{BlockedOn, DetectionState, Leak, LeakCause, LeakClass, LeakKey},
    time::WallTime,
};

fn surveyed(survey: HostSurvey) -> LeakyNode {
    let mut node = LeakyNode::new();
    node.run(1);
    node.survey = survey;
    node
}

fn shim(pid: u32, id: &str) -> Shim {
    let process = DaemonProcess { pid, started: 77 };
    Shim { process, comm: "containerd-shim".into(), id: id.into(), children: 1 }
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
    assert!(node.gone.is_empty(), "a look that failed shows nothing to be gone");
    node.survey.shims = Some(Vec::new());
    node.seconds(MARGIN);
    assert_eq!(node.gone, [orphan]);
}

fn namespace(name: &str, inode: Option<u64>, processes: u32) -> NetNamespace {
    NetNamespace { name: name.into(), inode, processes }
}

#[test]
fn a_network_namespace_of_nobody() {
    let all = vec![
        namespace("cni-used", Some(1), 2),
        namespace("cni-claimed", Some(2), 0),
        namespace("cni-file", None, 0),
        namespace("cni-orphan", Some(3), 0),
    ];
    let mut node = surveyed(HostSurvey { netns: Some(all), ..HostSurvey::default() });
    let claims = |path: &str| SandboxNetwork::Own { path: Some(path.into()), closed: Some(false) };
    node.networks.insert(ids(1).1, claims("/var/run/netns/cni-claimed"));
    node.seconds(THRESHOLD + 2 * MARGIN);
    assert_eq!(node.found, [LeakKey::Netns { name: "cni-orphan".into(), inode: 3 }]);
}

/// Its remedy would delete the network below a sandbox that still exists (containerd#9673).
#[test]
fn what_an_unreadable_sandbox_may_own_is_no_orphan() {
    let mut node = surveyed(HostSurvey {
        shims: Some(vec![shim(3, "gone")]),
        netns: Some(vec![namespace("cni-orphan", Some(3), 0)]),
        ..HostSurvey::default()
    });
    node.say(Input::Cri(CriEvent::UnreadableSandboxes { count: 1 }));
    node.seconds(LONG);
    assert!(node.is_quiet());
    node.say(Input::Cri(CriEvent::UnreadableSandboxes { count: 0 }));
    node.seconds(LONG);
    assert_eq!(node.found.len(), 2);
}

#[test]
fn a_namespace_that_somebody_unheard_may_claim_is_no_orphan() {
    let all = vec![namespace("cni-orphan", Some(3), 0)];
    let mut node = surveyed(HostSurvey { netns: Some(all), ..HostSurvey::default() });
    node.networks.insert(ids(1).1, SandboxNetwork::Unknown);
    node.seconds(LONG);
    assert!(node.is_quiet());
}

fn group(pod: &str, tasks: u32) -> PodCgroup {
    let pids = (0..tasks).map(|n| 4000 + n).collect();
    let path = format!("/kubepods/pod{pod}");
    PodCgroup { pod: pod.into(), cgroup: CgroupId(9), path, tasks, pids }
}

#[test]
fn a_cgroup_of_no_pod() {
    let orphan = "0000000f-0000-4000-8000-000000000000";
    let of_file = "5d41402abc4b2a76b9719d911017c592";
    let all = vec![group(ids(1).0.as_str(), 3), group(of_file, 1), group(orphan, 2)];
    let mut node = surveyed(HostSurvey { pod_cgroups: Some(all), ..HostSurvey::default() });
    node.seconds(THRESHOLD + 2 * MARGIN);
    let wanted = LeakKey::PodCgroup { pod: orphan.into(), cgroup: CgroupId(9) };
    assert_eq!(node.found, std::slice::from_ref(&wanted));
    let leak = &node.leaks[&wanted];
    assert_eq!(leak.cause.kind, LeakCause::ProcessesRemain);
    assert_eq!(leak.resources.pids, [4000, 4001]);
}

/// A pod that is to go since second 105, with a grace of 30 s.
fn terminating() -> LeakyNode {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5);
    let asked = node.at();
    let pod = node.pods.get_mut(&ids(1).0).unwrap();
    pod.deletion_timestamp = Some(WallTime(asked.0 as i64 + 30_000_000_000));
    pod.deletion_grace_seconds = Some(30);
    node.seconds(1);
    node
}

fn blocked_on(node: &LeakyNode) -> &Leak {
    let key = LeakKey::Pod { uid: ids(1).0 };
    node.leaks.get(&key).unwrap_or_else(|| panic!("{:?}", node.found))
}

const UNTIL_STUCK: u64 = 30 + 10 + THRESHOLD + MARGIN;

#[test]
fn a_pod_that_takes_its_time_is_not_stuck() {
    let mut node = terminating();
    node.seconds(30 + 10 + THRESHOLD - 2).stop(1).collect(1).delete(1).seconds(LONG);
    assert!(node.is_quiet(), "{:?}", node.found);
}

#[test]
fn a_finalizer_holds_the_object() {
    let mut node = terminating();
    node.pods.get_mut(&ids(1).0).unwrap().finalizers = vec!["example.com/hold".into()];
    node.seconds(3).stop(1).collect(1).seconds(UNTIL_STUCK);
    let leak = blocked_on(&node);
    assert_eq!(leak.class, LeakClass::StuckTerminating);
    assert_eq!(leak.blocked_on, Some(BlockedOn::Finalizer));
    assert_eq!(leak.cause.kind, LeakCause::Finalizer);
    assert!(leak.cause.message.contains("example.com/hold"), "{:?}", leak.cause);
    assert_eq!(node.engine.gauges().leaks.blocked_on[&BlockedOn::Finalizer], 1);
    node.delete(1).seconds(2);
    assert_eq!(node.gone.len(), 1);
}

#[test]
fn what_else_a_stuck_pod_may_wait_for() {
    let uid = ids(1).0;
    let reason = |arrange: &dyn Fn(&mut LeakyNode)| {
        let mut node = terminating();
        arrange(&mut node);
        node.seconds(UNTIL_STUCK + 5);
        let leak = blocked_on(&node);
        (leak.blocked_on.unwrap(), leak.cause.kind)
    };
    let ends = |node: &mut LeakyNode| {
        node.stop(1).collect(1);
    };
    assert_eq!(
        reason(&|node| node.kubelet = DaemonState::Absent),
        (BlockedOn::KubeletGone, LeakCause::KubeletDown)
    );
    assert_eq!(reason(&|_| {}), (BlockedOn::Unknown, LeakCause::Unknown), "nobody kills it");
    assert_eq!(
        reason(&|node| {
            node.cri_answers = false;
            node.seconds(3);
            node.cri_answers = true;
        }),
        (BlockedOn::RuntimeFailing, LeakCause::RuntimeFailing)
    );
    assert_eq!(
        reason(&|node| {
            node.networks.insert(ids(1).1, open());
            node.stop(1);
        }),
        (BlockedOn::RuntimeFailing, LeakCause::CniDeleteFailing)
    );
    let volume = PodVolume { pod: uid.clone(), volume: "kubernetes.io~nfs/data".into() };
    assert_eq!(
        reason(&|node| {
            ends(node);
            node.survey.volumes = Some(vec![volume.clone()]);
        }),
        (BlockedOn::VolumeMounted, LeakCause::VolumeBusy)
    );
    assert_eq!(
        reason(&|node| {
            ends(node);
            node.survey.pod_cgroups = Some(vec![group(uid.as_str(), 2)]);
        }),
        (BlockedOn::CgroupBusy, LeakCause::ProcessesRemain)
    );
    assert_eq!(reason(&ends), (BlockedOn::Unknown, LeakCause::Unknown));
}

#[test]
fn a_node_full_of_leaks_is_told_of_over_some_seconds() {
    let mut node = LeakyNode::new();
    for n in 1..=2_000 {
        node.sandboxes.insert(ids(n).1, sandbox(n, false));
    }
    let mut most = 0;
    for _ in 0..THRESHOLD + 2 * MARGIN {
        let before = node.found.len();
        node.seconds(1);
        most = most.max(node.found.len() - before);
    }
    assert_eq!((node.found.len(), most), (2_000, 500));
    assert_eq!(node.asked.len(), 2_000);
    let gauges = node.engine.gauges().leaks;
    assert_eq!((gauges.reported.values().sum::<usize>(), gauges.candidates), (2_000, 0));
}

/// The object of a pod whose sandbox is leaked may be large; a leak needs little of it.
#[test]
fn little_stays_of_the_object_of_a_leaked_sandbox() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(1);
    let pod = node.pods.get_mut(&ids(1).0).unwrap();
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

/// Otherwise what the first survey shows would look as old as the agent, however late it comes.
#[test]
fn detection_waits_for_the_first_survey() {
    let mut node = LeakyNode::new();
    let state = |node: &LeakyNode| node.engine.gauges().leaks.detection_state;
    node.seconds(4); // surveys are every 5 s
    assert_eq!(state(&node), DetectionState::Starting);
    node.seconds(1);
    assert_eq!(state(&node), DetectionState::Possible);
}

/// What was there when the agent started needs an answer of the runtime, or a look at the host, before
/// it is a candidate; what came later was not there.
#[test]
fn what_needs_an_answer_was_there_before_the_agent_all_the_same() {
    for before in [true, false] {
        let mut node = LeakyNode::new();
        node.run(1).run(2);
        let leak = |node: &mut LeakyNode| {
            node.stop(1);
            node.pods.get_mut(&ids(1).0).unwrap().phase = "Succeeded".into();
            node.networks.insert(ids(1).1, open());
            let orphan = "0000000f-0000-4000-8000-000000000000";
            node.survey.shims = Some(vec![shim(3, "gone")]);
            node.survey.pod_cgroups = Some(vec![group(orphan, 2)]);
            node.survey.netns = Some(vec![namespace("cni-orphan", Some(3), 0)]);
        };
        node.survey = HostSurvey {
            shims: Some(Vec::new()),
            netns: Some(vec![namespace("cni-orphan", Some(3), 1)]),
            pod_cgroups: Some(Vec::new()),
            ..HostSurvey::default()
        };
        if before {
            leak(&mut node);
        }
        node.seconds(20);
        leak(&mut node);
        node.seconds(THRESHOLD + 3 * MARGIN);
        let found: Vec<_> =
            node.leaks.values().map(|leak| (leak.class, leak.preexisting)).collect();
        let wanted = [
            LeakClass::NetnsOpen,
            LeakClass::OrphanShim,
            LeakClass::OrphanNetns,
            LeakClass::OrphanPodCgroup,
        ];
        assert_eq!(found, wanted.map(|class| (class, before)));
    }
}
