//! What the pod's status and spec showed of each container attempt, in the apiserver's order. That order, and
//! no clock, distinguishes a stop by the kubelet from all others.

use crate::{ids::*, input::*, time::*};
use std::collections::BTreeSet;

/// Bound on attempts of a pod's containers; the oldest that the status no longer names are evicted.
const MAX_ATTEMPTS: usize = 64;
/// `ContainerStatus.state.terminated.reason` of a container that was restarted with all others
/// (kuberuntime_manager.go, KEP-5532).
const RESTARTING_ALL: &str = "RestartingAllContainers";
/// kubecontainer.ContainerReasonStatusUnknown: `ContainerStatus.state.terminated.reason` of a container that ran and
/// whose state the runtime does not know (kubelet_pods.go, `convertToAPIContainerStatuses`).
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// kubecontainer.ErrCrashLoopBackOff: `ContainerStatus.state.waiting.reason`.
const BACK_OFF: &str = "CrashLoopBackOff";
/// kubecontainer.ErrPostStartHook: `ContainerStatus.state.waiting.reason`.
const POST_START_FAILED: &str = "PostStartHookError";

/// One attempt of a container.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attempt {
    /// The container's name.
    pub name: String,
    /// How often the container had been restarted before.
    pub restarts: u32,
    /// The status showed it started, so its startup probe (if any) succeeded; `None`: never seen running. The
    /// kubelet sets `started` to false as soon as it stops a container (prober_manager.go).
    pub started: Option<bool>,
    /// How the status showed its end.
    pub ended: Option<Shown>,
    /// When that status was received.
    pub ended_at: Option<BootTime>,
    /// The status that showed its end, before a final phase, showed the pod's sandbox stopped as well; `None`: not
    /// shown. A kubelet that finds a container ended shows that first, and stops the sandbox afterwards (`SyncPod`,
    /// kuberuntime_manager.go; `syncPod`, kubelet.go).
    pub sandbox_stopped: Option<bool>,
    /// The status showed its end while the pod was to keep running, or another attempt after it.
    pub outlasted: bool,
    /// When the spec was first seen with another image.
    pub image_changed: Option<BootTime>,
    /// When the kubelet was first seen to resize the pod, after a change of resources that requires a
    /// restart.
    pub resized: Option<BootTime>,
    /// The status showed the attempt after it waiting in back-off.
    pub backed_off: bool,
    resources_changed: bool,
}

impl Attempt {
    /// The spec was seen with other resources.
    pub fn resources_changed(&self) -> bool {
        self.resources_changed
    }

    /// Applies the first status that shows the end. `goes_on`: the pod was to keep running.
    fn end(&mut self, at: BootTime, shown: Shown, goes_on: bool, sandbox_stopped: Option<bool>) {
        if self.ended.is_none() {
            self.sandbox_stopped = sandbox_stopped;
        }
        self.ended.get_or_insert(shown);
        self.ended_at.get_or_insert(at);
        self.outlasted |= goes_on;
    }
}

/// How a pod's status shows that an attempt of a container ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown {
    /// As terminated, and replaced only later: the kubelet found it ended.
    Terminated,
    /// As running, and at once as replaced or waiting: the kubelet stops and starts a container in one sync
    /// (`SyncPod`, kuberuntime_manager.go).
    Replaced,
    /// The kubelet stopped it because its postStart hook failed.
    PostStartFailed,
    /// The runtime did not know the container's state: the kubelet stops it before it starts it again, and shows
    /// it as terminated before it does.
    StateUnknown,
    /// The kubelet restarted it with all other containers of the pod.
    RestartedWithAll,
    /// In a list, or without a restart: the order shows nothing.
    Unordered,
}

/// The attempts of a pod's containers, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attempts(Vec<(ContainerId, Attempt)>);

impl Attempts {
    /// An attempt that the status has named.
    pub fn get(&self, id: &ContainerId) -> Option<&Attempt> {
        self.0.iter().find(|(of, _)| of == id).map(|(_, attempt)| attempt)
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (&ContainerId, &Attempt)> {
        self.0.iter().map(|(id, attempt)| (id, attempt))
    }

    /// Applies the next state of the pod. `known`: the last state before it. `in_order`: the watch delivered both,
    /// so none is missing in between.
    pub(super) fn apply(
        &mut self,
        at: BootTime,
        known: Option<&ApiPod>,
        in_order: bool,
        now: &ApiPod,
    ) {
        let goes_on = now.deletion_timestamp.is_none()
            && !now.is_finished()
            && now.reason.is_empty()
            && now.disruption.is_none()
            && !now.is_completing();
        for (name, container) in &now.containers {
            let known = known.and_then(|pod| pod.containers.get(name));
            let before = known.filter(|_| in_order);
            if let Some(id) = &container.id {
                let attempt = self.entry(id, name, container.restarts);
                attempt.backed_off |= container.waiting.as_deref() == Some(BACK_OFF);
                if let Some(started) = container.started.filter(|_| !container.is_terminated()) {
                    attempt.started = Some(started || attempt.started == Some(true));
                }
            }
            for id in container.terminated.iter().filter_map(|end| end.id.as_ref()) {
                // Only of a pod whose deletion the kubelet has not seen yet is an ended container shown as waiting
                // (`ShouldContainerBeRestarted`, helpers.go).
                let waits = container.waiting.is_some() && container.id.as_ref() == Some(id);
                let goes_on = goes_on || waits;
                let shown = shown(id, before, container, goes_on && !now.is_done(container));
                let is_earlier = container.is_after(id);
                let restarts = container.restarts.saturating_sub(u32::from(is_earlier));
                let sandbox = now.sandbox_ready.filter(|_| before.is_some() && !now.is_finished());
                let stopped = sandbox.map(|ready| !ready);
                self.entry(id, name, restarts).end(at, shown, goes_on || is_earlier, stopped);
            }
            let Some((known, id)) = known.and_then(|known| Some((known, known.id.as_ref()?)))
            else {
                continue;
            };
            let restarts_all = container.waiting.as_deref() == Some(RESTARTING_ALL)
                || container.terminated.iter().any(|end| end.reason == RESTARTING_ALL);
            let attempt = self.entry(id, name, known.restarts);
            if in_order && container.id.as_ref() != Some(id) {
                // The kubelet has removed the container and made up its last state, without an id.
                let shown = if restarts_all { Shown::RestartedWithAll } else { Shown::Unordered };
                attempt.end(at, shown, goes_on || container.is_after(id), None);
            }
            // A change after the attempt's end did not end it. In a list, which shows no order, an attempt that is
            // replaced there may have ended before the change.
            let may_end_it = match attempt.ended {
                None => true,
                Some(_) => !in_order && container.id.as_ref() == Some(id),
            };
            if container.image != known.image && may_end_it {
                attempt.image_changed.get_or_insert(at);
            }
            attempt.resources_changed |= container.resources != known.resources;
            if now.resizes && attempt.resources_changed {
                attempt.resized.get_or_insert(at);
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

/// How this status shows the end of an attempt.
fn shown(
    id: &ContainerId,
    before: Option<&ApiContainer>,
    now: &ApiContainer,
    restarts: bool,
) -> Shown {
    let is_current = now.id.as_ref() == Some(id);
    if is_current && now.waiting.as_deref() == Some(POST_START_FAILED) {
        return Shown::PostStartFailed;
    }
    let is_made_up =
        |end: &ApiTerminated| end.id.as_ref() == Some(id) && end.reason == STATUS_UNKNOWN;
    let ran =
        before.is_some_and(|before| before.id.as_ref() == Some(id) && before.waiting.is_none());
    match (ran, is_current) {
        // Also in a pod that is being deleted: a container found ended would not be started again there.
        (true, false) => Shown::Replaced,
        (true, true) if restarts && now.waiting.is_some() => Shown::Replaced,
        (true, true) if restarts && now.terminated.iter().any(is_made_up) => Shown::StateUnknown,
        (true, true) if restarts => Shown::Terminated,
        _ => Shown::Unordered,
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
            attempts.apply(BootTime(1), None, true, &pod);
            let named =
                |n| attempts.get(&id(n, restarts)).is_some_and(|one| one.restarts == restarts);
            assert!((0..MAX_ATTEMPTS + 6).all(named));
            assert!(attempts.iter().count() <= MAX_ATTEMPTS + 6);
        }
    }
}
