//! Inputs that the stories lack: answers to the engine's requests, lists of what a story names, and the host.

use crate::{
    node::{has, process},
    story::Story,
};
use coroner_core::{
    ids::{CgroupId, ContainerId, SandboxId, Tgid},
    input::{
        ApiEvent, ApiPod, ConnectionEvent, ContainerState, CriContainer, CriEvent,
        CriSandboxStatus, HostEvent, HostSurvey, Input, KernelFact, KubeletEvent, NetNamespace,
        NetworkCounters, PodCgroup, PodCheck, PodVolume, ProcProcess, ProcReport, SandboxNetwork,
        Shim, TaskState, TrafficBlindness, TrafficCount, TrafficEvent, TrafficFact, TrafficPeer,
        TrafficReading,
    },
    output::{CriRequest, Request, TrafficRequest},
    time::{BootTime, WallTime},
};

/// The input with another value in place of one of its own; `None`: that can be no input.
pub(crate) fn odd(input: &Input, which: u8, how: u8) -> Option<Input> {
    let mut document = serde_json::to_value(input).expect("an input is JSON");
    crate::odd::odd(&mut document, which.into(), how);
    serde_json::from_value(document).ok()
}

/// Whether the request has an answer of its own. The others bring lists sooner, or nothing.
pub(crate) fn is_answered(request: &Request) -> bool {
    match request {
        Request::Cri(request) => {
            matches!(request, CriRequest::FindCgroup(_) | CriRequest::SandboxStatus(_))
        }
        Request::Traffic(request) => !matches!(request, TrafficRequest::Forget(_)),
        Request::TraceSignal { .. } | Request::WatchCgroup { .. } => false,
        Request::VerifyPods(_)
        | Request::ListEvents(_)
        | Request::AskKubelet(_)
        | Request::InspectProcesses(_) => true,
    }
}

/// What an adapter answers, if [`is_answered`].
pub(crate) fn answer(story: &Story, request: &Request, now: BootTime, how: u8) -> Option<Input> {
    Some(match request {
        Request::Cri(CriRequest::FindCgroup(container)) => {
            let cgroup = story.cgroups[usize::from(how) % story.cgroups.len()];
            Input::Cri(CriEvent::ContainerCgroup {
                container: container.clone(),
                cgroup,
                path: if how == u8::MAX { "/" } else { "/odd" }.to_owned(),
            })
        }
        Request::Cri(CriRequest::SandboxStatus(sandbox)) => {
            Input::Cri(sandbox_status(sandbox, now, how))
        }
        Request::Cri(_)
        | Request::TraceSignal { .. }
        | Request::WatchCgroup { .. }
        | Request::Traffic(TrafficRequest::Forget(_)) => return None,
        Request::Traffic(TrafficRequest::Count(wanted)) => {
            traffic(&wanted.sandbox, &wanted.cgroups, true, now, how)
        }
        Request::Traffic(TrafficRequest::Read(sandbox)) => {
            traffic(sandbox, &story.cgroups, false, now, how)
        }
        Request::ListEvents(pod) => Input::Kubelet(KubeletEvent::Events {
            pod: pod.uid.clone(),
            asked: now,
            entries: (how & 1 == 1).then(Vec::new),
        }),
        Request::AskKubelet(asked) => {
            let pods = asked.pods.iter().enumerate();
            let pods = pods.map(|(index, pod)| (pod.clone(), has(how, index))).collect();
            Input::Kubelet(KubeletEvent::Known { asked: now, pods })
        }
        Request::VerifyPods(pods) => {
            let check = |(index, pod): (usize, &coroner_core::ids::PodRef)| PodCheck {
                uid: pod.uid.clone(),
                exists: (how & 3 != 3).then(|| has(how, index)),
            };
            let pods = pods.iter().enumerate().map(check).collect();
            Input::Api(ApiEvent::Checked { asked: now, pods })
        }
        Request::InspectProcesses(wanted) => {
            let process = |index: u32| ProcProcess {
                tgid: Tgid(wanted.main.map_or(1, |main| main.0).saturating_add(index)),
                comm: "app".into(),
                started: wanted.started.unwrap_or_default(),
                state: TaskState::ALL[usize::from(how) % TaskState::ALL.len()],
                thread: has(how, 3).then_some(7),
                wchan: has(how, 4).then(|| "nfs_wait_bit_killable".into()),
                stack: if has(how, 5) { vec!["rpc_wait_bit_killable".into()] } else { Vec::new() },
            };
            let alive = u32::from(how & 3);
            Input::Proc(ProcReport {
                cgroup: wanted.cgroup,
                looked: now,
                alive: has(how, 6).then_some(alive),
                processes: (0..alive).map(process).collect(),
                frozen: Some(has(how, 7)),
            })
        }
    })
}

/// What was counted of a sandbox's connections: nothing at the `beginning`, later some of all that there is.
fn traffic(
    sandbox: &SandboxId,
    cgroups: &[CgroupId],
    beginning: bool,
    now: BootTime,
    how: u8,
) -> Input {
    let blindness = TrafficBlindness::ALL;
    let count = |index: usize| TrafficCount {
        cgroup: cgroups.get(index % (cgroups.len() + 1)).copied(),
        peer: TrafficPeer::ALL[(usize::from(how) + index) % TrafficPeer::ALL.len()],
        event: ConnectionEvent::ALL[(3 * usize::from(how) + index) % ConnectionEvent::ALL.len()],
        count: if has(how, 4) { u64::MAX } else { index as u64 + 1 },
        first: BootTime(now.0.wrapping_sub(u64::from(how) << 24)),
        last: now,
    };
    let counts = if beginning { 0 } else { usize::from(how & 15) };
    let reading = TrafficReading {
        at: now,
        counts: (0..counts).map(count).collect(),
        network: has(how, 5).then(|| NetworkCounters {
            established: u64::from(how >> 6),
            resets_sent: u64::from(how),
            listen_drops: u64::from(how & 1),
            listening: if has(how, 2) { vec![80] } else { Vec::new() },
        }),
        skipped: u64::from(how >> 5),
    };
    let fact = match how % 8 {
        7 => TrafficFact::NotVisible { reason: blindness[usize::from(how >> 3) % blindness.len()] },
        _ if beginning => TrafficFact::Began { reading, sees_refusals: has(how, 3) },
        _ => TrafficFact::Counted { reading },
    };
    Input::Traffic(TrafficEvent { sandbox: sandbox.clone(), fact })
}

fn sandbox_status(sandbox: &SandboxId, asked: BootTime, how: u8) -> CriEvent {
    let sandbox = sandbox.clone();
    let network = match how % 5 {
        0 => return CriEvent::SandboxStatusRefused { sandbox, code: "unknown".into() },
        1 => SandboxNetwork::Host,
        2 => SandboxNetwork::Unknown,
        _ => SandboxNetwork::Own {
            path: Some(netns(usize::from(how >> 6))),
            closed: has(how, 3).then(|| has(how, 4)),
        },
    };
    let ips = if has(how, 5) { vec!["10.0.0.7".into()] } else { Vec::new() };
    CriEvent::SandboxStatus(CriSandboxStatus {
        sandbox,
        asked,
        pid: has(how, 2).then_some(4_242),
        ips,
        network,
    })
}

fn netns(index: usize) -> String {
    format!("/var/run/netns/cni-{index}")
}

/// Everything that the runtime has: those whose bit is set, running or not.
pub(crate) fn lists(story: &Story, asked: BootTime, present: u8, running: u8) -> [Input; 2] {
    let sandboxes = story.sandboxes.iter().cloned().enumerate();
    let sandboxes = sandboxes
        .filter(|(index, _)| has(present, *index))
        .map(|(index, mut one)| {
            one.ready = has(running, index);
            one
        })
        .collect();
    // From the other end: fewer sandboxes than containers are there without the other.
    let state = |index: usize, mut one: CriContainer| {
        one.state = if has(running, 7 - index % 8) {
            ContainerState::Running
        } else {
            ContainerState::Exited
        };
        one
    };
    let containers = story.containers.iter().cloned().enumerate();
    let containers = containers
        .filter(|(index, _)| has(present, 7 - index % 8))
        .map(|(index, one)| state(index, one))
        .collect();
    [
        Input::Cri(CriEvent::Sandboxes { asked, only: None, sandboxes }),
        Input::Cri(CriEvent::Containers { asked, only: None, containers }),
    ]
}

/// A list of pods: those whose bit is set, with a deletion or without.
pub(crate) fn pods(story: &Story, now: WallTime, present: u8, deleted: u8) -> Input {
    let listed = |(index, pod): (usize, &ApiPod)| {
        let mut pod = pod.clone();
        let deletes = has(deleted, index);
        pod.deletion_timestamp = deletes.then_some(now);
        pod.deletion_grace_seconds = deletes.then_some(i64::from(deleted >> 3));
        pod
    };
    let pods = story.pods.iter().enumerate();
    let pods = pods.filter(|(index, _)| has(present, *index)).map(listed).collect();
    Input::Api(ApiEvent::Snapshot { pods })
}

/// What is left on the host, of those whose bit is set: each kind is looked at or not.
pub(crate) fn survey(story: &Story, asked: BootTime, present: u8, how: u8) -> Input {
    let there = |count: usize| (0..count).filter(|index| has(present, *index));
    let shims = there(story.sandboxes.len()).map(|index| Shim {
        process: process(index as u32, how),
        comm: "containerd-shim".into(),
        id: story.sandboxes[index].id.to_string(),
        children: u32::from(how >> 6),
    });
    let namespaces = there(4).map(|index| NetNamespace {
        name: netns(index),
        inode: has(how, 4).then_some(index as u64),
        processes: u32::from(how >> 6),
    });
    let cgroups = there(story.pods.len()).map(|index| PodCgroup {
        pod: story.pod_uid(index),
        cgroup: story.cgroups[index % story.cgroups.len()],
        path: format!("/kubepods/pod{index}"),
        tasks: u32::from(how >> 6),
        pids: vec![77; usize::from(how >> 6)],
    });
    let volumes = there(story.pods.len())
        .map(|index| PodVolume { pod: story.pod_uid(index), volume: "data".into() });
    Input::Host(HostEvent::Survey(HostSurvey {
        asked,
        shims: has(how, 0).then(|| shims.collect()),
        netns: has(how, 1).then(|| namespaces.collect()),
        pod_cgroups: has(how, 2).then(|| cgroups.collect()),
        volumes: has(how, 3).then(|| volumes.collect()),
    }))
}

/// The same of another process: `by` further.
pub(crate) fn of_another_process(mut input: Input, by: u32) -> Input {
    match &mut input {
        Input::Kernel(event) => {
            let task = match &mut event.fact {
                KernelFact::SignalGenerated(signal) => &mut signal.target,
                KernelFact::SignalDelivered { task, .. }
                | KernelFact::Exec { task, .. }
                | KernelFact::Exit { task, .. }
                | KernelFact::Running { task, .. } => task,
                KernelFact::CgroupCreated { cgroup, .. } => {
                    cgroup.0 = cgroup.0.wrapping_add(u64::from(by));
                    return input;
                }
                _ => return input,
            };
            task.tgid.0 = task.tgid.0.wrapping_add(by);
            task.tid = task.tid.wrapping_add(by);
            task.ns_pid = task.ns_pid.map(|pid| pid.wrapping_add(by));
        }
        Input::Cri(CriEvent::ContainerExited(exit)) => {
            exit.container = ContainerId::new(format!("{}{by}", exit.container));
        }
        _ => {}
    }
    input
}

/// What an input itself reports of its times, wrong.
pub(crate) fn shifted(mut input: Input, by: i64) -> Input {
    let moved = |at: BootTime| BootTime(at.0.wrapping_add_signed(by));
    match &mut input {
        Input::Kernel(event) => event.time = moved(event.time),
        Input::Cri(CriEvent::Sandboxes { asked, sandboxes, .. }) => {
            *asked = moved(*asked);
            sandboxes.iter_mut().for_each(|one| one.created.0 = one.created.0.wrapping_add(by));
        }
        Input::Cri(CriEvent::Containers { asked, containers, .. }) => {
            *asked = moved(*asked);
            containers.iter_mut().for_each(|one| one.created.0 = one.created.0.wrapping_add(by));
        }
        Input::Cri(CriEvent::ContainerExited(exit)) => {
            for time in [&mut exit.started, &mut exit.finished].into_iter().flatten() {
                time.0 = time.0.wrapping_add(by);
            }
        }
        Input::Api(ApiEvent::Applied(pod) | ApiEvent::Deleted(pod)) => {
            for time in pod.deletion_timestamp.iter_mut() {
                time.0 = time.0.wrapping_add(by);
            }
            if let Some(seconds) = &mut pod.deletion_grace_seconds {
                *seconds = seconds.wrapping_add(by);
            }
        }
        _ => {}
    }
    input
}
