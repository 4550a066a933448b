//! The join: one pod's facts of all three sources, read together. Nothing here is stored; an
//! account can be built again at any time, and comes out the same from the same facts.

mod death;
mod findings;
mod termination;

use super::{
    identity::Identity,
    ids::{CgroupId, ContainerId, PodUid, SandboxId},
    input::ApiContainer,
    keepers::Keepers,
    object::{LONGEST_SILENCE, Object, Objects, Request},
    observation::{Milestone, MilestoneKind, Source},
    process::{Origin, Processes, SI_KERNEL, SIGKILL, SIGTERM, Sent},
    runtime::{Between, Container, Runtime, Sandbox},
    table::Table,
    time::{Anchor, BootTime},
    verdict::CONVENTIONAL,
};
use std::{collections::BTreeSet, time::Duration};

/// What kubelet and runtime add to the grace: containers that ended further apart did not end
/// together.
const TOGETHER: Duration = Duration::from_secs(10);

/// All that the sources told.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// cgroup ↔ container.
    pub identity: &'a Identity,
    /// What the kernel told, by the container's own cgroup.
    pub processes: &'a Table<CgroupId, Processes>,
    /// What the runtime told.
    pub runtime: &'a Runtime,
    /// What the apiserver told.
    pub objects: &'a Objects,
    /// Who should have cleaned up.
    pub keepers: &'a Keepers,
    /// Boot clock ↔ wall clock.
    pub anchor: Anchor,
}

/// The facts of one life of a pod, read together.
#[derive(Clone, Debug)]
pub struct Account<'a> {
    of: Sources<'a>,
    uid: &'a PodUid,
    /// This life's, the oldest first, whether the agent saw them run or not.
    sandboxes: Vec<&'a Sandbox>,
    /// Another life of the same UID has begun.
    superseded: bool,
    /// When the pod's own cgroup was removed.
    cgroup_removed: Option<BootTime>,
}

/// The containers of the pod's present life.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// All of them, dead or alive.
    pub all: BTreeSet<ContainerId>,
    /// How many are alive.
    pub alive: usize,
    /// The latest end of those that are dead.
    pub ended: Option<BootTime>,
    /// The pod's deletion was requested while something of it ran.
    pub requested: bool,
    /// A sandbox of it is not stopped yet.
    pub sandbox_runs: bool,
}

impl<'a> Account<'a> {
    /// The facts of the life that follows the `earlier` ones, which are finished.
    pub fn new(
        of: Sources<'a>,
        uid: &'a PodUid,
        earlier: &BTreeSet<SandboxId>,
        cgroup_removed: Option<BootTime>,
    ) -> Self {
        let sandboxes = of.runtime.sandboxes_of(uid);
        let sandboxes = sandboxes.filter(|s| !earlier.contains(&s.info.id)).collect();
        let mut account = Self { of, uid, sandboxes, superseded: false, cgroup_removed };
        account.leave_out_the_next_life();
        account
    }

    /// A static pod's UID comes back with its manifest: what is made after all of it was torn
    /// down is another life. Any other pod has one life, however many sandboxes it takes.
    fn leave_out_the_next_life(&mut self) {
        if !self.is_static() {
            return;
        }
        let torn_down = |sandbox: &Sandbox| {
            sandbox.stopped.is_some()
                && self
                    .of
                    .runtime
                    .containers_of(&sandbox.info.id)
                    .all(|c| self.ended(&c.info.id).is_some())
        };
        let first = self.sandboxes.iter().position(|s| self.is_own(s) && torn_down(s));
        let over = first.map_or(self.sandboxes.len(), |first| first + 1);
        if over < self.sandboxes.len() {
            self.sandboxes.truncate(over);
            self.superseded = true;
        }
    }

    fn object(&self) -> Option<&'a Object> {
        self.of.objects.get(self.uid)
    }

    fn processes_of(&self, id: &ContainerId) -> Option<&'a Processes> {
        self.of.processes.get(&self.of.identity.cgroup(id)?)
    }

    /// It ran while the agent looked on, by the runtime's word or by the kernel's on the sandbox's
    /// own container (which bears its id).
    fn is_own(&self, sandbox: &Sandbox) -> bool {
        sandbox.seen_ready
            || self.processes_of(&ContainerId::new(sandbox.info.id.as_str())).is_some()
    }

    fn own_sandboxes(&self) -> impl Iterator<Item = &'a Sandbox> {
        self.sandboxes.iter().copied().filter(|s| self.is_own(s))
    }

    fn containers(&self) -> impl Iterator<Item = &'a Container> {
        self.sandboxes.iter().flat_map(|s| self.of.runtime.containers_of(&s.info.id))
    }

    /// It ran while the agent looked on.
    fn ran(&self, container: &Container) -> bool {
        container.seen_alive || self.processes_of(&container.info.id).is_some()
    }

    /// Nothing of this life ran while the agent looked on.
    pub fn is_empty(&self) -> bool {
        self.own_sandboxes().next().is_none() && !self.containers().any(|c| self.ran(c))
    }

    /// This life's sandboxes.
    pub fn sandboxes(&self) -> BTreeSet<SandboxId> {
        self.sandboxes.iter().map(|s| s.info.id.clone()).collect()
    }

    /// This life's sandboxes that ran while the agent looked on.
    pub fn seen_sandboxes(&self) -> BTreeSet<SandboxId> {
        self.own_sandboxes().map(|s| s.info.id.clone()).collect()
    }

    /// The containers of this life that ran while the agent looked on.
    pub fn members(&self) -> Members {
        let mut members = Members::default();
        for container in self.containers().filter(|c| self.ran(c)) {
            let id = &container.info.id;
            match self.ended(id) {
                Some(at) => members.ended = members.ended.max(Some(at)),
                None => members.alive += 1,
            }
            members.all.insert(id.clone());
        }
        members.sandbox_runs = self.own_sandboxes().any(|s| s.stopped.is_none());
        members.requested = self.request(&members.all).is_some();
        members
    }

    /// When a container ended: the kernel's word, or the runtime's where the kernel's is missing.
    pub fn ended(&self, id: &ContainerId) -> Option<BootTime> {
        let by_kernel = self.processes_of(id).and_then(Processes::ended);
        by_kernel.or_else(|| Some(self.of.runtime.container(id)?.exited?.by))
    }

    fn ended_at_the_earliest(&self, id: &ContainerId) -> Option<BootTime> {
        let by_kernel = self.processes_of(id).and_then(Processes::ended);
        by_kernel.or_else(|| Some(self.of.runtime.container(id)?.exited?.after))
    }

    /// The runtime has told all it will about this container's end.
    pub fn is_explained(&self, id: &ContainerId) -> bool {
        self.of.runtime.container(id).is_none_or(|c| c.exit.is_some() || c.removed.is_some())
    }

    /// The runtime calls all of this life's containers exited.
    pub fn are_exited(&self) -> bool {
        self.containers().all(|container| container.exited.is_some())
    }

    /// All sources have told what they will of this life's end, but for the removal of sandbox and cgroup:
    /// the runtime how each container exited, in which cgroup it was and that the sandbox is stopped; the
    /// apiserver that the object is gone, or a final phase in which every container is terminated; and
    /// neither the runtime nor the kubelet is down, which would be a finding.
    pub fn is_final(&self, members: &BTreeSet<ContainerId>) -> bool {
        !self.is_empty()
            && self.of.runtime.is_connected()
            && !self.of.keepers.kubelet.has_ended()
            && self.own_sandboxes().all(|sandbox| sandbox.stopped.is_some())
            && self.are_exited()
            && members.iter().all(|id| self.is_explained(id) && self.processes_of(id).is_some())
            && (!self.of.objects.has_apiserver() || self.object().is_some_and(is_final))
    }

    fn are_explained(&self, members: &Members) -> bool {
        members.all.iter().all(|id| self.is_explained(id))
    }

    /// The runtime has still to tell something of this life's end.
    pub fn runtime_owes(&self, members: &Members) -> bool {
        members.alive > 0 || members.sandbox_runs || !self.are_explained(members)
    }

    /// The deletion request, if something of the pod still ran when it came.
    fn request(&self, members: &BTreeSet<ContainerId>) -> Option<&'a Request> {
        let object = self.object()?;
        let request = object.request()?;
        let containers = members.iter().any(|id| self.ended_with_its_pod(id));
        // The sandbox of a pod that is over is stopped without a request; any other's whenever the watch
        // told of that.
        let counts = !object.requested_after_end || members.is_empty();
        let sandbox = counts && self.own_sandboxes().next().is_some();
        (containers || sandbox).then_some(request)
    }

    /// When the grace of the deletion request is over, if something of the pod still ran when
    /// that came.
    pub fn deadline(&self, members: &Members) -> Option<BootTime> {
        let request = self.request(&members.all)?;
        let grace = u64::try_from(request.grace_seconds).unwrap_or_default();
        Some(request.at + Duration::from_secs(grace))
    }

    /// The pod is to go: by its deletion request, or because its object went while something of it
    /// ran.
    pub fn is_ending(&self, members: &Members) -> bool {
        let mirror = self.object().is_some_and(Object::is_mirror);
        members.requested || (!mirror && self.gone(&members.all).is_some())
    }

    /// The pod went on after this container's end: another attempt of it followed, or the status showed
    /// its end while nothing was to end the pod. That the watch told of no deletion shows nothing, for
    /// it may be late; nor does the status of a mirror pod, for the manifest is removed without it.
    pub fn went_on_after(&self, id: &ContainerId) -> bool {
        let container = self.of.runtime.container(id);
        container.is_some_and(|c| !self.is_last_attempt(c))
            || self.object().is_some_and(|object| !object.is_mirror() && object.outlasted(id))
    }

    /// The container of a pod that is to go ended with it, or still runs: it was told to stop, or ended
    /// by itself when the request, or what took the object, may have come already.
    pub fn ended_with_its_pod(&self, id: &ContainerId) -> bool {
        let (Some(ended), Some(object)) = (self.ended(id), self.object()) else { return true };
        if self.went_on_after(id) {
            return false;
        }
        match (object.request(), object.gone) {
            (Some(request), _) if object.requested_after_end => ended >= request.at,
            (Some(request), _) => ended >= request.since || self.was_told_to_stop(id),
            (None, Some(gone)) if object.pod.is_finished() => ended >= gone.after,
            (None, Some(gone)) => ended >= gone.after || self.was_told_to_stop(id),
            (None, None) => false,
        }
    }

    /// Somebody outside sent it its stop signal, or SIGKILL.
    fn was_told_to_stop(&self, id: &ContainerId) -> bool {
        let signal = self.of.runtime.container(id).map_or(SIGTERM, |c| self.stop_signal(c));
        let stops = |sent: &Sent| {
            let sent =
                (sent.from_outside() && sent.signal.code != SI_KERNEL).then_some(&sent.signal);
            sent.is_some_and(|sent| [signal, SIGKILL].contains(&sent.signal))
        };
        // What its preStop hook, or another that entered it, ended it by.
        let ended = self.ended(id);
        let entered = |sent: &Sent| {
            let soon = ended.is_none_or(|ended| ended.since(sent.at) <= TOGETHER);
            sent.origin == Origin::Entered && CONVENTIONAL.contains(&sent.signal.signal) && soon
        };
        let stops = |sent: &Sent| stops(sent) || entered(sent);
        self.processes_of(id).is_some_and(|processes| processes.sent().any(stops))
    }

    /// An event that the watch owes may say whether its pod goes on or is being deleted, and how the
    /// kubelet came to start it again.
    pub fn lost_sight_of(&self, id: &ContainerId) -> bool {
        let Some(object) = self.object() else { return false };
        if self.went_on_after(id) {
            let ended = object.attempt(id).and_then(|attempt| attempt.ended);
            let container = self.of.runtime.container(id);
            let shown =
                container.and_then(|c| object.pod.containers.get(&c.info.name)?.id.as_ref());
            // A status that names a later attempt says nothing more of this one.
            let is_later = |shown: &ContainerId| {
                let attempt =
                    |id| self.of.runtime.container(id).map(|c: &Container| c.info.attempt);
                shown != id && attempt(shown) > attempt(id)
            };
            return object.exists() && ended.is_none() && !shown.is_some_and(is_later);
        }
        let owes = !object.is_mirror() && object.requested.is_none();
        owes && !self.is_static() && !self.ended_with_its_pod(id)
    }

    /// The moment the object went, if that belongs to this end and not to a later clean-up of a
    /// pod that was long over.
    fn gone(&self, members: &BTreeSet<ContainerId>) -> Option<Between> {
        let gone = self.object()?.gone?;
        // Where nobody saw it going, what had ended by itself by then may have ended before.
        let with_it = |id, at| at >= gone.by || (at >= gone.after && self.was_told_to_stop(id));
        let ran = members.iter().any(|id| self.ended(id).is_none_or(|at| with_it(id, at)));
        let mirror = self.object().is_some_and(Object::is_mirror);
        (ran || mirror || self.request(members).is_some()).then_some(gone)
    }

    fn sandbox_stopped(&self) -> Option<Between> {
        if self.own_sandboxes().any(|s| s.stopped.is_none()) {
            return None;
        }
        self.own_sandboxes().filter_map(|s| s.stopped).max_by_key(|s| s.by)
    }

    fn sandbox_removed(&self) -> Option<Between> {
        if self.own_sandboxes().any(|s| s.removed.is_none()) {
            return None;
        }
        self.own_sandboxes().filter_map(|s| s.removed).max_by_key(|s| s.by)
    }

    /// All that the account needs is known, or `patience` with what is missing is over.
    pub fn is_complete(&self, members: &Members, now: BootTime, patience: Duration) -> bool {
        if members.alive > 0 || members.sandbox_runs {
            return false;
        }
        // Deleted before it had a container: its sandbox is all that there was.
        let Some(ended) = members.ended.or_else(|| Some(self.sandbox_stopped()?.by)) else {
            return false;
        };
        let late = now >= ended + patience;
        if !(late || self.are_explained(members)) {
            return false;
        }
        if self.superseded || !self.of.objects.has_apiserver() {
            return true;
        }
        let gone = self.gone(&members.all).is_some();
        match self.object() {
            _ if members.requested => gone,
            _ if members.all.is_empty() => false, // it gets another sandbox
            Some(object) if object.is_mirror() => gone || late,
            // Without a request a pod is over only if the kubelet says so, for a sandbox that died
            // gets a successor; or if its object is gone, whenever it went: the watch may have
            // missed the kubelet's word.
            Some(object) => object.gone.is_some() || object.pod.is_finished(),
            // The watch may be late. (Nothing else names a pod that came and went meanwhile.)
            None if self.of.objects.is_in_sync() => {
                now >= ended + LONGEST_SILENCE || late && self.is_static()
            }
            // The apiserver has never told of it, and does not now. A static pod needs no word of
            // it; of any other, what the kubelet tears down only with the pod says that it is over.
            None => late && (self.is_static() || self.is_torn_down(ended)),
        }
    }

    /// The kubelet keeps the cgroup of a pod, and its last sandbox, for as long as the pod may go on
    /// (pod_container_manager_linux.go, kuberuntime_gc.go).
    fn is_torn_down(&self, ended: BootTime) -> bool {
        self.cgroup_removed.is_some_and(|at| at >= ended) || self.sandbox_removed().is_some()
    }

    /// The settle window has passed since the last thing that the account tells.
    pub fn is_settled(&self, members: &Members, now: BootTime, settle: Duration) -> bool {
        now >= self.last(&members.all).unwrap_or(now) + settle
    }

    /// The last thing that the account tells: the end of processes, sandbox and object.
    fn last(&self, members: &BTreeSet<ContainerId>) -> Option<BootTime> {
        let processes = members.iter().filter_map(|id| self.ended(id)).max();
        let sandbox = self.sandbox_stopped().map(|s| s.by);
        [processes, sandbox, self.gone(members).map(|g| g.by)].into_iter().flatten().max()
    }

    /// The kubelet has it from a file or a URL.
    pub fn is_static(&self) -> bool {
        self.own_sandboxes()
            .any(|s| matches!(s.info.config_source.as_deref(), Some("file" | "http")))
    }
}

/// The apiserver has told all of this pod's end: its object is gone; or its phase is final, with every
/// container terminated. A static pod's mirror says nothing by its phase: it goes with the pod.
fn is_final(object: &Object) -> bool {
    let mut made = object.pod.containers.values().filter(|container| container.id.is_some());
    let is_over = object.pod.is_finished() && made.all(ApiContainer::is_terminated);
    object.gone.is_some() || (is_over && !object.is_mirror())
}

fn between(kind: MilestoneKind, change: Between, source: Source) -> Milestone {
    Milestone { kind, at: change.by, uncertainty: change.uncertainty(), source }
}
