//! A point in time, on both clocks.

use coroner_core::time::{Anchor, BootTime, WallTime};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Moment {
    /// The time of the node's wall clock, in UTC: RFC 3339 with nanoseconds.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub time: WallTime,
    /// Nanoseconds of the node's CLOCK_BOOTTIME. Differences are exact even if the wall clock is changed. Comparable only
    /// within one `bootId`. Absent: before this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_ns: Option<u64>,
}

impl Moment {
    /// A time of the boot clock.
    pub fn of_boot(at: BootTime, clock: &Anchor) -> Self {
        Self { time: clock.wall(at), boot_ns: Some(at.0) }
    }

    /// A time of the wall clock.
    pub fn of_wall(time: WallTime, clock: &Anchor) -> Self {
        Self { time, boot_ns: Some(clock.boot(time).0).filter(|ns| *ns > 0) }
    }

    /// The time of the boot clock; 0 if it is not known.
    pub fn boot(self) -> BootTime {
        BootTime(self.boot_ns.unwrap_or_default())
    }
}

/// A wall clock's time as RFC 3339, with nanoseconds, in UTC.
pub mod rfc3339 {
    use super::{Timestamp, WallTime};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::borrow::Cow;

    /// As text. A time out of the calendar's range is its nearest end.
    pub fn text(time: WallTime) -> String {
        let time = Timestamp::from_nanosecond(time.0.into()).unwrap_or(Timestamp::MAX);
        time.strftime("%Y-%m-%dT%H:%M:%S%.9fZ").to_string()
    }

    pub(crate) fn serialize<S: Serializer>(time: &WallTime, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&text(*time))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<WallTime, D::Error> {
        let text = Cow::<'de, str>::deserialize(from)?;
        let time: Timestamp = text.parse().map_err(D::Error::custom)?;
        let ns = i64::try_from(time.as_nanosecond()).map_err(D::Error::custom)?;
        Ok(WallTime(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_and_every_nanosecond() {
        let clock = Anchor { boot_ns: 5, wall_ns: 1_790_000_000_000_000_007 };
        let moment = Moment::of_boot(BootTime(8), &clock);
        let json = r#"{"time":"2026-09-21T14:13:20.000000010Z","bootNs":8}"#;
        assert_eq!(serde_json::to_string(&moment).unwrap(), json);
        assert_eq!(serde_json::from_str::<Moment>(json).unwrap(), moment);
        assert_eq!(Moment::of_wall(moment.time, &clock), moment);
        assert_eq!(Moment::of_wall(WallTime(7), &clock).boot_ns, None, "before the boot");
        for ns in [i64::MIN, -1, i64::MAX] {
            let json =
                serde_json::to_string(&Moment { time: WallTime(ns), boot_ns: None }).unwrap();
            assert_eq!(serde_json::from_str::<Moment>(&json).unwrap().time.0, ns);
        }
    }
}
