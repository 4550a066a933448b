//! Applying the runtime's lists. What a list shows happened between the request for the last list that did
//! not show it and this answer. Lists may overlap: for each sandbox and container the list that was
//! requested later counts.

use super::{Between, Container, MAX_KNOWN, Runtime, Sandbox, insert_sorted, pod_of};
use crate::{
    dirty::Dirty,
    ids::{ContainerId, SandboxId},
    input::{CriContainer, CriSandbox, CriState},
    time::BootTime,
};

/// The number of no list.
const NEVER: u64 = 0;

/// Where a sandbox or a container stands in the lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Listing {
    /// When the newest list that had it was requested.
    pub(super) asked: BootTime,
    /// Alive when last listed, and missing once.
    pub(super) missing: Option<Between>,
    /// When the newest list that covers it was requested, whether it was in it or not.
    covered: BootTime,
    /// The last list that had it, or `NEVER`.
    list: u64,
}

impl Listing {
    fn new(asked: BootTime, list: u64) -> Self {
        Self { asked, missing: None, covered: asked, list }
    }

    /// Takes a list that had it. `None`: a newer list has been answered before. Otherwise when the last
    /// list that had it was requested.
    fn seen(&mut self, asked: BootTime, list: u64) -> Option<BootTime> {
        if self.covered > asked && self.list != NEVER {
            return None;
        }
        let before = self.asked;
        *self = Self::new(asked, list);
        Some(before)
    }

    /// Takes a list that should have had it; gives when it was removed, once that is certain. One answer
    /// without it does not end what was alive a moment ago: an entry that could not be read is left out.
    /// What had ended is gone at once.
    fn missed(&mut self, asked: BootTime, by: BootTime, list: u64, alive: bool) -> Option<Between> {
        if self.list == list || self.covered > asked {
            return None;
        }
        self.covered = asked;
        let now = Between { after: self.asked, by };
        match self.missing {
            None if alive => {
                self.missing = Some(now);
                None
            }
            first => first.or(Some(now)),
        }
    }
}

impl Runtime {
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
                        known.stopped = Some(Between { after: before, by: at });
                    }
                    if known.removed.take().is_some() {
                        dirty.pod(&info.pod);
                    }
                    known.seen_ready |= info.ready;
                    // Nearly always the same: kept, so that each list does not leave the memory
                    // of the last one in shreds.
                    if known.info != info {
                        let before = std::mem::replace(&mut known.info, info);
                        let (id, pod) = (before.id.clone(), known.info.pod.clone());
                        if (&before.pod, before.created) != (&pod, known.info.created) {
                            dirty.orphans = true;
                            self.disown(&before.pod, &id);
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
                        stopped: (!info.ready).then_some(Between { after: since, by: at }),
                        removed: None,
                        listing: Listing::new(asked, list),
                        info,
                    };
                    self.sandboxes.insert(id.clone(), known);
                    self.own(&pod, id);
                    dirty.pods.insert(pod);
                }
                None => self.refused += 1,
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
            dirty.orphans = true;
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
                    let exits = info.state == CriState::Exited && known.exited.is_none();
                    if exits {
                        known.exited = Some(Between { after: before, by: at });
                    }
                    known.seen_alive |= is_alive(&info);
                    let is_new = known.info != info;
                    if is_new {
                        dirty.containers.insert(info.id.clone());
                        if known.info.sandbox != info.sandbox {
                            // It was added before it was listed, as one of the pod's newest sandbox.
                            let of = self.by_sandbox.entry(known.info.sandbox.clone()).or_default();
                            of.retain(|id| *id != info.id);
                            self.by_sandbox
                                .entry(info.sandbox.clone())
                                .or_default()
                                .push(info.id.clone());
                        }
                        known.info = info;
                    }
                    if is_new || exits || known.removed.take().is_some() {
                        dirty.pods.extend(pod_of(&self.sandboxes, known).cloned());
                    }
                    known.removed = None;
                }
                None if room => {
                    let exited = (info.state == CriState::Exited).then_some(since);
                    let exited = exited.map(|after| Between { after, by: at });
                    let alive = is_alive(&info);
                    let known = self.insert(at, info, Listing::new(asked, list), dirty);
                    (known.exited, known.seen_alive) = (exited, alive);
                }
                None => self.refused += 1,
            }
        }
        let Self { sandboxes, containers, by_sandbox, .. } = self;
        let mut check = |known: &mut Container| {
            let removed = known.listing.missed(asked, at, list, is_alive(&known.info));
            let Some(removed) = removed.filter(|_| known.removed.is_none()) else { return };
            known.removed = Some(removed);
            known.exited.get_or_insert(removed);
            dirty.orphans = true;
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

    /// Adds a container that no list has shown yet: the runtime has not called it running since it was
    /// created. A list that was requested before does not say that it is gone.
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
            self.refused += 1;
        }
    }

    fn insert(
        &mut self,
        at: BootTime,
        info: CriContainer,
        listing: Listing,
        dirty: &mut Dirty,
    ) -> &mut Container {
        let info = self.sharing(info);
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

    /// The container with the ids that its sandbox has, instead of copies of them.
    fn sharing(&self, mut info: CriContainer) -> CriContainer {
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
    matches!(info.state, CriState::Created | CriState::Running)
}
