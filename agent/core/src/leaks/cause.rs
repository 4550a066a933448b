//! The most likely cause of a leak. The rules are in docs/leaks.md.

use super::facts::LeakFacts;
use crate::{
    cri::{Container, Sandbox},
    ids::*,
    input::*,
    leak::{BlockedOn, LeakCause, LeakClass, LikelyCause, RuntimeAtEnd},
};

/// Kubelets whose pod workers can hang: from their rewrite in 1.22 until 1.27, where housekeeping asks the
/// runtime itself instead of a cache (kubernetes#107730) and orphans are killed repeatedly
/// (kubernetes#113145).
const HANGING_WORKERS: std::ops::Range<(u32, u32)> = (1, 22)..(1, 27);

/// A cause, and the name of the container, volume or finalizer.
type NamedCause<'a> = (LeakCause, Option<&'a str>);

const UNKNOWN: NamedCause<'static> = (LeakCause::Unknown, None);

/// The most likely cause.
pub(super) fn likely(facts: &LeakFacts<'_>, class: LeakClass, key: &LeakKey) -> LikelyCause {
    let node = &facts.stores.node;
    let pod = facts.pod_uid(key);
    let runtime = pod.and_then(|uid| facts.runtime_at_end(uid));
    let found = match key {
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
    let (kind, name) = found;
    LikelyCause {
        kind,
        name: name.map(str::to_owned),
        kubelet_version: node.kubelet_version().map(|(_, text)| text.to_owned()),
        runtime,
    }
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

/// What a stuck pod waits for.
pub(super) fn blocked_on(cause: &LikelyCause) -> BlockedOn {
    match cause.kind {
        LeakCause::KubeletDown => BlockedOn::KubeletGone,
        LeakCause::ProcessesRemain if cause.name.is_some() => BlockedOn::Process,
        LeakCause::ProcessesRemain => BlockedOn::CgroupBusy,
        LeakCause::RuntimeFailing | LeakCause::CniDeleteFailing => BlockedOn::RuntimeFailing,
        LeakCause::VolumeBusy => BlockedOn::VolumeMounted,
        LeakCause::Finalizer => BlockedOn::Finalizer,
        _ => BlockedOn::Unknown,
    }
}
