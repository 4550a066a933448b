//! The clock of leak detection: it runs only while all sources are in sync.

use crate::{leak::DetectionState, time::BootTime};
use std::time::Duration;

/// The engine ticks once a second. After a longer silence the machine had slept, and events may have been
/// missed.
const LONGEST_STEP: Duration = Duration::from_secs(5);

/// The time in which leak detection was possible.
#[derive(Clone, Debug, Default)]
pub(super) struct DetectionClock {
    /// Whether leak detection is possible now.
    pub(super) detection_state: DetectionState,
    last: BootTime,
    /// How long leak detection was possible.
    pub(super) watched: Duration,
}

impl DetectionClock {
    /// Sets the state from `now` on, and counts the time since the last call if detection was possible.
    pub(super) fn advance(&mut self, now: BootTime, detection_state: DetectionState) {
        if self.detection_state == DetectionState::Possible {
            self.watched += now.since(self.last).min(LONGEST_STEP);
        }
        self.last = self.last.max(now);
        self.detection_state = detection_state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_and_a_long_sleep_do_not_count() {
        let mut clock = DetectionClock::default();
        let (possible, away) = (DetectionState::Possible, DetectionState::CriUnreachable);
        for (at, state, watched, what) in [
            (0, possible, 0, "it begins"),
            (4, possible, 4, "it counts"),
            (5, away, 5, "up to the outage"),
            (100, possible, 5, "an outage"),
            (4000, possible, 10, "the machine slept"),
            (3000, possible, 10, "a late input"),
        ] {
            clock.advance(BootTime(at * 1_000_000_000), state);
            assert_eq!(clock.watched, Duration::from_secs(watched), "{what}");
        }
    }
}
