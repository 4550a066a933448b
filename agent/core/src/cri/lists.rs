//! Applies the runtime's lists. A change happened between the request for the last list without it and the
//! answer that shows it. Lists may overlap: for each entry, the list that was requested later counts.

use crate::report::{BootTime, Interval, WallTime};
use crate::table::{Table, remove_from};
use crate::{dirty::Dirty, input::ContainerState};
use std::{collections::BTreeSet, fmt::Debug, hash::Hash};

/// Bound on sandboxes and on containers. Further ones are refused and counted.
const MAX_KNOWN: usize = 65_536;
/// The number of no list.
const NEVER: u64 = 0;

/// What the runtime lists: a sandbox of a pod, or a container of a sandbox.
pub trait Item: PartialEq {
    type Id: Clone + Ord + Hash + Debug;
    /// What it belongs to.
    type Parent: Clone + Eq + Hash + Debug;
    /// What the runtime reports about it outside lists.
    type Status: Clone + Default + Debug;
    /// The other kind of entry.
    type Other: Item;

    /// Its id, what it belongs to, and when it was created.
    fn keys(&self) -> (&Self::Id, &Self::Parent, Option<WallTime>);
    /// Its state; a sandbox is running or exited.
    fn state(&self) -> ContainerState;
    fn mark(&mut self, others: &Lists<Self::Other>, dirty: &mut Dirty);

    fn is_alive(&self) -> bool {
        matches!(self.state(), ContainerState::Created | ContainerState::Running)
    }

    fn has_ended(&self) -> bool {
        self.state() == ContainerState::Exited
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed<T: Item> {
    pub info: T,
    pub first_seen: BootTime,
    pub seen_alive: bool,
    /// When it ended, or disappeared from the lists.
    pub ended: Option<Interval>,
    pub removed: Option<Interval>,
    /// When the newest list that had it was requested.
    pub asked: BootTime,
    /// It was alive when last listed, and one list lacked it.
    pub missing: Option<Interval>,
    /// When the newest list that covers it was requested, with or without it.
    covered: BootTime,
    /// The last list that had it, or `NEVER`.
    list: u64,
    /// What the runtime reports about it outside lists.
    pub status: T::Status,
}

impl<T: Item> Listed<T> {
    fn new(at: BootTime, asked: BootTime, list: u64, info: T) -> Self {
        Self {
            seen_alive: info.is_alive(),
            info,
            first_seen: at,
            ended: None,
            removed: None,
            asked,
            missing: None,
            covered: asked,
            list,
            status: T::Status::default(),
        }
    }

    /// Applies a list that has the entry. Returns when the list before was requested; `None`: a newer list
    /// was applied before.
    fn seen(&mut self, asked: BootTime, list: u64) -> Option<BootTime> {
        if self.covered > asked && self.list != NEVER {
            return None;
        }
        (self.missing, self.covered, self.list) = (None, asked, list);
        Some(std::mem::replace(&mut self.asked, asked))
    }

    /// Applies a list that lacks the entry. True: it was removed, which is certain now. An entry that was
    /// alive must be missing twice, because the runtime leaves out entries that it cannot read; one that had
    /// ended is removed at once.
    fn missed(&mut self, asked: BootTime, by: BootTime, list: u64) -> bool {
        if self.list == list || self.covered > asked {
            return false;
        }
        self.covered = asked;
        let now = Interval { earliest: self.asked, latest: by };
        if self.missing.is_none() && self.info.is_alive() {
            self.missing = Some(now);
            return false;
        }
        if self.removed.is_some() {
            return false;
        }
        self.removed = Some(self.missing.unwrap_or(now));
        self.ended = self.ended.or(self.removed);
        true
    }
}

/// All sandboxes, or all containers.
#[derive(Clone, Debug)]
pub struct Lists<T: Item> {
    entries: Table<T::Id, Listed<T>>,
    /// By what they belong to, oldest first; nearly always one entry each.
    by_parent: Table<T::Parent, Vec<T::Id>>,
    removed: BTreeSet<T::Id>,
    /// When the last full list was requested. An entry missing there is younger.
    pub(super) full: Option<BootTime>,
    lists: u64,
}

impl<T: Item> Default for Lists<T> {
    fn default() -> Self {
        Self {
            entries: Table::default(),
            by_parent: Table::default(),
            removed: BTreeSet::new(),
            full: None,
            lists: NEVER,
        }
    }
}

impl<T: Item> Lists<T> {
    /// Applies a list. `covered`: the entries that it should have; `None`: all. Each changed entry is marked as it
    /// was and as it is.
    pub(super) fn apply(
        &mut self,
        (at, asked): (BootTime, BootTime),
        covered: Option<Vec<T::Id>>,
        listed: Vec<T>,
        others: &Lists<T::Other>,
        dirty: &mut Dirty,
    ) {
        let since = self.full.unwrap_or_default();
        if covered.is_none() {
            self.full = self.full.max(Some(asked));
        }
        self.lists += 1;
        let list = self.lists;
        for mut info in listed {
            let Some(known) = self.entries.get_mut(info.keys().0) else {
                let mut new = Listed::new(at, asked, list, info);
                let ended = Interval { earliest: since, latest: at };
                new.ended = new.info.has_ended().then_some(ended);
                self.insert(new, others, dirty);
                continue;
            };
            let Some(before) = known.seen(asked, list) else { continue };
            let ends = info.has_ended() && known.ended.is_none();
            if ends {
                known.ended = Some(Interval { earliest: before, latest: at });
            }
            known.seen_alive |= info.is_alive();
            if info.is_alive() && known.ended == known.removed {
                // Only lists without it had shown its end.
                known.ended = None;
            }
            let reappears = known.removed.take().is_some();
            if reappears {
                self.removed.remove(info.keys().0);
            }
            let changes = known.info != info;
            if ends || reappears || changes {
                known.info.mark(others, dirty);
            }
            // Nearly always equal; kept, to avoid reallocating every entry with each list.
            if changes {
                info.mark(others, dirty);
                let before = std::mem::replace(&mut known.info, info);
                let (id, parent, created) = known.info.keys();
                if before.keys() != (id, parent, created) {
                    let (id, parent) = (id.clone(), parent.clone());
                    remove_from(&mut self.by_parent, before.keys().1, &id);
                    self.place(parent, id);
                }
            }
        }
        self.miss((at, asked), covered, others, dirty);
    }

    /// Applies that the last list lacks entries.
    fn miss(
        &mut self,
        (at, asked): (BootTime, BootTime),
        covered: Option<Vec<T::Id>>,
        others: &Lists<T::Other>,
        dirty: &mut Dirty,
    ) {
        let mut check = |known: &mut Listed<T>| {
            if known.missed(asked, at, self.lists) {
                self.removed.insert(known.info.keys().0.clone());
                known.info.mark(others, dirty);
            }
        };
        match covered {
            Some(ids) => {
                ids.iter().for_each(|id| self.entries.get_mut(id).into_iter().for_each(&mut check));
            }
            None => self.entries.values_mut().for_each(check),
        }
    }

    /// Adds an entry that no list has shown, unless it is known. A list that was requested earlier does not remove it.
    /// `removed`: it ran, and is gone.
    pub fn add_unlisted(
        &mut self,
        (at, created): (BootTime, BootTime),
        info: T,
        removed: Option<Interval>,
        others: &Lists<T::Other>,
        dirty: &mut Dirty,
    ) {
        if self.entries.contains_key(info.keys().0) {
            return;
        }
        let (covered, seen_alive) = (at, removed.is_some());
        let new = Listed::new(at, created, NEVER, info);
        let new = Listed { covered, seen_alive, ended: removed, removed, ..new };
        self.insert(new, others, dirty);
    }

    fn insert(&mut self, mut new: Listed<T>, others: &Lists<T::Other>, dirty: &mut Dirty) {
        if self.entries.len() >= MAX_KNOWN {
            dirty.refused += 1;
            return;
        }
        new.info.mark(others, dirty);
        let (id, parent, _) = new.info.keys();
        let (id, parent) = (id.clone(), parent.clone());
        if new.removed.is_some() {
            self.removed.insert(id.clone());
        }
        self.entries.insert(id.clone(), new);
        self.place(parent, id);
    }

    fn place(&mut self, parent: T::Parent, id: T::Id) {
        let entries = &self.entries;
        let age = |id: &T::Id| entries.get(id).map(|known| (known.info.keys().2, id.clone()));
        let siblings = self.by_parent.entry(parent).or_default();
        // Nearly always the new entry is the last.
        let its = age(&id);
        let is_last = siblings.last().is_none_or(|last| age(last) <= its);
        let younger = || siblings.partition_point(|other| age(other) <= its);
        let place = if is_last { siblings.len() } else { younger() };
        siblings.insert(place, id);
    }

    pub fn entries(&self) -> &Table<T::Id, Listed<T>> {
        &self.entries
    }

    /// An entry that changes by what the runtime reports about it outside lists.
    pub(super) fn marked(
        &mut self,
        id: &T::Id,
        others: &Lists<T::Other>,
        dirty: &mut Dirty,
    ) -> Option<&mut Listed<T>> {
        let known = self.entries.get_mut(id)?;
        known.info.mark(others, dirty);
        Some(known)
    }

    /// The ids of what belongs to `parent`, oldest first.
    pub fn ids_of<'a>(
        &'a self,
        parent: &T::Parent,
    ) -> impl DoubleEndedIterator<Item = &'a T::Id> + Clone + use<'a, T> {
        self.by_parent.get(parent).into_iter().flatten()
    }

    /// Removed entries: candidates for eviction.
    pub fn removed(&self) -> Vec<(T::Id, T::Parent, BootTime)> {
        let known = self.removed.iter().filter_map(|id| self.entries.get(id));
        let removed = |known: &Listed<T>| {
            let (id, parent, _) = known.info.keys();
            Some((id.clone(), parent.clone(), known.removed?.latest))
        };
        known.filter_map(removed).collect()
    }

    pub fn evict(&mut self, id: &T::Id) -> Option<T> {
        let known = self.entries.remove(id)?;
        self.removed.remove(id);
        remove_from(&mut self.by_parent, known.info.keys().1, id);
        Some(known.info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, rc::Rc};

    /// Counts how often an entry is asked for its keys.
    #[derive(Clone, Debug)]
    struct Counted(u32, Rc<Cell<u32>>);

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    impl Item for Counted {
        type Id = u32;
        type Parent = ();
        type Status = ();
        type Other = Self;

        fn keys(&self) -> (&u32, &(), Option<WallTime>) {
            self.1.set(self.1.get() + 1);
            (&self.0, &(), Some(WallTime(self.0.into())))
        }

        fn state(&self) -> ContainerState {
            ContainerState::Running
        }

        fn mark(&mut self, _: &Lists<Self>, _: &mut Dirty) {}
    }

    /// One pod may have thousands of sandboxes: the cost of a list is not quadratic in them, in whatever order it has
    /// them.
    #[test]
    fn an_entry_among_thousands_of_its_parent_costs_little() {
        let calls = Rc::new(Cell::new(0));
        let of = |ids: Vec<u32>| ids.into_iter().map(|id| Counted(id, Rc::clone(&calls))).collect();
        let mut lists = Lists::default();
        let mixed = (0..4_000).map(|n| n * 1_777 % 4_000).collect();
        let (at, others, mut dirty) = (BootTime(1), Lists::default(), Dirty::default());
        lists.apply((at, at), None, of(mixed), &others, &mut dirty);
        assert!(calls.get() < 4_000 * 40, "{}", calls.get());
        assert!(lists.ids_of(&()).is_sorted(), "oldest first");
    }
}
