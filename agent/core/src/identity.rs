//! cgroup ↔ container: the tree as the kernel told it. A cgroup below a container's belongs to the
//! nearest container above it.

use super::{
    cgroup_path::{Level, classify, parse},
    ids::{CgroupId, ContainerId, PodUid},
    table::Table,
};
use std::collections::VecDeque;

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
}

/// The tree of watched cgroups.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    cgroups: Table<CgroupId, Cgroup>,
    containers: Table<ContainerId, CgroupId>,
    /// In order of appearance, to forget the oldest first.
    order: VecDeque<CgroupId>,
    forgotten: u64,
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
        // The id was another container's, whose removal was not told or is not behind us yet.
        if let Some(before) = self.cgroups.get(&id).and_then(|known| known.container.as_ref())
            && container.as_ref().is_some_and(|now| now != before)
            && self.containers.get(before) == Some(&id)
        {
            self.containers.remove(before);
        }
        if let Some(container) = &container {
            self.containers.insert(container.clone(), id);
        }
        let nested = VecDeque::new();
        if self
            .cgroups
            .insert(id, Cgroup { parent, owner, container, pod, is_pod, nested })
            .is_none()
        {
            self.order.push_back(id);
        }
        if let Some(owner) = owner.filter(|owner| *owner != id) {
            self.bound_nested(owner, id);
        }
        self.compact();
        while self.cgroups.len() > MAX_CGROUPS {
            let Some(oldest) = self.order.pop_front() else { break };
            if self.remove(oldest) {
                self.forgotten += 1;
            }
        }
    }

    fn bound_nested(&mut self, owner: CgroupId, id: CgroupId) {
        let Some(own) = self.cgroups.get_mut(&owner) else { return };
        own.nested.push_back(id);
        if own.nested.len() > MAX_NESTED
            && let Some(oldest) = own.nested.pop_front()
            && self.cgroups.remove(&oldest).is_some()
        {
            self.forgotten += 1;
        }
    }

    /// The order holds what is gone until it is mostly that.
    fn compact(&mut self) {
        if self.order.len() > 2 * self.cgroups.len() + MAX_NESTED {
            let cgroups = &self.cgroups;
            self.order.retain(|id| cgroups.contains_key(id));
        }
    }

    /// The runtime says where this container lives.
    pub fn linked(&mut self, container: ContainerId, id: CgroupId) {
        self.containers.insert(container.clone(), id);
        let known = self.cgroups.entry(id).or_insert(Cgroup {
            parent: None,
            owner: Some(id),
            container: None,
            pod: None,
            is_pod: false,
            nested: VecDeque::new(),
        });
        known.owner = Some(id);
        known.container = Some(container);
        // What was below it so far belongs to it as well.
        let below: Vec<CgroupId> =
            self.cgroups.iter().filter(|(_, c)| c.parent == Some(id)).map(|(id, _)| *id).collect();
        for child in below {
            if let Some(child) = self.cgroups.get_mut(&child)
                && child.owner.is_none()
            {
                child.owner = Some(id);
            }
        }
    }

    /// A cgroup is gone and its events are behind us.
    pub fn remove(&mut self, id: CgroupId) -> bool {
        let Some(gone) = self.cgroups.remove(&id) else { return false };
        if let Some(container) = gone.container
            && self.containers.get(&container) == Some(&id)
        {
            self.containers.remove(&container);
        }
        if let Some(owner) = gone.owner.filter(|owner| *owner != id)
            && let Some(own) = self.cgroups.get_mut(&owner)
        {
            own.nested.retain(|nested| *nested != id);
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
        identity.remove(CgroupId(2));
        assert_eq!(identity.len(), 1, "what was below it goes with it");
    }
}
