//! Time: one monotonic clock, and a mapping to the wall clock.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::{
    borrow::Cow,
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
    pub fn since(self, earlier: impl Into<Self>) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.into().0))
    }

    /// Nanoseconds since `earlier`; negative if `earlier` is the later one.
    pub fn signed_since(self, earlier: impl Into<Self>) -> i64 {
        self.0.wrapping_sub(earlier.into().0) as i64
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
    pub fn uncertainty(self) -> Duration {
        self.latest.since(self.earliest)
    }
}

/// The kubelet's floor for the grace before SIGKILL (`minimumGracePeriodInSeconds`, kuberuntime_manager.go).
pub const GRACE_FLOOR_SECONDS: i64 = 2;

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
    pub fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }
}

impl fmt::Display for WallTime {
    /// RFC 3339 with nanoseconds, in UTC. A time out of the calendar's range is its nearest end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Timestamp::from_nanosecond(self.0.into()).unwrap_or(Timestamp::MAX);
        write!(f, "{time:.9}")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Moment {
    /// Nanoseconds of the node's CLOCK_BOOTTIME. Differences are exact even if the wall clock is changed. Comparable only
    /// within one `bootId`. Absent: before this boot.
    #[serde(rename = "bootNs", default, skip_serializing_if = "crate::serialize::is_zero")]
    #[cfg_attr(feature = "openapi", schema(value_type = u64, required = false))]
    pub boot: BootTime,
    /// The time of the node's wall clock, in UTC: RFC 3339 with nanoseconds.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub time: WallTime,
}

impl Moment {
    pub fn of_boot(at: BootTime, clock: &Anchor) -> Self {
        Self { boot: at, time: clock.wall(at) }
    }

    pub fn of_wall(time: WallTime, clock: &Anchor) -> Self {
        Self { boot: clock.boot(time), time }
    }

    pub fn since(self, earlier: impl Into<BootTime>) -> Duration {
        self.boot.since(earlier)
    }

    pub fn signed_since(self, earlier: impl Into<BootTime>) -> i64 {
        self.boot.signed_since(earlier)
    }

    pub(crate) fn date(&mut self, clock: &Anchor) {
        self.time = clock.wall(self.boot);
    }
}

/// Not dated yet: the engine dates a report when it is complete.
impl From<BootTime> for Moment {
    fn from(boot: BootTime) -> Self {
        Self { boot, time: WallTime::default() }
    }
}

impl From<Moment> for BootTime {
    fn from(moment: Moment) -> Self {
        moment.boot
    }
}

impl PartialEq<BootTime> for Moment {
    fn eq(&self, other: &BootTime) -> bool {
        self.boot == *other
    }
}

fn as_text<S: Serializer>(time: &WallTime, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(time)
}

fn from_text<'de, D: Deserializer<'de>>(from: D) -> Result<WallTime, D::Error> {
    let text = Cow::<'de, str>::deserialize(from)?;
    let time: Timestamp = text.parse().map_err(D::Error::custom)?;
    i64::try_from(time.as_nanosecond()).map(WallTime).map_err(D::Error::custom)
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
    #[test]
    fn both_clocks_and_every_nanosecond() {
        let clock = Anchor { boot_ns: 5, wall_ns: 1_790_000_000_000_000_007 };
        let moment = Moment::of_boot(BootTime(8), &clock);
        let json = r#"{"bootNs":8,"time":"2026-09-21T14:13:20.000000010Z"}"#;
        assert_eq!(serde_json::to_string(&moment).unwrap(), json);
        assert_eq!(serde_json::from_str::<Moment>(json).unwrap(), moment);
        assert_eq!(Moment::of_wall(moment.time, &clock), moment);
        let before_boot = Moment::of_wall(WallTime(7), &clock);
        assert!(!serde_json::to_string(&before_boot).unwrap().contains("bootNs"));
        for time in [i64::MIN, -1, i64::MAX].map(WallTime) {
            let moment = Moment { boot: BootTime(0), time };
            let json = serde_json::to_string(&moment).unwrap();
            assert_eq!(serde_json::from_str::<Moment>(&json).unwrap(), moment);
        }
    }
}
