//! What the runtime told of single sandboxes when it was asked for all it knows: costly, so only
//! suspects are asked about, a few at a time.

use crate::{
    ids::SandboxId,
    input::{CriSandboxStatus, SandboxNetwork},
    runtime::Sandbox,
    table::Table,
    time::BootTime,
};
use std::{collections::BTreeSet, time::Duration};

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
    /// When to ask about which sandbox.
    due: BTreeSet<(BootTime, SandboxId)>,
    /// The same of those whose answer only tells which network namespace is theirs.
    due_for_claims: BTreeSet<(BootTime, SandboxId)>,
    /// Sandboxes of which something was answered since the last call.
    answered: Vec<SandboxId>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    asked: Option<BootTime>,
    told: Option<(CriSandboxStatus, BootTime)>,
    /// Since it was told last.
    refused: Option<(String, BootTime)>,
    /// Where it stands among those to be asked about.
    due: Option<(Need, BootTime)>,
}

/// What an answer about a sandbox is needed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// It looks like a leak, or is stopped and may hold its network.
    Leak,
    /// A network namespace that seems to be nobody's may be its own.
    Claim,
}

impl Statuses {
    /// Takes an answer, whether this run has asked for it or the one whose inputs are replayed.
    pub(super) fn told(&mut self, at: BootTime, status: CriSandboxStatus) {
        self.answered.push(status.sandbox.clone());
        let known = self.of.entry(status.sandbox.clone()).or_default();
        known.asked.get_or_insert(status.asked);
        (known.told, known.refused) = (Some((status, at)), None);
    }

    /// The runtime refused to say: what it said before still holds.
    pub(super) fn refused(&mut self, at: BootTime, sandbox: &SandboxId, code: String) {
        self.answered.push(sandbox.clone());
        let known = self.of.entry(sandbox.clone()).or_default();
        known.asked.get_or_insert(at);
        known.refused = Some((code, at));
    }

    /// Sandboxes of which something was answered since the last call.
    pub(super) fn take_answered(&mut self) -> Vec<SandboxId> {
        std::mem::take(&mut self.answered)
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

    /// When it is time to ask (again).
    fn due(&self, sandbox: &Sandbox) -> Option<BootTime> {
        let known = self.of.get(&sandbox.info.id);
        let Some((known, asked)) = known.and_then(|known| Some((known, known.asked?))) else {
            return Some(BootTime(0));
        };
        let lost = asked + LOST;
        let (due, answered) = match (&known.refused, &known.told) {
            (Some((_, at)), _) => (*at + OPEN_AGAIN, *at),
            (None, Some((status, at))) if self.current(sandbox).is_some() => match status.network {
                SandboxNetwork::Own { closed: Some(false), .. } => (*at + OPEN_AGAIN, *at),
                SandboxNetwork::Own { closed: None, .. } | SandboxNetwork::Unknown => {
                    (*at + LATER, *at)
                }
                // Neither ever changes.
                SandboxNetwork::Own { closed: Some(true), .. } | SandboxNetwork::Host => {
                    return None;
                }
            },
            (None, _) => return Some(lost),
        };
        Some(if asked > answered { due.max(lost) } else { due })
    }

    /// A sandbox may have to be asked about, or no longer.
    pub(super) fn schedule(&mut self, sandbox: &Sandbox, need: Option<Need>) {
        let due = need.and_then(|need| Some((need, self.due(sandbox)?)));
        self.place(&sandbox.info.id, due);
    }

    fn place(&mut self, sandbox: &SandboxId, due: Option<(Need, BootTime)>) {
        let before = self.of.get(sandbox).and_then(|known| known.due);
        if before == due {
            return;
        }
        if let Some((need, at)) = before {
            self.queue(need).remove(&(at, sandbox.clone()));
        }
        if let Some((need, at)) = due {
            self.queue(need).insert((at, sandbox.clone()));
        }
        self.of.entry(sandbox.clone()).or_default().due = due;
    }

    fn queue(&mut self, need: Need) -> &mut BTreeSet<(BootTime, SandboxId)> {
        match need {
            Need::Leak => &mut self.due,
            Need::Claim => &mut self.due_for_claims,
        }
    }

    /// Those to ask about now, the longest due first, so that none waits for ever however many they
    /// are. `claims`: also those that only that is asked of.
    pub(super) fn ask(&mut self, now: BootTime, claims: bool, at_most: usize) -> Vec<SandboxId> {
        let for_claims = self.due_for_claims.iter().filter(|_| claims);
        let due = self.due.iter().take(at_most).chain(for_claims.take(at_most));
        let mut due: Vec<_> = due.filter(|(at, _)| *at <= now).cloned().collect();
        due.sort_unstable();
        due.truncate(at_most);
        for (_, id) in &due {
            let Some(known) = self.of.get_mut(id) else { continue };
            known.asked = Some(now);
            let due = known.due.map(|(need, _)| (need, now + LOST));
            self.place(id, due);
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Forgets a sandbox that is gone.
    pub(super) fn forget(&mut self, sandbox: &SandboxId) {
        self.place(sandbox, None);
        self.of.remove(sandbox);
    }
}
