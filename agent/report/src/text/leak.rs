//! A leak as text for a person.

use super::{Paint, Style, printable, short, utc, wrap};
use crate::{Leak, LeakCause, LeakKey, LeakedContainer, LeakedResources, WallTime};
use std::fmt::Write;

/// One leak with all that is known of it, and what to do. `now`: for its age.
pub fn leak(leak: &Leak, now: WallTime, style: &Style) -> String {
    let now = leak.resolved_at.map_or(now, |resolved| resolved.time);
    let mut text = String::new();
    let of = leak.pod.as_ref().map(|pod| printable(&format!("{}/{}", pod.namespace, pod.name)));
    let thing = printable(&thing(&leak.key));
    let name = of.map_or_else(|| thing.clone(), |of| format!("{of}  {thing}"));
    let class = style.paint(Paint::Bad, leak.class.as_str());
    let _ = writeln!(text, "{}  {class}  {}", style.paint(Paint::Strong, &name), age(leak, now));
    let since = |at: WallTime| utc(at.0, 0).unwrap_or_else(|| "-".to_owned());
    let created = leak.created.map_or_else(|| "-".to_owned(), |at| since(at.time));
    let observed = since(leak.first_observed.time);
    let resolved = leak.resolved_at.map(|at| format!(", resolved {}", since(at.time)));
    let times = format!("created {created}, observed as leaked since {observed}");
    wrap(&mut text, &(times + &resolved.unwrap_or_default()), 2, "", style);
    if let Some(workload) = &leak.workload {
        wrap(&mut text, &printable(&format!("of {workload}")), 2, "", style);
    }
    let held = holds(&leak.resources);
    if !held.is_empty() {
        wrap(&mut text, &format!("holds {held}"), 2, "", style);
    }
    let likely = match leak.cause.kind {
        LeakCause::Unknown => String::new(),
        kind => format!("{kind}: "),
    };
    wrap(&mut text, &format!("{likely}{}", leak.cause.message), 2, "cause   ", style);
    for one in &leak.evidence {
        let at = one.at.and_then(|at| utc(at.time.0, 3)).unwrap_or_default();
        let line = format!("{at:<24}  {:<8}  {}", one.source.as_str(), one.message);
        wrap(&mut text, line.trim_start(), if at.is_empty() { 28 } else { 2 }, "", style);
    }
    for (n, step) in leak.remediation.iter().enumerate() {
        let bullet = if n == 0 { "to do   " } else { "        " };
        // A command is not broken: it is to be copied.
        match step.starts_with("$ ") {
            true => {
                let _ = writeln!(text, "  {bullet}{}", printable(step));
            }
            false => wrap(&mut text, step, 2, bullet, style),
        }
    }
    text
}

/// What it holds, on one line; empty if that is nothing.
pub fn holds(holds: &LeakedResources) -> String {
    let mut parts = Vec::new();
    if let Some(netns) = &holds.netns {
        parts.push(format!("network namespace {netns}"));
    }
    if !holds.ips.is_empty() {
        parts.push(format!("addresses {}", holds.ips.join(" ")));
    }
    if let Some(cgroup) = &holds.cgroup {
        parts.push(format!("cgroup {cgroup}"));
    }
    if !holds.pids.is_empty() {
        let pids: Vec<_> = holds.pids.iter().map(u32::to_string).collect();
        parts.push(format!("processes {}", pids.join(" ")));
    }
    if !holds.containers.is_empty() {
        let described = |c: &LeakedContainer| format!("{} ({})", c.name, c.state.words());
        let containers: Vec<_> = holds.containers.iter().map(described).collect();
        parts.push(format!("containers {}", containers.join(", ")));
    }
    printable(&parts.join("; "))
}

/// What it is, short enough for a column: ids as crictl shortens them.
pub fn thing(key: &LeakKey) -> String {
    match key {
        LeakKey::Sandbox { id } => short(id.as_str()).to_owned(),
        LeakKey::Shim { pid, id, .. } => format!("{} (pid {pid})", short(id)),
        LeakKey::Netns { name, .. } => name.clone(),
        LeakKey::PodCgroup { cgroup, .. } => format!("cgroup {cgroup}"),
        LeakKey::Pod { uid } => uid.as_str().to_owned(),
    }
}

pub fn seconds_between(from: WallTime, to: WallTime) -> u64 {
    u64::try_from(to.0.saturating_sub(from.0) / 1_000_000_000).unwrap_or(0)
}

pub fn age(leak: &Leak, now: WallTime) -> String {
    span(seconds_between(leak.since(), now))
}

/// A time that has passed, as short as a column wants it: `92d`, `4h 10m`, `35s`.
pub fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m"),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        (1..=3, _, _) => format!("{days}d {}h", hours % 24),
        _ => format!("{days}d"),
    }
}
