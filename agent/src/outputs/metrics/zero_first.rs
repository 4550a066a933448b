//! Series of an open label set appear with their first event. Prometheus' `increase()` sees no step
//! where there was nothing before: born at 1, the first death of a namespace would never be seen. So
//! a series is shown at zero once, and what it counts from the next scrape on.

use coroner_core::types::Verdict;
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use std::collections::HashMap;

/// The series of `coroner_container_deaths_total` and, of those that no scrape has shown, the count.
#[derive(Debug, Default)]
pub(super) struct ZeroFirstCounter(Mutex<HashMap<(String, Verdict), Option<u64>>>);

impl ZeroFirstCounter {
    /// One more, now or after the next scrape.
    pub(super) fn count(&self, family: &IntCounterVec, namespace: &str, verdict: Verdict) {
        let series = family.with_label_values(&[namespace, verdict.as_str()]);
        let mut known = self.0.lock();
        match known.entry((namespace.to_owned(), verdict)).or_insert(Some(0)) {
            Some(unseen) => *unseen += 1,
            None => series.inc(),
        }
    }

    /// A scrape has shown them all.
    pub(super) fn publish(&self, family: &IntCounterVec) {
        let mut known = self.0.lock();
        for ((namespace, verdict), count) in &mut *known {
            if let Some(unseen) = count.take() {
                family.with_label_values(&[namespace.as_str(), verdict.as_str()]).inc_by(unseen);
            }
        }
    }
}
