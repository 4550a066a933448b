//! The most likely cause of a leak. The rules are in docs/leaks.md.

use super::{
    evidence::{EvidenceBuilder, Failure},
    facts::LeakFacts,
};
use crate::{
    cri::Sandbox,
    input::ContainerState,
    leak::{Leak, LeakCause, LeakClass, LeakKey, LikelyCause},
    types::Source,
};

/// Kubelets whose pod workers can hang: from their rewrite in 1.22 until 1.27, where housekeeping asks the
/// runtime itself instead of a cache (kubernetes#107730) and orphans are killed repeatedly
/// (kubernetes#113145).
const HANGING_WORKERS: std::ops::Range<(u32, u32)> = (1, 22)..(1, 27);

/// The most likely cause; adds the evidence on the way.
pub(super) fn of_sandbox(
    facts: &LeakFacts<'_>,
    class: LeakClass,
    sandbox: &Sandbox,
    evidence: &mut EvidenceBuilder<'_>,
) -> LikelyCause {
    let uid = &sandbox.info.pod;
    let end = facts.end_of(uid);
    evidence.object(uid);
    evidence.sandbox(sandbox);
    let failure = evidence.outages_around(end);
    evidence.kubelet_around(end);
    let gone = end.map(|(_, to)| to).or(sandbox.ended.map(|stopped| stopped.latest));
    evidence.kubelet(gone);
    let (kind, message) = likely_cause(facts, class, sandbox, failure);
    LikelyCause { kind, message }
}

fn likely_cause(
    facts: &LeakFacts<'_>,
    class: LeakClass,
    sandbox: &Sandbox,
    failure: Failure,
) -> (LeakCause, String) {
    let node = &facts.stores.node;
    let uid = &sandbox.info.pod;
    let version = node.kubelet_version();
    let written = version.map(|(_, text)| format!("kubelet {text}"));
    let kubelet = written.unwrap_or_else(|| "the kubelet (unknown version)".to_owned());
    let affected = version.map(|(version, _)| HANGING_WORKERS.contains(&version));
    let gone = facts.end_of(uid).map(|(_, to)| to);
    // `None` if neither the kubelet's process nor the end of the pod was seen.
    let uninterrupted_since = gone.and_then(|gone| node.kubelet.uninterrupted_since(gone));
    if node.kubelet_is_down() {
        let message = "the kubelet does not run, so nothing cleans up";
        return (LeakCause::KubeletDown, message.to_owned());
    }
    let open = facts.statuses.is_open(sandbox) == Some(true);
    let alive = facts
        .containers_of(&sandbox.info.id)
        .filter(|container| facts.is_alive(container))
        .collect::<Vec<_>>();
    let killed = alive.iter().find(|container| {
        facts.processes(&container.info.id).is_some_and(|p| p.killed_since().is_some())
    });
    match class {
        LeakClass::DuplicateReady | LeakClass::NotreadySuperseded => {
            let message = "the pod has a newer sandbox, and the kubelet lost track of this one \
                            (as in kubernetes#113073)";
            (LeakCause::SandboxReplaced, message.to_owned())
        }
        _ if let Some(container) = killed => {
            let name = &container.info.name;
            let message = format!("processes of {name} survived SIGKILL");
            (LeakCause::ProcessesRemain, message)
        }
        LeakClass::ReadyNoPod => match (affected, uninterrupted_since) {
            (Some(true), Some(true) | None) if gone.is_some() || !alive.is_empty() => {
                let message = format!(
                    "kubelet pod worker stuck after a runtime error (kubernetes#113145): \
                     {kubelet} gave up killing a pod whose object was gone"
                );
                (LeakCause::PodWorkerGaveUp, message)
            }
            _ => of_runtime(failure, "during the pod's teardown").unwrap_or_else(unknown),
        },
        _ if open && failure == Failure::None => {
            let message = "the sandbox is stopped but keeps its network namespace: the network \
                            plugin's delete fails";
            (LeakCause::CniDeleteFailing, message.to_owned())
        }
        LeakClass::NetnsOpen => {
            of_runtime(failure, "before it released the network").unwrap_or_else(unknown)
        }
        LeakClass::NotreadyNoPod | LeakClass::NotreadyWithContainers => {
            match (affected, uninterrupted_since) {
                (Some(true), Some(true) | None) => {
                    let when = match (failure, gone.is_some()) {
                        (Failure::Away, _) => ", runtime killed as the object went",
                        (Failure::Failed, _) => ", runtime failing as the object went",
                        (Failure::None, true) => "",
                        (Failure::None, false) => ", and the agent did not see how it came about",
                    };
                    let message = format!(
                        "kubelet pod worker stuck in terminating (kubernetes#107730): \
                         {kubelet}{when}"
                    );
                    (LeakCause::PodWorkerStuck, message)
                }
                _ if failure != Failure::None => {
                    let when = format!("during the teardown, and {kubelet} did not retry it");
                    of_runtime(failure, &when).unwrap_or_else(unknown)
                }
                _ => unfinished(facts, sandbox),
            }
        }
        _ => unknown(),
    }
}

fn of_runtime(failure: Failure, when: &str) -> Option<(LeakCause, String)> {
    match failure {
        Failure::None => None,
        Failure::Failed => Some((LeakCause::RuntimeFailing, format!("the runtime failed {when}"))),
        Failure::Away => {
            Some((LeakCause::RuntimeRestarted, format!("the runtime was down {when}")))
        }
    }
}

/// A stopped sandbox with containers is exempt from garbage collection.
fn unfinished(facts: &LeakFacts<'_>, sandbox: &Sandbox) -> (LeakCause, String) {
    let mut containers = facts.containers_of(&sandbox.info.id);
    let odd = containers.find(|container| container.info.state != ContainerState::Exited);
    match odd {
        Some(container) => {
            let name = &container.info.name;
            let message = format!("the runtime cannot stop its container {name}");
            (LeakCause::RuntimeFailing, message)
        }
        None => unknown(),
    }
}

fn unknown() -> (LeakCause, String) {
    (LeakCause::Unknown, "no source shows the cause: see the evidence".to_owned())
}

/// The same for an orphan, with the resources that it holds.
pub(super) fn of_orphan(
    facts: &LeakFacts<'_>,
    leak: &mut Leak,
    evidence: &mut EvidenceBuilder<'_>,
) {
    let cri = &facts.stores.node.runtime;
    if let Some(ended) = cri.last_end() {
        evidence.add(Some(ended), Source::Proc, "the runtime's previous process ended");
    }
    if let Some(run) = cri.running() {
        let message = format_args!("the runtime (pid {}) started", run.process.pid);
        evidence.add(Some(run.began()), Source::Proc, message);
    }
    let survey = facts.survey;
    let (kind, message) = match &leak.key {
        LeakKey::Shim { pid, id, .. } => {
            let shims = survey.and_then(|survey| survey.shims.as_ref());
            let shim = shims.into_iter().flatten().find(|shim| shim.process.pid == *pid);
            if let Some(shim) = shim {
                let message = format_args!("{} runs with {} children", shim.comm, shim.children);
                evidence.add(None, Source::Proc, message);
            }
            evidence.add(
                None,
                Source::Cri,
                format_args!("the runtime lists nothing with the id {id}"),
            );
            leak.resources.pids = vec![*pid];
            let message = "the runtime no longer tracks what this shim runs, usually because the \
             runtime was killed or gave up during a removal";
            (LeakCause::UntrackedByRuntime, message)
        }
        LeakKey::Netns { name, inode } => {
            let message = format_args!("no process is in it (inode {inode})");
            evidence.add(None, Source::Proc, message);
            evidence.add(None, Source::Cri, "no sandbox that the runtime lists claims it");
            leak.resources.netns = Some(name.clone());
            let message = "the runtime no longer tracks the sandbox that this was made for; the network \
             plugin may still have its address allocated";
            (LeakCause::UntrackedByRuntime, message)
        }
        LeakKey::PodCgroup { pod, cgroup } => {
            evidence.object(pod);
            evidence.add(None, Source::Cri, "the runtime has no sandbox of this pod");
            let group = facts.pod_cgroup(pod).filter(|group| group.cgroup == *cgroup);
            if let Some(group) = group {
                leak.resources.cgroup = Some(group.path.clone());
                leak.resources.pids.clone_from(&group.pids);
                let message = format_args!("{} tasks in it and below", group.tasks);
                evidence.add(None, Source::Proc, message);
            }
            if facts.stores.node.kubelet_is_down() {
                (LeakCause::KubeletDown, "the kubelet does not run, so nothing cleans up")
            } else if group.is_some_and(|group| group.tasks > 0) {
                let message = "processes in it keep the kubelet from removing it";
                (LeakCause::ProcessesRemain, message)
            } else {
                (LeakCause::Unknown, "it is empty, and yet the kubelet has not removed it")
            }
        }
        LeakKey::Sandbox { .. } | LeakKey::Pod { .. } => return,
    };
    evidence.kubelet(None);
    leak.cause = LikelyCause { kind, message: message.to_owned() };
}
