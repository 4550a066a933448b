//! Which kinds of things the agent has surveyed before.

use crate::{
    ids::LeakKey,
    leak::LeakClass,
    leaks::{facts::LeakFacts, netns},
    time::*,
};
use std::collections::BTreeSet;

/// Kinds surveyed before: a new thing of such a kind began while the agent watched.
#[derive(Clone, Debug, Default)]
pub(super) struct SurveyedKinds {
    pods: bool,
    shims: bool,
    pod_cgroups: bool,
    /// Inodes of network namespaces without a process at the first survey. Their sandbox is known only after
    /// an answer about each sandbox.
    unused: Option<BTreeSet<u64>>,
}

impl SurveyedKinds {
    pub(super) fn is_since_start(
        &self,
        facts: &LeakFacts<'_>,
        key: &LeakKey,
        class: LeakClass,
    ) -> bool {
        match key {
            // The namespace's state needs an answer of the runtime. The sandbox stopped before the first
            // list.
            LeakKey::Sandbox { id } if class == LeakClass::NetnsOpen => {
                let sandbox = facts.stores.cri.sandbox(id);
                let stopped = sandbox.and_then(|sandbox| sandbox.ended);
                stopped.is_some_and(|stopped| stopped.earliest == BootTime(0))
            }
            LeakKey::Sandbox { .. } | LeakKey::Pod { .. } => !self.pods,
            LeakKey::Shim { .. } => !self.shims,
            LeakKey::PodCgroup { .. } => !self.pod_cgroups,
            LeakKey::Netns { inode, .. } => {
                self.unused.as_ref().is_none_or(|unused| unused.contains(inode))
            }
        }
    }

    pub(super) fn note(&mut self, facts: &LeakFacts<'_>) {
        self.pods = true;
        let Some(survey) = facts.survey else { return };
        self.shims |= survey.shims.is_some();
        self.pod_cgroups |= survey.pod_cgroups.is_some();
        if survey.netns.is_some() {
            let now: BTreeSet<u64> = netns::unused(facts).map(|(_, inode)| inode).collect();
            self.unused = Some(self.unused.as_ref().map_or_else(|| now.clone(), |old| old & &now));
        }
    }
}
