//! The kubelet's stages of one termination, as a lane below its report.

use super::{
    line::{LineTime, Statement, Subject},
    quotes::{Quote, of_entries},
    reading::{self, LogEntry},
    table::{Edge, Stage},
    zone::Zone,
};
use crate::outputs::report::{Paint, Scale, Style, offset, seconds, wrap};
use coroner_core::{
    report::PodTermination,
    time::{BootTime, WallTime},
    types::Cause,
};
use std::{collections::BTreeMap, path::Path, time::Duration};

/// The zone of a log is the one in which it has a line of the pod at most so long before or after the termination.
const NEAR: Duration = Duration::from_secs(120);
/// Lines so long before the termination, and after it, are about it: garbage collection comes last.
const BEFORE: Duration = Duration::from_secs(60);
const AFTER: Duration = Duration::from_secs(600);
/// Column of names: the longest stage is `garbage_collection`.
const NAME: usize = 18;
/// What stands beside the bar: indent, name, gaps, offset, seconds, verbosity.
const BESIDE: usize = 2 + NAME + 2 + 2 + 11 + 2 + 9 + 2 + 4;
/// Bounds on the stages and on the quotes of one report.
const MAX_STAGES: usize = 64;
const MAX_QUOTES: usize = 16;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) stage: Stage,
    pub(super) from: WallTime,
    pub(super) to: Option<WallTime>,
    pub(super) container: Option<String>,
    pub(super) failed: bool,
    /// `-v` at which it is logged.
    pub(super) level: u8,
}

/// The pod of a termination, as the lines of a log name it.
pub(super) struct NamedPod {
    uid: String,
    name: String,
    is_static: bool,
    /// The names of its containers by their ids; empty for what the log alone names: its sandboxes.
    ids: BTreeMap<String, String>,
}

impl NamedPod {
    pub(super) fn of(account: &PodTermination) -> Self {
        let (pod, all) = (&account.pod, account.containers.iter());
        Self {
            uid: pod.uid.as_str().to_owned(),
            name: format!("{}/{}", pod.namespace, pod.name),
            is_static: account.cause == Cause::StaticRemoved,
            ids: all.map(|one| (one.id.as_str().to_owned(), one.name.clone())).collect(),
        }
    }

    pub(super) fn is_in(&mut self, statement: &Statement) -> bool {
        let Subject { uid, pods, id, .. } = &statement.subject;
        let is_its = uid.as_ref() == Some(&self.uid);
        if is_its && let Some(id) = id {
            self.ids.entry(id.clone()).or_default();
        }
        let of_a_mirror = statement.message.stage.is_some_and(|(_, stage)| stage.is_of_a_mirror());
        let is_named = (uid.is_none() || of_a_mirror) && pods.contains(&self.name);
        is_its || is_named || id.as_ref().is_some_and(|id| self.ids.contains_key(id))
    }

    /// Its UID, or the id of a container or sandbox of it, which nobody can guess, is in the line.
    fn is_surely_in(&self, subject: &Subject) -> bool {
        subject.uid.as_ref() == Some(&self.uid)
            || subject.id.as_ref().is_some_and(|id| self.ids.contains_key(id))
    }
}

pub(in crate::cli) fn lane(
    path: &Path,
    account: &PodTermination,
    style: &Style,
) -> anyhow::Result<String> {
    let mut pod = NamedPod::of(account);
    let log = reading::open(path, |_, statement| pod.is_in(statement))?;
    let mut text = format!("\n{}\n", style.paint(Paint::Strong, "Kubelet's log"));
    if log.lines == 0 {
        let line = format!("{} is not a kubelet's log: no line has klog's header.", path.display());
        wrap(&mut text, &line, 2, "", style);
        return Ok(text);
    }
    let lane = KubeletLane::of(&log.entries, &pod, account);
    if lane.spans.is_empty() && lane.quotes.is_empty() {
        let line = format!("No line of it is about this termination{}.", log.gaps());
        wrap(&mut text, &line, 2, "", style);
        return Ok(text);
    }
    let cells = style.width.saturating_sub(BESIDE).clamp(10, 80);
    let scale = Scale::new(account.began.boot, account.ended.boot, cells);
    for span in &lane.spans {
        let at = |at: WallTime| {
            let offset = at.0.saturating_sub(account.began.time.0);
            BootTime(account.began.boot.0.saturating_add_signed(offset))
        };
        let (from, to) = (at(span.from), at(span.to.unwrap_or(span.from).max(span.from)));
        let bar = match from < account.ended.boot && to >= account.began.boot {
            true => scale.bar(from, to.min(account.ended.boot), span.to.is_none()),
            false => " ".repeat(cells),
        };
        let bar = style.paint(if span.failed { Paint::Bad } else { Paint::System }, &bar);
        let offset = offset(from, account);
        let took = if to > from { seconds(to.since(from)) } else { "-".to_owned() };
        let name = span.stage.as_str();
        let level = span.level;
        let row = format!("  {name:<NAME$}  {bar}  {offset:>11}  {took:>9}  -v={level}\n");
        text.push_str(&row);
        let notes = [
            span.container.clone(),
            span.failed.then(|| "failed".to_owned()),
            span.to.is_none().then(|| "its end is not logged".to_owned()),
        ];
        let notes = notes.into_iter().flatten().collect::<Vec<_>>().join(", ");
        if !notes.is_empty() {
            wrap(&mut text, &notes, NAME + 4, "", style);
        }
    }
    lane.quotes.iter().take(MAX_QUOTES).for_each(|quote| quote.write(&mut text, style));
    let zone = lane.zone.sentence("a stage of this pod is near its termination");
    let line = format!("{} lines of this pod; {zone}{}", log.entries.len(), log.gaps());
    wrap(&mut text, &line, 2, "• ", style);
    Ok(text)
}

pub(super) struct KubeletLane {
    pub(super) spans: Vec<Span>,
    /// The newest one first.
    pub(super) quotes: Vec<Quote>,
    pub(super) zone: Zone,
}

impl KubeletLane {
    pub(super) fn of(entries: &[LogEntry], pod: &NamedPod, account: &PodTermination) -> Self {
        let (began, ended) = (account.began.time, account.ended.time);
        let within = |at: WallTime, before: Duration, after: Duration| {
            let before = began.0.saturating_sub(before.as_nanos() as i64);
            let after = ended.0.saturating_add(after.as_nanos() as i64);
            (before..=after).contains(&at.0)
        };
        // Why something is not removed is logged for hours: that fits in any zone.
        let stages = entries.iter().filter(|entry| entry.statement.why.is_none());
        let times = stages.map(|entry| entry.time);
        let zone = Zone::find(times, began, |at| within(at, NEAR, NEAR));
        let at = |time: LineTime| time.near(began, zone.ahead);
        let timed = entries.iter().filter_map(|entry| Some((at(entry.time)?, &entry.statement)));
        let of_mirror = |statement: &Statement| {
            statement.message.stage.is_some_and(|(_, stage)| stage.is_of_a_mirror())
        };
        let mut all: Vec<_> = timed
            .filter(|(at, statement)| {
                within(*at, if of_mirror(statement) { AFTER } else { BEFORE }, AFTER)
            })
            .collect();
        all.sort_by_key(|(at, _)| *at);
        let stated = all.iter().filter(|(_, statement)| pod.is_surely_in(&statement.subject));
        Self { spans: spans(&all, pod), quotes: of_entries(stated.copied()), zone }
    }
}

/// The stages in the order in which they began.
fn spans(all: &[(WallTime, &Statement)], pod: &NamedPod) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (at, statement) in all {
        let has = |stage| spans.iter().any(|span: &Span| span.stage == stage);
        let over = has(Stage::Terminated) || has(Stage::Pleg);
        let Some((edge, stage)) = edge(statement, pod.is_static, over) else { continue };
        let subject = &statement.subject;
        let by_id = || subject.id.as_ref().and_then(|id| pod.ids.get(id)).cloned();
        let name = subject.container.clone().or_else(by_id).filter(|name| !name.is_empty());
        // A collection is one, of all containers and the sandbox.
        let container = name.filter(|_| edge != Edge::Part);
        let has_room = spans.len() < MAX_STAGES;
        let last =
            spans.iter_mut().rev().find(|span| span.stage == stage && span.container == container);
        match (edge, last) {
            (Edge::Begin, Some(last)) if last.to.is_none() => {}
            (Edge::End | Edge::Part, Some(last)) => last.to = last.to.max(Some(*at)),
            (Edge::Failed, Some(last)) => {
                (last.to, last.failed) = (last.to.max(Some(*at)), true);
            }
            _ if has_room => spans.push(Span {
                stage,
                from: *at,
                to: (edge != Edge::Begin).then_some(*at),
                container,
                failed: edge == Edge::Failed,
                level: statement.message.level,
            }),
            _ => {}
        }
    }
    spans
}

/// What a statement is for a stage. `over`: the pod's containers have ended.
fn edge(statement: &Statement, is_static: bool, over: bool) -> Option<(Edge, Stage)> {
    let subject = &statement.subject;
    let (edge, stage) = statement.message.stage?;
    Some(match stage {
        // The deletion of a mirror pod stops nothing.
        Stage::Noticed if statement.message.text == "SyncLoop DELETE" && is_static => {
            (Edge::Begin, Stage::MirrorRemoved)
        }
        // The kubelet's own delete with grace 0 comes back as another deletion, then as the removal.
        Stage::Noticed if statement.message.text == "SyncLoop DELETE" && over => {
            (Edge::Begin, Stage::Removed)
        }
        Stage::Removed if is_static && subject.from_manifest => (Edge::Moment, Stage::Noticed),
        Stage::Removed if is_static => (Edge::End, Stage::MirrorRemoved),
        Stage::Removed => (Edge::End, Stage::Removed),
        Stage::StatusUpdate if !is_static => return None,
        Stage::Pleg if subject.goes_on => return None,
        _ => (edge, stage),
    })
}
