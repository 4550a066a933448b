//! Shims and pod cgroups of the latest survey that no source knows. Most are known, and stay so until the
//! runtime or the apiserver drops something; until then only the unknown ones are checked again.

use super::facts::LeakFacts;
use crate::input::{PodCgroup, Shim};

/// Shims and cgroups of the survey that were unknown at the last scan.
#[derive(Clone, Debug, Default)]
pub(super) struct OrphanCandidates {
    /// No source has dropped anything since the last scan.
    is_current: bool,
    shims: Vec<usize>,
    groups: Vec<usize>,
}

impl OrphanCandidates {
    /// Marks everything to be checked: a source has dropped something.
    pub(super) fn reset(&mut self) {
        self.is_current = false;
    }

    /// Checks what is still unknown.
    pub(super) fn scan(&mut self, facts: &LeakFacts<'_>) {
        let Some(survey) = facts.survey else { return };
        let shims = survey.shims.as_deref().unwrap_or_default();
        let groups = survey.pod_cgroups.as_deref().unwrap_or_default();
        if !self.is_current {
            (self.shims, self.groups) = ((0..shims.len()).collect(), (0..groups.len()).collect());
            self.is_current = true;
        }
        self.shims.retain(|at| shims.get(*at).is_some_and(|shim| is_orphan_shim(facts, shim)));
        self.groups
            .retain(|at| groups.get(*at).is_some_and(|group| is_orphan_cgroup(facts, group)));
    }

    /// Shims without a listed sandbox or container.
    pub(super) fn shims<'a>(&self, facts: &LeakFacts<'a>) -> impl Iterator<Item = &'a Shim> {
        let all = facts.survey.and_then(|survey| survey.shims.as_deref()).unwrap_or_default();
        self.shims.iter().filter_map(|at| all.get(*at))
    }

    /// Pod cgroups that neither the runtime nor the apiserver knows.
    pub(super) fn groups<'a>(&self, facts: &LeakFacts<'a>) -> impl Iterator<Item = &'a PodCgroup> {
        let all = facts.survey.and_then(|survey| survey.pod_cgroups.as_deref());
        self.groups.iter().filter_map(move |at| all.unwrap_or_default().get(*at))
    }
}

fn is_orphan_shim(facts: &LeakFacts<'_>, shim: &Shim) -> bool {
    !facts.lists(&shim.id)
}

fn is_orphan_cgroup(facts: &LeakFacts<'_>, group: &PodCgroup) -> bool {
    let uid = &group.pod;
    facts.listed_of(uid).next().is_none() && !facts.exists(uid) && !facts.is_static_pod(uid)
}
