//! The watch: what the apiserver says, through every disconnect.

use super::{
    Core, KubeCounters, KubeOptions,
    client::WATCH_SECONDS,
    decode::{self, Item, Lenient, Text},
    errors,
    pod::{self, MAX_PODS, Pod},
    request::{self, OpenBody, RequestFailure},
};
use crate::linux::clock;
use crate::sources::{
    Closed,
    backoff::backoff,
    cut::{Cut, Cuts},
};
use backon::ExponentialBackoff;
use coroner_core::input::{ApiEvent, ApiPod};
use kube::{
    Client,
    api::{ListParams, VersionMatch, WatchParams},
    core::{Request, Status},
};
use serde::Deserialize;
use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc},
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

pub(super) const PODS: &str = "/api/v1/pods";
/// Pods in one page of a list that is not answered from the apiserver's cache.
pub(super) const PAGE: u32 = 500;
/// The first pause after a failure (jitter at most doubles it).
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause, before jitter.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// A failure so long after the last one begins with short pauses again. Not sooner: a watch that
/// breaks as soon as it stands must not be taken up five times a second.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(30);
/// A watch that was taken up again counts as in sync after so long without an error: that its
/// place in history is gone, the apiserver says in the watch itself.
const RESUME_GRACE: Duration = Duration::from_millis(500);
/// A watch that is silent for so long after it should have ended is on a connection that died.
const OVERDUE: Duration = Duration::from_secs(5);
/// A watch that ends sooner than this is not taken up again at once.
const BRIEF: Duration = Duration::from_secs(1);
/// After so many refusals to take up the watch where it broke, everything is listed anew. (An
/// apiserver restored from a backup refuses a place in its future for ever.)
const REFUSALS: u32 = 3;

pub(super) struct Watch {
    client: Client,
    options: KubeOptions,
    /// Notified whenever an outage is over.
    recovered: Arc<Notify>,
    core: Core,
    /// The resource version to resume from; `None`: a list is needed.
    place: Option<String>,
    /// No list was made yet.
    fresh: bool,
    /// The core is out of sync, and has been told so.
    is_outage: bool,
    /// The UIDs of the pods that the core has.
    known: HashSet<String>,
    refusals: u32,
    backoff: ExponentialBackoff,
    last_failure: Option<Instant>,
}

pub(super) enum WatchLine {
    /// A bookmark, or a pod that was added or modified and makes no sense.
    Nothing,
    Applied(Box<ApiPod>),
    Deleted(Box<ApiPod>),
}

pub(super) type ReadLine = Result<(WatchLine, String), RequestFailure>;

#[derive(Deserialize)]
pub(super) struct Line {
    r#type: Lenient<Text<16, false>>,
    object: Lenient<Pod>,
}

impl Watch {
    pub(super) fn new(
        client: Client,
        options: KubeOptions,
        recovered: Arc<Notify>,
        core: Core,
    ) -> Self {
        Self {
            client,
            options,
            recovered,
            core,
            place: None,
            fresh: true,
            is_outage: false,
            known: HashSet::new(),
            refusals: 0,
            backoff: backoff(MIN_PAUSE, MAX_PAUSE),
            last_failure: None,
        }
    }

    pub(super) async fn run(mut self) {
        sleep(any_up_to(self.options.spread)).await;
        loop {
            let done = match self.place.clone() {
                None => self.list().await,
                Some(place) => self.watch(place).await,
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Lists this node's pods, for the core to begin with.
    async fn list(&mut self) -> Result<(), Closed> {
        let (pods, version) = match self.pods().await {
            Ok(listed) => listed,
            Err(failure) => return self.failure(&failure, "cannot list pods").await,
        };
        info!(pods = pods.len(), "listed this node's pods");
        self.known = pods.iter().map(|pod| pod.uid.clone()).collect();
        (self.fresh, self.place) = (false, Some(version));
        self.core.send(ApiEvent::Snapshot { pods }).await?;
        self.is_current();
        Ok(())
    }

    /// All pods of this node, and the version that the watch begins at.
    async fn pods(&self) -> Result<(Vec<ApiPod>, String), RequestFailure> {
        let mut params = ListParams::default().fields(&on_node(&self.options.node));
        if self.fresh {
            // Any apiserver's cache will do, however old: there is nothing that could go backwards,
            // and the watch tells what it lacks. Whole, for a list in pages is not answered from it.
            // Later ones are in pages: before 1.31 they go to etcd, past all pods of the cluster,
            // which is not to be one request.
            params.resource_version = Some("0".into());
            params.version_match = Some(VersionMatch::NotOlderThan);
        } else {
            params.limit = Some(PAGE);
        }
        let mut pods = Vec::new();
        loop {
            let request = Request::new(PODS).list(&params)?;
            let counters = Arc::clone(&self.options.counters);
            let page = request::decoded(&self.client, request, move |body| {
                let cuts = &counters.truncated;
                let metadata = decode::list(body, cuts, |pod| match sensible(pod, &counters) {
                    Some(pod) => add(&mut pods, pod, cuts),
                    None => Ok(()),
                })?;
                Ok((metadata, pods))
            });
            let metadata;
            (metadata, pods) = page.await?;
            match metadata.following() {
                Some(token) => params.continue_token = Some(token),
                None => return Ok((pods, metadata.version())),
            }
        }
    }

    /// One request for a watch, until it ends or breaks.
    async fn watch(&mut self, place: String) -> Result<(), Closed> {
        // Of different lengths, so that agents which began together do not go on renewing their
        // watches together.
        let seconds = WATCH_SECONDS - fastrand::u32(..WATCH_SECONDS / 4);
        let params = WatchParams::default().fields(&on_node(&self.options.node)).timeout(seconds);
        let begun = Instant::now();
        let (mut lines, _open, clock) = match self.open(&params, &place).await {
            Ok(open) => open,
            Err(failure) => return self.watch_failed(&failure).await,
        };
        if let Some(clock) = clock {
            self.core.send(clock).await?;
        }
        // Deadline of the grace time of a resumed watch.
        let mut resume_grace = self.is_outage.then(|| Instant::now() + RESUME_GRACE);
        let silence = Duration::from_secs(seconds.into()) + OVERDUE;
        loop {
            let line = tokio::select! {
                line = timeout(silence, lines.recv()) => line,
                () = sleep_until(resume_grace.unwrap_or(begun)), if resume_grace.is_some() => {
                    resume_grace = None;
                    self.resumed().await?;
                    continue;
                }
            };
            // An end that the protocol foresees, and a connection that died: neither is an outage.
            let Ok(Some(line)) = line else {
                if begun.elapsed() < BRIEF {
                    self.pause().await;
                }
                return Ok(());
            };
            let (line, version) = match line {
                Ok(line) => line,
                Err(failure) => return self.watch_failed(&failure).await,
            };
            if let WatchLine::Applied(pod) = &line
                && !pod.is_finished()
                && !self.has_room(pod)
            {
                // A list may leave out pods that have ended.
                return self.watch_failed(&RequestFailure::TooMany(MAX_PODS)).await;
            }
            self.place = Some(version);
            resume_grace = None;
            self.line(line).await?;
        }
    }

    async fn open(
        &self,
        params: &WatchParams,
        place: &str,
    ) -> Result<(mpsc::Receiver<ReadLine>, OpenBody, Option<ApiEvent>), RequestFailure> {
        let request = Request::new(PODS).watch(params, place)?;
        let asked = clock::boot_now();
        let (body, open, date) = request::send(&self.client, request).await?;
        let (to, lines) = mpsc::channel(1);
        let counters = Arc::clone(&self.options.counters);
        spawn_blocking(move || {
            decode::lines(body, &counters.truncated, |line| {
                to.blocking_send(line.and_then(|line| read_line(line, &counters))).is_ok()
            });
        });
        Ok((lines, open, date.map(|date| ApiEvent::Clock { asked, date })))
    }

    async fn line(&mut self, line: WatchLine) -> Result<(), Closed> {
        self.resumed().await?;
        match line {
            WatchLine::Nothing => Ok(()),
            WatchLine::Applied(pod) if self.has_room(&pod) => {
                self.known.insert(pod.uid.clone());
                self.core.send(ApiEvent::Applied(*pod)).await
            }
            WatchLine::Applied(_) => {
                self.options.counters.truncated.add(Cut::Pods, 1);
                Ok(())
            }
            WatchLine::Deleted(pod) => {
                let is_known = self.known.remove(&pod.uid) || self.has_room(&pod);
                if is_known { self.core.send(ApiEvent::Deleted(*pod)).await } else { Ok(()) }
            }
        }
    }

    fn has_room(&self, pod: &ApiPod) -> bool {
        self.known.len() < MAX_PODS || self.known.contains(&pod.uid)
    }

    /// The watch goes on from where it broke, if it was broken.
    async fn resumed(&mut self) -> Result<(), Closed> {
        if !self.is_outage {
            return Ok(());
        }
        info!("pod watch resumed");
        self.core.send(ApiEvent::Resumed).await?;
        self.is_current();
        Ok(())
    }

    fn is_current(&mut self) {
        self.refusals = 0;
        if std::mem::take(&mut self.is_outage) {
            self.recovered.notify_one();
        }
    }

    async fn watch_failed(&mut self, failure: &RequestFailure) -> Result<(), Closed> {
        if !self.keeps_place(failure) {
            self.place = None;
        }
        self.failure(failure, "the pod watch failed").await
    }

    async fn failure(&mut self, failure: &RequestFailure, what: &str) -> Result<(), Closed> {
        self.options.counters.errors.fetch_add(1, Relaxed);
        let error = errors::describe(failure, failure.code(), "list and watch of pods");
        let error = format!("{what}: {error}");
        if self.is_outage {
            debug!(error, "pod watch still failing");
        } else {
            warn!(error, "pod watch failed; retrying");
            self.is_outage = true;
            self.core.send(ApiEvent::OutOfSync { error }).await?;
        }
        self.pause().await;
        Ok(())
    }

    /// Whether the watch may be taken up where it broke. If not (that place is gone, or what came
    /// could not be read and may have been a deletion), only a list helps.
    fn keeps_place(&mut self, failure: &RequestFailure) -> bool {
        match failure {
            RequestFailure::Refused(refusal) => {
                self.refusals += 1;
                !matches!(refusal.code, 400 | 404 | 410) && self.refusals < REFUSALS
            }
            RequestFailure::Unreachable(_) | RequestFailure::Broken(_) | RequestFailure::Short => {
                true
            }
            _ => false,
        }
    }

    async fn pause(&mut self) {
        let now = Instant::now();
        if self.last_failure.is_none_or(|last| now.duration_since(last) > BACKOFF_RESET_AFTER) {
            self.backoff = backoff(MIN_PAUSE, MAX_PAUSE);
        }
        self.last_failure = Some(now);
        sleep(self.backoff.next().unwrap_or(MAX_PAUSE) + any_up_to(self.options.spread)).await;
    }
}

/// Adds a pod to a list as far as there is room: those that have ended make room for others.
fn add(pods: &mut Vec<ApiPod>, pod: ApiPod, cuts: &Cuts) -> Result<(), RequestFailure> {
    if pods.len() < MAX_PODS {
        pods.push(pod);
        return Ok(());
    }
    if !pod.is_finished() {
        let at = pods.iter().position(ApiPod::is_finished);
        pods[at.ok_or(RequestFailure::TooMany(MAX_PODS))?] = pod;
    }
    cuts.add(Cut::Pods, 1);
    Ok(())
}

/// Leaves pods out that make no sense, counted, and cuts those that are too large.
fn sensible(pod: Option<Pod>, counters: &KubeCounters) -> Option<ApiPod> {
    let Some(mut pod) = pod.as_ref().and_then(pod::pod) else {
        counters.skipped.fetch_add(1, Relaxed);
        return None;
    };
    pod::fit(&mut pod, &counters.truncated);
    Some(pod)
}

/// A line of a watch, and the version that it has come to.
pub(super) fn read_line(line: Item<Line>, counters: &KubeCounters) -> ReadLine {
    let Line { r#type, object } = line.value;
    let (kind, object) = (r#type.text(), object.0.unwrap_or_default());
    if kind == "ERROR" {
        let status = Status::failure(object.message.text(), object.reason.text());
        let status = status.with_code(object.code.unwrap_or_default());
        return Err(RequestFailure::Ended(status.boxed()));
    }
    let version = object.metadata.as_ref().and_then(|of| of.resource_version.filled());
    let version = version.ok_or(RequestFailure::Unexpected("an event with a resourceVersion"))?;
    let version = version.to_owned();
    let pod = || sensible(Some(object).filter(|_| line.is_sound), counters).map(Box::new);
    let line = match kind {
        "BOOKMARK" => WatchLine::Nothing,
        "ADDED" | "MODIFIED" => pod().map_or(WatchLine::Nothing, WatchLine::Applied),
        // A list says who is gone, whatever this is.
        "DELETED" => {
            WatchLine::Deleted(pod().ok_or(RequestFailure::Unexpected("a pod that was deleted"))?)
        }
        _ => return Err(RequestFailure::Unexpected("an event of a watch")),
    };
    Ok((line, version))
}

pub(super) fn on_node(node: &str) -> String {
    format!("spec.nodeName={node}")
}

/// Any time up to `most`.
fn any_up_to(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}
