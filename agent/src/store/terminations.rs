//! The last terminations, for the HTTP API.

use crate::store::entry::Entry;
use coroner_core::{
    ids::PodUid,
    report::{ContainerDeath, PodTermination},
};
use std::{collections::VecDeque, sync::Arc};

/// The last N terminations and the last N deaths of containers, newest last.
#[derive(Debug)]
pub struct History {
    kept: VecDeque<Entry<PodTermination>>,
    deaths: VecDeque<Entry<ContainerDeath>>,
    bound: usize,
    changes: u64,
}

impl History {
    pub fn new(bound: usize) -> Self {
        Self { kept: VecDeque::new(), deaths: VecDeque::new(), bound, changes: 0 }
    }

    /// Takes the first report of a life, or an updated one, which replaces the report that is kept. If
    /// that was dropped meanwhile, so is the update: it would come back as the newest.
    pub fn put(&mut self, account: PodTermination, updated: bool) {
        self.changes += 1;
        let known = self.kept.iter_mut().rev().find(|kept| same_life(&kept.item, &account));
        if let Some(known) = known {
            (known.item, known.version) = (Arc::new(account), self.changes);
            return;
        }
        if !updated {
            keep(&mut self.kept, Entry::new(self.changes, account), self.bound);
        }
    }

    pub fn died(&mut self, death: ContainerDeath) {
        self.changes += 1;
        keep(&mut self.deaths, Entry::new(self.changes, death), self.bound);
    }

    /// The deaths of containers as they were reported first, oldest first.
    pub fn deaths(&self) -> impl DoubleEndedIterator<Item = &Entry<ContainerDeath>> {
        self.deaths.iter()
    }

    pub fn terminations(&self) -> impl DoubleEndedIterator<Item = &Entry<PodTermination>> {
        self.kept.iter()
    }

    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The pod's life; the latest one if no number is given.
    pub fn life(&self, pod: &PodUid, life: Option<u32>) -> Option<&Arc<PodTermination>> {
        let kept = self.kept.iter().rev().map(|entry| &entry.item);
        kept.filter(|kept| kept.pod.uid == *pod)
            .find(|kept| life.is_none_or(|wanted| kept.life == wanted))
    }
}

fn keep<T>(all: &mut VecDeque<Entry<T>>, entry: Entry<T>, bound: usize) {
    if bound == 0 {
        return;
    }
    if all.len() == bound {
        all.pop_front();
    }
    all.push_back(entry);
}

fn same_life(one: &PodTermination, other: &PodTermination) -> bool {
    one.pod.uid == other.pod.uid && one.life == other.life
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples;

    fn account(name: &str, life: u32) -> PodTermination {
        samples::of("shop", name, name, life)
    }

    fn names(history: &History) -> Vec<String> {
        history
            .terminations()
            .rev()
            .map(|kept| format!("{}.{}", kept.item.pod.name, kept.item.life))
            .collect()
    }

    #[test]
    fn an_update_takes_its_place_and_brings_nothing_back() {
        let mut history = History::new(2);
        history.put(account("a", 1), false);
        history.put(account("b", 1), false);
        let mut updated = account("a", 1);
        updated.grace_seconds = Some(99);
        history.put(updated, true);
        history.put(account("gone", 1), true);
        assert_eq!(names(&history), ["b.1", "a.1"]);
        assert_eq!(history.life(&PodUid::new("a"), None).unwrap().grace_seconds, Some(99));
    }

    #[test]
    fn keeps_the_newest() {
        let mut history = History::new(2);
        for name in ["a", "b", "c"] {
            history.put(account(name, 1), false);
        }
        assert_eq!(names(&history), ["c.1", "b.1"]);
        let death = samples::graceful().containers.remove(0);
        for name in ["a", "b", "c"] {
            history.died(ContainerDeath { name: name.into(), ..death.clone() });
        }
        let names: Vec<&str> = history.deaths().map(|death| death.item.name.as_str()).collect();
        assert_eq!(names, ["b", "c"]);
        let mut none = History::new(0);
        none.died(death);
        none.put(account("a", 1), false);
        assert_eq!((none.deaths().count(), none.terminations().count()), (0, 0));
    }
}
