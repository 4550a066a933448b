//! The kubelet's own account of a termination: its stages as a lane below the phases, and what failed.

use super::{BESIDE, Scale, Style, leak::said, seconds, style::Paint, words, wrap};
use coroner_core::{
    report::{KubeletLane, KubeletStage, PodTermination},
    types::StageKind,
};
use std::{fmt::Write, time::Duration};

/// Column of names: the longest stage is `garbage collection`.
const NAME: usize = 18;
/// Shorter waits are not worth a word.
const WORTH_A_WORD: Duration = Duration::from_millis(10);

/// The lane, with a line per stage.
pub(super) fn lane(text: &mut String, account: &PodTermination, lane: &KubeletLane, style: &Style) {
    let cells = style.width.saturating_sub(BESIDE + 2).clamp(10, 80);
    let scale = Scale::new(account.began, account.ended, cells);
    for stage in &lane.stages {
        let to = stage.to.unwrap_or(stage.from).max(stage.from);
        let is_within = stage.from < account.ended && to >= account.began;
        let bar = if is_within {
            scale.bar(stage.from.max(account.began), to.min(account.ended), stage.to.is_none())
        } else {
            " ".repeat(cells)
        };
        let paint = if stage.failed { Paint::Bad } else { Paint::System };
        let took = match stage.to {
            Some(to) if to > stage.from => seconds(to.since(stage.from)),
            _ => "-".to_owned(),
        };
        let offset = stage.from.signed_since(account.began);
        let sign = if offset < 0 { '-' } else { '+' };
        let offset = format!("{sign}{}", seconds(Duration::from_nanos(offset.unsigned_abs())));
        let bar = style.paint(paint, &bar);
        let line =
            format!("  {:<NAME$}  {bar}  {offset:>11}  {took:>9}", words(stage.kind.as_str()));
        let _ = writeln!(text, "{line}");
        let note = note(stage);
        if !note.is_empty() {
            wrap(text, &note, NAME + 4, "", style);
        }
    }
    if lane.stages.is_empty() {
        wrap(text, "The kubelet's log has no stage of this termination.", 2, "", style);
    }
    if !lane.not_logged.is_empty() {
        let hidden = list(&lane.not_logged);
        let needed = lane.not_logged.iter().map(|kind| kind.level()).max().unwrap_or_default();
        let known = lane.level.map_or("unknown".to_owned(), |level| format!("-v={level}"));
        let line = format!("not logged at {known}: {hidden}; all need -v={needed}");
        wrap(text, &line, 2, "• ", style);
    }
    if !lane.missing.is_empty() {
        let why: Vec<_> = lane.missing.iter().map(|gap| words(gap.as_str())).collect();
        wrap(text, &format!("lines may be missing: {}", why.join(", ")), 2, "• ", style);
    }
    for trouble in &lane.troubles {
        let of = trouble.container.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let often =
            if trouble.count > 1 { format!(", {} times", trouble.count) } else { String::new() };
        let error = trouble.error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
        wrap(text, &format!("{of}{}{often}{error}", said(trouble.statement)), 2, "! ", style);
    }
}

/// What a stage waited for, and what else there is to say of it.
fn note(stage: &KubeletStage) -> String {
    let waited = stage
        .waited
        .filter(|wait| wait.time >= WORTH_A_WORD)
        .map(|wait| format!("{} after {}", seconds(wait.time), words(wait.stage.as_str())));
    let unended = stage.to.is_none().then(|| "its end is not logged".to_owned());
    let failed = stage.failed.then(|| "failed".to_owned());
    let all = [stage.container.clone(), failed, waited, unended];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn list(kinds: &[StageKind]) -> String {
    kinds.iter().map(|kind| words(kind.as_str())).collect::<Vec<_>>().join(", ")
}

/// The parts of the phases, a line per phase.
pub(super) fn parts(text: &mut String, account: &PodTermination, style: &Style) {
    for phase in account.phases.iter().filter(|phase| !phase.parts.is_empty()) {
        let part = |part: &coroner_core::report::PhasePart| {
            let took = seconds(part.to.since(part.from));
            match part.until {
                None => format!("{took} to its end"),
                Some(stage) if part.by_its_end => {
                    format!("{took} until {} ended", words(stage.as_str()))
                }
                Some(stage) => format!("{took} until {}", words(stage.as_str())),
            }
        };
        let parts: Vec<_> = phase.parts.iter().map(part).collect();
        let line =
            format!("{}, by the kubelet's log: {}", words(phase.kind.as_str()), parts.join(", "));
        wrap(text, &line, 2, "• ", style);
    }
}
