//! Events that must not have happened for a verdict to hold, and the gaps that may hide them.

use super::{DeathFacts, longest_grace};
use crate::{input::*, kubelet::KUBELET_SLACK, time::*};
use std::time::Duration;

/// An event that must not have happened unseen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    /// None: the verdict rests on records.
    Nothing,
    /// The fatal signal, from outside.
    Signal,
    /// The stop signal.
    Stop,
    /// The delivery of the stop signal.
    Delivery,
    /// A preStop hook that used up the grace.
    Hook,
}

impl<'a> DeathFacts<'a> {
    /// Why the agent started too late to exclude the event.
    pub(super) fn late(&self, absence: Absence) -> Option<String> {
        match absence {
            Absence::Stop => self.observed_too_briefly(self.exit?.0, "its end"),
            Absence::Hook => self.observed_too_briefly(self.stop?.at, "the stop signal"),
            Absence::Nothing | Absence::Signal | Absence::Delivery => None,
        }
    }

    /// Losses that may hide evidence of this end.
    pub(super) fn gaps(&self) -> impl Iterator<Item = LossKind> {
        self.case.processes.gaps.since(self.since)
    }

    /// Losses that may hide the event.
    pub(super) fn lost(&self, absence: Absence) -> Option<String> {
        let gaps = self.gaps();
        let hiding: Vec<&str> = match absence {
            Absence::Nothing => return None,
            Absence::Signal | Absence::Stop => {
                gaps.filter(|l| !l.is_detail_only()).map(LossKind::as_str).collect()
            }
            Absence::Delivery | Absence::Hook => gaps.map(LossKind::as_str).collect(),
        };
        (!hiding.is_empty()).then(|| hiding.join(", "))
    }

    /// A stop may have been in progress when the agent found the container: too little time passed until
    /// `at`.
    pub(super) fn observed_too_briefly(&self, at: BootTime, what: &str) -> Option<String> {
        let found = self.case.processes.found?;
        let longest = longest_grace(&self.case);
        if self.case.requested.is_some_and(|requested| requested < found) {
            return Some("it was already being deleted when the agent started".into());
        }
        let watched = at.since(found);
        (watched < Duration::from_secs(longest) + KUBELET_SLACK)
            .then(|| format!("the agent began to watch it only {} before {what}", secs(watched)))
    }

    /// The spec has an exec hook, none was seen, and there was time for it to use up the grace.
    pub(super) fn hook_may_have_exhausted(&self) -> bool {
        let Some(stop) = self.stop.filter(|_| self.hook.is_none()) else { return false };
        let grace = self.case.grace_seconds.and_then(|s| u64::try_from(s).ok());
        let enough = |requested: BootTime| {
            let spent = stop.at.since(requested) + Duration::from_secs(2);
            grace.is_none_or(|grace| spent >= Duration::from_secs(grace))
        };
        matches!(self.case.pre_stop, Some(Hook::Exec(_))) && self.case.requested.is_none_or(enough)
    }

    /// Why a stop may have happened although none was seen.
    pub(super) fn stop_may_be_missing(&self) -> Option<String> {
        match self.exit {
            _ if self.stop.is_some() => None,
            Some((at, _)) => self
                .observed_too_briefly(at, "its end")
                .or_else(|| Some(format!("evidence was lost ({})", self.lost(Absence::Stop)?))),
            None if self.case.processes.never_started().is_some() => None,
            None => Some("the kernel's record of its exit is missing".into()),
        }
    }
}
