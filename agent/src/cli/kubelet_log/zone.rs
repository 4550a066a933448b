//! The zone of a log's times: klog's header has none.

use super::line::LineTime;
use coroner_core::time::WallTime;

const MINUTE: i64 = 60_000_000_000;
/// Zones are whole quarters of an hour, from 12 hours behind UTC to 14 ahead of it.
const QUARTERS: std::ops::RangeInclusive<i64> = -48..=56;

/// The zone of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Zone {
    /// Ahead of UTC, ns.
    pub(super) ahead: i64,
    /// The lines have their zone themselves.
    is_exact: bool,
    /// In this zone the log fits.
    fits: bool,
}

impl Zone {
    /// UTC unless a line fits in another zone only.
    pub(super) fn find(
        times: impl Iterator<Item = LineTime> + Clone,
        moment: WallTime,
        fits: impl Fn(WallTime) -> bool,
    ) -> Self {
        let is_exact = times.clone().any(|time| matches!(time, LineTime::Exact(_)));
        let mut zones: Vec<i64> = QUARTERS.map(|quarters| quarters * 15 * MINUTE).collect();
        zones.sort_by_key(|ahead| ahead.abs());
        let is_it =
            |ahead: &i64| times.clone().filter_map(|time| time.near(moment, *ahead)).any(&fits);
        let found = zones.into_iter().find(is_it);
        Self { ahead: found.unwrap_or_default(), is_exact, fits: found.is_some() }
    }

    /// What a reader should know of the times.
    pub(super) fn sentence(&self) -> String {
        if self.is_exact {
            return "its lines have their zone".to_owned();
        }
        if !self.fits {
            return "its times are taken as UTC; in no zone it has a line of this pod near its termination".to_owned();
        }
        let minutes = self.ahead / MINUTE;
        let (hours, minutes) = (minutes / 60, (minutes % 60).abs());
        match self.ahead {
            0 => "its times are taken as UTC".to_owned(),
            _ => format!("its times are taken as UTC{hours:+03}:{minutes:02}: UTC does not fit"),
        }
    }
}
