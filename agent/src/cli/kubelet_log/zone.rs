//! The zone of a log's times: klog's header has none.

use super::line::LineTime;
use coroner_core::time::WallTime;

const MINUTE: i64 = 60_000_000_000;
/// Quarters of an hour ahead of UTC, from the first zone to the last. Those of some places are no whole hours.
const QUARTERS: std::ops::RangeInclusive<i64> = -48..=56;
const ODD: [i64; 13] = [-38, -14, -10, 14, 18, 22, 23, 26, 35, 38, 42, 51, 55];

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
        let is_exact = times.clone().any(|time| time.is_exact);
        let exist = QUARTERS.filter(|quarters| quarters % 4 == 0 || ODD.contains(quarters));
        let mut zones: Vec<i64> = exist.map(|quarters| quarters * 15 * MINUTE).collect();
        zones.sort_by_key(|ahead| ahead.abs());
        let is_it =
            |ahead: &i64| times.clone().filter_map(|time| time.near(moment, *ahead)).any(&fits);
        let found = zones.into_iter().find(is_it);
        Self { ahead: found.unwrap_or_default(), is_exact, fits: found.is_some() }
    }

    /// What a reader should know of the times. `otherwise`: what is so in no zone.
    pub(super) fn sentence(&self, otherwise: &str) -> String {
        if self.is_exact {
            return "its lines have their zone".to_owned();
        }
        if !self.fits {
            return format!("its times are taken as UTC; in no zone {otherwise}");
        }
        let minutes = self.ahead / MINUTE;
        let (hours, minutes) = (minutes / 60, (minutes % 60).abs());
        match self.ahead {
            0 => "its times are taken as UTC".to_owned(),
            _ => format!("its times are taken as UTC{hours:+03}:{minutes:02}: UTC does not fit"),
        }
    }
}
