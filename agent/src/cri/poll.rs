//! When to ask the runtime what, and what of the answers is news.

mod seen;
mod share;
mod single;

use super::{
    Options,
    client::{self, Connection},
    convert::{self, Nonsense},
    events,
    failure::{Failure, Trouble},
    wishes::Wishes,
};
use crate::{clock, memory};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use coroner_core::{
    ids::{ContainerId, PodUid, SandboxId},
    input::{CriContainer, CriEvent, CriSandbox, CriState, Input, Received},
    time::BootTime,
};
use seen::Seen;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tonic::Code;
use tracing::{debug, info, warn};

/// From so many sandboxes on, full lists are made a third as often.
const MANY_SANDBOXES: usize = 1_000;
/// Of more containers than this it is not remembered what the last list said.
const MANY_CONTAINERS: usize = 4 * MANY_SANDBOXES;
/// So long after a full list of many the core has taken it in, and what both took is given back.
const DIGESTION: Duration = Duration::from_secs(1);
/// With more hurried sandboxes than this, one full list costs less than a filtered one for each.
const MANY_HURRIED: usize = 16;
/// Full lists that were asked for take at most one part in so many of the time: a storm of
/// requests must not turn into a storm of answers of several megabytes.
const LOOK_SHARE: u32 = 5;

/// The first pause after a failure, and what a wish to look cannot shorten any more.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause (jitter at most doubles it).
const MAX_PAUSE: Duration = Duration::from_millis(2_500);

/// The channel to the core is closed: nobody listens any more.
struct Closed;

/// Why a round ended.
enum Stop {
    Closed,
    Outage(Failure),
}

impl From<Closed> for Stop {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Outage(failure)
    }
}

/// What to do next.
enum Job {
    /// Both lists: all, or of one sandbox.
    Lists(Option<SandboxId>),
    /// A container's status, for its end and its stop signal.
    Status(ContainerId),
    /// A container's cgroup.
    Cgroup(ContainerId),
    /// A suspect's verbose status.
    SandboxStatus(SandboxId),
}

/// What is remembered of a container, as long as it is listed.
struct Known {
    sandbox: SandboxId,
    exited: bool,
    /// Its stop signal was asked for.
    signal_asked: bool,
    /// Its end was reported.
    exit_told: bool,
    /// It waits in the queue.
    queued: bool,
}

pub(super) struct Poller {
    socket: PathBuf,
    options: Options,
    to: mpsc::Sender<Received>,
    wishes: Arc<Wishes>,
    /// Those listed last, and their pods.
    sandboxes: HashMap<SandboxId, PodUid>,
    containers: HashMap<ContainerId, Known>,
    /// What the lists held.
    seen: (Seen<CriSandbox>, Seen<CriContainer>),
    /// Containers whose status is wanted; those that exited first.
    queue: VecDeque<ContainerId>,
    /// Sandboxes to be listed, one after the other, in this busy round.
    round: VecDeque<SandboxId>,
    /// The last job was a list.
    listed: bool,
    /// The last status was a sandbox'.
    suspected: bool,
    next_full: Instant,
    next_busy: Instant,
    /// A full list that was asked for waits until then.
    look_not_before: Instant,
    /// When to give back the memory that a long list took.
    give_back: Option<Instant>,
    outage_told: bool,
    backoff: ExponentialBackoff,
}

impl Poller {
    pub(super) fn new(
        socket: PathBuf,
        options: Options,
        to: mpsc::Sender<Received>,
        wishes: Arc<Wishes>,
    ) -> Self {
        let now = Instant::now();
        Self {
            socket,
            options,
            to,
            wishes,
            sandboxes: HashMap::new(),
            containers: HashMap::new(),
            seen: Default::default(),
            queue: VecDeque::new(),
            round: VecDeque::new(),
            listed: false,
            suspected: false,
            next_full: now,
            next_busy: now,
            look_not_before: now,
            give_back: None,
            outage_told: false,
            backoff: backoff(),
        }
    }

    /// Polls until the channel closes.
    pub(super) async fn run(mut self) {
        let mut connection = None;
        loop {
            let failure = match self.poll(&mut connection).await {
                Stop::Closed => return,
                Stop::Outage(failure) => failure,
            };
            let trouble = match failure {
                Failure::Broken(trouble) => {
                    connection = None;
                    trouble
                }
                Failure::Refused(trouble) | Failure::Lacking(trouble) => trouble,
                Failure::NotFound => Trouble {
                    text: "the runtime says that a list does not exist".to_owned(),
                    code: Some(Code::NotFound),
                },
            };
            if self.tell_outage(trouble).await.is_err() {
                return;
            }
            self.pause().await;
        }
    }

    /// Connects if need be, then works until something fails.
    async fn poll(&mut self, slot: &mut Option<Connection>) -> Stop {
        let connection = match slot {
            Some(connection) => connection,
            None => match self.connect().await {
                Ok(connection) => slot.insert(connection),
                Err(stop) => return stop,
            },
        };
        loop {
            if self.give_back.take_if(|due| Instant::now() >= *due).is_some() {
                memory::give_back();
            }
            let done = match self.next_job() {
                Some(Job::Lists(only)) => self.lists(connection, only).await,
                Some(Job::Status(container)) => self.status(connection, container).await,
                Some(Job::Cgroup(container)) => self.cgroup(connection, container).await,
                Some(Job::SandboxStatus(sandbox)) => self.sandbox_status(connection, sandbox).await,
                None => {
                    tokio::select! {
                        () = self.wishes.news() => {}
                        () = sleep_until(self.next_due()) => {}
                    }
                    Ok(())
                }
            };
            if let Err(stop) = done {
                return stop;
            }
        }
    }

    async fn connect(&mut self) -> Result<Connection, Stop> {
        let Options { host_root, timeout, counters, .. } = &self.options;
        let opened =
            Connection::open(&self.socket, host_root, *timeout, Arc::clone(counters)).await;
        let mut connection = opened.map_err(|error| {
            counters.errors.fetch_add(1, Ordering::Relaxed);
            Failure::Broken(Trouble::without_code(error))
        })?;
        let runtime = connection.runtime().await?;
        if self.options.events && events::broadcast(&runtime) {
            connection.subscribe(Arc::clone(&self.wishes));
        }
        let api = runtime.speaks.name();
        let runtime = format!("{} {}", runtime.name, runtime.version);
        info!(runtime, api, peer = ?connection.peer, "connected to the container runtime");
        self.outage_told = false;
        self.send(CriEvent::Connected { runtime, process: connection.peer }).await?;
        Ok(connection)
    }

    /// What to do next: lists that are due and single questions in turn, so that neither many
    /// questions delay the lists nor lists that take longer than their interval starve them.
    fn next_job(&mut self) -> Option<Job> {
        let job = if self.listed {
            self.next_single().or_else(|| self.next_lists())
        } else {
            self.next_lists().or_else(|| self.next_single())
        };
        self.listed = matches!(job, Some(Job::Lists(_)));
        job
    }

    /// The most urgent lists that are due: everything, what the app wants to see, what is dying.
    fn next_lists(&mut self) -> Option<Job> {
        let now = Instant::now();
        let wishes = Arc::clone(&self.wishes);
        let mut open = wishes.open();
        for sandbox in std::mem::take(&mut open.look) {
            if !self.sandboxes.contains_key(&sandbox) {
                open.look_at_all = true;
            } else if !self.round.contains(&sandbox) {
                self.round.push_front(sandbox);
            }
        }
        if now >= self.next_full || (open.look_at_all && now >= self.look_not_before) {
            open.look_at_all = false;
            open.hints.clear();
            return Some(Job::Lists(None));
        }
        // Also of sandboxes that no list has shown yet: they cost no full one.
        let hints = std::mem::take(&mut open.hints);
        self.round.extend(
            hints.into_iter().filter(|sandbox| !self.round.contains(sandbox)).collect::<Vec<_>>(),
        );
        if !open.hurried.is_empty() && now >= self.next_busy {
            self.next_busy = now + self.options.busy;
            if open.hurried.len() > MANY_HURRIED && self.sandboxes.len() <= MANY_SANDBOXES {
                return Some(Job::Lists(None));
            }
            let due = open.hurried.iter().filter(|sandbox| !self.round.contains(sandbox));
            let due: Vec<_> = due.cloned().collect();
            self.round.extend(due);
        }
        self.round.pop_front().map(|sandbox| Job::Lists(Some(sandbox)))
    }

    /// The next single question: cgroups first, for whose answer signals wait; then containers and
    /// suspects in turn, of either of which there may be thousands.
    fn next_single(&mut self) -> Option<Job> {
        if let Some(container) = self.wishes.open().find.first() {
            return Some(Job::Cgroup(container.clone()));
        }
        let job = if self.suspected {
            self.next_container().or_else(|| self.next_suspect())
        } else {
            self.next_suspect().or_else(|| self.next_container())
        };
        self.suspected = matches!(job, Some(Job::SandboxStatus(_)));
        job
    }

    fn next_container(&mut self) -> Option<Job> {
        while let Some(container) = self.queue.pop_front() {
            if let Some(known) = self.containers.get_mut(&container) {
                known.queued = false;
                return Some(Job::Status(container));
            }
        }
        None
    }

    fn next_suspect(&self) -> Option<Job> {
        self.wishes.open().statuses.first().cloned().map(Job::SandboxStatus)
    }

    /// When the clock next has something to do.
    fn next_due(&self) -> Instant {
        let open = self.wishes.open();
        let busy = (!open.hurried.is_empty()).then_some(self.next_busy);
        let look = open.look_at_all.then_some(self.look_not_before);
        [busy, look, self.give_back].into_iter().flatten().fold(self.next_full, Instant::min)
    }

    /// ListPodSandbox and ListContainers.
    async fn lists(
        &mut self,
        connection: &mut Connection,
        only: Option<SandboxId>,
    ) -> Result<(), Stop> {
        let began = Instant::now();
        let asked = clock::boot_now();
        let full = only.is_none();
        let (mut sandboxes, mut seen) = (Vec::new(), std::mem::take(&mut self.seen.0));
        seen.begin(full);
        let each = |item| {
            let read = seen.item(item, |item| {
                convert::sandbox(client::sandbox(item)?).map(|one| self.sharing_sandbox(one))
            });
            sandboxes.extend(self.sensible("sandbox", read));
        };
        connection.sandboxes(only.as_ref(), each).await?;
        seen.end(MANY_SANDBOXES);
        self.seen.0 = seen;
        let at = clock::boot_now();
        match &only {
            // A filter may be taken as a prefix.
            Some(only) => {
                sandboxes.retain(|sandbox: &CriSandbox| sandbox.id == *only);
                match sandboxes.first() {
                    None => _ = self.sandboxes.remove(only),
                    Some(one) => _ = self.sandboxes.insert(one.id.clone(), one.pod.clone()),
                }
            }
            None => {
                self.sandboxes =
                    sandboxes.iter().map(|one| (one.id.clone(), one.pod.clone())).collect();
            }
        }
        self.answer(at, CriEvent::Sandboxes { asked, only: only.clone(), sandboxes }).await?;

        let asked = clock::boot_now();
        let (mut containers, mut seen) = (Vec::new(), std::mem::take(&mut self.seen.1));
        seen.begin(full);
        let each = |item| {
            let read = seen.item(item, |item| {
                convert::container(client::container(item)?).map(|one| self.sharing_container(one))
            });
            containers.extend(self.sensible("container", read));
        };
        connection.containers(only.as_ref(), each).await?;
        seen.end(MANY_CONTAINERS);
        self.seen.1 = seen;
        let at = clock::boot_now();
        containers.retain(|container: &CriContainer| {
            only.as_ref().is_none_or(|only| container.sandbox == *only)
        });
        self.remember(only.as_ref(), &containers);
        self.answer(at, CriEvent::Containers { asked, only, containers }).await?;

        if full {
            // Gone for good: whoever hurried them may never get to relax them.
            self.wishes.open().hurried.retain(|sandbox| self.sandboxes.contains_key(sandbox));
            let now = Instant::now();
            let many = self.sandboxes.len() > MANY_SANDBOXES;
            self.next_full = now + self.options.idle * if many { 3 } else { 1 };
            self.look_not_before = now + (now - began) * (LOOK_SHARE - 1);
            self.give_back = many.then(|| now + DIGESTION);
        }
        self.backoff = backoff();
        Ok(())
    }

    /// Takes note of the containers listed, forgets those that are not listed any more, and
    /// queues those whose status is wanted. A status that could not be had is asked for again
    /// here, by the next list that shows the container.
    fn remember(&mut self, only: Option<&SandboxId>, containers: &[CriContainer]) {
        let listed: HashSet<_> = containers.iter().map(|container| &container.id).collect();
        self.containers.retain(|id, known| {
            listed.contains(id) || only.is_some_and(|only| known.sandbox != *only)
        });
        for container in containers {
            let known =
                self.containers.entry(container.id.clone()).or_insert_with(|| Known::of(container));
            let exited = container.state == CriState::Exited;
            let first = exited && !known.exited;
            known.exited |= exited;
            if known.wants_status() && (!known.queued || first) {
                known.queued = true;
                if exited {
                    self.queue.push_front(container.id.clone());
                } else {
                    self.queue.push_back(container.id.clone());
                }
            }
        }
    }

    /// Leaves nonsense out, counted.
    fn sensible<T>(&self, what: &str, converted: Result<T, Nonsense>) -> Option<T> {
        converted
            .inspect_err(|nonsense| {
                self.options.counters.skipped.fetch_add(1, Ordering::Relaxed);
                debug!(%nonsense, "left out a {what} of the runtime's answer");
            })
            .ok()
    }

    async fn tell_outage(&mut self, trouble: Trouble) -> Result<(), Closed> {
        let code = trouble.code();
        let error = trouble.text;
        if self.outage_told {
            debug!(error, "the container runtime is still unreachable");
            return Ok(());
        }
        warn!(error, "the container runtime is unreachable; trying on");
        self.outage_told = true;
        self.send(CriEvent::Unreachable { error, code }).await
    }

    /// Waits before the next attempt; a wish to look ends the wait early.
    async fn pause(&mut self) {
        let pause = self.backoff.next().unwrap_or(MAX_PAUSE);
        let early = pause.min(MIN_PAUSE);
        // The next attempt begins with everything: older wishes to look are met by it.
        {
            let mut open = self.wishes.open();
            open.look.clear();
            open.hints.clear();
            open.look_at_all = false;
        }
        self.round.clear();
        sleep(early).await;
        tokio::select! {
            () = sleep(pause - early) => {}
            () = self.wishes.look_wanted() => {}
        }
        self.next_full = Instant::now();
    }

    /// Sends an answer, which ends any outage.
    async fn answer(&mut self, at: BootTime, event: CriEvent) -> Result<(), Closed> {
        self.outage_told = false;
        self.to.send(Received { at, input: Input::Cri(event) }).await.map_err(|_| Closed)
    }

    async fn send(&self, event: CriEvent) -> Result<(), Closed> {
        let received = Received { at: clock::boot_now(), input: Input::Cri(event) };
        self.to.send(received).await.map_err(|_| Closed)
    }
}

impl Known {
    fn of(container: &CriContainer) -> Self {
        Self {
            sandbox: container.sandbox.clone(),
            exited: false,
            signal_asked: false,
            exit_told: false,
            queued: false,
        }
    }

    fn wants_status(&self) -> bool {
        if self.exited { !self.exit_told } else { !self.signal_asked }
    }
}

fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(MIN_PAUSE)
        .with_max_delay(MAX_PAUSE)
        .with_jitter()
        .without_max_times()
        .build()
}
