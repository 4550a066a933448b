//! Pods whose object does not go: for how long, and what they wait for.

use super::{
    dossier::{Dossier, Failure},
    facts::Facts,
};
use crate::{
    ids::PodUid,
    leak::{LeakCause, StuckReason},
    lingering,
    object::Object,
    observation::Source,
    time::BootTime,
};
use std::time::Duration;

/// What the kubelet and the runtime add to the grace (`minimumGracePeriodInSeconds` and the
/// rounds of its workers).
const SLACK: Duration = Duration::from_secs(10);

/// Its deadline has passed, and its object is still there.
pub(super) fn is_late(facts: &Facts<'_>, uid: &PodUid) -> bool {
    deadline(facts, uid).is_some_and(|deadline| facts.now > deadline + SLACK)
}

/// Its object went before the grace that was granted first was over: kubelet and runtime may give
/// all of it, though a later request shortened it or had the object go at once.
pub(super) fn in_grace(facts: &Facts<'_>, uid: &PodUid) -> bool {
    let first = facts.object(uid).and_then(Object::request);
    first.is_some_and(|first| {
        let grace = Duration::from_secs(first.grace_seconds.max(0).unsigned_abs());
        facts.now < first.at + grace + SLACK
    })
}

/// The moment at which its processes were to be gone.
pub(super) fn deadline(facts: &Facts<'_>, uid: &PodUid) -> Option<BootTime> {
    let object = facts.object(uid).filter(|object| object.gone.is_none())?;
    let first = object.request()?;
    let last = object.shortened().unwrap_or(first);
    let grace = Duration::from_secs(last.grace_seconds.max(0).unsigned_abs());
    Some(last.at + grace)
}

/// What it waits for, and why that may be.
pub(super) fn reason(
    facts: &Facts<'_>,
    uid: &PodUid,
    dossier: &mut Dossier<'_>,
) -> (StuckReason, LeakCause, String) {
    let unknown = || {
        let sentence = "nothing on this node tells what it waits for: look at the kubelet's log";
        (StuckReason::Unknown, LeakCause::Unknown, sentence.to_owned())
    };
    let Some(object) = facts.object(uid) else { return unknown() };
    if facts.of.keepers.kubelet_is_down() {
        let sentence = "the kubelet does not run, and nobody else ends a pod".to_owned();
        return (StuckReason::KubeletGone, LeakCause::KubeletDown, sentence);
    }
    let found = containers(facts, uid, dossier)
        .or_else(|| sandboxes(facts, uid, dossier))
        .or_else(|| volumes(facts, uid, dossier))
        .or_else(|| cgroup(facts, uid, dossier))
        .or_else(|| finalizers(object, dossier));
    found.unwrap_or_else(unknown)
}

type Found = Option<(StuckReason, LeakCause, String)>;

fn containers(facts: &Facts<'_>, uid: &PodUid, dossier: &mut Dossier<'_>) -> Found {
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
            let detail = lingering::unkillable(processes).map(|finding| finding.detail);
            let detail = detail.unwrap_or_else(|| "it lives on after SIGKILL".to_owned());
            dossier.add(Some(killed), Source::Kernel, format_args!("{name}: {detail}"));
            let sentence = format!("a process of {name} does not end on SIGKILL");
            return Some((StuckReason::Process, LeakCause::ProcessesRemain, sentence));
        }
        let last = processes.and_then(|processes| processes.sent().map(|sent| sent.at).max());
        match last {
            Some(at) => dossier.add(
                Some(at),
                Source::Kernel,
                format_args!("the last signal to {name}; it is still alive"),
            ),
            None => dossier.add(
                None,
                Source::Kernel,
                format_args!("{name} is alive, and nobody has sent it a signal"),
            ),
        }
        let failing = dossier.outages_around(facts.end_of(uid)) != Failure::None;
        let sentence = match failing {
            true => format!("the runtime failed while {name} was to be stopped"),
            false => format!("{name} is alive and nobody has killed it"),
        };
        let reason = (
            if failing { StuckReason::RuntimeFailing } else { StuckReason::Unknown },
            if failing { LeakCause::RuntimeFailing } else { LeakCause::Unknown },
            sentence,
        );
        found.get_or_insert(reason);
    }
    found
}

fn sandboxes(facts: &Facts<'_>, uid: &PodUid, dossier: &mut Dossier<'_>) -> Found {
    for sandbox in facts.listed_of(uid) {
        if facts.statuses.is_open(sandbox) == Some(true) && !sandbox.info.ready {
            dossier.status(sandbox);
            let sentence = "its sandbox is stopped but keeps its network namespace: the network \
                            plugin's delete fails, and the kubelet tries again and again";
            let reason = StuckReason::RuntimeFailing;
            return Some((reason, LeakCause::CniDeleteFailing, sentence.to_owned()));
        }
        if sandbox.info.ready {
            dossier.add(None, Source::Cri, "its sandbox still runs, though no container does");
            let sentence = "the runtime has not stopped its sandbox";
            let reason = StuckReason::RuntimeFailing;
            return Some((reason, LeakCause::RuntimeFailing, sentence.to_owned()));
        }
    }
    None
}

fn volumes(facts: &Facts<'_>, uid: &PodUid, dossier: &mut Dossier<'_>) -> Found {
    let all = facts.survey?.volumes.as_ref()?.iter().filter(|volume| volume.pod == *uid);
    let names: Vec<&str> = all.map(|volume| volume.volume.as_str()).collect();
    let first = names.first()?;
    let more = match names.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let said = format_args!("still mounted below the pod's directory: {first}{more}");
    dossier.add(None, Source::Proc, said);
    let sentence = format!("the kubelet waits for the volume {first} to be unmounted");
    Some((StuckReason::VolumeMounted, LeakCause::VolumeBusy, sentence))
}

fn cgroup(facts: &Facts<'_>, uid: &PodUid, dossier: &mut Dossier<'_>) -> Found {
    let group = facts.pod_cgroup(uid).filter(|group| group.tasks > 0)?;
    dossier.add(None, Source::Proc, format_args!("{} tasks in {}", group.tasks, group.path));
    let sentence = "processes in the pod's cgroup that belong to no container keep it from being \
                    removed";
    Some((StuckReason::CgroupBusy, LeakCause::ProcessesRemain, sentence.to_owned()))
}

fn finalizers(object: &Object, dossier: &mut Dossier<'_>) -> Found {
    let first = object.pod.finalizers.first()?;
    dossier.add(
        object.final_delete,
        Source::Api,
        format_args!("finalizers: {}", object.pod.finalizers.join(", ")),
    );
    let sentence = format!("all is done on this node; the finalizer {first} holds the object");
    Some((StuckReason::Finalizer, LeakCause::Finalizer, sentence))
}
