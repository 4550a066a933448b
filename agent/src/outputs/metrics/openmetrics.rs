//! OpenMetrics 1.0, made of the text format: the crate prometheus writes neither it nor exemplars.

use super::CATALOGUE;
use std::{collections::HashMap, fmt::Write};

pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The last observation of a bucket that has a trace.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Exemplar {
    pub(super) trace: [u8; 16],
    pub(super) value: f64,
    /// When it was observed, seconds of the Unix epoch.
    pub(super) at: f64,
}

/// By the series of the text format, up to its closing brace.
pub(super) type Exemplars = HashMap<String, Exemplar>;

pub(super) fn openmetrics(text: &str, exemplars: &Exemplars) -> String {
    let counters: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    // The name of a counter's family has no suffix, those of its samples do.
    let family = |name: &str| match counters.contains(&name) {
        true => name.trim_end_matches("_total").to_owned(),
        false => name.to_owned(),
    };
    let mut open = String::with_capacity(text.len() + text.len() / 8);
    for line in text.lines() {
        // To a String: cannot fail.
        let _ = match line.strip_prefix("# ").and_then(|rest| rest.split_once(' ')) {
            Some(("HELP", rest)) => {
                let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
                writeln!(open, "# HELP {} {}", family(name), help.replace('"', "\\\""))
            }
            Some((_, rest)) => {
                let (name, kind) = rest.split_once(' ').unwrap_or((rest, "unknown"));
                let entry = CATALOGUE.iter().find(|entry| entry.name == name);
                if let Some(unit) = entry.map(|entry| entry.unit).filter(|unit| !unit.is_empty()) {
                    let _ = writeln!(open, "# UNIT {} {unit}", family(name));
                }
                writeln!(open, "# TYPE {} {kind}", family(name))
            }
            None => sample(&mut open, line, exemplars),
        };
    }
    open + "# EOF\n"
}

fn sample(open: &mut String, line: &str, exemplars: &Exemplars) -> std::fmt::Result {
    let bucket = line.rsplit_once("le=\"").filter(|(series, _)| series.contains("_bucket{"));
    let Some((series, (le, count))) =
        bucket.and_then(|(series, rest)| Some((series, rest.split_once("\"} ")?)))
    else {
        return writeln!(open, "{line}");
    };
    // A bound is a float there, also one without a fraction.
    let fraction = if le.bytes().all(|byte| byte.is_ascii_digit()) { ".0" } else { "" };
    write!(open, "{series}le=\"{le}{fraction}\"}} {count}")?;
    if let Some(Exemplar { trace, value, at }) = exemplars.get(&format!("{series}le=\"{le}\"}}")) {
        let trace = u128::from_be_bytes(*trace);
        write!(open, " # {{trace_id=\"{trace:032x}\"}} {value} {at:.3}")?;
    }
    writeln!(open)
}

/// The series of the bucket that counts `value`.
pub(super) fn bucket(family: &str, label: (&str, &str), value: f64) -> String {
    let entry = CATALOGUE.iter().find(|entry| entry.name == family);
    let bounds = match entry.map(|entry| entry.kind) {
        Some(super::MetricKind::Histogram(bounds)) => bounds,
        _ => &[],
    };
    let le = bounds.iter().find(|bound| value <= **bound);
    let le = le.map_or_else(|| "+Inf".to_owned(), f64::to_string);
    format!("{family}_bucket{{{}=\"{}\",le=\"{le}\"}}", label.0, label.1)
}
