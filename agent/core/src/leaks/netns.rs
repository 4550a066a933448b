//! Network namespaces that no process is in, and who claims them.

use super::facts::Facts;
use crate::{
    input::{CriSandboxStatus, NetNamespace, SandboxNetwork},
    runtime::Sandbox,
    table::TableSet,
};
use std::cell::OnceCell;

/// Namespaces that no process is in. An empty file at such a place is none.
pub(super) fn unused<'a>(
    facts: &Facts<'a>,
) -> impl Iterator<Item = (&'a NetNamespace, u64)> + use<'a> {
    let all = facts.survey.and_then(|survey| survey.netns.as_ref());
    all.into_iter()
        .flatten()
        .filter(|namespace| namespace.processes == 0)
        .filter_map(|namespace| Some((namespace, namespace.inode?)))
}

/// Which namespace a sandbox says is its own.
enum Claim<'a> {
    /// It has not said.
    Unknown,
    /// None that is left.
    None,
    /// This one.
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

/// Which namespace is its own is not known.
pub(super) fn is_unknown(status: Option<&CriSandboxStatus>) -> bool {
    matches!(claim(status), Claim::Unknown)
}

/// What one evaluation needs to know of the namespaces: counted only when it is asked for.
#[derive(Debug)]
pub(super) struct Namespaces<'a> {
    facts: Facts<'a>,
    unused: OnceCell<TableSet<&'a str>>,
    /// `None`: of some sandbox it is not known which one is its own.
    claimed: OnceCell<Option<TableSet<&'a str>>>,
    creates: OnceCell<bool>,
}

impl<'a> Namespaces<'a> {
    pub(super) fn new(facts: &Facts<'a>) -> Self {
        let (unused, claimed, creates) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Self { facts: *facts, unused, claimed, creates }
    }

    /// Some have no process.
    pub(super) fn any_unused(&self) -> bool {
        unused(&self.facts).next().is_some()
    }

    /// Those that have no process and that no sandbox claims.
    pub(super) fn unclaimed(&self) -> impl Iterator<Item = (&'a NetNamespace, u64)> {
        let claimed = if self.any_unused() { self.claimed() } else { None };
        claimed.into_iter().flat_map(move |claimed| {
            unused(&self.facts).filter(|(one, _)| !claimed.contains(one.name.as_str()))
        })
    }

    /// A sandbox of which that is not known may claim it.
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
}
