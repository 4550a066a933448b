//! What the runtime told of single sandboxes when it was asked for all it knows: costly, so only
//! suspects are asked about, a few at a time.

use crate::{
    ids::SandboxId,
    input::{CriSandboxStatus, SandboxNetwork},
    runtime::Sandbox,
    table::Table,
    time::BootTime,
};
use std::time::Duration;

/// An open namespace may be closed since.
const OPEN_AGAIN: Duration = Duration::from_secs(60);
/// What is closed stays closed; what could not be had may be had later.
const LATER: Duration = Duration::from_secs(600);
/// An answer that has not come by then was lost.
const LOST: Duration = Duration::from_secs(30);

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Statuses {
    of: Table<SandboxId, Known>,
}

#[derive(Clone, Debug)]
struct Known {
    asked: BootTime,
    told: Option<(CriSandboxStatus, BootTime)>,
    /// Since it was told last.
    refused: Option<(String, BootTime)>,
}

impl Known {
    fn asked(asked: BootTime) -> Self {
        Self { asked, told: None, refused: None }
    }
}

impl Statuses {
    /// Takes an answer, whether this run has asked for it or the one whose inputs are replayed.
    pub(super) fn told(&mut self, at: BootTime, status: CriSandboxStatus) {
        let known = self.of.entry(status.sandbox.clone()).or_insert(Known::asked(status.asked));
        (known.told, known.refused) = (Some((status, at)), None);
    }

    /// The runtime refused to say: what it said before still holds.
    pub(super) fn refused(&mut self, at: BootTime, sandbox: &SandboxId, code: String) {
        let known = self.of.entry(sandbox.clone()).or_insert(Known::asked(at));
        known.refused = Some((code, at));
    }

    /// What is known of this sandbox.
    pub(super) fn get(&self, sandbox: &SandboxId) -> Option<&CriSandboxStatus> {
        self.of.get(sandbox)?.told.as_ref().map(|(status, _)| status)
    }

    /// The code with which the runtime refused, and when.
    pub(super) fn refusal(&self, sandbox: &SandboxId) -> Option<(&str, BootTime)> {
        self.of.get(sandbox)?.refused.as_ref().map(|(code, at)| (code.as_str(), *at))
    }

    /// Its network namespace is still open: `None` where that is not known, or it has none. What
    /// was told before it stopped says nothing of what it keeps.
    pub(super) fn is_open(&self, sandbox: &Sandbox) -> Option<bool> {
        let status = self.current(sandbox)?;
        match &status.network {
            SandboxNetwork::Own { closed, .. } => closed.map(|closed| !closed),
            SandboxNetwork::Host | SandboxNetwork::Unknown => None,
        }
    }

    /// What was told of a sandbox in the state that it is in now.
    pub(super) fn current(&self, sandbox: &Sandbox) -> Option<&CriSandboxStatus> {
        let stopped = sandbox.stopped.filter(|_| !sandbox.info.ready);
        self.get(&sandbox.info.id)
            .filter(|status| stopped.is_none_or(|stopped| status.asked >= stopped.by))
    }

    /// Whether it is time to ask (again).
    fn is_due(&self, now: BootTime, sandbox: &Sandbox) -> bool {
        let Some(known) = self.of.get(&sandbox.info.id) else { return true };
        if let Some((_, at)) = &known.refused {
            return now >= *at + OPEN_AGAIN;
        }
        let Some((status, at)) = &known.told else { return now >= known.asked + LOST };
        if self.current(sandbox).is_none() {
            return now >= known.asked + LOST;
        }
        match status.network {
            SandboxNetwork::Own { closed: Some(false), .. } => now >= *at + OPEN_AGAIN,
            SandboxNetwork::Own { closed: None, .. } | SandboxNetwork::Unknown => {
                now >= *at + LATER
            }
            // Neither ever changes.
            SandboxNetwork::Own { closed: Some(true), .. } | SandboxNetwork::Host => false,
        }
    }

    /// Those of whom to ask now: first who was never asked, then who was asked longest ago, so that
    /// none waits for ever however many they are.
    pub(super) fn due<'a>(
        &self,
        now: BootTime,
        wanted: impl Iterator<Item = &'a Sandbox>,
        at_most: usize,
    ) -> Vec<SandboxId> {
        let mut due: Vec<(Option<BootTime>, &SandboxId)> = wanted
            .filter(|sandbox| self.is_due(now, sandbox))
            .map(|s| (self.of.get(&s.info.id).map(|known| known.asked), &s.info.id))
            .collect();
        due.sort_unstable();
        due.dedup();
        due.into_iter().take(at_most).map(|(_, id)| id.clone()).collect()
    }

    /// It is asked for now.
    pub(super) fn ask(&mut self, now: BootTime, sandbox: &SandboxId) {
        self.of.entry(sandbox.clone()).or_insert(Known::asked(now)).asked = now;
    }

    /// Forgets sandboxes that are gone.
    pub(super) fn retain(&mut self, listed: impl Fn(&SandboxId) -> bool) {
        self.of.retain(|id, _| listed(id));
    }
}
