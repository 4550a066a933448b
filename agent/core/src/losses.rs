//! Records that were lost while a container lived: which kinds, and until when. A loss hides only
//! what happened before it was noticed, so that one of last week says nothing against the evidence
//! of today.

use super::{input::LossKind, time::BootTime};
use std::collections::{BTreeMap, BTreeSet};

/// What was lost of one container's life.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// When each kind was last noticed.
    latest: BTreeMap<LossKind, BootTime>,
    /// Those before its main process was known: another may have been taken for it ever since.
    of_main: BTreeSet<LossKind>,
}

impl Losses {
    /// Something was lost, at this moment or shortly before it.
    pub fn note(&mut self, at: BootTime, kind: LossKind, main_is_known: bool) {
        let latest = self.latest.entry(kind).or_insert(at);
        *latest = at.max(*latest);
        if !main_is_known {
            self.of_main.insert(kind);
        }
    }

    /// The kinds that may hide something that happened at this moment or later.
    pub fn since(&self, at: BootTime) -> impl Iterator<Item = LossKind> {
        let hides =
            move |kind: &LossKind, lost: BootTime| lost >= at || self.of_main.contains(kind);
        self.latest.iter().filter(move |(kind, lost)| hides(kind, **lost)).map(|(kind, _)| *kind)
    }

    /// Nothing may be hidden of what happened at this moment or later.
    pub fn spare(&self, at: BootTime) -> bool {
        self.since(at).next().is_none()
    }
}
