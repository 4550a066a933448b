//! Scenarios and what came out of them, for a person.

use crate::{console::Console, run::outcome::ScenarioOutcome};
use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};
use coroner_core::leak::{LeakCause, LeakClass};
use coroner_lab_scenarios::{Scenario, judge};

/// Columns of the tables.
const WIDTH: u16 = 118;

/// A scenario's waterfall, its verdict and what disagrees; of a single one the whole explanation.
pub(super) fn outcome(console: Console, outcome: &ScenarioOutcome, is_single: bool) {
    let mark = if outcome.ok { "✔" } else { "✘" };
    let mut text = format!("\n{mark} {} — {}\n", outcome.scenario, outcome.shows);
    if let Some(timeline) = &outcome.timeline {
        let shown = if is_single { Console::explanation } else { Console::waterfall };
        text.push_str(&shown(&console, timeline));
    }
    for leak in &outcome.leaks {
        text.push_str(&console.leak(leak));
    }
    for point in &outcome.disagreements {
        text.push_str(&format!("  ✘ {point}\n"));
    }
    console.print(&text);
}

/// Expected against observed, one row a scenario.
pub(super) fn table(console: Console, outcomes: &[ScenarioOutcome]) {
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
    console.print(&format!("\n{table}\n"));
}

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

fn expected(outcome: &ScenarioOutcome) -> String {
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

fn observed(outcome: &ScenarioOutcome) -> String {
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
