//! The causes of leaks: one table. A cause is what a source states of this very thing, later than the deletion and
//! not contradicted since; docs/leaks.md has it for users.

use super::facts::LeakFacts;
use crate::{
    cri::{Container, Sandbox},
    ids::*,
    input::*,
    leak::{LeakCause, LeakClass, LikelyCause},
    time::BootTime,
};
use std::time::Duration;

/// Kubelets whose pod workers can hang: from their rewrite in 1.22 until 1.27, where housekeeping asks the
/// runtime itself instead of a cache (kubernetes#107730) and orphans are killed repeatedly
/// (kubernetes#113145).
const HANGING_WORKERS: std::ops::Range<(u32, u32)> = (1, 22)..(1, 27);
/// Two rounds of the kubelet's garbage collection (`ContainerGCPeriod`, pkg/kubelet/kubelet.go).
const COLLECTION: Duration = Duration::from_secs(120);
/// A cause and its sentence.
type Cause = (LeakCause, String);

/// The most likely cause. `first_observed`: when the thing was first observed as leaked.
pub(super) fn likely(
    facts: &LeakFacts<'_>,
    class: LeakClass,
    key: &LeakKey,
    first_observed: BootTime,
) -> LikelyCause {
    let sandboxes = facts.sandboxes(key);
    let listed = sandboxes.iter().flat_map(|sandbox| facts.containers_of(&sandbox.info.id));
    let alive = listed.filter(|container| facts.is_alive(container)).collect();
    let case = Case { facts, class, key, first_observed, sandboxes, alive };
    let row = Case::rows().iter().find_map(|row| row(&case));
    let (kind, message) = row.unwrap_or_else(|| (LeakCause::Unknown, case.unknown()));
    LikelyCause { kind, message }
}

/// A leak, and what is listed of its pod.
struct Case<'a> {
    facts: &'a LeakFacts<'a>,
    class: LeakClass,
    key: &'a LeakKey,
    first_observed: BootTime,
    sandboxes: Vec<&'a Sandbox>,
    /// Containers with processes.
    alive: Vec<&'a Container>,
}

impl<'a> Case<'a> {
    /// The table: the first row that applies names the cause.
    fn rows() -> [fn(&Self) -> Option<Cause>; 12] {
        [
            Self::untracked,
            Self::finalizer,
            Self::kubelet_down,
            Self::collection_pending,
            Self::replaced,
            Self::survives_sigkill,
            Self::stop_failed,
            Self::network_open,
            Self::hanging_worker,
            Self::runtime_failed,
            Self::volume_mounted,
            Self::tasks_remain,
        ]
    }

    fn is_pod(&self) -> bool {
        matches!(self.key, LeakKey::Pod { .. })
    }

    /// The pod whose teardown left this.
    fn pod(&self) -> Option<&'a PodUid> {
        self.facts.pod_uid(self.key)
    }

    fn tasks(&self) -> u32 {
        self.facts.cgroup_of(self.key).map_or(0, |group| group.tasks)
    }

    fn volume(&self) -> Option<&'a str> {
        self.facts.volumes(self.pod().filter(|_| self.is_pod())?).next()
    }

    /// A stopped sandbox whose network namespace is open.
    fn open(&self) -> bool {
        let is_open = |one: &&Sandbox| self.facts.statuses.is_open(one) == Some(true);
        self.sandboxes.iter().any(|one| !one.info.ready && is_open(one))
    }

    fn has_ready_sandbox(&self) -> bool {
        self.sandboxes.iter().any(|sandbox| sandbox.info.ready)
    }

    fn untracked(&self) -> Option<Cause> {
        let message = "the runtime does not track what this was made for; usually it was killed, or \
                       gave up during a removal";
        matches!(self.key, LeakKey::Shim { .. } | LeakKey::Netns { .. })
            .then(|| (LeakCause::UntrackedByRuntime, message.into()))
    }

    /// Nothing of the pod is left on this node, and the kubelet's own last delete (grace 0) has come, so it does not
    /// matter whether the kubelet runs.
    fn finalizer(&self) -> Option<Cause> {
        let has_rest = !self.alive.is_empty()
            || self.has_ready_sandbox()
            || self.open()
            || self.volume().is_some()
            || self.tasks() > 0;
        let object = self.facts.object(self.pod().filter(|_| self.is_pod() && !has_rest)?)?;
        let first = object.pod.finalizers.first()?;
        let is_cleaned_up = object.pod.deletion_grace_seconds == Some(0);
        let message =
            format!("cleanup on this node is complete; the finalizer {first} keeps the object");
        is_cleaned_up.then_some((LeakCause::Finalizer, message))
    }

    fn kubelet_down(&self) -> Option<Cause> {
        let message = "the kubelet does not run, so nothing cleans up";
        let is_down = self.facts.stores.node.kubelet_is_down();
        is_down.then(|| (LeakCause::KubeletDown, message.into()))
    }

    fn collection_pending(&self) -> Option<Cause> {
        let began = self.facts.stores.node.kubelet.running()?.began();
        let is_new = began >= self.first_observed && self.facts.now < began + COLLECTION;
        let message = "the kubelet has just been started again: its garbage collection, once a \
                       minute, may remove this";
        is_new.then(|| (LeakCause::CollectionPending, message.into()))
    }

    fn replaced(&self) -> Option<Cause> {
        let message = "the pod has a newer sandbox, and the kubelet lost track of this one (as in \
                       kubernetes#113073)";
        matches!(self.class, LeakClass::DuplicateReady | LeakClass::NotreadySuperseded)
            .then(|| (LeakCause::SandboxReplaced, message.into()))
    }

    fn survives_sigkill(&self) -> Option<Cause> {
        let processes = |one: &Container| self.facts.stores.processes_of(&one.info.id);
        let is_killed =
            |one: &&&Container| processes(one).is_some_and(|p| p.killed_since().is_some());
        let name = &self.alive.iter().find(is_killed)?.info.name;
        Some((LeakCause::ProcessesRemain, format!("processes of {name} survived SIGKILL")))
    }

    /// The kubelet's Event has the runtime's error. A namespace that was closed since contradicts one about the
    /// network, the end of all containers and sandboxes any other.
    fn stop_failed(&self) -> Option<Cause> {
        let (at, words) = self.facts.failed_stop(self.pod()?)?;
        let is_closed = |sandbox: &&Sandbox| {
            let status = self.facts.statuses.current(sandbox).filter(|status| status.asked > at);
            let network = status.map(|status| &status.network);
            matches!(network, Some(SandboxNetwork::Own { closed: Some(true), .. }))
        };
        if let Some(words) = words.filter(|_| !self.sandboxes.iter().all(is_closed)) {
            let message = format!("the network plugin's delete fails: the runtime \"{words}\"");
            return Some((LeakCause::CniDeleteFailing, message));
        }
        let is_up = !self.alive.is_empty() || self.has_ready_sandbox();
        let message = "the kubelet posted FailedKillPod: the runtime fails to stop the pod";
        is_up.then(|| (LeakCause::RuntimeFailing, message.into()))
    }

    /// The runtime closes the namespace of a sandbox that it stops after the plugin's delete.
    fn network_open(&self) -> Option<Cause> {
        let runtime_answered = self.facts.runtime_failed(self.pod()?).is_none();
        let message = "the sandbox is stopped, but its network is not released: the network \
                       plugin's delete fails";
        (self.alive.is_empty() && self.open() && runtime_answered)
            .then(|| (LeakCause::CniDeleteFailing, message.into()))
    }

    fn hanging_worker(&self) -> Option<Cause> {
        let uid = self.pod().filter(|_| self.class.lacks_pod())?;
        let node = &self.facts.stores.node;
        // The kubelet may have been restarted where neither its process nor the pod's end was seen.
        let gone = self.facts.end_of(uid).map(|(_, gone)| gone);
        let was_restarted =
            gone.and_then(|gone| node.kubelet.uninterrupted_since(gone)) == Some(false);
        let (version, text) = node.kubelet_version()?;
        let runtime = match self.facts.runtime_failed(uid) {
            Some(false) => ", runtime killed when the object was deleted",
            Some(true) => ", runtime failing when the object was deleted",
            None => "",
        };
        let what = match self.class {
            LeakClass::ReadyNoPod => "after a runtime error (kubernetes#113145)",
            _ => "in terminating (kubernetes#107730)",
        };
        let message = format!("kubelet pod worker stuck {what}: kubelet {text}{runtime}");
        let is_it = HANGING_WORKERS.contains(&version) && !was_restarted;
        is_it.then_some((LeakCause::PodWorkerStuck, message))
    }

    fn runtime_failed(&self) -> Option<Cause> {
        let is_same = self.facts.runtime_failed(self.pod()?)?;
        let is_it = self.class.lacks_pod() || (self.is_pod() && !self.alive.is_empty());
        let what = if is_same { "failed" } else { "was down" };
        let message = format!("the runtime {what} during the pod's teardown");
        is_it.then_some((LeakCause::RuntimeFailing, message))
    }

    fn volume_mounted(&self) -> Option<Cause> {
        let name = self.volume().filter(|_| self.alive.is_empty())?;
        let message = format!("the kubelet is waiting for volume {name} to be unmounted");
        Some((LeakCause::VolumeBusy, message))
    }

    fn tasks_remain(&self) -> Option<Cause> {
        let message = "processes in the pod's cgroup that belong to no container keep the kubelet \
                       from removing it";
        let is_it = matches!(self.class, LeakClass::OrphanPodCgroup | LeakClass::StuckTerminating);
        let remain = is_it && self.alive.is_empty() && self.tasks() > 0;
        remain.then(|| (LeakCause::ProcessesRemain, message.into()))
    }

    fn unknown(&self) -> String {
        match self.alive.first().filter(|_| self.is_pod()) {
            Some(one) => format!("{} is alive and was not sent SIGKILL", one.info.name),
            None => "no source shows the cause; see the kubelet's log".into(),
        }
    }
}
