//! How each running container will respond to its stop signal, for the HTTP API and the metric.

use coroner_core::{
    ids::ContainerId,
    report::{Audit, StopResponse},
};
use std::{collections::BTreeMap, sync::Arc};

#[derive(Debug, Default)]
pub struct AuditStore {
    audits: BTreeMap<ContainerId, Arc<Audit>>,
    changes: u64,
    counted: u64,
}

impl AuditStore {
    pub fn put(&mut self, audit: Arc<Audit>) {
        self.changes += 1;
        self.audits.insert(audit.id.clone(), audit);
    }

    pub fn remove(&mut self, id: &ContainerId) {
        self.changes += u64::from(self.audits.remove(id).is_some());
    }

    /// All, and the number of the last change.
    pub fn all(&self) -> (Vec<Arc<Audit>>, u64) {
        (self.audits.values().cloned().collect(), self.changes)
    }

    /// Containers by the pod's namespace and their response, if something has changed since the last call.
    pub fn take_counts(&mut self) -> Option<BTreeMap<(String, StopResponse), usize>> {
        (std::mem::replace(&mut self.counted, self.changes) != self.changes).then(|| {
            let mut counts = BTreeMap::new();
            for audit in self.audits.values() {
                *counts.entry((audit.pod.namespace.clone(), audit.response)).or_default() += 1;
            }
            counts
        })
    }
}
