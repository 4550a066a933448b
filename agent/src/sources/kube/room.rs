//! How much is kept of all pods together: of so many, each has room for an ordinary pod, whatever the others are;
//! what a larger one takes beyond that comes out of one store, so that no pod can take from another what
//! that needs. Where the store is used up, a pod is cut to its own room.
//!
//! Anybody who may create pods may bind any number of them to this node (`spec.nodeName`), of as many
//! containers as fit into an object: the kubelet refuses them, and their objects stay.

use crate::sources::cut::{Cut, Cuts};
use coroner_core::input::{ApiContainer, ApiPod, Hook};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem::size_of,
    time::Duration,
};
use tokio::time::Instant;

/// Pods that there is room for. The kubelet runs 110 of them unless told otherwise.
pub(super) const MAX_PODS: usize = 4096;
/// The room of each pod, bytes: six containers.
pub(super) const OWN: usize = 8 << 10;
/// What all pods have beyond that, bytes.
pub(super) const STORE: usize = 8 << 20;
/// So many containers share a leaf of the map that they are in, once there are more than fit into one.
const PER_LEAF: usize = 6;
/// A leaf, which has room for more (`BTreeMap`, `CAPACITY`).
const LEAF: usize = 11 * (size_of::<String>() + size_of::<ApiContainer>());
/// For so long the core may keep a pod that is gone, and its report.
const KEPT_AFTER: Duration = Duration::from_secs(600);

/// Who has taken how much from the store.
#[derive(Debug, Default)]
pub(super) struct Room {
    taken: usize,
    by: HashMap<String, usize>,
    /// The same while a list is received: by the core's pods of before.
    before: HashMap<String, usize>,
    /// Of pods that are gone: until when.
    gone: VecDeque<(Instant, usize)>,
}

impl Room {
    /// Finds room for a pod as it is now, or cuts it; false: there are too many.
    pub(super) fn admit(&mut self, pod: &mut ApiPod, cuts: &Cuts) -> bool {
        self.clear_out();
        let before = self.by.remove(&pod.uid);
        self.taken -= before.unwrap_or(0);
        if before.is_none() && self.by.len() >= MAX_PODS {
            cuts.add(Cut::Pods, 1);
            return false;
        }
        let mut more = weight(pod).saturating_sub(OWN);
        if self.taken + more > STORE {
            cut(pod, cuts);
            more = 0;
        }
        self.taken += more;
        self.by.insert(pod.uid.clone(), more);
        true
    }

    /// A pod is gone; the core keeps it for a while.
    pub(super) fn is_gone(&mut self, uid: &str) {
        if let Some(more) = self.by.remove(uid).filter(|more| *more > 0) {
            self.gone.push_back((Instant::now() + KEPT_AFTER, more));
        }
    }

    /// A pod of the list that is being received is left out after all.
    pub(super) fn give_up(&mut self, uid: &str) {
        self.taken -= self.by.remove(uid).unwrap_or(0);
    }

    /// A list begins. While it is received, what the core has stays.
    pub(super) fn begin_list(&mut self) {
        self.before = std::mem::take(&mut self.by);
    }

    /// A list is complete: of the pods in it the core drops what it had before, of others not yet.
    pub(super) fn end_list(&mut self, pods: &[ApiPod]) {
        let before = std::mem::take(&mut self.before);
        if before.is_empty() {
            return;
        }
        let until = Instant::now() + KEPT_AFTER;
        let listed: HashSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        for (uid, more) in before {
            match listed.contains(uid.as_str()) {
                true => self.taken -= more,
                false if more == 0 => {}
                false => self.gone.push_back((until, more)),
            }
        }
    }

    /// A list broke off: nothing of it is kept, and all that was before.
    pub(super) fn break_list(&mut self) {
        self.taken -= self.by.values().sum::<usize>();
        self.by = std::mem::take(&mut self.before);
    }

    fn clear_out(&mut self) {
        let now = Instant::now();
        while let Some((_, more)) = self.gone.pop_front_if(|(until, _)| *until <= now) {
            self.taken -= more;
        }
    }
}

/// Leaves of a pod what has room.
fn cut(pod: &mut ApiPod, cuts: &Cuts) {
    let finalizers = pod.finalizers.len();
    pod.finalizers.truncate(1);
    cuts.add(Cut::Finalizers, (finalizers - pod.finalizers.len()) as u64);
    let containers = std::mem::take(&mut pod.containers);
    let all = containers.len();
    let mut room = OWN.saturating_sub(of_itself(pod) + LEAF);
    for (name, container) in containers.into_iter().take(PER_LEAF) {
        match room.checked_sub(of_container(&name, &container)) {
            Some(left) => room = left,
            None => break,
        }
        pod.containers.insert(name, container);
    }
    cuts.add(Cut::Containers, (all - pod.containers.len()) as u64);
}

/// The bytes that a pod takes, as far as they are its own choice.
pub(super) fn weight(pod: &ApiPod) -> usize {
    let containers = pod.containers.iter();
    let leaves = pod.containers.len().div_ceil(PER_LEAF) * LEAF;
    of_itself(pod) + leaves + containers.map(|(name, one)| of_container(name, one)).sum::<usize>()
}

fn of_itself(pod: &ApiPod) -> usize {
    let texts = [
        &pod.uid,
        &pod.namespace,
        &pod.name,
        &pod.phase,
        &pod.reason,
        &pod.message,
        &pod.disruption_message,
    ];
    let optional = pod.disruption.iter().chain(&pod.finalizers);
    size_of::<ApiPod>()
        + texts.into_iter().chain(optional).map(|one| one.len()).sum::<usize>()
        + pod.finalizers.len() * size_of::<String>()
        + pod.restart_policy.len()
        + pod.workload.as_ref().map_or(0, |of| size_of_val(&**of) + of.kind.len() + of.name.len())
        + pod.mirror_of.as_ref().map_or(0, |uid| uid.as_str().len())
}

fn of_container(name: &str, container: &ApiContainer) -> usize {
    let hooks = [&container.pre_stop, &container.post_start];
    let hooks = hooks.into_iter().flatten().map(|hook| match hook {
        Hook::Exec(binary) => binary.len(),
        _ => 0,
    });
    let probes = [&container.liveness, &container.startup];
    let probes =
        probes.into_iter().flatten().filter_map(|probe| probe.exec.as_deref()).map(str::len);
    let ends = container.terminated.iter().map(|end| {
        size_of_val(end) + end.reason.len() + end.id.as_ref().map_or(0, |id| id.as_str().len())
    });
    name.len()
        + container.restart_policy.len()
        + container.waiting.as_deref().map_or(0, str::len)
        + container.id.as_ref().map_or(0, |id| id.as_str().len())
        + hooks.chain(probes).chain(ends).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, containers: usize) -> ApiPod {
        let one =
            || ApiContainer { id: Some("c".repeat(64).as_str().into()), ..Default::default() };
        let containers = (0..containers).map(|n| (format!("container-{n:04}"), one())).collect();
        let finalizers = vec!["example.com/hold".to_owned(); 16];
        ApiPod { uid: uid.into(), containers, finalizers, ..ApiPod::default() }
    }

    fn admitted(room: &mut Room, uid: &str, containers: usize) -> usize {
        let mut pod = pod(uid, containers);
        assert!(room.admit(&mut pod, &Cuts::default()));
        pod.containers.len()
    }

    #[tokio::test(start_paused = true)]
    async fn large_pods_leave_small_ones_their_room() {
        let mut room = Room::default();
        let small = 6;
        assert!(weight(&pod("small", small)) <= OWN, "{}", weight(&pod("small", small)));
        let mut whole = 0;
        while admitted(&mut room, &format!("large-{whole}"), 256) == 256 {
            whole += 1;
        }
        assert!(whole * weight(&pod("", 256)) <= STORE + whole * OWN && whole > 8, "{whole}");
        assert_eq!(admitted(&mut room, "small", small), small);
        // What is cut has its finalizer and what containers fit.
        let (mut large, cuts) = (pod("more", 256), Cuts::default());
        assert!(room.admit(&mut large, &cuts));
        assert!(weight(&large) <= OWN && large.finalizers.len() == 1, "{}", weight(&large));
        assert_eq!(cuts.of(Cut::Containers), 256 - large.containers.len() as u64);
        assert_eq!(cuts.of(Cut::Finalizers), 15);

        // One that is gone gives its room back when the core does.
        room.is_gone("large-0");
        assert!(admitted(&mut room, "next", 256) < 256);
        tokio::time::advance(KEPT_AFTER).await;
        assert_eq!(admitted(&mut room, "next", 256), 256);
    }

    #[test]
    fn there_are_as_many_pods_as_there_is_room_for() {
        let (mut room, cuts) = (Room::default(), Cuts::default());
        let mut admit = |uid: usize| room.admit(&mut pod(&uid.to_string(), 1), &cuts);
        assert!((0..MAX_PODS).all(&mut admit));
        assert!(!admit(MAX_PODS) && admit(0), "one that is known is no other one");
        assert_eq!(cuts.of(Cut::Pods), 1);
        room.is_gone("7");
        assert!(room.admit(&mut pod("new", 1), &cuts));
    }

    #[test]
    fn a_list_replaces_what_was_before() {
        let mut room = Room::default();
        for _ in 0..1_000 {
            room.begin_list();
            assert_eq!(admitted(&mut room, "large", 256), 256);
            room.break_list();
            room.begin_list();
            assert_eq!(admitted(&mut room, "large", 256), 256);
            room.end_list(&[pod("large", 256)]);
        }
        assert_eq!(room.taken, weight(&pod("large", 256)) - OWN);
        room.begin_list();
        room.end_list(&[]);
        assert!(room.by.is_empty() && room.taken > 0, "the core keeps it for a while");
    }
}
