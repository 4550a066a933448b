//! Classifies what looks like a leak now. Time and the apiserver decide whether it is one.

use super::facts::LeakFacts;
use crate::{api::PodObject, cri::Sandbox, ids::*, leak::LeakClass, table::Table, time::*};
use std::{cell::OnceCell, collections::BTreeMap};

/// The age of a sandbox among those of its pod; the greatest is the newest.
type Place<'a> = (Option<WallTime>, u32, &'a str);

fn place(sandbox: &Sandbox) -> Place<'_> {
    (sandbox.info.created, sandbox.info.attempt, sandbox.info.id.as_str())
}

/// The current class of each thing; `None`: no leak.
pub(super) type Classes = BTreeMap<LeakKey, Option<LeakClass>>;

/// Classifies pods with their sandboxes.
#[derive(Debug)]
pub(super) struct Classifier<'a> {
    facts: LeakFacts<'a>,
    /// Running static pods by namespace and name: another manifest means another UID.
    static_ready: OnceCell<Table<(&'a str, &'a str), Place<'a>>>,
}

impl<'a> Classifier<'a> {
    pub(super) fn new(facts: &LeakFacts<'a>) -> Self {
        Self { facts: *facts, static_ready: OnceCell::new() }
    }

    /// Adds the classes of a pod and of those sandboxes that `wanted` names. True: they may change without a
    /// change of the pod, with time or with another static pod.
    pub(super) fn pod(
        &self,
        uid: &PodUid,
        wanted: impl Fn(&SandboxId) -> bool,
        classes: &mut Classes,
    ) -> bool {
        let facts = &self.facts;
        let object = facts.object(uid).filter(|object| object.exists());
        let is_terminating = object.and_then(PodObject::request).is_some();
        let is_late = is_terminating && facts.is_late(uid);
        let class = is_late.then_some(LeakClass::StuckTerminating);
        classes.insert(LeakKey::Pod { uid: uid.clone() }, class);
        let in_grace = facts.in_grace(uid);
        let mut may_change = (is_terminating && !is_late) || in_grace;
        let newest = facts.listed_of(uid).map(place).max();
        let newest_ready = facts.listed_of(uid).filter(|s| s.info.ready).map(place).max();
        for sandbox in facts.stores.cri.sandboxes_of(uid).filter(|s| wanted(&s.info.id)) {
            let is_static = facts.is_static(sandbox);
            let has_pod = is_static || object.is_some();
            let class = if sandbox.removed.is_some() {
                None
            } else if !sandbox.info.ready {
                may_change |= is_static;
                let is_newest = newest <= Some(place(sandbox))
                    && !(is_static && self.has_newer_manifest(sandbox));
                self.stopped(sandbox, has_pod, is_newest)
            } else if newest_ready > Some(place(sandbox)) {
                Some(LeakClass::DuplicateReady)
            } else {
                (!has_pod && !in_grace).then_some(LeakClass::ReadyNoPod)
            };
            classes.insert(LeakKey::Sandbox { id: sandbox.info.id.clone() }, class);
        }
        may_change
    }

    fn stopped(&self, sandbox: &Sandbox, has_pod: bool, is_newest: bool) -> Option<LeakClass> {
        let is_empty = self.facts.containers_of(&sandbox.info.id).next().is_none();
        match (has_pod, is_newest) {
            (false, _) if is_empty => Some(LeakClass::NotreadyNoPod),
            (false, _) => Some(LeakClass::NotreadyWithContainers),
            // The kubelet keeps the last containers for their logs while the pod exists.
            (true, false) => is_empty.then_some(LeakClass::NotreadySuperseded),
            (true, true) => self.facts.statuses.is_open(sandbox)?.then_some(LeakClass::NetnsOpen),
        }
    }

    /// The static pod of this name runs from a later manifest.
    fn has_newer_manifest(&self, sandbox: &Sandbox) -> bool {
        let ready = self.static_ready.get_or_init(|| {
            let facts = &self.facts;
            let mut newest: Table<_, Place<'a>> = Table::default();
            for one in facts.listed().filter(|one| one.info.ready && facts.is_static(one)) {
                let known = newest.entry(name(one)).or_insert(place(one));
                *known = (*known).max(place(one));
            }
            newest
        });
        ready.get(&name(sandbox)).is_some_and(|newest| *newest > place(sandbox))
    }
}

fn name(sandbox: &Sandbox) -> (&str, &str) {
    (&sandbox.info.namespace, &sandbox.info.name)
}
