//! The lines that state why something is not removed, quoted with their time.

use super::{
    line::{Statement, Subject},
    reading,
    table::Topic,
    zone::Zone,
};
use crate::outputs::report::{Style, utc, wrap};
use coroner_core::{
    leak::{Leak, LeakKey},
    time::WallTime,
    types::Source,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

const MAX_QUOTES: usize = 8;
/// The last line of a log that goes on is at most so much older than this machine's clock, or ahead of it, ns.
const RECENT: std::ops::RangeInclusive<i64> = -60_000_000_000..=300_000_000_000;

/// Lines of one message about one thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Quote {
    /// The first one's time, the last one's, and how many there are.
    pub(super) first: WallTime,
    pub(super) last: WallTime,
    pub(super) count: u32,
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

/// The quotes of statements in order of time, the newest first.
pub(super) fn of_entries<'a>(all: impl Iterator<Item = (WallTime, &'a Statement)>) -> Vec<Quote> {
    let mut quotes: Vec<(&Statement, Topic, Quote)> = Vec::new();
    for (at, statement) in all {
        let Some((topic, text)) = &statement.why else { continue };
        let same = |(known, of, _): &&mut (&Statement, Topic, Quote)| {
            (known.message, *of) == (statement.message, *topic)
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
                quotes.push((statement, *topic, quote));
            }
        }
    }
    let mut quotes: Vec<Quote> = quotes.into_iter().map(|(.., quote)| quote).collect();
    quotes.sort_by_key(|quote| std::cmp::Reverse(quote.last));
    quotes
}

pub(in crate::cli) struct LeakQuotes {
    of: Vec<Vec<Quote>>,
    /// What a reader should know of the log.
    pub(in crate::cli) note: String,
}

impl LeakQuotes {
    /// Writes the quotes for a leak by its place in the list.
    pub(in crate::cli) fn write(&self, place: usize, text: &mut String, style: &Style) {
        let quotes = self.of.get(place).into_iter().flatten().take(MAX_QUOTES);
        quotes.for_each(|quote| quote.write(text, style));
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
    let zone = Zone::find(log.last.into_iter(), now, |at| RECENT.contains(&(now.0 - at.0)));
    let timed = log.entries.iter();
    let mut timed: Vec<_> = timed
        .filter_map(|entry| Some((entry.time.near(now, zone.ahead)?, &entry.statement)))
        .collect();
    timed.sort_by_key(|(at, _)| *at);
    let of = leaked.iter_mut().map(|one| one.quotes(&timed)).collect();
    let (zone, gaps) = (zone.sentence("its last line is recent"), log.gaps());
    let older = match leaked.iter().map(|one| one.older).sum() {
        0 => String::new(),
        count => format!("; statements from before the deletion, not quoted: {count}"),
    };
    let note = format!("{} lines of the kubelet's log: {zone}{gaps}{older}", log.lines);
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
    /// Statements from before the deletion.
    older: usize,
}

impl Leaked {
    pub(super) fn of(leak: &Leak) -> Self {
        // Later the apiserver was asked whether the pod exists.
        let by_api = leak.evidence.iter().filter(|one| one.source == Source::Api);
        let deleted = by_api.filter_map(|one| one.at).filter(|at| *at < leak.first_observed).min();
        let sandbox = match &leak.key {
            LeakKey::Sandbox { id } => Some(id.as_str().to_owned()),
            _ => None,
        };
        Self {
            uid: leak.pod.as_ref().map(|pod| pod.uid.as_str().to_owned()),
            deleted: deleted.map(|at| at.time),
            ids: sandbox.iter().map(|id| (id.clone(), None)).collect(),
            sandboxes: sandbox.into_iter().collect(),
            older: 0,
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
        let (older, own): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|(at, _)| self.deleted.is_some_and(|deleted| *at < deleted));
        self.older = older.iter().filter(|(_, one)| one.why.is_some()).count();
        let is_over = |(at, failed): &(WallTime, &Statement)| {
            own.iter().any(|(later, done)| later > at && self.ends(done, failed))
        };
        of_entries(own.iter().copied().filter(|one| !is_over(one)))
    }

    /// Whether a statement of a success is about the same thing.
    fn ends(&self, success: &Statement, failed: &Statement) -> bool {
        let (done, of) = (&success.subject, &failed.subject);
        let Some((topic, _)) = &failed.why else { return false };
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
                && match topic {
                    Topic::Container => !is_sandbox,
                    Topic::Sandbox => is_sandbox,
                    _ => false,
                };
        }
        let agree = |one: &Option<String>, other: &Option<String>| {
            one.is_none() || other.is_none() || one == other
        };
        success.message.success.contains(topic)
            && agree(&done.id, &of.id)
            && agree(&done.volume, &of.volume)
            && agree(&done.container, &of.container)
    }
}
