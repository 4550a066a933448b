//! Verbose statuses of single sandboxes. They are expensive, so only candidates are asked about, a few at a
//! time.

use crate::{cri::Sandbox, ids::*, input::*, table::Table, time::*};
use std::{collections::BTreeSet, time::Duration};

/// An open namespace may be closed by now.
const OPEN_AGAIN: Duration = Duration::from_secs(60);
/// A closed namespace stays closed; an unknown one may become known.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// An answer that did not come by then is lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// All statuses, and when to ask again.
#[derive(Clone, Debug, Default)]
pub(super) struct SandboxStatusCache {
    entries: Table<SandboxId, CachedStatus>,
    /// Sandboxes to ask about, by purpose and time.
    queue: BTreeSet<(Need, BootTime, SandboxId)>,
}

#[derive(Clone, Debug, Default)]
struct CachedStatus {
    asked: Option<BootTime>,
    answered: Option<(CriSandboxStatus, BootTime)>,
    /// The refusal since the last answer.
    refused: Option<(String, BootTime)>,
    /// The entry in the queue.
    due: Option<(Need, BootTime)>,
}

/// The purpose of an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Need {
    /// The sandbox looks like a leak, or is stopped and may hold its network.
    Leak,
    /// The sandbox may claim a network namespace that seems orphaned.
    Claim,
}

impl SandboxStatusCache {
    /// Applies an answer, whether this run requested it or the recorded one did. After a refusal the earlier
    /// answer still holds.
    pub(super) fn answered(
        &mut self,
        at: BootTime,
        sandbox: &SandboxId,
        answer: Result<CriSandboxStatus, String>,
    ) {
        let known = self.entries.entry(sandbox.clone()).or_default();
        known.asked.get_or_insert(at);
        match answer {
            Ok(status) => (known.answered, known.refused) = (Some((status, at)), None),
            Err(code) => known.refused = Some((code, at)),
        }
    }

    /// The latest status of a sandbox.
    pub(super) fn get(&self, sandbox: &SandboxId) -> Option<&CriSandboxStatus> {
        self.entries.get(sandbox)?.answered.as_ref().map(|(status, _)| status)
    }

    /// The latest refusal since then: its code, and when it came.
    pub(super) fn refusal(&self, sandbox: &SandboxId) -> Option<(&str, BootTime)> {
        self.entries.get(sandbox)?.refused.as_ref().map(|(code, at)| (code.as_str(), *at))
    }

    /// Whether the sandbox still holds an open network namespace; `None`: unknown or not applicable. An
    /// answer from before the sandbox stopped does not count.
    pub(super) fn is_open(&self, sandbox: &Sandbox) -> Option<bool> {
        let status = self.current(sandbox)?;
        match &status.network {
            SandboxNetwork::Own { closed, .. } => closed.map(|closed| !closed),
            SandboxNetwork::Host | SandboxNetwork::Unknown => None,
        }
    }

    /// The status, unless the sandbox has stopped since.
    pub(super) fn current(&self, sandbox: &Sandbox) -> Option<&CriSandboxStatus> {
        let stopped = sandbox.ended.filter(|_| !sandbox.info.ready);
        self.get(&sandbox.info.id)
            .filter(|status| stopped.is_none_or(|stopped| status.asked >= stopped.latest))
    }

    /// When to ask (again).
    fn due(&self, sandbox: &Sandbox) -> Option<BootTime> {
        let known = self.entries.get(&sandbox.info.id);
        let Some((known, asked)) = known.and_then(|known| Some((known, known.asked?))) else {
            return Some(BootTime(0));
        };
        let lost = asked + ANSWER_TIMEOUT;
        let (answered, again) = match (&known.refused, &known.answered) {
            (Some((_, at)), _) => (*at, OPEN_AGAIN),
            (None, Some((status, at))) if self.current(sandbox).is_some() => match status.network {
                // Neither ever changes.
                SandboxNetwork::Own { closed: Some(true), .. } | SandboxNetwork::Host => {
                    return None;
                }
                SandboxNetwork::Own { closed: Some(false), .. } => (*at, OPEN_AGAIN),
                SandboxNetwork::Own { .. } | SandboxNetwork::Unknown => (*at, ASK_AGAIN),
            },
            (None, _) => return Some(lost),
        };
        let due = answered + again;
        Some(if asked > answered { due.max(lost) } else { due })
    }

    /// Enters a sandbox into its queue, or removes it.
    pub(super) fn schedule(&mut self, sandbox: &Sandbox, is_candidate: bool) {
        let id = &sandbox.info.id;
        let need = if is_candidate || !sandbox.info.ready {
            Some(Need::Leak)
        } else {
            claim(self.get(id)).is_none().then_some(Need::Claim)
        };
        self.place(id, need.and_then(|need| Some((need, self.due(sandbox)?))));
    }

    fn place(&mut self, sandbox: &SandboxId, due: Option<(Need, BootTime)>) {
        let before = self.entries.get(sandbox).and_then(|known| known.due);
        if before == due {
            return;
        }
        if let Some((need, at)) = before {
            self.queue.remove(&(need, at, sandbox.clone()));
        }
        if let Some((need, at)) = due {
            self.queue.insert((need, at, sandbox.clone()));
        }
        self.entries.entry(sandbox.clone()).or_default().due = due;
    }

    /// Sandboxes to ask about now, the longest due first, so that each gets its turn. `claims`: also those
    /// needed only for claims.
    pub(super) fn ask(&mut self, now: BootTime, claims: bool, at_most: usize) -> Vec<SandboxId> {
        let first_claim = (Need::Claim, BootTime(0), SandboxId::new(""));
        let for_claims = self.queue.range(first_claim.clone()..).filter(|_| claims);
        let due = self.queue.range(..first_claim).take(at_most).chain(for_claims.take(at_most));
        let due = due.filter(|(_, at, _)| *at <= now);
        let mut due: Vec<_> = due.map(|(_, at, id)| (*at, id.clone())).collect();
        due.sort_unstable();
        due.truncate(at_most);
        for (_, id) in &due {
            let Some(known) = self.entries.get_mut(id) else { continue };
            known.asked = Some(now);
            let due = known.due.map(|(need, _)| (need, now + ANSWER_TIMEOUT));
            self.place(id, due);
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Evicts a sandbox that is gone.
    pub(super) fn evict(&mut self, sandbox: &SandboxId) {
        self.place(sandbox, None);
        self.entries.remove(sandbox);
    }
}

/// The name of the sandbox's network namespace; `None`: not reported, `Some(None)`: none is left.
pub(super) fn claim(status: Option<&CriSandboxStatus>) -> Option<Option<&str>> {
    match &status?.network {
        SandboxNetwork::Own { path: Some(path), .. } => Some(path.rsplit('/').next()),
        SandboxNetwork::Host | SandboxNetwork::Own { closed: Some(true), .. } => Some(None),
        SandboxNetwork::Own { .. } | SandboxNetwork::Unknown => None,
    }
}
