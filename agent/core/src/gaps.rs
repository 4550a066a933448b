//! Records lost during a container's lifetime: which kinds, and until when. A loss hides only events before
//! it was noticed, so an old loss does not affect new evidence.

use crate::{input::*, time::*};
use std::collections::{BTreeMap, BTreeSet};

/// The losses of one container.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gaps {
    /// When each kind was last noticed.
    latest: BTreeMap<LossKind, BootTime>,
    /// Kinds lost before the main process was known: another process may have been taken for it.
    before_init_known: BTreeSet<LossKind>,
}

impl Gaps {
    /// Records a loss at `at`, or shortly before.
    pub fn note(&mut self, at: BootTime, kind: LossKind, main_is_known: bool) {
        let latest = self.latest.entry(kind).or_insert(at);
        *latest = at.max(*latest);
        if !main_is_known {
            self.before_init_known.insert(kind);
        }
    }

    /// Kinds that may hide an event at `at` or later.
    pub fn since(&self, at: BootTime) -> impl Iterator<Item = LossKind> {
        let hides = move |kind: &LossKind, lost: BootTime| {
            lost >= at || self.before_init_known.contains(kind)
        };
        self.latest.iter().filter(move |(kind, lost)| hides(kind, **lost)).map(|(kind, _)| *kind)
    }

    /// No loss hides an event at `at` or later.
    pub fn is_complete_since(&self, at: BootTime) -> bool {
        self.since(at).next().is_none()
    }
}
