//! What the last look at the host found of pods and sandboxes that nobody knows. Most of it is known,
//! and stays so until the runtime or the apiserver cease to tell of something: until then only what
//! was not known is looked at again.

use super::facts::Facts;
use crate::input::{PodCgroup, Shim};

/// Shims and cgroups of the survey that were not known when they were looked at last.
#[derive(Clone, Debug, Default)]
pub(super) struct Strays {
    /// The survey was looked at since the sources last dropped something.
    is_current: bool,
    shims: Vec<usize>,
    groups: Vec<usize>,
}

impl Strays {
    /// What was known may be known no longer.
    pub(super) fn reset(&mut self) {
        self.is_current = false;
    }

    /// Looks for what is not known now.
    pub(super) fn look(&mut self, facts: &Facts<'_>) {
        let Some(survey) = facts.survey else { return };
        let shims = survey.shims.as_deref().unwrap_or_default();
        let groups = survey.pod_cgroups.as_deref().unwrap_or_default();
        if !self.is_current {
            (self.shims, self.groups) = ((0..shims.len()).collect(), (0..groups.len()).collect());
            self.is_current = true;
        }
        self.shims.retain(|at| shims.get(*at).is_some_and(|shim| is_stray_shim(facts, shim)));
        self.groups.retain(|at| groups.get(*at).is_some_and(|group| is_stray_group(facts, group)));
    }

    /// Shims of no sandbox and no container that the runtime lists.
    pub(super) fn shims<'a>(&self, facts: &Facts<'a>) -> impl Iterator<Item = &'a Shim> {
        let all = facts.survey.and_then(|survey| survey.shims.as_deref()).unwrap_or_default();
        self.shims.iter().filter_map(|at| all.get(*at))
    }

    /// Cgroups of pods that neither runtime nor apiserver know.
    pub(super) fn groups<'a>(&self, facts: &Facts<'a>) -> impl Iterator<Item = &'a PodCgroup> {
        let all = facts.survey.and_then(|survey| survey.pod_cgroups.as_deref());
        self.groups.iter().filter_map(move |at| all.unwrap_or_default().get(*at))
    }
}

fn is_stray_shim(facts: &Facts<'_>, shim: &Shim) -> bool {
    !facts.lists(&shim.id)
}

fn is_stray_group(facts: &Facts<'_>, group: &PodCgroup) -> bool {
    let uid = &group.pod;
    !facts.has_sandbox(uid) && !facts.exists(uid) && !facts.is_static_pod(uid)
}
