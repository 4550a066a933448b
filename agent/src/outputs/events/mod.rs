//! Kubernetes Events on pods and on this node, shown by `kubectl describe` (opt-in, `--events`).
//!
//! **Invariant.** The adapter creates and patches Events of events.k8s.io and makes no other request. It waits for the
//! apiserver only with its own short queue; drafts that do not fit, or exceed the rate limit, are dropped and counted.
//! A refusal never stops the agent.

mod note;
mod send;

pub use crate::sources::bucket::Rate;
pub use note::{EventDraft, Reason, Regarding, note};

use crate::sources::{
    backoff::backoff,
    bucket::Bucket,
    kube::{KubeOptions, client},
};
use backon::ExponentialBackoff;
use futures::{FutureExt, future::BoxFuture};
use send::{SendOutcome, Sender};
use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

/// Capacity of the queue of drafts: two full buckets.
const QUEUE: usize = 64;
/// Interval of further `EventsSuppressed`. Longer than the event recorder's series window (6 minutes), which
/// would merge the new Event into the old one and keep the old numbers.
const SUPPRESSED_EVERY: Duration = Duration::from_secs(600);
/// Interval at which a lasting failure is logged again.
const LOG_EVERY: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub struct EventOptions {
    /// A kubeconfig; `None`: $KUBECONFIG, ~/.kube/config or the service account.
    pub kubeconfig: Option<PathBuf>,
    /// This node's name: the object of Events about leaks, and the reporting instance.
    pub node: String,
    pub pace: RateLimits,
    pub counters: Arc<EventCounters>,
}

impl EventOptions {
    pub fn new(api: &KubeOptions) -> Self {
        Self {
            kubeconfig: api.kubeconfig.clone(),
            node: api.node.clone(),
            pace: RateLimits::default(),
            counters: Arc::default(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RateLimits {
    pub pods: Rate,
    /// Events on the node. client-go allows one source as much on one object
    /// (`EventSourceObjectSpamFilter`): 25, then one in 5 minutes.
    pub node: Rate,
    /// Delay of the first `EventsSuppressed`, which counts all Events that were dropped until then.
    pub suppressed_after: Duration,
    pub min_pause: Duration,
    pub max_pause: Duration,
    /// Age after which an Event is dropped, because its time would be wrong by as much.
    pub patience: Duration,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            pods: Rate { burst: 25, every: Duration::from_secs(30) },
            node: Rate { burst: 25, every: Duration::from_secs(300) },
            suppressed_after: Duration::from_secs(30),
            min_pause: Duration::from_secs(1),
            max_pause: Duration::from_secs(60),
            patience: Duration::from_secs(300),
        }
    }
}

#[derive(Debug, Default)]
pub struct EventCounters {
    pub sent: AtomicU64,
    /// The apiserver refused it: no right, a namespace that is being deleted, an invalid name.
    pub refused: AtomicU64,
    /// The apiserver could not be reached in time.
    pub failed: AtomicU64,
    /// More than the rate allows.
    pub suppressed: AtomicU64,
    pub dropped: AtomicU64,
}

impl EventCounters {
    /// All of them, with the value of the metric's label `outcome`.
    pub fn all(&self) -> [(&'static str, &AtomicU64); 5] {
        [
            ("sent", &self.sent),
            ("refused", &self.refused),
            ("failed", &self.failed),
            ("suppressed", &self.suppressed),
            ("dropped", &self.dropped),
        ]
    }
}

/// Sends until the channel is closed; then what waits gets one try. Fails only if the
/// configuration cannot be used at all.
pub async fn run(
    options: EventOptions,
    mut notes: mpsc::Receiver<EventDraft>,
) -> anyhow::Result<()> {
    let client = client::request_client(options.kubeconfig.as_deref()).await?;
    let mut publisher = Publisher::new(options, client);
    while publisher.turn(&mut notes).await {}
    publisher.finish().await;
    Ok(())
}

struct Publisher {
    sender: Sender,
    pace: RateLimits,
    counters: Arc<EventCounters>,
    pods: Bucket,
    node: Bucket,
    /// What may be sent, and since when.
    queue: VecDeque<(EventDraft, Instant)>,
    /// What is with the apiserver now, and since when it waits.
    sending: Option<(BoxFuture<'static, (EventDraft, SendOutcome)>, Instant)>,
    /// Not before this: the apiserver was away.
    not_before: Option<Instant>,
    backoff: ExponentialBackoff,
    left_out: BTreeMap<Reason, u64>,
    /// Containers that SIGKILL does not end, and when that was sent.
    unkillable: Vec<(Regarding, Instant)>,
    /// When `EventsSuppressed` is due, if anything was left out.
    summary: Option<Instant>,
    last_summary: Option<Instant>,
    /// Whether the last failure was a refusal, and when it was logged. Not its words, which name namespace and object.
    failure: Option<(bool, Instant)>,
}

impl Publisher {
    fn new(options: EventOptions, client: kube::Client) -> Self {
        let EventOptions { node, pace, counters, .. } = options;
        let now = Instant::now();
        Self {
            sender: Sender::new(client, node),
            pods: Bucket::full(pace.pods, now),
            node: Bucket::full(pace.node, now),
            backoff: backoff(pace.min_pause, pace.max_pause),
            pace,
            counters,
            queue: VecDeque::new(),
            sending: None,
            not_before: None,
            left_out: BTreeMap::new(),
            unkillable: Vec::new(),
            summary: None,
            last_summary: None,
            failure: None,
        }
    }

    /// Waits for one thing and deals with it; false: there will be no more notes.
    async fn turn(&mut self, notes: &mut mpsc::Receiver<EventDraft>) -> bool {
        self.begin();
        let again = self.not_before.filter(|_| self.sending.is_none() && !self.queue.is_empty());
        let outcome = async {
            match &mut self.sending {
                Some((sending, _)) => sending.await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            note = notes.recv() => match note {
                Some(note) => self.admit(note, Instant::now()),
                None => return false,
            },
            (note, outcome) = outcome => self.conclude(note, outcome),
            () = until(again) => self.not_before = None,
            () = until(self.summary) => {
                let now = Instant::now();
                (self.summary, self.last_summary) = (None, Some(now));
                let left_out = std::mem::take(&mut self.left_out);
                self.wait(note::suppressed(&left_out), now);
            }
        }
        true
    }

    async fn finish(mut self) {
        if let Some((sending, _)) = self.sending.take() {
            let (_, outcome) = sending.await;
            self.count(&outcome);
        }
        while let Some((note, _)) = self.queue.pop_front() {
            let (_, outcome) = self.sender.clone().send(note).await;
            self.count(&outcome);
        }
    }

    /// Takes a note, if the rate allows it. What of a container hangs, and where, may change each
    /// second: that would be all that the node's rate allows.
    fn admit(&mut self, note: EventDraft, now: Instant) {
        if note.reason == Reason::Unkillable {
            self.unkillable.retain(|(_, at)| now.duration_since(*at) < SUPPRESSED_EVERY);
            if self.unkillable.iter().any(|(about, _)| *about == note.about) {
                self.counters.suppressed.fetch_add(1, Relaxed);
                return;
            }
            if self.unkillable.len() < QUEUE {
                self.unkillable.push((note.about.clone(), now));
            }
        }
        let bucket = match note.about {
            Regarding::Pod { .. } => &mut self.pods,
            Regarding::Node { .. } => &mut self.node,
        };
        if bucket.take(now) {
            return self.wait(note, now);
        }
        self.counters.suppressed.fetch_add(1, Relaxed);
        *self.left_out.entry(note.reason).or_default() += 1;
        let soon = now + self.pace.suppressed_after;
        let next = self.last_summary.map_or(soon, |last| soon.max(last + SUPPRESSED_EVERY));
        self.summary.get_or_insert(next);
    }

    fn wait(&mut self, note: EventDraft, now: Instant) {
        if self.queue.len() < QUEUE {
            self.queue.push_back((note, now));
        } else {
            self.counters.dropped.fetch_add(1, Relaxed);
        }
    }

    fn begin(&mut self) {
        while self.sending.is_none()
            && self.not_before.is_none()
            && let Some((note, since)) = self.queue.pop_front()
        {
            if since.elapsed() <= self.pace.patience {
                self.sending = Some((self.sender.clone().send(note).boxed(), since));
            } else {
                self.counters.failed.fetch_add(1, Relaxed);
                debug!(reason = %note.reason, "dropped an Event that could not be sent in time");
            }
        }
    }

    fn conclude(&mut self, note: EventDraft, outcome: SendOutcome) {
        let since = self.sending.take().map_or_else(Instant::now, |(_, since)| since);
        match &outcome {
            SendOutcome::Sent => {
                self.backoff = backoff(self.pace.min_pause, self.pace.max_pause);
                if self.failure.take().is_some() {
                    info!("sending Events works again");
                }
            }
            SendOutcome::Refused(why) => self.complain(true, why),
            SendOutcome::Pointless(why) => {
                debug!(why, reason = %note.reason, "dropped an Event that is no longer relevant")
            }
            SendOutcome::Away(why) => {
                self.complain(false, why);
                let pause = self.backoff.next().unwrap_or(self.pace.max_pause);
                self.not_before = Some(Instant::now() + pause);
                // Behind the others: what is in the way may concern this one alone.
                return self.queue.push_back((note, since));
            }
        }
        self.count(&outcome);
    }

    fn count(&self, outcome: &SendOutcome) {
        let counter = match outcome {
            SendOutcome::Sent => &self.counters.sent,
            SendOutcome::Refused(_) | SendOutcome::Pointless(_) => &self.counters.refused,
            SendOutcome::Away(_) => &self.counters.failed,
        };
        counter.fetch_add(1, Relaxed);
    }

    fn complain(&mut self, refused: bool, error: &str) {
        let now = Instant::now();
        let is_logged = self.failure.is_some_and(|(was_refused, logged)| {
            was_refused == refused && now.duration_since(logged) < LOG_EVERY
        });
        if is_logged {
            return debug!(error, "still cannot send Events");
        }
        warn!(error, "cannot send Events (--events); retrying");
        self.failure = Some((refused, now));
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
