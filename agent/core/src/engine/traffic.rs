//! When the connections of a pod are counted, and read.

use super::Engine;
use crate::{ids::*, input::*, time::*};
use crate::{
    output::{CountTraffic, Outputs, Request, TrafficRequest},
    process::{ContainerProcesses, Origin, SIGKILL, SIGTERM, SentSignal},
    traffic::TrafficState,
};
use std::iter::once;

/// A kernel record that may change what is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// A signal was sent.
    Signal(CgroupId),
    /// The last process has left.
    Empty(CgroupId),
}

/// Whether a record may change what is counted: few of the records of a busy node do.
pub(super) fn turn(fact: &KernelFact) -> Option<Turn> {
    match fact {
        KernelFact::SignalGenerated(signal) => Some(Turn::Signal(signal.cgroup)),
        KernelFact::CgroupEmpty { cgroup } => Some(Turn::Empty(*cgroup)),
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
                self.count_pod(at, uid, None, out);
            }
        }
    }

    /// Has the connections of a pod counted.
    pub(super) fn count_pod(
        &mut self,
        at: BootTime,
        uid: &PodUid,
        stopped: Option<BootTime>,
        out: &mut Outputs,
    ) {
        let mut running =
            self.stores.cri.sandboxes_of(uid).filter(|sandbox| sandbox.ended.is_none());
        let Some(sandbox) = running.next_back().map(|sandbox| sandbox.info.clone()) else { return };
        let own = ContainerId::new(sandbox.id.as_str());
        let own_cgroup = self.stores.cgroups.cgroup(&own);
        let containers = self.stores.cri.containers_of(&sandbox.id);
        // The sandbox's own first: its process lives as long as the network, and an application's may exit at once.
        let all: Vec<_> = once(own).chain(containers.map(|one| one.info.id.clone())).collect();
        let (cgroups, processes) = (&self.stores.cgroups, &self.stores.processes);
        let of = |id: &ContainerId| {
            let cgroup = cgroups.cgroup(id)?;
            Some((cgroup, processes.get(&cgroup)?))
        };
        // A container that is newer than the stop shows that its pod went on: what was counted is of that stop.
        let went_on = |stop: BootTime| {
            let newer = |(_, p): (CgroupId, &ContainerProcesses)| p.created > Some(stop);
            all.iter().filter_map(of).any(newer)
        };
        let earlier = self.stores.traffic.get(&sandbox.id).and_then(|counted| counted.stopped);
        let object = self.stores.api.get(uid);
        let request = object.and_then(|object| Some(object.requested.as_ref()?.earliest));
        // So does a deletion that was requested after it, unless the stop is still under way.
        let is_over = |stop: BootTime| {
            let stops = |sent: &SentSignal| sent.at >= stop && sent.origin == Origin::Outside;
            let is_stopping = |p: &ContainerProcesses| p.ended().is_none() && p.sent().any(stops);
            request > Some(stop) && !all.iter().filter_map(of).any(|(_, p)| is_stopping(p))
        };
        if earlier.is_some_and(|stop| went_on(stop) || is_over(stop)) {
            self.stores.traffic.forget(&sandbox.id); // a second `Count` starts over
        }
        if !self.stores.traffic.begin(at, &sandbox.id, stopped) {
            return;
        }
        let is_alive = |processes: &ContainerProcesses| processes.ended().is_none();
        let alive: Vec<_> = all.iter().filter_map(of).filter(|(_, p)| is_alive(p)).collect();
        let mut containers = self.stores.cri.containers_of(&sandbox.id);
        let shim = containers.find_map(|one| one.status.runtime_type.as_deref());
        if self.stores.isolation(&sandbox.id, shim).is_some() {
            let fact = TrafficFact::NotVisible { reason: TrafficBlindness::OwnStack };
            self.stores.traffic.apply(TrafficEvent { sandbox: sandbox.id, fact });
            return;
        }
        let process =
            |(_, p): &(CgroupId, &ContainerProcesses)| p.main().map(|main| (main, p.started(main)));
        let request = CountTraffic {
            processes: alive.iter().filter_map(process).collect(),
            // The sandbox's own process opens no connection.
            cgroups: alive
                .iter()
                .map(|(cgroup, _)| *cgroup)
                .filter(|cgroup| Some(*cgroup) != own_cgroup)
                .collect(),
            sandbox: sandbox.id,
        };
        out.requests.push(Request::Traffic(TrafficRequest::Count(request)));
    }

    /// After a record that may be the beginning or the end of a stop.
    pub(super) fn traffic_turns(&mut self, at: BootTime, turn: Turn, out: &mut Outputs) {
        let (Turn::Signal(cgroup) | Turn::Empty(cgroup)) = turn;
        let owner = self.stores.cgroups.owner(cgroup);
        let ends = turn == Turn::Empty(owner);
        let Some(processes) = self.stores.processes.get(&owner) else { return };
        let stop_signal = self
            .stores
            .cgroups
            .container(owner)
            .and_then(|id| self.stores.cri.container(id)?.status.stop_signal);
        let is_stop = |sent: &SentSignal| {
            let stops =
                [Some(SIGTERM), Some(SIGKILL), stop_signal].contains(&Some(sent.signal.signal));
            sent.at == at && sent.origin == Origin::Outside && stops
        };
        let stopped = !ends && processes.sent().next_back().is_some_and(is_stop);
        if !stopped && !ends {
            return;
        }
        let Some(id) = self.stores.cgroups.container(owner) else { return };
        // A sandbox's own container has its id.
        let known = self.stores.cri.container(id).map(|known| known.info.sandbox.clone());
        let sandbox = known.unwrap_or_else(|| SandboxId::new(id.as_str()));
        let Some(pod) = self.stores.cri.sandbox(&sandbox).map(|known| known.info.pod.clone())
        else {
            return;
        };
        let read = if stopped {
            self.count_pod(at, &pod, Some(at), out);
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

    /// Applies counts.
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
            let reported = self.pods.get(pod).and_then(|pod| pod.reported_termination.as_ref());
            self.active.contains(pod) || reported.is_some_and(|reported| !reported.report.is_final)
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
