//! What a source may have failed to report, and when: records of a container that the kernel side lost, and the
//! times in which the runtime or the apiserver's watch was away.

use crate::{input::LossKind, time::BootTime};

/// Bound on gaps; the oldest are evicted.
const MAX_GAPS: usize = 32;

/// A time of which a source may have failed to report something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap<R> {
    /// Nothing that happened before this is missing.
    pub from: BootTime,
    /// Nothing that happened after this is missing; `None`: there is no end yet.
    pub to: Option<BootTime>,
    pub reason: R,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gaps<R>(Vec<Gap<R>>);

impl<R> Default for Gaps<R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<R> Gaps<R> {
    /// Those that overlap the time from `from` to `to`.
    pub fn between(&self, from: BootTime, to: BootTime) -> impl Iterator<Item = &Gap<R>> {
        self.0.iter().filter(move |gap| gap.from <= to && gap.to.is_none_or(|end| end >= from))
    }

    /// Those that may hide an event at `at` or later.
    pub fn since(&self, at: BootTime) -> impl Iterator<Item = &Gap<R>> {
        self.between(at, BootTime(u64::MAX))
    }

    /// No gap hides an event at `at` or later.
    pub fn is_complete_since(&self, at: BootTime) -> bool {
        self.since(at).next().is_none()
    }
}

/// The records that were lost of one container, one gap for each kind of loss. A loss is noticed later, and says
/// nothing of its beginning.
impl Gaps<LossKind> {
    /// Adds a loss; `until`: when it was noticed.
    pub fn note(&mut self, reason: LossKind, until: Option<BootTime>) {
        let Some(known) = self.0.iter_mut().find(|gap| gap.reason == reason) else {
            self.0.push(Gap { from: BootTime(0), to: until, reason });
            return self.0.sort_by_key(|gap| gap.reason);
        };
        known.to = known.to.zip(until).map(|(known, until)| known.max(until));
    }
}

/// Why a source was away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFailure {
    /// The error of the first call.
    pub error: String,
    /// The gRPC status code, where there was one.
    pub code: Option<String>,
    /// Another process answered afterwards; `None`: unknown.
    pub restarted: Option<bool>,
}

#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// The last answer or event; `None`: there was none yet.
    pub last_up: Option<BootTime>,
    /// When the source was away, from the last answer or event before to the first after it.
    pub gaps: Gaps<SourceFailure>,
}

impl Connection {
    /// The source reported something, which ends an outage. `restarted`: another process answers; `None`:
    /// unknown.
    pub fn up(&mut self, at: BootTime, restarted: Option<bool>) {
        self.last_up = Some(at);
        if let Some(gap) = self.gaps.0.last_mut().filter(|gap| gap.to.is_none()) {
            (gap.to, gap.reason.restarted) = (Some(at), restarted);
        }
    }

    /// A call failed, or the watch broke: nothing reported before `from` is missing.
    pub fn down(&mut self, from: BootTime, error: String, code: Option<String>) {
        if self.is_up() || self.last().is_none() {
            let reason = SourceFailure { error, code, restarted: None };
            self.gaps.0.push(Gap { from, to: None, reason });
            let excess = self.gaps.0.len().saturating_sub(MAX_GAPS);
            self.gaps.0.drain(..excess);
        }
    }

    /// The source reported something, and is not away since.
    pub fn is_up(&self) -> bool {
        self.last_up.is_some() && self.last().is_none_or(|gap| gap.to.is_some())
    }

    pub fn last(&self) -> Option<&Gap<SourceFailure>> {
        self.gaps.0.last()
    }
}
