//! What looks like a leak at this moment. Whether it is one, time and the apiserver must tell.

use super::{census::Census, facts::Facts, stuck};
use crate::{
    ids::PodUid,
    input::{NetNamespace, SandboxNetwork},
    leak::{LeakClass, LeakKey},
    runtime::Sandbox,
};
use std::collections::BTreeMap;

/// Everything that looks like one.
pub(super) fn all(facts: &Facts<'_>, census: &Census<'_>) -> BTreeMap<LeakKey, LeakClass> {
    let mut found = BTreeMap::new();
    for sandbox in facts.odd() {
        if let Some(class) = sandbox_class(facts, census, sandbox) {
            found.insert(LeakKey::Sandbox { id: sandbox.info.id.clone() }, class);
        }
    }
    for (uid, object) in facts.of.objects.present() {
        if object.request().is_some() && stuck::is_late(facts, uid) {
            found.insert(LeakKey::Pod { uid: uid.clone() }, LeakClass::StuckTerminating);
        }
    }
    orphans(facts, census, &mut found);
    found
}

/// A pod of which nothing can look like a leak, however long it stays so: it is there, and has one
/// sandbox, which runs.
pub(super) fn is_plain(facts: &Facts<'_>, uid: &PodUid) -> bool {
    let mut listed = facts.of.runtime.sandboxes_of(uid).filter(|s| s.removed.is_none());
    let Some(first) = listed.next() else { return true };
    let has_pod = facts.exists(uid) || facts.is_static(first);
    listed.next().is_none() && first.info.ready && has_pod
}

/// What this sandbox looks like.
fn sandbox_class(facts: &Facts<'_>, census: &Census<'_>, sandbox: &Sandbox) -> Option<LeakClass> {
    let pod = &sandbox.info.pod;
    let is_static = facts.is_static(sandbox);
    let has_pod = is_static || facts.exists(pod);
    if sandbox.info.ready {
        return match (census.has_newer(sandbox, true), has_pod) {
            (true, _) => Some(LeakClass::DuplicateReady),
            (false, false) if stuck::in_grace(facts, pod) => None,
            (false, false) => Some(LeakClass::ReadyNoPod),
            (false, true) => None,
        };
    }
    let is_empty = facts.is_empty(&sandbox.info.id);
    if !has_pod {
        return Some(match is_empty {
            true => LeakClass::NotreadyNoPod,
            false => LeakClass::NotreadyWithContainers,
        });
    }
    if census.has_newer(sandbox, false) || (is_static && census.has_newer_manifest(sandbox)) {
        // Its last containers are kept for their logs as long as the pod lives.
        return is_empty.then_some(LeakClass::NotreadySuperseded);
    }
    facts.statuses.is_open(sandbox)?.then_some(LeakClass::NetnsOpen)
}

/// What the host keeps of pods and sandboxes that nobody knows.
fn orphans(facts: &Facts<'_>, census: &Census<'_>, found: &mut BTreeMap<LeakKey, LeakClass>) {
    for shim in facts.strays.shims(facts) {
        let key = LeakKey::Shim {
            pid: shim.process.pid,
            started: shim.process.started,
            id: shim.id.clone(),
        };
        found.insert(key, LeakClass::OrphanShim);
    }
    for (namespace, inode) in unused_namespaces(facts) {
        if census.claims_are_known() && census.is_unclaimed(&namespace.name) {
            let key = LeakKey::Netns { name: namespace.name.clone(), inode };
            found.insert(key, LeakClass::OrphanNetns);
        }
    }
    for group in facts.strays.groups(facts) {
        let key = LeakKey::PodCgroup { pod: group.pod.clone(), cgroup: group.cgroup };
        found.insert(key, LeakClass::OrphanPodCgroup);
    }
}

/// This could not be looked at, so that its absence says nothing.
pub(super) fn is_unseen(facts: &Facts<'_>, census: &Census<'_>, key: &LeakKey) -> bool {
    let survey = facts.survey;
    match key {
        LeakKey::Shim { .. } => survey.is_none_or(|survey| survey.shims.is_none()),
        LeakKey::Netns { name, .. } => {
            survey.is_none_or(|survey| survey.netns.is_none()) || census.may_be_claimed(name)
        }
        LeakKey::PodCgroup { .. } => survey.is_none_or(|survey| survey.pod_cgroups.is_none()),
        LeakKey::Sandbox { .. } | LeakKey::Pod { .. } => false,
    }
}

/// Namespaces that no process is in. An empty file at such a place is none.
pub(super) fn unused_namespaces<'a>(
    facts: &Facts<'a>,
) -> impl Iterator<Item = (&'a NetNamespace, u64)> + use<'a> {
    let all = facts.survey.and_then(|survey| survey.netns.as_ref());
    all.into_iter()
        .flatten()
        .filter(|namespace| namespace.processes == 0)
        .filter_map(|namespace| Some((namespace, namespace.inode?)))
}

/// A sandbox that may claim a namespace which no process is in, and has not been heard.
pub(super) fn unheard<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a Sandbox> + use<'a> {
    let statuses = facts.statuses;
    facts.listed().filter(move |sandbox| {
        !matches!(
            statuses.get(&sandbox.info.id).map(|status| &status.network),
            Some(
                SandboxNetwork::Host
                    | SandboxNetwork::Own { path: Some(_), .. }
                    | SandboxNetwork::Own { closed: Some(true), .. }
            )
        )
    })
}
