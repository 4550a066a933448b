//! A termination as text for a person: a waterfall of its phases, then each container with its
//! verdict and what proves it. Pure: the same account and style give the same text.

mod bars;
mod evidence;
mod explain;
mod leak;
mod line;
#[cfg(test)]
pub(crate) mod samples;
mod style;
#[cfg(test)]
mod tests;
mod traffic;

pub use explain::explain;
pub use leak::{
    LeakList, age, detection_json, holds, leak, leak_cause, leak_json, remediation,
    seconds_between, span, thing,
};
pub use line::{LogLine, log_line};
pub use style::{Style, has_colors};
pub(crate) use traffic::endpoint_lag;

pub(crate) use bars::Scale;
use coroner_core::{
    input::{ExitStatus, LossKind},
    report::{ContainerDeath, Finding, Milestone, Phase, PodTermination},
    signal,
    time::BootTime,
    types::{Cause, Certainty, MilestoneKind, PhaseKind, Verdict},
};
use std::{fmt::Write, time::Duration};
pub(crate) use style::Paint;

/// Column of names: the longest phase is `kubelet reaction`.
const NAME: usize = 16;
/// What stands beside the bar: indent, name, gaps, offset, seconds.
const BESIDE: usize = 2 + NAME + 2 + 2 + 11 + 2 + 9;

/// One termination: header, waterfall, containers, second tail.
pub fn termination(account: &PodTermination, style: &Style) -> String {
    let mut text = header(account, style);
    waterfall(&mut text, account, style);
    for death in &account.containers {
        container(&mut text, death, account, style);
    }
    findings(&mut text, &account.findings, 2, style);
    if let Some(line) = traffic::summary(account) {
        wrap(&mut text, &line, 2, "", style);
    }
    footer(&mut text, account, style);
    text
}

fn header(account: &PodTermination, style: &Style) -> String {
    let pod = printable(&format!("{}/{}", account.pod.namespace, account.pod.name));
    let mut text = style.paint(Paint::Strong, &pod);
    if account.life > 1 {
        let _ = write!(text, "  life {}", account.life);
    }
    if account.revision > 1 {
        let _ = write!(text, "  revision {}", account.revision);
    }
    let _ = write!(text, "  {}", cause_of(account));
    if let Some(grace) = account.grace_seconds {
        let _ = write!(text, "  grace {grace} s");
    }
    let took = total(account);
    let _ = writeln!(text, "  took {}", style.paint(Paint::Strong, &took));
    if account.cause == Cause::Unknown {
        wrap(&mut text, &account.cause_message, 2, "", style);
    }
    text
}

/// A duration that is an interval is shown as one.
fn total(account: &PodTermination) -> String {
    let total = account.total();
    if account.is_exact() {
        return seconds(total);
    }
    format!("{} to {}", seconds(total.saturating_sub(account.uncertainty)), seconds(total))
}

fn waterfall(text: &mut String, account: &PodTermination, style: &Style) {
    let cells = style.width.saturating_sub(BESIDE).clamp(10, 80);
    let scale = Scale::new(account.began, account.ended, cells);
    let mut row = |name: &str, from: BootTime, to: BootTime, paint, hatched| {
        let bar = style.paint(paint, &scale.bar(from, to.min(account.ended), hatched));
        let (after, took) = (from.since(account.began), to.since(from));
        let after = format!("+{}", seconds(after));
        let _ = writeln!(text, "  {name:<NAME$}  {bar}  {after:>11}  {:>9}", seconds(took));
    };
    for phase in account.phases.iter().filter(|phase| phase.to > phase.from) {
        let hatched = phase.kind == PhaseKind::Unattributed;
        row(&words(phase.kind.as_str()), phase.from, phase.to, phase_paint(phase), hatched);
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

fn container(text: &mut String, death: &ContainerDeath, account: &PodTermination, style: &Style) {
    let name = printable(container_name(death));
    let verdict = style.paint(verdict_paint(death.verdict), death.verdict.as_str());
    let critical = account.containers.len() > 1 && account.critical.as_ref() == Some(&death.id);
    let mark = if critical { style.paint(Paint::Faint, "  (last to exit)") } else { String::new() };
    let _ = writeln!(text, "  {}  {verdict}{mark}", style.paint(Paint::Strong, &name));
    if !death.proof.message.is_empty() {
        wrap(text, &death.proof.message, 4, "", style);
    }
    let facts = facts(death, account);
    if !facts.is_empty() {
        wrap(text, &facts.join(" · "), 4, "", style);
    }
    findings(text, &death.findings, 4, style);
    warnings(text, death.truncated, &death.incomplete, 4, style);
}

/// How its main process exited.
pub(crate) fn exit(death: &ContainerDeath) -> Option<String> {
    Some(match death.exit? {
        ExitStatus::Code(code) => format!("exit code {code}"),
        ExitStatus::Signal { signal: number, core } => {
            let core = if core { ", core dumped" } else { "" };
            format!("killed by {}{core}", signal::name(number))
        }
    })
}

/// How it ended, from which act of stopping to the exit, and the share of the grace.
fn facts(death: &ContainerDeath, account: &PodTermination) -> Vec<String> {
    let mut facts: Vec<String> = exit(death).into_iter().collect();
    if let Some((what, from, to)) = stop_to_exit(death) {
        facts.push(format!("{what} → exit {}", seconds(to.at.since(from.at))));
    }
    if let (Some(ratio), Some(grace)) = (death.grace_ratio, death.grace_seconds) {
        // The ratio is of what was left of it.
        facts.push(match account.shortened_to_seconds {
            Some(to) => format!("grace {grace} s, shortened by a request of {to} s"),
            None => format!("{:.0} % of {grace} s grace", ratio * 100.0),
        });
    }
    facts.extend(killer(death).map(|killer| format!("SIGKILL by {killer}")));
    facts
}

/// The OOM killer's signal is sent in the name of the process that needed the memory: often the victim.
fn killer(death: &ContainerDeath) -> Option<String> {
    let killer = death.killer.as_ref()?;
    Some(match death.verdict {
        Verdict::OomKilled => "the kernel's OOM killer".to_owned(),
        _ => format!("{} (pid {})", printable(&killer.comm), killer.tgid),
    })
}

fn stop_to_exit(death: &ContainerDeath) -> Option<(String, &Milestone, &Milestone)> {
    let end = death
        .milestone(MilestoneKind::Exited)
        .or_else(|| death.milestone(MilestoneKind::CgroupEmpty))?;
    if let Some(sent) = death.milestone(MilestoneKind::TermSent) {
        return Some((signal::name(death.stop_signal), sent, end));
    }
    let killed = death.milestone(MilestoneKind::KillSent)?;
    Some(("SIGKILL".to_owned(), killed, end))
}

fn findings(text: &mut String, findings: &[Finding], indent: usize, style: &Style) {
    for finding in findings {
        let line = format!("{}: {}", words(finding.kind.as_str()), finding.detail);
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
    not_final(text, account, style);
    warnings(text, account.truncated, &account.incomplete, 2, style);
}

fn not_final(text: &mut String, account: &PodTermination, style: &Style) {
    if !account.is_final {
        wrap(text, "not final: late evidence may change this report", 2, "! ", style);
    }
}

fn warnings(text: &mut String, truncated: bool, lost: &[LossKind], indent: usize, style: &Style) {
    if truncated {
        wrap(text, "truncated: coroner started after the termination began", indent, "! ", style);
    }
    if !lost.is_empty() {
        let kinds: Vec<_> = lost.iter().map(|kind| kind.as_str()).collect();
        let line = format!("incomplete: evidence was lost ({})", kinds.join(", "));
        wrap(text, &line, indent, "! ", style);
    }
}

/// Breaks a line at spaces to the style's width; `bullet` stands before its first part.
pub(crate) fn wrap(text: &mut String, line: &str, indent: usize, bullet: &str, style: &Style) {
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

/// The cause, marked if it is not proven.
fn cause_of(account: &PodTermination) -> String {
    let mark = match account.cause_certainty {
        Certainty::Inferred => " (inferred)",
        Certainty::Proven | Certainty::None => "",
    };
    format!("{}{mark}", cause(account.cause))
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::ApiDelete => "deleted",
        Cause::ForceDelete => "force-deleted",
        Cause::ApiEviction => "evicted through the API",
        Cause::NodePressureEviction => "evicted: the node ran short of resources",
        Cause::LocalStorageLimit => "evicted: exceeded its storage limit",
        Cause::Preemption => "preempted",
        Cause::KubeletPreemption => "preempted by the kubelet for a critical pod",
        Cause::TaintEviction => "evicted by a taint",
        Cause::PodGc => "deleted by the pod garbage collector",
        Cause::NodeShutdown => "stopped by the node's shutdown",
        Cause::Liveness => "liveness probe failed",
        Cause::Startup => "startup probe failed",
        Cause::DeadlineExceeded => "stopped by its activeDeadlineSeconds",
        Cause::DefinitionChanged => "image changed",
        Cause::ResizeRestart => "restarted for a resize",
        Cause::RestartAllContainers => "all its containers were restarted",
        Cause::SandboxChanged => "its sandbox was replaced",
        Cause::PostStartFailed => "postStart hook failed",
        Cause::ExternalStop => "not stopped by the kubelet",
        Cause::Restart => "restarted",
        Cause::Completed => "completed",
        Cause::StaticRemoved => "static pod removed",
        Cause::Unknown => "ended, cause unknown",
    }
}

/// Always milliseconds: what is measured is that good, and columns stay aligned.
pub(crate) fn seconds(time: Duration) -> String {
    let millis = (time.as_nanos() + 500_000) / 1_000_000;
    format!("{}.{:03} s", millis / 1000, millis % 1000)
}

/// When it ended, by the node's wall clock, in UTC. `None`: out of the calendar's range.
pub(crate) fn ended_at(account: &PodTermination) -> Option<String> {
    let took = i64::try_from(account.total().as_nanos()).unwrap_or(i64::MAX);
    utc(account.began_wall_ns.saturating_add(took), 0)
}

/// A wall clock's time in UTC, with so many digits of the second.
pub(crate) fn utc(wall_ns: i64, digits: u8) -> Option<String> {
    let at = jiff::Timestamp::from_nanosecond(i128::from(wall_ns)).ok()?;
    let format = match digits {
        0 => "%Y-%m-%dT%H:%M:%SZ",
        _ => "%Y-%m-%dT%H:%M:%S%.3fZ",
    };
    Some(at.strftime(format).to_string())
}

pub(crate) fn words(label: &str) -> String {
    match label {
        "pre_stop" => "preStop".to_owned(),
        other => other.replace('_', " "),
    }
}

/// [`shown`](crate::printable::shown), owned.
pub(crate) fn printable(text: &str) -> String {
    crate::printable::shown(text).into_owned()
}

/// Its name, or the start of its id as runtimes' tools show it.
pub(crate) fn container_name(death: &ContainerDeath) -> &str {
    let id = death.id.as_str();
    if death.name.is_empty() { id.get(..13).unwrap_or(id) } else { &death.name }
}
