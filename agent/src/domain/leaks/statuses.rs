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
    answer: Option<Answer>,
}

#[derive(Clone, Debug)]
enum Answer {
    Told { status: CriSandboxStatus, at: BootTime },
    Refused { code: String, at: BootTime },
}

impl Statuses {
    /// Takes an answer. One that nobody asked for is of no use.
    pub(super) fn told(&mut self, at: BootTime, status: CriSandboxStatus) {
        if let Some(known) = self.of.get_mut(&status.sandbox) {
            known.answer = Some(Answer::Told { status, at });
        }
    }

    /// The runtime refused to say.
    pub(super) fn refused(&mut self, at: BootTime, sandbox: &SandboxId, code: String) {
        if let Some(known) = self.of.get_mut(sandbox) {
            known.answer = Some(Answer::Refused { code, at });
        }
    }

    /// What is known of this sandbox.
    pub(super) fn get(&self, sandbox: &SandboxId) -> Option<&CriSandboxStatus> {
        match &self.of.get(sandbox)?.answer {
            Some(Answer::Told { status, .. }) => Some(status),
            _ => None,
        }
    }

    /// The code with which the runtime refused, and when.
    pub(super) fn refusal(&self, sandbox: &SandboxId) -> Option<(&str, BootTime)> {
        match &self.of.get(sandbox)?.answer {
            Some(Answer::Refused { code, at }) => Some((code, *at)),
            _ => None,
        }
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
        match &known.answer {
            None => now >= known.asked + LOST,
            Some(Answer::Refused { at, .. }) => now >= *at + OPEN_AGAIN,
            Some(Answer::Told { status, at }) => match status.network {
                SandboxNetwork::Own { closed: Some(false), .. } => now >= *at + OPEN_AGAIN,
                SandboxNetwork::Own { closed: None, .. } => now >= *at + LATER,
                // Neither ever changes.
                SandboxNetwork::Own { closed: Some(true), .. } | SandboxNetwork::Host => false,
                SandboxNetwork::Unknown => now >= *at + LATER,
            },
        }
    }

    /// It is asked for now.
    pub(super) fn ask(&mut self, now: BootTime, sandbox: &SandboxId) {
        let known = Known { asked: now, answer: None };
        self.of.entry(sandbox.clone()).and_modify(|known| known.asked = now).or_insert(known);
    }

    /// Forgets sandboxes that are gone.
    pub(super) fn retain(&mut self, listed: impl Fn(&SandboxId) -> bool) {
        self.of.retain(|id, _| listed(id));
    }
}
