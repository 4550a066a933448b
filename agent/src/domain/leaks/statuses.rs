//! What the runtime told of single sandboxes when it was asked for all it knows: costly, so only
//! suspects are asked about, a few at a time.

use crate::domain::{
    ids::SandboxId,
    input::{CriSandboxStatus, SandboxNetwork},
    time::BootTime,
};
use std::{collections::HashMap, time::Duration};

/// An open namespace may be closed since.
const OPEN_AGAIN: Duration = Duration::from_secs(60);
/// What is closed stays closed; what could not be had may be had later.
const LATER: Duration = Duration::from_secs(600);
/// An answer that has not come by then was lost.
const LOST: Duration = Duration::from_secs(30);

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Statuses {
    of: HashMap<SandboxId, Known>,
}

#[derive(Clone, Debug)]
struct Known {
    asked: BootTime,
    told: Option<(CriSandboxStatus, BootTime)>,
    /// Since it was told last.
    refused: Option<(String, BootTime)>,
}

impl Statuses {
    /// Takes an answer. One that nobody asked for is of no use.
    pub(super) fn told(&mut self, at: BootTime, status: CriSandboxStatus) {
        if let Some(known) = self.of.get_mut(&status.sandbox) {
            (known.told, known.refused) = (Some((status, at)), None);
        }
    }

    /// The runtime refused to say: what it said before still holds.
    pub(super) fn refused(&mut self, at: BootTime, sandbox: &SandboxId, code: String) {
        if let Some(known) = self.of.get_mut(sandbox) {
            known.refused = Some((code, at));
        }
    }

    /// What is known of this sandbox.
    pub(super) fn get(&self, sandbox: &SandboxId) -> Option<&CriSandboxStatus> {
        self.of.get(sandbox)?.told.as_ref().map(|(status, _)| status)
    }

    /// The code with which the runtime refused, and when.
    pub(super) fn refusal(&self, sandbox: &SandboxId) -> Option<(&str, BootTime)> {
        self.of.get(sandbox)?.refused.as_ref().map(|(code, at)| (code.as_str(), *at))
    }

    /// Its network namespace is still open: `None` where that is not known, or it has none.
    pub(super) fn is_open(&self, sandbox: &SandboxId) -> Option<bool> {
        match &self.get(sandbox)?.network {
            SandboxNetwork::Own { closed, .. } => closed.map(|closed| !closed),
            SandboxNetwork::Host | SandboxNetwork::Unknown => None,
        }
    }

    /// Whether it is time to ask (again).
    pub(super) fn is_due(&self, now: BootTime, sandbox: &SandboxId) -> bool {
        let Some(known) = self.of.get(sandbox) else { return true };
        if let Some((_, at)) = &known.refused {
            return now >= *at + OPEN_AGAIN;
        }
        let Some((status, at)) = &known.told else { return now >= known.asked + LOST };
        match status.network {
            SandboxNetwork::Own { closed: Some(false), .. } => now >= *at + OPEN_AGAIN,
            SandboxNetwork::Own { closed: None, .. } | SandboxNetwork::Unknown => {
                now >= *at + LATER
            }
            // Neither ever changes.
            SandboxNetwork::Own { closed: Some(true), .. } | SandboxNetwork::Host => false,
        }
    }

    /// It is asked for now.
    pub(super) fn ask(&mut self, now: BootTime, sandbox: &SandboxId) {
        let known = Known { asked: now, told: None, refused: None };
        let before = self.of.entry(sandbox.clone()).or_insert(known);
        before.asked = now;
    }

    /// Forgets sandboxes that are gone.
    pub(super) fn retain(&mut self, listed: impl Fn(&SandboxId) -> bool) {
        self.of.retain(|id, _| listed(id));
    }
}
