//! Applies the runtime's lists. A change happened between the request for the last list without it and the
//! answer that shows it. Lists may overlap: for each sandbox and container, the list that was requested later
//! counts.

use super::{Container, CriState, MAX_KNOWN, Sandbox, insert_sorted, pod_of};
use crate::{
    dirty::Dirty,
    ids::{ContainerId, SandboxId},
    input::{ContainerState, CriContainer, CriSandbox},
    table::remove_from,
    time::{BootTime, Interval},
};

/// The number of no list.
const NEVER: u64 = 0;

/// Which lists had an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// When the newest list that had it was requested.
    pub asked: BootTime,
    /// It was alive when last listed, and one list lacked it.
    pub missing: Option<Interval>,
    /// When the newest list that covers it was requested, with or without it.
    covered: BootTime,
    /// The last list that had it, or `NEVER`.
    list: u64,
}

impl Listing {
    fn new(asked: BootTime, list: u64) -> Self {
        Self { asked, missing: None, covered: asked, list }
    }

    /// Applies a list that has the entry. Returns when the list before was requested; `None`: a newer list
    /// was applied before.
    fn seen(&mut self, asked: BootTime, list: u64) -> Option<BootTime> {
        if self.covered > asked && self.list != NEVER {
            return None;
        }
        let before = self.asked;
        *self = Self::new(asked, list);
        Some(before)
    }

    /// Applies a list that lacks the entry. Returns when it was removed, once that is certain. An entry that
    /// was alive must be missing twice, because the runtime leaves out entries that it cannot read; one that
    /// had ended is removed at once.
    fn missed(
        &mut self,
        asked: BootTime,
        by: BootTime,
        list: u64,
        alive: bool,
    ) -> Option<Interval> {
        if self.list == list || self.covered > asked {
            return None;
        }
        self.covered = asked;
        let now = Interval { earliest: self.asked, latest: by };
        match self.missing {
            None if alive => {
                self.missing = Some(now);
                None
            }
            first => first.or(Some(now)),
        }
    }
}

impl CriState {
    pub(super) fn list_sandboxes(
        &mut self,
        at: BootTime,
        asked: BootTime,
        only: Option<SandboxId>,
        listed: Vec<CriSandbox>,
        dirty: &mut Dirty,
    ) {
        let since = self.full.0.unwrap_or_default();
        if only.is_none() {
            self.full.0 = self.full.0.max(Some(asked));
        }
        self.lists += 1;
        let list = self.lists;
        for info in listed {
            let room = self.sandboxes.len() < MAX_KNOWN;
            match self.sandboxes.get_mut(&info.id) {
                Some(known) => {
                    let Some(before) = known.listing.seen(asked, list) else { continue };
                    if known.info.ready && !info.ready && known.stopped.is_none() {
                        known.stopped = Some(Interval { earliest: before, latest: at });
                    }
                    if known.removed.take().is_some() {
                        dirty.pod(&info.pod);
                    }
                    known.seen_ready |= info.ready;
                    // Nearly always equal; kept, to avoid reallocating every entry with each list.
                    if known.info != info {
                        let before = std::mem::replace(&mut known.info, info);
                        let (id, pod) = (before.id.clone(), known.info.pod.clone());
                        if (&before.pod, before.created) != (&pod, known.info.created) {
                            remove_from(&mut self.by_pod, &before.pod, &id);
                            self.own(&pod, id);
                        }
                        dirty.pods.extend([before.pod, pod]);
                    }
                }
                None if room => {
                    let (pod, id) = (info.pod.clone(), info.id.clone());
                    dirty
                        .containers
                        .extend(self.by_sandbox.get(&id).into_iter().flatten().cloned());
                    let known = Sandbox {
                        seen_ready: info.ready,
                        stopped: (!info.ready).then_some(Interval { earliest: since, latest: at }),
                        removed: None,
                        listing: Listing::new(asked, list),
                        info,
                    };
                    self.sandboxes.insert(id.clone(), known);
                    self.own(&pod, id);
                    dirty.pods.insert(pod);
                }
                None => dirty.refused += 1,
            }
        }
        let mut check = |known: &mut Sandbox| {
            let alive = known.info.ready;
            let Some(removed) = known.listing.missed(asked, at, list, alive) else { return };
            if known.removed.is_some() {
                return;
            }
            known.removed = Some(removed);
            if alive {
                known.stopped.get_or_insert(removed);
            }
            dirty.pod(&known.info.pod);
        };
        match only {
            Some(id) => self.sandboxes.get_mut(&id).into_iter().for_each(&mut check),
            None => self.sandboxes.values_mut().for_each(check),
        }
    }

    pub(super) fn list_containers(
        &mut self,
        at: BootTime,
        asked: BootTime,
        only: Option<SandboxId>,
        listed: Vec<CriContainer>,
        dirty: &mut Dirty,
    ) {
        let since = self.full.1.unwrap_or_default();
        if only.is_none() {
            self.full.1 = self.full.1.max(Some(asked));
        }
        self.lists += 1;
        let list = self.lists;
        for info in listed {
            let room = self.containers.len() < MAX_KNOWN;
            match self.containers.get_mut(&info.id) {
                Some(known) => {
                    let Some(before) = known.listing.seen(asked, list) else { continue };
                    let exits = info.state == ContainerState::Exited && known.exited.is_none();
                    if exits {
                        known.exited = Some(Interval { earliest: before, latest: at });
                    }
                    known.seen_alive |= is_alive(&info);
                    if is_alive(&info) && known.exited == known.removed {
                        // Only lists without it had shown its exit.
                        known.exited = None;
                    }
                    let is_new = known.info != info;
                    if is_new {
                        dirty.containers.insert(info.id.clone());
                        if known.info.sandbox != info.sandbox {
                            // It was added before it was listed, to the pod's newest sandbox.
                            remove_from(&mut self.by_sandbox, &known.info.sandbox, &info.id);
                            let siblings = self.by_sandbox.entry(info.sandbox.clone());
                            siblings.or_default().push(info.id.clone());
                        }
                        known.info = info;
                    }
                    if is_new || exits || known.removed.take().is_some() {
                        dirty.pods.extend(pod_of(&self.sandboxes, known).cloned());
                    }
                    known.removed = None;
                }
                None if room => {
                    let exited = (info.state == ContainerState::Exited).then_some(since);
                    let exited = exited.map(|after| Interval { earliest: after, latest: at });
                    let alive = is_alive(&info);
                    let known = self.insert(at, info, Listing::new(asked, list), dirty);
                    (known.exited, known.seen_alive) = (exited, alive);
                }
                None => dirty.refused += 1,
            }
        }
        let Self { sandboxes, containers, by_sandbox, .. } = self;
        let mut check = |known: &mut Container| {
            let removed = known.listing.missed(asked, at, list, is_alive(&known.info));
            let Some(removed) = removed.filter(|_| known.removed.is_none()) else { return };
            known.removed = Some(removed);
            known.exited.get_or_insert(removed);
            dirty.pods.extend(pod_of(sandboxes, known).cloned());
        };
        match only {
            Some(id) => {
                for id in by_sandbox.get(&id).into_iter().flatten() {
                    containers.get_mut(id).into_iter().for_each(&mut check);
                }
            }
            None => containers.values_mut().for_each(check),
        }
    }

    /// Adds a container that no list has shown yet. A list that was requested earlier does not remove it.
    pub fn add_unlisted(
        &mut self,
        at: BootTime,
        created: BootTime,
        info: CriContainer,
        dirty: &mut Dirty,
    ) {
        if self.containers.len() < MAX_KNOWN {
            let listing = Listing { covered: at, ..Listing::new(created, NEVER) };
            self.insert(at, info, listing, dirty);
        } else {
            dirty.refused += 1;
        }
    }

    fn insert(
        &mut self,
        at: BootTime,
        info: CriContainer,
        listing: Listing,
        dirty: &mut Dirty,
    ) -> &mut Container {
        let info = self.intern_ids(info);
        let (sandbox, id, created) = (info.sandbox.clone(), info.id.clone(), info.created);
        dirty.containers.insert(id.clone());
        let known = Container {
            seen_alive: false,
            first_seen: at,
            exited: None,
            removed: None,
            exit: None,
            stop_signal: None,
            runtime_type: None,
            listing,
            info,
        };
        dirty.pods.extend(pod_of(&self.sandboxes, &known).cloned());
        let Self { containers, by_sandbox, .. } = self;
        let its = (created, id.clone());
        let place = |other: &ContainerId| {
            let known = containers.get(other).map(|known| (known.info.created, other.clone()));
            known.unwrap_or_else(|| its.clone())
        };
        insert_sorted(by_sandbox.entry(sandbox).or_default(), id.clone(), place);
        self.containers.entry(id).or_insert(known)
    }

    /// Replaces the container's ids by its sandbox's, to share their memory.
    fn intern_ids(&self, mut info: CriContainer) -> CriContainer {
        if let Some((id, sandbox)) = self.sandboxes.get_key_value(&info.sandbox) {
            info.sandbox = id.clone();
            if info.pod.as_ref() == Some(&sandbox.info.pod) {
                info.pod = Some(sandbox.info.pod.clone());
            }
        }
        info
    }
}

fn is_alive(info: &CriContainer) -> bool {
    matches!(info.state, ContainerState::Created | ContainerState::Running)
}
