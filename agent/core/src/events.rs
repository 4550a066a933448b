//! The Events that the kubelet has posted, looked up pod by pod. No verdict depends on them.

use crate::{
    ids::PodUid,
    input::{EventReason, LookupEvent, PostedEvent, ProbeKind},
    table::{Table, push_latest},
    time::BootTime,
};
use std::{collections::VecDeque, time::Duration};

/// Bound on the Events of all pods.
const MAX_EVENTS: usize = 8_192;
/// Bound on the Events of one pod; the first in its list are dropped.
const MAX_OF_ONE: usize = 96;
/// Bound on pods whose Events were looked up. Those whose Events were never listed are dropped first, then those that
/// were looked up first.
const MAX_PODS: usize = 1_024;

/// How runtimes word in an error, which FailedKillPod quotes, that the network of a sandbox could not be removed:
/// containerd (`stopPodSandbox`, internal/cri/server/sandbox_stop.go) and CRI-O (`networkStop`,
/// server/sandbox_network.go) "failed to destroy network for [pod] sandbox …"; cri-dockerd and dockershim
/// (`TearDownPod`, network/plugins.go) "networkPlugin cni failed to teardown pod … network".
pub const NETWORK_FAILURES: [&str; 2] = ["failed to destroy network", "failed to teardown pod"];

impl PostedEvent {
    /// An Event without details.
    pub fn new(time: BootTime, uncertainty_ns: u64, about: EventReason) -> Self {
        Self {
            time,
            uncertainty_ns,
            about,
            container: None,
            probe: None,
            reason: None,
            message: None,
            posted: None,
        }
    }

    pub fn uncertainty(&self) -> Duration {
        Duration::from_nanos(self.uncertainty_ns)
    }

    /// The earliest moment at which it may have been posted.
    pub fn earliest(&self) -> BootTime {
        self.time - self.uncertainty()
    }

    /// The latest moment at which it may have been posted.
    pub fn latest(&self) -> BootTime {
        self.time + self.uncertainty()
    }

    /// It is evidence for a leak, or for a cleanup that takes long.
    pub fn is_failure(&self) -> bool {
        matches!(self.about, EventReason::KillPodFailed | EventReason::ExceededGrace)
    }
}

/// Posted once, or several times in a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Posted {
    /// The first time.
    pub event: PostedEvent,
    pub count: u32,
    pub last: BootTime,
}

/// The look-ups of one pod's Events.
#[derive(Clone, Debug, Default)]
struct Lookups {
    /// When they were last listed.
    listed: Option<BootTime>,
    /// When they last were not: forbidden, over the budget, or no answer.
    failed: Option<BootTime>,
    /// The last list.
    events: VecDeque<Posted>,
}

#[derive(Clone, Debug, Default)]
pub struct EventStore {
    /// The agent looks up Events.
    pub is_on: bool,
    pods: Table<PodUid, Lookups>,
    /// By the last look-up, the oldest first.
    order: VecDeque<PodUid>,
    count: usize,
}

impl EventStore {
    /// Applies news of the look-up.
    pub fn apply(&mut self, event: LookupEvent) {
        let (pod, asked, entries) = match event {
            LookupEvent::Lookup { lists } => {
                self.is_on = lists;
                return;
            }
            LookupEvent::Events { pod, asked, entries } => (pod, asked, entries),
        };
        self.order.retain(|known| *known != pod);
        self.order.push_back(pod.clone());
        let lookups = self.pods.entry(pod).or_default();
        match entries {
            None => lookups.failed = lookups.failed.max(Some(asked)),
            Some(entries) => {
                lookups.listed = lookups.listed.max(Some(asked));
                self.count -= lookups.events.len();
                lookups.events = joined(entries);
                self.count += lookups.events.len();
            }
        }
        while self.order.len() > MAX_PODS || self.count > MAX_EVENTS {
            let is_unlisted =
                |pod: &PodUid| self.pods.get(pod).is_none_or(|one| one.listed.is_none());
            let first = self.order.iter().position(is_unlisted).unwrap_or(0);
            let evicted = self.order.remove(first).and_then(|pod| self.pods.remove(&pod));
            self.count -= evicted.map_or(0, |evicted| evicted.events.len());
        }
    }

    /// Whether the pod's Events were listed at this moment or later; `None`: not yet.
    pub fn lookup(&self, pod: &PodUid, since: BootTime) -> Option<bool> {
        let known = self.pods.get(pod)?;
        let (listed, failed) = (known.listed >= Some(since), known.failed >= Some(since));
        (listed || failed).then_some(listed)
    }

    /// The Events of a pod, in order of time.
    pub fn of(&self, pod: &PodUid) -> Vec<&Posted> {
        let mut all: Vec<_> =
            self.pods.get(pod).into_iter().flat_map(|known| &known.events).collect();
        all.sort_by_key(|posted| posted.event.time);
        all
    }
}

/// The Events of a list that count, each once with its first and its last time.
fn joined(entries: Vec<PostedEvent>) -> VecDeque<Posted> {
    let mut events: VecDeque<Posted> = VecDeque::new();
    for event in entries {
        let stops = matches!(event.probe, Some(ProbeKind::Liveness | ProbeKind::Startup));
        let repeats = event.about == EventReason::Unhealthy || event.is_failure();
        if event.about == EventReason::Unhealthy && !stops {
            continue;
        }
        // Only another Event of the same container ends a row.
        let before = events.iter_mut().rev().find(|known| known.event.container == event.container);
        let same = |known: &&mut Posted| {
            repeats
                && (known.event.about, known.event.probe) == (event.about, event.probe)
                && known.event.message == event.message
        };
        if let Some(before) = before.filter(same) {
            before.count = before.count.saturating_add(1);
            before.last = before.last.max(event.time);
            before.event.posted = before.event.posted.max(event.posted);
            continue;
        }
        let last = event.time;
        push_latest(&mut events, Posted { event, count: 1, last }, MAX_OF_ONE);
    }
    events
}
