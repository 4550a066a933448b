//! The time of a line. klog writes the wall clock in the node's time zone, without year and zone; the journal adds
//! when it received the line, on two clocks.

use coroner_core::time::{Anchor, BootTime, WallTime};

/// When a line says that it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineTime {
    /// klog's text: the node's local time, without a year.
    Klog { month: i8, day: i8, hour: i8, minute: i8, second: i8, micros: u32 },
    /// klog's JSON.
    Wall(WallTime),
}

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;

/// Zones differ from UTC by a multiple of this.
const ZONE_STEP: i64 = 15 * MINUTE;
/// The zones that exist: -12:00 to +14:00.
const ZONES: std::ops::RangeInclusive<i64> = -12 * 60 * MINUTE..=14 * 60 * MINUTE;

/// klog and the journal cut microseconds.
const ROUNDING_NS: u64 = 1_000;
/// A clock that is being adjusted runs this much too fast or too slow at most (adjtimex(2): 500 ppm).
const SLEW: u64 = 2_000;
/// A line comes after it was written. How much earlier it may seem to come: the clock was set back in between, or a
/// file's time is that of the last tick.
const EARLIEST: i64 = 30 * SECOND;
/// A line that came later than this cannot be told from one of the next zone.
const LATEST: i64 = ZONE_STEP - EARLIEST;

impl LineTime {
    /// The wall clock if the zone were UTC, in the last year that is not after `near`.
    fn as_utc(self, near: WallTime) -> Option<i64> {
        match self {
            Self::Wall(time) => Some(time.0),
            Self::Klog { month, day, hour, minute, second, micros } => {
                let year = jiff::Timestamp::from_nanosecond(near.0.into()).ok()?;
                let year = year.to_zoned(jiff::tz::TimeZone::UTC).year();
                let nanos = i32::try_from(micros.min(999_999)).ok()? * 1_000;
                let of = |year: i16| -> Option<i64> {
                    let time =
                        jiff::civil::DateTime::new(year, month, day, hour, minute, second, nanos);
                    let time = time.ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
                    i64::try_from(time.timestamp().as_nanosecond()).ok()
                };
                // 29 February exists in some of them only.
                let years = [year.checked_sub(1)?, year, year.checked_add(1)?];
                // Lines are not from the future, but for the zone.
                let latest = near.0.saturating_add(24 * 60 * MINUTE);
                years.into_iter().filter_map(of).filter(|time| *time <= latest).max()
            }
        }
    }

    /// The zone of this line, if it was written at most [`LATEST`] before `near`.
    fn zone(self, near: WallTime) -> Option<i64> {
        match self {
            Self::Wall(_) => Some(0),
            Self::Klog { .. } => {
                let ahead = self.as_utc(near)?.checked_sub(near.0)?;
                let zone = (ahead + LATEST).div_euclid(ZONE_STEP) * ZONE_STEP;
                ZONES.contains(&zone).then_some(zone)
            }
        }
    }
}

/// What is known of the moment at which a line was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Receipt {
    /// Read from a file, or from standard input: nothing but the line's own time.
    File {
        /// The two clocks now.
        anchor: Anchor,
        /// A moment near that of the line: the end of the file's last change.
        near: WallTime,
        /// The node's zone, ns ahead of UTC.
        zone: i64,
    },
    /// The journal received it.
    Journal {
        /// The wall clock at the receipt.
        wall: WallTime,
        /// The boot clock at the receipt.
        boot: BootTime,
        /// How far `boot` may be off, ns.
        uncertainty_ns: u64,
    },
}

/// The time of a line on all clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment {
    pub(super) wall: WallTime,
    pub(super) boot: BootTime,
    pub(super) uncertainty_ns: u64,
}

/// The node's zone, by a line that was written shortly before `near`.
pub(super) fn zone(line: LineTime, near: WallTime) -> Option<i64> {
    line.zone(near)
}

/// The zone in which these lines, the first and the last one of a log, are nearest to a moment: UTC if that is as good
/// as any other.
pub(super) fn zone_around(first: LineTime, last: LineTime, moment: WallTime) -> Option<i64> {
    let (first, last) = (first.as_utc(moment)?, last.as_utc(moment)?);
    let distance = |zone: i64| {
        let (first, last) = (first.saturating_sub(zone), last.saturating_sub(zone));
        first.saturating_sub(moment.0).max(moment.0.saturating_sub(last)).max(0)
    };
    let zones = (*ZONES.start()..=*ZONES.end()).step_by(usize::try_from(ZONE_STEP).ok()?);
    zones.min_by_key(|zone| (distance(*zone), zone.abs()))
}

/// When the line was written; `None`: before this boot, or at no time at all.
pub(super) fn moment(line: LineTime, receipt: &Receipt) -> Option<Moment> {
    let moment = match *receipt {
        Receipt::File { anchor, near, zone } => {
            let zone = if matches!(line, LineTime::Wall(_)) { 0 } else { zone };
            let wall =
                WallTime(line.as_utc(WallTime(near.0.saturating_add(zone)))?.checked_sub(zone)?);
            let uncertainty_ns = ROUNDING_NS + wall.0.abs_diff(anchor.wall_ns) / SLEW;
            Moment { wall, boot: anchor.boot(wall), uncertainty_ns }
        }
        Receipt::Journal { wall: received, boot, uncertainty_ns } => {
            let zone = line.zone(received);
            let local = WallTime(received.0.saturating_add(zone.unwrap_or_default()));
            let wall = line.as_utc(local).zip(zone).and_then(|(time, zone)| time.checked_sub(zone));
            let late = wall.map_or(0, |wall| received.0.saturating_sub(wall));
            match wall {
                // The clock may have been set in between.
                Some(wall) if (0..=LATEST).contains(&late) => {
                    let late = late.unsigned_abs();
                    let uncertainty_ns = uncertainty_ns + ROUNDING_NS + late;
                    let boot = BootTime(boot.0.saturating_sub(late));
                    Moment { wall: WallTime(wall), boot, uncertainty_ns }
                }
                // It was, or there is no such time: the time of the receipt remains.
                _ => {
                    let uncertainty_ns = uncertainty_ns + LATEST.unsigned_abs();
                    Moment { wall: received, boot, uncertainty_ns }
                }
            }
        }
    };
    (moment.boot.0 > 0).then_some(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn klog(month: i8, day: i8, hour: i8) -> LineTime {
        LineTime::Klog { month, day, hour, minute: 0, second: 0, micros: 5 }
    }

    /// 2026-01-01T00:00:00Z.
    const NEW_YEAR: i64 = 1_767_225_600 * SECOND;

    #[test]
    fn the_year_is_the_last_that_is_not_in_the_future() {
        let anchor =
            Anchor { boot_ns: 10 * 86_400 * SECOND as u64, wall_ns: NEW_YEAR + 60 * MINUTE };
        let at = |line, zone| {
            let receipt = Receipt::File { anchor, near: WallTime(anchor.wall_ns), zone };
            moment(line, &receipt).map(|moment| moment.wall.0 - NEW_YEAR)
        };
        assert_eq!(at(klog(12, 31, 23), 0), Some(-60 * MINUTE + 5_000));
        assert_eq!(at(klog(1, 1, 0), 0), Some(5_000));
        // New York still has the old year.
        assert_eq!(at(klog(12, 31, 19), -5 * 60 * MINUTE), Some(5_000));
        // Before the boot, and no day at all.
        assert_eq!(at(klog(12, 1, 0), 0), None);
        assert_eq!(at(klog(13, 1, 0), 0), None);
    }

    #[test]
    fn the_journal_gives_zone_and_boot_clock() {
        let receipt = |ahead: i64| Receipt::Journal {
            wall: WallTime(NEW_YEAR + ahead),
            boot: BootTime(50 * SECOND as u64),
            uncertainty_ns: 7,
        };
        // Written in India at 5:30, received 2 ms later.
        let line = LineTime::Klog { month: 1, day: 1, hour: 5, minute: 30, second: 0, micros: 0 };
        let found = moment(line, &receipt(2_000_000)).unwrap();
        assert_eq!(found.wall, WallTime(NEW_YEAR));
        assert_eq!(found.boot, BootTime(50 * SECOND as u64 - 2_000_000));
        assert_eq!(found.uncertainty_ns, 2_001_007);
        // The clock was set back between the two: the journal's time, and all that a line may be late.
        let found = moment(line, &receipt(-5 * SECOND)).unwrap();
        assert_eq!(
            (found.boot, found.uncertainty_ns),
            (BootTime(50 * SECOND as u64), 870_000_000_007)
        );
        // Written before this boot, by its own time.
        assert_eq!(moment(line, &receipt(51 * SECOND)), None);
    }

    #[test]
    fn a_late_line_is_no_line_of_another_zone() {
        let line = LineTime::Klog { month: 1, day: 1, hour: 5, minute: 30, second: 0, micros: 0 };
        for late in [0, 449, 451, 600, 870] {
            let late = late * SECOND;
            let (wall, boot) = (WallTime(NEW_YEAR + late), BootTime(1_000 * SECOND as u64));
            let receipt = Receipt::Journal { wall, boot, uncertainty_ns: 0 };
            let found = moment(line, &receipt).unwrap();
            let wanted = (WallTime(NEW_YEAR), boot.0 - late as u64, late as u64 + 1_000);
            assert_eq!((found.wall, found.boot.0, found.uncertainty_ns), wanted);
            assert_eq!(zone(line, wall), Some(330 * MINUTE));
        }
        // A file's time is that of the last tick.
        assert_eq!(zone(line, WallTime(NEW_YEAR - 10_000_000)), Some(330 * MINUTE));
    }
}
