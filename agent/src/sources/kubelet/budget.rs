//! How much of the log is read in a second: a kubelet at `-v=4` on a busy node writes thousands of lines.

use coroner_core::time::BootTime;

/// Lines and bytes in a second, and at most two seconds' worth at once.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    rates: Option<[u64; 2]>,
    left: [u64; 2],
    last: Option<BootTime>,
}

impl Budget {
    /// A live log's.
    pub(super) fn live() -> Self {
        Self::new(5_000, 4 << 20)
    }

    /// None: a person waits for the whole log.
    pub(super) fn unlimited() -> Self {
        Self { rates: None, left: [0; 2], last: None }
    }

    /// It is a person's.
    pub(super) fn is_unlimited(&self) -> bool {
        self.rates.is_none()
    }

    pub(super) fn new(lines: u64, bytes: u64) -> Self {
        Self { rates: Some([lines, bytes]), left: [2 * lines, 2 * bytes], last: None }
    }

    /// Whether a line of so many bytes may be read now; it is paid for, then.
    pub(super) fn allows(&mut self, bytes: usize, now: BootTime) -> bool {
        let Some(rates) = self.rates else { return true };
        let passed = self.last.map_or(0, |last| now.0.saturating_sub(last.0));
        // In steps of a millisecond, so that no part of a line's worth is lost.
        let millis = passed / 1_000_000;
        if self.last.is_none() || millis > 0 {
            self.last = Some(BootTime(now.0 - (passed % 1_000_000).min(now.0)));
            for (left, rate) in self.left.iter_mut().zip(rates) {
                let earned = u128::from(rate) * u128::from(millis) / 1_000;
                let earned = u64::try_from(earned).unwrap_or(u64::MAX);
                *left = left.saturating_add(earned).min(2 * rate);
            }
        }
        let price = [1, bytes as u64];
        let affordable = self.left.iter().zip(price).all(|(left, price)| *left >= price);
        if affordable {
            self.left.iter_mut().zip(price).for_each(|(left, price)| *left -= price);
        }
        affordable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_comes_back_with_time() {
        let mut budget = Budget::new(10, 100);
        let at = |millis: u64| BootTime(1_000_000 * millis);
        let spent = (0..50).filter(|_| budget.allows(1, at(0))).count();
        assert_eq!(spent, 20);
        assert!(!budget.allows(1, at(99)) && budget.allows(1, at(200)));
        assert!(!budget.allows(1000, at(100_000)), "more bytes than there ever are");
        assert!(budget.allows(200, at(100_000)));
    }
}
