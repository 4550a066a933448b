//! Containers that the runtime has not listed: its answers may come up to a minute after the request, and a
//! container may be removed in that time.

use super::Engine;
use crate::{ids::*, input::*, time::*};
use std::collections::BTreeSet;

impl Engine {
    /// Adds containers that the kernel and the pod's status show and the runtime has not listed: the kernel
    /// has the cgroup, the status has the name. A later list replaces the entry.
    pub(super) fn add_unlisted(&mut self, now: BootTime, pods: &BTreeSet<PodUid>) {
        for uid in pods {
            let Some(object) = self.stores.api.get(uid) else { continue };
            // While the sandbox runs, the next list may still show the container.
            let newest = self.stores.cri.sandboxes_of(uid).next_back();
            let Some((sandbox, stopped)) = newest.and_then(|s| Some((&s.info.id, s.ended?))) else {
                continue;
            };
            // The kubelet creates the container just after its cgroup.
            let created = |id: &ContainerId| {
                let processes = self.stores.processes.get(&self.stores.cgroups.cgroup(id)?)?;
                processes.created
            };
            let is_unlisted = |id: &ContainerId| self.stores.cri.container(id).is_none();
            let known = object.pod.containers.iter().filter_map(|(name, container)| {
                let id = container.id.clone().filter(is_unlisted)?;
                // A container created later belongs to a sandbox that is not listed either, of a static pod's
                // next incarnation.
                let created = created(&id).filter(|created| *created < stopped.latest)?;
                let container = CriContainer {
                    created: self.stores.anchor.wall(created),
                    id,
                    sandbox: sandbox.clone(),
                    name: name.clone(),
                    attempt: container.restarts,
                    state: ContainerState::Running,
                    pod: Some(uid.clone()),
                    hash: None,
                    grace_seconds: None,
                    pre_stop: None,
                };
                Some((created, container))
            });
            for (created, container) in known.collect::<Vec<_>>() {
                self.stores.cri.add_unlisted(now, created, container, &mut self.dirty);
            }
        }
    }
}
