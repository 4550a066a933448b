//! Things on the host that no source knows the pod or the sandbox of.

use super::{classify::Classes, facts::LeakFacts, netns::UnusedNamespaces};
use crate::{ids::*, input::*, leak::LeakClass};

/// Shims and pod cgroups of the latest survey that were unknown when they were last looked up. A known one stays
/// known until a source ceases to show something, so a tick looks up the unknown ones only.
#[derive(Clone, Debug, Default)]
pub(super) struct Orphans {
    /// How often the sources had ceased to show something when all were looked up; `None`: a new survey.
    looked_up: Option<u64>,
    /// Places in the survey.
    shims: Vec<usize>,
    pod_cgroups: Vec<usize>,
}

impl Orphans {
    /// Looks up what may have become known or unknown.
    pub(super) fn update(&mut self, facts: &LeakFacts<'_>) {
        let (shims, pod_cgroups) = surveyed(facts);
        let (cri, api) = (&facts.stores.cri, &facts.stores.api);
        let now = Some(cri.sandboxes.removals + cri.containers.removals + api.ends);
        if self.looked_up != now {
            self.shims = (0..shims.len()).collect();
            self.pod_cgroups = (0..pod_cgroups.len()).collect();
            self.looked_up = now;
        }
        self.shims.retain(|at| !facts.lists(&shims[*at].id));
        self.pod_cgroups.retain(|at| {
            let pod = &pod_cgroups[*at].pod;
            let is_known = facts.exists(pod) || facts.is_static_pod(pod);
            !is_known && facts.listed_of(pod).next().is_none()
        });
    }

    /// Adds their classes, and those of network namespaces.
    pub(super) fn classify(
        &self,
        facts: &LeakFacts<'_>,
        namespaces: &UnusedNamespaces<'_>,
        classes: &mut Classes,
    ) {
        if facts.stores.cri.unreadable > 0 {
            return; // each may be that of a sandbox which could not be read
        }
        let (shims, pod_cgroups) = surveyed(facts);
        for shim in self.shims.iter().map(|at| &shims[*at]) {
            let DaemonProcess { pid, started } = shim.process;
            let key = LeakKey::Shim { pid, started, id: shim.id.clone() };
            classes.insert(key, Some(LeakClass::OrphanShim));
        }
        if namespaces.is_certain {
            for (namespace, inode) in &namespaces.unclaimed {
                let key = LeakKey::Netns { name: namespace.name.clone(), inode: *inode };
                classes.insert(key, Some(LeakClass::OrphanNetns));
            }
        }
        for PodCgroup { pod, cgroup, .. } in self.pod_cgroups.iter().map(|at| &pod_cgroups[*at]) {
            let key = LeakKey::PodCgroup { pod: pod.clone(), cgroup: *cgroup };
            classes.insert(key, Some(LeakClass::OrphanPodCgroup));
        }
    }
}

fn surveyed<'a>(facts: &LeakFacts<'a>) -> (&'a [Shim], &'a [PodCgroup]) {
    let shims = facts.survey.and_then(|survey| survey.shims.as_deref());
    let pod_cgroups = facts.survey.and_then(|survey| survey.pod_cgroups.as_deref());
    (shims.unwrap_or_default(), pod_cgroups.unwrap_or_default())
}

/// This kind of thing could not be read, so its absence proves nothing.
pub(super) fn is_unseen(
    facts: &LeakFacts<'_>,
    namespaces: &UnusedNamespaces<'_>,
    key: &LeakKey,
) -> bool {
    let Some(survey) = facts.survey.filter(|_| facts.stores.cri.unreadable == 0) else {
        return true;
    };
    match key {
        LeakKey::Shim { .. } => survey.shims.is_none(),
        LeakKey::Netns { name, .. } => {
            let mut unused = namespaces.unclaimed.iter();
            survey.netns.is_none()
                || (!namespaces.is_certain && unused.any(|(one, _)| one.name == *name))
        }
        LeakKey::PodCgroup { .. } => survey.pod_cgroups.is_none(),
        LeakKey::Sandbox { .. } | LeakKey::Pod { .. } => false,
    }
}
