//! The kubelet: how late it may act, and its own account, which is what its log and its Events say. No verdict depends
//! on it.

mod lane;
mod stages;

pub use stages::{Named, is_trouble};

use crate::{
    ids::*,
    input::{
        KubeletChange, KubeletEntry, KubeletEvent, KubeletLogGap, KubeletProbe,
        KubeletStatement as Says, KubeletStep,
    },
    table::{Table, push_latest},
    time::{BootTime, WallTime},
};
use std::{collections::VecDeque, time::Duration};

/// What the kubelet and the runtime add to a grace period: the kubelet's floor of 2 s
/// (`minimumGracePeriodInSeconds`, kuberuntime_container.go), the rounds of its pod workers, and the
/// runtime's calls. At most 6 s were measured on real nodes.
pub const KUBELET_SLACK: Duration = Duration::from_secs(10);

/// The time between a hook and the kubelet's actions around it: from the ExecSync call to the hook's exec,
/// and from the hook's end to the stop signal. Measured: 10 to 30 ms on an idle node, 1.5 s on an overloaded
/// one.
pub const HOOK_GAP: Duration = Duration::from_secs(2);

/// The time from a deletion request to the kubelet's first action: 0.1 to 0.9 s on an idle node. The watch
/// may bring the request to the agent later than to the kubelet by as much.
pub const KUBELET_REACTION: Duration = Duration::from_secs(1);

/// Bound on all entries; the oldest are dropped.
const MAX_ENTRIES: usize = 8_192;
/// Bound on the entries of one pod, container or sandbox.
const MAX_OF_ONE: usize = 96;
/// Bound on gaps.
const MAX_GAPS: usize = 64;
/// Bound on pods whose Events were looked up.
const MAX_LOOKUPS: usize = 1_024;
/// The key of what is about the node.
const OF_THE_NODE: &str = "";

impl KubeletEntry {
    /// An entry without details.
    pub fn new(time: BootTime, uncertainty_ns: u64, wall: WallTime, of: Says) -> Self {
        Self {
            time,
            uncertainty_ns,
            wall,
            statement: of,
            pod: None,
            namespace: None,
            name: None,
            container: None,
            container_id: None,
            sandbox: None,
            grace_seconds: None,
            source: None,
            step: None,
            probe: None,
            change: None,
            exit_code: None,
            reason: None,
            message: None,
            posted: None,
            failures: Vec::new(),
            error: None,
        }
    }

    /// The latest moment at which it may have been written.
    pub fn latest(&self) -> BootTime {
        self.time + self.uncertainty()
    }

    /// The earliest one.
    pub fn earliest(&self) -> BootTime {
        self.time - self.uncertainty()
    }

    /// How far its time may be off.
    pub fn uncertainty(&self) -> Duration {
        Duration::from_nanos(self.uncertainty_ns)
    }

    /// It may say something about an end. The rest, which is most of a log at `-v=4`, is about pods that start or
    /// keep running.
    pub fn is_wanted(&self) -> bool {
        match self.statement {
            Says::SyncLoopAdd
            | Says::SyncLoopUpdate
            | Says::SyncLoopSync
            | Says::WorkerFirstSync
            | Says::WorkerNotified
            | Says::SyncBegin
            | Says::SyncEnd
            | Says::StatusPatch
            | Says::StatusUpdated
            | Says::SandboxNew
            | Says::SandboxMissing
            | Says::SandboxCreating
            | Says::SandboxCreated
            | Says::StartDelayed
            | Says::ContainerForgotten
            | Says::ContainerNotFound
            | Says::ResizeDeferred
            | Says::PlegStateChanged
            | Says::HousekeepingBegin
            | Says::HousekeepingEnd
            | Says::GcSucceeded
            | Says::EventStarted
            | Says::EventUnhealthy
            | Says::ProbeEnded => false,
            Says::WorkerBegin | Says::WorkerEnd => self.step != Some(KubeletStep::Sync),
            Says::PlegEvent => self.change != Some(KubeletChange::Started),
            _ => true,
        }
    }

    /// An Event says that a probe failed for which the kubelet may stop the container. The log has each failed run
    /// and the reason of the stop anyway.
    fn is_of_a_stopping_probe(&self) -> bool {
        self.statement == Says::EventUnhealthy
            && matches!(self.probe, Some(KubeletProbe::Liveness | KubeletProbe::Startup))
    }

    /// It says that a container is stopped, or is about to be.
    pub(crate) fn is_of_a_stop(&self) -> bool {
        matches!(
            self.statement,
            Says::KillBegin
                | Says::KillEnd
                | Says::KillGraceOverride
                | Says::KillReason
                | Says::KillUnwanted
                | Says::KillFailed
                | Says::KillBeforeRemoval
                | Says::PreStopBegin
                | Says::EventKilling
                | Says::SandboxRestarting
                | Says::SandboxStopping
                | Says::SandboxRemoving
                | Says::TerminatingBegin
                | Says::TerminatingGrace
        )
    }

    /// A run of the kubelet begins: its verbosity may be another than before.
    pub fn begins_a_run(&self) -> bool {
        matches!(self.statement, Says::KubeletVersion | Says::KubeletStarted)
    }

    /// What it is about: the pod, else the container or sandbox, else the pod's name, else the node.
    fn key(&self) -> String {
        // A mirror pod has another UID each time.
        let of_a_mirror = matches!(
            self.statement,
            Says::MirrorCreating
                | Says::MirrorCreateFailed
                | Says::MirrorDeleteTried
                | Says::MirrorDeleting
                | Says::MirrorDeleted
                | Says::MirrorOutdated
                | Says::MirrorDeleteFailed
        );
        let id = self.pod.as_ref().filter(|_| !of_a_mirror || self.name.is_none());
        let id = id.map(PodUid::as_str);
        let id = id.or(self.container_id.as_ref().map(ContainerId::as_str));
        let id = id.or(self.sandbox.as_ref().map(SandboxId::as_str)).map(str::to_owned);
        let name = || Some(name_key(self.namespace.as_deref()?, self.name.as_deref()?));
        id.or_else(name).unwrap_or_else(|| OF_THE_NODE.to_owned())
    }

    /// The same was said again, and only how often matters: it takes no room.
    fn repeats(&self, earlier: &Self) -> bool {
        let counts = matches!(
            self.statement,
            Says::ProbeFailed
                | Says::ProbeErrored
                | Says::SyncLoopProbe
                | Says::OrphanNotified
                | Says::OrphanFound
                | Says::WorkerUnknown
                | Says::WorkerUpdateIgnored
                | Says::DeleteDelayed
                | Says::DeleteDelayedContainers
                | Says::DeleteDelayedStatus
                | Says::BackOff
                | Says::EventBackOff
                | Says::EventUnhealthy
                | Says::UnmountStarted
                | Says::SyncSkipped
                | Says::PlegFailed
                | Says::RuntimeListFailed
                | Says::RuntimeNotReady
                | Says::NetworkNotReady
                | Says::HousekeepingFailed
                | Says::EvictionDue
                | Says::EvictionRanked
        ) || is_trouble(self.statement);
        counts
            && self.statement == earlier.statement
            && self.container == earlier.container
            && self.probe == earlier.probe
            && self.failures == earlier.failures
    }
}

impl KubeletEvent {
    /// A run of the kubelet begins, or may have begun among lines that are missing.
    pub fn may_begin_a_run(&self) -> bool {
        match self {
            Self::Gap { .. } => true,
            Self::Entry(entry) => entry.begins_a_run(),
            _ => false,
        }
    }
}

/// The bit of a level.
fn bit(level: u8) -> u32 {
    1 << level.min(31)
}

/// The key of a pod by its name: an id has no slash.
fn name_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Said once, or several times in a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The first time.
    pub entry: KubeletEntry,
    /// How often.
    pub count: u32,
    /// The last time.
    pub last: BootTime,
}

/// A gap in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LogGap {
    from: BootTime,
    to: BootTime,
    cause: KubeletLogGap,
    /// The levels of the lines of the run of the kubelet before it.
    levels: u32,
}

/// When the apiserver was last asked for a pod's Events.
#[derive(Clone, Copy, Debug, Default)]
struct EventsLookup {
    /// They were listed.
    listed: Option<BootTime>,
    /// They were not: forbidden, over the budget, or no answer.
    failed: Option<BootTime>,
}

/// The kubelet's own account.
#[derive(Clone, Debug, Default)]
pub struct KubeletState {
    /// By what they are about, in order of arrival.
    statements: Table<String, VecDeque<Statement>>,
    /// The keys of all entries, oldest first.
    order: VecDeque<String>,
    /// The log is read from this moment on.
    since: Option<BootTime>,
    /// The levels of the lines of this run of the kubelet, a bit each. A higher one does not stand for a lower one:
    /// `--vmodule` raises the verbosity of single files.
    levels: u32,
    /// Nothing is claimed of the time before: another run of the kubelet, or a stop or a gap that is not kept any more.
    whole: BootTime,
    /// The last moment of which there is a line.
    latest: BootTime,
    gaps: VecDeque<LogGap>,
    /// The agent lists Events.
    pub lists_events: bool,
    /// The kubelet's API may be asked.
    pub is_askable: bool,
    lookups: Table<PodUid, EventsLookup>,
    lookup_order: VecDeque<PodUid>,
    /// Whether the kubelet's API has a pod, and when it was asked.
    known: Table<PodUid, (BootTime, bool)>,
}

impl KubeletState {
    /// Applies news of the log or of Events.
    pub fn apply(&mut self, event: KubeletEvent) {
        match event {
            KubeletEvent::Reading { since, .. } => {
                // A log that can be read again ends the gap that had no end.
                let open = self.gaps.pop_back_if(|last| last.to == BootTime(u64::MAX));
                let (from, levels) =
                    open.map_or((self.latest, self.levels), |open| (open.from, open.levels));
                self.levels = levels;
                if since > from {
                    self.gap(from, since, KubeletLogGap::Damaged);
                }
                self.since = Some(self.since.map_or(since, |before| before.min(since)));
                self.levels = 0;
            }
            KubeletEvent::Verbosity { at_least } => self.levels |= bit(at_least),
            KubeletEvent::Gap { from, to, cause, .. } => self.gap(from, to, cause),
            KubeletEvent::Unreadable { .. } => {
                self.gap(self.latest, BootTime(u64::MAX), KubeletLogGap::Damaged);
            }
            KubeletEvent::Lookup { lists } => self.lists_events = lists,
            KubeletEvent::Askable => self.is_askable = true,
            KubeletEvent::Events { pod, asked, entries } => {
                let before = self.lookups.get(&pod).copied();
                let mut known = before.unwrap_or_default();
                let last = if entries.is_some() { &mut known.listed } else { &mut known.failed };
                *last = Some(asked).max(*last);
                self.lookups.insert(pod.clone(), known);
                if before.is_none()
                    && let Some(oldest) = push_latest(&mut self.lookup_order, pod, MAX_LOOKUPS)
                {
                    self.lookups.remove(&oldest);
                }
                let may_prove =
                    |entry: &KubeletEntry| entry.is_wanted() || entry.is_of_a_stopping_probe();
                entries.into_iter().flatten().filter(may_prove).for_each(|entry| self.keep(entry));
            }
            KubeletEvent::Known { asked, pods } => {
                for (pod, has) in pods {
                    if self.known.len() < MAX_LOOKUPS || self.known.contains_key(&pod) {
                        self.known.insert(pod, (asked, has));
                    }
                }
            }
            KubeletEvent::Entry(entry) => {
                self.latest = self.latest.max(entry.time);
                if entry.begins_a_run() {
                    (self.levels, self.whole) = (0, self.whole.max(entry.latest()));
                }
                if entry.is_wanted() {
                    self.keep(*entry);
                }
            }
        }
    }

    /// In a gap the kubelet may have been restarted, with another verbosity.
    fn gap(&mut self, from: BootTime, to: BootTime, cause: KubeletLogGap) {
        let (to, levels) = (to.max(from), std::mem::take(&mut self.levels));
        let gap = LogGap { from, to, cause, levels };
        let joins = |last: &&mut LogGap| last.cause == cause && from <= last.to && to >= last.from;
        if let Some(last) = self.gaps.back_mut().filter(joins) {
            (last.from, last.to) = (last.from.min(from), last.to.max(to));
        } else if let Some(oldest) = push_latest(&mut self.gaps, gap, MAX_GAPS) {
            self.whole = self.whole.max(oldest.to);
        }
    }

    fn keep(&mut self, entry: KubeletEntry) {
        let key = entry.key();
        let of_one = self.statements.entry(key.clone()).or_default();
        // Only what is said of the container since then breaks a row.
        let before = of_one.iter_mut().rev().find(|known| known.entry.container == entry.container);
        if let Some(before) = before.filter(|before| entry.repeats(&before.entry)) {
            before.count = before.count.saturating_add(1);
            before.last = before.last.max(entry.time);
            before.entry.posted = before.entry.posted.max(entry.posted);
            return;
        }
        let last = entry.time;
        let dropped = push_latest(of_one, Statement { entry, count: 1, last }, MAX_OF_ONE);
        if dropped.is_none() {
            self.order.push_back(key);
        }
        self.forget(dropped);
        while self.order.len() > MAX_ENTRIES {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(of_one) = self.statements.get_mut(&oldest) {
                let dropped = of_one.pop_front();
                if of_one.is_empty() {
                    self.statements.remove(&oldest);
                }
                self.forget(dropped);
            }
        }
    }

    /// The log is not known whole of the time of a stop that is dropped.
    fn forget(&mut self, dropped: Option<Statement>) {
        if let Some(stop) = dropped.filter(|dropped| dropped.entry.is_of_a_stop()) {
            self.whole = self.whole.max(stop.last + stop.entry.uncertainty());
        }
    }

    /// Something is known of the kubelet's log.
    pub fn is_read(&self) -> bool {
        self.since.is_some()
    }

    /// The kubelet ran with at least this `-v` at this moment.
    pub fn level(&self, at: BootTime) -> Option<u8> {
        self.levels(at).checked_ilog2().and_then(|level| u8::try_from(level).ok())
    }

    /// The levels of the lines between the gaps around this moment.
    fn levels(&self, at: BootTime) -> u32 {
        let after = self.gaps.iter().filter(|gap| gap.from >= at);
        after.min_by_key(|gap| gap.from).map_or(self.levels, |gap| gap.levels)
    }

    /// Whether the pod's Events were listed at this moment or later; `None`: not yet.
    pub fn lookup(&self, pod: &PodUid, since: BootTime) -> Option<bool> {
        let known = self.lookups.get(pod)?;
        let (listed, failed) = (known.listed >= Some(since), known.failed >= Some(since));
        (listed || failed).then_some(listed)
    }

    /// Whether the kubelet's API has the pod, and when it was asked.
    pub fn knows(&self, pod: &PodUid) -> Option<(BootTime, bool)> {
        self.known.get(pod).copied()
    }

    /// Forgets the answers about pods of which nothing is left.
    pub fn retain_known(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.known.retain(|pod, _| keep(pod));
    }

    /// How many statements are kept.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// None is kept.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// What was said under an id.
    pub fn of<'a>(&'a self, id: &str) -> impl DoubleEndedIterator<Item = &'a Statement> + use<'a> {
        self.statements.get(id).into_iter().flatten()
    }

    /// What was said of a pod by its name only.
    pub fn of_name<'a>(
        &'a self,
        namespace: &str,
        name: &str,
    ) -> impl DoubleEndedIterator<Item = &'a Statement> + use<'a> {
        self.of(&name_key(namespace, name))
    }

    /// What was said of the node.
    pub fn of_the_node(&self) -> impl DoubleEndedIterator<Item = &Statement> {
        self.of(OF_THE_NODE)
    }

    /// A line of this level that was written in this time is known: its absence shows that it was not. The kubelet's
    /// run covers the whole time, and has written lines of this level.
    pub fn is_complete(&self, from: BootTime, to: BootTime, level: u8) -> bool {
        self.since.is_some_and(|since| since.max(self.whole) <= from)
            && self.levels(to) & bit(level) != 0
            && self.latest > to
            && self.gaps_in(from, to).next().is_none()
    }

    /// Why lines of this time may be missing.
    pub fn gaps_in(&self, from: BootTime, to: BootTime) -> impl Iterator<Item = KubeletLogGap> {
        let overlaps = move |gap: &&LogGap| gap.from <= to && gap.to >= from;
        self.gaps.iter().filter(overlaps).map(|gap| gap.cause)
    }
}
