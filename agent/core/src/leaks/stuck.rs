//! Pods stuck in Terminating: for how long, and what they wait for.

use super::{
    evidence::{EvidenceBuilder, Failure},
    facts::LeakFacts,
};
use crate::{
    api::PodObject,
    exit_blockers,
    ids::PodUid,
    kubelet::KUBELET_SLACK,
    leak::{BlockedOn, LeakCause},
    time::BootTime,
    types::Source,
};
use std::time::Duration;

/// The deadline has passed and the object still exists.
pub(super) fn is_late(facts: &LeakFacts<'_>, uid: &PodUid) -> bool {
    deadline(facts, uid).is_some_and(|deadline| facts.now > deadline + KUBELET_SLACK)
}

/// The first granted grace is not over: kubelet and runtime may use all of it, even if a later request
/// shortened it or removed the object.
pub(super) fn in_grace(facts: &LeakFacts<'_>, uid: &PodUid) -> bool {
    let first = facts.object(uid).and_then(PodObject::request);
    first.is_some_and(|first| {
        let grace = Duration::from_secs(first.grace_seconds.max(0).unsigned_abs());
        facts.now < first.estimate + grace + KUBELET_SLACK
    })
}

/// When the pod's processes should have ended.
pub(super) fn deadline(facts: &LeakFacts<'_>, uid: &PodUid) -> Option<BootTime> {
    let object = facts.object(uid).filter(|object| object.gone.is_none())?;
    let first = object.request()?;
    let last = object.shortened().unwrap_or(first);
    let grace = Duration::from_secs(last.grace_seconds.max(0).unsigned_abs());
    Some(last.estimate + grace)
}

/// What the pod waits for, and the likely cause.
pub(super) fn reason(
    facts: &LeakFacts<'_>,
    uid: &PodUid,
    evidence: &mut EvidenceBuilder<'_>,
) -> (BlockedOn, LeakCause, String) {
    let unknown = || {
        let message = "nothing on this node shows what it waits for: see the kubelet's log";
        (BlockedOn::Unknown, LeakCause::Unknown, message.to_owned())
    };
    let Some(object) = facts.object(uid) else { return unknown() };
    if facts.stores.node.kubelet_is_down() {
        let message = "the kubelet does not run, and nothing else terminates pods".to_owned();
        return (BlockedOn::KubeletGone, LeakCause::KubeletDown, message);
    }
    let found = containers(facts, uid, evidence)
        .or_else(|| sandboxes(facts, uid, evidence))
        .or_else(|| volumes(facts, uid, evidence))
        .or_else(|| cgroup(facts, uid, evidence))
        .or_else(|| finalizers(object, evidence));
    found.unwrap_or_else(unknown)
}

type Found = Option<(BlockedOn, LeakCause, String)>;

fn containers(facts: &LeakFacts<'_>, uid: &PodUid, evidence: &mut EvidenceBuilder<'_>) -> Found {
    let alive = facts
        .listed_of(uid)
        .flat_map(|sandbox| facts.containers_of(&sandbox.info.id))
        .filter(|container| facts.is_alive(container));
    let mut found = None;
    for container in alive {
        let name = &container.info.name;
        let processes = facts.processes(&container.info.id);
        let killed = processes.and_then(|processes| processes.killed_since());
        if let (Some(processes), Some(killed)) = (processes, killed) {
            let detail = exit_blockers::unkillable(processes).map(|finding| finding.detail);
            let detail = detail.unwrap_or_else(|| "it survived SIGKILL".to_owned());
            evidence.add(Some(killed), Source::Kernel, format_args!("{name}: {detail}"));
            let message = format!("a process of {name} does not end on SIGKILL");
            return Some((BlockedOn::Process, LeakCause::ProcessesRemain, message));
        }
        let last = processes.and_then(|processes| processes.sent().map(|sent| sent.at).max());
        match last {
            Some(at) => evidence.add(
                Some(at),
                Source::Kernel,
                format_args!("the last signal to {name}; it is still alive"),
            ),
            None => evidence.add(
                None,
                Source::Kernel,
                format_args!("{name} is alive and was not sent a signal"),
            ),
        }
        let failing = evidence.outages_around(facts.end_of(uid)) != Failure::None;
        let message = match failing {
            true => format!("the runtime failed while {name} was being stopped"),
            false => format!("{name} is alive and was not killed"),
        };
        let reason = (
            if failing { BlockedOn::RuntimeFailing } else { BlockedOn::Unknown },
            if failing { LeakCause::RuntimeFailing } else { LeakCause::Unknown },
            message,
        );
        found.get_or_insert(reason);
    }
    found
}

fn sandboxes(facts: &LeakFacts<'_>, uid: &PodUid, evidence: &mut EvidenceBuilder<'_>) -> Found {
    for sandbox in facts.listed_of(uid) {
        if facts.statuses.is_open(sandbox) == Some(true) && !sandbox.info.ready {
            evidence.status(sandbox);
            let message = "its sandbox is stopped but keeps its network namespace: the network \
                            plugin's delete fails, and the kubelet keeps retrying";
            let reason = BlockedOn::RuntimeFailing;
            return Some((reason, LeakCause::CniDeleteFailing, message.to_owned()));
        }
        if sandbox.info.ready {
            evidence.add(None, Source::Cri, "its sandbox still runs, though no container does");
            let message = "the runtime has not stopped its sandbox";
            let reason = BlockedOn::RuntimeFailing;
            return Some((reason, LeakCause::RuntimeFailing, message.to_owned()));
        }
    }
    None
}

fn volumes(facts: &LeakFacts<'_>, uid: &PodUid, evidence: &mut EvidenceBuilder<'_>) -> Found {
    let all = facts.survey?.volumes.as_ref()?.iter().filter(|volume| volume.pod == *uid);
    let names: Vec<&str> = all.map(|volume| volume.volume.as_str()).collect();
    let first = names.first()?;
    let more = match names.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let mounted = format_args!("still mounted below the pod's directory: {first}{more}");
    evidence.add(None, Source::Proc, mounted);
    let message = format!("the kubelet waits for the volume {first} to be unmounted");
    Some((BlockedOn::VolumeMounted, LeakCause::VolumeBusy, message))
}

fn cgroup(facts: &LeakFacts<'_>, uid: &PodUid, evidence: &mut EvidenceBuilder<'_>) -> Found {
    let group = facts.pod_cgroup(uid).filter(|group| group.tasks > 0)?;
    evidence.add(None, Source::Proc, format_args!("{} tasks in {}", group.tasks, group.path));
    let message = "processes in the pod's cgroup that belong to no container keep it from being \
                    removed";
    Some((BlockedOn::CgroupBusy, LeakCause::ProcessesRemain, message.to_owned()))
}

fn finalizers(object: &PodObject, evidence: &mut EvidenceBuilder<'_>) -> Found {
    let first = object.pod.finalizers.first()?;
    evidence.add(
        object.final_delete,
        Source::Api,
        format_args!("finalizers: {}", object.pod.finalizers.join(", ")),
    );
    let message = format!("all is done on this node; the finalizer {first} holds the object");
    Some((BlockedOn::Finalizer, LeakCause::Finalizer, message))
}
