//! Whether a figure over time is flat. Pure.

/// One measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Point {
    /// Seconds since the run began.
    pub(super) at: f64,
    pub(super) value: f64,
}

/// The median of the slopes between all pairs of points (Theil and Sen), per second: up to 29 % of
/// the points may be anywhere without moving it much. `None`: fewer than two moments.
pub(super) fn slope(points: &[Point]) -> Option<f64> {
    let pairs = points.iter().enumerate().flat_map(|(index, one)| {
        points[index + 1..].iter().filter_map(move |other| {
            let time = other.at - one.at;
            (time != 0.0).then(|| (other.value - one.value) / time)
        })
    });
    median(pairs.collect())
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        even if even % 2 == 0 => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

/// What a figure did after the warm-up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Trend {
    pub(super) per_hour: f64,
    /// What the slope makes over the time that was measured.
    pub(super) growth: f64,
}

/// The trend of what comes after the first `warm_up` share of the time. `None`: too few points.
pub(super) fn trend(points: &[Point], warm_up: f64) -> Option<Trend> {
    let (first, last) = (points.first()?, points.last()?);
    let from = first.at + (last.at - first.at) * warm_up;
    let after: Vec<Point> = points.iter().copied().filter(|point| point.at >= from).collect();
    if after.len() < FEWEST {
        return None;
    }
    let slope = slope(&after)?;
    let span = last.at - after.first()?.at;
    Some(Trend { per_hour: slope * 3600.0, growth: slope * span })
}

/// Fewer points than this have no trend.
pub(super) const FEWEST: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[f64]) -> Vec<Point> {
        let numbered = values.iter().enumerate();
        numbered.map(|(at, value)| Point { at: at as f64 * 10.0, value: *value }).collect()
    }

    #[test]
    fn a_line_has_its_slope_and_outliers_do_not_matter() {
        let mut line: Vec<f64> = (0..20).map(|n| 100.0 + 5.0 * f64::from(n)).collect();
        assert_eq!(slope(&points(&line)), Some(0.5));
        (line[3], line[11], line[19]) = (1e6, -1e6, 1e6);
        let robust = slope(&points(&line)).unwrap();
        assert!((0.4..0.6).contains(&robust), "{robust}");
    }

    #[test]
    fn noise_is_flat_and_one_moment_has_no_slope() {
        let noise: Vec<f64> = (0..40).map(|n| f64::from(n * 7919 % 13)).collect();
        assert!(slope(&points(&noise)).unwrap().abs() < 0.02);
        assert_eq!(slope(&[]), None);
        let at_once = [Point { at: 1.0, value: 1.0 }, Point { at: 1.0, value: 2.0 }];
        assert_eq!(slope(&at_once), None);
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let mut values = vec![0.0, 30.0, 50.0];
        values.extend([60.0; 12]);
        let trend = trend(&points(&values), 0.25).unwrap();
        assert_eq!(trend, Trend { per_hour: 0.0, growth: 0.0 });
    }

    #[test]
    fn growth_is_what_the_slope_makes_of_the_time() {
        let line: Vec<f64> = (0..11).map(f64::from).collect();
        let trend = trend(&points(&line), 0.5).unwrap();
        assert_eq!((trend.per_hour, trend.growth), (360.0, 5.0));
        assert_eq!(super::trend(&points(&[1.0, 2.0, 3.0]), 0.0), None, "too few");
    }
}
