//! What a source may have failed to report: records that the kernel side lost during a container's lifetime, and
//! the times in which the runtime or the apiserver's watch was away.

use crate::{input::*, table::push_latest, time::*};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bound on outages; the oldest are evicted.
const MAX_OUTAGES: usize = 32;

/// A time in which a source was away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outage {
    /// Nothing that it reported before this is missing: the last answer or event.
    pub from: BootTime,
    /// The first answer after it.
    pub to: Option<BootTime>,
    /// The error of that call.
    pub error: String,
    /// The gRPC status code, where there was one.
    pub code: Option<String>,
    /// Another process answered afterwards; `None`: unknown.
    pub restarted: Option<bool>,
}

/// The connection to a source.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// The last answer or event.
    last_up: Option<BootTime>,
    outages: VecDeque<Outage>,
}

impl Connection {
    /// The source reported something, which ends an outage. `restarted`: another process answers; `None`:
    /// unknown.
    pub fn up(&mut self, at: BootTime, restarted: Option<bool>) {
        self.last_up = Some(at);
        if let Some(outage) = self.outages.back_mut().filter(|outage| outage.to.is_none()) {
            (outage.to, outage.restarted) = (Some(at), restarted);
        }
    }

    /// A call failed, or the watch broke: nothing reported before `from` is missing.
    pub fn down(&mut self, from: BootTime, error: String, code: Option<String>) {
        if self.is_up() || self.outages.is_empty() {
            let outage = Outage { from, to: None, error, code, restarted: None };
            push_latest(&mut self.outages, outage, MAX_OUTAGES);
        }
    }

    /// The source reported something, and is not away since.
    pub fn is_up(&self) -> bool {
        self.last_up.is_some() && self.last().is_none_or(|outage| outage.to.is_some())
    }

    /// The last answer or event; `None`: there was none yet.
    pub fn last_up(&self) -> Option<BootTime> {
        self.last_up
    }

    /// The last outage.
    pub fn last(&self) -> Option<&Outage> {
        self.outages.back()
    }

    /// The source is away, or was so after this moment.
    pub fn was_away_since(&self, at: BootTime) -> bool {
        self.last().is_some_and(|outage| outage.to.is_none_or(|to| to >= at))
    }

    /// Outages that overlap the time from `from` to `to`.
    pub fn outages(&self, from: BootTime, to: BootTime) -> impl Iterator<Item = &Outage> {
        self.outages
            .iter()
            .filter(move |o| o.from <= to && o.to.is_none_or(|answered| answered >= from))
    }
}

/// The losses of one container: which kinds, and until when. A loss hides only events before it was noticed, so an
/// old loss does not affect new evidence.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gaps {
    /// When each kind was last noticed.
    latest: BTreeMap<LossKind, BootTime>,
    /// Kinds lost before the main process was known: another process may have been taken for it.
    before_init_known: BTreeSet<LossKind>,
}

impl Gaps {
    /// Records a loss at `at`, or shortly before.
    pub fn note(&mut self, at: BootTime, kind: LossKind, main_is_known: bool) {
        let latest = self.latest.entry(kind).or_insert(at);
        *latest = at.max(*latest);
        if !main_is_known {
            self.before_init_known.insert(kind);
        }
    }

    /// Kinds that may hide an event at `at` or later.
    pub fn since(&self, at: BootTime) -> impl Iterator<Item = LossKind> {
        let hides = move |kind: &LossKind, lost: BootTime| {
            lost >= at || self.before_init_known.contains(kind)
        };
        self.latest.iter().filter(move |(kind, lost)| hides(kind, **lost)).map(|(kind, _)| *kind)
    }

    /// No loss hides an event at `at` or later.
    pub fn is_complete_since(&self, at: BootTime) -> bool {
        self.since(at).next().is_none()
    }
}
