//! What the pod's status and spec showed of each attempt of its containers, in the order in which the
//! apiserver delivered it. That order, and not a clock, tells a stop by the kubelet from all others.

use crate::{
    ids::ContainerId,
    input::{ApiContainer, ApiPod},
    time::BootTime,
};

/// Bound on remembered attempts of a pod's containers: the oldest go.
const MAX_ATTEMPTS: usize = 64;
/// `ContainerStatus.state.terminated.reason` of a container that was restarted with all others
/// (kuberuntime_manager.go, KEP-5532).
const RESTARTING_ALL: &str = "RestartingAllContainers";
/// kubecontainer.ErrPostStartHook: `ContainerStatus.state.waiting.reason`.
const POST_START_FAILED: &str = "PostStartHookError";

/// One attempt of a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Its container.
    pub id: ContainerId,
    /// It was ever seen started: it passed its startup probe, if it has one. `None`: it was never seen
    /// running. (The kubelet sets `started` to false as soon as a container is stopped, prober_manager.go.)
    pub started: Option<bool>,
    /// How the status showed its end, once it did.
    pub ended: Option<Shown>,
    /// When that was received.
    pub ended_at: Option<BootTime>,
    /// The status showed its end while nothing was to end the pod, or another attempt after it: the pod went
    /// on after it.
    pub outlasted: bool,
    /// When the spec was first seen with another image than that of this attempt.
    pub image_changed: Option<BootTime>,
    /// When the kubelet was first seen to resize the pod after the spec got other resources for which this
    /// container has to be restarted.
    pub resized: Option<BootTime>,
    resources_changed: bool,
}

impl Attempt {
    /// One of which nothing was shown yet.
    pub fn new(id: ContainerId) -> Self {
        Self {
            id,
            started: None,
            ended: None,
            ended_at: None,
            outlasted: false,
            image_changed: None,
            resized: None,
            resources_changed: false,
        }
    }

    /// Takes that its status showed its end, for the first time; whether the pod was to go on then.
    fn end(&mut self, at: BootTime, shown: Shown, goes_on: bool) {
        self.ended.get_or_insert(shown);
        self.ended_at.get_or_insert(at);
        self.outlasted |= goes_on;
    }
}

/// How a pod's status shows that an attempt of a container ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown {
    /// As terminated, and only later as followed by another: the kubelet found it ended.
    Terminated,
    /// As running, and then at once as followed by another, or as waiting for one: the kubelet stops a
    /// container and starts it again in the same sync (`SyncPod`, kuberuntime_manager.go).
    Replaced,
    /// The kubelet stopped it since its postStart hook failed.
    PostStartFailed,
    /// The kubelet restarted it with all other containers of the pod.
    RestartedWithAll,
    /// In a list, or not to be started again: the order says nothing.
    Unordered,
}

/// The attempts of a pod's containers, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attempts(Vec<Attempt>);

impl Attempts {
    /// An attempt, if the status ever named it.
    pub fn get(&self, id: &ContainerId) -> Option<&Attempt> {
        self.0.iter().find(|attempt| attempt.id == *id)
    }

    /// Takes the next state of the pod. `before`: the one before, if the watch delivered both, so that
    /// nothing but what the kubelet left out happened between them.
    pub(super) fn apply(&mut self, at: BootTime, before: Option<&ApiPod>, now: &ApiPod) {
        let goes_on = now.deletion_timestamp.is_none()
            && !now.is_finished()
            && now.reason.is_empty()
            && now.disruption.is_none()
            && !now.is_completing();
        for (name, container) in &now.containers {
            let before = before.and_then(|pod| pod.containers.get(name));
            if let Some(id) = &container.id
                && let Some(started) = container.started.filter(|_| !container.is_terminated())
            {
                let attempt = self.entry(id);
                attempt.started = Some(started || attempt.started == Some(true));
            }
            for id in container.terminated.iter().filter_map(|end| end.id.as_ref()) {
                let shown = shown(id, before, container, goes_on && !now.is_done(container));
                self.entry(id).end(at, shown, goes_on || container.is_after(id));
            }
            let Some((before, id)) = before.and_then(|before| Some((before, before.id.as_ref()?)))
            else {
                continue;
            };
            let restarts_all = container.waiting.as_deref() == Some(RESTARTING_ALL)
                || container.terminated.iter().any(|end| end.reason == RESTARTING_ALL);
            let attempt = self.entry(id);
            if container.id.as_ref() != Some(id) {
                // The kubelet has removed the container, and made its last state up, without an id.
                let shown = if restarts_all { Shown::RestartedWithAll } else { Shown::Unordered };
                attempt.end(at, shown, goes_on || container.is_after(id));
            }
            if container.image != before.image {
                attempt.image_changed.get_or_insert(at);
            }
            attempt.resources_changed |= container.resources != before.resources;
            if now.resizes && attempt.resources_changed {
                attempt.resized.get_or_insert(at);
            }
        }
        let excess = self.0.len().saturating_sub(MAX_ATTEMPTS);
        self.0.drain(..excess);
    }

    fn entry(&mut self, id: &ContainerId) -> &mut Attempt {
        let known = self.0.iter().position(|attempt| attempt.id == *id);
        let index = known.unwrap_or_else(|| {
            self.0.push(Attempt::new(id.clone()));
            self.0.len() - 1
        });
        &mut self.0[index]
    }
}

/// How this status shows the end of a container's attempt.
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
    let ran =
        before.is_some_and(|before| before.id.as_ref() == Some(id) && before.waiting.is_none());
    match (ran, is_current) {
        // Even in a pod that is being deleted: it would not be started again if it had been found ended.
        (true, false) => Shown::Replaced,
        (true, true) if restarts && now.waiting.is_some() => Shown::Replaced,
        (true, true) if restarts => Shown::Terminated,
        _ => Shown::Unordered,
    }
}
