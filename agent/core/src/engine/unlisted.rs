//! Containers and sandboxes that the runtime has not listed: its answers may come up to a minute after the
//! request, and both may be removed in that time.

use super::Engine;
use crate::{
    api::{Attempt, PodObject},
    cri::Sandbox,
    dirty::Dirty,
    ids::*,
    input::*,
    pod_view::Stores,
    time::*,
};

/// When a container was created, the container, and, if the runtime never listed its sandbox, that and when it was
/// removed.
type Unlisted = (BootTime, CriContainer, Option<(CriSandbox, Interval)>);

impl Engine {
    /// Adds containers that the kernel and the pod's status show and the runtime has not listed: the kernel
    /// has the cgroup, the status has the name. A later list replaces the entry.
    pub(super) fn add_unlisted(&mut self, now: BootTime, dirty: &Dirty) {
        // A list that lacks a pod's sandbox does not mark the pod.
        let awaited = std::mem::take(&mut self.unlisted);
        for uid in awaited.union(&dirty.pods) {
            let Some(object) = self.stores.api.get(uid) else { continue };
            let (found, is_complete) = unlisted(&self.stores, now, uid, object);
            let reported = self.pods.get(uid).map(|pod| &pod.finished_sandboxes);
            for (created, container, sandbox) in found {
                if reported.is_some_and(|reported| reported.contains(&container.sandbox)) {
                    continue;
                }
                let (cri, dirty, at) = (&mut self.stores.cri, &mut self.dirty, (now, created));
                if let Some((sandbox, removed)) = sandbox {
                    cri.sandboxes.add_unlisted(at, sandbox, Some(removed), &cri.containers, dirty);
                }
                cri.containers.add_unlisted(at, container, None, &cri.sandboxes, dirty);
            }
            if !is_complete {
                self.unlisted.insert(uid.clone());
            }
        }
    }
}

/// What can be added of a pod, and whether the runtime has listed all of its attempts.
fn unlisted(
    stores: &Stores,
    now: BootTime,
    uid: &PodUid,
    object: &PodObject,
) -> (Vec<Unlisted>, bool) {
    let Stores { cri, cgroups, anchor, .. } = stores;
    let is_listed = |id: &ContainerId| {
        cri.container(id).is_some_and(|c| cri.sandbox(&c.info.sandbox).is_some())
    };
    let of_attempt = |(id, attempt): (&ContainerId, &Attempt)| {
        let listed = cri.container(id).map(|container| &container.info);
        // The kubelet creates the container just after its cgroup.
        let cgroup = cgroups.cgroup(id).filter(|cgroup| cgroups.pod(*cgroup) == Some(uid))?;
        let known = stores.processes.get(&cgroup)?;
        let created = known.created?;
        // A list that was requested after its end lacks it.
        let missed = known.ended().filter(|ended| cri.has_listed_since(*ended));
        let began = |sandbox: &Sandbox| {
            let own = stores.processes_of_sandbox(&sandbox.info.id).and_then(|own| own.created);
            own.or_else(|| Some(anchor.boot(sandbox.info.created?)))
        };
        let before = cri.sandboxes_of(uid).rfind(|sandbox| began(sandbox) <= Some(created));
        let own = before.filter(|sandbox| match sandbox.ended {
            Some(ended) => listed.is_none() && created < ended.latest,
            // The next list may still show the container.
            None => listed.is_none() && missed.is_some(),
        });
        let (of, sandbox) = match (own, missed) {
            (Some(own), _) => (own.info.id.clone(), None),
            // Its sandbox is not listed either, and is gone.
            (None, Some(ended)) if before.is_none_or(|before| before.ended.is_some()) => {
                let of = listed.map(|container| container.sandbox.clone());
                let of = of.or_else(|| own_container(stores, uid, object, before))?;
                let sandbox = removed_sandbox(stores, &of, object, before, anchor.wall(created))?;
                (of, Some((sandbox, Interval { earliest: ended, latest: now })))
            }
            (None, _) => return None,
        };
        let container = CriContainer {
            created: Some(anchor.wall(created)),
            id: id.clone(),
            sandbox: of,
            name: attempt.name.clone(),
            attempt: attempt.restarts,
            state: ContainerState::Running,
            pod: Some(uid.clone()),
            grace_seconds: None,
            pre_stop: None,
        };
        Some((created, container, sandbox))
    };
    let mut missing = object.attempts.iter().filter(|(id, _)| !is_listed(id)).peekable();
    let is_complete = missing.peek().is_none();
    (missing.filter_map(of_attempt).collect(), is_complete)
}

/// The sandbox after `before`: its own container has its id, and is the first that began after that one.
fn own_container(
    stores: &Stores,
    uid: &PodUid,
    object: &PodObject,
    before: Option<&Sandbox>,
) -> Option<SandboxId> {
    let since = before.and_then(|before| before.ended).map(|ended| ended.earliest);
    let since = since.unwrap_or_default();
    let may_be = |id: &ContainerId, cgroup: &CgroupId| {
        let created = stores.processes.get(cgroup).and_then(|processes| processes.created);
        let is_container = object.attempts.get(id).is_some() || stores.cri.container(id).is_some();
        !is_container && created.is_some_and(|created| created >= since)
    };
    let of_pod = stores.cgroups.containers_of(uid).filter(|(id, cgroup)| may_be(id, cgroup));
    of_pod.min_by_key(|of| *of.1).map(|(id, _)| SandboxId::new(id.as_str()))
}

/// A sandbox that a list lacks; `None`: it may still run.
fn removed_sandbox(
    stores: &Stores,
    id: &SandboxId,
    object: &PodObject,
    before: Option<&Sandbox>,
    created: WallTime,
) -> Option<CriSandbox> {
    // The runtime leaves out entries that it cannot read. Of a static pod nothing else says so.
    let may_run = match stores.processes_of_sandbox(id) {
        Some(own) => own.ended().is_none(),
        None => object.is_mirror(),
    };
    if may_run {
        return None;
    }
    let PodRef { namespace, name, uid: pod } = object.pod_ref();
    Some(CriSandbox {
        id: id.clone(),
        pod,
        name,
        namespace,
        attempt: before.map_or(0, |before| before.info.attempt.saturating_add(1)),
        ready: false,
        created: Some(created),
        handler: String::new(),
        config_source: Some(if object.is_mirror() { "file" } else { "api" }.into()),
    })
}
