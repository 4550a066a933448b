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
pub(super) struct Wishes {
    open: Mutex<Open>,
    /// Wakes all lanes: each finds out by itself whether it is meant.
    news: watch::Sender<()>,
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
    /// One full list is to be made instead of many filtered ones that are due.
    pub(super) full_now: bool,
    /// Containers whose cgroup is wanted.
    pub(super) find: Line<ContainerId>,
    /// Sandboxes whose verbose status is wanted.
    pub(super) statuses: Line<SandboxId>,
}

/// Those who wait for an answer, first come, first served, each at one place: the few that are
/// asked about again and again cannot keep the others waiting for ever.
#[derive(Debug)]
pub(super) struct Line<T> {
    order: VecDeque<T>,
    waiting: HashSet<T>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: HashSet::new() }
    }
}

impl<T: Clone + Eq + Hash> Line<T> {
    /// Joins the end, or keeps the place that it has.
    pub(super) fn join(&mut self, one: T) {
        if self.waiting.insert(one.clone()) {
            self.order.push_back(one);
        }
    }

    /// Whose turn it is. It stays in the line until it [leaves](Self::leave).
    pub(super) fn first(&self) -> Option<&T> {
        self.order.front()
    }

    /// It was answered.
    pub(super) fn leave(&mut self, one: &T) {
        if self.waiting.remove(one) {
            // The first, unless somebody answers out of turn.
            match self.order.front() == Some(one) {
                true => drop(self.order.pop_front()),
                false => self.order.retain(|other| other != one),
            }
        }
    }
}

impl Wishes {
    /// What is asked for. Never held across an await.
    pub(super) fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }

    /// Changes whenever something is asked for from now on.
    pub(super) fn news(&self) -> watch::Receiver<()> {
        watch::Sender::subscribe(&self.news)
    }

    /// Makes all lanes find out whether there is something to do.
    pub(super) fn stir(&self) {
        self.news.send_replace(());
    }

    /// Returns as soon as somebody wants to have a look.
    pub(super) async fn look_wanted(&self) {
        let mut news = self.news();
        loop {
            {
                let open = self.open();
                if open.look_at_all || !open.look.is_empty() {
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
        self.stir();
    }

    fn add(&self, request: CriRequest) {
        let mut open = self.open();
        match request {
            CriRequest::StartFastPoll(sandboxes) => open.hurried.extend(sandboxes),
            CriRequest::StopFastPoll(sandboxes) => {
                for sandbox in sandboxes {
                    open.hurried.remove(&sandbox);
                }
            }
            CriRequest::PollNow(Some(sandbox)) => {
                open.look.insert(sandbox);
            }
            CriRequest::PollNow(None) => open.look_at_all = true,
            CriRequest::FindCgroup(container) => open.find.join(container),
            CriRequest::SandboxStatus(sandbox) => open.statuses.join(sandbox),
        }
        drop(open);
        self.stir();
    }
}

/// Folds requests for ever. That nobody can ask any more is no reason to stop polling.
pub(super) async fn listen(mut requests: mpsc::Receiver<CriRequest>, wishes: &Wishes) {
    while let Some(request) = requests.recv().await {
        wishes.add(request);
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_serves_in_the_order_of_coming_and_each_at_one_place() {
        let mut line = Line::default();
        for one in ["c", "a", "b", "a", "c"] {
            line.join(one);
        }
        let mut served = Vec::new();
        while let Some(one) = line.first().copied() {
            served.push(one);
            line.leave(&one);
            if served.len() < 3 {
                line.join("a"); // the one that is asked about again and again
            }
        }
        assert_eq!(served, ["c", "a", "b", "a"]);
    }

    #[test]
    fn who_leaves_out_of_turn_can_come_again() {
        let mut line = Line::default();
        for one in [1, 2, 3] {
            line.join(one);
        }
        line.leave(&2);
        line.leave(&2);
        line.join(2);
        line.leave(&1);
        assert_eq!(line.order, [3, 2]);
    }
}
