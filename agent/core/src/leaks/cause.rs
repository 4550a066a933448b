//! Why a sandbox was left behind, as far as the evidence goes. docs/leaks.md tells the rules.

use super::{
    dossier::{Dossier, Failure},
    facts::Facts,
};
use crate::{
    input::CriState,
    leak::{Leak, LeakCause, LeakClass, LeakKey, LikelyCause},
    observation::Source,
    runtime::Sandbox,
};

/// The kubelets whose pod workers can hang: since their rewrite in 1.22, until 1.27 has housekeeping
/// look at the runtime itself instead of a cache (kubernetes#107730) and orphans be killed again
/// and again (kubernetes#113145).
const HANGING_WORKERS: std::ops::Range<(u32, u32)> = (1, 22)..(1, 27);

/// The most likely cause, with the evidence put down on the way.
pub(super) fn of_sandbox(
    facts: &Facts<'_>,
    class: LeakClass,
    sandbox: &Sandbox,
    dossier: &mut Dossier<'_>,
) -> LikelyCause {
    let uid = &sandbox.info.pod;
    let end = facts.end_of(uid);
    dossier.object(uid);
    dossier.sandbox(sandbox);
    let failure = dossier.outages_around(end);
    dossier.kubelet_around(end);
    let gone = end.map(|(_, to)| to).or(sandbox.stopped.map(|stopped| stopped.by));
    dossier.kubelet(gone);
    let (kind, sentence) = judge(facts, class, sandbox, failure);
    LikelyCause { kind, sentence }
}

fn judge(
    facts: &Facts<'_>,
    class: LeakClass,
    sandbox: &Sandbox,
    failure: Failure,
) -> (LeakCause, String) {
    let keepers = facts.of.keepers;
    let uid = &sandbox.info.pod;
    let version = keepers.kubelet_version();
    let written = version.map(|(_, text)| format!("kubelet {text}"));
    let kubelet = written.unwrap_or_else(|| "the kubelet, of a version not known,".to_owned());
    let affected = version.map(|(version, _)| HANGING_WORKERS.contains(&version));
    let gone = facts.end_of(uid).map(|(_, to)| to);
    // Unknown where neither its process nor the end of the pod was seen.
    let ran_through = gone.and_then(|gone| keepers.kubelet.ran_through(gone));
    if keepers.kubelet_is_down() {
        let sentence = "the kubelet does not run: nobody cleans up";
        return (LeakCause::KubeletDown, sentence.to_owned());
    }
    let open = facts.statuses.is_open(sandbox) == Some(true);
    let alive = facts
        .containers_of(&sandbox.info.id)
        .into_iter()
        .filter(|container| facts.is_alive(container))
        .collect::<Vec<_>>();
    let killed = alive.iter().find(|container| {
        facts.processes(&container.info.id).is_some_and(|p| p.killed_since().is_some())
    });
    match class {
        LeakClass::DuplicateReady | LeakClass::NotreadySuperseded => {
            let sentence = "the pod has a newer sandbox, and the kubelet lost track of this one \
                            (as in kubernetes#113073)";
            (LeakCause::SandboxReplaced, sentence.to_owned())
        }
        _ if let Some(container) = killed => {
            let name = &container.info.name;
            let sentence = format!("processes of {name} live on after SIGKILL");
            (LeakCause::ProcessesRemain, sentence)
        }
        LeakClass::ReadyNoPod => match (affected, ran_through) {
            (Some(true), Some(true) | None) if gone.is_some() || !alive.is_empty() => {
                let sentence = format!(
                    "kubelet pod worker stuck after a runtime error (kubernetes#113145): \
                     {kubelet} gave up killing a pod whose object was gone"
                );
                (LeakCause::PodWorkerGaveUp, sentence)
            }
            _ => of_runtime(failure, "while the pod was to be torn down").unwrap_or_else(unknown),
        },
        _ if open && failure == Failure::None => {
            let sentence = "the sandbox is stopped but keeps its network namespace: the network \
                            plugin's delete fails";
            (LeakCause::CniDeleteFailing, sentence.to_owned())
        }
        LeakClass::NetnsOpen => {
            of_runtime(failure, "before it had given the network back").unwrap_or_else(unknown)
        }
        LeakClass::NotreadyNoPod | LeakClass::NotreadyWithContainers => {
            match (affected, ran_through) {
                (Some(true), Some(true) | None) => {
                    let when = match (failure, gone.is_some()) {
                        (Failure::Away, _) => ", runtime killed as the object went",
                        (Failure::Failed, _) => ", runtime failing as the object went",
                        (Failure::None, true) => "",
                        (Failure::None, false) => ", and the agent did not see how it came about",
                    };
                    let sentence = format!(
                        "kubelet pod worker stuck in terminating (kubernetes#107730): \
                         {kubelet}{when}"
                    );
                    (LeakCause::PodWorkerStuck, sentence)
                }
                _ if failure != Failure::None => {
                    let when = format!(
                        "in the middle of the teardown, and {kubelet} did not come back to it"
                    );
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
            Some((LeakCause::RuntimeRestarted, format!("the runtime was away {when}")))
        }
    }
}

/// A stopped sandbox whose containers are not removed keeps the garbage collection away.
fn unfinished(facts: &Facts<'_>, sandbox: &Sandbox) -> (LeakCause, String) {
    let containers = facts.containers_of(&sandbox.info.id);
    let odd = containers.iter().find(|container| container.info.state != CriState::Exited);
    match odd {
        Some(container) => {
            let name = &container.info.name;
            let sentence = format!("the runtime cannot end its container {name}");
            (LeakCause::RuntimeFailing, sentence)
        }
        None => unknown(),
    }
}

fn unknown() -> (LeakCause, String) {
    (LeakCause::Unknown, "the sources do not tell why; the evidence is all there is".to_owned())
}

/// The same of what the host keeps and nobody knows, with what it holds.
pub(super) fn of_orphan(facts: &Facts<'_>, leak: &mut Leak, dossier: &mut Dossier<'_>) {
    let runtime = &facts.of.keepers.runtime;
    if let Some(ended) = runtime.last_end() {
        dossier.add(Some(ended), Source::Proc, "the runtime's process before this one ended");
    }
    if let Some(run) = runtime.running() {
        let sentence = format_args!("the runtime (pid {}) began", run.process.pid);
        dossier.add(Some(run.began()), Source::Proc, sentence);
    }
    let survey = facts.survey;
    let (kind, sentence) = match &leak.key {
        LeakKey::Shim { pid, id, .. } => {
            let shims = survey.and_then(|survey| survey.shims.as_ref());
            let shim = shims.into_iter().flatten().find(|shim| shim.process.pid == *pid);
            if let Some(shim) = shim {
                let sentence = format_args!("{} runs with {} children", shim.comm, shim.children);
                dossier.add(None, Source::Proc, sentence);
            }
            dossier.add(
                None,
                Source::Cri,
                format_args!("the runtime lists nothing with the id {id}"),
            );
            leak.holds.pids = vec![*pid];
            let sentence = "the runtime no longer tracks what this shim runs, usually because it \
                            was killed or gave up in the middle of a removal";
            (LeakCause::UntrackedByRuntime, sentence)
        }
        LeakKey::Netns { name, inode } => {
            let sentence = format_args!("no process is in it (inode {inode})");
            dossier.add(None, Source::Proc, sentence);
            dossier.add(None, Source::Cri, "no sandbox that the runtime lists claims it");
            leak.holds.netns = Some(name.clone());
            let sentence = "the runtime no longer tracks the sandbox that this was made for; its \
                            address may still be taken in the network plugin's books";
            (LeakCause::UntrackedByRuntime, sentence)
        }
        LeakKey::PodCgroup { pod, cgroup } => {
            dossier.object(pod);
            dossier.add(None, Source::Cri, "the runtime has no sandbox of this pod");
            let group = facts.pod_cgroup(pod).filter(|group| group.cgroup == *cgroup);
            if let Some(group) = group {
                leak.holds.cgroup = Some(group.path.clone());
                leak.holds.pids.clone_from(&group.pids);
                let sentence = format_args!("{} tasks in it and below", group.tasks);
                dossier.add(None, Source::Proc, sentence);
            }
            if facts.of.keepers.kubelet_is_down() {
                (LeakCause::KubeletDown, "the kubelet does not run: nobody cleans up")
            } else if group.is_some_and(|group| group.tasks > 0) {
                let sentence = "processes in it keep the kubelet from removing it";
                (LeakCause::ProcessesRemain, sentence)
            } else {
                (LeakCause::Unknown, "it is empty, and yet the kubelet has not removed it")
            }
        }
        LeakKey::Sandbox { .. } | LeakKey::Pod { .. } => return,
    };
    dossier.kubelet(None);
    leak.cause = LikelyCause { kind, sentence: sentence.to_owned() };
}
