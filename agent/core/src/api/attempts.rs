//! What the pod's status showed of each attempt of its containers.

use crate::{ids::ContainerId, input::ApiPod, types::Cause};
use std::collections::BTreeSet;

/// Bound on attempts of a pod's containers; the oldest that the status no longer names are evicted.
const MAX_ATTEMPTS: usize = 64;
/// `ContainerStatus.state.terminated.reason` of a container that was restarted with all others
/// (kuberuntime_manager.go, KEP-5532).
const RESTARTING_ALL: &str = "RestartingAllContainers";
/// kubecontainer.ErrPostStartHook: `ContainerStatus.state.waiting.reason`.
const POST_START_FAILED: &str = "PostStartHookError";

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attempt {
    pub name: String,
    /// How often the container had been restarted before.
    pub restarts: u32,
    /// The status showed it started, so its startup probe (if any) had succeeded. The kubelet sets `started` to false
    /// as soon as it stops a container (prober_manager.go).
    pub started: bool,
    /// The status showed its end.
    pub ended: bool,
    /// The status showed its end while the pod was to keep running, or another attempt after it.
    pub outlasted: bool,
    /// Only that the pod's phase was Running then shows this: the kubelet sends its reason for an end later.
    is_tentative: bool,
    /// Why it was stopped, where the status has a reason of its own.
    pub stopped_for: Option<Cause>,
}

impl Attempt {
    /// The status shows its end. `goes_on`: the pod is to keep running; `is_certain`: by this container's own status.
    fn ends(&mut self, goes_on: bool, is_certain: bool) {
        self.ended = true;
        self.is_tentative = !is_certain && (self.is_tentative || goes_on && !self.outlasted);
        self.outlasted |= goes_on || is_certain;
    }
}

/// The attempts of a pod's containers, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attempts(Vec<(ContainerId, Attempt)>);

impl Attempts {
    /// An attempt that the status has named.
    pub fn get(&self, id: &ContainerId) -> Option<&Attempt> {
        self.0.iter().find(|(of, _)| of == id).map(|(_, attempt)| attempt)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ContainerId, &Attempt)> {
        self.0.iter().map(|(id, attempt)| (id, attempt))
    }

    /// Applies the next state of the pod. `known`: the last state before it.
    pub(super) fn apply(&mut self, known: Option<&ApiPod>, now: &ApiPod) {
        let goes_on = now.deletion_timestamp.is_none()
            && !now.is_finished()
            && now.reason.is_empty()
            && now.disruption.is_none()
            && !now.is_completing();
        let was_ended_by_the_kubelet = now.deletion_timestamp.is_none()
            && now.is_finished()
            && (!now.reason.is_empty() || now.disruption.is_some());
        for (name, container) in &now.containers {
            let (current, waiting) = (container.id.as_ref(), container.waiting.as_deref());
            if let Some(id) = current {
                let attempt = self.entry(id, name, container.restarts);
                attempt.started |= !container.is_terminated() && container.started == Some(true);
                if waiting == Some(POST_START_FAILED) {
                    attempt.stopped_for = Some(Cause::PostStartFailed);
                }
            }
            for id in container.terminated.iter().filter_map(|end| end.id.as_ref()) {
                // Only of a pod whose deletion the kubelet has not seen yet is an ended container shown as waiting
                // (`ShouldContainerBeRestarted`, helpers.go).
                let waits = waiting.is_some() && current == Some(id);
                let is_earlier = container.is_after(id);
                let restarts = container.restarts.saturating_sub(u32::from(is_earlier));
                let attempt = self.entry(id, name, restarts);
                attempt.ends(goes_on, waits || is_earlier);
                if was_ended_by_the_kubelet && attempt.is_tentative {
                    (attempt.outlasted, attempt.is_tentative) = (false, false);
                }
            }
            let known = known.and_then(|pod| pod.containers.get(name));
            let Some((known, id)) = known.and_then(|known| Some((known, known.id.as_ref()?)))
            else {
                continue;
            };
            if current != Some(id) {
                // The kubelet has removed the container and made up its last state, without an id.
                let attempt = self.entry(id, name, known.restarts);
                attempt.ends(goes_on, container.is_after(id));
                let restarts_all = waiting == Some(RESTARTING_ALL)
                    || container.terminated.iter().any(|end| end.reason == RESTARTING_ALL);
                if restarts_all {
                    attempt.stopped_for.get_or_insert(Cause::RestartAllContainers);
                }
            }
        }
        if self.0.len() > MAX_ATTEMPTS {
            let ends = now.containers.values().flat_map(|container| &container.terminated);
            let current = now.containers.values().map(|container| &container.id);
            let named = current.chain(ends.map(|end| &end.id)).flatten();
            let named: BTreeSet<&ContainerId> = named.collect();
            let mut excess = self.0.len() - MAX_ATTEMPTS;
            self.0.retain(|(id, _)| {
                let is_kept = excess == 0 || named.contains(id);
                excess -= usize::from(!is_kept);
                is_kept
            });
        }
    }

    fn entry(&mut self, id: &ContainerId, name: &str, restarts: u32) -> &mut Attempt {
        let known = self.0.iter().position(|(of, _)| of == id);
        let index = known.unwrap_or_else(|| {
            let new = Attempt { name: name.to_owned(), restarts, ..Attempt::default() };
            self.0.push((id.clone(), new));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod of more containers than attempts are kept: none that its status names is evicted.
    #[test]
    fn what_the_status_names_is_kept() {
        let id = |n: usize, attempt: u32| ContainerId::new(format!("{n}-{attempt}"));
        let mut pod = ApiPod::default();
        let mut attempts = Attempts::default();
        for restarts in 0..5 {
            for n in 0..MAX_ATTEMPTS + 6 {
                let container = pod.containers.entry(format!("c{n}")).or_default();
                (container.id, container.restarts) = (Some(id(n, restarts)), restarts);
            }
            attempts.apply(None, &pod);
            let named =
                |n| attempts.get(&id(n, restarts)).is_some_and(|one| one.restarts == restarts);
            assert!((0..MAX_ATTEMPTS + 6).all(named));
            assert!(attempts.iter().count() <= MAX_ATTEMPTS + 6);
        }
    }
}
