//! The confirmed leaks at this moment, for the HTTP API and the metric series with an identity.

use crate::store::{entry::Entry, history::KeptLeak};
use coroner_core::{
    leak::{Detection, Leak, LeakKey},
    leaks::LeakGauges,
    time::{Anchor, Moment},
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// How much longer than the threshold a restored leak may take to be confirmed again: the apiserver may be
/// slow, and the engine confirms many leaks one after the other.
const GRACE: Duration = Duration::from_secs(600);
/// How many resolved leaks are kept for readers of the list that have not seen that yet.
const RESOLVED: usize = 256;

#[derive(Debug, Default)]
pub struct LeakStore {
    leaks: BTreeMap<LeakKey, Entry<Leak>>,
    resolved: VecDeque<Entry<Leak>>,
    changes: u64,
    /// The last change that readers who have not seen it can no longer find: a resolved leak that was dropped.
    forgotten: u64,
    /// Leaks of an earlier run that this run may still confirm.
    restored: BTreeMap<LeakKey, KeptLeak>,
    detection: Detection,
    /// Changed since [`LeakStore::take_changed`] was last called.
    changed: bool,
}

impl LeakStore {
    /// An empty store. `threshold`: how long a candidate must be observed before it is confirmed.
    pub fn new(threshold: Duration) -> Self {
        // Rounded up, so that no leak is promised too early.
        let threshold_seconds = threshold.as_secs() + u64::from(threshold.subsec_nanos() > 0);
        Self {
            detection: Detection { threshold_seconds, ..Detection::default() },
            ..Self::default()
        }
    }

    pub fn restore(&mut self, leaks: Vec<KeptLeak>) {
        self.restored = leaks.into_iter().map(|kept| (kept.leak.key.clone(), kept)).collect();
    }

    /// An earlier run has posted this leak as an Event.
    pub fn is_posted(&self, key: &LeakKey) -> bool {
        self.restored.get(key).is_some_and(|kept| kept.is_posted)
    }

    pub fn put(&mut self, leak: Arc<Leak>) {
        self.restored.remove(&leak.key);
        self.changes += 1;
        let new = Entry::new(self.changes, Arc::clone(&leak));
        let entry = self.leaks.entry(leak.key.clone()).or_insert(new);
        (entry.item, entry.version) = (leak, self.changes);
        self.changed = true;
    }

    /// Takes a leak that is resolved.
    pub fn remove(&mut self, leak: Arc<Leak>) {
        self.changes += 1;
        self.restored.remove(&leak.key);
        if let Some(entry) = self.leaks.remove(&leak.key) {
            if self.resolved.len() == RESOLVED {
                self.forgotten = self.resolved.pop_front().map_or(0, |oldest| oldest.version);
            }
            self.resolved.push_back(Entry { version: self.changes, item: leak, ..entry });
        }
        self.changed = true;
    }

    /// Converts the timestamps after a step of the system clock.
    pub fn clock_was_set(&mut self, new: &Anchor) {
        for entry in self.leaks.values_mut() {
            self.changes += 1;
            entry.version = self.changes;
            let leak = Arc::make_mut(&mut entry.item);
            leak.first_observed = Moment::of_boot(leak.first_observed.boot, new);
            leak.confirmed = Moment::of_boot(leak.confirmed.boot, new);
            self.changed = true;
        }
    }

    /// Takes the state of leak detection; true if it is another one.
    pub fn update_detection(&mut self, gauges: &LeakGauges) -> bool {
        let before = std::mem::replace(&mut self.detection.state, gauges.detection_state);
        self.detection.watched_seconds = gauges.watched.as_secs();
        self.detection.candidate_count = gauges.candidates;
        before != gauges.detection_state
    }

    /// Takes the leaks of an earlier run that were not found again in time.
    pub fn take_gone(&mut self) -> Vec<LeakKey> {
        let until = self.detection.threshold_seconds + GRACE.as_secs();
        match self.detection.watched_seconds > until {
            true => std::mem::take(&mut self.restored).into_keys().collect(),
            false => Vec::new(),
        }
    }

    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// State of leak detection, without its message.
    pub fn detection(&self) -> &Detection {
        &self.detection
    }

    pub fn oldest_first(&self) -> Vec<Arc<Leak>> {
        let mut leaks: Vec<_> = self.leaks.values().map(|entry| Arc::clone(&entry.item)).collect();
        leaks.sort_by_key(|leak| leak.since());
        leaks
    }

    /// All leaks, and the ones that were resolved last, in no order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry<Leak>> {
        self.leaks.values().chain(&self.resolved)
    }

    /// The number of the last change, and of the last one that [`LeakStore::entries`] no longer shows.
    pub fn changes(&self) -> (u64, u64) {
        (self.changes, self.forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples;
    use coroner_core::{
        input::PersistedLeak,
        time::{BootTime, WallTime},
    };

    const THRESHOLD: Duration = Duration::from_secs(300);
    const ANCHOR: Anchor = Anchor { boot_ns: 0, wall_ns: 0 };

    fn key(id: &str) -> LeakKey {
        LeakKey::Sandbox { id: id.into() }
    }

    fn restored(id: &str) -> KeptLeak {
        let leak = PersistedLeak { key: key(id), first_observed: BootTime(7) };
        KeptLeak { leak, is_posted: id == "a" }
    }

    fn leak(id: &str) -> Arc<Leak> {
        let first_observed = Moment::of_boot(BootTime(7), &ANCHOR);
        Arc::new(Leak { key: key(id), first_observed, ..samples::leaked() })
    }

    #[test]
    fn a_clock_that_is_set_moves_no_moment() {
        let mut store = LeakStore::new(THRESHOLD);
        store.put(leak("a"));
        store.take_changed();
        let three_hours_on = Anchor { boot_ns: 100, wall_ns: 3 * 3_600_000_000_000 + 100 };
        store.clock_was_set(&three_hours_on);
        assert!(store.take_changed(), "the list changed");
        let leaks = store.oldest_first();
        assert_eq!(leaks[0].first_observed.time, WallTime(3 * 3_600_000_000_000 + 7));
        assert_eq!(leaks[0].first_observed.boot, BootTime(7));
    }

    #[test]
    fn what_was_not_found_again_in_time_is_gone() {
        let mut store = LeakStore::new(THRESHOLD);
        store.restore(["a", "b", "c"].map(restored).into());
        assert!(store.is_posted(&key("a")) && !store.is_posted(&key("b")));
        store.put(leak("b"));
        for (watched, gone) in [(900, vec![]), (901, vec![key("a"), key("c")]), (902, vec![])] {
            let watched = Duration::from_secs(watched);
            store.update_detection(&LeakGauges { watched, ..LeakGauges::default() });
            assert_eq!(store.take_gone(), gone);
        }
    }
}
