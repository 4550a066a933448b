//! What one judgement needs to know of all sandboxes at once: who is the newest of its pod, and who
//! claims which network namespace. Of most judgements only the first is asked, and of few sandboxes:
//! all else is counted when it is asked for.

use super::{facts::Facts, suspects::unused_namespaces};
use crate::{
    input::SandboxNetwork,
    runtime::Sandbox,
    table::{Table, TableSet},
    time::WallTime,
};
use std::cell::OnceCell;

/// Where a sandbox stands among those of its pod: the greatest is the newest.
type Place<'a> = (WallTime, u32, &'a str);

fn place(sandbox: &Sandbox) -> Place<'_> {
    (sandbox.info.created, sandbox.info.attempt, sandbox.info.id.as_str())
}

/// All sandboxes that the runtime lists.
#[derive(Debug)]
pub(super) struct Census<'a> {
    facts: Facts<'a>,
    /// Static pods that run, by namespace and name: with another manifest they have another UID.
    static_ready: OnceCell<Table<(&'a str, &'a str), Place<'a>>>,
    /// Network namespaces that no process is in.
    unused: TableSet<&'a str>,
    claims: OnceCell<Claims<'a>>,
    creates: OnceCell<bool>,
}

/// Which network namespaces sandboxes say are theirs.
#[derive(Debug)]
struct Claims<'a> {
    claimed: TableSet<&'a str>,
    /// Every sandbox has said.
    are_known: bool,
}

impl<'a> Census<'a> {
    pub(super) fn of(facts: &Facts<'a>) -> Self {
        let unused = unused_namespaces(facts).map(|(namespace, _)| namespace.name.as_str());
        Self {
            facts: *facts,
            static_ready: OnceCell::new(),
            unused: unused.collect(),
            claims: OnceCell::new(),
            creates: OnceCell::new(),
        }
    }

    /// A later one of its pod is there; `ready`: and runs.
    pub(super) fn has_newer(&self, sandbox: &Sandbox, ready: bool) -> bool {
        let runtime = self.facts.of.runtime;
        let pod = &sandbox.info.pod;
        runtime.count(pod) > 1
            && runtime
                .sandboxes_of(pod)
                .rev() // the newest are last
                .filter(|other| other.removed.is_none() && (other.info.ready || !ready))
                .any(|other| place(other) > place(sandbox))
    }

    /// The static pod of this name runs by a later manifest.
    pub(super) fn has_newer_manifest(&self, sandbox: &Sandbox) -> bool {
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

    /// A pod waits for its sandbox: a namespace may be under way for it.
    pub(super) fn creates(&self) -> bool {
        *self.creates.get_or_init(|| {
            let runtime = self.facts.of.runtime;
            self.facts.of.objects.present().any(|(uid, object)| {
                let waits = object.request().is_none() && !object.pod.is_over();
                let runs = |s: &Sandbox| s.removed.is_none() && s.info.ready;
                waits && !runtime.sandboxes_of(uid).any(runs)
            })
        })
    }

    /// Every sandbox has said which namespace is its own.
    pub(super) fn claims_are_known(&self) -> bool {
        self.claims().are_known
    }

    /// No process is in it, and nobody claims it.
    pub(super) fn is_unclaimed(&self, name: &str) -> bool {
        self.unused.contains(name) && !self.claims().claimed.contains(name)
    }

    /// Somebody who has not been heard may claim it.
    pub(super) fn may_be_claimed(&self, name: &str) -> bool {
        self.unused.contains(name) && !self.claims_are_known()
    }

    fn claims(&self) -> &Claims<'a> {
        self.claims.get_or_init(|| {
            let mut claims = Claims { claimed: TableSet::default(), are_known: true };
            for sandbox in self.facts.listed() {
                let status = self.facts.statuses.get(&sandbox.info.id);
                match status.map(|status| &status.network) {
                    Some(SandboxNetwork::Own { path: Some(path), .. }) => {
                        claims.claimed.extend(path.rsplit('/').next());
                    }
                    Some(SandboxNetwork::Host | SandboxNetwork::Own { closed: Some(true), .. }) => {
                    }
                    Some(SandboxNetwork::Own { .. } | SandboxNetwork::Unknown) | None => {
                        claims.are_known = false;
                    }
                }
            }
            claims
        })
    }
}

fn name(sandbox: &Sandbox) -> (&str, &str) {
    (&sandbox.info.namespace, &sandbox.info.name)
}
