//! What the apiserver told of this node's pods. Facts only: the deletion request is latched at
//! first sight, since a later one may move the deadline (FACTS §3).

use super::{
    ids::PodUid,
    input::{ApiEvent, ApiPod},
    runtime::Between,
    time::{Anchor, BootTime, WallTime},
};
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// Bound on remembered pods: beyond it the longest gone are forgotten, then new ones refused.
const MAX_KNOWN: usize = 16_384;
const MAX_DEADLINES: usize = 8;

/// A deletion request, or a later change of its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it was certain: receipt of the first watch event with it; in a snapshot, the
    /// apiserver's own figure.
    pub at: BootTime,
    /// How much earlier it may have been.
    pub uncertainty: Duration,
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
    /// Later deadlines.
    pub changed: Vec<Request>,
    /// The kubelet's own last delete (grace 0), where finalizers held the object after it.
    pub last_delete: Option<BootTime>,
    /// It was already being deleted when the agent first saw it.
    pub found_deleting: bool,
    /// It is gone.
    pub gone: Option<Between>,
}

/// All that the apiserver told.
#[derive(Clone, Debug)]
pub struct Objects {
    anchor: Anchor,
    pods: HashMap<PodUid, Object>,
    in_sync: bool,
    ever_in_sync: bool,
    last_in_sync: BootTime,
    refused: u64,
}

impl Objects {
    /// Knows nothing yet.
    pub fn new(anchor: Anchor) -> Self {
        Self {
            anchor,
            pods: HashMap::new(),
            in_sync: false,
            ever_in_sync: false,
            last_in_sync: BootTime(0),
            refused: 0,
        }
    }

    /// Takes an event. Returns the pods that it touches.
    pub fn learn(&mut self, at: BootTime, event: ApiEvent) -> BTreeSet<PodUid> {
        let mut touched = BTreeSet::new();
        match event {
            ApiEvent::Snapshot { pods } => {
                let listed: BTreeSet<PodUid> = pods.iter().map(runtime_uid).collect();
                let after = self.last_in_sync;
                for (uid, object) in &mut self.pods {
                    if object.gone.is_none() && !listed.contains(uid) {
                        object.gone = Some(Between { after, by: at });
                        touched.insert(uid.clone());
                    }
                }
                for pod in pods {
                    touched.extend(self.apply(at, pod, true));
                }
                self.synced(at);
            }
            ApiEvent::Applied(pod) => {
                self.synced(at);
                touched.extend(self.apply(at, pod, false));
            }
            ApiEvent::Deleted(pod) => {
                self.synced(at);
                let uid = self.apply(at, pod, false);
                if let Some(uid) = &uid
                    && let Some(object) = self.pods.get_mut(uid)
                {
                    object.gone.get_or_insert(Between { after: at, by: at });
                }
                touched.extend(uid);
            }
            ApiEvent::OutOfSync { .. } => {
                if self.in_sync {
                    self.last_in_sync = at;
                }
                self.in_sync = false;
            }
            ApiEvent::Resumed => self.synced(at),
        }
        touched
    }

    fn synced(&mut self, at: BootTime) {
        self.in_sync = true;
        self.ever_in_sync = true;
        self.last_in_sync = at;
    }

    fn apply(&mut self, at: BootTime, pod: ApiPod, from_list: bool) -> Option<PodUid> {
        let uid = runtime_uid(&pod);
        let request = request(&pod, at, from_list, &self.anchor);
        if let Some(known) = self.pods.get_mut(&uid) {
            if known.gone.is_some() {
                // Only a static pod's object comes back: its mirror was deleted, or its manifest
                // returned. The history of deletions is the old object's.
                pod.mirror_of.as_ref()?;
                known.gone = None;
                known.requested = None;
                known.changed.clear();
                known.last_delete = None;
            }
            match (known.requested, request) {
                (None, Some(first)) => known.requested = Some(first),
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
            if to_zero && known.last_delete.is_none() && !pod.finalizers.is_empty() {
                known.last_delete = Some(at);
            }
            known.pod = pod;
        } else {
            if self.pods.len() >= MAX_KNOWN && !self.forget_oldest() {
                self.refused += 1;
                return None;
            }
            let found_deleting = from_list && request.is_some();
            let object = Object {
                pod,
                requested: request,
                changed: Vec::new(),
                last_delete: None,
                found_deleting,
                gone: None,
            };
            self.pods.insert(uid.clone(), object);
        }
        Some(uid)
    }

    fn forget_oldest(&mut self) -> bool {
        let oldest = self
            .pods
            .iter()
            .filter_map(|(uid, object)| Some((object.gone?.by, uid)))
            .min()
            .map(|(_, uid)| uid.clone());
        oldest.is_some_and(|uid| self.pods.remove(&uid).is_some())
    }

    /// A pod by the UID that the runtime knows.
    pub fn get(&self, uid: &PodUid) -> Option<&Object> {
        self.pods.get(uid)
    }

    /// The watch is in sync.
    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }

    /// It has been in sync at least once: there is an apiserver.
    pub fn was_in_sync(&self) -> bool {
        self.ever_in_sync
    }

    /// Forgets a pod.
    pub fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Pods whose object is gone, and since when.
    pub fn gone(&self) -> Vec<(PodUid, BootTime)> {
        self.pods.iter().filter_map(|(uid, o)| Some((uid.clone(), o.gone?.by))).collect()
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// None is known.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// How many were refused for want of room, since the last call.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }
}

/// The UID by which the runtime knows the pod.
fn runtime_uid(pod: &ApiPod) -> PodUid {
    pod.mirror_of.clone().unwrap_or_else(|| PodUid::new(&pod.uid))
}

fn request(pod: &ApiPod, at: BootTime, from_list: bool, anchor: &Anchor) -> Option<Request> {
    let deadline = pod.deletion_timestamp?;
    let grace_seconds = pod.deletion_grace_seconds.unwrap_or(0).max(0);
    let asked_wall =
        WallTime(deadline.0.saturating_sub(grace_seconds.saturating_mul(1_000_000_000)));
    let earliest = anchor.boot(asked_wall).min(at);
    let (at, uncertainty) = if from_list {
        // Whole seconds of another machine's clock.
        (earliest, Duration::from_secs(1))
    } else {
        (at, Duration::ZERO)
    };
    Some(Request { at, uncertainty, grace_seconds, asked_wall })
}

impl Object {
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
