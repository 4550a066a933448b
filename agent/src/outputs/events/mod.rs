//! Kubernetes Events on pods and on this node, shown by `kubectl describe` (opt-in, `--events`).
//!
//! **Invariant.** The adapter creates and patches Events of events.k8s.io and makes no other request. Drafts
//! that do not fit into its short queue, or exceed the rate limit, are dropped and counted.
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
use send::{SendOutcome, Sender};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tracing::{debug, info, warn};

/// Capacity of the queue of drafts: two full buckets.
pub(crate) const QUEUE: usize = 64;
/// An unkillable container is reported again after this.
const UNKILLABLE_EVERY: Duration = Duration::from_secs(600);
/// Interval at which a lasting failure is logged again.
const LOG_EVERY: Duration = Duration::from_secs(3600);

pub type QueuedDraft = (EventDraft, Instant);

#[derive(Clone, Debug)]
pub struct EventOptions {
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
    pub min_pause: Duration,
    pub max_pause: Duration,
    /// Age after which an Event is dropped, because its time would be wrong by as much.
    pub timeout: Duration,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            pods: Rate { burst: 25, every: Duration::from_secs(30) },
            node: Rate { burst: 25, every: Duration::from_secs(300) },
            min_pause: Duration::from_secs(1),
            max_pause: Duration::from_secs(60),
            timeout: Duration::from_secs(300),
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

/// Sends one after the other until the channel is closed; then what waits gets one try. Fails only if the
/// configuration cannot be used at all.
pub async fn run(
    options: EventOptions,
    mut drafts: mpsc::Receiver<QueuedDraft>,
) -> anyhow::Result<()> {
    let client = client::request_client(options.kubeconfig.as_deref()).await?;
    let EventOptions { node, pace, counters, .. } = options;
    let now = Instant::now();
    let mut publisher = Publisher {
        sender: Sender::new(client, node),
        pods: Bucket::full(pace.pods, now),
        node: Bucket::full(pace.node, now),
        pace,
        unkillable: Vec::new(),
        failure: None,
    };
    while let Some((draft, made)) = drafts.recv().await {
        let counter = match publisher.admits(&draft, Instant::now()) {
            false => &counters.suppressed,
            true => match publisher.publish(&draft, made, &drafts).await {
                SendOutcome::Sent => &counters.sent,
                SendOutcome::Refused(_) | SendOutcome::Pointless(_) => &counters.refused,
                SendOutcome::Away(_) => &counters.failed,
            },
        };
        counter.fetch_add(1, Relaxed);
    }
    Ok(())
}

struct Publisher {
    sender: Sender,
    pace: RateLimits,
    pods: Bucket,
    node: Bucket,
    /// Containers that SIGKILL does not end, and when that was sent.
    unkillable: Vec<(Regarding, Instant)>,
    /// Whether the last failure was a refusal, and when it was logged. Not its words, which name namespace and object.
    failure: Option<(bool, Instant)>,
}

impl Publisher {
    /// Whether the rate allows a draft. What of a container hangs, and where, may change each second: that would be all
    /// that the node's rate allows.
    fn admits(&mut self, draft: &EventDraft, now: Instant) -> bool {
        if draft.reason == Reason::Unkillable {
            self.unkillable.retain(|(_, at)| now.duration_since(*at) < UNKILLABLE_EVERY);
            if self.unkillable.iter().any(|(about, _)| *about == draft.about) {
                return false;
            }
            if self.unkillable.len() < QUEUE {
                self.unkillable.push((draft.about.clone(), now));
            }
        }
        let bucket = match draft.about {
            Regarding::Pod { .. } => &mut self.pods,
            Regarding::Node { .. } => &mut self.node,
        };
        bucket.take(now)
    }

    /// Sends a draft, again and again while the apiserver is away, until its time would be too wrong.
    async fn publish(
        &mut self,
        draft: &EventDraft,
        made: Instant,
        drafts: &mpsc::Receiver<QueuedDraft>,
    ) -> SendOutcome {
        let mut pauses = backoff(self.pace.min_pause, self.pace.max_pause);
        loop {
            let outcome = self.sender.send(draft).await;
            match &outcome {
                SendOutcome::Sent => {
                    if self.failure.take().is_some() {
                        info!("sending Events works again");
                    }
                    return outcome;
                }
                SendOutcome::Refused(why) => {
                    self.complain(true, why);
                    return outcome;
                }
                SendOutcome::Pointless(why) => {
                    debug!(why, reason = %draft.reason, "dropped an Event that is no longer relevant");
                    return outcome;
                }
                SendOutcome::Away(why) => self.complain(false, why),
            }
            let pause = pauses.next().unwrap_or(self.pace.max_pause);
            if drafts.is_closed() || made.elapsed() + pause > self.pace.timeout {
                return outcome;
            }
            sleep(pause).await;
        }
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
