//! What looks like a leak at this moment. Whether it is one, time and the apiserver must tell.

use super::{facts::Facts, stuck};
use crate::domain::{
    input::{NetNamespace, SandboxNetwork},
    leak::{LeakClass, LeakKey},
    runtime::Sandbox,
};
use std::collections::{BTreeMap, HashSet};

/// Everything that looks like one.
pub(super) fn all(facts: &Facts<'_>) -> BTreeMap<LeakKey, LeakClass> {
    let mut found = BTreeMap::new();
    for sandbox in facts.of.runtime.sandboxes().filter(|s| s.removed.is_none()) {
        if let Some(class) = sandbox_class(facts, sandbox) {
            found.insert(LeakKey::Sandbox { id: sandbox.info.id.clone() }, class);
        }
    }
    for (uid, _) in facts.of.objects.terminating() {
        if stuck::is_late(facts, uid) {
            found.insert(LeakKey::Pod { uid: uid.clone() }, LeakClass::StuckTerminating);
        }
    }
    orphans(facts, &mut found);
    found
}

/// What this sandbox looks like.
fn sandbox_class(facts: &Facts<'_>, sandbox: &Sandbox) -> Option<LeakClass> {
    let pod = &sandbox.info.pod;
    let has_pod = facts.exists(pod) || facts.is_static(sandbox);
    if sandbox.info.ready {
        let newer_runs = newer(facts, sandbox).any(|other| other.info.ready);
        return match (newer_runs, has_pod) {
            (true, _) => Some(LeakClass::DuplicateReady),
            (false, false) => Some(LeakClass::ReadyNoPod),
            (false, true) => None,
        };
    }
    let is_empty = facts.containers_of(&sandbox.info.id).is_empty();
    if !has_pod {
        return Some(match is_empty {
            true => LeakClass::NotreadyNoPod,
            false => LeakClass::NotreadyWithContainers,
        });
    }
    if newer(facts, sandbox).next().is_some() {
        // Its last containers are kept for their logs as long as the pod lives.
        return is_empty.then_some(LeakClass::NotreadySuperseded);
    }
    facts.statuses.is_open(&sandbox.info.id)?.then_some(LeakClass::NetnsOpen)
}

/// The pod's later sandboxes.
fn newer<'a>(facts: &Facts<'a>, sandbox: &'a Sandbox) -> impl Iterator<Item = &'a Sandbox> {
    let place = |s: &Sandbox| (s.info.created, s.info.attempt, s.info.id.clone());
    let own = place(sandbox);
    facts.sandboxes_of(&sandbox.info.pod).into_iter().filter(move |other| place(other) > own)
}

/// What the host keeps of pods and sandboxes that nobody knows.
fn orphans(facts: &Facts<'_>, found: &mut BTreeMap<LeakKey, LeakClass>) {
    let Some(survey) = facts.survey else { return };
    let listed = facts.listed_ids();
    for shim in survey.shims.iter().flatten() {
        if !listed.contains(shim.id.as_str()) {
            let key = LeakKey::Shim {
                pid: shim.process.pid,
                started: shim.process.started,
                id: shim.id.clone(),
            };
            found.insert(key, LeakClass::OrphanShim);
        }
    }
    let unused: Vec<_> = unused_namespaces(facts).collect();
    if !unused.is_empty() && claims_are_known(facts) {
        let claimed = claimed_names(facts);
        for (namespace, inode) in unused {
            if !claimed.contains(namespace.name.as_str()) {
                let key = LeakKey::Netns { name: namespace.name.clone(), inode };
                found.insert(key, LeakClass::OrphanNetns);
            }
        }
    }
    for group in survey.pod_cgroups.iter().flatten() {
        let uid = &group.pod;
        let has_sandbox = !facts.sandboxes_of(uid).is_empty();
        if !has_sandbox && !facts.exists(uid) && !facts.is_static_pod(uid) {
            let key = LeakKey::PodCgroup { pod: uid.clone(), cgroup: group.cgroup };
            found.insert(key, LeakClass::OrphanPodCgroup);
        }
    }
}

/// This could not be looked at, so that its absence says nothing.
pub(super) fn is_unseen(facts: &Facts<'_>, key: &LeakKey) -> bool {
    let survey = facts.survey;
    match key {
        LeakKey::Shim { .. } => survey.is_none_or(|survey| survey.shims.is_none()),
        LeakKey::Netns { name, .. } => {
            let is_unused = || unused_namespaces(facts).any(|(found, _)| found.name == *name);
            survey.is_none_or(|survey| survey.netns.is_none())
                || (!claims_are_known(facts) && is_unused())
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
    let listed = facts.of.runtime.sandboxes().filter(|s| s.removed.is_none());
    listed.filter(move |sandbox| {
        !matches!(
            statuses.get(&sandbox.info.id).map(|status| &status.network),
            Some(SandboxNetwork::Host | SandboxNetwork::Own { path: Some(_), .. })
        )
    })
}

/// Unknown is not unclaimed: each sandbox has said which namespace is its own.
fn claims_are_known(facts: &Facts<'_>) -> bool {
    unheard(facts).next().is_none()
}

fn claimed_names<'a>(facts: &Facts<'a>) -> HashSet<&'a str> {
    let listed = facts.of.runtime.sandboxes().filter(|s| s.removed.is_none());
    listed
        .filter_map(|sandbox| match &facts.statuses.get(&sandbox.info.id)?.network {
            SandboxNetwork::Own { path: Some(path), .. } => path.rsplit('/').next(),
            _ => None,
        })
        .collect()
}
