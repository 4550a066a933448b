//! The most likely cause of a leak. The rules are in docs/leaks.md.

use super::facts::{LeakFacts, RuntimeAtEnd};
use crate::{
    cri::{Container, Sandbox},
    ids::*,
    input::*,
    leak::{BlockedOn, LeakCause, LeakClass, LikelyCause},
};

/// Kubelets whose pod workers can hang: from their rewrite in 1.22 until 1.27, where housekeeping asks the
/// runtime itself instead of a cache (kubernetes#107730) and orphans are killed repeatedly
/// (kubernetes#113145).
const HANGING_WORKERS: std::ops::Range<(u32, u32)> = (1, 22)..(1, 27);

/// A cause, and the name of the container, volume or finalizer.
type NamedCause<'a> = (LeakCause, Option<&'a str>);

const UNKNOWN: NamedCause<'static> = (LeakCause::Unknown, None);

/// The most likely cause, and what a stuck pod waits for.
pub(super) fn likely(
    facts: &LeakFacts<'_>,
    class: LeakClass,
    key: &LeakKey,
) -> (LikelyCause, BlockedOn) {
    let node = &facts.stores.node;
    let pod = facts.pod_uid(key);
    let runtime = pod.and_then(|uid| facts.runtime_at_end(uid));
    let (kind, name) = match key {
        LeakKey::Shim { .. } | LeakKey::Netns { .. } => (LeakCause::UntrackedByRuntime, None),
        _ if node.kubelet_is_down() => (LeakCause::KubeletDown, None),
        LeakKey::Sandbox { id } => match facts.stores.cri.sandbox(id) {
            Some(sandbox) => of_sandbox(facts, class, sandbox, runtime),
            None => UNKNOWN,
        },
        LeakKey::PodCgroup { .. } => match facts.cgroup_of(key) {
            Some(group) if group.tasks > 0 => (LeakCause::ProcessesRemain, None),
            _ => UNKNOWN,
        },
        LeakKey::Pod { uid } => of_stuck_pod(facts, uid, runtime),
    };
    let kubelet = match node.kubelet_version() {
        Some((_, version)) => format!("kubelet {version}"),
        None => "the kubelet (unknown version)".to_owned(),
    };
    let message = sentence((kind, name), class, key, runtime, &kubelet);
    (LikelyCause { kind, message }, blocked_on((kind, name)))
}

fn of_sandbox<'a>(
    facts: &LeakFacts<'a>,
    class: LeakClass,
    sandbox: &'a Sandbox,
    runtime: Option<RuntimeAtEnd>,
) -> NamedCause<'a> {
    let node = &facts.stores.node;
    let gone = facts.end_of(&sandbox.info.pod).map(|(_, to)| to);
    // The kubelet may have been restarted where neither its process nor the pod's end was seen.
    let can_hang = node.kubelet_version().is_some_and(|(v, _)| HANGING_WORKERS.contains(&v))
        && gone.and_then(|gone| node.kubelet.uninterrupted_since(gone)) != Some(false);
    let has_failed = matches!(runtime, Some(RuntimeAtEnd::Failed | RuntimeAtEnd::Down));
    let alive = alive(facts, std::iter::once(sandbox));
    let kind = match class {
        LeakClass::DuplicateReady | LeakClass::NotreadySuperseded => LeakCause::SandboxReplaced,
        _ if let Some(killed) = killed(facts, &alive) => {
            return (LeakCause::ProcessesRemain, Some(&killed.info.name));
        }
        LeakClass::ReadyNoPod if can_hang && (gone.is_some() || !alive.is_empty()) => {
            LeakCause::PodWorkerGaveUp
        }
        LeakClass::ReadyNoPod => of_runtime(runtime),
        _ if facts.statuses.is_open(sandbox) == Some(true) && !has_failed => {
            LeakCause::CniDeleteFailing
        }
        LeakClass::NetnsOpen => of_runtime(runtime),
        _ if can_hang => LeakCause::PodWorkerStuck,
        _ if has_failed => of_runtime(runtime),
        // A stopped sandbox with containers is exempt from garbage collection.
        _ => {
            let mut containers = facts.containers_of(&sandbox.info.id);
            let unfinished = containers.find(|c| c.info.state != ContainerState::Exited);
            return unfinished.map_or(UNKNOWN, |c| (LeakCause::RuntimeFailing, Some(&c.info.name)));
        }
    };
    (kind, None)
}

fn of_runtime(runtime: Option<RuntimeAtEnd>) -> LeakCause {
    match runtime {
        Some(RuntimeAtEnd::Failed) => LeakCause::RuntimeFailing,
        Some(RuntimeAtEnd::Down) => LeakCause::RuntimeRestarted,
        Some(RuntimeAtEnd::Answered) | None => LeakCause::Unknown,
    }
}

fn of_stuck_pod<'a>(
    facts: &LeakFacts<'a>,
    uid: &PodUid,
    runtime: Option<RuntimeAtEnd>,
) -> NamedCause<'a> {
    let alive = alive(facts, facts.listed_of(uid));
    if let Some(killed) = killed(facts, &alive) {
        return (LeakCause::ProcessesRemain, Some(&killed.info.name));
    }
    if let Some(container) = alive.first() {
        let has_failed = matches!(runtime, Some(RuntimeAtEnd::Failed | RuntimeAtEnd::Down));
        let kind = if has_failed { LeakCause::RuntimeFailing } else { LeakCause::Unknown };
        return (kind, Some(&container.info.name));
    }
    for sandbox in facts.listed_of(uid) {
        if sandbox.info.ready {
            return (LeakCause::RuntimeFailing, None);
        }
        if facts.statuses.is_open(sandbox) == Some(true) {
            return (LeakCause::CniDeleteFailing, None);
        }
    }
    if let Some(volume) = facts.volumes(uid).next() {
        return (LeakCause::VolumeBusy, Some(volume));
    }
    if facts.pod_cgroup(uid).is_some_and(|group| group.tasks > 0) {
        return (LeakCause::ProcessesRemain, None);
    }
    let finalizer = facts.object(uid).and_then(|object| object.pod.finalizers.first());
    finalizer.map_or(UNKNOWN, |first| (LeakCause::Finalizer, Some(first)))
}

fn alive<'a>(
    facts: &LeakFacts<'a>,
    sandboxes: impl Iterator<Item = &'a Sandbox>,
) -> Vec<&'a Container> {
    let containers = sandboxes.flat_map(|sandbox| facts.containers_of(&sandbox.info.id));
    containers.filter(|container| facts.is_alive(container)).collect()
}

/// The first that was sent SIGKILL.
fn killed<'a>(facts: &LeakFacts<'_>, alive: &[&'a Container]) -> Option<&'a Container> {
    let is_killed = |container: &Container| {
        facts.stores.processes_of(&container.info.id).is_some_and(|p| p.killed_since().is_some())
    };
    alive.iter().copied().find(|container| is_killed(container))
}

fn blocked_on((kind, name): NamedCause<'_>) -> BlockedOn {
    match kind {
        LeakCause::KubeletDown => BlockedOn::KubeletGone,
        LeakCause::ProcessesRemain if name.is_some() => BlockedOn::Process,
        LeakCause::ProcessesRemain => BlockedOn::CgroupBusy,
        LeakCause::RuntimeFailing | LeakCause::CniDeleteFailing => BlockedOn::RuntimeFailing,
        LeakCause::VolumeBusy => BlockedOn::VolumeMounted,
        LeakCause::Finalizer => BlockedOn::Finalizer,
        _ => BlockedOn::Unknown,
    }
}

/// The cause as one sentence.
fn sentence(
    cause: NamedCause<'_>,
    class: LeakClass,
    key: &LeakKey,
    runtime: Option<RuntimeAtEnd>,
    kubelet: &str,
) -> String {
    let is_pod = matches!(key, LeakKey::Pod { .. });
    match cause {
        (LeakCause::KubeletDown, _) if is_pod => {
            "the kubelet does not run, so no pod is terminated".into()
        }
        (LeakCause::KubeletDown, _) => "the kubelet does not run, so nothing cleans up".into(),
        (LeakCause::SandboxReplaced, _) => "the pod has a newer sandbox, and the kubelet lost \
             track of this one (as in kubernetes#113073)"
            .into(),
        (LeakCause::ProcessesRemain, Some(name)) if is_pod => {
            format!("a process of {name} does not end on SIGKILL")
        }
        (LeakCause::ProcessesRemain, Some(name)) => format!("processes of {name} survived SIGKILL"),
        (LeakCause::ProcessesRemain, None) if is_pod => {
            "processes in the pod's cgroup that belong \
             to no container keep it from being removed"
                .into()
        }
        (LeakCause::ProcessesRemain, None) => {
            "processes in it keep the kubelet from removing it".into()
        }
        (LeakCause::PodWorkerGaveUp, _) => format!(
            "kubelet pod worker stuck after a runtime error (kubernetes#113145): {kubelet} gave up \
             killing a pod whose object was gone"
        ),
        (LeakCause::PodWorkerStuck, _) => {
            let when = match runtime {
                Some(RuntimeAtEnd::Down) => ", runtime killed when the object was deleted",
                Some(RuntimeAtEnd::Failed) => ", runtime failing when the object was deleted",
                Some(RuntimeAtEnd::Answered) => "",
                None => "; the agent did not observe the cause",
            };
            format!("kubelet pod worker stuck in terminating (kubernetes#107730): {kubelet}{when}")
        }
        (LeakCause::CniDeleteFailing, _) => {
            let (whose, retries) = match is_pod {
                true => ("its", ", and the kubelet keeps retrying"),
                false => ("the", ""),
            };
            format!(
                "{whose} sandbox is stopped, but its network is not released: the network plugin's \
                 delete fails{retries}"
            )
        }
        (LeakCause::RuntimeFailing, Some(name)) if is_pod => {
            format!("the runtime failed while {name} was being stopped")
        }
        (LeakCause::RuntimeFailing, None) if is_pod => {
            "the runtime has not stopped its sandbox".into()
        }
        (LeakCause::RuntimeFailing, Some(name)) => {
            format!("the runtime cannot stop its container {name}")
        }
        (LeakCause::RuntimeFailing, None) => format!("the runtime failed {}", when(class, kubelet)),
        (LeakCause::RuntimeRestarted, _) => {
            format!("the runtime was down {}", when(class, kubelet))
        }
        (LeakCause::UntrackedByRuntime, _) => match key {
            LeakKey::Shim { .. } => "the runtime no longer tracks what this shim runs, usually \
                 because the runtime was killed or gave up during a removal"
                .into(),
            _ => "the runtime no longer tracks the sandbox that this was made for; the network \
                 plugin may still have its address allocated"
                .into(),
        },
        (LeakCause::VolumeBusy, name) => {
            let name = name.unwrap_or_default();
            format!("the kubelet is waiting for volume {name} to be unmounted")
        }
        (LeakCause::Finalizer, name) => {
            let name = name.unwrap_or_default();
            format!("cleanup on this node is complete; the finalizer {name} keeps the object")
        }
        (LeakCause::Unknown, Some(name)) => format!("{name} is alive and was not sent SIGKILL"),
        (LeakCause::Unknown, None) => match key {
            LeakKey::Pod { .. } => {
                "no evidence on this node shows the cause; see the kubelet's log".into()
            }
            LeakKey::PodCgroup { .. } => {
                "the cgroup is empty, but the kubelet has not removed it".into()
            }
            _ => "no source shows the cause; see the evidence".into(),
        },
    }
}

/// When the runtime failed, and what followed.
fn when(class: LeakClass, kubelet: &str) -> String {
    match class {
        LeakClass::ReadyNoPod => "during the pod's teardown".into(),
        LeakClass::NetnsOpen => "before it released the network".into(),
        _ => format!("during the teardown, and {kubelet} did not retry it"),
    }
}
