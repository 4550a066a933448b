//! What the kubelet did to stop containers, and when: what another's account of it can be held
//! against, however slow the machine was.

use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

/// One attempt to stop a container; times are ns of CLOCK_BOOTTIME.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StopCall {
    /// The preStop hook was asked for.
    pub hook_began: Option<u64>,
    /// It was done, or not waited for any longer.
    pub hook_over: Option<u64>,
    /// What an exec hook wrote to stdout; not before its own end, which may be after `hook_over`.
    pub hook_said: String,
    /// StopContainer was called.
    pub asked: Option<u64>,
    /// Its timeout, seconds.
    pub timeout: Option<i64>,
    /// It was answered: the container had ended.
    pub done: Option<u64>,
}

/// All of them, by the container's id; clones share it.
#[derive(Clone, Debug, Default)]
pub struct KubeletRecord(Arc<Mutex<HashMap<String, Vec<StopCall>>>>);

impl KubeletRecord {
    /// The attempts to stop a container, the oldest first.
    pub fn stops(&self, id: &str) -> Vec<StopCall> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).cloned().unwrap_or_default()
    }

    /// All attempts, by the container's id.
    pub fn all(&self) -> BTreeMap<String, Vec<StopCall>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(id, stops)| (id.clone(), stops.clone())).collect()
    }

    /// An attempt begins.
    pub(super) fn begin(&self, id: &str) -> StopEntry {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stops = all.entry(id.to_owned()).or_default();
        stops.push(StopCall::default());
        StopEntry { record: self.clone(), id: id.to_owned(), index: stops.len() - 1 }
    }
}

/// An attempt that is under way.
#[derive(Clone, Debug)]
pub(super) struct StopEntry {
    record: KubeletRecord,
    id: String,
    index: usize,
}

impl StopEntry {
    pub(super) fn note(&self, what: impl FnOnce(&mut StopCall)) {
        let mut all = self.record.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stop) = all.get_mut(&self.id).and_then(|stops| stops.get_mut(self.index)) {
            what(stop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_is_kept_and_what_comes_late_is_noted_where_it_belongs() {
        let record = KubeletRecord::default();
        let (first, second) = (record.begin("a"), record.begin("a"));
        second.note(|stop| stop.asked = Some(2));
        first.note(|stop| stop.asked = Some(1));
        let asked = |id: &str| record.stops(id).iter().map(|s| s.asked).collect::<Vec<_>>();
        assert_eq!(asked("a"), [Some(1), Some(2)]);
        assert!(asked("b").is_empty());
    }
}
