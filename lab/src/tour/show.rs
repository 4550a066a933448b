//! What a person sees. With `--json` it goes to stderr, and stdout belongs to the objects.

use super::Outcome;
use crate::scenario::{Scenario, judge};
use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};
use coroner::outputs::report::{self, Style};
use coroner_api::terminations::Termination;
use coroner_core::{
    leak::{Leak, LeakCause, LeakClass},
    report::PodTermination,
    time::WallTime,
};
use serde::Serialize;
use std::{
    io::{self, Write as _},
    time::Instant,
};

/// Columns of the tables.
const WIDTH: u16 = 118;

/// Where the lines go.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    json: bool,
    began: Instant,
}

impl Screen {
    /// `json`: stdout is for objects only.
    pub fn new(json: bool) -> Self {
        Self { json, began: Instant::now() }
    }

    /// A line of progress, with the seconds since the start.
    pub fn step(&self, what: &str) {
        self.print(&format!("[{:5.1} s] {what}\n", self.began.elapsed().as_secs_f64()));
    }

    /// Text as it is. A reader that went away is no reason to stop: the lab must be taken down.
    pub fn print(&self, text: &str) {
        if self.json {
            let _ = io::stderr().write_all(text.as_bytes());
        } else {
            let _ = io::stdout().write_all(text.as_bytes());
        }
    }

    /// One object on stdout, on a line of its own.
    pub fn object(&self, object: &impl Serialize) {
        if self.json
            && let Ok(line) = serde_json::to_string(object)
        {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// One timeline on stdout, on a line of its own.
    pub fn timeline(&self, timeline: &PodTermination) {
        if let Ok(line) = serde_json::to_string(&Termination::from(timeline)) {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// A termination as `coroner` itself shows it.
    pub fn waterfall(&self, timeline: &PodTermination) -> String {
        let style = if self.json { Style::default() } else { Style::for_stdout() };
        report::termination(timeline, &style)
    }

    /// Something that was left behind, as `coroner` itself shows it.
    pub fn leak(&self, leak: &Leak) -> String {
        let style = if self.json { Style::default() } else { Style::for_stdout() };
        let now = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
        report::leak(leak, WallTime(now), &style)
    }

    /// A scenario's waterfall, its verdict and what disagrees.
    pub fn outcome(&self, outcome: &Outcome) {
        let mark = if outcome.ok { "✔" } else { "✘" };
        let mut text = format!("\n{mark} {} — {}\n", outcome.scenario, outcome.shows);
        if let Some(timeline) = &outcome.timeline {
            text.push_str(&self.waterfall(timeline));
        }
        for leak in &outcome.leaks {
            text.push_str(&self.leak(leak));
        }
        for point in &outcome.disagreements {
            text.push_str(&format!("  ✘ {point}\n"));
        }
        self.print(&text);
    }

    /// Expected against observed, one row a scenario.
    pub fn table(&self, outcomes: &[Outcome]) {
        let mut table = Table::new();
        table
            .load_preset(UTF8_HORIZONTAL_ONLY)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(WIDTH)
            .set_header(["", "scenario", "expected", "observed", "took"]);
        for outcome in outcomes {
            let took = outcome
                .timeline
                .as_ref()
                .map_or_else(|| "–".into(), |t| format!("{:.1} s", t.total().as_secs_f64()));
            table.add_row([
                if outcome.ok { "✔" } else { "✘" }.to_owned(),
                outcome.scenario.to_owned(),
                expected(outcome),
                observed(outcome),
                took,
            ]);
        }
        self.print(&format!("\n{table}\n"));
    }
}

/// `--list`.
pub fn list(scenarios: &[Scenario]) -> String {
    let mut table = Table::new();
    table
        .load_preset(UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(["group", "scenario", "shows"]);
    for scenario in scenarios {
        table.add_row([scenario.group, scenario.name, scenario.shows]);
    }
    format!("{table}\n")
}

fn expected(outcome: &Outcome) -> String {
    let expected = &outcome.expected;
    let cause = (expected.lives > 0).then(|| expected.cause.to_string());
    let deaths = expected
        .containers
        .iter()
        .map(|(name, death)| format!("{name}: {}, {}", death.verdict, judge::exit(death.exit)));
    let findings = expected.findings.iter().map(|finding| format!("+ {finding}"));
    let leaks = expected.leaks.iter().map(|leak| left(leak.class, leak.cause));
    let nothing = (outcome.watched && expected.leaks.is_empty()).then(|| NOTHING_LEFT.to_owned());
    let lines = cause.into_iter().chain(deaths).chain(findings).chain(leaks).chain(nothing);
    lines.collect::<Vec<_>>().join("\n")
}

fn observed(outcome: &Outcome) -> String {
    if outcome.observed.is_none() && !outcome.ok && outcome.leaks.is_empty() {
        return outcome.disagreements.join("\n");
    }
    let mut lines = Vec::new();
    if let Some(observed) = &outcome.observed {
        lines.push(observed.cause.to_string());
        lines.extend(observed.containers.iter().map(|(name, death)| {
            let exit = death.exit.map_or_else(|| "no exit seen".into(), judge::exit);
            format!("{name}: {}, {exit}", death.verdict)
        }));
        lines.extend(observed.findings.iter().map(|finding| format!("+ {finding}")));
    }
    lines.extend(outcome.leaks.iter().map(|leak| left(leak.class, leak.cause.kind)));
    if outcome.watched && outcome.leaks.is_empty() {
        lines.push(NOTHING_LEFT.into());
    }
    lines.join("\n")
}

const NOTHING_LEFT: &str = "nothing left behind";

fn left(class: LeakClass, cause: LeakCause) -> String {
    format!("left behind: {class}, {cause}")
}
