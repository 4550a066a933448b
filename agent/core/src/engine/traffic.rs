//! When the connections of a pod are counted, and read.

use super::Engine;
use crate::{
    cri::Sandbox,
    output::{CountTraffic, Outputs, Request, TrafficRequest},
    process::{ContainerProcesses, Origin, SIGKILL, SIGTERM, SentSignal},
    traffic::{IDLE, TrafficState},
};
use crate::{ids::*, input::*, time::*};
use std::collections::BTreeSet;

/// The cgroup of a record that may change what is counted, and whether its last process has left: few of the records
/// of a busy node do.
pub(super) fn turn(fact: &KernelFact) -> Option<(CgroupId, bool)> {
    match fact {
        KernelFact::SignalGenerated(signal) => Some((signal.cgroup, false)),
        KernelFact::CgroupEmpty { cgroup } => Some((*cgroup, true)),
        _ => None,
    }
}

impl Engine {
    /// Has the connections counted of each of these pods that is being deleted: at once, because new connections
    /// may come in the milliseconds before its stop signal.
    pub(super) fn count_deleted<'a>(
        &mut self,
        at: BootTime,
        pods: impl Iterator<Item = &'a PodUid>,
        out: &mut Outputs,
    ) {
        for uid in pods {
            let object = self.stores.api.get(uid);
            if object.is_some_and(|object| object.requested.is_some() && object.exists()) {
                self.count_pod(at, uid, out);
            }
        }
    }

    fn running_sandbox(&self, uid: &PodUid) -> Option<&Sandbox> {
        self.stores.cri.sandboxes_of(uid).rfind(|sandbox| sandbox.ended.is_none())
    }

    /// The runtime stops a container by this signal.
    fn is_stop(&self, owner: CgroupId, sent: &SentSignal) -> bool {
        let container = self.stores.cgroups.container(owner);
        let known = container.and_then(|id| self.stores.cri.container(id));
        let own = known.and_then(|known| known.status.stop_signal(None));
        let signals = [Some(SIGTERM), Some(SIGKILL), own];
        sent.origin == Origin::Outside && signals.contains(&Some(sent.signal.signal))
    }

    fn count_pod(&mut self, at: BootTime, uid: &PodUid, out: &mut Outputs) {
        let Some(sandbox) = self.running_sandbox(uid).map(|known| known.info.clone()) else {
            return;
        };
        let (cgroups, processes) = (&self.stores.cgroups, &self.stores.processes);
        let of = |cgroup| Some((cgroup, processes.get(&cgroup)?));
        let pause = cgroups.cgroup(&ContainerId::new(sandbox.id.as_str())).and_then(of);
        // Also those that no list has shown yet; a cgroup's path may not name its pod.
        let listed = self.stores.cri.containers_of(&sandbox.id);
        let listed = listed.filter_map(|one| cgroups.cgroup(&one.info.id));
        let is_container = |(id, _): &(&ContainerId, _)| !self.is_sandbox(id);
        let in_pod = cgroups.containers_of(uid).filter(is_container).map(|(_, cgroup)| *cgroup);
        let all: BTreeSet<CgroupId> = listed.chain(in_pod).collect();
        let all: Vec<_> = all.into_iter().filter_map(of).collect();
        let (is_another, stopped) = self.stop_of(at, uid, &sandbox.id, &all);
        if is_another {
            self.stores.traffic.forget(&sandbox.id); // a second `Count` starts over
        }
        if !self.stores.traffic.begin(at, &sandbox.id, stopped) {
            return;
        }
        let mut containers = self.stores.cri.containers_of(&sandbox.id);
        let shim = containers.find_map(|one| one.status.runtime_type.as_deref());
        if self.stores.isolation(&sandbox.id, shim).is_some() {
            let fact = TrafficFact::NotVisible { reason: TrafficBlindness::OwnStack };
            self.stores.traffic.apply(TrafficEvent { sandbox: sandbox.id, fact });
            return;
        }
        let process =
            |(_, p): (CgroupId, &ContainerProcesses)| p.main().map(|main| (main, p.started(main)));
        let is_alive = |(_, p): &(CgroupId, &ContainerProcesses)| p.ended().is_none();
        let alive = all.iter().copied().filter(is_alive);
        // The sandbox's own first: it lives as long as the network, and an application's may exit at once.
        let processes =
            pause.into_iter().filter(is_alive).chain(alive).filter_map(process).collect();
        let request = CountTraffic { sandbox: sandbox.id, processes };
        out.requests.push(Request::Traffic(TrafficRequest::Count(request)));
    }

    /// Whether the pod's stop is another than the one that was counted in its sandbox, and when the first of these
    /// containers was sent its stop signal.
    fn stop_of(
        &self,
        at: BootTime,
        uid: &PodUid,
        sandbox: &SandboxId,
        all: &[(CgroupId, &ContainerProcesses)],
    ) -> (bool, Option<BootTime>) {
        let object = self.stores.api.get(uid);
        let request = object.and_then(|object| Some(object.requested.as_ref()?.made.earliest));
        // A container that is newer than the stop shows that its pod went on: what was counted is of that stop.
        let newest = all.iter().filter_map(|(_, p)| p.created).max();
        // So does a deletion that was requested after it, unless the stop was still under way.
        let is_over = |stop: BootTime, request: BootTime| {
            let stops = |sent: &SentSignal| {
                sent.at >= stop && sent.at <= request && sent.origin == Origin::Outside
            };
            let is_stopping = |p: &ContainerProcesses| {
                p.ended().is_none_or(|ended| ended > request) && p.sent().any(stops)
            };
            request > stop && !all.iter().any(|(_, p)| is_stopping(p))
        };
        let earlier = self.stores.traffic.get(sandbox).and_then(|counted| counted.stopped);
        let is_another = |stop| newest > Some(stop) || request.is_some_and(|at| is_over(stop, at));
        // By the kernel's records: the first signal may have come before the runtime's lists.
        let since = newest.max(Some(at - IDLE));
        let is_of_this = |p: &ContainerProcesses| p.ended().is_none_or(|at| Some(at) > request);
        let stops = all.iter().filter(|(_, p)| is_of_this(p)).flat_map(|(cgroup, p)| {
            p.sent().filter(|sent| Some(sent.at) >= since && self.is_stop(*cgroup, sent))
        });
        (earlier.is_some_and(is_another), stops.map(|sent| sent.at).min())
    }

    /// A sandbox's own container has its id.
    fn is_sandbox(&self, id: &ContainerId) -> bool {
        self.stores.cri.sandboxes.entries().contains_key(id.as_str())
    }

    /// After a record that may be the beginning or the end of a stop.
    pub(super) fn traffic_turns(
        &mut self,
        at: BootTime,
        cgroup: CgroupId,
        is_empty: bool,
        out: &mut Outputs,
    ) {
        let (cri, cgroups) = (&self.stores.cri, &self.stores.cgroups);
        let owner = cgroups.owner(cgroup);
        let ends = is_empty && owner == cgroup;
        let Some(processes) = self.stores.processes.get(&owner) else { return };
        let Some(id) = cgroups.container(owner) else { return };
        // The sandbox's own process is killed when its containers have ended.
        let is_stop =
            |sent: &SentSignal| sent.at == at && self.is_stop(owner, sent) && !self.is_sandbox(id);
        let stopped = !ends && processes.sent().next_back().is_some_and(is_stop);
        if !stopped && !ends {
            return;
        }
        // A container may stop before a list shows it.
        let Some(pod) = cri.pod_of(id).or(cgroups.pod(owner)).cloned() else { return };
        let sandbox = match cri.container(id) {
            Some(listed) => listed.info.sandbox.clone(),
            None if self.is_sandbox(id) => SandboxId::new(id.as_str()),
            None => match self.running_sandbox(&pod) {
                Some(running) => running.info.id.clone(),
                None => return,
            },
        };
        let read = if stopped {
            self.count_pod(at, &pod, out);
            self.stores.traffic.read_at_stop(sandbox)
        } else {
            self.stores.traffic.read_at_end(at, sandbox)
        };
        out.requests.extend(read.map(Request::Traffic));
    }

    /// Has the connections read once more of sandboxes that have stopped.
    pub(super) fn read_stopped_sandboxes(&mut self, at: BootTime, out: &mut Outputs) {
        let cri = &self.stores.cri;
        let has_stopped = |id: &SandboxId| cri.sandbox(id).is_some_and(|one| one.ended.is_some());
        let requests = self.stores.traffic.read_stopped(at, has_stopped);
        out.requests.extend(requests.into_iter().map(Request::Traffic));
    }

    pub(super) fn counted(&mut self, event: TrafficEvent) {
        self.stores.traffic.has_adapter = true;
        let pod = self.stores.cri.sandbox(&event.sandbox).map(|known| known.info.pod.clone());
        if self.stores.traffic.apply(event) {
            self.dirty.pods.extend(pod);
        }
    }

    /// Stops counting in these sandboxes: their reports are final.
    pub(super) fn forget_traffic<'a>(
        traffic: &mut TrafficState,
        sandboxes: impl IntoIterator<Item = &'a SandboxId>,
        out: &mut Outputs,
    ) {
        let counted = sandboxes.into_iter().filter(|sandbox| traffic.forget(sandbox));
        out.requests
            .extend(counted.map(|one| Request::Traffic(TrafficRequest::Forget(one.clone()))));
    }

    /// Stops counting where nothing terminates any more: a container was restarted, its pod is unknown, or its
    /// sandbox has stopped. What was counted stays while its report may be built again.
    pub(super) fn forget_idle_traffic(&mut self, now: BootTime, out: &mut Outputs) {
        let is_open = |pod: &PodUid| {
            let reported = self.pods.get(pod).and_then(|pod| pod.termination.as_ref());
            self.active.contains(pod) || reported.is_some_and(|reported| !reported.is_final())
        };
        let of = |id: &SandboxId| {
            let sandbox = self.stores.cri.sandbox(id);
            let is_needed = sandbox.is_some_and(|known| is_open(&known.info.pod));
            let traffic = &self.stores.traffic;
            let is_read = traffic.get(id).is_none_or(|counted| !traffic.is_pending(counted));
            let is_over = sandbox.is_none_or(|known| known.ended.is_some()) && is_read;
            (!is_needed || is_over).then(|| (id.clone(), is_needed))
        };
        let idle: Vec<_> = self.stores.traffic.idle(now).filter_map(of).collect();
        for (sandbox, is_needed) in idle {
            let traffic = &mut self.stores.traffic;
            let was_counted =
                if is_needed { traffic.stop(&sandbox) } else { traffic.forget(&sandbox) };
            if was_counted {
                out.requests.push(Request::Traffic(TrafficRequest::Forget(sandbox)));
            }
        }
    }
}
