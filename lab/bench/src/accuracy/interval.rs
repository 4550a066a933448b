//! Truth as an interval, and how far a claim is from it. Pure; nanoseconds throughout.

/// The event happened at `from` or later and at `to` or earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interval {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Interval {
    /// Ends in the wrong order make an interval of no width at the later end, which is the one that
    /// was seen from outside.
    pub(super) fn new(from: u64, to: u64) -> Self {
        Self { from: from.min(to), to }
    }

    pub(super) fn width(self) -> u64 {
        self.to - self.from
    }

    /// What the claim is wrong by at least: 0 inside.
    pub(super) fn distance(self, claim: u64) -> u64 {
        claim.saturating_sub(self.to).max(self.from.saturating_sub(claim))
    }

    /// What the claim can be wrong by at most: the distance to the farther end.
    pub(super) fn farthest(self, claim: u64) -> u64 {
        claim.abs_diff(self.from).max(claim.abs_diff(self.to))
    }
}

/// How a quantity is spread over its samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spread {
    pub(super) samples: usize,
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

impl Spread {
    /// `None` without samples: there is no percentile of nothing.
    pub(super) fn of(mut values: Vec<u64>) -> Option<Self> {
        values.sort_unstable();
        let max = *values.last()?;
        Some(Self {
            samples: values.len(),
            p50: nearest_rank(&values, 50),
            p99: nearest_rank(&values, 99),
            max,
        })
    }
}

/// The smallest value that at least `percent` of all do not exceed: always one that was measured.
fn nearest_rank(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_is_no_error_and_outside_counts_to_the_nearer_end() {
        let truth = Interval::new(100, 110);
        for (claim, distance, farthest) in
            [(100, 0, 10), (105, 0, 5), (110, 0, 10), (97, 3, 13), (115, 5, 15), (0, 100, 110)]
        {
            assert_eq!(truth.distance(claim), distance, "{claim}");
            assert_eq!(truth.farthest(claim), farthest, "{claim}");
        }
        assert_eq!(truth.width(), 10);
    }

    #[test]
    fn ends_in_the_wrong_order_have_no_width() {
        let odd = Interval::new(120, 110);
        assert_eq!((odd.width(), odd.distance(110), odd.distance(120)), (0, 0, 10));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        assert_eq!(Spread::of(vec![]), None);
        let one = Spread::of(vec![7]).unwrap();
        assert_eq!((one.samples, one.p50, one.p99, one.max), (1, 7, 7, 7));
        let four = Spread::of(vec![4, 1, 3, 2]).unwrap();
        assert_eq!((four.p50, four.p99, four.max), (2, 4, 4));
        let many = Spread::of((1..=200).rev().collect()).unwrap();
        assert_eq!((many.p50, many.p99, many.max), (100, 198, 200));
    }
}
