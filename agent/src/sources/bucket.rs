//! Token buckets: how many Events may be sent or listed. Pure: the moments come in.

use std::time::Duration;
use tokio::time::Instant;

/// A bucket's size and how fast it fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// So many at once.
    pub burst: u32,
    /// One more after each such time.
    pub every: Duration,
}

#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    left: u32,
    /// Since when the next token fills.
    since: Instant,
}

impl Bucket {
    pub(crate) fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, left: rate.burst, since: now }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// When the next token comes, if there is none.
    pub(crate) fn next(&self) -> Instant {
        self.since + self.rate.every
    }

    fn fill(&mut self, now: Instant) {
        while self.left < self.rate.burst && now.duration_since(self.since) >= self.rate.every {
            self.left += 1;
            self.since += self.rate.every.max(Duration::from_nanos(1));
        }
        if self.left >= self.rate.burst {
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_one_by_one() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut bucket = Bucket::full(Rate { burst: 2, every: Duration::from_secs(10) }, start);
        let taken = [0, 0, 0, 9, 10, 11, 19, 20, 20].map(|seconds| bucket.take(at(seconds)));
        assert_eq!(taken, [true, true, false, false, true, false, false, true, false]);
    }

    #[test]
    fn it_never_holds_more_than_a_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::full(Rate { burst: 2, every: Duration::from_secs(10) }, start);
        assert!(bucket.take(start));
        let later = start + Duration::from_secs(86_400);
        assert_eq!([(); 3].map(|()| bucket.take(later)), [true, true, false]);
        // The next one fills from now on, not since long ago.
        assert!(!bucket.take(later + Duration::from_secs(9)));
        assert!(bucket.take(later + Duration::from_secs(10)));
    }
}
