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
/// A broken watch is noticed within this time: a request for a watch lives for at most 120 s, and is given up 5 s
/// after that (`kube/watch.rs`); then the next one delivers what was missed. In a longer silence nothing happened.
pub(crate) const LONGEST_SILENCE: Duration = Duration::from_secs(130);
/// `DefaultTerminationGracePeriodSeconds` (core/v1).
pub const DEFAULT_GRACE_SECONDS: i64 = 30;
/// Allowance for the apiserver's clock, which is another machine's.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(1);
/// A stamp that is no older than this when the watch delivers it is no sign of a late watch: it has whole seconds.
const IN_TIME: Duration = Duration::from_secs(3);

/// A deletion request, or a later change of its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeletionRequest {
    /// When the kubelet may have received it: from the apiserver's stamp, as far as what was delivered bears it out,
    /// to the receipt here.
    pub made: Interval,
    /// The best estimate of that: the receipt, unless it came late or in a list; then the stamp.
    pub date: BootTime,
    pub grace_seconds: i64,
    /// deletionTimestamp − grace, by the apiserver's clock.
    pub stamp: WallTime,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PodObject {
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
    pub gone: Option<Interval>,
    /// The watch showed that, so the last state before it is complete.
    pub deletion_observed: bool,
    /// The object reappeared after that: only a restored backup does this.
    reappeared: bool,
    /// Only the fields that leak detection needs are left.
    pub is_reduced: bool,
}

#[derive(Clone, Debug, Default)]
pub struct ApiState {
    /// The apiserver is one of the sources, whether it has answered or not.
    pub has_apiserver: bool,
    pods: Table<PodUid, PodObject>,
    listed: Option<BootTime>,
    pub watch: Connection,
    /// The apiserver's clock, where an answer has shown it.
    clock: Option<Anchor>,
    /// By how much the watch was late when it delivered the last deletion request.
    lag: Duration,
}

impl ApiState {
    /// Applies an event. `anchor`: the mapping to the wall clock.
    pub fn apply(&mut self, at: BootTime, event: ApiEvent, anchor: Anchor, dirty: &mut Dirty) {
        let clock = self.clock.unwrap_or(anchor);
        let since = self.not_before(at);
        let is_queued = since + WATCH_LAG < at;
        let how = if is_queued { Delivery::Queued } else { Delivery::InTime };
        let received = Interval { earliest: since, latest: at };
        match event {
            ApiEvent::Snapshot { pods } => {
                self.list(received, pods, clock, dirty);
                self.watch.up(at, None);
            }
            ApiEvent::Applied(pod) => {
                self.watch.up(at, None);
                self.put(pod, received, how, clock, dirty);
            }
            ApiEvent::Deleted(pod) => {
                self.watch.up(at, None);
                let (uid, own) = (PodUid::new(runtime_uid(&pod)), pod.uid.clone());
                self.put(pod, received, how, clock, dirty);
                self.delete(&uid, &own, received, how);
            }
            ApiEvent::OutOfSync { error } => {
                if self.watch.last_up.is_some() {
                    self.watch.down(self.silent_since(at), error, None);
                }
            }
            ApiEvent::Resumed => self.watch.up(at, None),
            ApiEvent::Clock { asked, date } => {
                let took = at.since(asked);
                if took <= CLOCK_SKEW {
                    let middle_of_the_second = date.0.saturating_add(500_000_000);
                    let boot_ns = (asked + took / 2).0;
                    self.clock = Some(Anchor { boot_ns, wall_ns: middle_of_the_second });
                }
            }
            // Node events and verifications concern node state and leak detection.
            ApiEvent::Node(_) | ApiEvent::NodeUnknown { .. } | ApiEvent::Checked { .. } => {}
        }
    }

    /// A list ends an outage, whether the outage was noticed or not.
    fn list(&mut self, received: Interval, pods: Vec<ApiPod>, clock: Anchor, dirty: &mut Dirty) {
        let at = received.latest;
        self.listed = Some(at);
        let after = self.silent_since(at);
        let of = |pod| (runtime_uid(pod), is_mirror(pod));
        let listed: BTreeSet<(&str, bool)> = pods.iter().map(of).collect();
        for (uid, object) in &mut self.pods {
            let is_listed = listed.contains(&(uid.as_str(), object.is_mirror()));
            if !is_listed && (object.gone.is_none() || object.reappeared) {
                dirty.pod(uid);
            }
            object.reappeared &= is_listed;
            if object.gone.is_none() && !is_listed {
                object.gone = Some(Interval { earliest: after, latest: at });
            }
        }
        let received = Interval { earliest: received.earliest.min(after - WATCH_LAG), latest: at };
        for pod in pods {
            self.put(pod, received, Delivery::Listed, clock, dirty);
        }
    }

    /// The watch shows that an object is gone. `own`: its UID at the apiserver.
    fn delete(&mut self, uid: &PodUid, own: &str, received: Interval, how: Delivery) {
        let Some(object) = self.pods.get_mut(uid).filter(|known| known.pod.uid == own) else {
            return;
        };
        if object.gone.is_none() {
            let asked = object.requested.map(|request| request.made.earliest);
            let earliest = match how {
                Delivery::Queued => asked.max(Some(received.earliest)).unwrap_or_default(),
                _ => received.latest - self.lag,
            };
            object.gone = Some(Interval { earliest, ..received });
            object.deletion_observed = true;
        }
        object.reappeared = false;
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

    fn put(
        &mut self,
        pod: ApiPod,
        received: Interval,
        how: Delivery,
        clock: Anchor,
        dirty: &mut Dirty,
    ) {
        let at = received.latest;
        let is_dated = how == Delivery::InTime;
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
        let request = request(&pod, received, how, clock, had_no_request);
        if let Some(request) = request.filter(|_| is_dated && had_no_request) {
            self.lag = at.since(request.date);
        }
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
            known.update(pod, request, is_dated.then_some(at), at);
        } else {
            if self.pods.len() >= MAX_KNOWN && !self.evict_oldest(dirty) {
                dirty.refused += 1;
                return;
            }
            let found_deleting = how == Delivery::Listed && request.is_some();
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
        self.pods.remove(uid).is_some()
    }

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
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// By the watch.
    InTime,
    /// By the watch, after it had been away: it may have happened in that time.
    Queued,
    Listed,
}

impl DeletionRequest {
    pub fn deadline(&self) -> BootTime {
        self.date + seconds(self.grace_seconds)
    }

    /// By how much its date may be wrong.
    pub fn uncertainty(&self) -> Duration {
        match self.made.uncertainty() {
            width if width <= IN_TIME => Duration::ZERO,
            width if self.date == self.made.latest => width,
            _ => CLOCK_SKEW,
        }
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

/// `clock`: the apiserver's. `had_no_request`: the watch has shown the pod without a request.
fn request(
    pod: &ApiPod,
    received: Interval,
    how: Delivery,
    clock: Anchor,
    had_no_request: bool,
) -> Option<DeletionRequest> {
    let deadline = pod.deletion_timestamp?;
    let grace_seconds = pod.deletion_grace_seconds.unwrap_or(0).max(0);
    // A later request that shortens the grace keeps the time of the first one (`BeforeDelete`, registry/rest/delete.go).
    let stamp = WallTime(deadline.0.saturating_sub(grace_seconds.saturating_mul(1_000_000_000)));
    let (shown, by) = (clock.boot(stamp), received.latest);
    let date = shown.min(by);
    // What had shown no request: the list before this one, or what the watch delivered before. The first version that
    // is seen of a pod bounds nothing.
    let since = match how {
        Delivery::InTime => by - LONGEST_SILENCE,
        Delivery::Listed if !had_no_request => BootTime(0),
        Delivery::Queued | Delivery::Listed => received.earliest,
    };
    let is_wrong = date < since || shown > by + CLOCK_SKEW;
    let in_time = how == Delivery::InTime && (is_wrong || by.since(date) <= IN_TIME);
    let (earliest, date) = match (in_time, is_wrong) {
        (true, true) => (by - CLOCK_SKEW, by),
        (true, false) => (date.min(by - CLOCK_SKEW), by),
        (false, true) => (since, by),
        (false, false) => ((date - CLOCK_SKEW).max(since), date),
    };
    let made = Interval { earliest, latest: by };
    Some(DeletionRequest { made, date, grace_seconds, stamp })
}

impl PodObject {
    /// A pod as first seen, with no request to delete it.
    pub fn new(pod: ApiPod) -> Self {
        let mut attempts = Attempts::default();
        attempts.apply(None, &pod);
        Self { pod, attempts, ..Self::default() }
    }

    /// Its next version. `dated`: when it was made, if the watch delivered it in time.
    fn update(
        &mut self,
        pod: ApiPod,
        request: Option<DeletionRequest>,
        dated: Option<BootTime>,
        at: BootTime,
    ) {
        match (self.requested, request) {
            (None, Some(first)) => {
                self.requested = Some(first.as_first_of(&pod));
                self.requested_after_end = self.pod.is_finished();
            }
            (Some(first), Some(now)) => {
                let last = self.changed.last().unwrap_or(&first);
                if last.grace_seconds != now.grace_seconds && self.changed.len() < MAX_DEADLINES {
                    // Its stamp is the first one's.
                    let earliest = dated.unwrap_or(now.made.earliest);
                    let made = Interval { earliest, latest: at };
                    self.changed.push(DeletionRequest { made, date: at, ..now });
                }
            }
            _ => {}
        }
        let to_zero = request.is_some_and(|r| r.grace_seconds == 0)
            && self.requested.is_some_and(|first| first.grace_seconds > 0);
        let is_first = self.pod.deletion_grace_seconds != Some(0);
        if to_zero && is_first && !pod.finalizers.is_empty() {
            self.final_delete = dated.or(self.final_delete);
        }
        if !pod.is_over() {
            self.reported = None;
        } else if !self.pod.is_over() {
            self.reported = dated.or(self.reported);
        }
        self.attempts.apply(Some(&self.pod), &pod);
        (self.pod, self.is_reduced) = (pod, false);
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
        let mut later = self.changed.iter().filter(|r| r.date < until);
        Some(later.rfind(is_shorter).unwrap_or(first))
    }
}
