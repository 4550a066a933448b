//! Forgetting: what is accounted for and gone, so that memory does not grow with time.

use super::{Engine, MAX_CONTAINERS, finished::TAIL, life::PATIENCE};
use crate::{
    ids::{CgroupId, ContainerId, PodUid, SandboxId},
    input::LossKind,
    object::Object,
    output::Outputs,
    process::Processes,
    time::BootTime,
};
use std::{collections::BTreeSet, time::Duration};

/// A container that the runtime never explained is given up,
const UNRESOLVED: Duration = Duration::from_secs(60);
/// and one that it had no chance to explain, as it has not answered since.
const UNANSWERED: Duration = Duration::from_secs(3600);
/// A pod that the runtime has forgotten, and that is not accounted for, keeps its evidence so long.
const STUCK: Duration = Duration::from_secs(24 * 3600);

/// Cgroups in which nobody was ever seen, and of which the runtime may still tell.
const MAX_BARREN: usize = 256;
/// Cgroups of no known container in which something happened: the runtime may still report which
/// container it is, or it is a tenant's own and was evicted.
const MAX_STRANGERS: usize = 1_024;

impl Engine {
    /// Its object is to go and is still there: a finalizer may hold it for as long as it likes.
    fn is_held(&self, uid: &PodUid) -> bool {
        self.objects.get(uid).is_some_and(|o| o.request().is_some() && o.gone.is_none())
    }

    /// Forgets what is accounted for and gone, so that memory does not grow with time.
    pub(super) fn forget(&mut self, now: BootTime, out: &mut Outputs) {
        for (sandbox, uid, by) in self.runtime.removed_sandboxes() {
            let settled = now >= by + self.settings.settle;
            let busy = self.active.contains(&uid);
            // One that never ran tells nothing of its pod's end.
            let ran = self.runtime.sandbox(&sandbox).is_none_or(|known| known.seen_ready)
                || self.runtime.containers_of(&sandbox).any(|container| {
                    container.seen_alive || self.identity.cgroup(&container.info.id).is_some()
                });
            if settled && !(busy && ran) || now >= by + STUCK && !self.is_held(&uid) {
                let mut gone = self.runtime.forget(&sandbox, &mut self.dirty);
                gone.push(ContainerId::new(sandbox.as_str()));
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.past.remove(&sandbox);
                    pod.told.retain(|id| !gone.contains(id));
                }
                for id in gone {
                    self.forget_container(&id);
                }
                if !self.runtime.has_sandbox(&uid)
                    && !busy
                    && let Some(mut pod) = self.pods.remove(&uid)
                {
                    pod.hurry(BTreeSet::new(), out);
                    if let Some(finished) = pod.finished {
                        finished.close(out);
                    }
                }
            }
        }
        // Containers removed while their sandbox goes on: kept while their pod may still need them.
        for (id, by) in self.runtime.removed_containers() {
            let uid = self.runtime.pod_of(&id).cloned();
            let told = uid
                .as_ref()
                .and_then(|uid| self.pods.get(uid))
                .is_some_and(|pod| pod.told.contains(&id) && pod.finished.is_none());
            let over = now >= by + self.settings.settle;
            let requested = uid
                .as_ref()
                .and_then(|u| self.objects.get(u))
                .is_some_and(|o| o.request().is_some());
            // Its pod may be over, and its account has not been told yet.
            let suspended = uid.as_ref().is_some_and(|uid| {
                let mut sandboxes = self.runtime.sandboxes_of(uid);
                self.active.contains(uid) && sandboxes.all(|sandbox| sandbox.stopped.is_some())
            });
            if now >= by + UNRESOLVED && self.has_ended_without_sandbox(&id) {
                let processes = self.identity.cgroup(&id).and_then(|own| self.processes.get(&own));
                if !processes.is_some_and(Processes::saw_nobody) {
                    self.count_loss(LossKind::NeverResolved, 1);
                }
                self.runtime.forget_container(&id, &mut self.dirty);
                self.forget_container(&id);
                continue;
            }
            let stuck = now >= by + STUCK && !uid.as_ref().is_some_and(|uid| self.is_held(uid));
            if over && ((told && !requested && !suspended) || stuck) {
                self.runtime.forget_container(&id, &mut self.dirty);
                self.forget_container(&id);
                if let Some(pod) = uid.and_then(|uid| self.pods.get_mut(&uid)) {
                    pod.told.remove(&id);
                }
            }
        }
        self.forget_objects(now);
        self.close_tails(now, out);
        self.forget_unresolved(now);
    }

    /// Objects that are gone, and of which the runtime has listed all there was: it may be late. Of one whose
    /// sandbox stays, which may be for months, only what leaks need is kept.
    fn forget_objects(&mut self, now: BootTime) {
        let gone = self.objects.gone().filter(|(uid, _, by)| {
            let is_listed = self.runtime.has_listed_since(*by) || now >= *by + UNANSWERED;
            let is_due = now >= *by + PATIENCE && is_listed;
            is_due && !self.active.contains(*uid)
        });
        let (kept, others): (Vec<_>, Vec<_>) =
            gone.partition(|(uid, ..)| self.runtime.has_sandbox(uid));
        let is_over = |uid: &PodUid| {
            let sandboxes = self.runtime.sandboxes_of(uid);
            let mut containers = sandboxes.flat_map(|s| self.runtime.containers_of(&s.info.id));
            self.pods.get(uid).is_none_or(|pod| pod.finished.is_none())
                && containers.all(|container| container.exited.is_some())
        };
        let is_large = |(uid, object, by): &(&PodUid, &Object, BootTime)| {
            now >= *by + TAIL && !object.is_reduced() && is_over(uid)
        };
        let large: Vec<PodUid> =
            kept.into_iter().filter(is_large).map(|(uid, ..)| uid.clone()).collect();
        let others = others.into_iter().filter(|(uid, ..)| !self.pods.contains_key(*uid));
        let others: Vec<PodUid> = others.map(|(uid, ..)| uid.clone()).collect();
        large.iter().for_each(|uid| self.objects.reduce(uid));
        for uid in others {
            self.objects.forget(&uid, &mut self.dirty);
        }
    }

    /// The runtime has listed the container, but never its sandbox: no pod's report will have it.
    fn has_ended_without_sandbox(&self, id: &ContainerId) -> bool {
        let sandbox = self.runtime.container(id).map(|container| &container.info.sandbox);
        let processes = self.identity.cgroup(id).and_then(|own| self.processes.get(&own));
        sandbox.is_some_and(|sandbox| self.runtime.sandbox(sandbox).is_none())
            && processes.is_none_or(Processes::is_over)
    }

    /// The sandbox of a completed Job stays as long as the object does; its evidence need not.
    fn close_tails(&mut self, now: BootTime, out: &mut Outputs) {
        let mut over = Vec::new();
        for pod in self.pods.values_mut() {
            if let Some(finished) = pod.finished.take_if(|finished| finished.is_over(now)) {
                finished.close(out);
                over.extend(pod.past.iter().cloned());
            }
        }
        for sandbox in over {
            let containers = self.runtime.containers_of(&sandbox);
            let ids: Vec<_> = containers.map(|c| c.info.id.clone()).collect();
            for id in ids {
                self.forget_container(&id);
            }
        }
    }

    /// Cgroups that ended and that the runtime never explained.
    fn forget_unresolved(&mut self, now: BootTime) {
        // The dead must not crowd out the living.
        let has_room = self.processes.len() < MAX_CONTAINERS / 2;
        let given_up: Vec<CgroupId> = self
            .processes
            .iter()
            .filter(|(owner, p)| {
                // A record that came after its cgroup was forgotten, or whose mkdir was lost, has
                // no end to wait for.
                let orphan = self.identity.container(**owner).is_none();
                let end = p.removed.or(p.ended()).or(orphan.then_some(p.last_heard));
                end.is_some_and(|at| {
                    let patient = has_room && !self.runtime.has_listed_since(at);
                    now >= at + if patient { UNANSWERED } else { UNRESOLVED }
                })
            })
            .map(|(owner, _)| *owner)
            .filter(|owner| {
                self.identity.container(*owner).is_none_or(|id| {
                    self.runtime.container(id).is_none()
                        && self.runtime.sandbox(&SandboxId::new(id.as_str())).is_none()
                })
            })
            .collect();
        for owner in given_up {
            // Only a container counts, and one that somebody was in.
            let is_container = self.identity.container(owner).is_some();
            if is_container && !self.processes.get(&owner).is_some_and(Processes::saw_nobody) {
                self.count_loss(LossKind::NeverResolved, 1);
            }
            self.dirty.all_reports = true;
            self.processes.remove(&owner);
            self.identity.remove(owner);
        }
    }

    /// A cgroup is removed in which nobody was ever seen. The runtime may still tell of a container
    /// that came to nothing; of the cgroups of a program that makes and removes them by thousands it
    /// will not.
    pub(super) fn note_barren(&mut self, owner: CgroupId) {
        self.barren.push_back(owner);
        if self.barren.len() <= MAX_BARREN {
            return;
        }
        let Some(oldest) = self.barren.pop_front() else { return };
        let known = |id| self.runtime.container(id).is_some();
        let explained = self.identity.container(oldest).is_some_and(known);
        if !explained && self.processes.get(&oldest).is_some_and(Processes::saw_nobody) {
            self.dirty.all_reports = true;
            self.processes.remove(&oldest);
            self.identity.remove(oldest);
        }
    }

    /// Something happens in a cgroup of no known container. Few of those are kept, so that a tenant who
    /// makes cgroups by thousands leaves room for the containers of others.
    pub(super) fn note_stranger(&mut self, owner: CgroupId) {
        self.strangers.push_back(owner);
        if self.strangers.len() <= MAX_STRANGERS {
            return;
        }
        let Some(oldest) = self.strangers.pop_front() else { return };
        if self.identity.container(oldest).is_none() && self.processes.remove(&oldest).is_some() {
            self.dirty.all_reports = true;
            self.count_loss(LossKind::EngineFull, 1);
        }
    }

    fn forget_container(&mut self, id: &ContainerId) {
        self.dirty.all_reports = true;
        if self.asked.remove(id) {
            self.dirty.containers.insert(id.clone());
        }
        if let Some(cgroup) = self.identity.cgroup(id) {
            self.processes.remove(&cgroup);
            self.identity.remove(cgroup);
        }
    }
}
