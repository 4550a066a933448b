//! Verbose statuses of single sandboxes. They are expensive, so only candidates and sandboxes that may hold a
//! network are asked about, a few at a time.

use crate::{cri::Sandbox, ids::*, input::*, table::Table, time::*};
use std::time::Duration;

/// An open namespace may be closed by now, and an answer that did not come by then is lost.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// A runtime that does not report whether the namespace is closed may do so after an upgrade.
const ASK_AGAIN_UNREPORTED: Duration = Duration::from_secs(600);

/// All statuses, and when to ask again.
#[derive(Clone, Debug, Default)]
pub(super) struct SandboxStatuses(Table<SandboxId, SandboxEntry>);

#[derive(Clone, Debug, Default)]
struct SandboxEntry {
    /// The last request or answer.
    asked: Option<BootTime>,
    status: Option<CriSandboxStatus>,
    /// When to ask.
    due: Option<BootTime>,
}

impl SandboxStatuses {
    /// Applies an answer, whether this run requested it or the recorded one did.
    pub(super) fn answered(&mut self, at: BootTime, status: CriSandboxStatus) {
        let entry = self.0.entry(status.sandbox.clone()).or_default();
        (entry.asked, entry.status) = (Some(at), Some(status));
    }

    /// The latest status, unless the sandbox has stopped since.
    pub(super) fn current(&self, sandbox: &Sandbox) -> Option<&CriSandboxStatus> {
        let stopped = sandbox.ended.filter(|_| !sandbox.info.ready);
        let status = self.0.get(&sandbox.info.id)?.status.as_ref()?;
        stopped.is_none_or(|stopped| status.asked >= stopped.latest).then_some(status)
    }

    /// Whether the sandbox holds an open network namespace; `None`: unknown or not applicable.
    pub(super) fn is_open(&self, sandbox: &Sandbox) -> Option<bool> {
        match &self.current(sandbox)?.network {
            SandboxNetwork::Own { closed, .. } => closed.map(|closed| !closed),
            SandboxNetwork::Host | SandboxNetwork::Unknown => None,
        }
    }

    /// The name of the sandbox's network namespace; `None`: not reported, `Some(None)`: none is left.
    pub(super) fn claim(&self, sandbox: &SandboxId) -> Option<Option<&str>> {
        match &self.0.get(sandbox)?.status.as_ref()?.network {
            SandboxNetwork::Own { path: Some(path), .. } => Some(path.rsplit('/').next()),
            SandboxNetwork::Host | SandboxNetwork::Own { closed: Some(true), .. } => Some(None),
            SandboxNetwork::Own { .. } | SandboxNetwork::Unknown => None,
        }
    }

    /// Sets when to ask about a sandbox.
    pub(super) fn schedule(&mut self, sandbox: &Sandbox, is_wanted: bool) {
        use SandboxNetwork::{Host, Own, Unknown};
        let asked = self.0.get(&sandbox.info.id).and_then(|entry| entry.asked);
        let network = self.current(sandbox).map(|status| &status.network);
        let due = match (asked, network) {
            _ if !is_wanted => None,
            (None, _) => Some(BootTime(0)),
            // Neither ever changes.
            (_, Some(Host | Own { closed: Some(true), .. })) => None,
            (Some(asked), Some(Own { closed: None, .. } | Unknown)) => {
                Some(asked + ASK_AGAIN_UNREPORTED)
            }
            (Some(asked), Some(Own { closed: Some(false), .. }) | None) => Some(asked + ASK_AGAIN),
        };
        if due.is_some() || asked.is_some() {
            self.0.entry(sandbox.info.id.clone()).or_default().due = due;
        }
    }

    /// Sandboxes to ask about now, the longest due first, so that each gets its turn.
    pub(super) fn ask(&mut self, now: BootTime, at_most: usize) -> Vec<SandboxId> {
        let due = self.0.iter().filter_map(|(id, entry)| Some((entry.due?, id.clone())));
        let mut due: Vec<_> = due.filter(|(at, _)| *at <= now).collect();
        due.sort_unstable();
        due.truncate(at_most);
        for (_, id) in &due {
            let entry = self.0.entry(id.clone()).or_default();
            (entry.asked, entry.due) = (Some(now), Some(now + ASK_AGAIN));
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Evicts a sandbox that is gone.
    pub(super) fn evict(&mut self, sandbox: &SandboxId) {
        self.0.remove(sandbox);
    }
}
