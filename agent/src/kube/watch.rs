//! The watch: what the apiserver says, through every disconnect.

use super::{Counters, Options, client::WATCH_SECONDS, pod::ReducedPod, tell};
use crate::clock;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use coroner_core::input::{ApiEvent, ApiPod, Input, Received};
use futures::{FutureExt, StreamExt, stream::BoxStream};
use kube::{
    Api, Client,
    runtime::watcher::{self, Event, watcher},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, info, warn};

/// The first pause after a failure (jitter at most doubles it).
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause, before jitter.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// A failure so long after the last one begins with short pauses again. Not sooner: a watch that
/// breaks as soon as it stands must not be taken up five times a second.
const CALM: Duration = Duration::from_secs(30);
/// A watch that was taken up again counts as in sync after so long without an error: that its
/// place in history is gone, the apiserver says in the watch itself.
const PROBATION: Duration = Duration::from_millis(500);
/// After so many refusals to take up the watch where it broke, everything is listed anew. (An
/// apiserver restored from a backup refuses a place in its future for ever.)
const REFUSALS: u32 = 3;

/// The channel to the core is closed.
struct Closed;

type Stream = BoxStream<'static, watcher::Result<Event<ReducedPod>>>;

/// How the core and the apiserver stand to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// The core was sent nothing, or the last list is too old to go on from.
    Listing,
    /// The core has all that happened.
    Current,
    /// The watch broke; it may be taken up where it did.
    Broken,
}

pub(super) struct Watch {
    client: Client,
    node: String,
    answered: Arc<Notify>,
    recovered: Arc<Notify>,
    spread: Duration,
    counters: Arc<Counters>,
    to: mpsc::Sender<Received>,
    standing: Standing,
    /// Nothing was ever listed.
    fresh: bool,
    /// The core was told of this outage.
    outage_told: bool,
    /// The list that is being received.
    list: Vec<ApiPod>,
    refusals: u32,
    backoff: ExponentialBackoff,
    last_failure: Option<Instant>,
}

impl Watch {
    /// `answered` is notified of each request of `client` that succeeded; `recovered` is notified
    /// here whenever an outage is over.
    pub(super) fn new(
        client: Client,
        options: &Options,
        answered: Arc<Notify>,
        recovered: Arc<Notify>,
        to: mpsc::Sender<Received>,
    ) -> Self {
        Self {
            client,
            node: options.node.clone(),
            answered,
            recovered,
            spread: options.spread,
            counters: Arc::clone(&options.counters),
            to,
            standing: Standing::Listing,
            fresh: true,
            outage_told: false,
            list: Vec::new(),
            refusals: 0,
            backoff: backoff(),
            last_failure: None,
        }
    }

    /// Watches until the channel closes.
    pub(super) async fn run(mut self) {
        sleep(any_up_to(self.spread)).await;
        let mut stream = self.stream();
        // While a broken watch is on probation: when it ends.
        let mut probation = None;
        loop {
            let broken = self.standing == Standing::Broken;
            let done = tokio::select! {
                event = stream.next() => {
                    probation = None;
                    match event {
                        Some(Ok(event)) => self.event(event).await,
                        Some(Err(error)) => {
                            // What succeeded before the failure says nothing about what follows.
                            let _ = self.answered.notified().now_or_never();
                            if !self.keeps_place(&error) {
                                self.standing = Standing::Listing;
                                stream = self.stream();
                            } else if self.standing == Standing::Current {
                                self.standing = Standing::Broken;
                            }
                            self.failure(&error).await
                        }
                        // kube-rs' watch never ends; should it, begin anew.
                        None => {
                            self.standing = Standing::Listing;
                            stream = self.stream();
                            self.pause().await;
                            Ok(())
                        }
                    }
                }
                () = self.answered.notified(), if broken => {
                    probation = Some(Instant::now() + PROBATION);
                    Ok(())
                }
                () = until(probation), if broken => {
                    probation = None;
                    self.resumed().await
                }
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn stream(&self) -> Stream {
        // Of different lengths, so that agents which began together do not go on renewing their
        // watches together.
        let seconds = WATCH_SECONDS - fastrand::u32(..WATCH_SECONDS / 4);
        let mut config = watcher::Config::default()
            .fields(&format!("spec.nodeName={}", self.node))
            .timeout(seconds);
        if self.fresh {
            // Any apiserver's cache will do, however old: there is nothing that could go backwards,
            // and the watch tells what it lacks. Whole, for a list in pages is not answered from it
            // (kube-rs leaves the version out). Later ones are in pages: before 1.31 they go to etcd,
            // past all pods of the cluster, which is not to be one request.
            config = config.any_semantic();
            config.page_size = None;
        }
        watcher(Api::<ReducedPod>::all(self.client.clone()), config).boxed()
    }

    async fn event(&mut self, event: Event<ReducedPod>) -> Result<(), Closed> {
        match event {
            Event::Init => {
                self.standing = Standing::Listing;
                self.list.clear();
                Ok(())
            }
            Event::InitApply(pod) => {
                let pod = self.sensible(pod);
                self.list.extend(pod);
                Ok(())
            }
            Event::InitDone => {
                let pods = std::mem::take(&mut self.list);
                info!(pods = pods.len(), "listed this node's pods");
                self.counters.snapshots.fetch_add(1, Ordering::Relaxed);
                self.fresh = false;
                self.send(ApiEvent::Snapshot { pods }).await?;
                self.is_current();
                Ok(())
            }
            Event::Apply(pod) => {
                self.resumed().await?;
                match self.sensible(pod) {
                    Some(pod) => self.send(ApiEvent::Applied(pod)).await,
                    None => Ok(()),
                }
            }
            Event::Delete(pod) => {
                self.resumed().await?;
                match self.sensible(pod) {
                    Some(pod) => self.send(ApiEvent::Deleted(pod)).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// The watch goes on from where it broke, if it was broken.
    async fn resumed(&mut self) -> Result<(), Closed> {
        if self.standing != Standing::Broken {
            return Ok(());
        }
        info!("the watch of this node's pods goes on where it broke");
        self.send(ApiEvent::Resumed).await?;
        self.is_current();
        Ok(())
    }

    fn is_current(&mut self) {
        self.standing = Standing::Current;
        self.refusals = 0;
        if std::mem::take(&mut self.outage_told) {
            self.recovered.notify_one();
        }
    }

    async fn failure(&mut self, error: &watcher::Error) -> Result<(), Closed> {
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
        let error = describe(error);
        if self.outage_told {
            debug!(error, "the watch of this node's pods is still broken");
        } else {
            warn!(error, "the watch of this node's pods broke; trying on");
            self.outage_told = true;
            self.send(ApiEvent::OutOfSync { error }).await?;
        }
        self.pause().await;
        Ok(())
    }

    /// Whether the watch may be taken up where it broke. If not (that place is gone, or what came
    /// could not be read and may have been a deletion), only a list helps.
    fn keeps_place(&mut self, error: &watcher::Error) -> bool {
        match error {
            watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
                self.refusals += 1;
                !matches!(status.code, 400 | 404 | 410) && self.refusals < REFUSALS
            }
            watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
                matches!(
                    error,
                    kube::Error::HyperError(_)
                        | kube::Error::Service(_)
                        | kube::Error::ReadEvents(_)
                        | kube::Error::Auth(_)
                )
            }
            // Nothing to keep: the watcher lists anew by itself.
            watcher::Error::InitialListFailed(_) => true,
            _ => false,
        }
    }

    async fn pause(&mut self) {
        let now = Instant::now();
        if self.last_failure.is_none_or(|last| now.duration_since(last) > CALM) {
            self.backoff = backoff();
        }
        self.last_failure = Some(now);
        sleep(self.backoff.next().unwrap_or(MAX_PAUSE) + any_up_to(self.spread)).await;
    }

    /// Leaves pods out that make no sense, counted.
    fn sensible(&self, pod: ReducedPod) -> Option<ApiPod> {
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        if pod.pod.is_none() {
            self.counters.skipped.fetch_add(1, Ordering::Relaxed);
        }
        pod.pod
    }

    async fn send(&self, event: ApiEvent) -> Result<(), Closed> {
        let received = Received { at: clock::boot_now(), input: Input::Api(event) };
        self.to.send(received).await.map_err(|_| Closed)
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Any time up to `most`.
fn any_up_to(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(MIN_PAUSE)
        .with_max_delay(MAX_PAUSE)
        .with_jitter()
        .without_max_times()
        .build()
}

/// An error with its causes and, for what a cluster's administrator can mend, what to do.
fn describe(error: &watcher::Error) -> String {
    let refused = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    };
    tell::describe(error, refused, "list and watch of pods")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cri,
        kube::{SPREAD, events::Pace, lookup::NODE_EVERY},
    };

    /// What `cargo xtask scale` computes with.
    #[test]
    fn docs_scale_json_has_what_the_agent_does() {
        let file: serde_json::Value =
            serde_json::from_str(include_str!("../../../docs/scale.json")).unwrap();
        let seconds = |time: Duration| time.as_secs_f64();
        for (name, value) in [
            ("min_pause_seconds", seconds(MIN_PAUSE)),
            ("max_pause_seconds", seconds(MAX_PAUSE)),
            ("spread_seconds", seconds(SPREAD)),
            ("watch_least_seconds", f64::from(WATCH_SECONDS - WATCH_SECONDS / 4 + 1)),
            ("watch_most_seconds", f64::from(WATCH_SECONDS)),
            ("node_every_seconds", seconds(NODE_EVERY)),
            ("event_every_seconds", seconds(Pace::default().pods.every)),
            ("lists_every_seconds", seconds(cri::Options::new("").idle)),
        ] {
            assert_eq!(file["agent"][name].as_f64(), Some(value), "{name}");
        }
    }

    #[test]
    fn nobody_waits_longer_than_the_spread() {
        fastrand::seed(13); // of this thread alone: the same waits in every run
        let waits: Vec<Duration> = (0..1_000).map(|_| any_up_to(SPREAD)).collect();
        assert!(waits.iter().all(|wait| *wait < SPREAD));
        let (least, most) = (waits.iter().min(), waits.iter().max());
        assert!(
            least < Some(&(SPREAD / 4)) && most > Some(&(SPREAD * 3 / 4)),
            "{least:?} {most:?}"
        );
    }
}
