//! What a verdict rests on that must not have been missed, and what may have hidden it.

use super::{Facts, LONGEST_STOP_CALL, longest_grace, secs};
use crate::{
    input::{Hook, LossKind},
    time::BootTime,
};
use std::time::Duration;

/// What must not have been missed for a verdict to hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    /// It rests on what was seen.
    Nothing,
    /// Nobody had sent it that signal.
    Signal,
    /// Nobody had told it to stop.
    Stop,
    /// It did not take the stop signal.
    Delivery,
    /// No preStop hook had used up the grace.
    Hook,
}

impl<'a> Facts<'a> {
    /// The agent came too late for what must not have been missed.
    pub(super) fn late(&self, absence: Absence) -> Option<String> {
        match absence {
            Absence::Stop => self.came_late(self.exit?.0, "its end"),
            Absence::Hook => self.came_late(self.stop?.at, "the stop signal"),
            Absence::Nothing | Absence::Signal | Absence::Delivery => None,
        }
    }

    /// The losses that may hide something of this end.
    pub(super) fn losses(&self) -> impl Iterator<Item = LossKind> {
        self.case.processes.losses.since(self.since)
    }

    /// The losses that may hide it.
    pub(super) fn lost(&self, absence: Absence) -> Option<String> {
        let losses = self.losses();
        let hiding: Vec<&str> = match absence {
            Absence::Nothing => return None,
            Absence::Signal | Absence::Stop => {
                losses.filter(|l| !l.spares_what_decides()).map(LossKind::as_str).collect()
            }
            Absence::Delivery | Absence::Hook => losses.map(LossKind::as_str).collect(),
        };
        (!hiding.is_empty()).then(|| hiding.join(", "))
    }

    /// It happened so soon after the agent found the container that a stop may have been under
    /// way by then.
    pub(super) fn came_late(&self, at: BootTime, what: &str) -> Option<String> {
        let found = self.case.processes.found?;
        let longest = longest_grace(&self.case);
        if self.case.requested.is_some_and(|requested| requested < found) {
            return Some("it was being deleted when the agent came".into());
        }
        let watched = at.since(found);
        (watched < Duration::from_secs(longest) + LONGEST_STOP_CALL)
            .then(|| format!("the agent began to watch it only {} before {what}", secs(watched)))
    }

    /// The spec has a hook with a process, none was seen, and the time until the stop signal
    /// would have been enough for it to use up the grace.
    pub(super) fn hook_may_have_exhausted(&self) -> bool {
        let Some(stop) = self.stop.filter(|_| self.hook.is_none()) else { return false };
        let grace = self.case.grace_seconds.and_then(|s| u64::try_from(s).ok());
        let enough = |requested: BootTime| {
            let spent = stop.at.since(requested) + Duration::from_secs(2);
            grace.is_none_or(|grace| spent >= Duration::from_secs(grace))
        };
        matches!(self.case.pre_stop, Some(Hook::Exec(_))) && self.case.requested.is_none_or(enough)
    }

    /// Why there may have been a stop although none was seen.
    pub(super) fn stop_may_be_missing(&self) -> Option<String> {
        match self.exit {
            _ if self.stop.is_some() => None,
            Some((at, _)) => self
                .came_late(at, "its end")
                .or_else(|| Some(format!("evidence was lost ({})", self.lost(Absence::Stop)?))),
            None if self.case.processes.never_started().is_some() => None,
            None => Some("the kernel's record of its exit is missing".into()),
        }
    }
}
