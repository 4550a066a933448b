//! What inputs changed since the last tick, and so what must be evaluated again. Every store adds to it what
//! it applies; nothing else decides what is looked at.

use super::ids::{ContainerId, PodUid};
use std::collections::BTreeSet;

/// What must be evaluated again.
#[derive(Clone, Debug, Default)]
pub struct Dirty {
    /// Pods of which a source reported something new, or dropped something.
    pub pods: BTreeSet<PodUid>,
    /// Containers whose cgroup or stop signal the adapters may have to find out.
    pub containers: BTreeSet<ContainerId>,
    /// Something changed that any pod's report may show: an outage, a loss, the clock.
    pub all_reports: bool,
    /// The runtime or the apiserver no longer has something: what the host still has may be an orphan.
    pub orphans: bool,
}

impl Dirty {
    /// Marks a pod. It nearly always is marked already when a kernel record comes.
    pub fn pod(&mut self, uid: &PodUid) {
        if !self.pods.contains(uid) {
            self.pods.insert(uid.clone());
        }
    }

    /// Takes what is marked, and leaves nothing marked.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Whether this pod's report may be another than at the last tick.
    pub fn is_report(&self, uid: &PodUid) -> bool {
        self.all_reports || self.pods.contains(uid)
    }

    /// Adds what another has marked.
    pub fn append(&mut self, mut other: Self) {
        self.pods.append(&mut other.pods);
        self.containers.append(&mut other.containers);
        self.all_reports |= other.all_reports;
        self.orphans |= other.orphans;
    }
}
