//! Clients of a pod, which keep their own record of what became of each connection and each request: what the
//! agent reports about a pod's traffic is compared with it.
//!
//! ```text
//! let node = lab.node_network().await;            // or node.other_node(1)?: an address not the node's own
//! let load = Load::standing([(Habit::Idle, 3), (Habit::Pending, 2)]).arriving(every, Habit::Once);
//! let clients = Clients::start(&node, (pod_ip, 8080).into(), load)?;
//! clients.settled().await?;                       // each standing connection is where its habit leads to
//! has_read(&pod_network, 8080).await?;            // and the server has seen all that was sent
//! lab.delete(…)?;
//! clients.stop_arriving_after(lag);               // the endpoint's removal reaches the clients that late
//! clients.ended().await?;                         // the server has ended all
//! let truth = ClientsTruth::of(&clients.finish().await?, stop);
//! ```
//!
//! All connections of one [`Clients`] live on one thread of its own in the clients' network namespace: what else
//! the lab does at that time does not make their times less exact.

mod client;
mod record;
#[cfg(test)]
mod tests;

pub use record::{Between, Bounds, ClientConnection, ClientsTruth, Ending, Exchange, Opening};

use crate::{network::Network, wait};
use anyhow::{Context as _, anyhow};
use client::Client;
use coroner_workload::page::boot_now;
use std::{io, net::SocketAddr, thread, time::Duration};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
    time::MissedTickBehavior,
};

/// How many connections that arrive are alive at once, at most: then the next one is late.
const ALIVE: usize = 4096;

/// What a client does with its connection. Each goes on until the server ends it, except those that close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Habit {
    /// Connects, and never asks. Settled when it has connected.
    Silent,
    /// Asks once and keeps the connection. Settled when it has been answered.
    Idle,
    /// The same, but settled when it has asked: where the answer is slow, the request is open then.
    Pending,
    /// Asks, and so long after each answer again. Settled with the first answer.
    Steady {
        /// From an answer to the next request.
        every: Duration,
    },
    /// Asks, sends no more (shutdown of its side), and reads on. Settled when it has asked.
    HalfClosed,
    /// Asks, and does not read the answer until the end. Settled when some of the answer has come.
    Deaf,
    /// Asks, and closes after the answer. Settled then.
    Once,
    /// Asks, and resets the connection after the answer. Settled then.
    Abort,
}

/// Waits until a pod has accepted all connections at this port, and read all that came.
pub async fn has_read(pod: &Network, port: u16) -> anyhow::Result<()> {
    wait::until("the server has read all", || Ok((pod.unread(port)? == 0).then_some(()))).await
}

/// How many clients there are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Load {
    standing: Vec<(Habit, usize)>,
    arrivals: Option<(Duration, Habit)>,
}

impl Load {
    /// Connections that are opened at once.
    pub fn standing(habits: impl IntoIterator<Item = (Habit, usize)>) -> Self {
        Self { standing: habits.into_iter().collect(), arrivals: None }
    }

    /// And one more after each of these times, until [`Clients::stop_arriving_after`].
    pub fn arriving(self, every: Duration, habit: Habit) -> Self {
        Self { arrivals: Some((every, habit)), ..self }
    }

    fn size(&self) -> usize {
        self.standing.iter().map(|(_, number)| number).sum()
    }
}

/// What the clients are asked for from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Wish {
    /// No connection is opened from this moment on, ns of CLOCK_BOOTTIME.
    arrive_until: Option<u64>,
    /// What is still open is closed.
    close: bool,
}

/// What is known from outside while they live.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Progress {
    /// Standing connections that have settled, or have ended before.
    settled: usize,
    /// None is opened any more, and all have ended.
    ended: bool,
}

/// Clients that live. Dropped, they close what is open, and their record is lost.
#[derive(Debug)]
pub struct Clients {
    standing: usize,
    wish: watch::Sender<Wish>,
    progress: watch::Receiver<Progress>,
    record: oneshot::Receiver<io::Result<Vec<ClientConnection>>>,
}

impl Clients {
    /// Starts them in a network namespace, on a server's address.
    pub fn start(from: &Network, to: SocketAddr, load: Load) -> anyhow::Result<Self> {
        let from = from.clone();
        Self::run(to, load, move || from.enter())
    }

    fn run(
        to: SocketAddr,
        load: Load,
        enter: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let standing = load.size();
        let (wish, wishes) = watch::channel(Wish::default());
        let (shown, progress) = watch::channel(Progress::default());
        let (tell, record) = oneshot::channel();
        let live = move || {
            enter()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(live(to, load, wishes, shown))
        };
        let thread = thread::Builder::new().name("clients".into());
        // Nobody who wants the record is no error.
        thread.spawn(move || drop(tell.send(live()))).context("no thread for clients")?;
        Ok(Self { standing, wish, progress, record })
    }

    /// Waits until each standing connection has settled, as its [`Habit`] says.
    pub async fn settled(&self) -> anyhow::Result<()> {
        let standing = self.standing;
        self.until("the clients settle", |progress| progress.settled == standing).await
    }

    /// No connection is opened from `lag` after now on: so late the endpoint's removal reaches the clients. What
    /// is open stays open.
    pub fn stop_arriving_after(&self, lag: Duration) {
        let lag = u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX);
        let until = boot_now().saturating_add(lag);
        self.wish.send_modify(|wish| wish.arrive_until = Some(until));
    }

    /// Waits until none is opened any more and all have ended, by the server or by their own habit.
    pub async fn ended(&self) -> anyhow::Result<()> {
        self.until("all connections have ended", |progress| progress.ended).await
    }

    async fn until(&self, what: &str, holds: impl Fn(&Progress) -> bool) -> anyhow::Result<()> {
        let mut progress = self.progress.clone();
        // The value that was waited for is locked: another look beside a client that waits to write would never end.
        let waited = wait::event(what, progress.wait_for(holds)).await.map(|one| one.map(drop));
        let seen = *self.progress.borrow();
        waited
            .with_context(|| format!("{seen:?} of {} standing", self.standing))?
            .map_err(|_| anyhow!("the clients could not live: {seen:?}"))?;
        Ok(())
    }

    /// Closes what is still open, and gives the record of all connections in the order of their opening.
    pub async fn finish(self) -> anyhow::Result<Vec<ClientConnection>> {
        self.wish.send_modify(|wish| {
            wish.close = true;
            wish.arrive_until = Some(0);
        });
        let record = wait::event("the clients' record", self.record).await?;
        let mut record = record.context("the clients' thread panicked")??;
        record.sort_by_key(|connection| connection.opened.before);
        Ok(record)
    }
}

/// All of them, until the last has ended.
async fn live(
    to: SocketAddr,
    load: Load,
    mut wishes: watch::Receiver<Wish>,
    progress: watch::Sender<Progress>,
) -> io::Result<Vec<ClientConnection>> {
    let mut clients = JoinSet::new();
    let mut record = Vec::new();
    for (habit, number) in load.standing {
        for _ in 0..number {
            let client = Client::new(to, habit, wishes.clone(), Some(progress.clone()));
            clients.spawn(client.live());
        }
    }
    if let Some((every, habit)) = load.arrivals {
        let mut ticks = tokio::time::interval(every.max(Duration::from_nanos(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                changed = wishes.changed() => if changed.is_err() { break },
            }
            let wish = *wishes.borrow();
            if wish.close || wish.arrive_until.is_some_and(|until| boot_now() >= until) {
                break;
            }
            clients.spawn(Client::new(to, habit, wishes.clone(), None).live());
            while clients.len() > ALIVE
                && let Some(ended) = clients.join_next().await
            {
                record.push(ended?);
            }
            while let Some(ended) = clients.try_join_next() {
                record.push(ended?);
            }
        }
    }
    while let Some(ended) = clients.join_next().await {
        record.push(ended?);
    }
    progress.send_modify(|progress| progress.ended = true);
    // Whoever waits for an end sees it before the record is taken.
    while !wishes.borrow().close && wishes.changed().await.is_ok() {}
    Ok(record)
}
