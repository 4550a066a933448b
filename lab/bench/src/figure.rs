//! What every benchmark ends in: figures, some of them with a goal, some beside an alternative's.

use comfy_table::{CellAlignment, Table, TableComponent, presets::UTF8_HORIZONTAL_ONLY};
use serde::Serialize;

/// On which side of its goal a value has to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Less is better.
    AtMost,
    /// More is better.
    AtLeast,
}

/// One figure: an object of `--json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    pub bench: &'static str,
    /// What was measured: words that `.` and `_` join, from the general to the special.
    pub figure: String,
    /// How much of it.
    pub value: f64,
    pub unit: &'static str,
    /// The bound of the value, if anything is asked of it.
    pub goal: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// Whether the value keeps to it; `None` where there is no goal.
    pub ok: Option<bool>,
    /// The same of something else, measured in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
}

/// What a figure is compared with.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Beside {
    /// What else was measured.
    pub what: String,
    /// How much that has, in the figure's unit.
    pub value: f64,
    /// The figure's value ÷ this one.
    pub ratio: Option<f64>,
}

impl Figure {
    /// A figure of which nothing is asked.
    pub fn of(
        bench: &'static str,
        figure: impl Into<String>,
        value: f64,
        unit: &'static str,
    ) -> Self {
        let figure = figure.into();
        Self { bench, figure, value, unit, goal: None, bound: None, ok: None, beside: None }
    }

    /// The value must not exceed this.
    pub fn at_most(self, goal: f64) -> Self {
        let ok = self.value <= goal;
        Self { goal: Some(goal), bound: Some(Bound::AtMost), ok: Some(ok), ..self }
    }

    /// The value must not be less than this.
    pub fn at_least(self, goal: f64) -> Self {
        let ok = self.value >= goal;
        Self { goal: Some(goal), bound: Some(Bound::AtLeast), ok: Some(ok), ..self }
    }

    /// The same of something else, measured in the same run.
    pub fn beside(self, what: impl Into<String>, value: f64) -> Self {
        let ratio = (value != 0.0).then(|| self.value / value);
        Self { beside: Some(Beside { what: what.into(), value, ratio }), ..self }
    }

    /// As a line of text.
    pub fn line(&self) -> String {
        // Strings and numbers: there is nothing in it that JSON cannot say.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What is asked of it, in words.
    pub fn goal_in_words(&self) -> Option<String> {
        let bound = match self.bound? {
            Bound::AtMost => "at most",
            Bound::AtLeast => "at least",
        };
        Some(format!("{bound} {}", shown(self.goal?)))
    }
}

/// Whether no goal was missed.
pub(super) fn all_met(figures: &[Figure]) -> bool {
    figures.iter().all(|figure| figure.ok != Some(false))
}

/// What a person sees: a line for each figure, with its goal and what it is compared with.
pub(super) fn table(figures: &[Figure]) -> Table {
    let mut table = plain_table();
    table.set_header(["", "figure", "value", "unit", "goal", "beside it", "", "ratio"]);
    for figure in figures {
        let mark = match figure.ok {
            Some(true) => "✔",
            Some(false) => "✘",
            None => "",
        };
        let beside = figure.beside.as_ref();
        table.add_row([
            mark.to_owned(),
            format!("{}.{}", figure.bench, figure.figure),
            shown(figure.value),
            figure.unit.to_owned(),
            figure.goal_in_words().unwrap_or_default(),
            beside.map(|beside| beside.what.clone()).unwrap_or_default(),
            beside.map(|beside| shown(beside.value)).unwrap_or_default(),
            beside.and_then(|beside| beside.ratio).map(ratio).unwrap_or_default(),
        ]);
    }
    for column in [2, 6, 7] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table without lines between its rows and columns.
pub(super) fn plain_table() -> Table {
    let mut table = Table::new();
    table
        .load_preset(UTF8_HORIZONTAL_ONLY)
        .remove_style(TableComponent::HorizontalLines)
        .remove_style(TableComponent::LeftBorderIntersections)
        .remove_style(TableComponent::MiddleIntersections)
        .remove_style(TableComponent::RightBorderIntersections);
    table
}

/// A number with as many digits as say something.
pub(super) fn shown(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

fn ratio(ratio: f64) -> String {
    format!("{}×", if ratio >= 10.0 { format!("{ratio:.0}") } else { format!("{ratio:.2}") })
}

/// The middle one; 0 of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_says_what_it_is_and_what_is_asked_of_it() {
        let with = Figure::of("accuracy", "idle.cgroup_empty.error_p99", 0.25, "ms").at_most(1.0);
        assert_eq!(
            with.line(),
            r#"{"bench":"accuracy","figure":"idle.cgroup_empty.error_p99","value":0.25,"unit":"ms","goal":1.0,"bound":"at_most","ok":true}"#
        );
        let without = Figure::of("accuracy", "idle.relist.error_p50", 501.0, "ms");
        assert_eq!(
            without.line(),
            r#"{"bench":"accuracy","figure":"idle.relist.error_p50","value":501.0,"unit":"ms","goal":null,"ok":null}"#
        );
    }

    #[test]
    fn a_goal_that_is_missed_is_missed_by_all() {
        let most = |value| Figure::of("b", "f", value, "ms").at_most(1.0);
        let least = |value| Figure::of("b", "f", value, "1/s").at_least(1.0);
        let none = Figure::of("b", "g", 1e9, "ms");
        assert!(all_met(&[most(1.0), least(1.0), none.clone()]));
        assert!(!all_met(&[most(0.0), none.clone(), most(1.1)]));
        assert!(!all_met(&[least(0.9), none]));
    }

    #[test]
    fn what_stands_beside_a_figure_gives_a_ratio() {
        let figure = Figure::of("storm", "cpu", 0.5, "s").at_most(1.0).beside("bpftrace", 2.0);
        assert!(
            figure.line().ends_with(r#""beside":{"what":"bpftrace","value":2.0,"ratio":0.25}}"#)
        );
        let text = table(&[figure]).to_string();
        for word in ["✔", "storm.cpu", "0.500", "at most 1", "bpftrace", "2", "0.25×"] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
        let nothing = Figure::of("storm", "cpu", 0.5, "s").beside("an empty program", 0.0);
        assert_eq!(nothing.beside.and_then(|beside| beside.ratio), None);
    }

    #[test]
    fn the_median_leaves_out_what_was_disturbed() {
        assert_eq!(median(vec![3.0, 1.0, 100.0]), 3.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
