//! Network namespaces without a process, and the sandboxes that claim them.

use super::{facts::LeakFacts, sandbox_status::claim};
use crate::{input::*, table::TableSet};

/// Namespaces without a process. An empty file without a mount is no namespace.
pub(super) fn unused<'a>(
    facts: &LeakFacts<'a>,
) -> impl Iterator<Item = (&'a NetNamespace, u64)> + use<'a> {
    let all = facts.survey.and_then(|survey| survey.netns.as_deref()).unwrap_or_default();
    let unused = all.iter().filter(|namespace| namespace.processes == 0);
    unused.filter_map(|namespace| Some((namespace, namespace.inode?)))
}

/// Namespaces without a process during one evaluation.
#[derive(Debug)]
pub(super) struct UnusedNamespaces<'a> {
    /// Those that no sandbox claims, as far as known.
    pub(super) unclaimed: Vec<(&'a NetNamespace, u64)>,
    /// The namespace of each sandbox is known.
    pub(super) is_certain: bool,
    /// A pod waits for its sandbox, so the runtime may be creating a namespace.
    pub(super) creates: bool,
}

impl<'a> UnusedNamespaces<'a> {
    pub(super) fn new(facts: &LeakFacts<'a>) -> Self {
        let mut unclaimed: Vec<_> = unused(facts).collect();
        if unclaimed.is_empty() {
            return Self { unclaimed, is_certain: true, creates: false };
        }
        let claims = facts.listed().map(|sandbox| claim(facts.statuses.get(&sandbox.info.id)));
        let claimed: Option<Vec<Option<&str>>> = claims.collect();
        let is_certain = claimed.is_some();
        let claimed: TableSet<&str> = claimed.into_iter().flatten().flatten().collect();
        unclaimed.retain(|(namespace, _)| !claimed.contains(namespace.name.as_str()));
        let creates = facts.stores.api.present().any(|(uid, object)| {
            let waits = object.request().is_none() && !object.pod.is_over();
            waits && !facts.listed_of(uid).any(|sandbox| sandbox.info.ready)
        });
        Self { unclaimed, is_certain, creates }
    }
}
