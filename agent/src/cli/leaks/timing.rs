//! When a list is complete enough to print: after one scan, for the first list of a watch, and after the wait for
//! confirmation. Uses only counts and the clock of leak detection, which stops during an outage.

use super::Mode;
use coroner_core::leak::LeakKey;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Time after which a candidate that the apiserver does not clear is listed by one scan. Covers at least two
/// lists of the runtime.
pub(super) const SCAN_THRESHOLD: Duration = Duration::from_secs(3);
/// Maximum duration of a scan, complete or not.
const MAX_SCAN: Duration = Duration::from_secs(30);
/// How much longer than the threshold to wait for the apiserver to confirm a candidate.
pub(super) const LATE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub(super) struct ScanProgress {
    /// Time since the scan started, including outages.
    pub(super) elapsed: Duration,
    /// Clock of leak detection.
    pub(super) watched: Duration,
    /// Host and runtime have been scanned completely.
    pub(super) whole: bool,
    /// Number of candidates.
    pub(super) candidates: usize,
    /// Number of candidates observed for [`SCAN_THRESHOLD`], which are listed.
    pub(super) named: usize,
}

/// Decides when the first list can be printed.
#[derive(Debug)]
pub(super) struct FirstScan {
    mode: Mode,
    /// When the scan was complete, by the clock of leak detection.
    seen: Option<Duration>,
}

impl FirstScan {
    pub(super) fn new(mode: Mode) -> Self {
        Self { mode, seen: None }
    }

    /// The scan is complete and all candidates are old enough to be listed, or the scan took too long.
    pub(super) fn is_over(&mut self, scan_progress: &ScanProgress) -> bool {
        if scan_progress.elapsed >= MAX_SCAN {
            return true;
        }
        if scan_progress.watched < SCAN_THRESHOLD || !scan_progress.whole {
            return false;
        }
        let unnamed = match self.mode {
            // The threshold is one scan: the remaining candidates wait for the apiserver.
            Mode::Once => scan_progress.candidates,
            Mode::Watch => scan_progress.candidates.saturating_sub(scan_progress.named),
            // `ConfirmationWait` waits for these.
            Mode::Wait => 0,
        };
        // On a busy node there is always a new candidate.
        let seen = *self.seen.get_or_insert(scan_progress.watched);
        unnamed == 0 || scan_progress.watched.saturating_sub(seen) >= 2 * SCAN_THRESHOLD
    }
}

/// How long a candidate has been observed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Age {
    /// Less than the threshold.
    Young,
    /// At least the threshold: only the apiserver's confirmation is missing.
    Ripe,
    /// Longer than the threshold by [`LATE`].
    Late,
}

/// Decides when all candidates of a complete scan are confirmed or gone.
#[derive(Debug)]
pub(super) struct ConfirmationWait {
    /// The candidates when the scan was complete.
    awaited: BTreeSet<LeakKey>,
    /// When the candidates should be confirmed, by the clock of leak detection.
    due: Duration,
    /// When the wait is given up.
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
        type ExpectedStep = (u64, u64, bool, usize, usize);
        let cases: [(&str, Mode, &[ExpectedStep], bool); 14] = [
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
