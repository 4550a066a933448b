//! When the agents of a fleet ask, if all of them have reason to at once. Pure: the same seed gives
//! the same moments.

use std::time::Duration;

/// What an agent does before it asks (`agent/src/sources/kube/watch.rs`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Manners {
    /// The first pause after a failure,
    pub(crate) min_pause: Duration,
    /// the longest,
    pub(crate) max_pause: Duration,
    /// and what is added to each of them, and waited before the first list: up to so much.
    pub(crate) spread: Duration,
    /// How long a watch lasts: whole seconds, from the one to the other.
    pub(crate) watch: (Duration, Duration),
}

/// A generator of random numbers: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    /// From 0 to below 1.
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.fraction())
    }
}

/// The moments of requests, seconds since whatever happened to all.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Arrivals(Vec<f64>);

impl Arrivals {
    fn of(moments: impl Iterator<Item = Duration>) -> Self {
        let mut moments: Vec<f64> = moments.map(|moment| moment.as_secs_f64()).collect();
        moments.sort_by(f64::total_cmp);
        Self(moments)
    }

    /// The most that come within a second, whenever that begins.
    pub(crate) fn peak(&self) -> usize {
        let mut from = 0;
        let mut most = 0;
        for (to, moment) in self.0.iter().enumerate() {
            while moment - self.0[from] >= 1.0 {
                from += 1;
            }
            most = most.max(to - from + 1);
        }
        most
    }

    /// When the last one comes.
    pub(crate) fn last(&self) -> f64 {
        self.0.last().copied().unwrap_or_default()
    }
}

/// All agents start in the same moment: their first lists.
pub(crate) fn start(agents: usize, manners: &Manners, seed: u64) -> Arrivals {
    let mut random = Random(seed);
    Arrivals::of((0..agents).map(|_| random.up_to(manners.spread)))
}

/// All watches break in the same moment, and connections are refused for so long: the requests that
/// get through, one of each agent.
pub(crate) fn outage(agents: usize, long: Duration, manners: &Manners, seed: u64) -> Arrivals {
    let mut random = Random(seed);
    Arrivals::of((0..agents).map(|_| {
        let (mut at, mut pause) = (Duration::ZERO, manners.min_pause);
        loop {
            // backon adds up to as much again.
            at += pause + random.up_to(pause) + random.up_to(manners.spread);
            pause = (pause * 2).min(manners.max_pause);
            if at >= long {
                return at;
            }
        }
    }))
}

/// Watches that all began in the same moment, renewed whenever they are over, until `end`: the
/// renewals of the last stretch of time that a watch can last.
pub(crate) fn renewals(agents: usize, end: Duration, manners: &Manners, seed: u64) -> Arrivals {
    let mut random = Random(seed);
    let (least, most) = manners.watch;
    let mut moments = Vec::new();
    for _ in 0..agents {
        // An agent decides once how long its watches last, in whole seconds: agents that decide alike
        // stay together, as far apart as they began.
        let choices = most.saturating_sub(least) + Duration::from_secs(1);
        let long = Duration::from_secs((least + random.up_to(choices)).as_secs()).min(most);
        let mut at = random.up_to(manners.spread);
        while at < end {
            if at + most >= end {
                moments.push(at);
            }
            at += long.max(Duration::from_secs(1));
        }
    }
    Arrivals::of(moments.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn manners(spread: Duration) -> Manners {
        Manners {
            min_pause: SECOND / 5,
            max_pause: 5 * SECOND,
            spread,
            watch: (90 * SECOND, 120 * SECOND),
        }
    }

    #[test]
    fn a_peak_is_of_any_second() {
        let of = |moments: &[f64]| Arrivals(moments.to_vec()).peak();
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[0.0, 0.9, 1.0, 1.5, 1.8]), 4, "from 0.9 on");
        assert_eq!(of(&[0.0, 1.0, 2.0]), 1);
    }

    #[test]
    fn those_who_start_together_ask_apart() {
        let together = start(1000, &manners(Duration::ZERO), 1);
        assert_eq!((together.peak(), together.0.len()), (1000, 1000));
        let apart = start(1000, &manners(4 * SECOND), 1);
        assert!((200..350).contains(&apart.peak()), "{}", apart.peak());
        assert!(apart.last() < 4.0);
        assert_eq!(apart, start(1000, &manners(4 * SECOND), 1), "the same seed, the same moments");
        assert_ne!(apart, start(1000, &manners(4 * SECOND), 2));
    }

    #[test]
    fn after_an_outage_each_comes_back_once_and_soon() {
        for long in [SECOND / 10, SECOND, 60 * SECOND] {
            let back = outage(500, long, &manners(2 * SECOND), 7);
            assert_eq!(back.0.len(), 500);
            let longest = long.as_secs_f64() + 2.0 * 5.0 + 2.0;
            assert!(back.last() <= longest, "{long:?}: {}", back.last());
        }
        let short = outage(500, SECOND / 10, &manners(Duration::ZERO), 7);
        assert_eq!(short.peak(), 500, "all within the first pause");
    }

    #[test]
    fn watches_of_one_length_are_renewed_together_for_ever() {
        let hour = 3600 * SECOND;
        let same = Manners { watch: (120 * SECOND, 120 * SECOND), ..manners(Duration::ZERO) };
        assert_eq!(renewals(1000, hour, &same, 3).peak(), 1000);
        let apart = renewals(1000, hour, &manners(2 * SECOND), 3);
        assert!(apart.peak() < 150, "{}", apart.peak());
        assert!(apart.0.len() >= 1000, "each at least once: {}", apart.0.len());
    }
}
