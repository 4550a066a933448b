//! When the reader looks into the rings again though nothing wakes it.

use std::time::Duration;
use tokio::time::Instant;

/// After a look that found what decides; and after one that had to hold something back for the sake of
/// order.
///
/// What ends something wakes the reader, but not within [`WAKE_PAUSE`](coroner_ebpf::maps::WAKE_PAUSE)
/// of the last that did. So whatever decides may be followed by what may not wake, however it was
/// found: a drain that comes before the wake-up is noticed forestalls it, and the pause runs all the
/// same.
const SOON: Duration = Duration::from_nanos(2 * coroner_ebpf::maps::WAKE_PAUSE);
/// After a look that found anything at all, for the same reason: what does not end anything wakes the
/// reader too, but not within [`READ_PAUSE`](coroner_ebpf::maps::READ_PAUSE) of the last that did.
pub(super) const LATER: Duration = Duration::from_nanos(coroner_ebpf::maps::READ_PAUSE);
/// While nothing is written. What a program could not write is counted, and wakes nobody.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// When the reader looks again by itself.
#[derive(Debug)]
pub(super) struct Again {
    soon: Option<Instant>,
    later: Instant,
}

/// What a look has found.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Found {
    pub(super) anything: bool,
    /// In the deciding ring; or something had to be held back.
    pub(super) deciding: bool,
}

impl Again {
    /// At once.
    pub(super) fn new(now: Instant) -> Self {
        Self { soon: None, later: now }
    }

    /// The rings were drained.
    pub(super) fn drained(&mut self, now: Instant, found: Found) {
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

    /// When to look, if nothing wakes the reader before.
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

    /// Whether a record ends something, and when it is written, ns.
    type Record = (bool, u64);

    /// How long those that waited longest lay unread, ns.
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

    /// Plays records, in the order of time, and what else makes the reader drain at `drains`.
    fn longest_wait(records: &[Record], drains: &[u64]) -> Longest {
        let start = Instant::now();
        let at = |nanos| start + Duration::from_nanos(nanos);
        let (mut again, mut unread) = (Again::new(start), Vec::<Record>::new());
        again.drained(start, Found::default());
        let (mut woken, mut woken_idly, mut edge) = (None::<u64>, None::<u64>, None);
        let mut longest = Longest::default();
        let mut records: VecDeque<_> = records.iter().copied().collect();
        let mut drains: VecDeque<_> = drains.iter().copied().collect();
        while !records.is_empty() || !unread.is_empty() {
            let look = (again.at() - start).as_nanos() as u64;
            let drain = [edge, drains.front().copied()].into_iter().flatten().fold(look, u64::min);
            if let Some((ends, written)) = records.front().copied().filter(|(_, at)| *at < drain) {
                records.pop_front();
                unread.push((ends, written));
                let (last, pause) = match ends {
                    true => (&mut woken, WAKE_PAUSE),
                    false => (&mut woken_idly, READ_PAUSE),
                };
                if last.is_none_or(|last| written - last > pause) {
                    *last = Some(written);
                    edge.get_or_insert(written + WAKING);
                }
                continue;
            }
            while drains.front().is_some_and(|at| *at <= drain) {
                drains.pop_front();
            }
            // A ring that is empty when epoll looks was never readable.
            edge = None;
            let deciding = unread.iter().any(|(ends, _)| *ends);
            let found = Found { anything: !unread.is_empty(), deciding };
            for (ends, written) in unread.drain(..) {
                let longest = if ends { &mut longest.ending } else { &mut longest.other };
                *longest = (*longest).max(drain - written);
            }
            again.drained(at(drain), found);
        }
        longest
    }

    #[test]
    fn what_may_not_wake_is_read_soon_all_the_same() {
        for (written, drains) in [
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
            let records: Vec<Record> = written.iter().map(|written| (true, *written)).collect();
            let longest = longest_wait(&records, drains);
            assert!(longest.is_bounded(), "{written:?}, {drains:?}: {longest:?}");
        }
    }

    #[test]
    fn what_ends_nothing_waits_longer_but_not_for_ever() {
        for (records, drains) in [
            (&[(false, 7 * MS)][..], &[][..]),
            (&[(false, 7 * MS), (false, 8 * MS), (false, 106 * MS), (false, 108 * MS)], &[]),
            (&[(false, 7 * MS), (false, 100 * MS), (false, 107 * MS)], &[90 * MS, 99 * MS]),
            // One kind does not silence the other.
            (&[(false, 7 * MS), (true, 7 * MS + 200_000), (true, 9 * MS)], &[]),
            (&[(true, 7 * MS), (false, 7 * MS + 200_000), (false, 12 * MS)], &[]),
        ] {
            let longest = longest_wait(records, drains);
            assert!(longest.is_bounded(), "{records:?}, {drains:?}: {longest:?}");
        }
        let alone = longest_wait(&[(false, 7 * MS)], &[]);
        assert_eq!(alone.other, WAKING, "nobody comes by, so it wakes");
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
            let records: Vec<Record> = (0..50)
                .map(|_| {
                    at += 1 + next(1_500_000 * scale);
                    (next(2) == 0, at)
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
        let (nothing, deciding) = (Found::default(), Found { anything: true, deciding: true });
        let now = Instant::now();
        let mut again = Again::new(now);
        assert_eq!(again.at(), now);
        again.drained(now, nothing);
        assert_eq!(again.at(), now + IDLE);
        again.drained(now, deciding);
        again.drained(now + SOON / 2, nothing);
        assert_eq!(again.at(), now + SOON, "the one that is due stays");
        again.drained(now + SOON, nothing);
        assert_eq!(again.at(), now + LATER);
        again.drained(now + LATER, nothing);
        assert_eq!(again.at(), now + LATER + IDLE);
    }
}
