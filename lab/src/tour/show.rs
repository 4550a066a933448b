//! What a person sees. With `--json` it goes to stderr, and stdout belongs to the objects.

use super::Outcome;
use crate::scenario::{Scenario, judge};
use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};
use coroner::{
    domain::observation::PodTermination,
    report::{self, Style},
};
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
    pub fn object(&self, outcome: &Outcome) {
        if self.json
            && let Ok(line) = serde_json::to_string(outcome)
        {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// One timeline on stdout, on a line of its own.
    pub fn timeline(&self, timeline: &PodTermination) {
        if let Ok(line) = serde_json::to_string(timeline) {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    /// A termination as `coroner` itself shows it.
    pub fn waterfall(&self, timeline: &PodTermination) -> String {
        let style = if self.json { Style::default() } else { Style::for_stdout() };
        report::termination(timeline, &style)
    }

    /// A scenario's waterfall, its verdict and what disagrees.
    pub fn outcome(&self, outcome: &Outcome) {
        let mark = if outcome.ok { "✔" } else { "✘" };
        let mut text = format!("\n{mark} {} — {}\n", outcome.scenario, outcome.shows);
        if let Some(timeline) = &outcome.timeline {
            text.push_str(&self.waterfall(timeline));
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
    let deaths = outcome
        .expected
        .containers
        .iter()
        .map(|(name, death)| format!("{name}: {}, {}", death.verdict, judge::exit(death.exit)));
    let findings = outcome.expected.findings.iter().map(|finding| format!("+ {finding}"));
    std::iter::once(outcome.expected.cause.to_string())
        .chain(deaths)
        .chain(findings)
        .collect::<Vec<_>>()
        .join("\n")
}

fn observed(outcome: &Outcome) -> String {
    let Some(observed) = &outcome.observed else {
        return outcome.disagreements.join("\n");
    };
    let deaths = observed.containers.iter().map(|(name, death)| {
        let exit = death.exit.map_or_else(|| "no exit seen".into(), judge::exit);
        format!("{name}: {}, {exit}", death.verdict)
    });
    let findings = observed.findings.iter().map(|finding| format!("+ {finding}"));
    std::iter::once(observed.cause.to_string())
        .chain(deaths)
        .chain(findings)
        .collect::<Vec<_>>()
        .join("\n")
}
