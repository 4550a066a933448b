//! What changed since the last tick and must be evaluated again. Every store marks its own changes; nothing
//! else decides what is evaluated.

use crate::ids::{ContainerId, PodUid};
use std::collections::BTreeSet;

/// The changes since the last tick.
#[derive(Clone, Debug, Default)]
pub struct Dirty {
    /// Pods with a new or a dropped fact.
    pub pods: BTreeSet<PodUid>,
    /// Containers whose cgroup or stop signal may have to be requested.
    pub containers: BTreeSet<ContainerId>,
    /// A change that may affect any pod's report: an outage, a loss, the clock.
    pub all_reports: bool,
    /// Entries refused because a store is full.
    pub refused: u64,
}

impl Dirty {
    /// Marks a pod. With a kernel record it nearly always is marked already.
    pub fn pod(&mut self, uid: &PodUid) {
        if !self.pods.contains(uid) {
            self.pods.insert(uid.clone());
        }
    }

    /// Adds the marks of another.
    pub fn append(&mut self, mut other: Self) {
        self.pods.append(&mut other.pods);
        self.containers.append(&mut other.containers);
        self.all_reports |= other.all_reports;
        self.refused += other.refused;
    }
}
