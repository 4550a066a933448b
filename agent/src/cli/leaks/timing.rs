//! When there is an answer: of one look, of the first one of a watch, of the wait for confirmation.
//! Decided by the judges' clock, which stands still through an outage, and by counts alone.

use super::Mode;
use coroner_core::leak::LeakKey;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// One look: what is left for so long, and is confirmed by the apiserver, may be a leak. Two lists
/// of the runtime at the least.
pub(super) const SCAN_THRESHOLD: Duration = Duration::from_secs(3);
/// Whatever else is missing by then, a look is over.
const MAX_SCAN: Duration = Duration::from_secs(30);
/// What has looked like a leak for so much longer than the threshold, and is not certain, is not
/// waited for any more: the apiserver may be slow to confirm.
pub(super) const LATE: Duration = Duration::from_secs(60);

/// What has been seen so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanProgress {
    /// Since the look began, outages included.
    pub(super) elapsed: Duration,
    /// The judges' clock.
    pub(super) watched: Duration,
    /// All there is on the host and of the runtime has been seen.
    pub(super) whole: bool,
    /// Things that look like a leak and are not certain.
    pub(super) candidates: usize,
    /// Those of them that have done so for [`SCAN_THRESHOLD`]: they can be named.
    pub(super) named: usize,
}

/// When the first answer can be given.
#[derive(Debug)]
pub(super) struct FirstScan {
    mode: Mode,
    /// All there is has been seen since, by the judges' clock.
    seen: Option<Duration>,
}

impl FirstScan {
    pub(super) fn new(mode: Mode) -> Self {
        Self { mode, seen: None }
    }

    /// All has been seen, and whatever looks like a leak has done so for long enough to be named;
    /// or it took too long.
    pub(super) fn is_over(&mut self, scan_progress: &ScanProgress) -> bool {
        if scan_progress.elapsed >= MAX_SCAN {
            return true;
        }
        if scan_progress.watched < SCAN_THRESHOLD || !scan_progress.whole {
            return false;
        }
        let unnamed = match self.mode {
            // Its threshold is one look: what is left by then awaits the apiserver's word.
            Mode::Once => scan_progress.candidates,
            Mode::Watch => scan_progress.candidates.saturating_sub(scan_progress.named),
            // Has its own way to wait for these.
            Mode::Wait => 0,
        };
        // On a busy node there is always something that came but now.
        let seen = *self.seen.get_or_insert(scan_progress.watched);
        unnamed == 0 || scan_progress.watched.saturating_sub(seen) >= 2 * SCAN_THRESHOLD
    }
}

/// For how long something that is not certain has looked like a leak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Age {
    /// Less than the threshold.
    Young,
    /// That long: it only waits for the apiserver's word.
    Ripe,
    /// Longer than that by [`LATE`].
    Late,
}

/// What confirmation is waited for.
#[derive(Debug)]
pub(super) struct ConfirmationWait {
    /// What looked like a leak when all had been seen.
    awaited: BTreeSet<LeakKey>,
    /// When it should be certain, by the judges' clock,
    due: Duration,
    /// and when it is given up.
    end: Duration,
}

impl ConfirmationWait {
    /// Of these suspects, which all there is has shown by now (`watched`).
    pub(super) fn of(
        awaited: impl IntoIterator<Item = LeakKey>,
        watched: Duration,
        threshold: Duration,
    ) -> Self {
        let due = watched + threshold;
        // The time of one with which the apiserver disagrees begins anew.
        Self { awaited: awaited.into_iter().collect(), due, end: due + threshold + LATE }
    }

    /// How long it takes still, if nothing comes in between.
    pub(super) fn to_go(&self, watched: Duration) -> Duration {
        self.due.saturating_sub(watched)
    }

    /// Each of them is certain or gone, and so is what only waits for the apiserver's word; or it
    /// took too long. `candidates`: what is not certain at this moment.
    pub(super) fn is_reached(
        &self,
        watched: Duration,
        candidates: &BTreeMap<LeakKey, Age>,
    ) -> bool {
        let is_open = |(key, age): (&LeakKey, &Age)| match age {
            Age::Young => self.awaited.contains(key),
            Age::Ripe => true,
            Age::Late => false,
        };
        watched >= self.end || (watched >= self.due && !candidates.iter().any(is_open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn the_first_answer_waits_for_what_it_can_name() {
        // Seconds since the look began and on the judges' clock; all seen; suspects, named ones.
        type Step = (u64, u64, bool, usize, usize);
        let cases: [(&str, Mode, &[Step], bool); 14] = [
            ("nothing is there", Mode::Watch, &[(3, 3, true, 0, 0)], true),
            ("one list of the runtime", Mode::Watch, &[(2, 2, true, 0, 0)], false),
            ("the host is not seen", Mode::Watch, &[(9, 9, false, 0, 0)], false),
            ("an outage", Mode::Watch, &[(20, 2, true, 0, 0)], false),
            ("it never becomes whole", Mode::Watch, &[(30, 1, false, 1, 0)], true),
            ("all are named", Mode::Watch, &[(3, 3, true, 2, 2)], true),
            ("one came but now", Mode::Watch, &[(3, 3, true, 2, 1)], false),
            ("and is named", Mode::Watch, &[(3, 3, true, 2, 1), (5, 5, true, 2, 2)], true),
            ("one always comes", Mode::Watch, &[(3, 3, true, 2, 1), (9, 9, true, 9, 8)], true),
            ("a stall is none", Mode::Watch, &[(3, 3, true, 2, 1), (25, 5, true, 2, 1)], false),
            ("one awaits the word", Mode::Once, &[(3, 3, true, 1, 1)], false),
            ("none does", Mode::Once, &[(3, 3, true, 0, 0)], true),
            ("for too long", Mode::Once, &[(3, 3, true, 1, 1), (9, 9, true, 1, 1)], true),
            ("what waits needs no names", Mode::Wait, &[(3, 3, true, 5, 0)], true),
        ];
        for (case, mode, steps, is_over) in cases {
            let mut first = FirstScan::new(mode);
            let mut over = false;
            for &(elapsed, watched, whole, candidates, named) in steps {
                let (elapsed, watched) = (secs(elapsed), secs(watched));
                over = first.is_over(&ScanProgress { elapsed, watched, whole, candidates, named });
            }
            assert_eq!(over, is_over, "{case}");
        }
    }

    #[test]
    fn certainty_waits_for_all_that_was_suspected() {
        let key = |id: &str| LeakKey::Sandbox { id: id.into() };
        let confirmation = ConfirmationWait::of([key("a"), key("b")], secs(10), secs(300));
        assert_eq!(
            (confirmation.to_go(secs(12)), confirmation.to_go(secs(400))),
            (secs(298), secs(0))
        );
        use Age::{Late, Ripe, Young};
        // What is not certain at this second of the judges' clock.
        type Suspects = &'static [(&'static str, Age)];
        let cases: [(&str, u64, Suspects, bool); 9] = [
            ("all are certain before the time", 309, &[], false),
            ("in time", 310, &[], true),
            ("one awaits the word", 310, &[("a", Ripe)], false),
            ("the time of one began anew", 310, &[("b", Young)], false),
            ("another one came but now", 310, &[("c", Young)], true),
            ("another one awaits the word", 310, &[("c", Ripe)], false),
            ("the word does not come", 370, &[("a", Late)], true),
            ("one goes on beginning anew", 669, &[("b", Young)], false),
            ("for too long", 670, &[("b", Young)], true),
        ];
        for (case, watched, candidates, is_reached) in cases {
            let candidates = candidates.iter().map(|(id, age)| (key(id), *age)).collect();
            assert_eq!(confirmation.is_reached(secs(watched), &candidates), is_reached, "{case}");
        }
    }
}
