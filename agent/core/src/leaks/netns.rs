//! Network namespaces without a process, and the sandboxes that claim them.

use super::facts::LeakFacts;
use crate::{
    cri::Sandbox,
    input::{CriSandboxStatus, NetNamespace, SandboxNetwork},
    table::TableSet,
};
use std::cell::OnceCell;

/// Namespaces without a process. An empty file without a mount is no namespace.
pub(super) fn unused<'a>(
    facts: &LeakFacts<'a>,
) -> impl Iterator<Item = (&'a NetNamespace, u64)> + use<'a> {
    let all = facts.survey.and_then(|survey| survey.netns.as_ref());
    all.into_iter()
        .flatten()
        .filter(|namespace| namespace.processes == 0)
        .filter_map(|namespace| Some((namespace, namespace.inode?)))
}

/// The network namespace of a sandbox, from its status.
enum Claim<'a> {
    /// Not reported.
    Unknown,
    /// None is left.
    None,
    /// The namespace's name.
    Of(&'a str),
}

fn claim(status: Option<&CriSandboxStatus>) -> Claim<'_> {
    match status.map(|status| &status.network) {
        Some(SandboxNetwork::Own { path: Some(path), .. }) => {
            path.rsplit('/').next().map_or(Claim::None, Claim::Of)
        }
        Some(SandboxNetwork::Host | SandboxNetwork::Own { closed: Some(true), .. }) => Claim::None,
        Some(SandboxNetwork::Own { .. } | SandboxNetwork::Unknown) | None => Claim::Unknown,
    }
}

/// The sandbox's namespace is not known.
pub(super) fn is_unknown(status: Option<&CriSandboxStatus>) -> bool {
    matches!(claim(status), Claim::Unknown)
}

/// The namespaces during one evaluation, computed on demand.
#[derive(Debug)]
pub(super) struct Namespaces<'a> {
    facts: LeakFacts<'a>,
    unused: OnceCell<TableSet<&'a str>>,
    /// `None`: some sandbox's namespace is not known.
    claimed: OnceCell<Option<TableSet<&'a str>>>,
    creates: OnceCell<bool>,
}

impl<'a> Namespaces<'a> {
    pub(super) fn new(facts: &LeakFacts<'a>) -> Self {
        let (unused, claimed, creates) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Self { facts: *facts, unused, claimed, creates }
    }

    /// A namespace without a process exists.
    pub(super) fn any_unused(&self) -> bool {
        unused(&self.facts).next().is_some()
    }

    /// Namespaces without a process that no sandbox claims.
    pub(super) fn unclaimed(&self) -> impl Iterator<Item = (&'a NetNamespace, u64)> {
        let claimed = if self.any_unused() { self.claimed() } else { None };
        claimed.into_iter().flat_map(move |claimed| {
            unused(&self.facts).filter(|(one, _)| !claimed.contains(one.name.as_str()))
        })
    }

    /// A sandbox whose namespace is not known may claim it.
    pub(super) fn may_be_claimed(&self, name: &str) -> bool {
        let names = || unused(&self.facts).map(|(namespace, _)| namespace.name.as_str()).collect();
        self.claimed().is_none() && self.unused.get_or_init(names).contains(name)
    }

    fn claimed(&self) -> Option<&TableSet<&'a str>> {
        let claimed = || {
            let mut claimed = TableSet::default();
            for sandbox in self.facts.listed() {
                match claim(self.facts.statuses.get(&sandbox.info.id)) {
                    Claim::Unknown => return None,
                    Claim::None => {}
                    Claim::Of(name) => _ = claimed.insert(name),
                }
            }
            Some(claimed)
        };
        self.claimed.get_or_init(claimed).as_ref()
    }

    /// A pod waits for its sandbox, so the runtime may be creating a namespace.
    pub(super) fn creates(&self) -> bool {
        *self.creates.get_or_init(|| {
            let cri = &self.facts.stores.cri;
            self.facts.stores.api.present().any(|(uid, object)| {
                let waits = object.request().is_none() && !object.pod.is_over();
                let runs = |s: &Sandbox| s.removed.is_none() && s.info.ready;
                waits && !cri.sandboxes_of(uid).any(runs)
            })
        })
    }
}
