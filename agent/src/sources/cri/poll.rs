//! When to ask the runtime what: one task, which has one call of each kind under way. A slow runtime is never asked
//! faster than it answers, and no kind waits for another, except that a full list begins when no filtered one is under way:
//! so filtered lists are always newer. A failing list, or a broken connection, ends all calls, and they begin
//! again with a full list.

mod index;

use super::{
    CriOptions,
    client::{CallFailure, Connection, CriError},
    convert::{self, ContainerInfo, Invalid, Items},
    discovery,
};
use crate::{
    linux::{blocking::BlockingPool, cgroupfs, clock, procfs::host_proc, socket_file::SocketId},
    sources::backoff::backoff,
};
use backon::ExponentialBackoff;
use coroner_core::{
    ids::{CgroupId, ContainerId, SandboxId},
    input::{CriContainer, CriEvent, CriSandbox, Input, Received},
    output::CriRequest,
    time::BootTime,
};
use coroner_cri_api::read::{
    ContainerStatusResponse, ImageStatusResponse, PodSandboxStatusResponse,
};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use index::Index;
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

/// Looking for a process's cgroup takes longer only if it hangs.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The first pause after a failure, which a request to poll cannot shorten.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause (jitter at most doubles it).
const MAX_PAUSE: Duration = Duration::from_millis(2_500);
/// Full lists take at most one part in so many of a core: with thousands of leaked sandboxes they come more seldom,
const CORE_SHARE: u32 = 100;
/// but at least so often, whatever else the thread did meanwhile.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Full lists on request take at most one part in so many of the time: a storm of requests must not turn into a storm
/// of answers of several megabytes.
const REQUEST_SHARE: u32 = 5;
/// With more fast sandboxes than this, one full list costs less than a filtered one for each.
const MANY_FAST: usize = 16;
/// Images whose stop signal is kept. A node has fewer; when it is full, all are asked for again.
const MAX_IMAGES: usize = 1_024;
/// Objects of a kind that are left out are logged once in this time.
const WARN_INTERVAL: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Connect,
    Full,
    Filtered,
    Status,
    Cgroup,
    SandboxStatus,
    Image,
}

/// ListPodSandbox and ListContainers, one after the other.
struct List {
    kind: Kind,
    /// `None`: a full list.
    only: Option<SandboxId>,
    began: Instant,
    asked: BootTime,
    /// [`cpu_time`] when it began.
    cpu: Duration,
}

/// A container's image, as it is named, and as it is asked for.
#[derive(Clone, Debug)]
struct ImageOf {
    container: ContainerId,
    name: String,
    reference: String,
}

/// What an answer changes.
type Apply = Box<dyn FnOnce(&mut Poller, BootTime) + Send>;

type Call = BoxFuture<'static, (Kind, BootTime, Result<Apply, CallFailure>)>;

pub(super) struct Poller {
    options: Arc<CriOptions>,
    /// For reads of /proc and cgroups.
    pool: BlockingPool,
    connection: Option<Arc<Connection>>,
    calls: FuturesUnordered<Call>,
    under_way: BTreeSet<Kind>,
    /// What was answered; nothing is asked before the engine has taken it.
    outbox: VecDeque<(BootTime, CriEvent)>,
    index: Index,
    fast: BTreeSet<SandboxId>,
    /// Sandboxes to list now, and whether all are to be listed.
    poll_now: BTreeSet<SandboxId>,
    poll_all: bool,
    /// Sandboxes to be listed, one after the other.
    round: VecDeque<SandboxId>,
    /// Containers whose cgroup is requested, sandboxes whose status is; each once and in the order of the requests, so that
    /// one that is requested repeatedly cannot starve the others.
    find: VecDeque<ContainerId>,
    statuses: VecDeque<SandboxId>,
    /// Containers that wait for the stop signal of their image.
    images: VecDeque<ImageOf>,
    /// By image.
    image_signals: HashMap<String, Option<u8>>,
    /// The container whose cgroup is asked for.
    finding: Option<ContainerId>,
    next_full: Instant,
    next_busy: Instant,
    /// A requested full list waits until then.
    request_not_before: Instant,
    /// The CPU time of the last full list.
    cost: Duration,
    /// Nothing is asked before; if something is requested, the first is enough.
    retry: [Instant; 2],
    outage_logged: bool,
    /// Sandboxes and containers of the last full list that could not be read.
    unreadable: [u32; 2],
    /// When objects of each kind were last logged as left out.
    warned: HashMap<&'static str, Instant>,
    backoff: ExponentialBackoff,
}

impl Poller {
    pub(super) fn new(options: CriOptions) -> Self {
        let now = Instant::now();
        Self {
            options: Arc::new(options),
            pool: BlockingPool::new(READ_TIMEOUT, 2),
            connection: None,
            calls: FuturesUnordered::new(),
            under_way: BTreeSet::new(),
            outbox: VecDeque::new(),
            index: Index::default(),
            fast: BTreeSet::new(),
            poll_now: BTreeSet::new(),
            poll_all: false,
            round: VecDeque::new(),
            find: VecDeque::new(),
            statuses: VecDeque::new(),
            images: VecDeque::new(),
            image_signals: HashMap::new(),
            finding: None,
            next_full: now,
            next_busy: now,
            request_not_before: now,
            cost: Duration::ZERO,
            retry: [now; 2],
            outage_logged: false,
            unreadable: [0; 2],
            warned: HashMap::new(),
            backoff: backoff(MIN_PAUSE, MAX_PAUSE),
        }
    }

    pub(super) async fn run(
        mut self,
        to: mpsc::Sender<Received>,
        mut requests: mpsc::Receiver<CriRequest>,
    ) {
        loop {
            let due = if self.outbox.is_empty() { self.start() } else { None };
            tokio::select! {
                () = to.closed() => return,
                Ok(room) = to.reserve(), if !self.outbox.is_empty() => {
                    if let Some((at, event)) = self.outbox.pop_front() {
                        room.send(Received { at, input: Input::Cri(event) });
                    }
                }
                Some((kind, at, answer)) = self.calls.next() => {
                    self.under_way.remove(&kind);
                    match answer {
                        Ok(apply) => apply(&mut self, at),
                        Err(failure) => self.outage(at, failure),
                    }
                }
                Some(request) = requests.recv() => self.request(request),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }

    fn request(&mut self, request: CriRequest) {
        match request {
            CriRequest::StartFastPoll(sandboxes) => self.fast.extend(sandboxes),
            CriRequest::StopFastPoll(sandboxes) => {
                self.fast.retain(|fast| !sandboxes.contains(fast));
            }
            CriRequest::PollNow(Some(sandbox)) => {
                self.poll_now.insert(sandbox);
            }
            CriRequest::PollNow(None) => self.poll_all = true,
            CriRequest::FindCgroup(container) if self.finding.as_ref() != Some(&container) => {
                enqueue(&mut self.find, container);
            }
            CriRequest::FindCgroup(_) => {}
            CriRequest::SandboxStatus(sandbox) => enqueue(&mut self.statuses, sandbox),
        }
    }

    /// Starts all calls that are due, and returns when the next one is.
    fn start(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let requested = self.poll_all || !self.poll_now.is_empty();
        let retry = self.retry[usize::from(!requested)];
        if now < retry {
            return Some(retry);
        }
        let Some(connection) = self.connection.clone() else {
            let (options, pool) = (Arc::clone(&self.options), self.pool.clone());
            self.call(Kind::Connect, async move {
                let (connection, runtime, socket) = connect(&options, &pool).await?;
                Ok(move |me: &mut Self, at| me.connected(at, connection, runtime, socket))
            });
            return None;
        };
        self.plan_lists(now);
        let request = self.poll_all.then_some(self.request_not_before);
        let full = request.map_or(self.next_full, |request| request.min(self.next_full));
        let is_listing = self.under_way.contains(&Kind::Full);
        if self.under_way.contains(&Kind::Filtered) {
            // A full list waits for it.
        } else if full <= now && !is_listing {
            self.poll_all = false;
            self.index.begin_full();
            self.list(&connection, None);
        } else if let Some(sandbox) = self.round.pop_front() {
            self.list(&connection, Some(sandbox));
        }
        if !self.under_way.contains(&Kind::Status)
            && let Some(container) = self.index.next_container()
        {
            let connection = Arc::clone(&connection);
            self.call(Kind::Status, async move {
                let status = unless_broken(connection.status(&container, false).await)?;
                Ok(move |me: &mut Self, at| me.take_status(at, container, status))
            });
        }
        if !self.under_way.contains(&Kind::Cgroup)
            && let Some(container) = self.find.pop_front()
        {
            self.finding = Some(container.clone());
            let (options, pool) = (Arc::clone(&self.options), self.pool.clone());
            let connection = Arc::clone(&connection);
            self.call(Kind::Cgroup, async move {
                let (runtime, found) =
                    find_cgroup(&connection, &options, &pool, &container).await?;
                Ok(move |me: &mut Self, at| me.take_cgroup(at, container, runtime, found))
            });
        }
        if !self.under_way.contains(&Kind::SandboxStatus)
            && let Some(sandbox) = self.statuses.pop_front()
        {
            let (asked, connection) = (clock::boot_now(), Arc::clone(&connection));
            self.call(Kind::SandboxStatus, async move {
                let status = unless_broken(connection.sandbox_status(&sandbox).await)?;
                Ok(move |me: &mut Self, at| me.take_sandbox_status(at, asked, sandbox, status))
            });
        }
        self.start_image(&connection);
        let fast = (!self.fast.is_empty()).then_some(self.next_busy);
        [Some(full).filter(|_| !is_listing), fast]
            .into_iter()
            .flatten()
            .filter(|due| *due > now)
            .min()
    }

    /// Reports the images that are known, and asks for the stop signal of the next one.
    fn start_image(&mut self, connection: &Arc<Connection>) {
        while let Some(of) = self.images.front() {
            let Some(stop_signal) = self.image_signals.get(&of.reference).copied() else { break };
            let Some(ImageOf { container, name: image, .. }) = self.images.pop_front() else {
                break;
            };
            self.emit(clock::boot_now(), CriEvent::Image { container, image, stop_signal });
        }
        if let Some(of) = self.images.front().filter(|_| !self.under_way.contains(&Kind::Image)) {
            let (connection, image) = (Arc::clone(connection), of.reference.clone());
            self.call(Kind::Image, async move {
                let status = unless_broken(connection.image_status(&image).await)?;
                Ok(move |me: &mut Self, _| me.take_image(image, status))
            });
        }
    }

    /// Of an image that cannot be read, the stop signal stays unknown: the runtime may well know it.
    fn take_image(&mut self, image: String, status: Result<ImageStatusResponse, CallFailure>) {
        let read = status.map_err(|failure| CriError::from(failure).text).and_then(|answer| {
            let has_info = answer.info.contains_key("info");
            has_info.then(|| convert::image_stop_signal(&answer)).ok_or_else(|| "no info".into())
        });
        let signal = match read {
            Ok(signal) => signal,
            Err(error) => {
                debug!(image, error, "cannot read an image's stop signal");
                return self.images.retain(|of| of.reference != image);
            }
        };
        if self.image_signals.len() >= MAX_IMAGES {
            self.image_signals.clear();
        }
        self.image_signals.insert(image, signal);
    }

    fn plan_lists(&mut self, now: Instant) {
        for sandbox in std::mem::take(&mut self.poll_now) {
            if !self.index.has_sandbox(&sandbox) {
                self.poll_all = true;
            } else if !self.round.contains(&sandbox) {
                self.round.push_front(sandbox);
            }
        }
        if !self.fast.is_empty() && now >= self.next_busy {
            self.next_busy = now + self.options.busy;
            let is_cheap = self.cost * CORE_SHARE <= self.options.idle;
            if self.fast.len() > MANY_FAST && is_cheap && !self.under_way.contains(&Kind::Full) {
                self.next_full = now;
            } else {
                self.fast.iter().for_each(|fast| enqueue(&mut self.round, fast.clone()));
            }
        }
    }

    /// Makes a call, unless one of its kind is under way.
    fn call<A: FnOnce(&mut Self, BootTime) + Send + 'static>(
        &mut self,
        kind: Kind,
        answer: impl Future<Output = Result<A, CallFailure>> + Send + 'static,
    ) {
        if self.under_way.insert(kind) {
            let call = async move {
                let answer = answer.await.map(|apply| -> Apply { Box::new(apply) });
                (kind, clock::boot_now(), answer)
            };
            self.calls.push(call.boxed());
        }
    }

    fn connected(&mut self, at: BootTime, connection: Connection, runtime: String, to: SocketId) {
        info!(runtime, socket = %to.path.display(), peer = ?connection.peer, "connected to the container runtime");
        self.options.dialed.set(to);
        let process = connection.peer;
        self.connection = Some(Arc::new(connection));
        self.emit(at, CriEvent::Connected { runtime, process });
    }

    fn list(&mut self, connection: &Arc<Connection>, only: Option<SandboxId>) {
        let kind = if only.is_none() { Kind::Full } else { Kind::Filtered };
        let (began, asked, cpu) = (Instant::now(), clock::boot_now(), cpu_time());
        let connection = Arc::clone(connection);
        self.call(kind, async move {
            let list = connection.sandboxes(only.as_ref()).await?;
            let of = List { kind, only, began, asked, cpu };
            Ok(move |me: &mut Self, at| me.take_sandboxes(at, connection, of, list))
        });
    }

    fn take_sandboxes(
        &mut self,
        at: BootTime,
        connection: Arc<Connection>,
        of: List,
        list: Items<CriSandbox>,
    ) {
        self.left_out("sandbox", list.invalid, list.why.unwrap_or_default());
        if of.only.is_none() {
            self.unreadable(at, [list.invalid, self.unreadable[1]]);
        }
        let (only, asked, mut sandboxes) = (of.only.clone(), of.asked, list.valid);
        // What a list of one sandbox leaves out would seem to be gone.
        if only.is_none() || list.invalid == 0 {
            self.index.take_sandboxes(only.as_ref(), &mut sandboxes);
            self.emit(at, CriEvent::Sandboxes { asked, only, sandboxes });
        }
        self.call(of.kind, async move {
            let list = connection.containers(of.only.as_ref()).await?;
            Ok(move |me: &mut Self, at| me.take_containers(at, of, list))
        });
    }

    fn take_containers(&mut self, at: BootTime, of: List, list: Items<CriContainer>) {
        self.left_out("container", list.invalid, list.why.unwrap_or_default());
        let (only, asked, mut containers) = (of.only, of.asked, list.valid);
        self.outage_logged = false;
        self.backoff = backoff(MIN_PAUSE, MAX_PAUSE);
        if only.is_some() && list.invalid > 0 {
            return;
        }
        self.index.take_containers(only.as_ref(), &mut containers);
        if only.is_none() {
            self.unreadable(at, [self.unreadable[0], list.invalid]);
            // Removed from the runtime: the request to stop polling them may never come.
            self.fast.retain(|sandbox| self.index.has_sandbox(sandbox));
            let now = Instant::now();
            self.cost = cpu_time().saturating_sub(of.cpu);
            self.next_full = now + self.options.idle.max(MAX_INTERVAL.min(self.cost * CORE_SHARE));
            self.request_not_before = now + (now - of.began) * (REQUEST_SHARE - 1);
        }
        self.emit(at, CriEvent::Containers { asked, only, containers });
    }

    /// Of the last full list, sandboxes and containers: what it left out is not gone.
    fn unreadable(&mut self, at: BootTime, counts: [u32; 2]) {
        if std::mem::replace(&mut self.unreadable, counts) != counts {
            self.emit(at, CriEvent::UnreadableSandboxes { count: counts.iter().sum() });
        }
    }

    /// A container's exit and its stop signal. A status that could not be read is asked for again after the next list.
    fn take_status(
        &mut self,
        at: BootTime,
        container: ContainerId,
        status: Result<ContainerStatusResponse, CallFailure>,
    ) {
        let status = match status {
            Ok(answer) => answer.status.unwrap_or_default(),
            Err(CallFailure::NotFound) => return self.index.forget_container(&container),
            Err(failure) => {
                let error = CriError::from(failure).text;
                return debug!(%container, error, "cannot read a container's status");
            }
        };
        let exit = convert::exit(container.clone(), &status);
        let Some(is_news) = self.index.reported(&container, exit.is_some()) else { return };
        let stated = convert::stop_signal(status.stop_signal).filter(|_| is_news);
        if is_news && exit.is_none() && self.options.images {
            let (name, reference) = convert::image(&status, &self.options.counters.truncated);
            let container = container.clone();
            if stated.is_some() || reference.is_empty() {
                self.emit(at, CriEvent::Image { container, image: name, stop_signal: None });
            } else {
                self.images.push_back(ImageOf { container, name, reference });
            }
        }
        if let Some(signal) = stated {
            self.emit(at, CriEvent::StopSignal { container, signal });
        }
        if let Some(exit) = exit {
            self.emit(at, CriEvent::ContainerExited(exit));
        }
    }

    fn take_cgroup(
        &mut self,
        at: BootTime,
        container: ContainerId,
        runtime: Option<String>,
        found: Result<(CgroupId, String), String>,
    ) {
        self.finding = None;
        if let Some(runtime) = runtime {
            self.emit(at, CriEvent::RuntimeType { container: container.clone(), runtime });
        }
        match found {
            Ok((cgroup, path)) => {
                self.emit(at, CriEvent::ContainerCgroup { container, cgroup, path });
            }
            Err(error) => debug!(%container, error, "cannot find a container's cgroup"),
        }
    }

    fn take_sandbox_status(
        &mut self,
        at: BootTime,
        asked: BootTime,
        sandbox: SandboxId,
        status: Result<PodSandboxStatusResponse, CallFailure>,
    ) {
        let answer = match status {
            Ok(answer) => answer,
            Err(failure) => {
                let error = CriError::from(failure).text;
                return debug!(%sandbox, error, "cannot read a sandbox's status");
            }
        };
        let Some((status, readable)) = convert::sandbox_status(sandbox, asked, answer) else {
            return;
        };
        if let Err(why) = readable {
            self.left_out("sandbox status", 1, why);
        }
        self.emit(at, CriEvent::SandboxStatus(status));
    }

    fn outage(&mut self, at: BootTime, failure: CallFailure) {
        if matches!(failure, CallFailure::Broken(_)) {
            self.connection = None;
        }
        self.calls.clear();
        self.under_way.clear();
        // Still wanted, but after the others: it may break the next connection, too. The sandbox's status is not asked for
        // again, because the runtime may not survive this very question.
        self.find.extend(self.finding.take());
        // The next attempt begins with a full list, which serves older requests, too.
        self.poll_now.clear();
        self.poll_all = false;
        self.round.clear();
        let (now, pause) = (Instant::now(), self.backoff.next().unwrap_or(MAX_PAUSE));
        self.next_full = now;
        self.retry = [now + pause.min(MIN_PAUSE), now + pause];
        let error = CriError::from(failure);
        let code = error.code();
        let error = error.text;
        if std::mem::replace(&mut self.outage_logged, true) {
            return debug!(error, "container runtime still unreachable");
        }
        warn!(error, "container runtime unreachable; retrying");
        self.emit(at, CriEvent::Unreachable { error, code });
    }

    /// Objects in an answer make no sense. What is left out is not gone: `UnreadableSandboxes`.
    fn left_out(&mut self, kind: &'static str, count: u32, why: Invalid) {
        self.options.counters.skipped.fetch_add(count.into(), Ordering::Relaxed);
        let now = Instant::now();
        let is_due = self.warned.get(kind).is_none_or(|last| now >= *last + WARN_INTERVAL);
        if count > 0 && is_due {
            self.warned.insert(kind, now);
            warn!(
                kind,
                count, why, "left out objects of the runtime's response that cannot be read"
            );
        }
    }

    fn emit(&mut self, at: BootTime, event: CriEvent) {
        self.outbox.push_back((at, event));
    }
}

fn enqueue<T: PartialEq>(queue: &mut VecDeque<T>, one: T) {
    if !queue.contains(&one) {
        queue.push_back(one);
    }
}

/// Only a broken connection ends everything.
fn unless_broken<T>(answer: Result<T, CallFailure>) -> Result<Result<T, CallFailure>, CallFailure> {
    match answer {
        Err(CallFailure::Broken(error)) => Err(CallFailure::Broken(error)),
        answer => Ok(answer),
    }
}

async fn connect(
    options: &CriOptions,
    pool: &BlockingPool,
) -> Result<(Connection, String, SocketId), CallFailure> {
    let CriOptions { host_root, timeout, counters, .. } = options;
    let socket = discovery::socket(options, pool).await.map_err(|text| {
        counters.errors.fetch_add(1, Ordering::Relaxed);
        CallFailure::Broken(CriError { text, code: None })
    })?;
    let proc = host_proc(host_root);
    let connection = Connection::open(&socket, &proc, *timeout, Arc::clone(counters)).await?;
    let runtime = connection.runtime().await?;
    Ok((connection, runtime, socket.id.clone()))
}

/// A container's runtime and its cgroup, by the process that its verbose status names.
async fn find_cgroup(
    connection: &Connection,
    options: &CriOptions,
    pool: &BlockingPool,
    container: &ContainerId,
) -> Result<(Option<String>, Result<(CgroupId, String), String>), CallFailure> {
    let Some(root) = options.cgroup_root.clone() else {
        return Ok((None, Err("cgroup v2 is not mounted".to_owned())));
    };
    let status = match unless_broken(connection.status(container, true).await)? {
        Ok(status) => status,
        Err(failure) => return Ok((None, Err(CriError::from(failure).text))),
    };
    let info = status.info.get("info").map(String::as_str).unwrap_or_default();
    let info = ContainerInfo::parse(info);
    let found = match info.pid() {
        None => Err("the runtime reported no process".to_owned()),
        Some(pid) => {
            let find = move || cgroup_of(&root, pid);
            pool.call(find).await.unwrap_or_else(|error| Err(error.to_string()))
        }
    };
    Ok((info.runtime(), found))
}

fn cgroup_of(root: &Path, pid: u32) -> Result<(CgroupId, String), String> {
    let found = cgroupfs::of_process(root, pid).map_err(|error| error.to_string())?;
    let found = found.and_then(|path| Some((cgroupfs::inode(&path)?, path)));
    let (id, path) = found.ok_or_else(|| format!("process {pid} is in no cgroup of cgroup v2"))?;
    Ok((CgroupId(id), cgroupfs::path_below(root, &path)))
}

/// The CPU time of this thread, which receives the answers, too.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
