//! Leaks whose evidence changes: late answers, restarts, pods that are replaced.

use super::leak_doubts::{closed, engine, open, secs, status};
use super::{
    node::{LeakyNode, THRESHOLD, key},
    world::{ids, object, sandbox},
};
use coroner_core::{
    input::*,
    leak::*,
    output::{CriRequest, Report, Request},
};

/// Found by an earlier look for the status, the cause is told later.
#[test]
fn what_comes_later_still_tells_the_cause() {
    let mut one = engine();
    let mut last = None;
    let node =
        ApiNode { boot_id: "b".into(), kubelet_version: "v1.33.1".into(), ready: Some(true) };
    for input in [
        Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }),
        Input::Api(ApiEvent::Snapshot { pods: vec![] }),
        Input::Api(ApiEvent::Node(node)),
        Input::Host(HostEvent::Survey(HostSurvey::default())),
        Input::Cri(CriEvent::Connected { runtime: "t".into(), process: None }),
    ] {
        one.step(Received { at: secs(100), input });
    }
    for t in 101..=900 {
        let at = secs(t);
        one.step(Received {
            at,
            input: Input::Cri(CriEvent::Sandboxes {
                asked: at,
                only: None,
                sandboxes: vec![sandbox(1, false)],
            }),
        });
        one.step(Received {
            at,
            input: Input::Cri(CriEvent::Containers { asked: at, only: None, containers: vec![] }),
        });
        let outputs = one.step(Received { at, input: Input::Tick });
        for request in outputs.requests {
            match request {
                Request::Cri(CriRequest::SandboxStatus(id)) if t > 200 => {
                    one.step(Received { at, input: status(&id, at, open()) });
                }
                Request::VerifyPods(pods) => {
                    let pods = pods
                        .iter()
                        .map(|p| PodCheck { uid: p.uid.clone(), exists: Some(false) })
                        .collect();
                    one.step(Received {
                        at,
                        input: Input::Api(ApiEvent::Checked { asked: at, pods }),
                    });
                }
                _ => {}
            }
        }
        for report in outputs.reports {
            match report {
                Report::LeakOpened(leak) | Report::LeakChanged(leak) => last = Some(leak),
                _ => {}
            }
        }
    }
    let leak = last.unwrap();
    assert!(leak.resources.netns.is_some());
    assert_eq!(leak.cause.kind, LeakCause::CniDeleteFailing, "{:?}", leak.cause);
}

/// A call was late, the runtime is the same process as before.
#[test]
fn a_late_answer_is_no_restart() {
    let mut one = engine();
    let mut last = None;
    let node =
        ApiNode { boot_id: "b".into(), kubelet_version: "v1.33.1".into(), ready: Some(true) };
    let process = Some(DaemonProcess { pid: 700, started: 5 });
    for input in [
        Input::Host(HostEvent::Boot { boot_id: Some("b".into()) }),
        Input::Api(ApiEvent::Snapshot { pods: vec![object(1, false, secs(1))] }),
        Input::Api(ApiEvent::Node(node)),
        Input::Host(HostEvent::Survey(HostSurvey::default())),
        Input::Cri(CriEvent::Connected { runtime: "t".into(), process }),
    ] {
        one.step(Received { at: secs(100), input });
    }
    for t in 101..=600 {
        let at = secs(t);
        if t == 110 {
            one.step(Received {
                at,
                input: Input::Api(ApiEvent::Deleted(object(1, false, secs(1)))),
            });
        }
        if t == 170 {
            // a minute after the pod was gone
            let code = Some("DEADLINE_EXCEEDED".into());
            one.step(Received {
                at,
                input: Input::Cri(CriEvent::Unreachable { error: "timed out".into(), code }),
            });
            one.step(Received {
                at,
                input: Input::Cri(CriEvent::Connected { runtime: "t".into(), process }),
            });
        }
        one.step(Received {
            at,
            input: Input::Cri(CriEvent::Sandboxes {
                asked: at,
                only: None,
                sandboxes: vec![sandbox(1, t < 109)],
            }),
        });
        one.step(Received {
            at,
            input: Input::Cri(CriEvent::Containers { asked: at, only: None, containers: vec![] }),
        });
        let outputs = one.step(Received { at, input: Input::Tick });
        for request in outputs.requests {
            match request {
                Request::Cri(CriRequest::SandboxStatus(id)) => {
                    one.step(Received { at, input: status(&id, at, closed()) });
                }
                Request::VerifyPods(pods) if t > 175 => {
                    let pods = pods
                        .iter()
                        .map(|p| PodCheck { uid: p.uid.clone(), exists: Some(false) })
                        .collect();
                    one.step(Received {
                        at,
                        input: Input::Api(ApiEvent::Checked { asked: at, pods }),
                    });
                }
                _ => {}
            }
        }
        for report in outputs.reports {
            match report {
                Report::LeakOpened(leak) | Report::LeakChanged(leak) => last = Some(leak),
                _ => {}
            }
        }
    }
    let leak = last.unwrap();
    let said: Vec<_> = leak.evidence.iter().map(|e| &e.message).collect();
    assert_ne!(leak.cause.kind, LeakCause::RuntimeRestarted, "{:?} {said:#?}", leak.cause);
}

/// The watch stands and carries nothing: of pods that come meanwhile their sandboxes are all that is
/// known. Each is as old a suspect as its sandbox, and no leak for that when its object goes.
#[test]
fn a_pod_that_the_watch_never_showed_is_gone_since_the_apiserver_said_so() {
    for lived in [5, THRESHOLD - 1, THRESHOLD + 5, 2 * THRESHOLD + 10] {
        let mut node = LeakyNode::new();
        node.seconds(3);
        node.watch_is_stalled = true;
        node.run(1).seconds(lived);
        node.stop(1).delete(1).seconds(THRESHOLD - 1);
        assert!(node.is_quiet(), "it lived for {lived} s: {:?}", node.leaks);
        node.seconds(2 * THRESHOLD + 5);
        assert!(node.leak(1).is_some(), "it lived for {lived} s");
    }
}

/// A told leak of another kind turns into a stuck pod worker the second its pod is deleted.
#[test]
fn superseded_then_deleted() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(3);
    node.sandbox(1).ready = false;
    let (pod, ..) = ids(1);
    let again = CriSandbox { pod, attempt: 1, ..sandbox(2, true) };
    node.sandboxes.insert(again.id.clone(), again);
    node.containers.clear();
    node.seconds(THRESHOLD + 12);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NotreadySuperseded);
    node.delete(1).seconds(1);
    assert!(node.leak(1).is_none(), "its object went one second ago");
    node.seconds(THRESHOLD + 12);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NotreadyNoPod);
}

/// The kubelet starts anew in the very second of the telling.
#[test]
fn a_restart_at_the_wrong_moment() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).stop(1).seconds(2).delete(1).seconds(THRESHOLD - 3);
    let first = node.first_kubelet();
    let DaemonState::Running { process } = first.clone() else { unreachable!() };
    node.kubelet = DaemonState::Ended { process };
    node.seconds(6);
    let process = DaemonProcess { pid: 900, started: node.now * 100 };
    node.kubelet = DaemonState::Running { process };
    node.seconds(600);
    let leak = node.leak(1).unwrap();
    assert_ne!(leak.cause.kind, LeakCause::KubeletDown, "{:?}", leak.cause);
}

/// A static pod's manifest was changed: the old sandbox has another UID, and stays for good.
#[test]
fn an_old_static_pod_left_behind() {
    let mut node = LeakyNode::new();
    let uid = |c: char| c.to_string().repeat(32);
    let of = |n, uid: String, ready| CriSandbox {
        pod: uid.as_str().into(),
        name: "etcd".into(),
        config_source: Some("file".into()),
        ..sandbox(n, ready)
    };
    let old = of(1, uid('a'), false);
    let new = of(2, uid('b'), true);
    node.sandboxes.insert(old.id.clone(), old);
    node.sandboxes.insert(new.id.clone(), new);
    node.seconds(20 * THRESHOLD);
    assert_eq!(node.found, [key(1)]);
}

/// What the runtime answers while leaks cannot be judged counts once they can.
#[test]
fn an_answer_in_an_outage_of_the_apiserver_is_not_lost() {
    let mut node = LeakyNode::new();
    node.run(1).seconds(5).stop(1).seconds(5);
    node.api_answers = false;
    node.seconds(2);
    let network = open();
    node.networks.insert(ids(1).1, network.clone());
    let (sandbox, asked, ips) = (ids(1).1, node.at(), Vec::new());
    let status = CriSandboxStatus { sandbox, asked, pid: None, ips, network };
    node.say(Input::Cri(CriEvent::SandboxStatus(status)));
    node.seconds(5);
    node.api_answers = true;
    node.seconds(THRESHOLD + 8);
    assert_eq!(node.leak(1).unwrap().class, LeakClass::NetnsOpen);
}
