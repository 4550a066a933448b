//! Requests of the engine that the poller has not served yet. Requests are merged into sets, so that a storm of
//! requests costs one poll, and the sender never waits for the runtime.

use coroner_core::{
    ids::{ContainerId, SandboxId},
    output::CriRequest,
};
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    hash::Hash,
};
use tokio::sync::{mpsc, watch};

/// Merged requests.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    open: Mutex<OpenRequests>,
    /// Wakes all lanes; each checks whether there is work for it.
    news: watch::Sender<()>,
}

/// The requests that are pending.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    /// Sandboxes to poll at the fast interval, until the engine stops it.
    pub(super) fast: BTreeSet<SandboxId>,
    /// Sandboxes to poll now.
    pub(super) poll_now: BTreeSet<SandboxId>,
    /// Sandboxes in which something happened, according to an event.
    pub(super) hints: BTreeSet<SandboxId>,
    /// Poll all sandboxes now.
    pub(super) poll_all: bool,
    /// Make one full list instead of many filtered lists that are due.
    pub(super) full_now: bool,
    /// Containers whose cgroup is requested.
    pub(super) find: DedupQueue<ContainerId>,
    /// Sandboxes whose verbose status is requested.
    pub(super) statuses: DedupQueue<SandboxId>,
}

/// A FIFO queue without duplicates, so that a few items that are requested repeatedly cannot starve the others.
#[derive(Debug)]
pub(super) struct DedupQueue<T> {
    order: VecDeque<T>,
    waiting: HashSet<T>,
}

impl<T> Default for DedupQueue<T> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: HashSet::new() }
    }
}

impl<T: Clone + Eq + Hash> DedupQueue<T> {
    /// Appends an item, unless it is queued already.
    pub(super) fn push(&mut self, one: T) {
        if self.waiting.insert(one.clone()) {
            self.order.push_back(one);
        }
    }

    /// The oldest item, which stays queued until [`remove`](Self::remove).
    pub(super) fn first(&self) -> Option<&T> {
        self.order.front()
    }

    /// Removes an item that was answered.
    pub(super) fn remove(&mut self, one: &T) {
        if self.waiting.remove(one) {
            // Usually the first item.
            match self.order.front() == Some(one) {
                true => drop(self.order.pop_front()),
                false => self.order.retain(|other| other != one),
            }
        }
    }
}

impl PendingRequests {
    /// The pending requests. Never hold the guard across an await.
    pub(super) fn open(&self) -> MutexGuard<'_, OpenRequests> {
        self.open.lock()
    }

    /// Notified on every request from now on.
    pub(super) fn news(&self) -> watch::Receiver<()> {
        watch::Sender::subscribe(&self.news)
    }

    /// Wakes all lanes.
    pub(super) fn notify(&self) {
        self.news.send_replace(());
    }

    /// Waits for a request to poll now.
    pub(super) async fn poll_requested(&self) {
        let mut news = self.news();
        loop {
            {
                let open = self.open();
                if open.poll_all || !open.poll_now.is_empty() {
                    return;
                }
            }
            // Cannot fail while `self` holds the sender.
            let _ = news.changed().await;
        }
    }

    /// Something happened in a sandbox, which may be unknown yet.
    pub(super) fn hint(&self, sandbox: SandboxId) {
        self.open().hints.insert(sandbox);
        self.notify();
    }

    fn add(&self, request: CriRequest) {
        let mut open = self.open();
        match request {
            CriRequest::StartFastPoll(sandboxes) => open.fast.extend(sandboxes),
            CriRequest::StopFastPoll(sandboxes) => {
                for sandbox in sandboxes {
                    open.fast.remove(&sandbox);
                }
            }
            CriRequest::PollNow(Some(sandbox)) => {
                open.poll_now.insert(sandbox);
            }
            CriRequest::PollNow(None) => open.poll_all = true,
            CriRequest::FindCgroup(container) => open.find.push(container),
            CriRequest::SandboxStatus(sandbox) => open.statuses.push(sandbox),
        }
        drop(open);
        self.notify();
    }
}

/// Merges requests forever. Polling continues after the sender is closed.
pub(super) async fn listen(mut requests: mpsc::Receiver<CriRequest>, pending: &PendingRequests) {
    while let Some(request) = requests.recv().await {
        pending.add(request);
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_serves_in_the_order_of_coming_and_each_at_one_place() {
        let mut queue = DedupQueue::default();
        for one in ["c", "a", "b", "a", "c"] {
            queue.push(one);
        }
        let mut served = Vec::new();
        while let Some(one) = queue.first().copied() {
            served.push(one);
            queue.remove(&one);
            if served.len() < 3 {
                queue.push("a"); // the one that is asked about again and again
            }
        }
        assert_eq!(served, ["c", "a", "b", "a"]);
    }

    #[test]
    fn an_item_removed_out_of_order_can_be_queued_again() {
        let mut queue = DedupQueue::default();
        for one in [1, 2, 3] {
            queue.push(one);
        }
        queue.remove(&2);
        queue.remove(&2);
        queue.push(2);
        queue.remove(&1);
        assert_eq!(queue.order, [3, 2]);
    }
}
