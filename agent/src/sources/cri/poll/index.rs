//! What the lists showed. Pure.
//!
//! A full list may take a minute, while filtered ones are asked for and answered. The core takes of
//! two lists the one that was asked for later, for each thing that it knows. Things that it has
//! forgotten since are kept from it here: an older list must not bring back what is gone.

use coroner_core::{
    ids::{ContainerId, PodUid, SandboxId},
    input::{ContainerState, CriContainer, CriSandbox},
    time::BootTime,
};
use std::collections::{HashMap, HashSet, VecDeque};

/// A sandbox, as long as it is listed.
struct Listed {
    pod: PodUid,
    /// When the newest list was asked for that showed it.
    asked: BootTime,
}

/// A container, as long as it is listed.
struct Known {
    sandbox: SandboxId,
    /// When the newest list was asked for that showed it.
    asked: BootTime,
    exited: bool,
    /// Its stop signal was asked for.
    signal_asked: bool,
    /// Its end was reported.
    exit_reported: bool,
    /// It waits in the queue.
    queued: bool,
}

/// A filtered list that was answered while a full one was under way.
#[derive(Default)]
struct Newer {
    sandbox: Option<(BootTime, bool)>,
    containers: Option<(BootTime, HashSet<ContainerId>)>,
}

/// What the lists showed.
#[derive(Default)]
pub(super) struct Index {
    sandboxes: HashMap<SandboxId, Listed>,
    containers: HashMap<ContainerId, Known>,
    /// Containers whose status is wanted; those that exited first.
    queue: VecDeque<ContainerId>,
    /// When the last full lists that were answered were asked for.
    full: (BootTime, BootTime),
    newer: HashMap<SandboxId, Newer>,
    listing: bool,
}

impl Index {
    /// How many sandboxes there are.
    pub(super) fn len(&self) -> usize {
        self.sandboxes.len()
    }

    pub(super) fn has_sandbox(&self, id: &SandboxId) -> bool {
        self.sandboxes.contains_key(id)
    }

    /// A full list is asked for now.
    pub(super) fn begin_full(&mut self) {
        self.newer.clear();
        self.listing = true;
    }

    /// Takes an answer of ListPodSandbox, and leaves out what a newer list has shown to be gone.
    pub(super) fn take_sandboxes(
        &mut self,
        asked: BootTime,
        only: Option<&SandboxId>,
        list: &mut Vec<CriSandbox>,
    ) {
        let Some(only) = only else {
            list.retain(|one| {
                let newer = self.newer.get(&one.id).and_then(|newer| newer.sandbox);
                newer.is_none_or(|(at, listed)| at <= asked || listed)
            });
            let listed =
                |one: &CriSandbox| (one.id.clone(), Listed { pod: one.pod.clone(), asked });
            let mut next: HashMap<_, _> = list.iter().map(listed).collect();
            next.extend(self.sandboxes.drain().filter(|(_, known)| known.asked > asked));
            self.sandboxes = next;
            self.full.0 = asked;
            return;
        };
        if asked < self.full.0 {
            list.retain(|one| self.has_sandbox(&one.id));
        }
        if self.sandboxes.get(only).is_none_or(|known| known.asked <= asked) {
            match list.first() {
                None => drop(self.sandboxes.remove(only)),
                Some(one) => {
                    let listed = Listed { pod: one.pod.clone(), asked };
                    self.sandboxes.insert(one.id.clone(), listed);
                }
            }
        }
        if self.listing {
            let newer = self.newer.entry(only.clone()).or_default();
            newer.sandbox = Some((asked, !list.is_empty()));
        }
    }

    /// Takes an answer of ListContainers, as above. Forgets those that are not listed any more, and
    /// queues those whose status is wanted: one that could not be had is asked for again by the next
    /// list that shows the container.
    pub(super) fn take_containers(
        &mut self,
        asked: BootTime,
        only: Option<&SandboxId>,
        list: &mut Vec<CriContainer>,
    ) {
        match only {
            None => {
                list.retain(|one| {
                    let newer = self.newer.get(&one.sandbox);
                    let newer = newer.and_then(|newer| newer.containers.as_ref());
                    newer.is_none_or(|(at, ids)| *at <= asked || ids.contains(&one.id))
                });
                self.full.1 = asked;
                self.listing = false;
            }
            Some(only) => {
                if asked < self.full.1 {
                    list.retain(|one| self.containers.contains_key(&one.id));
                }
                if self.listing {
                    let ids = list.iter().map(|one| one.id.clone()).collect();
                    let newer = self.newer.entry(only.clone()).or_default();
                    newer.containers = Some((asked, ids));
                }
            }
        }
        let listed: HashSet<_> = list.iter().map(|container| &container.id).collect();
        self.containers.retain(|id, known| {
            let covered = only.is_none_or(|only| known.sandbox == *only);
            listed.contains(id) || !covered || known.asked > asked
        });
        for container in &*list {
            let known =
                self.containers.entry(container.id.clone()).or_insert_with(|| Known::of(container));
            known.asked = known.asked.max(asked);
            let exited = container.state == ContainerState::Exited;
            let first = exited && !known.exited;
            known.exited |= exited;
            if known.wants_status() && (!known.queued || first) {
                known.queued = true;
                if exited {
                    self.queue.push_front(container.id.clone());
                } else {
                    self.queue.push_back(container.id.clone());
                }
            }
        }
    }

    /// The next container whose status is wanted.
    pub(super) fn next_container(&mut self) -> Option<ContainerId> {
        while let Some(container) = self.queue.pop_front() {
            if let Some(known) = self.containers.get_mut(&container) {
                known.queued = false;
                // It may have been queued twice.
                if known.wants_status() {
                    return Some(container);
                }
            }
        }
        None
    }

    /// The runtime does not know it any more.
    pub(super) fn forget_container(&mut self, id: &ContainerId) {
        self.containers.remove(id);
    }

    /// Its status was told, and its end if `ended`. `None`: it is not listed any more; otherwise
    /// whether its stop signal is news.
    pub(super) fn told(&mut self, id: &ContainerId, ended: bool) -> Option<bool> {
        let known = self.containers.get_mut(id)?;
        known.exit_reported |= ended;
        Some(!std::mem::replace(&mut known.signal_asked, true))
    }

    /// The sandbox with the ids of the last list, where they are the same: a full node's list would
    /// otherwise bring some thousand small pieces of memory, and the core would give them all back a
    /// moment later.
    pub(super) fn sharing_sandbox(&self, mut sandbox: CriSandbox) -> CriSandbox {
        if let Some((id, known)) = self.sandboxes.get_key_value(&sandbox.id) {
            sandbox.id = id.clone();
            if sandbox.pod == known.pod {
                sandbox.pod = known.pod.clone();
            }
        }
        sandbox
    }

    /// The container with the ids of the last list, and of its sandbox.
    pub(super) fn sharing_container(&self, mut container: CriContainer) -> CriContainer {
        if let Some((id, _)) = self.containers.get_key_value(&container.id) {
            container.id = id.clone();
        }
        if let Some((sandbox, known)) = self.sandboxes.get_key_value(&container.sandbox) {
            container.sandbox = sandbox.clone();
            if container.pod.as_ref() == Some(&known.pod) {
                container.pod = Some(known.pod.clone());
            }
        }
        container
    }
}

impl Known {
    fn of(container: &CriContainer) -> Self {
        Self {
            sandbox: container.sandbox.clone(),
            asked: BootTime(0),
            exited: false,
            signal_asked: false,
            exit_reported: false,
            queued: false,
        }
    }

    fn wants_status(&self) -> bool {
        if self.exited { !self.exit_reported } else { !self.signal_asked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::time::WallTime;

    fn sandbox(id: &str) -> CriSandbox {
        CriSandbox {
            id: id.into(),
            pod: PodUid::new(format!("pod-{id}")),
            name: String::new(),
            namespace: String::new(),
            attempt: 0,
            ready: true,
            created: Some(WallTime(0)),
            handler: String::new(),
            config_source: None,
        }
    }

    fn container(id: &str, sandbox: &str) -> CriContainer {
        CriContainer {
            id: id.into(),
            sandbox: sandbox.into(),
            name: String::new(),
            attempt: 0,
            state: ContainerState::Exited,
            created: Some(WallTime(0)),
            pod: None,
            hash: None,
            grace_seconds: None,
            pre_stop: None,
        }
    }

    /// Takes lists of both kinds, and gives what the core is told.
    fn take(
        index: &mut Index,
        asked: u64,
        only: Option<&str>,
        sandboxes: &[&str],
        containers: &[(&str, &str)],
    ) -> (Vec<String>, Vec<String>) {
        let (asked, only) = (BootTime(asked), only.map(SandboxId::new));
        let mut sandboxes: Vec<_> = sandboxes.iter().map(|id| sandbox(id)).collect();
        let mut containers: Vec<_> = containers.iter().map(|(id, of)| container(id, of)).collect();
        index.take_sandboxes(asked, only.as_ref(), &mut sandboxes);
        index.take_containers(asked, only.as_ref(), &mut containers);
        (
            sandboxes.iter().map(|one| one.id.as_str().to_owned()).collect(),
            containers.iter().map(|one| one.id.as_str().to_owned()).collect(),
        )
    }

    fn told(sandboxes: &[&str], containers: &[&str]) -> (Vec<String>, Vec<String>) {
        let own = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        (own(sandboxes), own(containers))
    }

    const BOTH: [(&str, &str); 2] = [("c1", "s1"), ("c2", "s2")];

    #[test]
    fn a_late_full_list_brings_back_nothing_that_is_gone() {
        let mut index = Index::default();
        index.begin_full();
        // Asked for at 10, and answered after what was asked for at 12.
        assert_eq!(take(&mut index, 12, Some("s1"), &[], &[]), told(&[], &[]));
        assert_eq!(take(&mut index, 12, Some("s2"), &["s2"], &[]), told(&["s2"], &[]));
        assert_eq!(take(&mut index, 12, Some("s3"), &["s3"], &[]), told(&["s3"], &[]));
        assert_eq!(take(&mut index, 10, None, &["s1", "s2"], &BOTH), told(&["s2"], &[]));
        assert!(index.has_sandbox(&"s3".into()), "it is younger than the full list");
        assert_eq!(index.next_container(), None);
        // The next full list is newer than all of these.
        index.begin_full();
        assert_eq!(
            take(&mut index, 20, None, &["s1", "s2"], &BOTH),
            told(&["s1", "s2"], &["c1", "c2"])
        );
        assert!(!index.has_sandbox(&"s3".into()));
    }

    #[test]
    fn a_late_filtered_list_brings_back_nothing_that_is_gone() {
        let mut index = Index::default();
        index.begin_full();
        take(&mut index, 10, None, &["s2"], &BOTH[1..]);
        assert_eq!(take(&mut index, 8, Some("s1"), &["s1"], &BOTH[..1]), told(&[], &[]));
        // It says nothing of what is younger, either.
        take(&mut index, 8, Some("s2"), &[], &[]);
        assert!(index.has_sandbox(&"s2".into()));
        assert_eq!(index.next_container(), Some("c2".into()));
    }

    #[test]
    fn a_status_is_wanted_until_the_end_was_told() {
        let mut index = Index::default();
        for asked in 1..=2 {
            take(&mut index, asked, None, &["s1"], &BOTH[..1]);
            assert_eq!(index.next_container(), Some("c1".into()), "it could not be had");
            assert_eq!(index.next_container(), None);
        }
        assert_eq!(index.told(&"c1".into(), true), Some(true));
        assert_eq!(index.told(&"c1".into(), true), Some(false), "the signal is no news");
        take(&mut index, 3, None, &["s1"], &BOTH[..1]);
        assert_eq!(index.next_container(), None);
    }
}
