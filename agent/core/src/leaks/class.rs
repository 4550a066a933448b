//! What looks leaked now: the condition of each class. For how long it must look so, and what must confirm it, is
//! in `tracker.rs`.

use super::facts::LeakFacts;
use crate::{cri::Sandbox, ids::*, input::*, leak::LeakClass, table::TableSet, time::*};
use std::collections::BTreeMap;

/// The current class of each thing; `None`: no leak.
pub(super) type Classes = BTreeMap<LeakKey, Option<LeakClass>>;

/// What the apiserver, or for a static pod a manifest, says of a sandbox's pod.
#[derive(Clone, Copy)]
enum SandboxPod {
    /// No object, and no grace that was granted is left.
    Absent,
    /// No object, but a grace that was granted is not over: kubelet and runtime may use all of it, even if a later
    /// request shortened it or removed the object.
    InGrace,
    /// It is being deleted: if it hangs, the leak is the pod.
    Terminating,
    Exists,
}

/// The age of a sandbox among those of its pod; the greatest is the newest.
type Place<'a> = (Option<WallTime>, u32, &'a str);

fn place(sandbox: &Sandbox) -> Place<'_> {
    (sandbox.info.created, sandbox.info.attempt, sandbox.info.id.as_str())
}

/// The newest of a pod's sandboxes, and of those that run. One pod may have a thousand.
struct Newest<'a>(Option<Place<'a>>, Option<Place<'a>>);

/// The class of a sandbox, by the first row that fits.
fn of_sandbox(facts: &LeakFacts<'_>, sandbox: &Sandbox, newest: &Newest<'_>) -> Option<LeakClass> {
    use {LeakClass as C, SandboxPod as P};
    let uid = &sandbox.info.pod;
    let object = facts.object(uid).filter(|object| object.exists());
    let pod = match object.map(|object| object.request().is_some()) {
        _ if facts.is_static(sandbox) => P::Exists,
        Some(true) => P::Terminating,
        Some(false) => P::Exists,
        None if facts.in_grace(uid) => P::InGrace,
        None => P::Absent,
    };
    let ready = sandbox.info.ready;
    let is_empty = || facts.containers_of(&sandbox.info.id).next().is_none();
    let has_newer = || newest.0 > Some(place(sandbox)) || has_newer_manifest(facts, sandbox);
    match pod {
        P::Terminating => None,
        P::Absent if ready => Some(C::ReadyNoPod),
        P::InGrace if ready => None,
        P::Absent | P::InGrace if is_empty() => Some(C::NotreadyNoPod),
        P::Absent | P::InGrace => Some(C::NotreadyWithContainers),
        P::Exists if ready => (newest.1 > Some(place(sandbox))).then_some(C::DuplicateReady),
        // The kubelet keeps the last containers for their logs while the pod exists.
        P::Exists if has_newer() => is_empty().then_some(C::NotreadySuperseded),
        P::Exists => facts.statuses.is_open(sandbox)?.then_some(C::NetnsOpen),
    }
}

/// The static pod of this name runs from a later manifest, which means another UID.
fn has_newer_manifest(facts: &LeakFacts<'_>, sandbox: &Sandbox) -> bool {
    let CriSandbox { namespace, name, .. } = &sandbox.info;
    let is_of_the_name = |one: &Sandbox| (&one.info.namespace, &one.info.name) == (namespace, name);
    let is_newer = |one: &Sandbox| one.info.ready && place(one) > place(sandbox);
    let mut later = facts.listed().filter(|one| is_newer(one) && is_of_the_name(one));
    facts.is_static(sandbox) && later.any(|one| facts.is_static(one))
}

/// Adds the classes of a pod and of its sandboxes. True: they may change without a change of the pod, with time or
/// with another static pod.
pub(super) fn of_pod(facts: &LeakFacts<'_>, uid: &PodUid, classes: &mut Classes) -> bool {
    let object = facts.object(uid).filter(|object| object.exists());
    let is_terminating = object.is_some_and(|object| object.request().is_some());
    let is_late = is_terminating && facts.is_late(uid);
    let class = is_late.then_some(LeakClass::StuckTerminating);
    classes.insert(LeakKey::Pod { uid: uid.clone() }, class);
    let mut may_change = (is_terminating && !is_late) || facts.in_grace(uid);
    let ready = facts.listed_of(uid).filter(|sandbox| sandbox.info.ready);
    let newest = Newest(facts.listed_of(uid).map(place).max(), ready.map(place).max());
    for sandbox in facts.stores.cri.sandboxes_of(uid) {
        let is_listed = sandbox.removed.is_none();
        may_change |= facts.is_static(sandbox);
        let class = if is_listed { of_sandbox(facts, sandbox, &newest) } else { None };
        classes.insert(LeakKey::Sandbox { id: sandbox.info.id.clone() }, class);
    }
    may_change
}

/// Adds the classes of what the latest survey shows and no source knows the pod or the sandbox of.
pub(super) fn of_orphans(
    facts: &LeakFacts<'_>,
    namespaces: &UnusedNamespaces<'_>,
    classes: &mut Classes,
) {
    let Some(survey) = facts.survey.filter(|_| facts.stores.cri.unreadable == 0) else {
        return; // each may be that of a sandbox which could not be read
    };
    for shim in survey.shims.iter().flatten().filter(|shim| !facts.lists(&shim.id)) {
        let DaemonProcess { pid, started } = shim.process;
        let key = LeakKey::Shim { pid, started, id: shim.id.clone() };
        classes.insert(key, Some(LeakClass::OrphanShim));
    }
    for (namespace, inode) in namespaces.unclaimed.iter().filter(|_| namespaces.is_certain) {
        let key = LeakKey::Netns { name: namespace.name.clone(), inode: *inode };
        classes.insert(key, Some(LeakClass::OrphanNetns));
    }
    for PodCgroup { pod, cgroup, .. } in survey.pod_cgroups.iter().flatten() {
        let is_known = facts.exists(pod) || facts.is_static_pod(pod);
        if !is_known && facts.listed_of(pod).next().is_none() {
            let key = LeakKey::PodCgroup { pod: pod.clone(), cgroup: *cgroup };
            classes.insert(key, Some(LeakClass::OrphanPodCgroup));
        }
    }
}

/// Orphans of this class could not be read or attributed, so that the absence of one proves nothing.
pub(super) fn is_unseen(
    facts: &LeakFacts<'_>,
    namespaces: &UnusedNamespaces<'_>,
    class: LeakClass,
) -> bool {
    let survey = facts.survey.filter(|_| facts.stores.cri.unreadable == 0);
    !survey.is_some_and(|survey| match class {
        LeakClass::OrphanShim => survey.shims.is_some(),
        LeakClass::OrphanNetns => survey.netns.is_some() && namespaces.is_certain,
        _ => survey.pod_cgroups.is_some(),
    })
}

/// Network namespaces without a process, at one evaluation.
#[derive(Debug)]
pub(super) struct UnusedNamespaces<'a> {
    /// Those that no sandbox claims, as far as known, with their inodes.
    unclaimed: Vec<(&'a NetNamespace, u64)>,
    /// There is none, or the namespace of each sandbox is known.
    pub(super) is_certain: bool,
    /// A pod waits for its sandbox, so the runtime may be creating a namespace.
    pub(super) may_be_new: bool,
}

impl<'a> UnusedNamespaces<'a> {
    pub(super) fn new(facts: &LeakFacts<'a>) -> Self {
        let all = facts.survey.and_then(|survey| survey.netns.as_deref()).unwrap_or_default();
        let unused = all.iter().filter(|namespace| namespace.processes == 0);
        // An empty file without a mount is no namespace.
        let unused = unused.filter_map(|namespace| Some((namespace, namespace.inode?)));
        let mut unclaimed: Vec<_> = unused.collect();
        if unclaimed.is_empty() {
            return Self { unclaimed, is_certain: true, may_be_new: false };
        }
        let claims = facts.listed().map(|sandbox| facts.statuses.claim(&sandbox.info.id));
        let claimed: Option<Vec<Option<&str>>> = claims.collect();
        let is_certain = claimed.is_some();
        let claimed: TableSet<&str> = claimed.into_iter().flatten().flatten().collect();
        unclaimed.retain(|(namespace, _)| !claimed.contains(namespace.name.as_str()));
        let may_be_new = facts.stores.api.present().any(|(uid, object)| {
            let waits = object.request().is_none() && !object.pod.is_over();
            waits && !facts.listed_of(uid).any(|sandbox| sandbox.info.ready)
        });
        Self { unclaimed, is_certain, may_be_new }
    }
}
