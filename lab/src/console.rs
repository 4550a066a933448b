//! What a person sees. With `--json` it goes to stderr, and stdout is for objects.

use crate::{
    compare,
    play::Account,
    scenarios::{Expected, Scenario},
};
use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};
use coroner::outputs::report::{self, Style};
use coroner_core::{
    leak::{Leak, LeakCause, LeakClass},
    report::PodTermination,
    time::WallTime,
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    io::{self, Write as _},
    path::PathBuf,
    time::Instant,
};

/// Columns of the tables.
const WIDTH: u16 = 118;
const NO_LEAK: &str = "no leak";

#[derive(Clone, Copy, Debug)]
pub struct Console {
    is_json: bool,
    began: Instant,
}

/// How one scenario went.
pub struct Outcome {
    pub scenario: Scenario,
    pub account: Account,
    /// Where what is reported is not what was expected.
    pub disagreements: Vec<String>,
    /// Where its logs and the agent's answers are kept, if they do not agree.
    pub kept: Option<PathBuf>,
}

impl Outcome {
    pub fn is_ok(&self) -> bool {
        self.disagreements.is_empty()
    }
}

impl Console {
    pub fn new(is_json: bool) -> Self {
        Self { is_json, began: Instant::now() }
    }

    /// A line of progress, with the seconds since the start.
    pub fn step(&self, what: &str) {
        self.print(&format!("[{:5.1} s] {what}\n", self.began.elapsed().as_secs_f64()));
    }

    /// Text as it is. A reader that went away is no reason to stop: the lab must be taken down.
    pub fn print(&self, text: &str) {
        if self.is_json {
            let _ = io::stderr().write_all(text.as_bytes());
        } else {
            let _ = io::stdout().write_all(text.as_bytes());
        }
    }

    /// With `--json`, one object on stdout, on a line of its own.
    pub fn object(&self, object: &impl Serialize) {
        if self.is_json
            && let Ok(line) = serde_json::to_string(object)
        {
            let _ = writeln!(io::stdout(), "{line}");
        }
    }

    fn style(&self) -> Style {
        if self.is_json { Style::default() } else { report::stdout_style() }
    }

    /// A termination: as an object, or as `coroner` itself shows it.
    pub fn termination(&self, report: &PodTermination) {
        self.object(report);
        if !self.is_json {
            self.print(&format!("\n{}", report::explain(report, &[], false, &self.style())));
        }
    }

    pub fn leak(&self, leak: &Leak) -> String {
        let now = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
        report::leak(leak, WallTime(now), &self.style())
    }

    /// A scenario's termination and leaks and what disagrees; of a single one the whole explanation.
    pub fn outcome(&self, outcome: &Outcome, is_single: bool) {
        let (scenario, account) = (&outcome.scenario, &outcome.account);
        let mark = if outcome.is_ok() { "✔" } else { "✘" };
        let mut text = format!("\n{mark} {} — {}\n", scenario.name, scenario.shows);
        if let Some(report) = &account.termination {
            text.push_str(&report::explain(report, &[], is_single, &self.style()));
        }
        account.leaks.iter().for_each(|leak| text.push_str(&self.leak(leak)));
        outcome.disagreements.iter().for_each(|point| text.push_str(&format!("  ✘ {point}\n")));
        self.print(&text);
        self.object(&json!({
            "scenario": scenario.name, "group": scenario.group, "expected": scenario.expected,
            "ok": outcome.is_ok(), "disagreements": outcome.disagreements, "kept": outcome.kept,
            "termination": account.termination,
            "leaks": account.leaks, "audits": account.audits,
        }));
    }

    /// A leak that was reported, and is of no scenario.
    pub fn unexpected_leak(&self, leak: &Leak) {
        let which = compare::which(&leak.key);
        self.print(&format!("✘ {} of {which}, of no scenario\n{}", leak.class, self.leak(leak)));
        self.object(&json!({ "unexpectedLeak": leak }));
    }

    /// Expected against reported, one row a scenario.
    pub fn table(&self, outcomes: &[Outcome]) {
        let mut table = table(["", "scenario", "expected", "reported", "took"]);
        for outcome in outcomes {
            let report = outcome.account.termination.as_ref();
            let took = report.map(|report| format!("{:.1} s", report.took.as_secs_f64()));
            table.add_row([
                if outcome.is_ok() { "✔" } else { "✘" }.to_owned(),
                outcome.scenario.name.to_owned(),
                expected(&outcome.scenario),
                reported(outcome),
                took.unwrap_or_else(|| "–".into()),
            ]);
        }
        let (audits, summary) = audits(outcomes);
        self.print(&format!("\n{table}\n\n{audits}\n{summary}"));
    }
}

/// How each container was to respond to its stop signal, beside how it died, and how much of that is certain.
fn audits(outcomes: &[Outcome]) -> (Table, String) {
    let mut table = table(["", "scenario", "container", "audited as", "certain", "verdict"]);
    let (mut all, mut certain, mut wrong) = (0, 0, 0);
    for outcome in outcomes {
        for (audit, death) in compare::audited(&outcome.account) {
            let contradicts = compare::contradicts(audit, death);
            all += 1;
            certain += usize::from(audit.certain);
            wrong += usize::from(contradicts);
            table.add_row([
                if contradicts { "✘" } else { "✔" },
                outcome.scenario.name,
                &audit.name,
                audit.response.as_str(),
                if audit.certain { "yes" } else { "no" },
                death.verdict.as_str(),
            ]);
        }
    }
    let summary = match wrong {
        0 => format!(
            "audit: {certain} of {all} answers were certain, and no verdict contradicts them\n"
        ),
        _ => format!(
            "audit: {certain} of {all} answers were certain, and {wrong} verdicts contradict them\n"
        ),
    };
    (table, summary)
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(WIDTH).set_header(header);
    table
}

pub fn list(scenarios: &[Scenario]) -> String {
    let mut table = table(["group", "scenario", "shows"]);
    for scenario in scenarios {
        table.add_row([scenario.group, scenario.name, scenario.shows]);
    }
    format!("{table}\n")
}

fn expected(scenario: &Scenario) -> String {
    let Expected { terminates, cause, containers, findings, leaks, .. } = &scenario.expected;
    let mut lines = Vec::from_iter(terminates.then(|| cause.to_string()));
    lines.extend(
        containers.iter().map(|(name, death)| {
            format!("{name}: {}, {}", death.verdict, compare::exit(death.exit))
        }),
    );
    lines.extend(findings.iter().map(|finding| format!("+ {finding}")));
    lines.extend(leaks.iter().map(|leak| leaked(leak.class, leak.cause)));
    lines.extend((scenario.watched && leaks.is_empty()).then(|| NO_LEAK.into()));
    lines.join("\n")
}

fn reported(outcome: &Outcome) -> String {
    let Account { termination, leaks, .. } = &outcome.account;
    if termination.is_none() && leaks.is_empty() && !outcome.is_ok() {
        return outcome.disagreements.join("\n");
    }
    let mut lines = Vec::new();
    if let Some(report) = termination {
        lines.push(report.cause.to_string());
        lines.extend(report.containers.iter().map(|death| {
            format!("{}: {}, {}", death.name, death.verdict, compare::exit(death.exit))
        }));
        lines.extend(compare::found(report).iter().map(|finding| format!("+ {finding}")));
    }
    lines.extend(leaks.iter().map(|leak| leaked(leak.class, leak.cause.kind)));
    lines.extend((outcome.scenario.watched && leaks.is_empty()).then(|| NO_LEAK.into()));
    lines.join("\n")
}

fn leaked(class: LeakClass, cause: LeakCause) -> String {
    format!("leak: {class}, {cause}")
}

/// A scenario that is not played.
pub fn left_out(scenario: &Scenario, why: &str) -> Value {
    json!({ "scenario": scenario.name, "left_out": why })
}
