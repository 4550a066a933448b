//! The store of the apiserver's pods on this node. It keeps the first deletion request, because a later one
//! may move the deadline.

mod attempts;

pub use self::attempts::{Attempt, Attempts};

use crate::gaps::{Connection, Gap, SourceFailure};
use crate::{dirty::Dirty, ids::*, input::*, table::Table, time::*};
use std::{collections::BTreeSet, time::Duration};

/// Bound on pods: those of the node (`MAX_PODS`, `kube/pod.rs`), and as many that are gone. Beyond it the pods gone
/// longest are evicted, then new ones refused.
const MAX_KNOWN: usize = 2_048;
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
    /// The same on the boot clock, by the node's wall clock at the receipt: it may be set later.
    pub by_its_clock: BootTime,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PodObject {
    /// As last seen.
    pub pod: ApiPod,
    /// The first deletion request.
    pub requested: Option<DeletionRequest>,
    /// The phase was final before the request: the request ends only what still ran.
    pub requested_after_end: bool,
    /// What the status showed of each attempt of its containers.
    pub attempts: Attempts,
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
    /// The watch showed that, so the last state before it is complete.
    pub deletion_observed: bool,
    /// The object reappeared after that: only a restored backup does this.
    reappeared: bool,
    /// Only the fields that leak detection needs are left.
    pub is_reduced: bool,
}

/// All pods that the apiserver has reported.
#[derive(Clone, Debug, Default)]
pub struct ApiState {
    /// The apiserver is one of the sources, whether it has answered or not.
    pub has_apiserver: bool,
    pods: Table<PodUid, PodObject>,
    /// The last list.
    listed: Option<BootTime>,
    /// The connection of the watch.
    pub watch: Connection,
    /// The last mapping to the wall clock.
    anchor: Option<Anchor>,
    /// That clock was set by more than clocks differ: what it makes of the apiserver's stamps may be wrong.
    clock_was_set: bool,
    /// How often an object that existed disappeared.
    pub ends: u64,
}

impl ApiState {
    /// Applies an event. `anchor`: the mapping to the wall clock.
    pub fn apply(&mut self, at: BootTime, event: ApiEvent, anchor: Anchor, dirty: &mut Dirty) {
        let wall = |anchor: Anchor| anchor.wall(at).0;
        let set = self.anchor.replace(anchor).map_or(0, |last| wall(last).abs_diff(wall(anchor)));
        self.clock_was_set |= Duration::from_nanos(set) > CLOCK_SKEW;
        let (not_before, clock_was_set) = (self.not_before(at), self.clock_was_set);
        let watched = Delivery { at, not_before, is_watched: true, anchor, clock_was_set };
        match event {
            ApiEvent::Snapshot { pods } => {
                self.listed = Some(at);
                // The list ends an outage, whether the outage was noticed or not.
                let after = self.silent_since(at);
                let not_before = watched.not_before.min(after - WATCH_LAG);
                let listing = Delivery { not_before, is_watched: false, ..watched };
                let of = |pod| (runtime_uid(pod), is_mirror(pod));
                let listed: BTreeSet<(&str, bool)> = pods.iter().map(of).collect();
                for (uid, object) in &mut self.pods {
                    let is_listed = listed.contains(&(uid.as_str(), object.is_mirror()));
                    if !is_listed && (object.gone.is_none() || object.reappeared) {
                        self.ends += 1;
                        dirty.pod(uid);
                    }
                    object.reappeared &= is_listed;
                    if object.gone.is_none() && !is_listed {
                        object.gone = Some(Interval { earliest: after, latest: at });
                    }
                }
                pods.into_iter().for_each(|pod| self.put(pod, listing, dirty));
                self.watch.up(at, None);
            }
            ApiEvent::Applied(pod) => {
                self.watch.up(at, None);
                self.put(pod, watched, dirty);
            }
            ApiEvent::Deleted(pod) => {
                self.watch.up(at, None);
                let (uid, own) = (PodUid::new(runtime_uid(&pod)), pod.uid.clone());
                self.put(pod, watched, dirty);
                if let Some(object) = self.pods.get_mut(&uid).filter(|o| o.pod.uid == own) {
                    if object.gone.is_none() {
                        let asked = object.requested.map(|request| request.earliest);
                        let earliest = match watched.is_queued() {
                            true => asked.map_or(watched.not_before, |a| a.max(watched.not_before)),
                            false => at,
                        };
                        object.gone = Some(Interval { earliest, latest: at });
                        object.deletion_observed = true;
                    }
                    object.reappeared = false;
                    self.ends += 1;
                }
            }
            ApiEvent::OutOfSync { error } => {
                if self.watch.last_up.is_some() {
                    self.watch.down(self.silent_since(at), error, None);
                }
            }
            ApiEvent::Resumed => self.watch.up(at, None),
            // Node events and verifications concern node state and leak detection.
            ApiEvent::Node(_) | ApiEvent::NodeUnknown { .. } | ApiEvent::Checked { .. } => {}
        }
    }

    /// Everything that the watch has not shown by now happened after this.
    fn silent_since(&self, now: BootTime) -> BootTime {
        match self.watch.last().filter(|outage| outage.to.is_none()) {
            Some(outage) => outage.from,
            None => self.watch.last_up.map_or(BootTime(0), |last| last.max(now - LONGEST_SILENCE)),
        }
    }

    /// Everything that a watch event shows happened after this.
    fn not_before(&self, at: BootTime) -> BootTime {
        // Events that were queued during the outage arrive just after it.
        let queued = |outage: &&Gap<SourceFailure>| outage.to.is_none_or(|to| at <= to + WATCH_LAG);
        self.watch.last().filter(queued).map_or(at, |outage| outage.from) - WATCH_LAG
    }

    /// Stores a pod as delivered.
    fn put(&mut self, pod: ApiPod, delivery: Delivery, dirty: &mut Dirty) {
        let Delivery { at, is_watched, .. } = delivery;
        let is_dated = is_watched && !delivery.is_queued();
        let known = self.pods.get_key_value(runtime_uid(&pod)).map(|(uid, _)| uid.clone());
        let uid = known.unwrap_or_else(|| PodUid::new(runtime_uid(&pod)));
        // Whoever creates pods can claim to mirror any UID. A pod's own object is the one with that UID.
        match self.pods.get(&uid).map(PodObject::is_mirror) {
            Some(false) if is_mirror(&pod) => return,
            Some(true) if !is_mirror(&pod) => drop(self.pods.remove(&uid)),
            _ => {}
        }
        let had_no_request =
            self.pods.get(&uid).is_some_and(|o| o.requested.is_none() && o.exists());
        let request = request(&pod, delivery, had_no_request);
        dirty.pod(&uid);
        if let Some(known) = self.pods.get_mut(&uid).filter(|known| known.gone.is_some()) {
            known.reappeared = true;
            if !is_mirror(&pod) {
                return;
            }
            // Only a static pod's object comes back: its mirror was deleted, or its manifest returned. The history
            // belongs to the old object.
            self.pods.remove(&uid);
        }
        if let Some(known) = self.pods.get_mut(&uid) {
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
                        // The apiserver keeps when the first request was made (`BeforeDelete`, registry/rest).
                        known.changed.push(DeletionRequest { estimate: at, ..now });
                    }
                }
                _ => {}
            }
            let to_zero = request.is_some_and(|r| r.grace_seconds == 0)
                && known.requested.is_some_and(|first| first.grace_seconds > 0);
            let is_first = known.pod.deletion_grace_seconds != Some(0);
            if to_zero && is_first && is_dated && !pod.finalizers.is_empty() {
                known.final_delete = Some(at);
            }
            if !pod.is_over() {
                known.reported = None;
            } else if is_dated && !known.pod.is_over() {
                known.reported = Some(at);
            }
            known.attempts.apply(Some(&known.pod), &pod);
            (known.pod, known.is_reduced) = (pod, false);
        } else {
            if self.pods.len() >= MAX_KNOWN && !self.evict_oldest(dirty) {
                dirty.refused += 1;
                return;
            }
            let found_deleting = !is_watched && request.is_some();
            let requested = request.map(|request| request.as_first_of(&pod));
            let object = PodObject { requested, found_deleting, ..PodObject::new(pod) };
            self.pods.insert(uid, object);
        }
    }

    fn evict_oldest(&mut self, dirty: &mut Dirty) -> bool {
        let oldest =
            self.gone().min_by_key(|(uid, _, gone)| (*gone, *uid)).map(|(uid, ..)| uid.clone());
        oldest.is_some_and(|uid| self.evict(&uid, dirty))
    }

    /// A pod by the UID that the runtime knows.
    pub fn get(&self, uid: &PodUid) -> Option<&PodObject> {
        self.pods.get(uid)
    }

    /// A pod that is not stored, and ended at `ended`, may still be reported: no list since then lacked it.
    pub fn may_show(&self, ended: BootTime) -> bool {
        self.has_apiserver && self.listed.is_none_or(|at| at < ended)
    }

    /// Evicts a pod. True: it was stored.
    pub fn evict(&mut self, uid: &PodUid, dirty: &mut Dirty) -> bool {
        dirty.pod(uid);
        let was_stored = self.pods.remove(uid).is_some();
        self.ends += u64::from(was_stored);
        was_stored
    }

    /// Pods whose object exists.
    pub fn present(&self) -> impl Iterator<Item = (&PodUid, &PodObject)> {
        self.pods.iter().filter(|(_, object)| object.exists())
    }

    /// Reduces an object that is gone and reported to what leak detection needs, some 500 bytes.
    pub fn reduce(&mut self, uid: &PodUid) {
        let gone = self.pods.get_mut(uid).filter(|object| !object.exists() && !object.is_reduced);
        let Some(object) = gone else { return };
        let ApiPod { uid, namespace, name, mirror_of, .. } = std::mem::take(&mut object.pod);
        object.pod = ApiPod { uid, namespace, name, mirror_of, ..ApiPod::default() };
        object.attempts = Attempts::default();
        object.changed.shrink_to_fit();
        object.is_reduced = true;
    }

    /// Pods whose object is gone and has not reappeared, and since when.
    pub fn gone(&self) -> impl Iterator<Item = (&PodUid, &PodObject, BootTime)> {
        let gone = self.pods.iter().filter(|(_, object)| !object.exists());
        gone.filter_map(|(uid, object)| Some((uid, object, object.gone?.latest)))
    }

    /// How many pods are stored.
    pub fn count(&self) -> usize {
        self.pods.len()
    }
}

/// The UID by which the runtime knows the pod.
fn runtime_uid(pod: &ApiPod) -> &str {
    pod.mirror_of.as_ref().map_or(&pod.uid, PodUid::as_str)
}

fn is_mirror(pod: &ApiPod) -> bool {
    pod.mirror_of.is_some()
}

/// How a pod's state was delivered.
#[derive(Clone, Copy)]
struct Delivery {
    at: BootTime,
    /// Its changes happened after this.
    not_before: BootTime,
    /// By the watch, not in a list.
    is_watched: bool,
    /// Boot clock ↔ wall clock.
    anchor: Anchor,
    clock_was_set: bool,
}

impl Delivery {
    /// The watch was away, and this may have happened in that time.
    fn is_queued(&self) -> bool {
        self.is_watched && self.not_before + WATCH_LAG < self.at
    }
}

impl DeletionRequest {
    /// The end of the grace.
    pub fn deadline(&self) -> BootTime {
        self.estimate + seconds(self.grace_seconds)
    }

    /// When it was made, by the apiserver's stamp. What the watch delivered bounds it where that clock is wrong: it is
    /// if the stamp lies in the future, or further back than any event of a watch is late.
    pub(crate) fn requested(&self) -> BootTime {
        let stamp = self.by_its_clock.min(self.latest);
        let is_late = stamp + LONGEST_SILENCE >= self.latest;
        if is_late { stamp } else { stamp.max(self.earliest) }
    }

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
fn request(pod: &ApiPod, delivery: Delivery, had_no_request: bool) -> Option<DeletionRequest> {
    let Delivery { at, not_before, is_watched, anchor, clock_was_set } = delivery;
    let deadline = pod.deletion_timestamp?;
    let grace_seconds = pod.deletion_grace_seconds.unwrap_or(0).max(0);
    let api_time = WallTime(deadline.0.saturating_sub(grace_seconds.saturating_mul(1_000_000_000)));
    let by_its_clock = anchor.boot(api_time);
    let asked = by_its_clock.min(at);
    // An earlier, unseen request may have granted more; this one only shortened it.
    let granted = pod.grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS).max(grace_seconds);
    let first = if granted > grace_seconds { asked - seconds(granted) } else { asked };
    let is_skewed = asked < not_before || by_its_clock > at + CLOCK_SKEW;
    let (estimate, uncertainty, earliest) = match (is_watched, had_no_request) {
        (true, _) if delivery.is_queued() && is_skewed => (at, at.since(not_before), not_before),
        (true, _) if delivery.is_queued() => {
            (asked, CLOCK_SKEW, (first - CLOCK_SKEW).max(not_before))
        }
        (true, _) => (at, Duration::ZERO, asked.min(at - CLOCK_SKEW).max(not_before)),
        // The apiserver's timestamp lies before the last state without a request, or in the future: its clock
        // is skewed, so ignore it.
        (false, true) if is_skewed => (at, at.since(not_before), not_before),
        // Use the apiserver's timestamp as the estimate; the lower bound does not depend on it.
        (false, true) => (asked, CLOCK_SKEW, not_before),
        // The timestamp has whole seconds of another machine's clock, and the whole request may fall into the
        // outage.
        (false, false) => (asked, CLOCK_SKEW, (first - CLOCK_SKEW).min(not_before)),
    };
    let latest = at;
    let by_its_clock = if clock_was_set { by_its_clock.max(earliest) } else { by_its_clock };
    Some(DeletionRequest {
        estimate,
        uncertainty,
        earliest,
        latest,
        grace_seconds,
        api_time,
        by_its_clock,
    })
}

impl PodObject {
    /// A pod as first seen, with no request to delete it.
    pub fn new(pod: ApiPod) -> Self {
        let mut attempts = Attempts::default();
        attempts.apply(None, &pod);
        Self { pod, attempts, ..Self::default() }
    }

    /// The pod, with the UID that the runtime knows.
    pub fn pod_ref(&self) -> PodRef {
        let (namespace, name) = (self.pod.namespace.clone(), self.pod.name.clone());
        PodRef { namespace, name, uid: PodUid::new(runtime_uid(&self.pod)) }
    }

    /// The status showed the container's end while the pod was to keep running.
    pub fn outlasted(&self, container: &ContainerId) -> bool {
        self.attempts.get(container).is_some_and(|attempt| attempt.outlasted)
    }

    /// The object was deleted while the watch was broken.
    pub fn deleted_during_gap(&self) -> bool {
        self.gone.is_some() && !self.deletion_observed
    }

    /// The apiserver has the object, according to the last event.
    pub fn exists(&self) -> bool {
        self.gone.is_none() || self.reappeared
    }

    /// The object mirrors a static pod: its deletion stops nothing.
    pub fn is_mirror(&self) -> bool {
        is_mirror(&self.pod)
    }

    /// The deletion request, unless the object is a mirror.
    pub fn request(&self) -> Option<&DeletionRequest> {
        if self.is_mirror() { None } else { self.requested.as_ref() }
    }

    /// The last request that shortened the grace, except the kubelet's own last delete.
    pub fn shortened(&self) -> Option<&DeletionRequest> {
        let first = self.request()?.grace_seconds;
        self.changed.iter().rfind(|r| r.grace_seconds > 0 && r.grace_seconds < first)
    }

    /// The request in force before `until`, except the kubelet's own last delete (grace 0, just before the
    /// object goes).
    pub fn in_force(&self, until: BootTime) -> Option<&DeletionRequest> {
        let first = self.request()?;
        let is_shorter = |r: &&DeletionRequest| r.grace_seconds < first.grace_seconds;
        let mut later = self.changed.iter().filter(|r| r.estimate < until);
        Some(later.rfind(is_shorter).unwrap_or(first))
    }
}
