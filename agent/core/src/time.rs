//! Time in the core: one monotonic clock, and a mapping to the wall clock.

use serde::{Deserialize, Serialize};
use std::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

/// Nanoseconds of CLOCK_BOOTTIME, the clock of all durations.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct BootTime(pub u64);

impl BootTime {
    /// The time since `earlier`; zero if `earlier` is the later one.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds since `earlier`; negative if `earlier` is the later one.
    pub fn signed_since(self, earlier: Self) -> i64 {
        self.0.wrapping_sub(earlier.0) as i64
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for BootTime {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for BootTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// The time of an unobserved change: between `earliest` and `latest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// When the last observation before the change was requested or made.
    pub earliest: BootTime,
    /// When the answer or event came that showed the change.
    pub latest: BootTime,
}

impl Interval {
    /// The length of the interval.
    pub fn uncertainty(self) -> Duration {
        self.latest.since(self.earliest)
    }
}

/// A duration in whole seconds, as Kubernetes has them; none is negative.
pub fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// Seconds for messages: tenths above one second, milliseconds below.
pub fn secs(time: Duration) -> String {
    let s = time.as_secs_f64();
    if s >= 1.0 { format!("{s:.1} s") } else { format!("{:.0} ms", s * 1000.0) }
}

/// Nanoseconds since the Unix epoch, by the wall clock of this or another machine.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WallTime(pub i64);

impl WallTime {
    /// From whole seconds since the epoch.
    pub fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }
}

/// CLOCK_BOOTTIME and CLOCK_REALTIME, read together: maps one to the other without a clock in the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Anchor {
    /// CLOCK_BOOTTIME, ns.
    pub boot_ns: u64,
    /// CLOCK_REALTIME at the same moment, ns since the epoch.
    pub wall_ns: i64,
}

impl Anchor {
    /// The wall clock at `at`.
    pub fn wall(&self, at: BootTime) -> WallTime {
        WallTime(self.wall_ns.saturating_add(at.signed_since(BootTime(self.boot_ns))))
    }

    /// How far the wall clock of a later reading differs from this mapping: it was set, or has drifted.
    pub fn drift(&self, later: &Anchor) -> Duration {
        let expected = self.wall(BootTime(later.boot_ns));
        Duration::from_nanos(later.wall_ns.abs_diff(expected.0))
    }

    /// The boot clock when the wall clock read `at`; 0 before the boot.
    pub fn boot(&self, at: WallTime) -> BootTime {
        let ns = i128::from(self.boot_ns) + i128::from(at.0) - i128::from(self.wall_ns);
        BootTime(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_strays_from_its_anchor() {
        let anchor = Anchor { boot_ns: 1_000, wall_ns: 5_000 };
        let hour = 3_600_000_000_000;
        let later = |by: i64| Anchor { boot_ns: 3_000, wall_ns: 7_000 + by };
        assert_eq!(anchor.drift(&later(0)), Duration::ZERO);
        assert_eq!(anchor.drift(&later(2 * hour)), Duration::from_secs(7200));
        assert_eq!(anchor.drift(&later(-2 * hour)), Duration::from_secs(7200));
    }
}
