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
const AFTER: Duration = Duration::from_nanos(2 * coroner_ebpf::maps::WAKE_PAUSE);

/// When the reader looks again by itself.
#[derive(Debug, Default)]
pub(super) struct Again(Option<Instant>);

impl Again {
    /// The rings were drained, which `found` what decides, or had to hold something back.
    pub(super) fn drained(&mut self, now: Instant, found: bool) {
        if found {
            self.0 = Some(now + AFTER);
        } else if self.0.is_some_and(|at| at <= now) {
            self.0 = None;
        }
    }

    /// When to look, if at all.
    pub(super) fn at(&self) -> Option<Instant> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_ebpf::maps::WAKE_PAUSE;
    use std::collections::VecDeque;

    const TICK: u64 = 100_000_000;
    /// From a wake-up in the kernel to the drain that follows from it.
    const WAKING: u64 = 50_000;

    /// Plays records that end something, written at `written` (ns, ascending), and what else makes the
    /// reader drain at `drains`: how long the one that waited longest lay unread, ns.
    fn longest_wait(written: &[u64], drains: &[u64]) -> u64 {
        let start = Instant::now();
        let (mut again, mut unread) = (Again::default(), Vec::new());
        let (mut woken, mut edge, mut longest) = (None::<u64>, None, 0);
        let mut written: VecDeque<_> = written.iter().copied().collect();
        let mut drains: VecDeque<_> = drains.iter().copied().collect();
        let mut tick = TICK;
        while !written.is_empty() || !unread.is_empty() {
            let look = again.at().map(|at| (at - start).as_nanos() as u64);
            let wake = [look, edge, drains.front().copied()].into_iter().flatten().min();
            let drain = wake.unwrap_or(tick).min(tick);
            if let Some(at) = written.front().copied().filter(|at| *at < drain) {
                written.pop_front();
                unread.push(at);
                if woken.is_none_or(|woken| at - woken > WAKE_PAUSE) {
                    woken = Some(at);
                    edge.get_or_insert(at + WAKING);
                }
                continue;
            }
            tick = tick.max(drain + if drain == tick { TICK } else { 0 });
            while drains.front().is_some_and(|at| *at <= drain) {
                drains.pop_front();
            }
            // A ring that is empty when epoll looks was never readable.
            edge = None;
            longest = unread.iter().map(|at| drain - at).fold(longest, u64::max);
            let found = !unread.is_empty();
            unread.clear();
            again.drained(start + Duration::from_nanos(drain), found);
        }
        longest
    }

    #[test]
    fn what_may_not_wake_is_read_soon_all_the_same() {
        let at_most = AFTER.as_nanos() as u64;
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
            let longest = longest_wait(written, drains);
            assert!(longest <= at_most, "{written:?}, {drains:?}: {longest} ns");
        }
    }

    #[test]
    fn in_a_storm_nothing_waits_longer() {
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for _ in 0..200 {
            let series = |step: u64, next: &mut dyn FnMut(u64) -> u64| -> Vec<u64> {
                let steps = (0..50).scan(1_000_000, |at, _| {
                    *at += 1 + next(step);
                    Some(*at)
                });
                steps.collect()
            };
            let (written, drains) = (series(1_500_000, &mut next), series(900_000, &mut next));
            let longest = longest_wait(&written, &drains);
            assert!(longest <= AFTER.as_nanos() as u64, "{written:?}, {drains:?}: {longest} ns");
        }
    }

    #[test]
    fn an_idle_reader_is_left_alone() {
        let (now, mut again) = (Instant::now(), Again::default());
        again.drained(now, false);
        assert_eq!(again.at(), None);
        again.drained(now, true);
        again.drained(now + AFTER / 2, false);
        assert_eq!(again.at(), Some(now + AFTER), "the one that is due stays");
        again.drained(now + AFTER, false);
        assert_eq!(again.at(), None);
    }
}
