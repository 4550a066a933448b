//! The inputs of leak detection, read together.

use super::sandbox_status::SandboxStatusCache;
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

/// A daemon's failure this long before and after a pod's end may be related.
const RELATED_BEFORE: Duration = Duration::from_secs(10);
const RELATED_AFTER: Duration = Duration::from_secs(120);

/// The runtime around a pod's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RuntimeAtEnd {
    /// No failure is known.
    Answered,
    /// Calls failed; the process was the same before and after.
    Failed,
    /// The runtime was down: another process answered afterwards, or that is unknown.
    Down,
}

/// A view of all stores, surveys and statuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeakFacts<'a> {
    /// Kernel, runtime and apiserver.
    pub stores: &'a Stores,
    /// Verbose statuses.
    pub statuses: &'a SandboxStatusCache,
    /// The latest survey of the host.
    pub survey: Option<&'a HostSurvey>,
    /// The current time.
    pub now: BootTime,
}

impl<'a> LeakFacts<'a> {
    /// `at`, by both clocks.
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

    /// The listed containers of a sandbox.
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
        if processes.is_over() {
            return false;
        }
        let sandbox = self.stores.cri.sandbox(&container.info.sandbox);
        let shim = container.status.runtime_type.as_deref();
        let isolated = self.stores.isolation(&container.info.sandbox, shim);
        let unseen = isolated.is_some() || !processes.gaps.is_complete_since(BootTime(0));
        // The survey shows that no task is left.
        let empty = || {
            let pod = sandbox.map(|sandbox| &sandbox.info.pod);
            pod.and_then(|uid| self.pod_cgroup(uid)).is_some_and(|group| group.tasks == 0)
        };
        let doubted = container.info.state == ContainerState::Exited && (unseen || empty());
        !doubted && (!unseen || by_runtime)
    }

    /// The pod's cgroup in the latest survey.
    pub(super) fn pod_cgroup(&self, uid: &PodUid) -> Option<&'a PodCgroup> {
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

    /// The UID of a candidate's pod.
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

    /// The runtime lists a sandbox or container with this id.
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

    /// The time around the pod's end in which a daemon's failure may be the cause of a leak.
    pub(super) fn around_end(&self, uid: &PodUid) -> Option<(BootTime, BootTime)> {
        let (from, to) = self.end_of(uid)?;
        Some((from - RELATED_BEFORE, to + RELATED_AFTER))
    }

    /// The runtime around the pod's end, if that was observed.
    pub(super) fn runtime_at_end(&self, uid: &PodUid) -> Option<RuntimeAtEnd> {
        let (from, to) = self.around_end(uid)?;
        let mut outages = self.stores.cri.connection.gaps.between(from, to).peekable();
        let has_failed = outages.peek().is_some();
        let was_replaced = self.stores.node.runtime.changes(from, to).next().is_some();
        Some(match (has_failed, was_replaced) {
            (false, false) => RuntimeAtEnd::Answered,
            (true, false) if outages.all(|outage| outage.reason.restarted == Some(false)) => {
                RuntimeAtEnd::Failed
            }
            _ => RuntimeAtEnd::Down,
        })
    }

    /// The deadline of the pod's deletion has passed and the object still exists.
    pub(super) fn is_late(&self, uid: &PodUid) -> bool {
        self.deadline(uid).is_some_and(|deadline| self.now > deadline + KUBELET_SLACK)
    }

    /// The first granted grace is not over: kubelet and runtime may use all of it, even if a later request
    /// shortened it or removed the object.
    pub(super) fn in_grace(&self, uid: &PodUid) -> bool {
        let first = self.object(uid).and_then(PodObject::request);
        first.is_some_and(|first| self.now < first.deadline() + KUBELET_SLACK)
    }

    /// When the pod's processes should have ended.
    pub(super) fn deadline(&self, uid: &PodUid) -> Option<BootTime> {
        let object = self.object(uid).filter(|object| object.gone.is_none())?;
        object.shortened().or(object.request()).map(DeletionRequest::deadline)
    }

    /// The pod of a candidate; for a cgroup possibly only the UID.
    pub(super) fn pod_of(&self, key: &LeakKey) -> Option<PodRef> {
        match key {
            LeakKey::Sandbox { id } => Some(self.stores.cri.sandbox(id)?.info.pod_ref()),
            LeakKey::Pod { uid } | LeakKey::PodCgroup { pod: uid, .. } => {
                Some(self.object(uid).map_or_else(|| PodRef::nameless(uid), PodObject::pod_ref))
            }
            LeakKey::Shim { .. } | LeakKey::Netns { .. } => None,
        }
    }

    /// The runtime or a survey has shown it since `due`, and no list has lacked it. For a pod the apiserver is
    /// queried directly.
    pub(super) fn is_shown_since(&self, key: &LeakKey, due: BootTime) -> bool {
        match key {
            LeakKey::Sandbox { id } => {
                let sandbox = self.stores.cri.sandbox(id);
                sandbox.is_some_and(|sandbox| sandbox.missing.is_none() && sandbox.asked >= due)
            }
            LeakKey::Shim { .. } | LeakKey::Netns { .. } | LeakKey::PodCgroup { .. } => {
                self.survey.is_some_and(|survey| survey.asked >= due)
            }
            LeakKey::Pod { .. } => true,
        }
    }

    /// It is gone, whatever else is unknown.
    pub(super) fn is_gone(&self, key: &LeakKey) -> bool {
        match key {
            LeakKey::Sandbox { id } => {
                self.stores.cri.sandbox(id).is_none_or(|sandbox| sandbox.removed.is_some())
            }
            LeakKey::Pod { uid } => self.object(uid).is_none_or(|object| object.gone.is_some()),
            // Only the next survey can show that.
            LeakKey::Shim { .. } | LeakKey::Netns { .. } | LeakKey::PodCgroup { .. } => false,
        }
    }
}
