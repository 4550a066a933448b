//! The join: a read-only view of one pod's evidence from all sources. Nothing is stored here, so a report can
//! be rebuilt at any time.

mod death;
mod events;
mod findings;
mod termination;
mod traffic;

use super::{
    api::{ApiState, DeletionRequest, PodObject},
    cgroup_tree::CgroupTree,
    cri::{Container, CriState, Sandbox},
    events::EventStore,
    isolation::Isolation,
    node::NodeState,
    process::{ContainerProcesses, Origin, SI_KERNEL, SIGKILL, SIGTERM, SentSignal},
    table::Table,
    traffic::TrafficState,
    verdict::{CONVENTIONAL_STOP_SIGNALS, KUBELET_SLACK},
};
use crate::{ids::*, input::*, time::*};
use std::{collections::BTreeSet, time::Duration};

#[derive(Debug, Default)]
pub struct Stores {
    pub cgroups: CgroupTree,
    /// The kernel's records, by the container's own cgroup.
    pub processes: Table<CgroupId, ContainerProcesses>,
    pub cri: CriState,
    pub api: ApiState,
    pub node: NodeState,
    pub traffic: TrafficState,
    pub events: EventStore,
    /// Boot clock ↔ wall clock.
    pub anchor: Anchor,
}

impl Stores {
    pub fn processes_of(&self, id: &ContainerId) -> Option<&ContainerProcesses> {
        self.processes.get(&self.cgroups.cgroup(id)?)
    }

    /// The kernel's records of a sandbox's own container, which has its id.
    pub fn processes_of_sandbox(&self, id: &SandboxId) -> Option<&ContainerProcesses> {
        self.processes_of(&ContainerId::new(id.as_str()))
    }

    /// How the host is kept from seeing into the containers of a sandbox; `shim`: what the runtime says of one of
    /// them.
    pub fn isolation<'a>(
        &'a self,
        sandbox: &SandboxId,
        shim: Option<&'a str>,
    ) -> Option<Isolation<'a>> {
        let handler = self.cri.sandbox(sandbox).map(|known| known.info.handler.as_str());
        let process = self.processes_of_sandbox(sandbox).and_then(|own| own.init.as_ref());
        Isolation::find(handler, shim, process.map(|init| init.comm.as_str()))
    }

    /// A container in its pod's spec and status.
    pub fn spec(&self, pod: &PodUid, name: &str) -> Option<&ApiContainer> {
        self.api.get(pod)?.pod.containers.get(name)
    }
}

/// The evidence of one incarnation of a pod.
#[derive(Clone, Debug)]
pub struct PodView<'a> {
    stores: &'a Stores,
    uid: &'a PodUid,
    /// The incarnation's sandboxes, oldest first, including those that the agent never saw running.
    sandboxes: Vec<&'a Sandbox>,
    /// Another incarnation of the same UID has begun.
    superseded: bool,
    cgroup_removed: Option<BootTime>,
    /// This incarnation's containers that ran while the agent watched.
    pub members: PodContainers,
}

/// The containers of the current incarnation.
#[derive(Clone, Debug, Default)]
pub struct PodContainers {
    /// All of them, dead or alive.
    pub all: BTreeSet<ContainerId>,
    pub alive: usize,
    /// When the last of those that ended did.
    pub ended: Option<BootTime>,
    /// The pod's deletion was requested while part of it ran.
    pub requested: bool,
    /// A sandbox of the pod is not stopped yet.
    pub sandbox_runs: bool,
}

/// How many of a report's containers, their processes, sandboxes and objects are in the stores, and whether its Events
/// are: a later list of them may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct HeldEvidence([usize; 6]);

impl HeldEvidence {
    /// Nothing was evicted since.
    pub fn lacks_none_of(&self, earlier: &Self) -> bool {
        self.0.iter().zip(earlier.0).all(|(now, earlier)| *now >= earlier)
    }
}

impl<'a> PodView<'a> {
    /// A view without the sandboxes of `earlier` incarnations.
    pub fn new(
        stores: &'a Stores,
        uid: &'a PodUid,
        earlier: &BTreeSet<SandboxId>,
        cgroup_removed: Option<BootTime>,
    ) -> Self {
        let sandboxes = stores.cri.sandboxes_of(uid);
        let sandboxes = sandboxes.filter(|s| !earlier.contains(&s.info.id)).collect();
        let members = PodContainers::default();
        let mut view = Self { stores, uid, sandboxes, superseded: false, cgroup_removed, members };
        view.truncate_to_incarnation();
        view.find_members();
        view
    }

    /// A static pod's UID comes back with its manifest: a sandbox made after all earlier ones ended belongs
    /// to the next incarnation. Any other pod has one incarnation, however many sandboxes it takes.
    fn truncate_to_incarnation(&mut self) {
        if !self.is_static() {
            return;
        }
        // The runtime's list may show much later that the sandbox's own container has exited.
        let has_ended = |sandbox: &Sandbox| {
            let own = self.processes_of_sandbox(&sandbox.info.id);
            let mut containers = self.stores.cri.containers_of(&sandbox.info.id);
            (sandbox.ended.is_some() || own.is_some_and(|own| own.ended().is_some()))
                && containers.all(|c| self.ended(&c.info.id).is_some())
        };
        let first = self.sandboxes.iter().position(|s| self.is_own(s) && has_ended(s));
        let over = first.map_or(self.sandboxes.len(), |first| first + 1);
        if over < self.sandboxes.len() {
            self.sandboxes.truncate(over);
            self.superseded = true;
        }
    }

    fn object(&self) -> Option<&'a PodObject> {
        self.stores.api.get(self.uid)
    }

    /// What the pod is a replica of, where the apiserver has shown it.
    fn workload(&self) -> Option<Workload> {
        self.object()?.pod.workload.as_deref().cloned()
    }

    fn container(&self, id: &ContainerId) -> Option<&'a Container> {
        self.stores.cri.container(id)
    }

    /// The container in the pod's spec and status.
    fn spec(&self, name: &str) -> Option<&'a ApiContainer> {
        self.stores.spec(self.uid, name)
    }

    fn processes_of(&self, id: &ContainerId) -> Option<&'a ContainerProcesses> {
        self.stores.processes_of(id)
    }

    /// The records of the sandbox's own container, which has its id.
    fn processes_of_sandbox(&self, id: &SandboxId) -> Option<&'a ContainerProcesses> {
        self.stores.processes_of_sandbox(id)
    }

    /// The sandbox ran while the agent watched, according to the runtime or to the kernel.
    fn is_own(&self, sandbox: &Sandbox) -> bool {
        sandbox.seen_alive || self.processes_of_sandbox(&sandbox.info.id).is_some()
    }

    fn own_sandboxes(&self) -> impl Iterator<Item = &'a Sandbox> {
        self.sandboxes.iter().copied().filter(|s| self.is_own(s))
    }

    fn containers(&self) -> impl Iterator<Item = &'a Container> {
        self.sandboxes.iter().flat_map(|s| self.stores.cri.containers_of(&s.info.id))
    }

    /// The container ran while the agent watched.
    fn ran(&self, container: &Container) -> bool {
        container.seen_alive || self.processes_of(&container.info.id).is_some()
    }

    /// What a report of this view rests on.
    pub fn evidence(&self) -> HeldEvidence {
        let all = || self.members.all.iter();
        HeldEvidence([
            all().filter(|id| self.container(id).is_some()).count(),
            all().filter(|id| self.processes_of(id).is_some()).count(),
            self.own_sandboxes().count(),
            usize::from(self.object().is_some()),
            // A static pod's next mirror takes the place of the one that is gone.
            usize::from(self.object().is_some_and(|object| object.gone.is_some())),
            usize::from(!self.stores.events.of(self.uid).is_empty()),
        ])
    }

    /// Nothing of this incarnation ran while the agent watched.
    pub fn is_empty(&self) -> bool {
        self.own_sandboxes().next().is_none() && !self.containers().any(|c| self.ran(c))
    }

    pub fn sandboxes(&self) -> BTreeSet<SandboxId> {
        self.sandboxes.iter().map(|s| s.info.id.clone()).collect()
    }

    /// This incarnation's sandboxes that ran while the agent watched.
    pub fn seen_sandboxes(&self) -> BTreeSet<SandboxId> {
        self.own_sandboxes().map(|s| s.info.id.clone()).collect()
    }

    fn find_members(&mut self) {
        let mut members = PodContainers::default();
        for container in self.containers().filter(|c| self.ran(c)) {
            let id = &container.info.id;
            match self.ended(id) {
                Some(at) => members.ended = members.ended.max(Some(at)),
                None => members.alive += 1,
            }
            members.all.insert(id.clone());
        }
        members.sandbox_runs = self.own_sandboxes().any(|s| s.ended.is_none());
        self.members = members;
        self.members.requested = self.request().is_some();
    }

    /// When a container ended, from the kernel or, if its record is missing, from the runtime.
    fn end(&self, id: &ContainerId) -> Option<Interval> {
        let by_kernel = self.processes_of(id).and_then(ContainerProcesses::ended);
        let by_kernel = by_kernel.map(|at| Interval { earliest: at, latest: at });
        by_kernel.or_else(|| self.container(id)?.ended)
    }

    /// The latest moment at which a container may have ended.
    pub fn ended(&self, id: &ContainerId) -> Option<BootTime> {
        self.end(id).map(|end| end.latest)
    }

    /// The runtime has reported everything about this container's exit.
    pub fn is_cri_complete(&self, id: &ContainerId) -> bool {
        self.container(id).is_none_or(|c| c.status.exit.is_some() || c.removed.is_some())
    }

    /// The runtime lists all of this incarnation's containers as exited.
    pub fn are_exited(&self) -> bool {
        self.containers().all(|container| container.ended.is_some())
    }

    /// All evidence of this end has arrived, except the removal of sandbox and cgroup. The runtime has
    /// reported each container's exit and cgroup, and the stopped sandbox. The apiserver has reported that
    /// the object is gone, or a final phase with every container terminated. Neither the runtime nor the
    /// kubelet is down, which would be a finding.
    pub fn is_final(&self) -> bool {
        !self.is_empty()
            && self.stores.cri.connection.is_up()
            && !self.stores.node.kubelet.has_ended()
            && self.own_sandboxes().all(|sandbox| sandbox.ended.is_some())
            && self.are_exited()
            && self.cri_complete()
            && !self.traffic_pending()
            && self.members.all.iter().all(|id| self.processes_of(id).is_some())
            && (!self.stores.api.has_apiserver || self.object().is_some_and(is_final))
    }

    fn cri_complete(&self) -> bool {
        self.members.all.iter().all(|id| self.is_cri_complete(id))
    }

    /// Evidence from the runtime is still missing.
    pub fn cri_pending(&self) -> bool {
        self.members.alive > 0 || self.members.sandbox_runs || !self.cri_complete()
    }

    /// The deletion request, if part of the pod still ran when it came.
    fn request(&self) -> Option<&'a DeletionRequest> {
        let object = self.object()?;
        let request = object.request()?;
        let containers = self.members.all.iter().any(|id| self.ended_with_its_pod(id));
        // The sandbox of a finished pod is stopped without a request; any other sandbox shows that the pod
        // ran.
        let counts = !object.requested_after_end || self.members.all.is_empty();
        let sandbox = counts && self.own_sandboxes().next().is_some();
        (containers || sandbox).then_some(request)
    }

    /// The end of the grace, if part of the pod still ran when the request came.
    pub fn deadline(&self) -> Option<BootTime> {
        self.request().map(DeletionRequest::deadline)
    }

    /// The pod is being deleted: a request came, or its object disappeared, while part of it ran.
    pub fn is_ending(&self) -> bool {
        let mirror = self.object().is_some_and(PodObject::is_mirror);
        self.members.requested || (!mirror && self.gone().is_some())
    }

    /// The pod kept running after this container's end: another attempt followed, or the status showed the
    /// end while the pod was to keep running. A missing deletion proves nothing, because the watch may be
    /// late; nor does a mirror pod's status, because the manifest is removed without it.
    pub fn went_on_after(&self, id: &ContainerId) -> bool {
        let container = self.container(id);
        container.is_some_and(|c| !self.is_last_attempt(c))
            || self.object().is_some_and(|object| !object.is_mirror() && object.outlasted(id))
    }

    /// The container ended with its pod, or still runs: it was stopped, or it exited when the request or the
    /// object's removal may have come already.
    pub fn ended_with_its_pod(&self, id: &ContainerId) -> bool {
        let (Some(ended), Some(object)) = (self.ended(id), self.object()) else { return true };
        if self.went_on_after(id) {
            return false;
        }
        match (object.request(), object.gone) {
            (Some(request), _) if object.requested_after_end => {
                ended >= request.made.latest.min(request.date + request.uncertainty())
            }
            (Some(request), _) => ended >= request.made.earliest || self.was_sent_stop_signal(id),
            (None, Some(gone)) if object.pod.is_finished() => ended >= gone.earliest,
            (None, Some(gone)) => ended >= gone.earliest || self.was_sent_stop_signal(id),
            (None, None) => false,
        }
    }

    /// A process outside sent the container its stop signal or SIGKILL.
    fn was_sent_stop_signal(&self, id: &ContainerId) -> bool {
        let signal = self.container(id).map_or(SIGTERM, |c| self.stop_signal(c));
        let ended = self.ended(id);
        let stops = |sent: &SentSignal| {
            let number = sent.signal.signal;
            let is_stop = sent.signal.code != SI_KERNEL && [signal, SIGKILL].contains(&number);
            // A signal of its preStop hook, or of another process that entered it.
            let may_be_hook = sent.origin == Origin::Entered
                && CONVENTIONAL_STOP_SIGNALS.contains(&number)
                && ended.is_none_or(|ended| ended.since(sent.at) <= KUBELET_SLACK);
            sent.from_outside() && (is_stop || may_be_hook)
        };
        self.processes_of(id).is_some_and(|processes| processes.sent().any(stops))
    }

    /// Evidence may still come that shows whether the pod keeps running or is being deleted, and why the kubelet
    /// restarted the container.
    pub fn reason_pending(&self, id: &ContainerId) -> bool {
        let Some(object) = self.object() else {
            let may_show = |ended| self.stores.api.may_show(ended);
            return !self.is_static() && self.ended(id).is_some_and(may_show);
        };
        if self.went_on_after(id) {
            let ended = object.attempts.get(id).is_some_and(|attempt| attempt.ended);
            let shown = || self.spec(&self.container(id)?.info.name)?.id.as_ref();
            let attempt = |id: &ContainerId| self.container(id).map(|c| c.info.attempt);
            return match shown().filter(|shown| *shown != id) {
                // A status that names a later attempt shows nothing more about this one.
                Some(next) if attempt(next) > attempt(id) => false,
                _ => object.exists() && !ended,
            };
        }
        let owes = !object.is_mirror() && object.requested.is_none();
        owes && !self.is_static() && !self.ended_with_its_pod(id)
    }

    /// When the object disappeared, unless that was a later cleanup of a pod long finished.
    fn gone(&self) -> Option<Interval> {
        let object = self.object()?;
        let gone = object.gone?;
        // If the watch did not show the deletion, a container that exited by then may have exited before it.
        let with_it = |id, at| {
            let may_be = at >= gone.earliest && !object.requested_after_end;
            at >= gone.latest || may_be && self.was_sent_stop_signal(id)
        };
        let ran = self.members.all.iter().any(|id| self.ended(id).is_none_or(|at| with_it(id, at)));
        (ran || object.is_mirror() || self.request().is_some()).then_some(gone)
    }

    /// When this had happened to all sandboxes.
    fn all_sandboxes(&self, when: impl Fn(&Sandbox) -> Option<Interval>) -> Option<Interval> {
        let all: Option<Vec<_>> = self.own_sandboxes().map(when).collect();
        all?.into_iter().max_by_key(|change| change.latest)
    }

    /// The status names a container that the kernel has recorded and the runtime has not listed yet.
    fn awaits_a_list(&self) -> bool {
        let attempts = self.object().into_iter().flat_map(|object| object.attempts.iter());
        let is_awaited = |id| self.container(id).is_none() && self.processes_of(id).is_some();
        attempts.map(|(id, _)| id).any(is_awaited)
    }

    /// All evidence for the report has arrived, or `timeout` is over.
    pub fn is_over(&self, now: BootTime, timeout: Duration) -> bool {
        if self.members.alive > 0 || self.members.sandbox_runs {
            return false;
        }
        // Deleted before it had a container: its sandbox is all there was.
        let sandboxes = || self.all_sandboxes(|s| s.ended).map(|stopped| stopped.latest);
        let Some(ended) = self.members.ended.or_else(sandboxes) else { return false };
        let awaits_a_list = self.awaits_a_list() && now < self.last().unwrap_or(ended) + timeout;
        let late = now >= ended + timeout;
        if awaits_a_list || !(late || (self.cri_complete() && !self.traffic_pending())) {
            return false;
        }
        if self.superseded || !self.stores.api.has_apiserver {
            return true;
        }
        let gone = self.gone().is_some();
        match self.object() {
            _ if self.members.requested => gone,
            _ if self.members.all.is_empty() => false, // it gets another sandbox
            Some(object) if object.is_mirror() => gone || late,
            // Without a request a pod is over if the kubelet says so, because a sandbox that died is
            // replaced; or if its object is gone, because the watch may have missed the status.
            Some(object) => object.gone.is_some() || object.pod.is_finished(),
            // The apiserver never reported the pod. A static pod does not need it; of any other a later list that lacks
            // it, or the removal of its cgroup or sandbox, shows that it is over.
            None => {
                let is_gone = || !self.stores.api.may_show(ended) || self.resources_released(ended);
                late && (self.is_static() || is_gone())
            }
        }
    }

    /// The apiserver has no object of it any more, and no manifest brings it back.
    pub fn is_deleted(&self) -> bool {
        !self.is_static() && self.object().is_some_and(|one| !one.is_mirror() && !one.exists())
    }

    /// The watch has shown part of the pod's history, and not its end: what follows may change the cause.
    pub fn is_partly_shown(&self) -> bool {
        let shown = self.object().filter(|object| !object.is_mirror());
        shown.is_some_and(|object| object.gone.is_none() && !object.pod.is_finished())
    }

    /// The kubelet keeps a pod's cgroup and last sandbox while the pod may keep running
    /// (pod_container_manager_linux.go, kuberuntime_gc.go).
    fn resources_released(&self, ended: BootTime) -> bool {
        self.cgroup_removed.is_some_and(|at| at >= ended)
            || self.all_sandboxes(|s| s.removed).is_some()
    }

    /// The settle window has passed since the last event of the report.
    pub fn is_settled(&self, now: BootTime, settle: Duration) -> bool {
        now >= self.last().unwrap_or(now) + settle
    }

    /// The last event of the report: the end of processes, sandbox or object.
    fn last(&self) -> Option<BootTime> {
        let processes = self.members.all.iter().filter_map(|id| self.ended(id)).max();
        let sandbox = self.all_sandboxes(|s| s.ended).map(|s| s.latest);
        [processes, sandbox, self.gone().map(|g| g.latest)].into_iter().flatten().max()
    }

    /// The kubelet read the pod from a file or a URL.
    pub fn is_static(&self) -> bool {
        self.own_sandboxes().any(|sandbox| sandbox.info.is_static())
    }
}

/// The apiserver has reported the whole termination: the object is gone, or its phase is final with every
/// container terminated. The phase of a static pod's mirror shows nothing: the mirror goes with the pod.
fn is_final(object: &PodObject) -> bool {
    let mut made = object.pod.containers.values().filter(|container| container.id.is_some());
    let is_over = object.pod.is_finished() && made.all(ApiContainer::is_terminated);
    object.gone.is_some() || (is_over && !object.is_mirror())
}
