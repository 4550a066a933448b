//! What the apiserver told of this node's pods. Facts only: the deletion request is latched at
//! first sight, since a later one may move the deadline (FACTS §3).

mod attempts;

pub use self::attempts::{Attempt, Attempts, Shown};

use super::{
    dirty::Dirty,
    ids::{ContainerId, PodUid},
    input::{ApiEvent, ApiPod},
    runtime::Between,
    table::Table,
    time::{Anchor, BootTime, WallTime},
};
use std::{collections::BTreeSet, time::Duration};

/// Bound on remembered pods: beyond it the longest gone are forgotten, then new ones refused.
const MAX_KNOWN: usize = 16_384;
const MAX_DEADLINES: usize = 8;
/// The watch may be this late (the default settle window); by clocks alone an event of a watch that
/// works is not dated back further.
const WATCH_LAG: Duration = Duration::from_secs(5);
/// A watch that is broken is noticed by then: no request for one lives longer (`kube/watch.rs`). What
/// was silent for longer was so because nothing happened.
pub(crate) const LONGEST_SILENCE: Duration = Duration::from_secs(120);
/// `DefaultTerminationGracePeriodSeconds` (core/v1).
pub const DEFAULT_GRACE_SECONDS: i64 = 30;
/// By so much at least: the apiserver's clock is another machine's.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(1);

/// A deletion request, or a later change of its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it was certain: receipt of the first watch event with it; in a snapshot, the
    /// apiserver's own figure.
    pub at: BootTime,
    /// How much earlier it may have been.
    pub uncertainty: Duration,
    /// The earliest moment at which the kubelet may have heard of it: the apiserver's own figure,
    /// as far as the watch may be late.
    pub since: BootTime,
    /// It had been asked for by then, whatever that clock says: its receipt.
    pub by: BootTime,
    /// deletionGracePeriodSeconds.
    pub grace_seconds: i64,
    /// deletionTimestamp − grace by the apiserver's clock: the lower bound.
    pub asked_wall: WallTime,
}

/// A pod's object and its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// As last seen.
    pub pod: ApiPod,
    /// The first deletion request.
    pub requested: Option<Request>,
    /// Its phase had been final before that: the request ends nothing but what still ran then.
    pub requested_after_end: bool,
    /// What was shown of the attempts of its containers.
    attempts: Attempts,
    /// Later deadlines.
    pub changed: Vec<Request>,
    /// The kubelet's own last delete (grace 0), where finalizers held the object after it.
    pub final_delete: Option<BootTime>,
    /// It was already being deleted when the agent first saw it.
    pub found_deleting: bool,
    /// Since when its status says that nothing of it runs, where the watch showed that change.
    pub reported: Option<BootTime>,
    /// It is gone.
    pub gone: Option<Between>,
    /// It is told of again since it was gone, which only a restored backup can bring about.
    back: bool,
    /// Of its object only what leaks need is kept.
    is_reduced: bool,
}

/// All that the apiserver told.
#[derive(Clone, Debug)]
pub struct Objects {
    /// The apiserver is one of the sources.
    has_apiserver: bool,
    anchor: Anchor,
    pods: Table<PodUid, Object>,
    in_sync: bool,
    ever_in_sync: bool,
    last_in_sync: BootTime,
    /// The last event before the watch last broke, and when it was in sync again.
    outage: Option<(BootTime, Option<BootTime>)>,
    refused: u64,
}

impl Objects {
    /// Knows nothing yet. `has_apiserver`: the apiserver is one of the sources.
    pub fn new(anchor: Anchor, has_apiserver: bool) -> Self {
        Self {
            has_apiserver,
            anchor,
            pods: Table::default(),
            in_sync: false,
            ever_in_sync: false,
            last_in_sync: BootTime(0),
            outage: None,
            refused: 0,
        }
    }

    /// Applies an event.
    pub fn apply(&mut self, at: BootTime, event: ApiEvent, dirty: &mut Dirty) {
        let not_before = self.not_before(at);
        match event {
            ApiEvent::Snapshot { pods } => {
                // Whether or not anybody has noticed that it was broken.
                let after = self.silent_since(at);
                let not_before = not_before.min(after - WATCH_LAG);
                let listed: BTreeSet<&str> = pods.iter().map(runtime_uid).collect();
                for (uid, object) in &mut self.pods {
                    let is_listed = listed.contains(uid.as_str());
                    if !is_listed && (object.gone.is_none() || object.back) {
                        dirty.orphans = true;
                        dirty.pod(uid);
                    }
                    object.back &= is_listed;
                    if object.gone.is_none() && !is_listed {
                        object.gone = Some(Between { after, by: at });
                    }
                }
                for pod in pods {
                    self.put(at, pod, Told::Listed { not_before }, dirty);
                }
                self.synced(at);
            }
            ApiEvent::Applied(pod) => {
                self.synced(at);
                self.put(at, pod, Told::Watched { not_before }, dirty);
            }
            ApiEvent::Deleted(pod) => {
                dirty.orphans = true;
                self.synced(at);
                let uid = PodUid::new(runtime_uid(&pod));
                self.put(at, pod, Told::Watched { not_before }, dirty);
                if let Some(object) = self.pods.get_mut(&uid) {
                    object.gone.get_or_insert(Between { after: at, by: at });
                    object.back = false;
                }
            }
            ApiEvent::OutOfSync { .. } => {
                if self.in_sync {
                    self.last_in_sync = self.silent_since(at);
                    self.outage = Some((self.last_in_sync, None));
                }
                self.in_sync = false;
            }
            ApiEvent::Resumed => self.synced(at),
            // Of the node, and of what a look past the watch showed: the judge of leaks asks.
            ApiEvent::Node(_) | ApiEvent::NodeUnknown { .. } | ApiEvent::Checked { .. } => {}
        }
    }

    /// What the watch has not told by now happened after this.
    fn silent_since(&self, now: BootTime) -> BootTime {
        if self.in_sync { self.last_in_sync.max(now - LONGEST_SILENCE) } else { self.last_in_sync }
    }

    /// What a watch event tells happened after this.
    fn not_before(&self, at: BootTime) -> BootTime {
        let late = match self.outage {
            Some((from, None)) => from,
            // What had queued up meanwhile comes now.
            Some((from, Some(to))) if at <= to + WATCH_LAG => from,
            _ => at,
        };
        late - WATCH_LAG
    }

    fn synced(&mut self, at: BootTime) {
        if let Some((_, to @ None)) = &mut self.outage {
            *to = Some(at);
        }
        self.in_sync = true;
        self.ever_in_sync = true;
        self.last_in_sync = at;
    }

    /// The state of a pod as it was delivered.
    fn put(&mut self, at: BootTime, pod: ApiPod, told: Told, dirty: &mut Dirty) {
        let known = self.pods.get_key_value(runtime_uid(&pod)).map(|(uid, _)| uid.clone());
        let uid = known.unwrap_or_else(|| PodUid::new(runtime_uid(&pod)));
        let unasked = self.pods.get(&uid).is_some_and(|o| o.requested.is_none() && o.exists());
        let request = request(&pod, at, told, unasked, &self.anchor);
        dirty.pod(&uid);
        if let Some(known) = self.pods.get_mut(&uid) {
            if known.gone.is_some() {
                // Only a static pod's object comes back: its mirror was deleted, or its manifest
                // returned. The history of deletions is the old object's.
                known.back = true;
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
            match (pod.is_over(), told) {
                (true, Told::Watched { .. }) if !known.pod.is_over() => known.reported = Some(at),
                (true, _) => {}
                (false, _) => known.reported = None,
            }
            dirty.orphans |= known.pod.mirror_of != pod.mirror_of;
            let watched = matches!(told, Told::Watched { .. });
            known.attempts.apply(at, watched.then_some(&known.pod), &pod);
            (known.pod, known.is_reduced) = (pod, false);
        } else {
            if self.pods.len() >= MAX_KNOWN && !self.forget_oldest(dirty) {
                self.refused += 1;
                return;
            }
            let listed = matches!(told, Told::Listed { .. });
            let found_deleting = listed && request.is_some();
            let requested = request.map(|request| request.as_first_of(&pod));
            let object = Object { requested, found_deleting, ..Object::new(at, pod) };
            self.pods.insert(uid, object);
        }
    }

    fn forget_oldest(&mut self, dirty: &mut Dirty) -> bool {
        let oldest = self
            .pods
            .iter()
            .filter_map(|(uid, object)| Some((object.gone?.by, uid)))
            .min()
            .map(|(_, uid)| uid.clone());
        oldest.is_some_and(|uid| self.forget(&uid, dirty))
    }

    /// A pod by the UID that the runtime knows.
    pub fn get(&self, uid: &PodUid) -> Option<&Object> {
        self.pods.get(uid)
    }

    /// The watch is in sync.
    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }

    /// There is an apiserver to be asked, whether it has ever told or not.
    pub fn has_apiserver(&self) -> bool {
        self.has_apiserver
    }

    /// It has been in sync at least once.
    pub fn was_in_sync(&self) -> bool {
        self.ever_in_sync
    }

    /// Forgets a pod. True: it was known.
    pub fn forget(&mut self, uid: &PodUid, dirty: &mut Dirty) -> bool {
        dirty.orphans = true;
        dirty.pod(uid);
        self.pods.remove(uid).is_some()
    }

    /// Pods whose object is there.
    pub fn present(&self) -> impl Iterator<Item = (&PodUid, &Object)> {
        self.pods.iter().filter(|(_, object)| object.exists())
    }

    /// Its object is gone and its termination is reported: of it stays what leaks are detected and
    /// explained by, some 500 bytes, however large the object was.
    pub fn reduce(&mut self, uid: &PodUid) {
        if let Some(object) = self.pods.get_mut(uid).filter(|object| !object.exists()) {
            object.reduce();
        }
    }

    /// Pods whose object is gone, and since when.
    pub fn gone(&self) -> impl Iterator<Item = (&PodUid, &Object, BootTime)> {
        self.pods.iter().filter_map(|(uid, object)| Some((uid, object, object.gone?.by)))
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// None is known.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// From now on the wall clock is read by this.
    pub fn set_anchor(&mut self, anchor: Anchor) {
        self.anchor = anchor;
    }

    /// How many were refused for want of room, since the last call.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }
}

/// The UID by which the runtime knows the pod.
fn runtime_uid(pod: &ApiPod) -> &str {
    pod.mirror_of.as_ref().map_or(&pod.uid, PodUid::as_str)
}

/// How the state of a pod came, and since when the watch may have owed it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Listed { not_before: BootTime },
    Watched { not_before: BootTime },
}

impl Request {
    /// As the first one that was seen: the kubelet's own last delete, of an object that a finalizer holds, has a
    /// grace of 0, and what had been granted is not shown any more.
    fn as_first_of(self, pod: &ApiPod) -> Self {
        if self.grace_seconds > 0 || !pod.is_over() {
            return self;
        }
        Self { grace_seconds: pod.grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS), ..self }
    }
}

/// `unasked`: the watch has shown the pod, without a request.
fn request(
    pod: &ApiPod,
    at: BootTime,
    told: Told,
    unasked: bool,
    anchor: &Anchor,
) -> Option<Request> {
    let deadline = pod.deletion_timestamp?;
    let grace_seconds = pod.deletion_grace_seconds.unwrap_or(0).max(0);
    let asked_wall =
        WallTime(deadline.0.saturating_sub(grace_seconds.saturating_mul(1_000_000_000)));
    let by_its_clock = anchor.boot(asked_wall);
    let asked = by_its_clock.min(at);
    // An earlier request, which nobody saw, may have granted more: this one has only shortened it.
    let granted = pod.grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS).max(grace_seconds);
    let first = if granted > grace_seconds {
        asked - Duration::from_secs(granted.unsigned_abs())
    } else {
        asked
    };
    let by = at;
    let (at, uncertainty, since) = match told {
        // By the apiserver's clock it was asked when the watch still showed that it was not, or is
        // still to be asked: that clock is wrong.
        Told::Listed { not_before }
            if unasked && (asked < not_before || by_its_clock > at + CLOCK_SKEW) =>
        {
            (at, at.since(not_before), not_before)
        }
        // That clock says when it was asked, if it is right; since when it may have been does not
        // hang on it.
        Told::Listed { not_before } if unasked => (asked, CLOCK_SKEW, not_before),
        // Whole seconds of another machine's clock; and all of it may have been in the outage.
        Told::Listed { not_before } => (asked, CLOCK_SKEW, (first - CLOCK_SKEW).min(not_before)),
        Told::Watched { not_before } if not_before + WATCH_LAG < at => {
            (at, Duration::ZERO, first.max(not_before))
        }
        Told::Watched { not_before } => {
            (at, Duration::ZERO, asked.min(at - CLOCK_SKEW).max(not_before))
        }
    };
    Some(Request { at, uncertainty, since, by, grace_seconds, asked_wall })
}

impl Object {
    /// A pod as first seen, with no request to delete it.
    pub fn new(at: BootTime, pod: ApiPod) -> Self {
        let mut attempts = Attempts::default();
        attempts.apply(at, None, &pod);
        Self {
            pod,
            requested: None,
            requested_after_end: false,
            attempts,
            changed: Vec::new(),
            final_delete: None,
            found_deleting: false,
            reported: None,
            gone: None,
            back: false,
            is_reduced: false,
        }
    }

    /// Of its object only what leaks need is kept.
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

    /// What was shown of this attempt of a container.
    pub fn attempt(&self, container: &ContainerId) -> Option<&Attempt> {
        self.attempts.get(container)
    }

    /// Its status showed this container's end while the pod was to go on.
    pub fn outlasted(&self, container: &ContainerId) -> bool {
        self.attempt(container).is_some_and(|attempt| attempt.outlasted)
    }

    /// It went while nobody watched.
    pub fn went_unseen(&self) -> bool {
        self.gone.is_some_and(|gone| gone.after < gone.by)
    }

    /// The watch told of its end, so that what was last told of it was true to the end.
    pub fn was_seen_going(&self) -> bool {
        self.gone.is_some_and(|gone| gone.after == gone.by)
    }

    /// The apiserver has it now, as far as it told.
    pub fn exists(&self) -> bool {
        self.gone.is_none() || self.back
    }

    /// It is the apiserver's image of a static pod: its deletion stops nothing.
    pub fn is_mirror(&self) -> bool {
        self.pod.mirror_of.is_some()
    }

    /// The deletion request that concerns the pod itself.
    pub fn request(&self) -> Option<&Request> {
        if self.is_mirror() { None } else { self.requested.as_ref() }
    }

    /// The last request that shortened the grace, the kubelet's own last delete left out.
    pub fn shortened(&self) -> Option<&Request> {
        let first = self.request()?;
        self.changed
            .iter()
            .rev()
            .find(|r| r.grace_seconds > 0 && r.grace_seconds < first.grace_seconds)
    }

    /// The request in force when the containers were stopped: the last one that the kubelet did
    /// not make itself to finish (grace 0, just before the object goes), and when it was made.
    pub fn in_force(&self, until: BootTime) -> Option<&Request> {
        let first = self.request()?;
        Some(
            self.changed
                .iter()
                .rev()
                .find(|r| r.at < until && r.grace_seconds < first.grace_seconds)
                .unwrap_or(first),
        )
    }
}
