//! The clock by which leaks are judged: it runs only while all sources are in sync.

use crate::{leak::Judgement, time::BootTime};
use std::time::Duration;

/// The engine ticks each second. A longer silence is a machine that slept, of which nobody knows
/// what it missed.
const LONGEST_STEP: Duration = Duration::from_secs(5);

/// Time in which leaks could be judged.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    judgement: Judgement,
    last: BootTime,
    watched: Duration,
}

impl Clock {
    /// Takes note of how things are from now on. Counts the time since the last call if all was
    /// well then.
    pub(super) fn turn(&mut self, now: BootTime, judgement: Judgement) {
        if self.judgement == Judgement::Possible {
            self.watched += now.since(self.last).min(LONGEST_STEP);
        }
        self.last = self.last.max(now);
        self.judgement = judgement;
    }

    /// Whether leaks can be judged now.
    pub(super) fn judgement(&self) -> Judgement {
        self.judgement
    }

    /// How long they could be judged in all.
    pub(super) fn watched(&self) -> Duration {
        self.watched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_and_a_long_sleep_do_not_count() {
        let secs = |n: u64| BootTime(n * 1_000_000_000);
        let mut clock = Clock::default();
        for n in 0..=10 {
            clock.turn(secs(n), Judgement::Possible);
        }
        assert_eq!(clock.watched(), Duration::from_secs(10));
        clock.turn(secs(11), Judgement::CriUnreachable);
        clock.turn(secs(100), Judgement::Possible);
        assert_eq!(clock.watched(), Duration::from_secs(11));
        clock.turn(secs(4000), Judgement::Possible);
        assert_eq!(clock.watched(), Duration::from_secs(16), "the machine slept");
        clock.turn(secs(3000), Judgement::Possible);
        assert_eq!(clock.watched(), Duration::from_secs(16), "a late input");
        assert_eq!(clock.judgement(), Judgement::Possible);
    }
}
