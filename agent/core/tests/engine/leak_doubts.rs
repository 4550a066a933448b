//! Doubts that somebody had about the judge of leaks, each answered by a story.
use super::{
    node::{LeakyNode, THRESHOLD, key},
    world::{container, ids, object, sandbox},
};
use coroner_core::{
    engine::{Engine, Settings},
    ids::{CgroupId, SandboxId},
    input::*,
    leak::*,
    output::{CriRequest, Outputs, Report, Request},
    time::{Anchor, BootTime, WallTime},
};
use std::{collections::BTreeSet, time::Duration};

pub(crate) fn open() -> SandboxNetwork {
    SandboxNetwork::Own { path: Some("/run/netns/cni-1".into()), closed: Some(false) }
}
pub(crate) fn closed() -> SandboxNetwork {
    SandboxNetwork::Own { path: Some("/run/netns/cni-1".into()), closed: Some(true) }
}
pub(crate) fn secs(n: u64) -> BootTime {
    BootTime(n * 1_000_000_000)
}
pub(crate) fn engine() -> Engine {
    let anchor = Anchor { boot_ns: 0, wall_ns: 0 };
    Engine::new(Settings { leak_threshold: Duration::from_secs(30), ..Settings::new(anchor) })
}
pub(crate) fn status(id: &SandboxId, at: BootTime, network: SandboxNetwork) -> Input {
    Input::Cri(CriEvent::SandboxStatus(CriSandboxStatus {
        sandbox: id.clone(),
        asked: at,
        pid: None,
        ips: vec!["10.0.0.9".into()],
        network,
    }))
}

/// Records what one engine is given, its own questions answered, then replays it.
#[test]
fn replay_says_the_same() {
    let mut log: Vec<Received> = Vec::new();
    let mut said_first = Vec::new();
    let mut one = engine();
    let sandboxes: Vec<_> = (1..=60).map(|n| sandbox(n, false)).collect();
    let pods: Vec<_> = (1..=60).map(|n| object(n, false, secs(1))).collect();
    let mut todo: Vec<Received> = vec![];
    let node =
        ApiNode { boot_id: "b".into(), kubelet_version: "v1.23.1".into(), ready: Some(true) };
    for input in [
        Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }),
        Input::Api(ApiEvent::Snapshot { pods }),
        Input::Api(ApiEvent::Node(node)),
        Input::Host(HostEvent::Survey(HostSurvey::default())),
        Input::Cri(CriEvent::Connected { runtime: "t".into(), process: None }),
    ] {
        todo.push(Received { at: secs(100), input });
    }
    for t in 101..=160 {
        let at = secs(t);
        todo.push(Received {
            at,
            input: Input::Cri(CriEvent::Sandboxes {
                asked: at,
                only: None,
                sandboxes: sandboxes.clone(),
            }),
        });
        todo.push(Received {
            at,
            input: Input::Cri(CriEvent::Containers { asked: at, only: None, containers: vec![] }),
        });
        todo.push(Received { at, input: Input::Tick });
    }
    for received in todo {
        let at = received.at;
        let mut queue = vec![received];
        while let Some(received) = queue.pop() {
            log.push(received.clone());
            let outputs = one.step(received);
            for request in &outputs.requests {
                if let Request::Cri(CriRequest::SandboxStatus(id)) = request {
                    queue.insert(0, Received { at, input: status(id, at, open()) });
                }
            }
            said_first.push(outputs);
        }
    }
    let mut other = engine();
    let said_again: Vec<_> = log.into_iter().map(|r| other.step(r)).collect();
    let opened = |report: &&Report| matches!(report, Report::LeakOpened(_));
    let leaks = |all: &[Outputs]| all.iter().flat_map(|o| &o.reports).filter(opened).count();
    assert!(leaks(&said_first) > 0);
    assert_eq!(leaks(&said_first), leaks(&said_again));
    assert_eq!(said_first, said_again);
}

#[test]
fn every_leak_is_inspected() {
    let mut node = LeakyNode::new();
    for n in 1..=400 {
        node.sandboxes.insert(ids(n).1, sandbox(n, false));
        node.networks.insert(ids(n).1, open());
    }
    // A finished pod beside them, whose network is open as well.
    node.networks.insert(ids(900).1, open());
    node.run(900).seconds(5).stop(900);
    node.seconds(1_500);
    let ips = node.engine.gauges().leaks.ips;
    assert!(node.leak(900).is_some(), "NetnsOpen never told");
    assert!(ips >= 400, "{ips}");
}

/// Heard while it ran (an unused namespace made the judge ask), then it finished properly; the
/// runtime refuses its status from then on.
#[test]
fn an_old_status_is_no_evidence() {
    let mut one = engine();
    let mut found = vec![];
    let node =
        ApiNode { boot_id: "b".into(), kubelet_version: "v1.33.1".into(), ready: Some(true) };
    let survey = HostSurvey {
        netns: Some(vec![NetNamespace { name: "cni-2".into(), inode: Some(2), processes: 0 }]),
        ..HostSurvey::default()
    };
    for input in [
        Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }),
        Input::Api(ApiEvent::Snapshot { pods: vec![object(1, false, secs(1))] }),
        Input::Api(ApiEvent::Node(node)),
        Input::Host(HostEvent::Survey(survey)),
        Input::Cri(CriEvent::Connected { runtime: "t".into(), process: None }),
    ] {
        one.step(Received { at: secs(100), input });
    }
    for t in 101..=400 {
        let at = secs(t);
        let ready = t < 110;
        one.step(Received {
            at,
            input: Input::Cri(CriEvent::Sandboxes {
                asked: at,
                only: None,
                sandboxes: vec![sandbox(1, ready)],
            }),
        });
        one.step(Received {
            at,
            input: Input::Cri(CriEvent::Containers { asked: at, only: None, containers: vec![] }),
        });
        let outputs = one.step(Received { at, input: Input::Tick });
        for request in outputs.requests {
            if let Request::Cri(CriRequest::SandboxStatus(id)) = request {
                let input = if ready {
                    status(&id, at, open())
                } else {
                    Input::Cri(CriEvent::SandboxStatusRefused {
                        sandbox: id,
                        code: "DEADLINE_EXCEEDED".into(),
                    })
                };
                one.step(Received { at, input });
            }
        }
        for report in outputs.reports {
            if let Report::LeakOpened(leak) = report {
                found.push((t, leak.class, leak.key.clone()));
            }
        }
    }
    found.retain(|(_, class, _)| *class == LeakClass::NetnsOpen);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_told_leak_turns_only_after_the_threshold() {
    let mut node = LeakyNode::new();
    node.networks.insert(ids(1).1, open());
    node.run(1).seconds(5).stop(1).seconds(THRESHOLD + 12);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NetnsOpen);
    node.networks.insert(ids(1).1, closed());
    node.delete(1).seconds(1);
    assert!(node.leak(1).is_none(), "what was told is no longer so");
    assert_eq!(node.gone, [key(1)]);
    node.seconds(THRESHOLD - 3);
    assert_eq!(node.found.len(), 1, "its object went but a moment ago");
    node.seconds(15);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NotreadyNoPod);
    assert!(node.asked.contains(&ids(1).0));
}

#[test]
fn the_kubelet_is_back() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).stop(1).seconds(2).delete(1);
    node.kubelet = DaemonState::Absent;
    node.seconds(THRESHOLD + 8);
    assert_eq!(node.leak(1).unwrap().cause.kind, LeakCause::KubeletDown);
    let process = DaemonProcess { pid: 900, started: node.now * 100 };
    node.kubelet = DaemonState::Running { process };
    node.seconds(3_600);
    let leak = node.leak(1).unwrap();
    assert_ne!(leak.cause.kind, LeakCause::KubeletDown, "{:?}", leak.cause);
}

#[test]
fn evidence_is_not_crowded_out() {
    let mut node = LeakyNode::new();
    node.networks.insert(ids(1).1, open());
    node.run(1).seconds(5).delete(1).seconds(THRESHOLD + 8);
    let before: Vec<_> = node.leak(1).unwrap().evidence.clone();
    for n in 0..2_400u32 {
        let pod = ids(1).0;
        let pids = vec![5_000 + n / 10];
        let group = PodCgroup {
            path: format!("/kubepods/pod{pod}"),
            pod,
            cgroup: CgroupId(9),
            tasks: 1,
            pids,
        };
        node.survey = HostSurvey { pod_cgroups: Some(vec![group]), ..HostSurvey::default() };
        node.seconds(1);
    }
    let after = &node.leak(1).unwrap().evidence;
    let is_open = |e: &&LeakEvidence| e.message.contains("namespace is still open");
    let same = after.iter().filter(is_open).count();
    let lost: Vec<_> = before.iter().filter(|e| !after.contains(e)).map(|e| &e.message).collect();
    assert!(
        lost.is_empty() && same <= 2,
        "{same} times the same of {}, lost {lost:?}",
        after.len()
    );
}

/// Deleted with an hour of grace, then by force: the object goes, the kubelet still waits
/// (FACTS §7: a shortened grace is not always honoured).
#[test]
fn within_its_grace_nothing_is_left_behind() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5);
    let asked = node.at();
    let pod = node.pods.get_mut(&ids(1).0).unwrap();
    pod.deletion_timestamp = Some(WallTime(asked.0 as i64 + 3_600_000_000_000));
    pod.deletion_grace_seconds = Some(3_600);
    node.seconds(5).delete(1).seconds(THRESHOLD + 8);
    assert!(node.is_quiet(), "{:?} {:?}", node.leak(1).unwrap().class, node.leak(1).unwrap().cause);
}

#[test]
fn a_closed_namespace_claims_nothing() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(3).stop(1);
    node.networks.insert(ids(1).1, SandboxNetwork::Own { path: None, closed: Some(true) });
    node.survey = HostSurvey {
        netns: Some(vec![NetNamespace { name: "cni-2".into(), inode: Some(2), processes: 0 }]),
        ..HostSurvey::default()
    };
    node.seconds(1_000);
    assert_eq!(node.found.len(), 1, "never told");
}

#[test]
fn a_pod_in_creation_has_a_namespace() {
    let mut node = LeakyNode::new();
    node.run(1);
    node.create(2); // RunPodSandbox is in CNI ADD: not listed yet, its namespace is empty
    node.survey = HostSurvey {
        netns: Some(vec![NetNamespace { name: "cni-2".into(), inode: Some(2), processes: 0 }]),
        ..HostSurvey::default()
    };
    node.seconds(THRESHOLD + 12);
    assert!(node.is_quiet(), "{:?}", node.found);
}

/// A shim that a survey of 30 s ago saw is no evidence for a threshold of 10 s.
#[test]
fn an_old_survey_is_no_evidence() {
    let anchor = Anchor { boot_ns: 0, wall_ns: 0 };
    let mut one =
        Engine::new(Settings { leak_threshold: Duration::from_secs(20), ..Settings::new(anchor) });
    let mut found = vec![];
    let node =
        ApiNode { boot_id: "b".into(), kubelet_version: "v1.33.1".into(), ready: Some(true) };
    let process = DaemonProcess { pid: 3, started: 77 };
    let shim =
        Shim { process, comm: "containerd-shim".into(), id: ids(1).1.to_string(), children: 2 };
    for input in [
        Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }),
        Input::Api(ApiEvent::Snapshot { pods: vec![object(1, false, secs(1))] }),
        Input::Api(ApiEvent::Node(node)),
        Input::Cri(CriEvent::Connected { runtime: "t".into(), process: None }),
    ] {
        one.step(Received { at: secs(100), input });
    }
    for t in 101..=200 {
        let at = secs(t);
        let there = t < 112;
        let sandboxes = if there { vec![sandbox(1, t < 111)] } else { vec![] };
        one.step(Received {
            at,
            input: Input::Cri(CriEvent::Sandboxes { asked: at, only: None, sandboxes }),
        });
        one.step(Received {
            at,
            input: Input::Cri(CriEvent::Containers { asked: at, only: None, containers: vec![] }),
        });
        if t == 110 || t == 141 {
            let shims = if t == 110 { vec![shim.clone()] } else { vec![] };
            let survey = HostSurvey { asked: at, shims: Some(shims), ..HostSurvey::default() };
            one.step(Received { at, input: Input::Host(HostEvent::Survey(survey)) });
        }
        for o in one.step(Received { at, input: Input::Tick }).reports {
            if let Report::LeakOpened(leak) = o {
                found.push((t, leak.class));
            }
        }
    }
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn what_is_recalled_is_of_then() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(3);
    let leaks = vec![PersistedLeak { key: key(1), first_observed: secs(40), preexisting: false }];
    node.say(Input::Recalled { leaks });
    // Healthy for an hour; what was wrong once has been mended.
    node.seconds(3_600).stop(1).delete(1).seconds(THRESHOLD + 8);
    let leak = node.leak(1).unwrap();
    assert!(leak.first_observed.time >= WallTime::from_secs(3_600), "{:?}", leak.first_observed);
}
#[allow(dead_code)]
fn unused() {
    let _ = (BTreeSet::<u8>::new(), container(1, ContainerState::Exited));
}

/// Its end was lost on the way; the runtime saw it exit.
#[test]
fn an_exit_that_was_lost() {
    use super::world::{Cgroups, init, runc, shim, signal};
    let mut node = LeakyNode::new();
    node.run(1).seconds(2);
    let of = Cgroups::of(1);
    let (pod, sb, id) = ids(1);
    let kernel = |node: &mut LeakyNode, fact| {
        let time = node.at();
        node.say(Input::Kernel(KernelEvent { time, fact }));
    };
    for (cgroup, parent, name) in [
        (of.pod, None, format!("/kubepods/pod{pod}")),
        (of.pause, Some(of.pod), sb.to_string()),
        (of.own, Some(of.pod), id.to_string()),
    ] {
        kernel(&mut node, KernelFact::CgroupCreated { cgroup, parent, name, scanned: false });
    }
    kernel(&mut node, KernelFact::Exec { cgroup: of.own, task: init(1), parent: shim() });
    node.seconds(2);
    kernel(&mut node, signal(of.own, init(1), 9, runc()));
    node.say(Input::Lost(Loss::new(LossKind::DecidingRingFull, 3)));
    node.sandbox(1).ready = false;
    node.containers = vec![container(1, ContainerState::Exited)];
    node.seconds(1).delete(1).seconds(THRESHOLD + 8);
    let leak = node.leak(1).unwrap();
    let said: Vec<_> = leak.evidence.iter().map(|e| &e.message).collect();
    assert_ne!(leak.cause.kind, LeakCause::ProcessesRemain, "{:?} {said:#?}", leak.cause);
}

/// A kubelet whose process has another name reports that the node is not ready: it runs.
#[test]
fn who_reports_not_ready_runs() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).stop(1).seconds(2).delete(1).seconds(2);
    node.kubelet = DaemonState::Absent;
    let mut other = LeakyNode::new();
    let _ = &mut node;
    other.kubelet = DaemonState::Absent;
    other.run(1).seconds(5).stop(1).seconds(2).delete(1).seconds(2);
    other.say(Input::Api(ApiEvent::Node(ApiNode {
        boot_id: "b".into(),
        kubelet_version: "v1.33.1".into(),
        ready: Some(false),
    })));
    other.seconds(THRESHOLD + 8);
    assert_ne!(
        other.leak(1).unwrap().cause.kind,
        LeakCause::KubeletDown,
        "{:?}",
        other.leak(1).unwrap().cause
    );
}
