//! `step(input) → outputs`: the join of the kernel, the container runtime and the apiserver.
//!
//! Each source has its own store ([`ContainerProcesses`], [`CriState`](crate::cri::CriState),
//! [`ApiState`](crate::api::ApiState)). The stores are joined only when a report is due, so the order in which
//! the sources arrive does not matter. A report is due when all its evidence has arrived and the settle window
//! has passed. Later evidence updates the report until the report is final.

mod audit;
mod eviction;
mod lifecycle;
mod settings;
mod traffic;
mod unlisted;

pub use settings::{Gauges, Settings};

use super::{
    dirty::Dirty,
    leak::Leak,
    leaks::Leaks,
    output::{CriRequest, Outputs, Report, Request, UnkillableContainer},
    pod_view::Stores,
    process::ContainerProcesses,
    table::Table,
    unkillable::UnkillableWatch,
};
use crate::{ids::*, input::*, report::*};
use audit::Audits;
use lifecycle::{Incarnations, Pod};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, hash_map::Entry},
    time::Duration,
};

/// Bound on containers, here and in the maps of the kernel programs.
const MAX_CONTAINERS: usize = 16_384;
/// Delay before the engine requests a container's cgroup: the kernel's mkdir record may still be on its way.
const CGROUP_DUE: Duration = Duration::from_secs(2);
/// The kernel side counts losses up to this long after they happened.
const LOSS_LAG: Duration = Duration::from_secs(2);
/// Leak candidates whose Events are listed after one verification, unless they were listed this long ago.
const MAX_LOOKUPS: usize = 8;
const LISTED_LATELY: Duration = Duration::from_secs(60);
/// Signals that the kernel programs report for every container: HUP, INT, QUIT, KILL, TERM.
const COMMON_STOP_SIGNALS: [u8; 5] = [1, 2, 3, 9, 15];

/// The engine: all stores, and what is reported of each pod.
#[derive(Debug, Default)]
pub struct Engine {
    /// How late a record may come and still count.
    settle: Duration,
    stores: Stores,
    pods: Table<PodUid, Pod>,
    incarnations: Incarnations,
    /// Pods with a termination in progress: evaluated on every tick.
    active: BTreeSet<PodUid>,
    /// Changes since the last tick.
    dirty: Dirty,
    /// Containers whose stop signal or cgroup was requested already.
    requested: BTreeSet<ContainerId>,
    /// Pods of which no list had shown all containers that the status names.
    unlisted: BTreeSet<PodUid>,
    unkillable_watch: UnkillableWatch,
    audits: Audits,
    leaks: Leaks,
    losses: BTreeMap<LossKind, u64>,
    /// Removed cgroups in which no process was ever seen, oldest first.
    unpopulated: VecDeque<CgroupId>,
    /// Cgroups of no known container in which something happened, oldest first.
    unowned: VecDeque<CgroupId>,
    ticks: u64,
}

impl Engine {
    pub fn new(settings: Settings) -> Self {
        let Settings { anchor, settle, leak_threshold, uses_api, audit_interval, audit_age } =
            settings;
        let mut stores = Stores { anchor, ..Stores::default() };
        stores.api.has_apiserver = uses_api;
        let audits = Audits::new(audit_interval, audit_age);
        Self { settle, stores, audits, leaks: Leaks::new(leak_threshold), ..Self::default() }
    }

    /// Applies one input and returns what follows from it.
    pub fn step(&mut self, received: Received) -> Outputs {
        let mut out = Outputs::default();
        let of_the_sources =
            matches!(received.input, Input::Cri(_) | Input::Api(_) | Input::Host(_));
        match received.input {
            Input::Kernel(event) => {
                let (time, turn) = (event.time, traffic::turn(&event.fact));
                self.kernel(event, &mut out);
                if let Some((cgroup, is_empty)) = turn {
                    self.traffic_turns(time, cgroup, is_empty, &mut out);
                }
            }
            Input::Cri(event) => self.answered(received.at, event, &mut out),
            Input::Api(event) => self.watched(received.at, event, &mut out),
            Input::Proc(report) => self.inspected(report, &mut out),
            Input::StopState(report) => self.stop_state(received.at, report, &mut out),
            Input::Traffic(event) => self.counted(event),
            Input::Host(event) => {
                self.dirty.all_reports |= matches!(event, HostEvent::Daemon { .. });
                self.stores.node.apply_host(received.at, &event);
                self.leaks.apply_host(event);
            }
            Input::Events(event) => {
                if let LookupEvent::Events { pod, .. } = &event {
                    self.dirty.pod(pod);
                }
                self.stores.events.apply(event);
            }
            Input::Recalled { leaks } => self.leaks.restore(leaks),
            Input::Lost(loss) => self.lost(received.at, &loss),
            Input::Clock(anchor) => {
                self.stores.anchor = anchor;
                self.dirty.all_reports = true;
            }
            Input::Tick => self.tick(received.at, &mut out),
        }
        out.reports.iter().for_each(|report| self.audits.learn(report));
        if of_the_sources {
            self.leaks.advance(received.at, &self.stores);
        }
        out
    }

    /// Applies an answer of the runtime.
    fn answered(&mut self, at: BootTime, event: CriEvent, out: &mut Outputs) {
        // The root holds the whole machine, never one container.
        if let CriEvent::ContainerCgroup { container, cgroup, path } = &event
            && path != "/"
        {
            out.requests.push(Request::WatchCgroup { cgroup: *cgroup, path: path.clone() });
            self.stores.cgroups.set_own_cgroup(container.clone(), *cgroup);
            // The custom stop signal of this container could not be requested before its cgroup was known.
            if self.requested.remove(container) {
                self.dirty.containers.insert(container.clone());
            }
            self.dirty.pods.extend(self.stores.cri.pod_of(container).cloned());
        }
        self.leaks.apply_cri(at, &event, &self.stores.cri);
        let mut dirty = Dirty::default();
        self.stores.cri.apply(at, event, &mut dirty);
        self.count_deleted(at, dirty.pods.iter(), out);
        self.dirty.append(dirty);
        self.read_stopped_sandboxes(at, out);
    }

    /// Applies an event of the apiserver.
    fn watched(&mut self, at: BootTime, event: ApiEvent, out: &mut Outputs) {
        self.stores.node.apply_node(&event);
        self.leaks.apply_api(&event);
        let mut dirty = Dirty::default();
        self.stores.api.apply(at, event, self.stores.anchor, &mut dirty);
        self.find_containers(&mut dirty, out);
        self.count_deleted(at, dirty.pods.iter(), out);
        self.dirty.append(dirty);
    }

    /// Asks for the Events of leak candidates.
    fn list_events_of(&self, now: BootTime, mut pods: Vec<PodRef>, out: &mut Outputs) {
        let events = &self.stores.events;
        if events.is_on {
            let is_new = |pod: &PodRef| events.lookup(&pod.uid, now - LISTED_LATELY).is_none();
            pods.retain(|pod| !pod.name.is_empty() && is_new(pod));
            out.requests.extend(pods.into_iter().take(MAX_LOOKUPS).map(Request::ListEvents));
        }
    }

    /// Marks the containers of these pods, which the apiserver has reported: the spec may set a custom stop
    /// signal.
    fn find_containers(&self, dirty: &mut Dirty, out: &mut Outputs) {
        // A pod deleted before the runtime was ever requested about its sandbox exists for seconds only.
        let unknown = |uid: &PodUid| {
            let requested = self.stores.api.get(uid).is_some_and(|o| o.requested.is_some());
            requested && !self.stores.cri.has_sandbox(uid)
        };
        if dirty.pods.iter().any(unknown) {
            out.requests.push(Request::Cri(CriRequest::PollNow(None)));
        }
        for sandbox in dirty.pods.iter().flat_map(|uid| self.stores.cri.sandboxes_of(uid)) {
            let containers = self.stores.cri.containers_of(&sandbox.info.id);
            dirty.containers.extend(containers.map(|c| c.info.id.clone()));
        }
    }

    /// Leak candidates older than `at_least` that are not confirmed: for a person who looks, never for an
    /// alert.
    pub fn leak_candidates(&self, now: BootTime, at_least: Duration) -> Vec<Leak> {
        self.leaks.candidates(now, &self.stores, at_least)
    }

    pub fn gauges(&self) -> Gauges {
        Gauges {
            cgroups: self.stores.cgroups.count(),
            containers: self.stores.processes.len(),
            sandboxes: self.stores.cri.sandboxes.entries().len(),
            objects: self.stores.api.count(),
            pods: self.pods.len(),
            terminating: self.pods.values().filter(|p| p.terminating).count(),
            unkillable: self.unkillable_watch.unkillable(),
            losses: self.losses.clone(),
            leaks: self.leaks.gauges(),
        }
    }

    /// Counts all reports that are not counted yet, as last reported: the agent is shutting down.
    pub fn count_the_rest(&mut self) -> Vec<Report> {
        let mut out = Outputs::default();
        for termination in self.pods.values_mut().filter_map(|pod| pod.termination.as_mut()) {
            termination.finish(&mut out);
        }
        out.reports
    }

    fn count_loss(&mut self, kind: LossKind, count: u64) {
        if count > 0 {
            let losses = self.losses.entry(kind).or_default();
            *losses = losses.saturating_add(count);
        }
    }

    /// A loss may hide records of every container that runs now, or ran when the loss began.
    fn lost(&mut self, at: BootTime, loss: &Loss) {
        self.dirty.all_reports = true;
        self.count_loss(loss.kind, loss.count);
        // The kernel's `BudgetSpent` record names the container. Each reading of the connections' counts has the
        // number of events that were missed until then.
        if matches!(loss.kind, LossKind::BudgetSpent | LossKind::ConnectionSkipped) {
            return;
        }
        let since = loss.since.unwrap_or(at);
        let recent = |p: &ContainerProcesses| !p.is_over() || p.last_event + LOSS_LAG >= since;
        for processes in self.stores.processes.values_mut().filter(|p| recent(p)) {
            processes.record_gap(at, loss.kind);
        }
    }

    /// Adds a new cgroup to the tree.
    fn add_cgroup(&mut self, cgroup: CgroupId, parent: Option<CgroupId>, name: &str) {
        let before = self.stores.cgroups.container(cgroup).cloned();
        self.stores.cgroups.add(cgroup, parent, name);
        let now = self.stores.cgroups.container(cgroup);
        if before.is_some() && now.is_some() && before.as_ref() != now {
            // The kernel reused the cgroup id: the records belong to another container.
            self.stores.processes.remove(&cgroup);
            self.dirty.all_reports = true;
        }
    }

    /// Linux 5.10 names the OOM victim by PID only. The SIGKILL just before it shows the container.
    fn unplaced(&mut self, time: BootTime, fact: KernelFact) {
        let KernelFact::OomVictim { pid, .. } = fact else { return };
        self.dirty.all_reports = true;
        let killed = |p: &ContainerProcesses| p.killed_by_kernel(pid);
        let owner = self.stores.processes.values_mut().max_by_key(|p| killed(p));
        if let Some(processes) = owner.filter(|p| killed(p).is_some()) {
            processes.apply(time, fact, |_| false);
        }
    }

    /// The container's own cgroup, if the record says something of the container.
    fn owner(
        &mut self,
        time: BootTime,
        cgroup: CgroupId,
        fact: &KernelFact,
        out: &mut Outputs,
    ) -> Option<CgroupId> {
        self.find_main(cgroup, fact);
        let removed = matches!(fact, KernelFact::CgroupRemoved { .. });
        let Some(owner) = self.stores.cgroups.container_cgroup(cgroup) else {
            if removed {
                self.pod_cgroup_removed(time, cgroup, out);
            }
            return None;
        };
        let is_of_one = matches!(
            fact,
            KernelFact::CgroupCreated { .. }
                | KernelFact::CgroupFrozen { .. }
                | KernelFact::CgroupEmpty { .. }
                | KernelFact::CgroupRemoved { .. }
        );
        if owner != cgroup && is_of_one {
            // A cgroup below the container's own does not show the container's end.
            if removed {
                self.stores.cgroups.remove(cgroup);
            }
            return None;
        }
        Some(owner)
    }

    fn kernel(&mut self, event: KernelEvent, out: &mut Outputs) {
        let KernelEvent { time, fact } = event;
        if let KernelFact::CgroupCreated { cgroup, parent, name, .. } = &fact {
            self.add_cgroup(*cgroup, *parent, name);
        }
        let Some(cgroup) = fact.cgroup() else { return self.unplaced(time, fact) };
        let removed = matches!(fact, KernelFact::CgroupRemoved { .. });
        let Some(owner) = self.owner(time, cgroup, &fact, out) else { return };
        let own = owner == cgroup;
        let ends = removed || matches!(fact, KernelFact::CgroupEmpty { .. });
        if matches!(fact, KernelFact::SignalGenerated(_) | KernelFact::Exit { .. }) {
            self.unkillable_watch.note(owner);
        }
        let room = self.stores.processes.len() < MAX_CONTAINERS;
        let cgroups = &self.stores.cgroups;
        let entry = self.stores.processes.entry(owner);
        let is_new = matches!(entry, Entry::Vacant(_));
        if is_new && !room {
            return self.count_loss(LossKind::EngineFull, 1);
        }
        let processes = entry.or_default();
        let process = fact.process();
        processes.apply(time, fact, |sender| cgroups.owner(sender) == owner);
        if !own && process.is_some() && process == processes.main() {
            self.stores.cgroups.main_is_in(owner, cgroup);
        }
        // Nearly always the pod is marked already: records come by the thousand.
        if processes.marked_in == Some(self.ticks) && !ends {
            return;
        }
        let cgroups = &self.stores.cgroups;
        let container = cgroups.container(owner);
        let pod = container.and_then(|id| self.stores.cri.pod_of(id)).or(cgroups.pod(owner));
        processes.marked_in = pod.map(|_| self.ticks);
        if let Some(pod) = pod {
            self.dirty.pod(pod);
        }
        if ends {
            let known = container.and_then(|id| self.stores.cri.container(id));
            let sandbox = known.map(|known| known.info.sandbox.clone());
            out.requests.push(Request::Cri(CriRequest::PollNow(sandbox)));
        }
        if is_new && container.is_none() {
            self.note_unowned(owner);
        }
        if removed && !self.was_populated(owner) {
            self.note_unpopulated(owner);
        }
    }

    /// Records a gap for each container of which a cgroup was evicted: later events there are not attributed
    /// to it.
    fn note_evicted(&mut self) {
        let evicted = std::mem::take(&mut self.stores.cgroups.evicted);
        for owner in &evicted {
            if let Some(processes) = self.stores.processes.get_mut(owner) {
                processes.record_gap(BootTime(u64::MAX), LossKind::EngineFull);
            }
            self.count_loss(LossKind::EngineFull, 1);
        }
        if !evicted.is_empty() {
            // Any container may have lost its cgroup: look for all of them again.
            self.dirty.containers.extend(self.stores.cri.containers.entries().keys().cloned());
        }
    }

    /// Finds the container of an unknown cgroup by the PID of the container's main process: the cgroup may be
    /// one that was evicted.
    fn find_main(&mut self, cgroup: CgroupId, fact: &KernelFact) {
        // Fast path: nearly always no cgroup was evicted.
        if self.stores.cgroups.incomplete.is_empty() || self.stores.cgroups.has_owner(cgroup) {
            return;
        }
        let Some(process) = fact.process() else { return };
        let is_main = |owner: &CgroupId| {
            let processes = self.stores.processes.get(owner);
            processes.is_some_and(|p| p.main() == Some(process) && p.exit().is_none())
        };
        let owner = self.stores.cgroups.incomplete.iter().copied().find(is_main);
        if let Some(owner) = owner {
            self.stores.cgroups.main_is_in(owner, cgroup);
        }
    }

    /// A cgroup above those of containers was removed.
    fn pod_cgroup_removed(&mut self, time: BootTime, cgroup: CgroupId, out: &mut Outputs) {
        if let Some(uid) = self.stores.cgroups.pod_level(cgroup).cloned() {
            if self.stores.cri.has_sandbox(&uid) {
                let fresh = self.new_pod(&uid);
                self.pods.entry(uid.clone()).or_insert(fresh).cgroup_removed = Some(time);
            }
            self.dirty.pods.insert(uid);
            out.requests.push(Request::Cri(CriRequest::PollNow(None)));
        }
        self.stores.cgroups.remove(cgroup);
    }

    fn tick(&mut self, now: BootTime, out: &mut Outputs) {
        self.ticks += 1;
        let refused = std::mem::take(&mut self.dirty.refused);
        self.count_loss(LossKind::EngineFull, refused);
        self.note_evicted();
        let mut dirty = std::mem::take(&mut self.dirty);
        self.add_unlisted(now, &dirty);
        let mut active = std::mem::take(&mut self.active);
        active.extend(dirty.pods.iter().cloned());
        active.retain(|uid| {
            self.evaluate(now, uid, dirty.all_reports || dirty.pods.contains(uid), out)
        });
        self.active = active;
        self.schedule_audits(now, &dirty.containers, out);
        self.request_missing(now, std::mem::take(&mut dirty.containers), out);
        self.request_audits(now, out);
        for (cgroup, detail) in self.unkillable_watch.due(now, &self.stores.processes, out) {
            out.reports.push(self.unkillable_report(cgroup, detail, true));
        }
        let before = out.requests.len();
        self.leaks.tick(now, &self.stores, dirty.pods, out);
        let candidates = out.requests[before..].iter().find_map(|request| match request {
            Request::VerifyPods(pods) => Some(pods.clone()),
            _ => None,
        });
        self.list_events_of(now, candidates.unwrap_or_default(), out);
        self.forget_idle_traffic(now, out);
        if self.ticks.is_multiple_of(10) {
            self.evict(now, out);
        }
    }

    /// Applies a look into /proc. The container may have been evicted since the request.
    fn inspected(&mut self, report: ProcReport, out: &mut Outputs) {
        let cgroup = report.cgroup;
        let Some(processes) = self.stores.processes.get_mut(&cgroup) else { return };
        processes.inspections.apply(report);
        if let Some(detail) = self.unkillable_watch.inspected(cgroup, processes) {
            out.reports.push(self.unkillable_report(cgroup, detail, false));
        }
        let pod = self.stores.cgroups.container(cgroup).and_then(|c| self.stores.cri.pod_of(c));
        self.dirty.pods.extend(pod.cloned());
    }

    fn unkillable_report(&self, cgroup: CgroupId, detail: String, over: bool) -> Report {
        let container = self.stores.cgroups.container(cgroup).cloned();
        let known = container.as_ref().and_then(|id| self.stores.cri.container(id));
        let name = known.map(|known| known.info.name.clone()).unwrap_or_default();
        let sandbox = known.and_then(|known| self.stores.cri.sandbox(&known.info.sandbox));
        let pod = sandbox.map(|s| s.info.pod_ref());
        let spec = pod.as_ref().and_then(|pod| self.stores.spec(&pod.uid, &name));
        let kind = spec.map_or(ContainerKind::Main, |spec| spec.kind);
        let report = UnkillableContainer { container, name, kind, pod, detail, over };
        Report::Unkillable(Box::new(report))
    }

    /// Requests the cgroup and the stop signal of changed containers, where they are missing.
    fn request_missing(
        &mut self,
        now: BootTime,
        containers: BTreeSet<ContainerId>,
        out: &mut Outputs,
    ) {
        for id in containers {
            let Some(container) = self.stores.cri.container(&id) else { continue };
            if container.ended.is_some() || self.requested.contains(&id) {
                continue;
            }
            let Some(cgroup) = self.stores.cgroups.cgroup(&id) else {
                if now >= container.first_seen + CGROUP_DUE {
                    self.requested.insert(id.clone());
                    out.requests.push(Request::Cri(CriRequest::FindCgroup(id)));
                } else {
                    self.dirty.containers.insert(id);
                }
                continue;
            };
            let pod = self.stores.cri.pod_of(&id);
            let spec = pod.and_then(|uid| self.stores.spec(uid, &container.info.name));
            let by_spec = spec.and_then(|spec| spec.stop_signal);
            if let Some(signal) = container.status.stop_signal(by_spec) {
                self.requested.insert(id);
                if !COMMON_STOP_SIGNALS.contains(&signal) {
                    out.requests.push(Request::TraceSignal { cgroup, signal });
                }
            }
        }
    }
}
