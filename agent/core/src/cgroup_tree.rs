//! The tree of cgroups as the kernel reported it, and the container of each. A cgroup below a container's
//! belongs to the nearest container above it.

use super::{
    cgroup_path::{CgroupKind, CgroupOwner, classify, parse},
    table::{Table, remove_from},
};
use crate::ids::{CgroupId, ContainerId, PodUid};
use std::collections::{BTreeSet, VecDeque};

/// Four times the size of the kernel programs' map.
const MAX_CGROUPS: usize = 65_536;
/// Bound on the cgroups below one container's own, so that no tenant evicts another's.
const MAX_NESTED: usize = 256;

#[derive(Clone, Debug, Default)]
struct TreeNode {
    parent: Option<CgroupId>,
    /// The container's own cgroup, at or above this one.
    owner: Option<CgroupId>,
    /// Set on a container's own cgroup.
    container: Option<ContainerId>,
    /// The pod in its own or an ancestor's name.
    pod: Option<PodUid>,
    /// This is the pod's own cgroup.
    is_pod: bool,
    /// On a container's own cgroup: the cgroups below it, oldest first.
    nested: VecDeque<CgroupId>,
    /// On a container's own cgroup: where below it the main process was last seen.
    main: Option<CgroupId>,
}

#[derive(Clone, Debug, Default)]
pub struct CgroupTree {
    cgroups: Table<CgroupId, TreeNode>,
    containers: Table<ContainerId, CgroupId>,
    /// Cgroups of no container, by parent: if the runtime reports the parent as a container's own, they
    /// belong to the container.
    unowned: Table<CgroupId, Vec<CgroupId>>,
    /// In order of creation, to evict the oldest first.
    order: VecDeque<CgroupId>,
    /// Containers of which an existing cgroup was evicted.
    pub incomplete: BTreeSet<CgroupId>,
    /// The container of each cgroup that was evicted, until the engine takes them.
    pub evicted: Vec<CgroupId>,
}

impl CgroupTree {
    /// Adds a cgroup. `name`: its directory's name, or its whole path.
    pub fn add(&mut self, id: CgroupId, parent: Option<CgroupId>, name: &str) {
        let above = parent.and_then(|p| self.cgroups.get(&p)).cloned();
        let path = if name.starts_with('/') { parse(name) } else { CgroupOwner::default() };
        let (mut pod, mut container) = (None, None);
        match classify(name) {
            CgroupKind::Pod(uid) => pod = Some(uid),
            CgroupKind::Container(found) => container = Some(found),
            _ => {}
        }
        let is_pod = pod.is_some();
        let pod = pod.or_else(|| above.as_ref()?.pod.clone()).or(path.pod);
        // A container's name below a container's cgroup (a runtime inside a pod) is a child of the container.
        let above_owner = above.as_ref().and_then(|a| a.owner).or_else(|| {
            // Only its path shows that it is below a known container.
            self.containers.get(path.container.as_ref()?).copied().filter(|owner| *owner != id)
        });
        let owner = above_owner.or(container.as_ref().map(|_| id));
        if owner != Some(id) {
            container = None;
        }
        let before = self.cgroups.get(&id).and_then(|known| known.container.as_ref());
        if container.is_some() && before.is_some_and(|before| container.as_ref() != Some(before)) {
            // The kernel reused the id; the removal of the other container's cgroup was lost or is still to
            // come.
            self.remove(id);
        }
        match self.cgroups.get_mut(&id) {
            // Reported twice, by mkdir and by the scan: keep what is known.
            Some(known) => {
                known.parent = known.parent.or(parent);
                known.pod = known.pod.take().or(pod);
                known.is_pod |= is_pod;
            }
            None => {
                self.cgroups.insert(id, TreeNode { parent, pod, is_pod, ..TreeNode::default() });
                self.order.push_back(id);
                if let Some(parent) = parent {
                    self.unowned.entry(parent).or_default().push(id);
                }
            }
        }
        if let Some(owner) = owner {
            self.assign(id, owner, container);
        }
        // Removed cgroups are dropped from the order once they are the most of it.
        if self.order.len() > 2 * self.cgroups.len() + MAX_NESTED {
            self.order.retain(|id| self.cgroups.contains_key(id));
        }
        while self.cgroups.len() > MAX_CGROUPS {
            let Some(oldest) = self.order.pop_front() else { break };
            let owner = self.owner(oldest);
            if self.remove(oldest) {
                self.note_evicted(owner);
            }
        }
    }

    /// Bounds the cgroups below a container. The first ones stay, because the main process is moved to one of
    /// them (systemd's `init.scope`), and so does the one it was seen in; of the rest the oldest is evicted.
    fn bound_nested(&mut self, owner: CgroupId, id: CgroupId) {
        let Some(own) = self.cgroups.get_mut(&owner) else { return };
        own.nested.push_back(id);
        if own.nested.len() <= MAX_NESTED {
            return;
        }
        let main = own.main;
        let mut rest = own.nested.range(MAX_NESTED / 2..);
        let Some(at) = rest.position(|nested| Some(*nested) != main) else { return };
        if let Some(oldest) = own.nested.remove(MAX_NESTED / 2 + at)
            && self.cgroups.remove(&oldest).is_some()
        {
            self.note_evicted(owner);
        }
    }

    fn note_evicted(&mut self, owner: CgroupId) {
        self.evicted.push(owner);
        if self.cgroups.contains_key(&owner) {
            self.incomplete.insert(owner);
        }
    }

    /// The container's main process was seen in this cgroup below its own, which may be unknown yet.
    pub fn main_is_in(&mut self, owner: CgroupId, id: CgroupId) {
        let Some(own) = self.cgroups.get_mut(&owner).filter(|own| own.main != Some(id)) else {
            return;
        };
        own.main = Some(id);
        if !self.cgroups.contains_key(&id) {
            self.add(id, None, "");
        }
        self.assign(id, owner, None);
    }

    /// Assigns a cgroup to a container, unless it has one. `container`: the cgroup is this container's own.
    fn assign(&mut self, id: CgroupId, owner: CgroupId, container: Option<ContainerId>) {
        let Some(known) = self.cgroups.get_mut(&id) else { return };
        if let Some(container) = container.filter(|_| known.container.is_none()) {
            self.containers.insert(container.clone(), id);
            known.container = Some(container);
        }
        if known.owner.is_some() {
            return;
        }
        known.owner = Some(owner);
        if let Some(parent) = known.parent {
            remove_from(&mut self.unowned, &parent, &id);
        }
        if owner != id {
            self.bound_nested(owner, id);
        }
    }

    /// Sets a container's own cgroup, as the runtime reported it.
    pub fn set_own_cgroup(&mut self, container: ContainerId, id: CgroupId) {
        if !self.cgroups.contains_key(&id) {
            self.add(id, None, "");
        }
        self.containers.insert(container.clone(), id);
        let Some(known) = self.cgroups.get_mut(&id) else { return };
        known.container = Some(container);
        // The runtime overrides the path, which suggested another container.
        if let Some(other) = known.owner.take().filter(|other| *other != id)
            && let Some(other) = self.cgroups.get_mut(&other)
        {
            other.nested.retain(|nested| *nested != id);
        }
        self.assign(id, id, None);
        // Everything below it belongs to the container as well.
        let mut above = vec![id];
        while let Some(parent) = above.pop() {
            for child in self.unowned.remove(&parent).unwrap_or_default() {
                self.assign(child, id, None);
                above.push(child);
            }
        }
    }

    /// Removes a cgroup whose events are all applied.
    pub fn remove(&mut self, id: CgroupId) -> bool {
        let Some(gone) = self.cgroups.remove(&id) else { return false };
        self.incomplete.remove(&id);
        if let Some(container) = gone.container
            && self.containers.get(&container) == Some(&id)
        {
            self.containers.remove(&container);
        }
        match (gone.owner, gone.parent) {
            (Some(owner), _) if owner != id => {
                if let Some(own) = self.cgroups.get_mut(&owner) {
                    own.nested.retain(|nested| *nested != id);
                }
            }
            (None, Some(parent)) => remove_from(&mut self.unowned, &parent, &id),
            _ => {}
        }
        // The records of their own removal may have been lost.
        for nested in gone.nested {
            self.cgroups.remove(&nested);
        }
        true
    }

    /// The container's own cgroup that a cgroup belongs to; an unknown cgroup is its own. `None`: it is known to
    /// belong to no container: a pod's, or a level above.
    pub fn container_cgroup(&self, id: CgroupId) -> Option<CgroupId> {
        self.cgroups.get(&id).map_or(Some(id), |c| c.owner)
    }

    /// The same; a cgroup of no container is its own.
    pub fn owner(&self, id: CgroupId) -> CgroupId {
        self.container_cgroup(id).unwrap_or(id)
    }

    /// The cgroup is known to belong to a container.
    pub fn has_owner(&self, id: CgroupId) -> bool {
        self.cgroups.get(&id).is_some_and(|c| c.owner.is_some())
    }

    /// The container whose own cgroup this is.
    pub fn container(&self, owner: CgroupId) -> Option<&ContainerId> {
        self.cgroups.get(&owner)?.container.as_ref()
    }

    pub fn cgroup(&self, container: &ContainerId) -> Option<CgroupId> {
        self.containers.get(container).copied()
    }

    /// The pod in the path.
    pub fn pod(&self, id: CgroupId) -> Option<&PodUid> {
        self.cgroups.get(&id)?.pod.as_ref()
    }

    /// The containers of a pod, sandboxes' own included, with their cgroups.
    pub fn containers_of(&self, pod: &PodUid) -> impl Iterator<Item = (&ContainerId, &CgroupId)> {
        self.containers.iter().filter(|(_, cgroup)| self.pod(**cgroup) == Some(pod))
    }

    /// The pod whose own cgroup this is.
    pub fn pod_level(&self, id: CgroupId) -> Option<&PodUid> {
        self.cgroups.get(&id).filter(|c| c.is_pod)?.pod.as_ref()
    }

    pub fn count(&self) -> usize {
        self.cgroups.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u64) -> String {
        format!("cri-containerd-{n:064x}.scope")
    }

    #[test]
    fn the_order_does_not_grow() {
        let mut cgroups = CgroupTree::default();
        for n in 1..=100_000 {
            cgroups.add(CgroupId(n), None, &name(n));
            cgroups.remove(CgroupId(n));
        }
        assert!(cgroups.order.len() < 1_000, "{}", cgroups.order.len());
        assert!(cgroups.cgroups.is_empty());
    }

    #[test]
    fn what_is_below_a_container_is_found_however_deep_and_removed_with_it() {
        let mut cgroups = CgroupTree::default();
        let (own, child, grandchild) = (CgroupId(1), CgroupId(2), CgroupId(3));
        cgroups.add(own, None, "/custom/ctr");
        cgroups.add(child, Some(own), "/custom/ctr/a");
        cgroups.add(grandchild, Some(child), "/custom/ctr/a/b");
        cgroups.add(CgroupId(4), None, "/custom/other");
        let container = ContainerId::new("ctr");
        cgroups.set_own_cgroup(container.clone(), own);
        for id in [own, child, grandchild] {
            assert_eq!(cgroups.owner(id), own);
        }
        assert_eq!(cgroups.container_cgroup(CgroupId(4)), None);
        // The scan reports what its mkdir has reported.
        cgroups.add(own, None, "/custom/ctr");
        cgroups.add(grandchild, Some(child), "b");
        assert_eq!((cgroups.cgroup(&container), cgroups.owner(grandchild)), (Some(own), own));
        cgroups.remove(own);
        assert_eq!(cgroups.count(), 1, "what was below it goes with it");
        cgroups.remove(CgroupId(4));
        assert!(cgroups.unowned.is_empty());
    }

    #[test]
    fn a_container_that_is_reported_again_keeps_the_bound_on_what_is_below_it() {
        let mut cgroups = CgroupTree::default();
        for round in 1..=10_u64 {
            cgroups.add(CgroupId(1), None, &name(1));
            for n in 0..200 {
                cgroups.add(CgroupId(1_000 * round + n), Some(CgroupId(1)), "nested");
            }
        }
        assert_eq!(cgroups.count(), 1 + MAX_NESTED);
        cgroups.remove(CgroupId(1));
        assert!(cgroups.cgroups.is_empty());
    }

    #[test]
    fn one_tenant_does_not_push_out_the_others() {
        let mut cgroups = CgroupTree::default();
        cgroups.add(CgroupId(1), None, &name(1));
        cgroups.add(CgroupId(2), None, &name(2));
        for n in 0..70_000 {
            cgroups.add(CgroupId(100 + n), Some(CgroupId(2)), "nested");
        }
        assert!(cgroups.container(CgroupId(1)).is_some());
        assert_eq!(cgroups.count(), 2 + MAX_NESTED);
        assert_eq!(cgroups.owner(CgroupId(100 + 69_999)), CgroupId(2));
        assert_eq!(cgroups.owner(CgroupId(100)), CgroupId(2), "the first");
        cgroups.main_is_in(CgroupId(2), CgroupId(100 + 69_990));
        cgroups.main_is_in(CgroupId(2), CgroupId(100 + 60_000));
        for n in 70_000..140_000 {
            cgroups.add(CgroupId(100 + n), Some(CgroupId(2)), "nested");
        }
        assert_eq!(cgroups.owner(CgroupId(100 + 60_000)), CgroupId(2), "its main process is there");
        assert!(!cgroups.has_owner(CgroupId(100 + 69_990)), "it was there");
        assert_eq!(cgroups.count(), 2 + MAX_NESTED);
        cgroups.remove(CgroupId(2));
        assert_eq!(cgroups.count(), 1, "what was below it goes with it");
    }
}
