//! Maximum of a value over a sliding window.

use std::time::Duration;
use tokio::time::Instant;

/// A value counts for at least this time and at most twice this time. Longer than most scrape intervals, so that
/// no scraper misses a maximum.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum of the current and of the previous window.
#[derive(Debug)]
pub(crate) struct WindowedMax {
    began: Instant,
    now: u64,
    before: u64,
}

impl WindowedMax {
    pub(crate) fn new(now: Instant) -> Self {
        Self { began: now, now: 0, before: 0 }
    }

    /// Adds a value and returns the maximum.
    pub(crate) fn observe(&mut self, now: Instant, value: u64) -> u64 {
        let passed = now.saturating_duration_since(self.began);
        if passed >= WINDOW {
            self.before = if passed < 2 * WINDOW { self.now } else { 0 };
            (self.began, self.now) = (now, 0);
        }
        self.now = self.now.max(value);
        self.now.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_for_a_window_and_not_for_more_than_two() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut peak = WindowedMax::new(start);
        assert_eq!(peak.observe(at(0), 0), 0);
        assert_eq!(peak.observe(at(59), 300), 300);
        // What follows at once does not hide it, nor does the end of its window.
        assert_eq!(peak.observe(at(59), 0), 300);
        assert_eq!(peak.observe(at(60), 100), 300);
        assert_eq!(peak.observe(at(119), 0), 300);
        assert_eq!(peak.observe(at(120), 0), 100);
        assert_eq!(peak.observe(at(180), 0), 0);
        // A long silence forgets it.
        assert_eq!(peak.observe(at(181), 300), 300);
        assert_eq!(peak.observe(at(301), 7), 7);
    }
}
