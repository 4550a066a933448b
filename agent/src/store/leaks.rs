//! The leaks that are certain at this moment: for the HTTP API, the series with an identity, and
//! the state directory.

use coroner_core::{
    input::PersistedLeak,
    leak::{DetectionState, Leak, LeakKey},
    leaks::LeakGauges,
    time::{Anchor, WallTime},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// What an earlier run had found and this one has not (yet) may come for so much longer than the
/// threshold: the apiserver may be slow to confirm, and of many leaks some are told later.
const GRACE: Duration = Duration::from_secs(600);

/// The certain leaks, by what they are.
#[derive(Debug, Default)]
pub struct Standing {
    leaks: BTreeMap<LeakKey, Arc<Leak>>,
    /// What an earlier run had found, as long as it may still be found again.
    recalled: BTreeMap<LeakKey, PersistedLeak>,
    judge: Judge,
    /// Changed since [`Standing::take_news`] was last called.
    news: bool,
}

/// How far the judge has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Judge {
    /// Whether leaks can be judged at this moment, and if not why. What was certain before an
    /// outage stays in the list.
    pub detection_state: DetectionState,
    /// How long leaks could be judged in all since the agent started, in seconds: while this is
    /// less than the threshold, an empty list says nothing.
    pub watched_seconds: u64,
    /// How long something must look like a leak before it is one, in seconds.
    pub threshold_seconds: u64,
    /// How many things look like a leak and are not certain (yet).
    pub candidate_count: usize,
}

impl Standing {
    /// Nothing is certain. `threshold`: how long something must look like a leak before it is one.
    pub fn new(threshold: Duration) -> Self {
        // Rounded up, so as not to promise too much.
        let threshold_seconds = threshold.as_secs() + u64::from(threshold.subsec_nanos() > 0);
        Self { judge: Judge { threshold_seconds, ..Judge::default() }, ..Self::default() }
    }

    /// Takes what an earlier run had found, for the next one.
    pub fn recall(&mut self, leaks: Vec<PersistedLeak>) {
        self.recalled = leaks.into_iter().map(|leak| (leak.key.clone(), leak)).collect();
    }

    /// A leak is certain, or what is known of it has changed.
    pub fn put(&mut self, leak: Arc<Leak>) {
        self.recalled.remove(&leak.key);
        self.leaks.insert(leak.key.clone(), leak);
        self.news = true;
    }

    /// A leak is gone.
    pub fn gone(&mut self, key: &LeakKey) {
        self.leaks.remove(key);
        self.recalled.remove(key);
        self.news = true;
    }

    /// The wall clock was set: what was told by the old anchor is told by the new one.
    pub fn clock_was_set(&mut self, old: &Anchor, new: &Anchor) {
        for leak in self.leaks.values_mut() {
            let leak = Arc::make_mut(leak);
            leak.first_observed = new.wall(old.boot(leak.first_observed));
            leak.confirmed = new.wall(old.boot(leak.confirmed));
            self.news = true;
        }
    }

    /// How the judge is; true if its judgement is another than before.
    pub fn judge(&mut self, gauges: &LeakGauges) -> bool {
        let before = self.judge.detection_state;
        self.judge.detection_state = gauges.detection_state;
        self.judge.watched_seconds = gauges.watched.as_secs();
        self.judge.candidate_count = gauges.candidates;
        let until = Duration::from_secs(self.judge.threshold_seconds) + GRACE;
        if gauges.watched > until && !self.recalled.is_empty() {
            self.recalled.clear();
            self.news = true;
        }
        before != gauges.detection_state
    }

    /// Whether the leaks have changed since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// How far the judge has come.
    pub fn progress(&self) -> Judge {
        self.judge
    }

    /// All of them, the oldest first.
    pub fn oldest_first(&self) -> Vec<Arc<Leak>> {
        let mut leaks: Vec<_> = self.leaks.values().cloned().collect();
        leaks.sort_by_key(|leak| since(leak));
        leaks
    }

    /// What a later run should know of them, and of those that may still be found again, by key.
    pub fn recollections(&self, anchor: &Anchor) -> Vec<PersistedLeak> {
        let recollect = |leak: &Arc<Leak>| PersistedLeak {
            key: leak.key.clone(),
            first_observed: anchor.boot(leak.first_observed),
            preexisting: leak.preexisting,
        };
        let recalled = self.recalled.values().cloned();
        let mut all: Vec<_> = self.leaks.values().map(recollect).chain(recalled).collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
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
    leak.created.unwrap_or(leak.first_observed).min(leak.first_observed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples;
    use coroner_core::time::BootTime;

    const THRESHOLD: Duration = Duration::from_secs(300);
    const ANCHOR: Anchor = Anchor { boot_ns: 0, wall_ns: 0 };

    fn recalled(id: &str) -> PersistedLeak {
        let key = LeakKey::Sandbox { id: id.into() };
        PersistedLeak { key, first_observed: BootTime(7), preexisting: true }
    }

    fn told(id: &str) -> Arc<Leak> {
        let key = LeakKey::Sandbox { id: id.into() };
        Arc::new(Leak { key, first_observed: WallTime(7), preexisting: true, ..samples::leaked() })
    }

    fn watched(seconds: u64) -> LeakGauges {
        LeakGauges { watched: Duration::from_secs(seconds), ..LeakGauges::default() }
    }

    #[test]
    fn what_is_not_found_again_yet_is_kept_for_the_next_run() {
        let mut standing = Standing::new(THRESHOLD);
        standing.recall(["a", "b", "c"].map(recalled).into());
        let all = ["a", "b", "c"].map(recalled);
        assert_eq!(standing.recollections(&ANCHOR), all);
        standing.put(told("b"));
        assert_eq!(standing.recollections(&ANCHOR), all, "the same, whether told again or not");
        standing.gone(&recalled("b").key);
        assert_eq!(standing.recollections(&ANCHOR), ["a", "c"].map(recalled));
    }

    #[test]
    fn a_clock_that_is_set_moves_no_moment() {
        let mut standing = Standing::new(THRESHOLD);
        standing.put(told("a"));
        standing.take_news();
        let three_hours_on = Anchor { boot_ns: 100, wall_ns: 3 * 3_600_000_000_000 + 100 };
        standing.clock_was_set(&ANCHOR, &three_hours_on);
        assert!(standing.take_news(), "the list is to be shown anew");
        let leaks = standing.oldest_first();
        assert_eq!(leaks[0].first_observed, WallTime(3 * 3_600_000_000_000 + 7));
        assert_eq!(standing.recollections(&three_hours_on), [recalled("a")]);
    }

    #[test]
    fn what_was_not_found_again_in_time_is_forgotten() {
        let mut standing = Standing::new(THRESHOLD);
        standing.recall(["a", "b"].map(recalled).into());
        standing.put(told("b"));
        standing.take_news();
        standing.judge(&watched(900));
        assert!(!standing.take_news());
        assert_eq!(standing.recollections(&ANCHOR).len(), 2);
        standing.judge(&watched(901));
        assert!(standing.take_news(), "the file is to be written");
        assert_eq!(standing.recollections(&ANCHOR), [recalled("b")]);
        standing.judge(&watched(902));
        assert!(!standing.take_news());
    }
}
