//! What the app has asked for and the poller has not yet done. Requests fold into sets here, so
//! a storm of them costs one look, and whoever sends one never waits for the runtime.

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

/// Requests, folded.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    open: Mutex<Open>,
    /// Wakes all lanes: each finds out by itself whether it is meant.
    news: watch::Sender<()>,
}

/// What is asked for at this moment.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// To be polled often, until relaxed.
    pub(super) fast: BTreeSet<SandboxId>,
    /// To be looked at once.
    pub(super) poll_now: BTreeSet<SandboxId>,
    /// Hints that something happened in these.
    pub(super) hints: BTreeSet<SandboxId>,
    /// Everything is to be looked at once.
    pub(super) poll_all: bool,
    /// One full list is to be made instead of many filtered ones that are due.
    pub(super) full_now: bool,
    /// Containers whose cgroup is wanted.
    pub(super) find: DedupQueue<ContainerId>,
    /// Sandboxes whose verbose status is wanted.
    pub(super) statuses: DedupQueue<SandboxId>,
}

/// Those who wait for an answer, first come, first served, each at one place: the few that are
/// asked about again and again cannot keep the others waiting for ever.
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
    /// Joins the end, or keeps the place that it has.
    pub(super) fn push(&mut self, one: T) {
        if self.waiting.insert(one.clone()) {
            self.order.push_back(one);
        }
    }

    /// Whose turn it is. It stays in the queue until it [removed](Self::remove).
    pub(super) fn first(&self) -> Option<&T> {
        self.order.front()
    }

    /// It was answered.
    pub(super) fn remove(&mut self, one: &T) {
        if self.waiting.remove(one) {
            // The first, unless somebody answers out of turn.
            match self.order.front() == Some(one) {
                true => drop(self.order.pop_front()),
                false => self.order.retain(|other| other != one),
            }
        }
    }
}

impl PendingRequests {
    /// What is asked for. Never held across an await.
    pub(super) fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }

    /// Changes whenever something is asked for from now on.
    pub(super) fn news(&self) -> watch::Receiver<()> {
        watch::Sender::subscribe(&self.news)
    }

    /// Makes all lanes find out whether there is something to do.
    pub(super) fn notify(&self) {
        self.news.send_replace(());
    }

    /// Returns as soon as somebody wants to have a look.
    pub(super) async fn poll_requested(&self) {
        let mut news = self.news();
        loop {
            {
                let open = self.open();
                if open.poll_all || !open.poll_now.is_empty() {
                    return;
                }
            }
            // An error: nobody can ask any more, while this holds the sender.
            let _ = news.changed().await;
        }
    }

    /// Something happened in a sandbox, whether it is known yet or not.
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

/// Folds requests for ever. That nobody can ask any more is no reason to stop polling.
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
    fn who_leaves_out_of_turn_can_come_again() {
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
