//! Clients of a pod, which keep their own record of what became of each connection: the agent's report about a pod's
//! connections is compared with it.
//!
//! All connections of one [`Clients`] are on one thread of its own in the clients' network namespace: what else the lab
//! does at that time does not make their times less exact.

use crate::{boot_now, containerd::Network, wait};
use anyhow::{Context as _, Result, anyhow};
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{oneshot, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

/// Between two connections that arrive.
const EVERY: Duration = Duration::from_millis(20);
/// How long a connection may take to come about: some SYNs are lost where a backlog is full.
const CONNECT: Duration = Duration::from_secs(10);

/// What a client does with its connection. Each goes on until the server ends it, except `Once`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Habit {
    /// Connects, and never asks. Settled when it has connected.
    Silent,
    /// Asks once and keeps the connection. Settled when it has been answered.
    Idle,
    /// The same, but settled when it has asked: where the answer is slow, the request is open then.
    Pending,
    /// Asks, and closes after the answer.
    Once,
}

/// How many clients there are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// Connections that are opened at once.
    pub standing: Vec<(Habit, usize)>,
    /// And one more every 20 ms, until [`Clients::stop_arriving_after`]: `Once`.
    pub arrives: bool,
}

impl Load {
    pub fn standing(&self) -> usize {
        self.standing.iter().map(|(_, number)| number).sum()
    }
}

/// When something happened: between two readings of CLOCK_BOOTTIME, before and after the client's call, ns. The kernel's
/// own time for what the call saw lies before `after`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    pub before: u64,
    pub after: u64,
}

/// One connection, from the client's side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    pub habit: Habit,
    /// When it was opened, or was not.
    pub opened: Between,
    /// `None`: it was opened; otherwise why not.
    pub error: Option<ErrorKind>,
    /// When it ended, and whether the client closed it.
    pub ended: Option<(u64, bool)>,
}

impl Connection {
    /// It is one of those that come later.
    pub fn arrived(&self) -> bool {
        self.habit == Habit::Once
    }

    /// It was to be closed by the client, and the server was faster.
    pub fn is_torn(&self) -> bool {
        self.arrived() && self.error.is_none() && self.ended.is_none_or(|(_, is_ours)| !is_ours)
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

/// Clients that are connected. Dropped, they close what is open, and their record is lost.
#[derive(Debug)]
pub struct Clients {
    standing: usize,
    wish: watch::Sender<Wish>,
    /// Standing connections that have settled, or have ended before.
    settled: watch::Receiver<usize>,
    record: oneshot::Receiver<io::Result<Vec<Connection>>>,
}

impl Clients {
    /// Starts them in a network namespace, on a server's address.
    pub fn start(from: &Network, to: SocketAddr, load: Load) -> Result<Self> {
        let (from, standing) = (from.clone(), load.standing());
        let (wish, wishes) = watch::channel(Wish::default());
        let (shown, settled) = watch::channel(0);
        let (tell, record) = oneshot::channel();
        let run = move || {
            from.enter()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(run(to, load, wishes, shown))
        };
        // A record that nobody wants is no error.
        let thread = thread::Builder::new().name("clients".into());
        thread.spawn(move || drop(tell.send(run()))).context("no thread for clients")?;
        Ok(Self { standing, wish, settled, record })
    }

    /// Waits until each standing connection has settled, as its [`Habit`] says.
    pub async fn settled(&self) -> Result<()> {
        let mut settled = self.settled.clone();
        let all = settled.wait_for(|settled| *settled == self.standing);
        let all = wait::event("the clients settle", all).await?;
        all.map(drop).map_err(|_| anyhow!("the clients could not connect"))
    }

    /// No connection is opened from `lag` after now on: so late the endpoint's removal reaches the clients. What is open
    /// stays open.
    pub fn stop_arriving_after(&self, lag: Duration) {
        let until = boot_now() + u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX);
        self.wish.send_modify(|wish| wish.arrive_until = Some(until));
    }

    /// Closes what is still open, and gives the record.
    pub async fn finish(self) -> Result<Vec<Connection>> {
        self.wish.send_replace(Wish { arrive_until: Some(0), close: true });
        let record = wait::event("the clients' record", self.record).await?;
        Ok(record.context("the clients' thread panicked")??)
    }
}

/// All of them, until the last has ended.
async fn run(
    to: SocketAddr,
    load: Load,
    mut wishes: watch::Receiver<Wish>,
    settled: watch::Sender<usize>,
) -> io::Result<Vec<Connection>> {
    let mut clients = JoinSet::new();
    for (habit, number) in load.standing {
        for _ in 0..number {
            clients.spawn(connection(to, habit, wishes.clone(), Some(settled.clone())));
        }
    }
    if load.arrives {
        let mut ticks = interval(EVERY);
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
            clients.spawn(connection(to, Habit::Once, wishes.clone(), None));
        }
    }
    Ok(clients.join_all().await)
}

/// One connection from the beginning to the end.
async fn connection(
    to: SocketAddr,
    habit: Habit,
    mut wishes: watch::Receiver<Wish>,
    settled: Option<watch::Sender<usize>>,
) -> Connection {
    let before = boot_now();
    let opened = timeout(CONNECT, TcpStream::connect(to)).await;
    let opened = opened.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    let error = opened.as_ref().err().map(io::Error::kind);
    let mut record =
        Connection { habit, opened: Between { before, after: boot_now() }, error, ended: None };
    let mut settle = {
        let mut settled = settled;
        move || settled.take().into_iter().for_each(|all| all.send_modify(|number| *number += 1))
    };
    if let Ok(mut stream) = opened {
        let closing = async { drop(wishes.wait_for(|wish| wish.close).await) };
        let is_ours = tokio::select! {
            // What the server did comes before what is wanted here: it was earlier.
            biased;
            is_ours = follow(&mut stream, habit, &mut settle) => is_ours,
            () = closing => true,
        };
        drop(stream);
        record.ended = Some((boot_now(), is_ours));
    }
    settle();
    record
}

/// Follows the habit until somebody ends the connection. True: the client.
async fn follow(stream: &mut TcpStream, habit: Habit, settle: &mut impl FnMut()) -> bool {
    let mut byte = [0];
    // Each request is a segment of its own; where that cannot be set, it only comes later.
    let _ = stream.set_nodelay(true);
    if habit != Habit::Silent {
        // A failure is seen by the read.
        let _ = stream.write_all(b"0\n").await;
        if habit == Habit::Pending {
            settle();
        }
        while byte != *b"\n" {
            if !matches!(stream.read(&mut byte).await, Ok(1)) {
                return false;
            }
        }
    }
    settle();
    if habit == Habit::Once {
        // What fails here, the server has ended before. By the server's end its kernel has seen that it was closed.
        let _ = stream.shutdown().await;
        let _ = timeout(CONNECT, stream.read(&mut byte)).await;
        return true;
    }
    // Until the server's end.
    while matches!(stream.read(&mut byte).await, Ok(1)) {}
    false
}
