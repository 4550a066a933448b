//! Classifies what looks like a leak now. Time and the apiserver decide whether it is one.

use super::{facts::LeakFacts, netns::Namespaces, orphans::OrphanCandidates};
use crate::{
    api::PodObject,
    cri::Sandbox,
    ids::{PodUid, SandboxId},
    leak::{LeakClass, LeakKey},
    table::Table,
    time::WallTime,
};
use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

/// The age of a sandbox among those of its pod; the greatest is the newest.
type Place<'a> = (WallTime, u32, &'a str);

fn place(sandbox: &Sandbox) -> Place<'_> {
    (sandbox.info.created, sandbox.info.attempt, sandbox.info.id.as_str())
}

/// The current class of each thing; `None`: no leak.
pub(super) type Classes = BTreeMap<LeakKey, Option<LeakClass>>;

/// Classifies pods with their sandboxes.
#[derive(Debug)]
pub(super) struct Classifier<'a> {
    facts: LeakFacts<'a>,
    statics: &'a BTreeSet<PodUid>,
    /// Running static pods by namespace and name: another manifest means another UID.
    static_ready: OnceCell<Table<(&'a str, &'a str), Place<'a>>>,
}

impl<'a> Classifier<'a> {
    /// `statics`: all pods with a static pod's sandbox.
    pub(super) fn new(facts: &LeakFacts<'a>, statics: &'a BTreeSet<PodUid>) -> Self {
        Self { facts: *facts, statics, static_ready: OnceCell::new() }
    }

    /// Adds the classes of a pod and of its wanted sandboxes. True: they change with time alone.
    pub(super) fn pod(
        &self,
        uid: &PodUid,
        is_wanted: impl Fn(&SandboxId) -> bool,
        classes: &mut Classes,
    ) -> bool {
        let facts = &self.facts;
        let object = facts.object(uid).filter(|object| object.exists());
        let is_terminating = object.and_then(PodObject::request).is_some();
        let is_late = is_terminating && facts.is_late(uid);
        let class = is_late.then_some(LeakClass::StuckTerminating);
        classes.insert(LeakKey::Pod { uid: uid.clone() }, class);
        let in_grace = facts.in_grace(uid);
        let newest = Newest::new(facts, uid);
        let sandboxes = facts.stores.cri.sandboxes_of(uid);
        for sandbox in sandboxes.filter(|sandbox| is_wanted(&sandbox.info.id)) {
            let is_listed = sandbox.removed.is_none();
            let class = || self.sandbox(sandbox, object.is_some(), in_grace, &newest);
            let class = is_listed.then(class).flatten();
            classes.insert(LeakKey::Sandbox { id: sandbox.info.id.clone() }, class);
        }
        (is_terminating && !is_late) || in_grace
    }

    fn sandbox(
        &self,
        sandbox: &Sandbox,
        exists: bool,
        in_grace: bool,
        newest: &Newest<'_>,
    ) -> Option<LeakClass> {
        let facts = &self.facts;
        let is_static = facts.is_static(sandbox);
        let has_pod = is_static || exists;
        if sandbox.info.ready {
            return match (newest.ready > Some(place(sandbox)), has_pod) {
                (true, _) => Some(LeakClass::DuplicateReady),
                (false, false) if in_grace => None,
                (false, false) => Some(LeakClass::ReadyNoPod),
                (false, true) => None,
            };
        }
        let is_empty = facts.containers_of(&sandbox.info.id).next().is_none();
        if !has_pod {
            return Some(match is_empty {
                true => LeakClass::NotreadyNoPod,
                false => LeakClass::NotreadyWithContainers,
            });
        }
        let has_newer = newest.any > Some(place(sandbox));
        if has_newer || (is_static && self.has_newer_manifest(sandbox)) {
            // The kubelet keeps the last containers for their logs while the pod exists.
            return is_empty.then_some(LeakClass::NotreadySuperseded);
        }
        facts.statuses.is_open(sandbox)?.then_some(LeakClass::NetnsOpen)
    }

    /// The static pod of this name runs from a later manifest.
    fn has_newer_manifest(&self, sandbox: &Sandbox) -> bool {
        let ready = self.static_ready.get_or_init(|| {
            let facts = &self.facts;
            let mut newest: Table<_, Place<'a>> = Table::default();
            let of_static = self.statics.iter().flat_map(|uid| facts.listed_of(uid));
            for one in of_static.filter(|one| one.info.ready && facts.is_static(one)) {
                let known = newest.entry(name(one)).or_insert(place(one));
                *known = (*known).max(place(one));
            }
            newest
        });
        ready.get(&name(sandbox)).is_some_and(|newest| *newest > place(sandbox))
    }
}

/// The newest sandboxes of a pod that the runtime lists.
#[derive(Debug)]
struct Newest<'a> {
    any: Option<Place<'a>>,
    ready: Option<Place<'a>>,
}

impl<'a> Newest<'a> {
    fn new(facts: &LeakFacts<'a>, uid: &PodUid) -> Self {
        let mut newest = Self { any: None, ready: None };
        for sandbox in facts.listed_of(uid) {
            newest.any = newest.any.max(Some(place(sandbox)));
            if sandbox.info.ready {
                newest.ready = newest.ready.max(Some(place(sandbox)));
            }
        }
        newest
    }
}

/// Things on the host whose pod or sandbox is unknown.
pub(super) fn orphans(
    facts: &LeakFacts<'_>,
    orphans: &OrphanCandidates,
    namespaces: &Namespaces<'_>,
) -> BTreeMap<LeakKey, LeakClass> {
    let mut found = BTreeMap::new();
    for shim in orphans.shims(facts) {
        let key = LeakKey::Shim {
            pid: shim.process.pid,
            started: shim.process.started,
            id: shim.id.clone(),
        };
        found.insert(key, LeakClass::OrphanShim);
    }
    for (namespace, inode) in namespaces.unclaimed() {
        let key = LeakKey::Netns { name: namespace.name.clone(), inode };
        found.insert(key, LeakClass::OrphanNetns);
    }
    for group in orphans.groups(facts) {
        let key = LeakKey::PodCgroup { pod: group.pod.clone(), cgroup: group.cgroup };
        found.insert(key, LeakClass::OrphanPodCgroup);
    }
    found
}

/// This kind of thing could not be read, so its absence proves nothing.
pub(super) fn is_unseen(facts: &LeakFacts<'_>, namespaces: &Namespaces<'_>, key: &LeakKey) -> bool {
    let survey = facts.survey;
    match key {
        LeakKey::Shim { .. } => survey.is_none_or(|survey| survey.shims.is_none()),
        LeakKey::Netns { name, .. } => {
            survey.is_none_or(|survey| survey.netns.is_none()) || namespaces.may_be_claimed(name)
        }
        LeakKey::PodCgroup { .. } => survey.is_none_or(|survey| survey.pod_cgroups.is_none()),
        LeakKey::Sandbox { .. } | LeakKey::Pod { .. } => false,
    }
}

fn name(sandbox: &Sandbox) -> (&str, &str) {
    (&sandbox.info.namespace, &sandbox.info.name)
}
