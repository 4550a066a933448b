//! Eviction: entries that are gone and reported, so that memory does not grow with time.

use super::{
    Engine, MAX_CONTAINERS,
    lifecycle::{COMPLETE, KEPT},
};
use crate::{
    api::{LONGEST_SILENCE, PodObject},
    output::Outputs,
    process::ContainerProcesses,
    table::push_latest,
};
use crate::{
    ids::{CgroupId, ContainerId, PodUid},
    input::LossKind,
    time::BootTime,
};
use std::{collections::BTreeSet, time::Duration};

/// A cgroup whose container the runtime never listed is given up after this, for which a late watch may name it,
const UNRESOLVED: Duration = LONGEST_SILENCE;
/// or after this, while the runtime has not answered since.
const UNANSWERED: Duration = Duration::from_secs(3600);
/// Evidence of a removed sandbox or container that is not reported yet is kept for this long.
const STUCK: Duration = Duration::from_secs(24 * 3600);

/// Bound on removed cgroups in which no process was ever seen and which the runtime may still report.
const MAX_UNPOPULATED: usize = 256;
/// Bound on cgroups of no known container in which something happened. The runtime may still report the
/// container; or a tenant made the cgroup.
const MAX_UNOWNED: usize = 1_024;

impl Engine {
    /// The pod's deletion is requested and its object still exists: a finalizer may hold it indefinitely.
    fn has_pending_deletion(&self, uid: &PodUid) -> bool {
        self.stores.api.get(uid).is_some_and(|o| o.request().is_some() && o.gone.is_none())
    }

    pub(super) fn evict(&mut self, now: BootTime, out: &mut Outputs) {
        for (sandbox, uid, by) in self.stores.cri.sandboxes.removed() {
            let settled = now >= by + self.settle;
            let busy = self.active.contains(&uid);
            // A sandbox that never ran is no evidence for its pod's termination.
            let ran = self.stores.cri.sandbox(&sandbox).is_none_or(|known| known.seen_alive)
                || self.stores.cri.containers_of(&sandbox).any(|container| {
                    container.seen_alive || self.stores.cgroups.cgroup(&container.info.id).is_some()
                });
            if settled && !(busy && ran) || now >= by + STUCK && !self.has_pending_deletion(&uid) {
                let mut gone = self.stores.cri.evict(&sandbox, &mut self.dirty);
                gone.push(ContainerId::new(sandbox.as_str()));
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.finished_sandboxes.remove(&sandbox);
                    pod.reported.retain(|id| !gone.contains(id));
                }
                for id in gone {
                    self.evict_container(&id);
                }
                if !self.stores.cri.has_sandbox(&uid)
                    && !busy
                    && let Some(mut pod) = self.pods.remove(&uid)
                {
                    pod.fast_poll(BTreeSet::new(), out);
                    if let Some(termination) = &mut pod.termination {
                        termination.finish(out);
                    }
                }
            }
        }
        // Containers removed from a sandbox that still runs: kept while the pod's report may need them.
        for (id, _, by) in self.stores.cri.containers.removed() {
            // Where the runtime did not name the pod, no pod is found below.
            let uid = self.stores.cri.pod_of(&id).map_or_else(|| PodUid::new(""), PodUid::clone);
            let reported = self
                .pods
                .get(&uid)
                .is_some_and(|pod| pod.reported.contains(&id) && pod.termination.is_none());
            let over = now >= by + self.settle;
            // Otherwise its termination report is still to come.
            let idle = !self.active.contains(&uid);
            let orphaned = now >= by + UNRESOLVED && self.has_ended_without_sandbox(&id);
            if orphaned {
                let populated =
                    self.stores.cgroups.cgroup(&id).is_none_or(|own| self.was_populated(own));
                self.count_loss(LossKind::NeverResolved, u64::from(populated));
            }
            let stuck = now >= by + STUCK && !self.has_pending_deletion(&uid);
            if orphaned || over && (reported && idle || stuck) {
                self.stores.cri.containers.evict(&id);
                self.evict_container(&id);
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.reported.remove(&id);
                }
            }
        }
        self.evict_objects(now);
        self.forget_terminations(now);
        self.evict_unresolved(now);
    }

    /// Evicts pod objects that are gone, once the runtime has listed everything since. If a sandbox remains,
    /// possibly for months, the object is reduced to the fields that leak detection needs.
    fn evict_objects(&mut self, now: BootTime) {
        let is_due = |(uid, object, by): &(&PodUid, &PodObject, BootTime)| {
            let is_listed = self.stores.cri.has_listed_since(*by) || now >= *by + UNANSWERED;
            now >= *by + COMPLETE
                && is_listed
                && !self.active.contains(*uid)
                && !(object.is_reduced && self.stores.cri.has_sandbox(uid))
        };
        let gone = self.stores.api.gone().filter(is_due);
        let gone: Vec<_> = gone.map(|(uid, _, by)| (uid.clone(), by)).collect();
        for (uid, by) in gone {
            let pod = self.pods.get(&uid);
            if self.stores.cri.has_sandbox(&uid) {
                let sandboxes = self.stores.cri.sandboxes_of(&uid);
                let mut containers =
                    sandboxes.flat_map(|s| self.stores.cri.containers_of(&s.info.id));
                let is_open = pod.is_some_and(|pod| pod.termination.is_some());
                if now >= by + KEPT && !is_open && containers.all(|c| c.ended.is_some()) {
                    self.stores.api.reduce(&uid);
                }
            } else if pod.is_none() {
                self.stores.api.evict(&uid, &mut self.dirty);
            }
        }
    }

    /// The runtime listed the container, but never its sandbox: no pod report will include it.
    fn has_ended_without_sandbox(&self, id: &ContainerId) -> bool {
        let sandbox = self.stores.cri.container(id).map(|container| &container.info.sandbox);
        let processes = self.stores.processes_of(id);
        sandbox.is_some_and(|sandbox| self.stores.cri.sandbox(sandbox).is_none())
            && processes.is_none_or(ContainerProcesses::is_over)
    }

    /// A process was seen in the cgroup, or its record may have been lost.
    pub(super) fn was_populated(&self, owner: CgroupId) -> bool {
        let processes = self.stores.processes.get(&owner);
        !processes.is_some_and(ContainerProcesses::was_never_populated)
    }

    /// Forgets reports that have been final for long, and what they rest on.
    fn forget_terminations(&mut self, now: BootTime) {
        let mut over = Vec::new();
        for pod in self.pods.values_mut() {
            if pod.termination.take_if(|one| one.is_final() && one.is_over(now)).is_some() {
                over.extend(pod.finished_sandboxes.iter().cloned());
            }
        }
        for sandbox in over {
            let ids: Vec<_> = self.stores.cri.containers.ids_of(&sandbox).cloned().collect();
            ids.iter().for_each(|id| self.evict_container(id));
        }
    }

    /// Evicts cgroups that ended and that the runtime never listed.
    fn evict_unresolved(&mut self, now: BootTime) {
        // Ended cgroups must not take the room of running ones.
        let has_room = self.stores.processes.len() < MAX_CONTAINERS / 2;
        let is_due = |owner: &CgroupId, p: &ContainerProcesses| {
            // The cgroup was evicted before this record came, or the mkdir record was lost: no end will come.
            let orphan = self.stores.cgroups.container(*owner).is_none();
            let end = p.removed.or(p.ended()).or(orphan.then_some(p.last_event));
            end.is_some_and(|at| {
                let may_be_listed = has_room && !self.stores.cri.has_listed_since(at);
                now >= at + if may_be_listed { UNANSWERED } else { UNRESOLVED }
            })
        };
        let is_listed = |id: &ContainerId| {
            let sandboxes = self.stores.cri.sandboxes.entries();
            self.stores.cri.container(id).is_some() || sandboxes.contains_key(id.as_str())
        };
        let is_unlisted = |owner| !self.stores.cgroups.container(owner).is_some_and(is_listed);
        let due = self.stores.processes.iter().filter(|(owner, p)| is_due(owner, p));
        let unresolved: Vec<CgroupId> =
            due.map(|(id, _)| *id).filter(|id| is_unlisted(*id)).collect();
        for owner in unresolved {
            // Count it as a loss only if it was a container in which some process was seen.
            let lost = self.stores.cgroups.container(owner).is_some() && self.was_populated(owner);
            self.count_loss(LossKind::NeverResolved, u64::from(lost));
            self.evict_cgroup(owner);
        }
    }

    /// Bounds the removed cgroups in which no process was ever seen. The runtime may still report a failed
    /// container there, but not the cgroups that a program makes and removes by the thousand.
    pub(super) fn note_unpopulated(&mut self, owner: CgroupId) {
        let evicted = push_latest(&mut self.unpopulated, owner, MAX_UNPOPULATED);
        let Some(oldest) = evicted else { return };
        let known = |id| self.stores.cri.container(id).is_some();
        let explained = self.stores.cgroups.container(oldest).is_some_and(known);
        if !explained && !self.was_populated(oldest) {
            self.evict_cgroup(oldest);
        }
    }

    /// Bounds the cgroups of no known container, so that a tenant who makes cgroups by the thousand leaves
    /// room for other containers.
    pub(super) fn note_unowned(&mut self, owner: CgroupId) {
        let Some(oldest) = push_latest(&mut self.unowned, owner, MAX_UNOWNED) else { return };
        if self.stores.cgroups.container(oldest).is_none()
            && self.stores.processes.remove(&oldest).is_some()
        {
            self.dirty.all_reports = true;
            self.count_loss(LossKind::EngineFull, 1);
        }
    }

    fn evict_container(&mut self, id: &ContainerId) {
        self.dirty.all_reports = true;
        if self.requested.remove(id) {
            self.dirty.containers.insert(id.clone());
        }
        if let Some(cgroup) = self.stores.cgroups.cgroup(id) {
            self.evict_cgroup(cgroup);
        }
    }

    fn evict_cgroup(&mut self, cgroup: CgroupId) {
        self.dirty.all_reports = true;
        self.stores.processes.remove(&cgroup);
        self.stores.cgroups.remove(cgroup);
    }
}
