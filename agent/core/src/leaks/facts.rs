//! The inputs of leak detection, read together.

use super::statuses::SandboxStatuses;
use crate::{
    api::{DeletionRequest, PodObject},
    cri::{Container, Sandbox},
    ids::*,
    input::*,
    pod_view::Stores,
    time::*,
    verdict::KUBELET_SLACK,
};
use std::time::Duration;

/// For so long after a pod's object is gone, a failure of the runtime is one during the pod's teardown.
const TEARDOWN: Duration = Duration::from_secs(120);

/// A view of all stores, surveys and statuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeakFacts<'a> {
    pub stores: &'a Stores,
    pub statuses: &'a SandboxStatuses,
    pub survey: Option<&'a HostSurvey>,
    pub now: BootTime,
}

impl<'a> LeakFacts<'a> {
    pub(super) fn moment(&self, at: BootTime) -> Moment {
        Moment::of_boot(at, &self.stores.anchor)
    }

    /// The pod's object, including one that is gone.
    pub(super) fn object(&self, uid: &PodUid) -> Option<&'a PodObject> {
        self.stores.api.get(uid)
    }

    /// The apiserver has an object of this pod, or of its mirror.
    pub(super) fn exists(&self, uid: &PodUid) -> bool {
        self.object(uid).is_some_and(PodObject::exists)
    }

    /// A static pod: the kubelet has it from a manifest, and the apiserver may not know it.
    pub(super) fn is_static(&self, sandbox: &Sandbox) -> bool {
        sandbox.info.is_static() || self.is_static_pod(&sandbox.info.pod)
    }

    /// The same by UID: the kubelet makes the UID of a static pod from the manifest's hash, 32 hex digits
    /// without dashes (pkg/kubelet/config/common.go, `applyDefaults`).
    pub(super) fn is_static_pod(&self, uid: &PodUid) -> bool {
        let text = uid.as_str();
        let is_hash = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_hash || self.object(uid).is_some_and(PodObject::is_mirror)
    }

    /// All listed sandboxes, in no order.
    pub(super) fn listed(&self) -> impl Iterator<Item = &'a Sandbox> + use<'a> {
        self.stores.cri.sandboxes.entries().values().filter(|sandbox| sandbox.removed.is_none())
    }

    /// The listed sandboxes of a pod, oldest first.
    pub(super) fn listed_of(&self, uid: &PodUid) -> impl DoubleEndedIterator<Item = &'a Sandbox> {
        let all = self.stores.cri.sandboxes_of(uid);
        all.filter(|sandbox| sandbox.removed.is_none())
    }

    /// The listed sandboxes of a candidate: itself, or those of its pod.
    pub(super) fn sandboxes(&self, key: &LeakKey) -> Vec<&'a Sandbox> {
        match key {
            LeakKey::Sandbox { id } => self.stores.cri.sandbox(id).into_iter().collect(),
            LeakKey::Pod { uid } => self.listed_of(uid).collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn containers_of(
        &self,
        sandbox: &SandboxId,
    ) -> impl Iterator<Item = &'a Container> + use<'a> {
        let all = self.stores.cri.containers_of(sandbox);
        all.filter(|container| container.removed.is_none())
    }

    /// The container is alive according to the kernel, or to the runtime if the kernel does not see into it
    /// or its exit may be lost.
    pub(super) fn is_alive(&self, container: &Container) -> bool {
        let by_runtime = container.info.state == ContainerState::Running;
        let Some(processes) = self.stores.processes_of(&container.info.id) else {
            return by_runtime;
        };
        let shim = container.status.runtime_type.as_deref();
        let is_isolated = self.stores.isolation(&container.info.sandbox, shim).is_some();
        let is_unseen = is_isolated || !processes.gaps.is_complete_since(BootTime(0));
        !processes.is_over() && (!is_unseen || by_runtime)
    }

    /// The pod's cgroup in the latest survey.
    fn pod_cgroup(&self, uid: &PodUid) -> Option<&'a PodCgroup> {
        let groups = self.survey?.pod_cgroups.as_ref()?;
        groups.get(groups.binary_search_by(|group| group.pod.cmp(uid)).ok()?)
    }

    /// The cgroup that is an orphan, or that of the candidate's pod.
    pub(super) fn cgroup_of(&self, key: &LeakKey) -> Option<&'a PodCgroup> {
        let group = self.pod_cgroup(self.pod_uid(key)?)?;
        match key {
            LeakKey::PodCgroup { cgroup, .. } if group.cgroup != *cgroup => None,
            _ => Some(group),
        }
    }

    /// Volumes that are still mounted below the pod's directory.
    pub(super) fn volumes(&self, uid: &PodUid) -> impl Iterator<Item = &'a str> {
        let all = self.survey.and_then(|survey| survey.volumes.as_deref()).unwrap_or_default();
        all.iter().filter(move |volume| volume.pod == *uid).map(|volume| volume.volume.as_str())
    }

    pub(super) fn pod_uid<'k>(&self, key: &'k LeakKey) -> Option<&'k PodUid>
    where
        'a: 'k,
    {
        match key {
            LeakKey::Sandbox { id } => Some(&self.stores.cri.sandbox(id)?.info.pod),
            LeakKey::Pod { uid } | LeakKey::PodCgroup { pod: uid, .. } => Some(uid),
            LeakKey::Shim { .. } | LeakKey::Netns { .. } => None,
        }
    }

    /// The pod of a candidate; for a cgroup possibly only the UID.
    pub(super) fn pod_of(&self, key: &LeakKey) -> Option<PodRef> {
        if let LeakKey::Sandbox { id } = key {
            return Some(self.stores.cri.sandbox(id)?.info.pod_ref());
        }
        let uid = self.pod_uid(key)?;
        Some(self.object(uid).map_or_else(|| PodRef::nameless(uid), PodObject::pod_ref))
    }

    pub(super) fn lists(&self, id: &str) -> bool {
        let cri = &self.stores.cri;
        let sandbox = || cri.sandboxes.entries().get(id).is_some_and(|s| s.removed.is_none());
        sandbox() || cri.containers.entries().get(id).is_some_and(|c| c.removed.is_none())
    }

    /// When the pod's deletion was requested, and when its object disappeared.
    pub(super) fn end_of(&self, uid: &PodUid) -> Option<(BootTime, BootTime)> {
        let object = self.object(uid)?;
        let gone = object.gone.map(|gone| gone.latest);
        let asked = object.request().map(|request| request.date);
        let (from, to) = (asked.or(gone)?, gone.or(asked)?);
        Some((from.min(to), to.max(from)))
    }

    /// The pod's teardown, if that was observed.
    pub(super) fn teardown(&self, uid: &PodUid) -> Option<(BootTime, BootTime)> {
        self.end_of(uid).map(|(from, to)| (from, to + TEARDOWN))
    }

    /// The runtime failed during the pod's teardown: whether it was the same process afterwards.
    pub(super) fn runtime_failed(&self, uid: &PodUid) -> Option<bool> {
        let (from, to) = self.teardown(uid)?;
        let outages = self.stores.cri.connection.gaps.between(from, to);
        outages.map(|outage| outage.reason.restarted == Some(false)).min()
    }

    /// The kubelet's last Event that it could not stop the pod, if it is newer than the deletion and this kubelet's,
    /// and what of the network failed.
    pub(super) fn failed_stop(&self, uid: &PodUid) -> Option<(BootTime, Option<&'a str>)> {
        let (asked, _) = self.end_of(uid)?;
        let started = self.stores.node.kubelet.running().map(|run| run.began());
        let all = self.stores.events.of(uid);
        let is_it = |about: EventReason| about == EventReason::KillPodFailed;
        let failed = all.into_iter().filter(|posted| is_it(posted.event.about));
        let last = failed.max_by_key(|posted| posted.last)?;
        let is_new = last.last >= asked && started.is_none_or(|started| last.last >= started);
        is_new.then_some((last.last, last.event.message.as_deref()))
    }

    /// The deadline of the pod's deletion has passed and the object still exists.
    pub(super) fn is_late(&self, uid: &PodUid) -> bool {
        self.deadline(uid).is_some_and(|deadline| self.now > deadline + KUBELET_SLACK)
    }

    /// The first granted grace is not over.
    pub(super) fn in_grace(&self, uid: &PodUid) -> bool {
        let first = self.object(uid).and_then(PodObject::request);
        first.is_some_and(|first| self.now < first.deadline() + KUBELET_SLACK)
    }

    /// When the pod's processes should have ended.
    pub(super) fn deadline(&self, uid: &PodUid) -> Option<BootTime> {
        let object = self.object(uid).filter(|object| object.gone.is_none())?;
        object.shortened().or(object.request()).map(DeletionRequest::deadline)
    }

    /// When a source has shown it last; a pod, of which the apiserver is asked directly, now. `None`: it is gone,
    /// whatever else is unknown. Of an orphan only the next survey can show that.
    pub(super) fn last_shown(&self, key: &LeakKey) -> Option<BootTime> {
        match key {
            LeakKey::Sandbox { id } => {
                let listed = self.stores.cri.sandbox(id).filter(|one| one.removed.is_none())?;
                Some(if listed.missing.is_none() { listed.asked } else { BootTime(0) })
            }
            LeakKey::Pod { uid } => self.object(uid)?.gone.is_none().then_some(self.now),
            LeakKey::Shim { .. } | LeakKey::Netns { .. } | LeakKey::PodCgroup { .. } => {
                Some(self.survey.map_or(BootTime(0), |survey| survey.asked))
            }
        }
    }
}
