//! The leaks that are certain at this moment: for the HTTP API, the series with an identity, and
//! the state directory.

use crate::domain::{
    leak::{Judgement, Leak, LeakKey, Recollection},
    leaks::LeakGauges,
    time::{Anchor, WallTime},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The certain leaks, by what they are.
#[derive(Debug, Default)]
pub struct Standing {
    leaks: BTreeMap<LeakKey, Arc<Leak>>,
    judge: Judge,
    /// Changed since [`Standing::take_news`] was last called.
    news: bool,
}

/// How far the judge has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Judge {
    /// Whether leaks can be judged at this moment, and if not why. What was certain before an
    /// outage stays in the list.
    pub judgement: Judgement,
    /// How long leaks could be judged in all since the agent started, in seconds: while this is
    /// less than the threshold, an empty list says nothing.
    pub watched_seconds: u64,
    /// How long something must look like a leak before it is one, in seconds.
    pub threshold_seconds: u64,
    /// How many things look like a leak and are not certain (yet).
    pub suspects: usize,
}

/// The answer of /api/v1/leaks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LeakList {
    /// How far the judge has come.
    #[serde(flatten)]
    pub judge: Judge,
    /// The leaks: the oldest first.
    pub leaks: Vec<Arc<Leak>>,
}

impl Standing {
    /// Nothing is certain. `threshold`: how long something must look like a leak before it is one.
    pub fn new(threshold: Duration) -> Self {
        // Rounded up, so as not to promise too much.
        let threshold_seconds = threshold.as_secs() + u64::from(threshold.subsec_nanos() > 0);
        Self { judge: Judge { threshold_seconds, ..Judge::default() }, ..Self::default() }
    }

    /// A leak is certain, or what is known of it has changed.
    pub fn put(&mut self, leak: Arc<Leak>) {
        self.leaks.insert(leak.key.clone(), leak);
        self.news = true;
    }

    /// A leak is gone.
    pub fn gone(&mut self, key: &LeakKey) {
        self.leaks.remove(key);
        self.news = true;
    }

    /// How the judge is; true if its judgement is another than before.
    pub fn judge(&mut self, gauges: &LeakGauges) -> bool {
        let before = self.judge.judgement;
        self.judge.judgement = gauges.judgement;
        self.judge.watched_seconds = gauges.watched.as_secs();
        self.judge.suspects = gauges.suspects;
        before != gauges.judgement
    }

    /// Whether the leaks have changed since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// All of them, the oldest first.
    pub fn list(&self) -> LeakList {
        let mut leaks: Vec<_> = self.leaks.values().cloned().collect();
        leaks.sort_by_key(|leak| since(leak));
        LeakList { judge: self.judge, leaks }
    }

    /// What a later run should know of them.
    pub fn recollections(&self, anchor: &Anchor) -> Vec<Recollection> {
        let recollect = |leak: &Arc<Leak>| Recollection {
            key: leak.key.clone(),
            observed: anchor.boot(leak.observed),
            since_start: leak.since_start,
        };
        self.leaks.values().map(recollect).collect()
    }
}

impl Judge {
    /// It has judged for long enough that an empty list means that nothing was left behind.
    pub fn has_seen_enough(&self) -> bool {
        self.watched_seconds >= self.threshold_seconds
    }
}

/// Since when at most.
pub fn since(leak: &Leak) -> WallTime {
    leak.created.unwrap_or(leak.observed).min(leak.observed)
}
