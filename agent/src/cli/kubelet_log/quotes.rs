//! The lines that state why something is not removed, quoted with their time.

use super::{
    line::{Statement, Subject},
    reading,
    table::Topic,
    zone::Zone,
};
use crate::outputs::report::{Style, utc, wrap};
use coroner_core::{
    leak::{Leak, LeakEvidenceKind, LeakKey},
    time::WallTime,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Quotes below one leak.
const MAX_QUOTES: usize = 8;
/// A log may be this much ahead of this machine's clock, ns.
const AHEAD: i64 = 60_000_000_000;

/// Lines of one message about one thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Quote {
    /// The first one's time, the last one's, and how many there are.
    pub(super) first: WallTime,
    pub(super) last: WallTime,
    pub(super) count: u32,
    /// The last one's text.
    pub(super) text: String,
}

impl Quote {
    pub(super) fn write(&self, text: &mut String, style: &Style) {
        let time = |at: WallTime| utc(at.0, 3).unwrap_or_default();
        let often = match self.count {
            1 => String::new(),
            count => format!(", {count} times since {}", time(self.first)),
        };
        wrap(text, &format!("the kubelet logged at {}{often}:", time(self.last)), 2, "! ", style);
        self.text.lines().for_each(|line| wrap(text, line, 6, "", style));
    }
}

/// The quotes of statements in order of time, the newest first: those that were not followed by a success.
pub(super) fn of_entries<'a>(
    all: impl Iterator<Item = (WallTime, &'a Statement)> + Clone,
    holds: impl Fn(&Stated<'a>) -> bool,
) -> Vec<Quote> {
    let mut quotes: Vec<(&Statement, Topic, Quote)> = Vec::new();
    let whys = all.filter_map(|(at, statement)| {
        let (topic, text) = statement.why.as_ref()?;
        let stated = Stated { at, statement, topic: *topic };
        holds(&stated).then_some((stated, text))
    });
    for (Stated { at, statement, topic }, text) in whys {
        let same = |(known, of, _): &&mut (&Statement, Topic, Quote)| {
            (known.message, *of) == (statement.message, topic)
                && (&known.subject.container, &known.subject.volume)
                    == (&statement.subject.container, &statement.subject.volume)
        };
        match quotes.iter_mut().find(same) {
            Some((_, _, quote)) => {
                (quote.last, quote.text) = (at, text.clone());
                quote.count += 1;
            }
            None => {
                let quote = Quote { first: at, last: at, count: 1, text: text.clone() };
                quotes.push((statement, topic, quote));
            }
        }
    }
    let mut quotes: Vec<Quote> = quotes.into_iter().map(|(.., quote)| quote).collect();
    quotes.sort_by_key(|quote| std::cmp::Reverse(quote.last));
    quotes
}

/// A statement of why something is not removed.
pub(super) struct Stated<'a> {
    at: WallTime,
    statement: &'a Statement,
    topic: Topic,
}

/// The quotes for leaks, from one log.
pub(in crate::cli) struct LeakQuotes {
    of: Vec<Vec<Quote>>,
    note: String,
}

impl LeakQuotes {
    /// Writes the quotes for a leak by its place in the list.
    pub(in crate::cli) fn write(&self, place: usize, text: &mut String, style: &Style) {
        let quotes = self.of.get(place).into_iter().flatten().take(MAX_QUOTES);
        quotes.for_each(|quote| quote.write(text, style));
    }

    /// What a reader should know of the log.
    pub(in crate::cli) fn note(&self) -> &str {
        &self.note
    }
}

/// The quotes for these leaks. `now`: when they were listed.
pub(in crate::cli) fn quotes(
    path: &Path,
    leaks: &[&Leak],
    now: WallTime,
) -> anyhow::Result<LeakQuotes> {
    let mut leaked: Vec<Leaked> = leaks.iter().map(|leak| Leaked::of(leak)).collect();
    let log = reading::open(path, |_, statement| {
        let is_used = statement.why.is_some() || !statement.message.success.is_empty();
        leaked.iter_mut().fold(false, |any, one| any | one.is_in(statement)) && is_used
    })?;
    if log.lines == 0 {
        let note = format!("{} is not a kubelet's log: no line has klog's header", path.display());
        return Ok(LeakQuotes { of: Vec::new(), note });
    }
    let newest = log.entries.last().map(|entry| entry.time);
    let zone = Zone::find(newest.into_iter(), now, |at| at.0 <= now.0.saturating_add(AHEAD));
    let timed = log.entries.iter();
    let timed: Vec<_> = timed
        .filter_map(|entry| Some((entry.time.near(now, zone.ahead)?, &entry.statement)))
        .collect();
    let of = leaked.iter_mut().map(|one| one.quotes(&timed)).collect();
    let note = format!("{} lines of the kubelet's log: {}", log.lines, zone.sentence());
    Ok(LeakQuotes { of, note })
}

/// What a log can name of a leak.
pub(super) struct Leaked {
    uid: Option<String>,
    /// When the deletion was requested, or the object was gone.
    deleted: Option<WallTime>,
    /// The sandbox, and what the log says belongs to the pod, with the container's name where it is known.
    ids: BTreeMap<String, Option<String>>,
    sandboxes: BTreeSet<String>,
}

impl Leaked {
    pub(super) fn of(leak: &Leak) -> Self {
        let deleted = leak.evidence.iter().filter_map(|one| match one.kind {
            LeakEvidenceKind::DeletionRequested { .. } | LeakEvidenceKind::ObjectDeleted { .. } => {
                one.at
            }
            _ => None,
        });
        let sandbox = match &leak.key {
            LeakKey::Sandbox { id } => Some(id.as_str().to_owned()),
            _ => None,
        };
        Self {
            uid: leak.pod.as_ref().map(|pod| pod.uid.as_str().to_owned()),
            deleted: deleted.min(),
            ids: sandbox.iter().map(|id| (id.clone(), None)).collect(),
            sandboxes: sandbox.into_iter().collect(),
        }
    }

    /// Whether a line is about it: by the UID, or an id of a sandbox or container, which nobody can guess.
    pub(super) fn is_in(&mut self, statement: &Statement) -> bool {
        let Subject { uid, id, container, .. } = &statement.subject;
        let is_its = uid.is_some() && *uid == self.uid;
        if is_its && let Some(id) = id {
            let name = self.ids.entry(id.clone()).or_default();
            *name = container.clone().or(name.take());
        }
        is_its || id.as_ref().is_some_and(|id| self.ids.contains_key(id))
    }

    pub(super) fn quotes(&mut self, all: &[(WallTime, &Statement)]) -> Vec<Quote> {
        let own: Vec<_> = all.iter().filter(|(_, one)| self.is_in(one)).copied().collect();
        let holds = |stated: &Stated<'_>| {
            let is_newer = self.deleted.is_none_or(|deleted| stated.at >= deleted);
            let is_over = own.iter().any(|(at, later)| *at > stated.at && self.ends(later, stated));
            is_newer && !is_over
        };
        of_entries(own.iter().copied(), holds)
    }

    /// Whether a statement of a success is about the same thing.
    fn ends(&self, success: &Statement, failed: &Stated<'_>) -> bool {
        let (done, of) = (&success.subject, &failed.statement.subject);
        if success.message.text.contains("(PLEG)") {
            let Some(id) = &done.id else { return false };
            let name = self.ids.get(id).and_then(Option::as_ref);
            let same = match (&of.id, &of.container, name) {
                (Some(failed), _, _) => failed == id,
                (None, Some(container), Some(name)) => container == name,
                _ => true,
            };
            let is_sandbox = self.sandboxes.contains(id);
            return !done.goes_on
                && same
                && match failed.topic {
                    Topic::Container => !is_sandbox,
                    Topic::Sandbox => is_sandbox,
                    _ => false,
                };
        }
        let agree = |one: &Option<String>, other: &Option<String>| {
            one.is_none() || other.is_none() || one == other
        };
        success.message.success.contains(&failed.topic)
            && agree(&done.id, &of.id)
            && agree(&done.volume, &of.volume)
            && agree(&done.container, &of.container)
    }
}
