//! Terminations and leaks as text for a person. Pure: the same report and style give the same text.

pub mod advice;
mod bars;
mod details;
mod evidence;
mod leak;
mod line;
mod style;
mod traffic;

pub use leak::{age, holds, leak, seconds_between, span, thing};
pub use line::{LogLine, log_line};
pub use style::{Paint, Style};
pub use traffic::endpoint_lag;

use crate::{
    BootTime, Cause, ContainerDeath, ExitStatus, Finding, FindingKind, MilestoneKind, Phase,
    PhaseKind, PodTermination, Verdict, signal,
};
use advice::Headline;
pub use bars::Scale;
pub use details::offset;
use std::{fmt::Write, time::Duration};

/// Column of names: the longest phase is `kubelet_reaction`.
const NAME: usize = 16;
/// What stands beside the bar: indent, name, gaps, offset, seconds.
const BESIDE: usize = 2 + NAME + 2 + 2 + 11 + 2 + 9;

/// A pod's termination: the headline, the waterfall, each container with its verdict and the fix, the findings.
///
/// `same`: other terminations of the same workload, for the advice about its connections. `verbose`: also each step
/// with its evidence, and the connections.
pub fn explain(
    report: &PodTermination,
    same: &[&PodTermination],
    verbose: bool,
    style: &Style,
) -> String {
    let mut text = String::new();
    let advice = report.traffic.as_ref().map(|_| traffic::advice(report, same));
    let connections = advice.as_ref().and_then(|advice| advice.as_deref().ok());
    let headline = Headline::of(report, connections);
    let fix = headline.fix.as_deref();
    wrap(&mut text, &headline.text, 0, "", style);
    fix.iter().for_each(|fix| wrap(&mut text, &format!("Fix: {fix}"), 0, "", style));
    text = style.paint(Paint::Strong, text.trim_end()) + "\n";
    wrap(&mut text, &about(report), 2, "", style);
    waterfall(&mut text, report, style);
    for death in &report.containers {
        let is_told = headline.of.is_some_and(|told| told.id == death.id);
        container(&mut text, death, report, (is_told, fix), style);
    }
    if report.containers.is_empty() {
        wrap(&mut text, "No container of this pod was observed.", 2, "", style);
    }
    findings(&mut text, &report.findings, 2, fix, style);
    if let Some(advice) = connections.filter(|advice| Some(*advice) != fix) {
        wrap(&mut text, &format!("Fix: {advice}"), 4, "", style);
    }
    footer(&mut text, report, style);
    if verbose {
        details::write(&mut text, report, style);
        if let Some(advice) = &advice {
            traffic::write(
                &mut text,
                report,
                advice.as_ref().err().map_or("", String::as_str),
                style,
            );
        }
    }
    text
}

/// What `explain` begins with, and the container whose proof it has.
pub fn headline(report: &PodTermination) -> (String, Option<&ContainerDeath>) {
    let Headline { text, of, .. } = Headline::of(report, None);
    (text, of)
}

/// Why and when, and which report this is.
fn about(report: &PodTermination) -> String {
    let mut about = report.cause.to_string();
    if let Some(grace) = report.grace_seconds {
        let _ = write!(about, " · grace {grace} s");
    }
    if let Some(shorter) = report.shortened_to_seconds {
        let _ = write!(about, ", shortened by a later request to {shorter} s from then on");
    }
    if let Some(ended) = ended_at(report) {
        let _ = write!(about, " · ended {ended}");
    }
    if report.life > 1 {
        let _ = write!(about, " · life {}", report.life);
    }
    if report.revision > 1 {
        let _ = write!(about, " · revision {}", report.revision);
    }
    if report.cause == Cause::Unknown {
        let _ = write!(about, " · {}", report.cause_message);
    }
    about
}

/// A duration that is an interval is shown as one.
fn total(account: &PodTermination) -> String {
    let total = account.took;
    if account.is_exact() {
        return seconds(total);
    }
    format!("{} to {}", seconds(total.saturating_sub(account.uncertainty)), seconds(total))
}

fn waterfall(text: &mut String, account: &PodTermination, style: &Style) {
    let cells = style.width.saturating_sub(BESIDE).clamp(10, 80);
    let scale = Scale::new(account.began.boot, account.ended.boot, cells);
    let mut row = |name: &str, from: BootTime, to: BootTime, paint, hatched| {
        let bar = style.paint(paint, &scale.bar(from, to.min(account.ended.boot), hatched));
        let (after, took) = (from.since(account.began), to.since(from));
        let after = format!("+{}", seconds(after));
        let _ = writeln!(text, "  {name:<NAME$}  {bar}  {after:>11}  {:>9}", seconds(took));
    };
    for phase in account.phases.iter().filter(|phase| !phase.took.is_zero()) {
        let hatched = phase.kind == PhaseKind::Unattributed;
        let (from, to) = (phase.from.boot, phase.to.boot);
        row(phase.kind.as_str(), from, to, phase_paint(phase), hatched);
    }
    for (name, paint, from, to) in traffic::spans(account) {
        row(name, from, to, paint, false);
    }
}

fn phase_paint(phase: &Phase) -> Paint {
    match phase.kind {
        PhaseKind::Unattributed => Paint::Faint,
        PhaseKind::PreStop | PhaseKind::Shutdown => Paint::Own,
        PhaseKind::Kill => Paint::Bad,
        _ => Paint::System,
    }
}

/// `told`: the headline has its proof; and the fix that the headline has.
fn container(
    text: &mut String,
    death: &ContainerDeath,
    report: &PodTermination,
    (is_told, fix): (bool, Option<&str>),
    style: &Style,
) {
    let name = style.paint(Paint::Strong, &printable(container_name(death)));
    let verdict = style.paint(verdict_paint(death.verdict), death.verdict.as_str());
    let critical = report.containers.len() > 1 && report.critical.as_ref() == Some(&death.id);
    let last = critical.then(|| "last to exit".to_owned());
    let facts: Vec<_> = used_grace(death).into_iter().chain(last).collect();
    let facts = style.paint(Paint::Faint, &facts.join(" · "));
    let _ = writeln!(text, "{}", format!("  {name}  {verdict}  {facts}").trim_end());
    if !is_told {
        wrap(text, &death.proof.message, 4, "", style);
    }
    if let Some(own) = advice::of_death(death, Some(report)).filter(|own| Some(&**own) != fix) {
        wrap(text, &format!("Fix: {own}"), 4, "", style);
    }
    findings(text, &death.findings, 4, fix, style);
}

/// The share of the grace that it used.
fn used_grace(death: &ContainerDeath) -> Option<String> {
    let (percent, grace) = (death.grace_ratio? * 100.0, death.grace_seconds?);
    Some(match advice::shortened(death) {
        Some(left) => {
            format!("{percent:.0} % of the {:.1} s left of {grace} s grace", left.as_secs_f64())
        }
        None => format!("{percent:.0} % of {grace} s grace"),
    })
}

pub fn exit(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exit code {code}"),
        ExitStatus::Signal { signal: number, core } => {
            let core = if core { ", core dumped" } else { "" };
            format!("killed by {}{core}", signal::name(number))
        }
    }
}

/// `fix`: the headline's.
fn findings(
    text: &mut String,
    findings: &[Finding],
    indent: usize,
    fix: Option<&str>,
    style: &Style,
) {
    for finding in findings {
        let mut line = format!("{}: {}", finding.kind, finding.detail);
        if finding.kind == FindingKind::Unkillable && fix != Some(advice::UNKILLABLE) {
            let _ = write!(line, " {}", advice::UNKILLABLE);
        }
        wrap(text, &line, indent, "• ", style);
    }
}

fn footer(text: &mut String, account: &PodTermination, style: &Style) {
    if let Some(removed) = account.milestone(MilestoneKind::SandboxRemoved) {
        let after = removed.at.signed_since(account.ended);
        let when = if after < 0 { "before the end" } else { "later" };
        let distance = seconds(Duration::from_nanos(after.unsigned_abs()));
        let line = format!("sandbox removed {distance} {when}");
        let _ = writeln!(text, "  {}", style.paint(Paint::Faint, &line));
    }
    for phase in account.phases.iter().filter(|phase| !phase.is_exact()) {
        let least = seconds(phase.took.saturating_sub(phase.uncertainty));
        let took = seconds(phase.took);
        let line = format!("{} took {least} to {took}: its end was not observed", phase.kind);
        wrap(text, &line, 2, "! ", style);
    }
    if !account.is_final {
        wrap(text, "not final: late evidence may change this report", 2, "! ", style);
    }
    if account.truncated {
        wrap(text, "truncated: coroner started after the termination began", 2, "! ", style);
    }
    if !account.incomplete.is_empty() {
        let kinds: Vec<_> = account.incomplete.iter().map(|kind| kind.as_str()).collect();
        let line = format!("incomplete: evidence was lost ({})", kinds.join(", "));
        wrap(text, &line, 2, "! ", style);
    }
}

/// Breaks a line at spaces to the style's width; `bullet` stands before its first part.
pub fn wrap(text: &mut String, line: &str, indent: usize, bullet: &str, style: &Style) {
    let hang = indent + bullet.chars().count();
    let room = style.width.saturating_sub(hang).max(20);
    let mut used = 0;
    let _ = write!(text, "{:indent$}{bullet}", "");
    for word in printable(line).split(' ') {
        let len = word.chars().count();
        if used > 0 && used + 1 + len > room {
            let _ = write!(text, "\n{:hang$}", "");
            used = 0;
        } else if used > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += len;
    }
    text.push('\n');
}

fn verdict_paint(verdict: Verdict) -> Paint {
    match verdict {
        Verdict::Graceful | Verdict::Completed => Paint::Good,
        Verdict::TerminatedByDefault | Verdict::PrestopExhaustedGrace => Paint::Doubtful,
        Verdict::Unknown => Paint::Faint,
        _ => Paint::Bad,
    }
}

/// Always milliseconds: what is measured is that good, and columns stay aligned.
pub fn seconds(time: Duration) -> String {
    let millis = (time.as_nanos() + 500_000) / 1_000_000;
    format!("{}.{:03} s", millis / 1000, millis % 1000)
}

/// When it ended, by the node's wall clock, in UTC. `None`: out of the calendar's range.
pub fn ended_at(account: &PodTermination) -> Option<String> {
    utc(account.ended.time.0, 0)
}

/// A wall clock's time in UTC, with so many digits of the second.
pub fn utc(wall_ns: i64, digits: u8) -> Option<String> {
    let at = jiff::Timestamp::from_nanosecond(i128::from(wall_ns)).ok()?;
    let format = match digits {
        0 => "%Y-%m-%dT%H:%M:%SZ",
        _ => "%Y-%m-%dT%H:%M:%S%.3fZ",
    };
    Some(at.strftime(format).to_string())
}

/// [`shown`](crate::printable::shown), owned.
pub fn printable(text: &str) -> String {
    crate::printable::shown(text).into_owned()
}

/// Its name, or the start of its id.
pub fn container_name(death: &ContainerDeath) -> &str {
    if death.name.is_empty() { short(death.id.as_str()) } else { &death.name }
}

/// The first 13 digits of an id, as crictl shows them.
fn short(id: &str) -> &str {
    id.get(..13).unwrap_or(id)
}
