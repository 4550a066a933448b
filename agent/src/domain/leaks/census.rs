//! What one judgement needs to know of all sandboxes at once: who is the newest of its pod, and who
//! claims which network namespace.

use super::{facts::Facts, suspects::unused_namespaces};
use crate::domain::{ids::PodUid, input::SandboxNetwork, runtime::Sandbox, time::WallTime};
use std::collections::{HashMap, HashSet};

/// Where a sandbox stands among those of its pod: the greatest is the newest.
type Place<'a> = (WallTime, u32, &'a str);

fn place(sandbox: &Sandbox) -> Place<'_> {
    (sandbox.info.created, sandbox.info.attempt, sandbox.info.id.as_str())
}

/// All sandboxes that the runtime lists, counted.
#[derive(Debug)]
pub(super) struct Census<'a> {
    newest: HashMap<&'a PodUid, Place<'a>>,
    newest_ready: HashMap<&'a PodUid, Place<'a>>,
    /// Static pods that run, by namespace and name: with another manifest they have another UID.
    static_ready: HashMap<(&'a str, &'a str), Place<'a>>,
    /// Network namespaces that no process is in.
    unused: HashSet<&'a str>,
    claimed: HashSet<&'a str>,
    /// Every sandbox has said which namespace is its own.
    pub(super) claims_are_known: bool,
    /// A pod waits for its sandbox: a namespace may be under way for it.
    pub(super) creates: bool,
}

impl<'a> Census<'a> {
    pub(super) fn of(facts: &Facts<'a>) -> Self {
        let mut census = Self {
            newest: HashMap::new(),
            newest_ready: HashMap::new(),
            static_ready: HashMap::new(),
            unused: unused_namespaces(facts)
                .map(|(namespace, _)| namespace.name.as_str())
                .collect(),
            claimed: HashSet::new(),
            claims_are_known: true,
            creates: false,
        };
        let later = |known: &mut Place<'a>, place| *known = (*known).max(place);
        for sandbox in facts.listed() {
            let (pod, place) = (&sandbox.info.pod, place(sandbox));
            census.newest.entry(pod).and_modify(|known| later(known, place)).or_insert(place);
            if sandbox.info.ready {
                let ready = census.newest_ready.entry(pod);
                ready.and_modify(|known| later(known, place)).or_insert(place);
                if facts.is_static(sandbox) {
                    let name = (&*sandbox.info.namespace, &*sandbox.info.name);
                    let ready = census.static_ready.entry(name);
                    ready.and_modify(|known| later(known, place)).or_insert(place);
                }
            }
            census.hear(facts, sandbox);
        }
        census.creates = facts.of.objects.present().any(|(uid, object)| {
            let waits = object.request().is_none() && !object.pod.is_over();
            waits && !census.newest_ready.contains_key(uid)
        });
        census
    }

    fn hear(&mut self, facts: &Facts<'a>, sandbox: &Sandbox) {
        match facts.statuses.get(&sandbox.info.id).map(|status| &status.network) {
            Some(SandboxNetwork::Own { path: Some(path), .. }) => {
                self.claimed.extend(path.rsplit('/').next());
            }
            Some(SandboxNetwork::Host | SandboxNetwork::Own { closed: Some(true), .. }) => {}
            Some(SandboxNetwork::Own { .. } | SandboxNetwork::Unknown) | None => {
                self.claims_are_known = false;
            }
        }
    }

    /// A later one of its pod is there; `ready`: and runs.
    pub(super) fn has_newer(&self, sandbox: &Sandbox, ready: bool) -> bool {
        let of = if ready { &self.newest_ready } else { &self.newest };
        of.get(&sandbox.info.pod).is_some_and(|newest| *newest > place(sandbox))
    }

    /// The static pod of this name runs by a later manifest.
    pub(super) fn has_newer_manifest(&self, sandbox: &Sandbox) -> bool {
        let name = (&*sandbox.info.namespace, &*sandbox.info.name);
        self.static_ready.get(&name).is_some_and(|newest| *newest > place(sandbox))
    }

    /// No process is in it, and nobody claims it.
    pub(super) fn is_unclaimed(&self, name: &str) -> bool {
        self.unused.contains(name) && !self.claimed.contains(name)
    }

    /// Somebody who has not been heard may claim it.
    pub(super) fn may_be_claimed(&self, name: &str) -> bool {
        !self.claims_are_known && self.unused.contains(name)
    }
}
