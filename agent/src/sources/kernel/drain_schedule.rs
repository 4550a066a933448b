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

    /// The rings were drained.
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
    use coroner_ebpf::maps::{READ_PAUSE, WAKE_PAUSE};
    use std::collections::VecDeque;

    /// From a wake-up in the kernel to the drain that follows from it, ns.
    const WAKING: u64 = 50_000;
    const MS: u64 = 1_000_000;

    /// A record as a program writes it: what it bears was read at `time`, and it is to be read from
    /// `done` on, ns. Until then it hides what was begun after it in its ring.
    #[derive(Clone, Copy, Debug)]
    struct WrittenRecord {
        /// In the deciding ring, and the reader is to come at once; otherwise in the other one.
        ends: bool,
        time: u64,
        done: u64,
    }

    const fn written(ends: bool, time: u64, done: u64) -> WrittenRecord {
        WrittenRecord { ends, time, done }
    }

    /// How long those that waited longest lay unread from the moment at which they could be read, ns.
    #[derive(Default, Debug)]
    struct Longest {
        ending: u64,
        other: u64,
    }

    impl Longest {
        fn is_bounded(&self) -> bool {
            let (soon, later) = (SOON.as_nanos() as u64, LATER.as_nanos() as u64);
            self.ending <= soon && self.other <= later
        }
    }

    /// One ring: what was begun and not yet read, and when one of its like last woke the reader.
    #[derive(Default)]
    struct Ring {
        lying: VecDeque<WrittenRecord>,
        woken: Option<u64>,
        edge: Option<u64>,
    }

    impl Ring {
        /// A record is done: wakes the reader, or does not.
        fn done(&mut self, record: WrittenRecord) {
            let pause = if record.ends { WAKE_PAUSE } else { READ_PAUSE };
            // An older time than that of the last wraps around in the program.
            let wakes = self.woken.and_then(|last| record.time.checked_sub(last));
            if wakes.is_none_or(|passed| passed > pause) {
                self.woken = Some(record.time);
                self.edge.get_or_insert(record.done + WAKING);
            }
        }

        /// Reads up to the first that is still being written; gives the longest wait, if anything was
        /// there.
        fn read(&mut self, now: u64) -> Option<u64> {
            let (mut longest, mut readable) = (None, 0);
            while let Some(record) = self.lying.pop_front_if(|record| record.done <= now) {
                readable = record.done.max(readable);
                longest = longest.max(Some(now - readable));
            }
            longest
        }
    }

    /// Plays records, in the order of their times, and what else makes the reader drain at `drains`.
    fn longest_wait(records: &[WrittenRecord], drains: &[u64]) -> Longest {
        let start = Instant::now();
        let (mut again, mut longest) = (DrainSchedule::new(start), Longest::default());
        again.drained(start, DrainResult::default());
        let (mut deciding, mut detail) = (Ring::default(), Ring::default());
        let mut to_begin: VecDeque<_> = records.iter().copied().collect();
        let mut to_end: Vec<_> = records.to_vec();
        to_end.sort_by_key(|record| record.done);
        let mut to_end = VecDeque::from(to_end);
        let mut drains: VecDeque<_> = drains.iter().copied().collect();
        while !to_end.is_empty() || !deciding.lying.is_empty() || !detail.lying.is_empty() {
            let look = (again.at() - start).as_nanos() as u64;
            let edges = [deciding.edge, detail.edge, drains.front().copied()];
            let drain = edges.into_iter().flatten().fold(look, u64::min);
            if let Some(record) = to_begin.front().copied().filter(|one| one.time < drain)
                && to_end.front().is_none_or(|ending| record.time <= ending.done)
            {
                to_begin.pop_front();
                let ring = if record.ends { &mut deciding } else { &mut detail };
                ring.lying.push_back(record);
                continue;
            }
            if let Some(record) = to_end.front().copied().filter(|one| one.done < drain) {
                to_end.pop_front();
                if record.ends { &mut deciding } else { &mut detail }.done(record);
                continue;
            }
            while drains.front().is_some_and(|at| *at <= drain) {
                drains.pop_front();
            }
            let woken = [&deciding, &detail].map(|ring| ring.edge.is_some_and(|at| at <= drain));
            let read = [&mut deciding, &mut detail].map(|ring| ring.read(drain));
            for ring in [&mut deciding, &mut detail] {
                // A ring that is empty when epoll looks was never readable.
                ring.edge = ring.edge.filter(|at| *at > drain && !ring.lying.is_empty());
            }
            longest.ending = longest.ending.max(read[0].unwrap_or(0));
            longest.other = longest.other.max(read[1].unwrap_or(0));
            let [ends, others] = [0, 1].map(|ring: usize| woken[ring] || read[ring].is_some());
            let at = start + Duration::from_nanos(drain);
            again
                .drained(at, DrainResult { anything: ends || others, deciding: ends, more: false });
        }
        longest
    }

    /// Each written in no time.
    fn at_once(records: &[(bool, u64)]) -> Vec<WrittenRecord> {
        records.iter().map(|(ends, time)| written(*ends, *time, *time)).collect()
    }

    #[test]
    fn what_may_not_wake_is_read_soon_all_the_same() {
        for (times, drains) in [
            // Silenced by the one before it.
            (&[1_000_000, 1_500_000][..], &[][..]),
            // Something else drains between the two; before the wake-up is noticed; twice.
            (&[1_000_000, 1_500_000], &[1_200_000]),
            (&[1_000_000, 1_500_000], &[1_020_000]),
            (&[1_000_000, 1_900_000], &[1_020_000, 1_400_000]),
            // The second wakes, the third is silenced by it.
            (&[1_000_000, 2_400_000, 3_200_000], &[]),
            (&[1_000_000, 2_400_000, 3_200_000], &[2_410_000]),
        ] {
            let records: Vec<_> = times.iter().map(|time| written(true, *time, *time)).collect();
            let longest = longest_wait(&records, drains);
            assert!(longest.is_bounded(), "{times:?}, {drains:?}: {longest:?}");
        }
    }

    #[test]
    fn what_ends_nothing_waits_longer_but_not_for_ever() {
        for (records, drains) in [
            (&[(false, 407 * MS)][..], &[][..]),
            (&[(false, 407 * MS), (false, 408 * MS), (false, 496 * MS), (false, 498 * MS)], &[]),
            (&[(false, 407 * MS), (false, 490 * MS), (false, 497 * MS)], &[480 * MS, 489 * MS]),
            // One kind does not silence the other.
            (&[(false, 407 * MS), (true, 407 * MS + 200_000), (true, 409 * MS)], &[]),
            (&[(true, 407 * MS), (false, 407 * MS + 200_000), (false, 412 * MS)], &[]),
        ] {
            let longest = longest_wait(&at_once(records), drains);
            assert!(longest.is_bounded(), "{records:?}, {drains:?}: {longest:?}");
        }
        let alone = longest_wait(&at_once(&[(false, 407 * MS)]), &[]);
        assert_eq!(alone.other, WAKING, "nobody comes by, so it wakes");
    }

    #[test]
    fn who_was_woken_and_found_a_record_half_written_comes_again() {
        for ends in [true, false] {
            // The second wakes the reader, which finds the first in its way; the first is silenced.
            // Long after the start, which is looked after.
            let at = 400 * MS;
            let records = [written(ends, at, at + MS), written(ends, at - 1, at + 1)];
            let longest = longest_wait(&records, &[]);
            assert!(longest.is_bounded(), "{ends}: {longest:?}");
        }
    }

    #[test]
    fn in_a_storm_nothing_waits_longer() {
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for round in 0..1_000 {
            // From a record every millisecond to one every 80, and drains as rare or as frequent.
            let scale = 1 + u64::from(round % 80u32);
            let mut at = MS;
            let records: Vec<WrittenRecord> = (0..50)
                .map(|_| {
                    at += 1 + next(1_500_000 * scale);
                    // Now and then it is interrupted.
                    let takes = if next(4) == 0 { next(900_000) } else { next(2_000) };
                    written(next(2) == 0, at, at + takes)
                })
                .collect();
            let mut at = MS;
            let drains: Vec<u64> = (0..50)
                .map(|_| {
                    at += 1 + next(900_000 * scale);
                    at
                })
                .collect();
            let longest = longest_wait(&records, &drains);
            assert!(longest.is_bounded(), "{records:?}, {drains:?}: {longest:?}");
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
