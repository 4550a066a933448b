//! What a leak holds, and how it is removed with what the node has.

use super::{
    leaks::{MARGIN, closed, left, left_with, newer, open},
    node::{LeakyNode, THRESHOLD},
    orphans::{group, shim, surveyed, with_unused},
    world::{ids, sandbox},
};
use coroner_core::{
    input::{DaemonState, HostSurvey, NodeTools, PodVolume, SandboxNetwork},
    leak::{LeakCause, LeakClass},
};
use std::{collections::BTreeMap, time::Duration};

/// Its last leak's commands.
fn commands(mut node: LeakyNode, [kubelet, runtime, crictl]: [Option<&str>; 3]) -> String {
    let [kubelet, runtime, crictl] = [kubelet, runtime, crictl].map(|one| one.map(str::to_owned));
    node.survey.tools = NodeTools { kubelet, runtime, crictl };
    node.seconds(3 * THRESHOLD);
    let leak = node.leaks.values().next_back().expect("a leak");
    let steps = leak.remediation.iter();
    let commands = steps.filter_map(|step| step.strip_prefix("$ ").or(step.strip_suffix("node.")));
    commands.map(|one| one.replace(ids(1).1.as_str(), "ID")).collect::<Vec<_>>().join("; ")
}

fn stuck(arrange: impl Fn(&mut LeakyNode)) -> LeakyNode {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).marked(1, 5);
    arrange(node.seconds(1));
    node
}

fn with_cgroup(tasks: u32) -> LeakyNode {
    let all = vec![group("0000000f-0000-4000-8000-000000000000", tasks)];
    surveyed(HostSurvey { pod_cgroups: Some(all), ..HostSurvey::default() })
}

#[test]
fn remedies_name_what_the_node_has() {
    const ALL: [Option<&str>; 3] = [Some("kubelet"), Some("containerd"), None];
    const K3S: [Option<&str>; 3] = [Some("k3s-agent"), Some("k3s-agent"), Some("k3s crictl")];
    let down = || {
        let mut node = left();
        node.kubelet = DaemonState::Absent;
        node
    };
    let kept = |network| {
        let mut node = LeakyNode::new();
        node.networks.insert(ids(1).1, network);
        node.run(1).seconds(3).stop(1);
        node
    };
    let followed = || {
        let mut node = kept(closed());
        newer(&mut node, true);
        node
    };
    let twice = || {
        let mut node = LeakyNode::new();
        newer(node.run(1), true);
        node
    };
    let runs = || {
        let mut node = LeakyNode::new();
        node.run(1).seconds(5).delete(1);
        node
    };
    let newer_kubelet = |cri_answers| {
        let mut node = LeakyNode::new();
        node.version = "v1.33.1";
        node.run(1).seconds(5).stop(1).seconds(2).cri_answers = cri_answers;
        node.delete(1).seconds(3).cri_answers = true;
        node
    };
    let gone = || stuck(|n| _ = n.stop(1).collect(1));
    let held = || {
        stuck(|n| {
            n.stop(1).collect(1);
            let pod = n.pod(1);
            pod.finalizers = vec!["example.com/hold".into()];
            pod.deletion_grace_seconds = Some(0);
        })
    };
    let mounted = || {
        stuck(|n| {
            let volume = PodVolume { pod: ids(1).0, volume: "kubernetes.io~nfs/data".into() };
            n.stop(1).collect(1).survey.volumes = Some(vec![volume]);
        })
    };
    let with_shim =
        || surveyed(HostSurvey { shims: Some(vec![shim(3, "gone")]), ..HostSurvey::default() });
    let rows = [
        (left(), ALL, "systemctl restart kubelet; crictl rmp ID"),
        (left(), K3S, "systemctl restart k3s-agent; k3s crictl rmp ID"),
        (left(), [None; 3], "crictl rmp ID"),
        (
            left(),
            [None, None, Some("")],
            "No crictl was found: install it (cri-tools), or drain and restart the ",
        ),
        (runs(), ALL, "systemctl restart kubelet; crictl stopp ID; crictl rmp ID"),
        (down(), ALL, "systemctl status kubelet; systemctl start kubelet"),
        (newer_kubelet(true), ALL, "crictl rmp ID"),
        (newer_kubelet(false), ALL, "journalctl -u containerd | tail -n 100; crictl rmp ID"),
        (
            left_with(open()),
            ALL,
            "journalctl -u containerd | grep ID; crictl stopp ID; crictl rmp ID",
        ),
        (kept(open()), [None; 3], "crictl stopp ID"),
        (
            kept(open()),
            K3S,
            "cat /var/lib/rancher/k3s/agent/containerd/containerd.log | grep ID; k3s crictl stopp ID",
        ),
        (
            kept(open()),
            [None, Some("rke2-server"), None],
            "cat /var/lib/rancher/rke2/agent/containerd/containerd.log | grep ID; crictl stopp ID",
        ),
        (twice(), ALL, "crictl stopp ID; crictl rmp ID"),
        (followed(), ALL, "crictl rmp ID"),
        (gone(), ALL, "journalctl -u kubelet | grep p1"),
        (held(), ALL, "kubectl -n default get pod p1 -o jsonpath='{.metadata.finalizers}'"),
        (mounted(), ALL, "journalctl -u kubelet | grep -i unmount"),
        (with_shim(), ALL, "ps --ppid 3; kill 3  # the shim of gone"),
        (with_unused(), ALL, "ip netns pids cni-orphan; ip netns delete cni-orphan"),
        (with_cgroup(5), ALL, "ps -o pid,ppid,stat,wchan,args -p 4000,4001,4002,4003"),
        (
            with_cgroup(0),
            ALL,
            "find /sys/fs/cgroup/kubepods/pod0000000f-0000-4000-8000-000000000000 -depth -type d -exec rmdir {} +",
        ),
    ];
    let named = rows.into_iter().map(|(node, tools, wanted)| (commands(node, tools), wanted));
    let wrong: Vec<_> = named.filter(|(named, wanted)| named != wanted).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The sandbox's process comes first, and none twice.
#[test]
fn what_a_sandbox_holds() {
    for (pid, pids) in
        [(Some(41), vec![41, 7, 9]), (Some(0), vec![7, 41, 9]), (None, vec![7, 41, 9])]
    {
        for (ips, places) in
            [(vec!["10.0.0.9", "fd00::9"], 1), (vec!["10.0.0.9"], 1), (vec!["::9"], 1)]
        {
            let mut node = LeakyNode::new();
            node.status = Some((pid, ips));
            node.networks.insert(ids(1).1, open());
            let mut group = group(ids(1).0.as_str(), 3);
            group.pids = vec![7, 41, 9];
            node.survey.pod_cgroups = Some(vec![group]);
            node.run(1).seconds(5).stop(1).seconds(THRESHOLD + MARGIN);
            let held = &node.leak(1).unwrap().resources;
            assert_eq!(held.pids, pids);
            let gauges = node.engine.gauges().leaks;
            assert_eq!(gauges.ips, places);
            let one = (LeakClass::NetnsOpen, LeakCause::CniDeleteFailing);
            assert_eq!(gauges.reported, BTreeMap::from([(one, 1)]));
        }
    }
}

/// The detection clock, and the candidates by it: all, or those that are certain for as long.
#[test]
fn candidates_are_listed_by_the_time_that_they_were_observed() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).stop(1).delete(1);
    node.sandboxes.insert(2, sandbox(2, false));
    let watched = node.engine.gauges().leaks.watched;
    node.seconds(11);
    assert_eq!(node.engine.gauges().leaks.watched - watched, Duration::from_secs(11));
    let listed = |node: &LeakyNode, seconds| {
        let at_least = Duration::from_secs(seconds);
        node.engine.leak_candidates(node.at(), at_least).len()
    };
    assert_eq!([0, 1, 10, 11].map(|seconds| listed(&node, seconds)), [2, 2, 1, 0]);
    node.seconds(THRESHOLD);
    assert!(!node.found.is_empty());
    assert_eq!(node.found.len() + listed(&node, 0), 2, "what is reported is no candidate");
}

/// An open network may be closed by now, an answer may be lost, and what is not reported may be after an upgrade.
#[test]
fn statuses_are_asked_for_now_and_then() {
    for (network, answers, in_10_minutes) in [
        (open(), true, 21),
        (open(), false, 21),
        (SandboxNetwork::Unknown, true, 2),
        (SandboxNetwork::Host, true, 1),
        (closed(), true, 1),
    ] {
        let mut node = LeakyNode::new();
        node.networks.insert(ids(1).1, network.clone());
        node.status = node.status.filter(|_| answers);
        node.run(1).seconds(10).stop(1).seconds(602);
        assert_eq!(node.statuses_asked, in_10_minutes, "{network:?} {answers}");
    }
}
