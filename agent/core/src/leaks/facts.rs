//! All that leaks are judged by, read together.

use super::statuses::Statuses;
use crate::{
    account::Sources,
    ids::{ContainerId, PodUid, SandboxId},
    input::{CriState, HostSurvey, PodCgroup},
    isolation::Isolation,
    object::Object,
    process::Processes,
    runtime::{Container, Sandbox},
    table::Table,
    time::{BootTime, WallTime},
};
/// What a pod, a sandbox and the node tell together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// Kernel, runtime and apiserver.
    pub of: Sources<'a>,
    /// Verbose statuses.
    pub statuses: &'a Statuses,
    /// The last look at the host.
    pub survey: Option<&'a HostSurvey>,
    /// Where in it a pod's cgroup is.
    pub cgroups: &'a Table<PodUid, usize>,
    /// This moment.
    pub now: BootTime,
}

impl<'a> Facts<'a> {
    /// The wall clock's reading at a moment.
    pub(super) fn wall(&self, at: BootTime) -> WallTime {
        self.of.anchor.wall(at)
    }

    /// The pod's object, whether it is gone or not.
    pub(super) fn object(&self, uid: &PodUid) -> Option<&'a Object> {
        self.of.objects.get(uid)
    }

    /// The apiserver has an object of this pod, or of its mirror.
    pub(super) fn exists(&self, uid: &PodUid) -> bool {
        self.object(uid).is_some_and(Object::exists)
    }

    /// The apiserver need not know this pod: the kubelet has it from a manifest.
    pub(super) fn is_static(&self, sandbox: &Sandbox) -> bool {
        let source = sandbox.info.config_source.as_deref();
        source.is_some_and(|source| source != "api") || self.is_static_pod(&sandbox.info.pod)
    }

    /// The same, of a pod of which only the UID is known: the kubelet makes that of a manifest from
    /// its hash, 32 digits without dashes (pkg/kubelet/config/common.go, `applyDefaults`).
    pub(super) fn is_static_pod(&self, uid: &PodUid) -> bool {
        let text = uid.as_str();
        let is_hash = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_hash || self.object(uid).is_some_and(Object::is_mirror)
    }

    /// All sandboxes that the runtime lists, in no order.
    pub(super) fn listed(&self) -> impl Iterator<Item = &'a Sandbox> + use<'a> {
        self.of.runtime.sandboxes().filter(|sandbox| sandbox.removed.is_none())
    }

    /// The sandboxes of a pod that the runtime lists, the oldest first.
    pub(super) fn listed_of(&self, uid: &PodUid) -> impl DoubleEndedIterator<Item = &'a Sandbox> {
        let all = self.of.runtime.sandboxes_of(uid);
        all.filter(|sandbox| sandbox.removed.is_none())
    }

    /// The containers of a sandbox that the runtime lists.
    pub(super) fn containers_of(&self, sandbox: &SandboxId) -> Vec<&'a Container> {
        let all = self.of.runtime.containers_of(sandbox);
        all.filter(|container| container.removed.is_none()).collect()
    }

    /// What the kernel told of a container.
    pub(super) fn processes(&self, container: &ContainerId) -> Option<&'a Processes> {
        self.of.processes.get(&self.of.identity.cgroup(container)?)
    }

    /// By the kernel it is alive; by the runtime where the kernel does not see it, or may have lost
    /// sight of its end.
    pub(super) fn is_alive(&self, container: &Container) -> bool {
        let by_runtime = container.info.state == CriState::Running;
        let Some(processes) = self.processes(&container.info.id) else { return by_runtime };
        if processes.is_over() {
            return false;
        }
        let sandbox = self.of.runtime.sandbox(&container.info.sandbox);
        let by_handler = sandbox.and_then(|s| Isolation::by_handler(&s.info.handler));
        let by_type = container.runtime_type.as_deref().and_then(Isolation::by_runtime_type);
        let unseen = by_handler.or(by_type).is_some() || !processes.losses.spare(BootTime(0));
        // Or the host itself shows that nothing is left.
        let empty = || {
            let pod = sandbox.map(|sandbox| &sandbox.info.pod);
            pod.and_then(|uid| self.pod_cgroup(uid)).is_some_and(|group| group.tasks == 0)
        };
        let doubted = container.info.state == CriState::Exited && (unseen || empty());
        !doubted && (!unseen || by_runtime)
    }

    /// The pod's cgroup, as the last look at the host found it.
    pub(super) fn pod_cgroup(&self, uid: &PodUid) -> Option<&'a PodCgroup> {
        let place = self.cgroups.get(uid)?;
        self.survey?.pod_cgroups.as_ref()?.get(*place)
    }

    /// The runtime lists a sandbox or a container of this id.
    pub(super) fn lists(&self, id: &str) -> bool {
        let runtime = self.of.runtime;
        let sandbox = || runtime.sandbox_called(id).is_some_and(|s| s.removed.is_none());
        sandbox() || runtime.container_called(id).is_some_and(|c| c.removed.is_none())
    }

    /// The runtime lists a sandbox of this pod.
    pub(super) fn has_sandbox(&self, uid: &PodUid) -> bool {
        self.of.runtime.sandboxes_of(uid).any(|sandbox| sandbox.removed.is_none())
    }

    /// The containers of a sandbox that the runtime lists are none.
    pub(super) fn is_empty(&self, sandbox: &SandboxId) -> bool {
        self.of.runtime.containers_of(sandbox).all(|container| container.removed.is_some())
    }

    /// When the pod was to go, and when its object went: where daemons failed around one of them,
    /// that may be why something is left of it.
    pub(super) fn end_of(&self, uid: &PodUid) -> Option<(BootTime, BootTime)> {
        let object = self.object(uid)?;
        let gone = object.gone.map(|gone| gone.by);
        let asked = object.request().map(|request| request.at);
        let (from, to) = (asked.or(gone)?, gone.or(asked)?);
        Some((from.min(to), to.max(from)))
    }
}
