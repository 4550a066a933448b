//! The store of the apiserver's pods on this node. It keeps the first deletion request, because a later one
//! may move the deadline.

mod attempts;

pub use self::attempts::{Attempt, Attempts, Shown};

use super::{
    dirty::Dirty,
    ids::{ContainerId, PodRef, PodUid},
    input::{ApiEvent, ApiPod},
    table::Table,
    time::{Anchor, BootTime, Interval, WallTime},
};
use std::{collections::BTreeSet, time::Duration};

/// Bound on pods. Beyond it the pods gone longest are evicted, then new ones refused.
const MAX_KNOWN: usize = 16_384;
const MAX_DEADLINES: usize = 8;
/// How late a watch event may be (the default settle window).
const WATCH_LAG: Duration = Duration::from_secs(5);
/// A broken watch is noticed within this time: no request for a watch lives longer (`kube/watch.rs`). In a
/// longer silence nothing happened.
pub(crate) const LONGEST_SILENCE: Duration = Duration::from_secs(120);
/// `DefaultTerminationGracePeriodSeconds` (core/v1).
pub const DEFAULT_GRACE_SECONDS: i64 = 30;
/// Allowance for the apiserver's clock, which is another machine's.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(1);

/// A deletion request, or a later change of its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeletionRequest {
    /// When it was certain: receipt of the first watch event with it; in a list, the apiserver's own
    /// timestamp.
    pub estimate: BootTime,
    /// How much earlier the request may have been.
    pub uncertainty: Duration,
    /// The earliest moment at which the kubelet may have received it.
    pub earliest: BootTime,
    /// The receipt: the request was made before this moment, whatever the apiserver's clock says.
    pub latest: BootTime,
    /// deletionGracePeriodSeconds.
    pub grace_seconds: i64,
    /// deletionTimestamp − grace, by the apiserver's clock: the lower bound.
    pub api_time: WallTime,
}

/// A pod's object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PodObject {
    /// As last seen.
    pub pod: ApiPod,
    /// The first deletion request.
    pub requested: Option<DeletionRequest>,
    /// The phase was final before the request: the request ends only what still ran.
    pub requested_after_end: bool,
    /// What the status showed of each attempt of its containers.
    attempts: Attempts,
    /// Later deadlines.
    pub changed: Vec<DeletionRequest>,
    /// The kubelet's own last delete (grace 0), where finalizers held the object after it.
    pub final_delete: Option<BootTime>,
    /// The pod was already being deleted when the agent first saw it.
    pub found_deleting: bool,
    /// When the watch first showed a status in which nothing runs.
    pub reported: Option<BootTime>,
    /// When the object disappeared.
    pub gone: Option<Interval>,
    /// The object reappeared after that: only a restored backup does this.
    reappeared: bool,
    /// Only the fields that leak detection needs are left.
    is_reduced: bool,
}

/// All pods that the apiserver has reported.
#[derive(Clone, Debug)]
pub struct ApiState {
    /// The apiserver is one of the sources.
    has_apiserver: bool,
    anchor: Anchor,
    pods: Table<PodUid, PodObject>,
    ever_in_sync: bool,
    last_in_sync: BootTime,
    /// The last event before the watch last broke, and when it was in sync again.
    outage: Option<(BootTime, Option<BootTime>)>,
}

impl ApiState {
    /// An empty store. `has_apiserver`: the apiserver is one of the sources.
    pub fn new(anchor: Anchor, has_apiserver: bool) -> Self {
        Self {
            has_apiserver,
            anchor,
            pods: Table::default(),
            ever_in_sync: false,
            last_in_sync: BootTime(0),
            outage: None,
        }
    }

    /// Applies an event.
    pub fn apply(&mut self, at: BootTime, event: ApiEvent, dirty: &mut Dirty) {
        let not_before = self.not_before(at);
        match event {
            ApiEvent::Snapshot { pods } => {
                // The list ends an outage, whether the outage was noticed or not.
                let after = self.silent_since(at);
                let not_before = not_before.min(after - WATCH_LAG);
                let listed: BTreeSet<&str> = pods.iter().map(runtime_uid).collect();
                for (uid, object) in &mut self.pods {
                    let is_listed = listed.contains(uid.as_str());
                    if !is_listed && (object.gone.is_none() || object.reappeared) {
                        dirty.pod(uid);
                    }
                    object.reappeared &= is_listed;
                    if object.gone.is_none() && !is_listed {
                        object.gone = Some(Interval { earliest: after, latest: at });
                    }
                }
                for pod in pods {
                    self.put(at, pod, Delivery::Listed { not_before }, dirty);
                }
                self.synced(at);
            }
            ApiEvent::Applied(pod) => {
                self.synced(at);
                self.put(at, pod, Delivery::Watched { not_before }, dirty);
            }
            ApiEvent::Deleted(pod) => {
                self.synced(at);
                let uid = PodUid::new(runtime_uid(&pod));
                self.put(at, pod, Delivery::Watched { not_before }, dirty);
                if let Some(object) = self.pods.get_mut(&uid) {
                    object.gone.get_or_insert(Interval { earliest: at, latest: at });
                    object.reappeared = false;
                }
            }
            ApiEvent::OutOfSync { .. } => {
                if self.is_in_sync() {
                    self.last_in_sync = self.silent_since(at);
                    self.outage = Some((self.last_in_sync, None));
                }
            }
            ApiEvent::Resumed => self.synced(at),
            // Node events and verifications concern node state and leak detection.
            ApiEvent::Node(_) | ApiEvent::NodeUnknown { .. } | ApiEvent::Checked { .. } => {}
        }
    }

    /// Everything that the watch has not shown by now happened after this.
    fn silent_since(&self, now: BootTime) -> BootTime {
        if self.is_in_sync() {
            self.last_in_sync.max(now - LONGEST_SILENCE)
        } else {
            self.last_in_sync
        }
    }

    /// Everything that a watch event shows happened after this.
    fn not_before(&self, at: BootTime) -> BootTime {
        let late = match self.outage {
            Some((from, None)) => from,
            // Events that were queued during the outage arrive now.
            Some((from, Some(to))) if at <= to + WATCH_LAG => from,
            _ => at,
        };
        late - WATCH_LAG
    }

    fn synced(&mut self, at: BootTime) {
        if let Some((_, to @ None)) = &mut self.outage {
            *to = Some(at);
        }
        self.ever_in_sync = true;
        self.last_in_sync = at;
    }

    /// Stores a pod as delivered.
    fn put(&mut self, at: BootTime, pod: ApiPod, delivery: Delivery, dirty: &mut Dirty) {
        let known = self.pods.get_key_value(runtime_uid(&pod)).map(|(uid, _)| uid.clone());
        let uid = known.unwrap_or_else(|| PodUid::new(runtime_uid(&pod)));
        let had_no_request =
            self.pods.get(&uid).is_some_and(|o| o.requested.is_none() && o.exists());
        let request = request(&pod, at, delivery, had_no_request, &self.anchor);
        dirty.pod(&uid);
        if let Some(known) = self.pods.get_mut(&uid) {
            if known.gone.is_some() {
                // Only a static pod's object comes back: its mirror was deleted, or its manifest returned.
                // The deletion history belongs to the old object.
                known.reappeared = true;
                if pod.mirror_of.is_none() {
                    return;
                }
                known.gone = None;
                known.requested = None;
                known.requested_after_end = false;
                known.attempts = Attempts::default();
                known.changed.clear();
                known.final_delete = None;
            }
            match (known.requested, request) {
                (None, Some(first)) => {
                    known.requested = Some(first.as_first_of(&pod));
                    known.requested_after_end = known.pod.is_finished();
                }
                (Some(first), Some(now)) => {
                    let last = known.changed.last().unwrap_or(&first);
                    if last.grace_seconds != now.grace_seconds
                        && known.changed.len() < MAX_DEADLINES
                    {
                        known.changed.push(now);
                    }
                }
                _ => {}
            }
            let to_zero = request.is_some_and(|r| r.grace_seconds == 0)
                && known.requested.is_some_and(|first| first.grace_seconds > 0);
            if to_zero && known.final_delete.is_none() && !pod.finalizers.is_empty() {
                known.final_delete = Some(at);
            }
            match (pod.is_over(), delivery) {
                (true, Delivery::Watched { .. }) if !known.pod.is_over() => {
                    known.reported = Some(at)
                }
                (true, _) => {}
                (false, _) => known.reported = None,
            }
            let watched = matches!(delivery, Delivery::Watched { .. });
            known.attempts.apply(at, watched.then_some(&known.pod), &pod);
            (known.pod, known.is_reduced) = (pod, false);
        } else {
            if self.pods.len() >= MAX_KNOWN && !self.evict_oldest(dirty) {
                dirty.refused += 1;
                return;
            }
            let listed = matches!(delivery, Delivery::Listed { .. });
            let found_deleting = listed && request.is_some();
            let requested = request.map(|request| request.as_first_of(&pod));
            let object = PodObject { requested, found_deleting, ..PodObject::new(at, pod) };
            self.pods.insert(uid, object);
        }
    }

    fn evict_oldest(&mut self, dirty: &mut Dirty) -> bool {
        let oldest = self
            .pods
            .iter()
            .filter_map(|(uid, object)| Some((object.gone?.latest, uid)))
            .min()
            .map(|(_, uid)| uid.clone());
        oldest.is_some_and(|uid| self.evict(&uid, dirty))
    }

    /// A pod by the UID that the runtime knows.
    pub fn get(&self, uid: &PodUid) -> Option<&PodObject> {
        self.pods.get(uid)
    }

    /// The watch is in sync.
    pub fn is_in_sync(&self) -> bool {
        self.ever_in_sync && !matches!(self.outage, Some((_, None)))
    }

    /// The apiserver is one of the sources, whether it has answered or not.
    pub fn has_apiserver(&self) -> bool {
        self.has_apiserver
    }

    /// The watch has been in sync at least once.
    pub fn was_in_sync(&self) -> bool {
        self.ever_in_sync
    }

    /// Evicts a pod. True: it was stored.
    pub fn evict(&mut self, uid: &PodUid, dirty: &mut Dirty) -> bool {
        dirty.pod(uid);
        self.pods.remove(uid).is_some()
    }

    /// Pods whose object exists.
    pub fn present(&self) -> impl Iterator<Item = (&PodUid, &PodObject)> {
        self.pods.iter().filter(|(_, object)| object.exists())
    }

    /// Reduces an object that is gone and reported to what leak detection needs, some 500 bytes.
    pub fn reduce(&mut self, uid: &PodUid) {
        if let Some(object) = self.pods.get_mut(uid).filter(|object| !object.exists()) {
            object.reduce();
        }
    }

    /// Pods whose object is gone, and since when.
    pub fn gone(&self) -> impl Iterator<Item = (&PodUid, &PodObject, BootTime)> {
        self.pods.iter().filter_map(|(uid, object)| Some((uid, object, object.gone?.latest)))
    }

    /// How many pods are stored.
    pub fn count(&self) -> usize {
        self.pods.len()
    }

    /// Sets the mapping to the wall clock.
    pub fn set_anchor(&mut self, anchor: Anchor) {
        self.anchor = anchor;
    }
}

/// The UID by which the runtime knows the pod.
fn runtime_uid(pod: &ApiPod) -> &str {
    pod.mirror_of.as_ref().map_or(&pod.uid, PodUid::as_str)
}

/// How a pod's state was delivered, and the moment after which its changes happened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Listed { not_before: BootTime },
    Watched { not_before: BootTime },
}

impl DeletionRequest {
    /// The first request that was seen. The kubelet's own last delete, of an object that a finalizer holds,
    /// has a grace of 0 and no longer shows the grace that was granted.
    fn as_first_of(self, pod: &ApiPod) -> Self {
        if self.grace_seconds > 0 || !pod.is_over() {
            return self;
        }
        Self { grace_seconds: pod.grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS), ..self }
    }
}

/// `had_no_request`: the watch has shown the pod without a request.
fn request(
    pod: &ApiPod,
    at: BootTime,
    delivery: Delivery,
    had_no_request: bool,
    anchor: &Anchor,
) -> Option<DeletionRequest> {
    let deadline = pod.deletion_timestamp?;
    let grace_seconds = pod.deletion_grace_seconds.unwrap_or(0).max(0);
    let api_time = WallTime(deadline.0.saturating_sub(grace_seconds.saturating_mul(1_000_000_000)));
    let by_its_clock = anchor.boot(api_time);
    let asked = by_its_clock.min(at);
    // An earlier, unseen request may have granted more; this one only shortened it.
    let granted = pod.grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS).max(grace_seconds);
    let first = if granted > grace_seconds {
        asked - Duration::from_secs(granted.unsigned_abs())
    } else {
        asked
    };
    let latest = at;
    let (estimate, uncertainty, earliest) = match delivery {
        // The apiserver's timestamp lies before the last state without a request, or in the future: its clock
        // is skewed, so ignore it.
        Delivery::Listed { not_before }
            if had_no_request && (asked < not_before || by_its_clock > at + CLOCK_SKEW) =>
        {
            (at, at.since(not_before), not_before)
        }
        // Use the apiserver's timestamp as the estimate; the lower bound does not depend on it.
        Delivery::Listed { not_before } if had_no_request => (asked, CLOCK_SKEW, not_before),
        // The timestamp has whole seconds of another machine's clock, and the whole request may fall into the
        // outage.
        Delivery::Listed { not_before } => {
            (asked, CLOCK_SKEW, (first - CLOCK_SKEW).min(not_before))
        }
        Delivery::Watched { not_before } if not_before + WATCH_LAG < at => {
            (at, Duration::ZERO, first.max(not_before))
        }
        Delivery::Watched { not_before } => {
            (at, Duration::ZERO, asked.min(at - CLOCK_SKEW).max(not_before))
        }
    };
    Some(DeletionRequest { estimate, uncertainty, earliest, latest, grace_seconds, api_time })
}

impl PodObject {
    /// A pod as first seen, with no request to delete it.
    pub fn new(at: BootTime, pod: ApiPod) -> Self {
        let mut attempts = Attempts::default();
        attempts.apply(at, None, &pod);
        Self { pod, attempts, ..Self::default() }
    }

    /// The pod, with the UID that the runtime knows.
    pub fn pod_ref(&self) -> PodRef {
        let (namespace, name) = (self.pod.namespace.clone(), self.pod.name.clone());
        PodRef { namespace, name, uid: PodUid::new(runtime_uid(&self.pod)) }
    }

    /// Only the fields that leak detection needs are left.
    pub fn is_reduced(&self) -> bool {
        self.is_reduced
    }

    fn reduce(&mut self) {
        if self.is_reduced {
            return;
        }
        let pod = std::mem::take(&mut self.pod);
        let ApiPod { uid, namespace, name, mirror_of, .. } = pod;
        self.pod = ApiPod { uid, namespace, name, mirror_of, ..ApiPod::default() };
        self.attempts = Attempts::default();
        self.changed.shrink_to_fit();
        self.is_reduced = true;
    }

    /// What the status showed of this attempt of a container.
    pub fn attempt(&self, container: &ContainerId) -> Option<&Attempt> {
        self.attempts.get(container)
    }

    /// The status showed the container's end while the pod was to keep running.
    pub fn outlasted(&self, container: &ContainerId) -> bool {
        self.attempt(container).is_some_and(|attempt| attempt.outlasted)
    }

    /// The object was deleted while the watch was broken.
    pub fn deleted_during_gap(&self) -> bool {
        self.gone.is_some_and(|gone| gone.earliest < gone.latest)
    }

    /// The watch showed the deletion, so the last state before it is complete.
    pub fn deletion_observed(&self) -> bool {
        self.gone.is_some_and(|gone| gone.earliest == gone.latest)
    }

    /// The apiserver has the object, according to the last event.
    pub fn exists(&self) -> bool {
        self.gone.is_none() || self.reappeared
    }

    /// The object mirrors a static pod: its deletion stops nothing.
    pub fn is_mirror(&self) -> bool {
        self.pod.mirror_of.is_some()
    }

    /// The deletion request, unless the object is a mirror.
    pub fn request(&self) -> Option<&DeletionRequest> {
        if self.is_mirror() { None } else { self.requested.as_ref() }
    }

    /// The last request that shortened the grace, except the kubelet's own last delete.
    pub fn shortened(&self) -> Option<&DeletionRequest> {
        let first = self.request()?;
        self.changed
            .iter()
            .rev()
            .find(|r| r.grace_seconds > 0 && r.grace_seconds < first.grace_seconds)
    }

    /// The request in force before `until`, except the kubelet's own last delete (grace 0, just before the
    /// object goes).
    pub fn in_force(&self, until: BootTime) -> Option<&DeletionRequest> {
        let first = self.request()?;
        Some(
            self.changed
                .iter()
                .rev()
                .find(|r| r.estimate < until && r.grace_seconds < first.grace_seconds)
                .unwrap_or(first),
        )
    }
}
