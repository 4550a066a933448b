//! What the lists showed. Pure.
//!
//! A full list may take a minute, while filtered ones are asked for and answered. The core takes of
//! two lists the one that was asked for later, for each object that it knows. Objects that it has
//! dropped since are kept from it here: an older list must not bring back what is gone.

use coroner_core::{
    ids::{ContainerId, SandboxId},
    input::{ContainerState, CriContainer, CriSandbox},
};
use std::collections::{HashMap, HashSet, VecDeque};

struct Known {
    sandbox: SandboxId,
    exited: bool,
    /// Its status was read, and with it its stop signal.
    signal_read: bool,
    exit_reported: bool,
    /// It waits in the queue.
    queued: bool,
}

/// What filtered lists showed of a sandbox while a full one was under way.
#[derive(Default)]
struct Newer {
    is_listed: bool,
    containers: Option<HashSet<ContainerId>>,
}

#[derive(Default)]
pub(super) struct Index {
    sandboxes: HashSet<SandboxId>,
    containers: HashMap<ContainerId, Known>,
    /// Containers whose status is wanted; those that exited first.
    queue: VecDeque<ContainerId>,
    /// Since the last full list was asked for.
    newer: HashMap<SandboxId, Newer>,
}

impl Index {
    pub(super) fn has_sandbox(&self, id: &SandboxId) -> bool {
        self.sandboxes.contains(id)
    }

    /// A full list is asked for now.
    pub(super) fn begin_full(&mut self) {
        self.newer.clear();
    }

    /// Takes an answer of ListPodSandbox, and leaves out what a newer list has shown to be gone.
    pub(super) fn take_sandboxes(&mut self, only: Option<&SandboxId>, list: &mut Vec<CriSandbox>) {
        let Some(only) = only else {
            list.retain(|one| self.newer.get(&one.id).is_none_or(|newer| newer.is_listed));
            self.sandboxes.retain(|id| self.newer.contains_key(id));
            self.sandboxes.extend(list.iter().map(|one| one.id.clone()));
            return;
        };
        // A runtime may take a filter as a prefix.
        list.retain(|one| one.id == *only);
        let newer = self.newer.entry(only.clone()).or_default();
        newer.is_listed = !list.is_empty();
        match newer.is_listed {
            true => self.sandboxes.insert(only.clone()),
            false => self.sandboxes.remove(only),
        };
    }

    /// Takes an answer of ListContainers, as above. Drops those that are not listed any more, and
    /// queues those whose status is wanted: one that could not be had is asked for again after the next
    /// list that shows the container.
    pub(super) fn take_containers(
        &mut self,
        only: Option<&SandboxId>,
        list: &mut Vec<CriContainer>,
    ) {
        let of_newer = |newer: &HashMap<_, Newer>, sandbox: &SandboxId, id: &ContainerId| {
            newer.get(sandbox)?.containers.as_ref().map(|ids| ids.contains(id))
        };
        match only {
            None => list.retain(|one| of_newer(&self.newer, &one.sandbox, &one.id) != Some(false)),
            Some(only) => {
                list.retain(|one| one.sandbox == *only);
                let ids = list.iter().map(|one| one.id.clone()).collect();
                self.newer.entry(only.clone()).or_default().containers = Some(ids);
            }
        }
        let listed: HashSet<_> = list.iter().map(|container| &container.id).collect();
        self.containers.retain(|id, known| {
            let is_covered = match only {
                None => of_newer(&self.newer, &known.sandbox, id).is_none(),
                Some(only) => known.sandbox == *only,
            };
            listed.contains(id) || !is_covered
        });
        for container in &*list {
            let known = self.containers.entry(container.id.clone()).or_insert_with(|| Known {
                sandbox: container.sandbox.clone(),
                exited: false,
                signal_read: false,
                exit_reported: false,
                queued: false,
            });
            let exited = container.state == ContainerState::Exited;
            let first = exited && !known.exited;
            known.exited |= exited;
            if known.wants_status() && (!known.queued || first) {
                known.queued = true;
                match exited {
                    true => self.queue.push_front(container.id.clone()),
                    false => self.queue.push_back(container.id.clone()),
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

    /// Its status was read, and reported if `exited`. `None`: it is not listed any more; otherwise
    /// whether its stop signal is news.
    pub(super) fn reported(&mut self, id: &ContainerId, exited: bool) -> Option<bool> {
        let known = self.containers.get_mut(id)?;
        known.exit_reported |= exited;
        Some(!std::mem::replace(&mut known.signal_read, true))
    }
}

impl Known {
    fn wants_status(&self) -> bool {
        if self.exited { !self.exit_reported } else { !self.signal_read }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::ids::PodUid;

    fn sandbox(id: &str) -> CriSandbox {
        CriSandbox {
            id: id.into(),
            pod: PodUid::new(format!("pod-{id}")),
            name: String::new(),
            namespace: String::new(),
            attempt: 0,
            ready: true,
            created: None,
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
            created: None,
            pod: None,
            grace_seconds: None,
            pre_stop: None,
        }
    }

    /// Takes lists of both kinds, and returns what the core is sent.
    fn take(
        index: &mut Index,
        only: Option<&str>,
        sandboxes: &[&str],
        containers: &[(&str, &str)],
    ) -> (Vec<SandboxId>, Vec<ContainerId>) {
        let only = only.map(SandboxId::new);
        let mut sandboxes: Vec<_> = sandboxes.iter().map(|id| sandbox(id)).collect();
        let mut containers: Vec<_> = containers.iter().map(|(id, of)| container(id, of)).collect();
        index.take_sandboxes(only.as_ref(), &mut sandboxes);
        index.take_containers(only.as_ref(), &mut containers);
        (
            sandboxes.into_iter().map(|one| one.id).collect(),
            containers.into_iter().map(|one| one.id).collect(),
        )
    }

    const BOTH: [(&str, &str); 2] = [("c1", "s1"), ("c2", "s2")];

    #[test]
    fn a_late_full_list_brings_back_nothing_that_is_gone() {
        let mut index = Index::default();
        index.begin_full();
        assert_eq!(take(&mut index, Some("s1"), &[], &[]), (vec![], vec![]));
        let new = ("c3", "s3");
        let newer = take(&mut index, Some("s3"), &["s3", "s30"], &[new, ("c30", "s30")]);
        assert_eq!(newer, (vec!["s3".into()], vec!["c3".into()]), "a prefix is no filter");
        let late = take(&mut index, None, &["s1", "s2"], &BOTH);
        assert_eq!(late, (vec!["s2".into()], vec!["c2".into()]));
        assert!(index.has_sandbox(&"s3".into()), "it is younger than the full list");
        let mut wanted: Vec<_> = std::iter::from_fn(|| index.next_container()).collect();
        wanted.sort();
        assert_eq!(wanted, ["c2".into(), "c3".into()]);
        // The next full list is newer than all of these.
        index.begin_full();
        let both = (vec!["s1".into(), "s2".into()], vec!["c1".into(), "c2".into()]);
        assert_eq!(take(&mut index, None, &["s1", "s2"], &BOTH), both);
        assert!(!index.has_sandbox(&"s3".into()));
    }
}
