//! When the reader drains the rings without a wake-up.

use std::time::Duration;
use tokio::time::Instant;

/// Delay after a drain that found a deciding record, or that had to hold a record back for ordering.
///
/// A record of an exit wakes the reader, but not within [`WAKE_PAUSE`](coroner_ebpf::maps::WAKE_PAUSE) of the last
/// wake-up. So a deciding record may be followed by one that does not wake the reader.
const SOON: Duration = Duration::from_nanos(2 * coroner_ebpf::maps::WAKE_PAUSE);
/// Delay after a drain that found any record: other records wake the reader too, but not within
/// [`READ_PAUSE`](coroner_ebpf::maps::READ_PAUSE) of the last wake-up. Longer than the pause, because a record has
/// the time at which its program started to write it.
pub(super) const LATER: Duration = Duration::from_millis(100);
/// Delay while no records are written. Lost records are counted and do not wake the reader.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// Schedules the next drain. Exits are read within [`SOON`] and other records within [`LATER`], unless a program is
/// held up while it writes a record (its CPU is stolen): then the records behind it are delayed to [`LATER`], at
/// worst to [`IDLE`]. The times in the records stay correct.
#[derive(Debug)]
pub(super) struct DrainSchedule {
    soon: Option<Instant>,
    later: Instant,
}

/// What a drain found, or what woke the reader: an unfinished record hides the records behind it, and one of these
/// may have caused the wake-up.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct DrainResult {
    pub(super) anything: bool,
    /// A record of the deciding ring, or a record was held back.
    pub(super) deciding: bool,
    /// A full ring, which may be full again and must be drained at once.
    pub(super) more: bool,
}

impl DrainResult {
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            anything: self.anything || other.anything,
            deciding: self.deciding || other.deciding,
            more: self.more || other.more,
        }
    }
}

impl DrainSchedule {
    /// The first drain is due at once, because an earlier wake-up may have been missed.
    pub(super) fn new(now: Instant) -> Self {
        Self { soon: Some(now), later: now + LATER }
    }

    pub(super) fn drained(&mut self, now: Instant, found: DrainResult) {
        if found.deciding {
            self.soon = Some(now + SOON);
        } else if self.soon.is_some_and(|at| at <= now) {
            self.soon = None;
        }
        if found.anything {
            self.later = now + LATER;
        } else if self.later <= now {
            self.later = now + IDLE;
        }
    }

    /// When to drain if nothing wakes the reader before.
    pub(super) fn at(&self) -> Instant {
        self.soon.map_or(self.later, |soon| soon.min(self.later))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After each wake-up a record may come that does not wake: it is read after the pause in which it is silent.
    #[test]
    fn the_reader_comes_again_after_the_pause_of_its_wake_up() {
        let pause = |ns| Duration::from_nanos(ns);
        assert!(SOON > pause(coroner_ebpf::maps::WAKE_PAUSE));
        assert!(LATER > pause(coroner_ebpf::maps::READ_PAUSE));
        let start = Instant::now() + IDLE;
        for (deciding, delay) in [(true, SOON), (false, LATER)] {
            let found = DrainResult { anything: true, deciding, more: false };
            let mut again = DrainSchedule::new(Instant::now());
            again.drained(start, DrainResult::default());
            again.drained(start, found);
            again.drained(start + delay / 2, DrainResult::default());
            assert_eq!(again.at(), start + delay, "a drain in between defers nothing");
            again.drained(start + delay, found);
            assert_eq!(again.at(), start + 2 * delay);
        }
    }

    #[test]
    fn an_idle_reader_is_left_alone() {
        let (nothing, deciding) =
            (DrainResult::default(), DrainResult { anything: true, deciding: true, more: false });
        let now = Instant::now();
        let mut again = DrainSchedule::new(now);
        assert_eq!(again.at(), now);
        again.drained(now, nothing);
        assert_eq!(again.at(), now + LATER, "somebody else may have been woken");
        again.drained(now + LATER, nothing);
        assert_eq!(again.at(), now + LATER + IDLE);
        again.drained(now, deciding);
        again.drained(now + SOON / 2, nothing);
        assert_eq!(again.at(), now + SOON, "the one that is due stays");
        again.drained(now + SOON, nothing);
        assert_eq!(again.at(), now + LATER);
        again.drained(now + LATER, nothing);
        assert_eq!(again.at(), now + LATER + IDLE);
    }
}
