//! What the app has asked for and the poller has not yet done. Requests fold into sets here, so
//! a storm of them costs one look, and whoever sends one never waits for the runtime.

use super::Request;
use crate::domain::ids::{ContainerId, SandboxId};
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, mpsc};

/// Requests, folded.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    open: Mutex<Open>,
    news: Notify,
}

/// What is asked for at this moment.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// To be polled often, until relaxed.
    pub(super) hurried: BTreeSet<SandboxId>,
    /// To be looked at once.
    pub(super) look: BTreeSet<SandboxId>,
    /// Hints that something happened in these.
    pub(super) hints: BTreeSet<SandboxId>,
    /// Everything is to be looked at once.
    pub(super) look_at_all: bool,
    /// Containers whose cgroup is wanted.
    pub(super) find: BTreeSet<ContainerId>,
    /// Sandboxes whose verbose status is wanted.
    pub(super) statuses: BTreeSet<SandboxId>,
}

impl Wishes {
    /// What is asked for. Never held across an await.
    pub(super) fn open(&self) -> MutexGuard<'_, Open> {
        // Every change to `Open` is complete in itself: a panic elsewhere cannot have left half.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when something was asked for since the last call.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Returns as soon as somebody wants to have a look.
    pub(super) async fn look_wanted(&self) {
        loop {
            {
                let open = self.open();
                if open.look_at_all || !open.look.is_empty() {
                    return;
                }
            }
            self.news().await;
        }
    }

    /// Something happened in a sandbox, whether it is known yet or not.
    pub(super) fn hint(&self, sandbox: SandboxId) {
        self.open().hints.insert(sandbox);
        self.news.notify_one();
    }

    fn add(&self, request: Request) {
        let mut open = self.open();
        match request {
            Request::Hurry(sandboxes) => open.hurried.extend(sandboxes),
            Request::Relax(sandboxes) => {
                for sandbox in sandboxes {
                    open.hurried.remove(&sandbox);
                }
            }
            Request::LookNow(Some(sandbox)) => {
                open.look.insert(sandbox);
            }
            Request::LookNow(None) => open.look_at_all = true,
            Request::FindCgroup(container) => {
                open.find.insert(container);
            }
            Request::SandboxStatus(sandbox) => {
                open.statuses.insert(sandbox);
            }
        }
        drop(open);
        self.news.notify_one();
    }
}

/// Folds requests for ever. That nobody can ask any more is no reason to stop polling.
pub(super) async fn listen(mut requests: mpsc::Receiver<Request>, wishes: &Wishes) {
    while let Some(request) = requests.recv().await {
        wishes.add(request);
    }
    std::future::pending().await
}
