//! When to ask the runtime what.
//!
//! Each kind of question has a lane of its own: full lists, lists of single sandboxes, statuses of
//! containers, their cgroups, statuses of sandboxes. A lane has one call under way: a slow runtime is
//! never asked faster than it answers, and no kind waits for another. A call that fails ends all
//! lanes, and they begin again with a full list.

mod index;
mod lists;
mod seen;
mod single;

use super::{
    CriOptions,
    client::Connection,
    convert::InvalidItem,
    discovery, events,
    failure::{CallFailure, CriError},
    pending::PendingRequests,
};
use crate::{
    linux::{blocking::BlockingPool, clock, procfs::host_proc},
    sources::Closed,
};
use backon::ExponentialBackoff;
use coroner_core::{
    ids::{ContainerId, SandboxId},
    input::{CriContainer, CriEvent, CriSandbox, Input, Received},
    time::BootTime,
};
use index::Index;
use parking_lot::Mutex;
use seen::SeenItems;
use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tonic::Code;
use tracing::{debug, info, warn};

/// A look at a process' cgroup that takes longer hangs.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// The first pause after a failure, and what a wish to look cannot shorten any more.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause (jitter at most doubles it).
const MAX_PAUSE: Duration = Duration::from_millis(2_500);

/// Why the lanes ended.
enum LanesEnd {
    Closed,
    Outage(CallFailure),
}

impl From<Closed> for LanesEnd {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl From<CallFailure> for LanesEnd {
    fn from(failure: CallFailure) -> Self {
        Self::Outage(failure)
    }
}

/// What a lane gives: it goes on until the channel closes or a call fails.
type Lane = Result<Infallible, LanesEnd>;

pub(super) struct Poller {
    options: CriOptions,
    to: mpsc::Sender<Received>,
    pending: Arc<PendingRequests>,
    /// For looks at /proc and cgroups.
    pool: BlockingPool,
    /// What the lanes share. Where both are locked, `pending` is locked first.
    /// Never locked across an await.
    state: Mutex<PollState>,
}

struct PollState {
    index: Index,
    /// What the last full lists held.
    seen: (SeenItems<CriSandbox>, SeenItems<CriContainer>),
    /// Sandboxes to be listed, one after the other.
    round: VecDeque<SandboxId>,
    next_full: Instant,
    next_busy: Instant,
    /// A full list that was asked for waits until then.
    look_not_before: Instant,
    /// Since when a full list is under way.
    listing: Option<Instant>,
    /// When to give back the memory that a long list took.
    trim_at: Option<Instant>,
    /// The container whose cgroup, and the sandbox whose status, is being asked for.
    asking: (Option<ContainerId>, Option<SandboxId>),
    outage_logged: bool,
    /// Sandboxes of the last full list that could not be read.
    unreadable: u32,
    backoff: ExponentialBackoff,
}

impl Poller {
    pub(super) fn new(
        options: CriOptions,
        to: mpsc::Sender<Received>,
        pending: Arc<PendingRequests>,
    ) -> Self {
        let now = Instant::now();
        let state = PollState {
            index: Index::default(),
            seen: Default::default(),
            round: VecDeque::new(),
            next_full: now,
            next_busy: now,
            look_not_before: now,
            listing: None,
            trim_at: None,
            asking: (None, None),
            outage_logged: false,
            unreadable: 0,
            backoff: backoff(),
        };
        let pool = BlockingPool::new(LOOK_LIMIT, 2);
        Self { options, to, pending, pool, state: Mutex::new(state) }
    }

    /// Polls until the channel closes.
    pub(super) async fn run(self) {
        let mut connection = None;
        loop {
            let failure = match self.poll(&mut connection).await {
                LanesEnd::Closed => return,
                LanesEnd::Outage(failure) => failure,
            };
            let error = match failure {
                CallFailure::Broken(error) => {
                    connection = None;
                    error
                }
                CallFailure::Refused(error) | CallFailure::Lacking(error) => error,
                CallFailure::NotFound => CriError {
                    text: "the runtime answered NotFound to a list".to_owned(),
                    code: Some(Code::NotFound),
                },
            };
            if self.tell_outage(error).await.is_err() {
                return;
            }
            self.pause().await;
        }
    }

    /// Connects if need be, then works until something fails.
    async fn poll(&self, slot: &mut Option<Connection>) -> LanesEnd {
        let connection = match slot {
            Some(connection) => &*connection,
            None => match self.connect().await {
                Ok(connection) => &*slot.insert(connection),
                Err(stop) => return stop,
            },
        };
        let Err(stop) = tokio::select! {
            stop = self.full_lists(connection) => stop,
            stop = self.filtered_lists(connection) => stop,
            stop = self.statuses(connection) => stop,
            stop = self.cgroups(connection) => stop,
            stop = self.sandbox_statuses(connection) => stop,
        };
        self.cut_off();
        stop
    }

    /// The calls that were under way were cut off.
    fn cut_off(&self) {
        let mut open = self.pending.open();
        let mut state = self.state.lock();
        state.listing = None;
        let (container, sandbox) = std::mem::take(&mut state.asking);
        if let Some(container) = container {
            // Still wanted, but after the others: it may break the next connection too.
            open.find.remove(&container);
            open.find.push(container);
        }
        if let Some(sandbox) = sandbox {
            // The runtime may not survive this very question.
            open.statuses.remove(&sandbox);
        }
    }

    async fn connect(&self) -> Result<Connection, LanesEnd> {
        let CriOptions { host_root, timeout, counters, .. } = &self.options;
        let proc = host_proc(host_root);
        let failed = |error| {
            counters.errors.fetch_add(1, Ordering::Relaxed);
            CallFailure::Broken(CriError::without_code(error))
        };
        let socket = discovery::socket(&self.options, &self.pool).await.map_err(failed)?;
        let opened = Connection::open(&socket, &proc, *timeout, Arc::clone(counters)).await;
        let mut connection = opened.map_err(failed)?;
        let runtime = connection.runtime().await?;
        self.options.dialed.set(socket.id.clone());
        if self.options.events && events::broadcast(&runtime) {
            connection.subscribe(Arc::clone(&self.pending));
        }
        let runtime = format!("{} {}", runtime.name, runtime.version);
        info!(runtime, socket = %socket.id.path.display(), peer = ?connection.peer, "connected to the container runtime");
        self.state.lock().outage_logged = false;
        self.send(CriEvent::Connected { runtime, process: connection.peer }).await?;
        Ok(connection)
    }

    /// Skips invalid items and counts them.
    fn sensible<T>(&self, what: &str, converted: Result<T, InvalidItem>) -> Option<T> {
        converted
            .inspect_err(|invalid| {
                self.options.counters.skipped.fetch_add(1, Ordering::Relaxed);
                debug!(%invalid, "skipped an invalid {what} in the runtime's response");
            })
            .ok()
    }

    async fn tell_outage(&self, error: CriError) -> Result<(), Closed> {
        let code = error.code();
        let error = error.text;
        if std::mem::replace(&mut self.state.lock().outage_logged, true) {
            debug!(error, "container runtime still unreachable");
            return Ok(());
        }
        warn!(error, "container runtime unreachable; retrying");
        self.send(CriEvent::Unreachable { error, code }).await
    }

    /// Waits before the next attempt; a wish to look ends the wait early.
    async fn pause(&self) {
        // The next attempt begins with everything: it also serves older requests to poll.
        let pause = {
            let mut open = self.pending.open();
            open.poll_now.clear();
            open.hints.clear();
            open.poll_all = false;
            let mut state = self.state.lock();
            state.round.clear();
            state.next_full = Instant::now();
            state.backoff.next().unwrap_or(MAX_PAUSE)
        };
        let early = pause.min(MIN_PAUSE);
        sleep(early).await;
        tokio::select! {
            () = sleep(pause - early) => {}
            () = self.pending.poll_requested() => {}
        }
    }

    /// Sends an answer, which ends any outage.
    async fn answer(&self, at: BootTime, event: CriEvent) -> Result<(), Closed> {
        self.state.lock().outage_logged = false;
        self.to.send(Received { at, input: Input::Cri(event) }).await.map_err(|_| Closed)
    }

    async fn send(&self, event: CriEvent) -> Result<(), Closed> {
        let received = Received { at: clock::boot_now(), input: Input::Cri(event) };
        self.to.send(received).await.map_err(|_| Closed)
    }
}

/// A lane that has nothing to ask waits for something to be wanted, or for a time.
async fn rest(news: &mut watch::Receiver<()>, until: Option<Instant>) {
    let due = async {
        match until {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // An error: nobody can want anything any more, while the poller holds the sender.
        _ = news.changed() => {}
        () = due => {}
    }
}

fn backoff() -> ExponentialBackoff {
    crate::sources::backoff::backoff(MIN_PAUSE, MAX_PAUSE)
}
