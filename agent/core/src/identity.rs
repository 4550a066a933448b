//! cgroup ↔ container: the tree as the kernel told it. A cgroup below a container's belongs to the
//! nearest container above it.

use super::{
    cgroup_path::{Level, classify, parse},
    ids::{CgroupId, ContainerId, PodUid},
    table::Table,
};
use std::collections::{BTreeSet, VecDeque};

/// As many as the programs' map holds, four times over.
const MAX_CGROUPS: usize = 65_536;
/// Cgroups that one container may have below its own: no tenant pushes out another.
const MAX_NESTED: usize = 256;

#[derive(Clone, Debug)]
struct Cgroup {
    parent: Option<CgroupId>,
    /// The container's own cgroup at or above this one.
    owner: Option<CgroupId>,
    /// Set on a container's own cgroup.
    container: Option<ContainerId>,
    /// The pod that its own or an ancestor's name tells.
    pod: Option<PodUid>,
    /// It is the pod's own cgroup.
    is_pod: bool,
    /// On a container's own cgroup: those below it, the oldest first.
    nested: VecDeque<CgroupId>,
    /// On a container's own cgroup: the one below it that its main process was last seen in.
    main: Option<CgroupId>,
}

/// The tree of watched cgroups.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    cgroups: Table<CgroupId, Cgroup>,
    containers: Table<ContainerId, CgroupId>,
    /// Cgroups of no container, by their parent: they are the container's once the runtime reports
    /// that the parent is one's own.
    unowned: Table<CgroupId, Vec<CgroupId>>,
    /// In order of appearance, to forget the oldest first.
    order: VecDeque<CgroupId>,
    forgotten: u64,
    /// Containers of which a cgroup was forgotten while it was there.
    incomplete: BTreeSet<CgroupId>,
    /// Those of them that the caller has not taken yet.
    evicted: Vec<CgroupId>,
}

impl Identity {
    /// A cgroup appeared. `name` is its directory's name, or its whole path.
    pub fn created(&mut self, id: CgroupId, parent: Option<CgroupId>, name: &str) {
        let above = parent.and_then(|p| self.cgroups.get(&p)).cloned();
        let whole = name.starts_with('/').then(|| parse(name));
        let (mut pod, mut container, mut is_pod) = (None, None, false);
        match classify(name) {
            Level::Pod(uid) => (pod, is_pod) = (Some(uid), true),
            Level::Container(found) => container = Some(found),
            _ => {}
        }
        if let Some(above) = &above {
            pod = pod.or_else(|| above.pod.clone());
        }
        let mut path_container = None;
        if let Some(whole) = whole {
            pod = pod.or(whole.pod);
            path_container = whole.container;
        }
        // A container's name below a container's cgroup (a runtime inside a pod) is its child.
        let above_owner = above.as_ref().and_then(|a| a.owner).or_else(|| {
            // Told by its path only: below a container that is known already.
            self.containers.get(path_container.as_ref()?).copied().filter(|owner| *owner != id)
        });
        let owner = match above_owner {
            Some(owner) => Some(owner),
            None => container.as_ref().map(|_| id),
        };
        if owner != Some(id) {
            container = None;
        }
        let before = self.cgroups.get(&id).and_then(|known| known.container.as_ref());
        if container.is_some() && before.is_some_and(|before| container.as_ref() != Some(before)) {
            // The id was another container's, whose removal was not told or is not behind us yet.
            self.remove(id);
        }
        match self.cgroups.get_mut(&id) {
            // Reported twice, by its mkdir and by the scan: what is known of it by now stays.
            Some(known) => {
                known.parent = known.parent.or(parent);
                known.pod = known.pod.take().or(pod);
                known.is_pod |= is_pod;
            }
            None => {
                let (nested, main) = (VecDeque::new(), None);
                let new =
                    Cgroup { parent, owner: None, container: None, pod, is_pod, nested, main };
                self.cgroups.insert(id, new);
                self.order.push_back(id);
                if let Some(parent) = parent {
                    self.unowned.entry(parent).or_default().push(id);
                }
            }
        }
        if let Some(owner) = owner {
            self.assign(id, owner, container);
        }
        self.compact();
        while self.cgroups.len() > MAX_CGROUPS {
            let Some(oldest) = self.order.pop_front() else { break };
            let owner = self.owner(oldest);
            if self.remove(oldest) {
                self.note_evicted(owner);
            }
        }
    }

    /// The first cgroups that a container makes stay, as its main process is moved to one of them
    /// (systemd's `init.scope`), and so does the one that it was seen in. Of the rest the oldest goes.
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
        self.forgotten += 1;
        self.evicted.push(owner);
        if self.cgroups.contains_key(&owner) {
            self.incomplete.insert(owner);
        }
    }

    /// A container's main process was seen in a cgroup that is not its own, be that known or not.
    pub fn main_is_in(&mut self, owner: CgroupId, id: CgroupId) {
        let Some(own) = self.cgroups.get_mut(&owner).filter(|own| own.main != Some(id)) else {
            return;
        };
        own.main = Some(id);
        if !self.cgroups.contains_key(&id) {
            self.created(id, None, "");
        }
        self.assign(id, owner, None);
    }

    /// Containers of which a cgroup was forgotten while it was there.
    pub fn incomplete(&self) -> &BTreeSet<CgroupId> {
        &self.incomplete
    }

    /// The same, of those to which it happened since the last call.
    pub fn take_evicted(&mut self) -> Vec<CgroupId> {
        std::mem::take(&mut self.evicted)
    }

    /// The order holds what is gone until it is mostly that.
    fn compact(&mut self) {
        if self.order.len() > 2 * self.cgroups.len() + MAX_NESTED {
            let cgroups = &self.cgroups;
            self.order.retain(|id| cgroups.contains_key(id));
        }
    }

    /// A cgroup belongs to a container, unless it belongs to one already. `container`: it is that
    /// container's own.
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
            self.is_no_longer_unowned(parent, id);
        }
        if owner != id {
            self.bound_nested(owner, id);
        }
    }

    fn is_no_longer_unowned(&mut self, parent: CgroupId, id: CgroupId) {
        if let Some(siblings) = self.unowned.get_mut(&parent) {
            siblings.retain(|sibling| *sibling != id);
            if siblings.is_empty() {
                self.unowned.remove(&parent);
            }
        }
    }

    /// The runtime says where this container lives.
    pub fn linked(&mut self, container: ContainerId, id: CgroupId) {
        if !self.cgroups.contains_key(&id) {
            self.created(id, None, "");
        }
        self.containers.insert(container.clone(), id);
        let Some(known) = self.cgroups.get_mut(&id) else { return };
        known.container = Some(container);
        // The runtime is right where the path had shown another container's cgroup.
        if let Some(other) = known.owner.take().filter(|other| *other != id)
            && let Some(other) = self.cgroups.get_mut(&other)
        {
            other.nested.retain(|nested| *nested != id);
        }
        self.assign(id, id, None);
        // What was below it so far belongs to it as well, however deep.
        let mut above = vec![id];
        while let Some(parent) = above.pop() {
            for child in self.unowned.remove(&parent).unwrap_or_default() {
                self.assign(child, id, None);
                above.push(child);
            }
        }
    }

    /// A cgroup is gone and its events are behind us.
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
            (None, Some(parent)) => self.is_no_longer_unowned(parent, id),
            _ => {}
        }
        // Their own removal may have been lost.
        for nested in gone.nested {
            self.cgroups.remove(&nested);
        }
        true
    }

    /// The container's own cgroup that a cgroup belongs to; an unknown cgroup stands for itself.
    pub fn owner(&self, id: CgroupId) -> CgroupId {
        self.cgroups.get(&id).and_then(|c| c.owner).unwrap_or(id)
    }

    /// It belongs to a container, as far as known.
    pub fn has_owner(&self, id: CgroupId) -> bool {
        self.cgroups.get(&id).is_some_and(|c| c.owner.is_some())
    }

    /// The cgroup is known not to belong to any container: a pod's, or a level above.
    pub fn is_above_containers(&self, id: CgroupId) -> bool {
        self.cgroups.get(&id).is_some_and(|c| c.owner.is_none())
    }

    /// The container of a container's own cgroup.
    pub fn container(&self, owner: CgroupId) -> Option<&ContainerId> {
        self.cgroups.get(&owner)?.container.as_ref()
    }

    /// The own cgroup of a container.
    pub fn cgroup(&self, container: &ContainerId) -> Option<CgroupId> {
        self.containers.get(container).copied()
    }

    /// The pod that the path tells.
    pub fn pod(&self, id: CgroupId) -> Option<&PodUid> {
        self.cgroups.get(&id)?.pod.as_ref()
    }

    /// The pod whose own cgroup this is.
    pub fn pod_level(&self, id: CgroupId) -> Option<&PodUid> {
        self.cgroups.get(&id).filter(|c| c.is_pod)?.pod.as_ref()
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.cgroups.len()
    }

    /// None is known.
    pub fn is_empty(&self) -> bool {
        self.cgroups.is_empty()
    }

    /// How many were forgotten for want of room, since the last call.
    pub fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
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
        let mut identity = Identity::default();
        for n in 1..=100_000 {
            identity.created(CgroupId(n), None, &name(n));
            identity.remove(CgroupId(n));
        }
        assert!(identity.order.len() < 1_000, "{}", identity.order.len());
        assert!(identity.is_empty());
    }

    #[test]
    fn what_is_below_a_container_is_found_however_deep_and_removed_with_it() {
        let mut identity = Identity::default();
        let (own, child, grandchild) = (CgroupId(1), CgroupId(2), CgroupId(3));
        identity.created(own, None, "/custom/ctr");
        identity.created(child, Some(own), "/custom/ctr/a");
        identity.created(grandchild, Some(child), "/custom/ctr/a/b");
        identity.created(CgroupId(4), None, "/custom/other");
        let container = ContainerId::new("ctr");
        identity.linked(container.clone(), own);
        for id in [own, child, grandchild] {
            assert_eq!(identity.owner(id), own);
        }
        assert!(identity.is_above_containers(CgroupId(4)));
        // The scan reports what its mkdir has reported.
        identity.created(own, None, "/custom/ctr");
        identity.created(grandchild, Some(child), "b");
        assert_eq!((identity.cgroup(&container), identity.owner(grandchild)), (Some(own), own));
        identity.remove(own);
        assert_eq!(identity.len(), 1, "what was below it goes with it");
        identity.remove(CgroupId(4));
        assert!(identity.unowned.is_empty());
    }

    #[test]
    fn a_container_that_is_reported_again_keeps_the_bound_on_what_is_below_it() {
        let mut identity = Identity::default();
        for round in 1..=10_u64 {
            identity.created(CgroupId(1), None, &name(1));
            for n in 0..200 {
                identity.created(CgroupId(1_000 * round + n), Some(CgroupId(1)), "nested");
            }
        }
        assert_eq!(identity.len(), 1 + MAX_NESTED);
        identity.remove(CgroupId(1));
        assert!(identity.is_empty());
    }

    #[test]
    fn one_tenant_does_not_push_out_the_others() {
        let mut identity = Identity::default();
        identity.created(CgroupId(1), None, &name(1));
        identity.created(CgroupId(2), None, &name(2));
        for n in 0..70_000 {
            identity.created(CgroupId(100 + n), Some(CgroupId(2)), "nested");
        }
        assert!(identity.container(CgroupId(1)).is_some());
        assert_eq!(identity.len(), 2 + MAX_NESTED);
        assert_eq!(identity.owner(CgroupId(100 + 69_999)), CgroupId(2));
        assert_eq!(identity.owner(CgroupId(100)), CgroupId(2), "the first");
        identity.main_is_in(CgroupId(2), CgroupId(100 + 69_990));
        identity.main_is_in(CgroupId(2), CgroupId(100 + 60_000));
        for n in 70_000..140_000 {
            identity.created(CgroupId(100 + n), Some(CgroupId(2)), "nested");
        }
        assert_eq!(
            identity.owner(CgroupId(100 + 60_000)),
            CgroupId(2),
            "its main process is there"
        );
        assert!(!identity.has_owner(CgroupId(100 + 69_990)), "it was there");
        assert_eq!(identity.len(), 2 + MAX_NESTED);
        identity.remove(CgroupId(2));
        assert_eq!(identity.len(), 1, "what was below it goes with it");
    }
}
