//! A leak as text for a person, and as JSON: the core's data with sentences and steps.

mod cause;
mod evidence;
mod remediation;

pub use cause::leak_cause;
pub use remediation::remediation;

use super::{Paint, Style, printable, short, utc, wrap};
use crate::store::leaks::{DetectionProgress, LeakStore, since};
use coroner_api::{List, Sentences, leaks as wire};
use coroner_core::{
    leak::{Leak, LeakCause, LeakKey, LeakedContainer, LeakedResources},
    time::{Anchor, WallTime},
};
use std::{fmt::Write, sync::Arc};

/// A leak as the API shows it: the core's data with sentences and steps.
pub fn leak_json(leak: &Leak, clock: &Anchor) -> wire::Leak {
    let of = |kind| (evidence::source(kind), evidence::sentence(leak, kind));
    let sentences = Sentences {
        cause: leak_cause(leak),
        evidence: leak.evidence.iter().map(|one| of(&one.kind)).collect(),
        remediation: remediation(leak),
    };
    wire::Leak::of(leak, clock, sentences)
}

/// The state of leak detection as the API shows it.
/// `message`: why it is suspended.
pub fn detection_json(progress: &DetectionProgress, message: String) -> wire::Detection {
    wire::Detection {
        state: progress.detection_state.into(),
        message,
        watched_seconds: progress.watched_seconds,
        threshold_seconds: progress.threshold_seconds,
        candidate_count: progress.candidate_count,
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct LeakList {
    pub node: String,
    pub progress: DetectionProgress,
    /// Why it is suspended, and the remedy.
    pub suspension: String,
    /// The leaks: the oldest first.
    pub leaks: Vec<Arc<Leak>>,
}

impl From<&LeakStore> for LeakList {
    fn from(store: &LeakStore) -> Self {
        let (progress, leaks) = (store.progress(), store.oldest_first());
        Self { progress, leaks, ..Self::default() }
    }
}

impl From<List<wire::Leak>> for LeakList {
    fn from(list: List<wire::Leak>) -> Self {
        let detection = list.detection.map(|detection| {
            let progress = DetectionProgress {
                detection_state: detection.known_state(),
                watched_seconds: detection.watched_seconds,
                threshold_seconds: detection.threshold_seconds,
                candidate_count: detection.candidate_count,
            };
            (progress, detection.message)
        });
        let (progress, suspension) = detection.unwrap_or_default();
        let leaks = list.items.into_iter().filter_map(Option::<Leak>::from);
        let mut leaks: Vec<_> = leaks.map(Arc::new).collect();
        leaks.sort_by_key(|leak| since(leak));
        Self { node: list.node, progress, suspension, leaks }
    }
}

/// One leak with all that is known of it, and what to do. `now`: for its age.
pub fn leak(leak: &Leak, now: WallTime, style: &Style) -> String {
    let mut text = String::new();
    let of = leak.pod.as_ref().map(|pod| printable(&format!("{}/{}", pod.namespace, pod.name)));
    let thing = printable(&thing(&leak.key));
    let name = of.map_or_else(|| thing.clone(), |of| format!("{of}  {thing}"));
    let class = style.paint(Paint::Bad, leak.class.as_str());
    let _ = writeln!(text, "{}  {class}  {}", style.paint(Paint::Strong, &name), age(leak, now));
    let since = |at: WallTime| utc(at.0, 0).unwrap_or_else(|| "-".to_owned());
    let created = leak.created.map_or_else(|| "-".to_owned(), since);
    let observed = match leak.preexisting {
        true => {
            format!("{} (start of the agent; possibly earlier)", since(leak.first_observed))
        }
        false => since(leak.first_observed),
    };
    wrap(
        &mut text,
        &format!("created {created}, observed as leaked since {observed}"),
        2,
        "",
        style,
    );
    if let Some(workload) = &leak.workload {
        wrap(&mut text, &printable(&format!("of {workload}")), 2, "", style);
    }
    let held = holds(&leak.resources);
    if !held.is_empty() {
        wrap(&mut text, &format!("holds {held}"), 2, "", style);
    }
    if let Some(reason) = leak.blocked_on {
        wrap(&mut text, &format!("waits for: {}", reason), 2, "", style);
    }
    let likely = match leak.cause.kind {
        LeakCause::Unknown => String::new(),
        kind => format!("{kind}: "),
    };
    wrap(&mut text, &format!("{likely}{}", leak_cause(leak)), 2, "cause   ", style);
    let all = &leak.evidence;
    let mut sentences: Vec<_> = all.iter().map(|one| evidence::sentence(leak, &one.kind)).collect();
    // Each once, at its last time.
    for (one, place) in all.iter().zip(0..) {
        let sentence = std::mem::take(&mut sentences[place]);
        if sentences.contains(&sentence) {
            continue;
        }
        let at = one.at.and_then(|at| utc(at.0, 3)).unwrap_or_default();
        let source = evidence::source(&one.kind);
        let line = format!("{at:<24}  {:<8}  {sentence}", source.as_str());
        wrap(&mut text, line.trim_start(), if at.is_empty() { 28 } else { 2 }, "", style);
    }
    for (n, step) in remediation(leak).iter().enumerate() {
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
        let described = |c: &LeakedContainer| format!("{} ({})", c.name, evidence::words(c.state));
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
    span(seconds_between(since(leak), now))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples;

    #[test]
    fn json_has_the_data_and_the_sentences() {
        let leak = samples::leaked();
        let wire = leak_json(&leak, &Anchor::default());
        let json = serde_json::to_value(&wire).unwrap();
        let entry = serde_json::json!({
            "at": { "time": "2023-11-14T22:13:16.000000000Z", "bootNs": 1_699_999_996_000_000_000_i64 },
            "source": "api", "kind": "object_deleted", "message": "its object was deleted",
        });
        assert_eq!(json["evidence"][0], entry);
        assert_eq!(json["cause"]["message"], leak_cause(&leak));
        assert_eq!(json["remediation"][1], "$ systemctl restart kubelet");
        assert_eq!(Option::<Leak>::from(wire), Some(leak), "the client reads the data");
    }
}
