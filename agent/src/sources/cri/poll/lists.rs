//! The two lanes of lists: all, at intervals, and single sandboxes, while something in them is dying.

use super::{Lane, LanesEnd, Poller, backoff, rest};
use crate::{
    linux::{allocator, clock},
    sources::cri::{
        client::{self, Connection},
        convert,
    },
};
use coroner_core::{ids::SandboxId, input::CriEvent};
use std::time::Duration;
use tokio::time::Instant;

/// From so many sandboxes on, full lists are made a third as often.
const MANY_SANDBOXES: usize = 1_000;
/// Of more containers than this it is not remembered what the last list said.
const MANY_CONTAINERS: usize = 4 * MANY_SANDBOXES;
/// So long after a full list of many the core has taken it in, and what both took is given back.
const TRIM_DELAY: Duration = Duration::from_secs(1);
/// With more fast sandboxes than this, one full list costs less than a filtered one for each.
const MANY_HURRIED: usize = 16;
/// Unless it takes longer than this: then they are not kept waiting for it.
const SLOW_LIST: Duration = Duration::from_secs(1);
/// Full lists that were asked for take at most one part in so many of the time: a storm of
/// requests must not turn into a storm of answers of several megabytes.
const LOOK_SHARE: u32 = 5;

impl Poller {
    /// The lane of full lists.
    pub(super) async fn full_lists(&self, connection: &Connection) -> Lane {
        let mut news = self.pending.news();
        loop {
            if self.state.lock().trim_at.take_if(|due| Instant::now() >= *due).is_some() {
                allocator::trim_heap();
            }
            if self.begin_full() {
                self.full(connection).await?;
            } else {
                let due = self.full_due();
                rest(&mut news, Some(due)).await;
            }
        }
    }

    /// The lane of lists of single sandboxes: those that the app wants to see, those in which
    /// something happened, those in which something is dying.
    pub(super) async fn filtered_lists(&self, connection: &Connection) -> Lane {
        let mut news = self.pending.news();
        loop {
            match self.next_filtered() {
                Some(sandbox) => self.filtered(connection, sandbox).await?,
                None => {
                    let fast = !self.pending.open().fast.is_empty();
                    let due = fast.then_some(self.state.lock().next_busy);
                    rest(&mut news, due).await;
                }
            }
        }
    }

    /// Whether a full list is due, which then begins.
    fn begin_full(&self) -> bool {
        let now = Instant::now();
        let mut open = self.pending.open();
        let mut state = self.state.lock();
        let wanted = open.poll_all && now >= state.look_not_before;
        if now < state.next_full && !wanted && !open.full_now {
            return false;
        }
        (open.poll_all, open.full_now) = (false, false);
        state.listing = Some(now);
        true
    }

    fn full_due(&self) -> Instant {
        let open = self.pending.open();
        let state = self.state.lock();
        let look = open.poll_all.then_some(state.look_not_before);
        [look, state.trim_at].into_iter().flatten().fold(state.next_full, Instant::min)
    }

    /// The most urgent sandbox to list.
    fn next_filtered(&self) -> Option<SandboxId> {
        let now = Instant::now();
        let mut all = false;
        let mut open = self.pending.open();
        let mut state = self.state.lock();
        for sandbox in std::mem::take(&mut open.poll_now) {
            if !state.index.has_sandbox(&sandbox) {
                (open.poll_all, all) = (true, true);
            } else if !state.round.contains(&sandbox) {
                state.round.push_front(sandbox);
            }
        }
        // Also of sandboxes that no list has shown yet: they cost no full one.
        for sandbox in std::mem::take(&mut open.hints) {
            if !state.round.contains(&sandbox) {
                state.round.push_back(sandbox);
            }
        }
        if !open.fast.is_empty() && now >= state.next_busy {
            state.next_busy = now + self.options.busy;
            let many = open.fast.len() > MANY_HURRIED && state.index.len() <= MANY_SANDBOXES;
            match state.listing {
                None if many => (open.full_now, all) = (true, true),
                Some(since) if many && now < since + SLOW_LIST => {}
                _ => {
                    for sandbox in &open.fast {
                        if !state.round.contains(sandbox) {
                            state.round.push_back(sandbox.clone());
                        }
                    }
                }
            }
        }
        let next = state.round.pop_front();
        drop((open, state));
        if all {
            self.pending.notify();
        }
        next
    }

    /// ListPodSandbox and ListContainers, of all.
    async fn full(&self, connection: &Connection) -> Result<(), LanesEnd> {
        let (began, cuts) = (Instant::now(), &self.options.counters.truncated);
        let asked = clock::boot_now();
        let (mut sandboxes, mut seen) = (Vec::new(), std::mem::take(&mut self.state.lock().seen.0));
        let mut unreadable = 0;
        self.state.lock().index.begin_full();
        seen.begin();
        let each = |item| {
            let read = seen.item(item, |item| {
                let one = convert::sandbox(client::sandbox(item, cuts)?)?;
                Ok(self.state.lock().index.sharing_sandbox(one))
            });
            match self.sensible("sandbox", read) {
                Some(one) => sandboxes.push(one),
                None => unreadable += 1,
            }
        };
        connection.sandboxes(None, each).await?;
        seen.end(MANY_SANDBOXES);
        let at = clock::boot_now();
        if std::mem::replace(&mut self.state.lock().unreadable, unreadable) != unreadable {
            self.answer(at, CriEvent::UnreadableSandboxes { count: unreadable }).await?;
        }
        {
            let mut state = self.state.lock();
            state.seen.0 = seen;
            state.index.take_sandboxes(asked, None, &mut sandboxes);
        }
        self.answer(at, CriEvent::Sandboxes { asked, only: None, sandboxes }).await?;

        let asked = clock::boot_now();
        let (mut containers, mut seen) =
            (Vec::new(), std::mem::take(&mut self.state.lock().seen.1));
        seen.begin();
        let each = |item| {
            let read = seen.item(item, |item| {
                let one = convert::container(client::container(item, cuts)?)?;
                Ok(self.state.lock().index.sharing_container(one))
            });
            containers.extend(self.sensible("container", read));
        };
        connection.containers(None, each).await?;
        seen.end(MANY_CONTAINERS);
        let at = clock::boot_now();
        {
            let mut state = self.state.lock();
            state.seen.1 = seen;
            state.index.take_containers(asked, None, &mut containers);
        }
        self.pending.notify(); // statuses may be wanted
        self.answer(at, CriEvent::Containers { asked, only: None, containers }).await?;

        let mut open = self.pending.open();
        let mut state = self.state.lock();
        // Removed from the runtime: the request to stop polling them may never come.
        open.fast.retain(|sandbox| state.index.has_sandbox(sandbox));
        let now = Instant::now();
        let many = state.index.len() > MANY_SANDBOXES;
        state.next_full = now + self.options.idle * if many { 3 } else { 1 };
        state.look_not_before = now + (now - began) * (LOOK_SHARE - 1);
        state.trim_at = many.then(|| now + TRIM_DELAY);
        state.listing = None;
        state.backoff = backoff();
        Ok(())
    }

    /// ListPodSandbox and ListContainers, of one sandbox.
    async fn filtered(&self, connection: &Connection, only: SandboxId) -> Result<(), LanesEnd> {
        let (asked, cuts) = (clock::boot_now(), &self.options.counters.truncated);
        let mut sandboxes = Vec::new();
        let each = |item| {
            let read = client::sandbox(item, cuts).and_then(convert::sandbox);
            let read = read.map(|one| self.state.lock().index.sharing_sandbox(one));
            sandboxes.extend(self.sensible("sandbox", read));
        };
        connection.sandboxes(Some(&only), each).await?;
        let at = clock::boot_now();
        // A filter may be taken as a prefix.
        sandboxes.retain(|sandbox| sandbox.id == only);
        self.state.lock().index.take_sandboxes(asked, Some(&only), &mut sandboxes);
        let some = Some(only.clone());
        self.answer(at, CriEvent::Sandboxes { asked, only: some, sandboxes }).await?;

        let asked = clock::boot_now();
        let mut containers = Vec::new();
        let each = |item| {
            let read = client::container(item, cuts).and_then(convert::container);
            let read = read.map(|one| self.state.lock().index.sharing_container(one));
            containers.extend(self.sensible("container", read));
        };
        connection.containers(Some(&only), each).await?;
        let at = clock::boot_now();
        containers.retain(|container| container.sandbox == only);
        self.state.lock().index.take_containers(asked, Some(&only), &mut containers);
        self.pending.notify();
        let some = Some(only);
        self.answer(at, CriEvent::Containers { asked, only: some, containers }).await?;
        self.state.lock().backoff = backoff();
        Ok(())
    }
}
