//! Exports each new series at zero for one scrape. Series of an open label set appear with their first event, and
//! Prometheus' `increase()` ignores the first sample of a series, so that the first death of a namespace would be
//! lost if the series started at 1.

use coroner_core::types::Verdict;
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use std::collections::HashMap;

/// The series of `coroner_container_deaths_total`, with the count of series that no scrape has exported yet.
#[derive(Debug, Default)]
pub(super) struct ZeroFirstCounter(Mutex<HashMap<(String, Verdict), Option<u64>>>);

impl ZeroFirstCounter {
    /// Counts a death, at once or after the next scrape.
    pub(super) fn count(&self, family: &IntCounterVec, namespace: &str, verdict: Verdict) {
        let series = family.with_label_values(&[namespace, verdict.as_str()]);
        let mut known = self.0.lock();
        match known.entry((namespace.to_owned(), verdict)).or_insert(Some(0)) {
            Some(unseen) => *unseen += 1,
            None => series.inc(),
        }
    }

    /// Applies the pending counts after a scrape.
    pub(super) fn publish(&self, family: &IntCounterVec) {
        let mut known = self.0.lock();
        for ((namespace, verdict), count) in &mut *known {
            if let Some(unseen) = count.take() {
                family.with_label_values(&[namespace.as_str(), verdict.as_str()]).inc_by(unseen);
            }
        }
    }
}
