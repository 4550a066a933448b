//! What every benchmark ends in: figures, some of them with a goal.

use serde::Serialize;

/// One figure: an object of `--json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Figure {
    /// The benchmark.
    pub(super) bench: &'static str,
    /// What was measured.
    pub(super) figure: String,
    /// How much of it.
    pub(super) value: f64,
    /// Of what.
    pub(super) unit: &'static str,
    /// What the value must not exceed, if anything.
    pub(super) goal: Option<f64>,
    /// Whether it does not; `None` where there is no goal.
    pub(super) ok: Option<bool>,
}

impl Figure {
    pub(super) fn new(
        bench: &'static str,
        figure: impl Into<String>,
        value: f64,
        unit: &'static str,
        goal: Option<f64>,
    ) -> Self {
        let ok = goal.map(|goal| value <= goal);
        Self { bench, figure: figure.into(), value, unit, goal, ok }
    }

    /// As a line of text.
    pub(super) fn line(&self) -> String {
        // Strings and finite numbers: there is nothing in it that JSON cannot say.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether no goal was missed.
pub(super) fn all_met(figures: &[Figure]) -> bool {
    figures.iter().all(|figure| figure.ok != Some(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_says_all_six_things() {
        let with = Figure::new("accuracy", "idle.empty.error_p99", 0.25, "ms", Some(1.0));
        assert_eq!(
            with.line(),
            r#"{"bench":"accuracy","figure":"idle.empty.error_p99","value":0.25,"unit":"ms","goal":1.0,"ok":true}"#
        );
        let without = Figure::new("accuracy", "idle.relist.error_p50", 501.0, "ms", None);
        assert_eq!(
            without.line(),
            r#"{"bench":"accuracy","figure":"idle.relist.error_p50","value":501.0,"unit":"ms","goal":null,"ok":null}"#
        );
    }

    #[test]
    fn a_goal_that_is_missed_is_missed_by_all() {
        let figure = |value| Figure::new("b", "f", value, "ms", Some(1.0));
        let none = Figure::new("b", "g", 1e9, "ms", None);
        assert!(all_met(&[figure(1.0), none.clone()]));
        assert!(!all_met(&[figure(0.0), none, figure(1.1)]));
    }
}
