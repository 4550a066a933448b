//! Containers that the runtime has not listed yet, and may never list: its answers may come up to a minute
//! after the request, and a container may be removed in that time.

use super::Engine;
use crate::{
    ids::{ContainerId, PodUid},
    input::{CriContainer, CriState},
    time::BootTime,
};
use std::collections::BTreeSet;

impl Engine {
    /// Two other sources know such a container: the kernel its cgroup, and the pod's status its name. What
    /// the runtime lists later replaces this.
    pub(super) fn add_unlisted(&mut self, now: BootTime, pods: &BTreeSet<PodUid>) {
        for uid in pods {
            let Some(object) = self.objects.get(uid) else { continue };
            // While the sandbox runs, a list may still show more than the status does.
            let newest = self.runtime.sandboxes_of(uid).next_back();
            let Some(sandbox) = newest.filter(|sandbox| sandbox.stopped.is_some()) else {
                continue;
            };
            let sandbox = sandbox.info.id.clone();
            // Its cgroup is made just after it.
            let created = |id: &ContainerId| {
                let processes = self.processes.get(&self.identity.cgroup(id)?)?;
                processes.created
            };
            let is_unlisted = |id: &ContainerId| self.runtime.container(id).is_none();
            let known = object.pod.containers.iter().filter_map(|(name, container)| {
                let id = container.id.clone().filter(is_unlisted)?;
                let created = created(&id)?;
                let container = CriContainer {
                    created: self.settings.anchor.wall(created),
                    id,
                    sandbox: sandbox.clone(),
                    name: name.clone(),
                    attempt: container.restarts,
                    state: CriState::Running,
                    pod: Some(uid.clone()),
                    hash: None,
                    grace_seconds: None,
                    pre_stop: None,
                };
                Some((created, container))
            });
            for (created, container) in known.collect::<Vec<_>>() {
                self.runtime.add_unlisted(now, created, container, &mut self.dirty);
            }
        }
    }
}
