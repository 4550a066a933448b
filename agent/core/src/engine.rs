//! step(input) → outputs: the join of the three sources.
//!
//! Facts are stored by source ([`Processes`], [`Runtime`], [`Objects`]) and joined only when an
//! account is due, so that the order in which the sources arrive does not matter. An account is
//! due when all that it needs is known and the settle window has passed; what comes later
//! updates the report, until that is final.

mod finished;
mod forget;
mod life;
mod unlisted;

use super::{
    account::Sources,
    dirty::Dirty,
    holdouts::Holdouts,
    identity::Identity,
    ids::{CgroupId, ContainerId, PodUid},
    input::{
        ContainerKind, CriEvent, HostEvent, Input, KernelEvent, KernelFact, Loss, LossKind,
        ProcReport, Received, TaskState,
    },
    keepers::Keepers,
    leak::Leak,
    leaks::{LeakGauges, Leaks},
    object::Objects,
    observation::Holdout,
    output::{CriRequest, Outputs, Report, Request},
    process::Processes,
    runtime::Runtime,
    table::Table,
    time::{Anchor, BootTime},
};
use life::{Lives, Pod};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, hash_map::Entry},
    time::Duration,
};

/// Containers that the programs can watch, and the engine with them.
const MAX_CONTAINERS: usize = 16_384;
/// The kernel is asked for a container's cgroup only after this: its mkdir may be on its way.
const CGROUP_DUE: Duration = Duration::from_secs(2);
/// Losses are counted a moment after they happened.
const LOSS_LAG: Duration = Duration::from_secs(2);
/// Signals that the programs report for every container (HUP, INT, QUIT, KILL, TERM).
const COMMON_STOP_SIGNALS: [u8; 5] = [1, 2, 3, 9, 15];

/// The engine's settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Boot clock ↔ wall clock.
    pub anchor: Anchor,
    /// How late a fact may come and still count: design invariant 5.
    pub settle: Duration,
    /// How long something must look like a leak, with all sources in sync, before it is one.
    pub leak_threshold: Duration,
    /// The apiserver is one of the sources.
    pub uses_api: bool,
}

impl Settings {
    /// The defaults: a settle window of 5 s, leaks after 5 min, with an apiserver.
    pub fn new(anchor: Anchor) -> Self {
        Self {
            anchor,
            settle: Duration::from_secs(5),
            leak_threshold: Duration::from_secs(300),
            uses_api: true,
        }
    }
}

/// Sizes and losses, for the metrics.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gauges {
    /// Cgroups known.
    pub cgroups: usize,
    /// Containers whose processes are followed.
    pub containers: usize,
    /// Sandboxes known to the runtime.
    pub sandboxes: usize,
    /// Pods known to the apiserver.
    pub objects: usize,
    /// Pods that are terminating, that have reported containers, or whose report is kept to be updated.
    pub pods: usize,
    /// Pods whose end is under way.
    pub terminating: usize,
    /// Containers that SIGKILL does not end, by the state of what is left of them.
    pub unkillable: BTreeMap<TaskState, usize>,
    /// Losses, all kinds that there were, since the start.
    pub losses: BTreeMap<LossKind, u64>,
    /// What was left behind.
    pub leaks: LeakGauges,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    identity: Identity,
    processes: Table<CgroupId, Processes>,
    runtime: Runtime,
    objects: Objects,
    pods: Table<PodUid, Pod>,
    static_lives: Lives,
    /// Pods with something under way: looked at on every tick.
    active: BTreeSet<PodUid>,
    /// What the next tick evaluates again.
    dirty: Dirty,
    /// Containers whose stop signal or cgroup was requested already.
    asked: BTreeSet<ContainerId>,
    holdouts: Holdouts,
    keepers: Keepers,
    leaks: Leaks,
    losses: BTreeMap<LossKind, u64>,
    /// Cgroups that were removed before anybody was seen in them, the oldest first.
    barren: VecDeque<CgroupId>,
    /// Cgroups of no known container in which something happened, the oldest first.
    strangers: VecDeque<CgroupId>,
    ticks: u64,
}

impl Engine {
    /// An engine that knows nothing.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            identity: Identity::default(),
            processes: Table::default(),
            runtime: Runtime::default(),
            objects: Objects::new(settings.anchor, settings.uses_api),
            pods: Table::default(),
            static_lives: Lives::default(),
            active: BTreeSet::new(),
            dirty: Dirty::default(),
            asked: BTreeSet::new(),
            holdouts: Holdouts::default(),
            keepers: Keepers::default(),
            leaks: Leaks::new(settings.leak_threshold),
            losses: BTreeMap::new(),
            barren: VecDeque::new(),
            strangers: VecDeque::new(),
            ticks: 0,
        }
    }

    /// Applies one input and returns what follows from it.
    pub fn step(&mut self, received: Received) -> Outputs {
        let mut out = Outputs::default();
        let of_the_sources =
            matches!(received.input, Input::Cri(_) | Input::Api(_) | Input::Host(_));
        match received.input {
            Input::Kernel(event) => self.kernel(event, &mut out),
            Input::Cri(event) => {
                if let CriEvent::ContainerCgroup { container, cgroup } = &event {
                    self.identity.linked(container.clone(), *cgroup);
                    // Its stop signal, if it has one of its own, could not be said without it.
                    if self.identity.cgroup(container).is_some() && self.asked.remove(container) {
                        self.dirty.containers.insert(container.clone());
                    }
                    self.dirty.pods.extend(self.runtime.pod_of(container).cloned());
                }
                self.leaks.learn_cri(received.at, &event);
                self.runtime.apply(received.at, event, &mut self.dirty);
            }
            Input::Api(event) => {
                self.keepers.learn_node(&event);
                self.leaks.learn_api(&event);
                let mut dirty = Dirty::default();
                self.objects.apply(received.at, event, &mut dirty);
                self.find_containers(&mut dirty, &mut out);
                self.dirty.append(dirty);
            }
            Input::Proc(report) => self.looked(report, &mut out),
            Input::Host(event) => {
                self.dirty.all_reports |= matches!(event, HostEvent::Daemon { .. });
                self.keepers.learn_host(received.at, &event);
                self.leaks.learn_host(event);
            }
            Input::Recalled { leaks } => self.leaks.recall(leaks),
            Input::Lost(loss) => self.lost(received.at, &loss),
            Input::Clock(anchor) => {
                self.settings.anchor = anchor;
                self.dirty.all_reports = true;
                self.objects.set_anchor(anchor);
            }
            Input::Tick => self.tick(received.at, &mut out),
        }
        if of_the_sources {
            let (leaks, sources) = self.judge_and_sources();
            leaks.turn(received.at, &sources);
        }
        out
    }

    /// The apiserver has reported these pods: their containers may have a stop signal of their own.
    fn find_containers(&self, dirty: &mut Dirty, out: &mut Outputs) {
        // Deleted before the runtime was ever asked about it: it exists for seconds only.
        let unknown = |uid: &PodUid| {
            let requested = self.objects.get(uid).is_some_and(|o| o.requested.is_some());
            requested && !self.runtime.has_sandbox(uid)
        };
        if dirty.pods.iter().any(unknown) {
            out.request(Request::Cri(CriRequest::PollNow(None)));
        }
        for sandbox in dirty.pods.iter().flat_map(|uid| self.runtime.sandboxes_of(uid)) {
            let containers = self.runtime.containers_of(&sandbox.info.id);
            dirty.containers.extend(containers.map(|c| c.info.id.clone()));
        }
    }

    /// What has looked like a leak for so long and is not certain (yet): for a person who watches,
    /// never for an alarm.
    pub fn suspected_leaks(&self, now: BootTime, at_least: Duration) -> Vec<Leak> {
        let Self { leaks, identity, processes, runtime, objects, keepers, settings, .. } = self;
        let anchor = settings.anchor;
        let sources = Sources { identity, processes, runtime, objects, keepers, anchor };
        leaks.suspected(now, sources, at_least)
    }

    /// The judge of leaks, and what it judges by.
    fn judge_and_sources(&mut self) -> (&mut Leaks, Sources<'_>) {
        let Self { leaks, identity, processes, runtime, objects, keepers, settings, .. } = self;
        let anchor = settings.anchor;
        (leaks, Sources { identity, processes, runtime, objects, keepers, anchor })
    }

    /// Sizes and losses.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            cgroups: self.identity.len(),
            containers: self.processes.len(),
            sandboxes: self.runtime.len().0,
            objects: self.objects.len(),
            pods: self.pods.len(),
            terminating: self.pods.values().filter(|p| p.terminating).count(),
            unkillable: self.holdouts.unkillable(),
            losses: self.losses.clone(),
            leaks: self.leaks.gauges(),
        }
    }

    fn count_loss(&mut self, kind: LossKind, count: u64) {
        if count > 0 {
            *self.losses.entry(kind).or_default() += count;
        }
    }

    /// A loss may have touched everything that lives now, or did when it began.
    fn lost(&mut self, at: BootTime, loss: &Loss) {
        self.dirty.all_reports = true;
        self.count_loss(loss.kind, loss.count);
        // The kernel names whose it is, beforehand; it does not in recordings of agents that did
        // not say since when, either.
        if loss.kind == LossKind::BudgetSpent && loss.since.is_some() {
            return;
        }
        let since = loss.since.unwrap_or(at);
        let recent = |p: &Processes| !p.is_over() || p.last_heard + LOSS_LAG >= since;
        for processes in self.processes.values_mut().filter(|p| recent(p)) {
            processes.lose(at, loss.kind);
        }
    }

    fn kernel(&mut self, event: KernelEvent, out: &mut Outputs) {
        let KernelEvent { time, fact } = event;
        let cgroup = match &fact {
            KernelFact::CgroupCreated { cgroup, parent, name, .. } => {
                let before = self.identity.container(*cgroup).cloned();
                self.identity.created(*cgroup, *parent, name);
                let now = self.identity.container(*cgroup);
                if before.is_some() && now.is_some() && before.as_ref() != now {
                    // What was seen in the cgroup that had this id says nothing of this one.
                    self.processes.remove(cgroup);
                    self.dirty.all_reports = true;
                }
                self.note_evicted();
                *cgroup
            }
            KernelFact::CgroupRemoved { cgroup }
            | KernelFact::CgroupEmpty { cgroup }
            | KernelFact::CgroupFrozen { cgroup, .. }
            | KernelFact::SignalDelivered { cgroup, .. }
            | KernelFact::Exec { cgroup, .. }
            | KernelFact::Exit { cgroup, .. }
            | KernelFact::Running { cgroup, .. }
            | KernelFact::BudgetSpent { cgroup, .. } => *cgroup,
            KernelFact::SignalGenerated(signal) => signal.cgroup,
            KernelFact::NamespaceKilled(killed) => killed.cgroup,
            KernelFact::OomVictim { cgroup: Some(cgroup), .. } => *cgroup,
            KernelFact::OomVictim { cgroup: None, pid } => {
                // 5.10 names the victim by pid only: the SIGKILL just before it tells whose.
                let pid = *pid;
                self.dirty.all_reports = true;
                if let Some(owner) = self.owner_of_victim(pid)
                    && let Some(processes) = self.processes.get_mut(&owner)
                {
                    processes.learn(time, fact, |_| false);
                }
                return;
            }
        };
        self.find_main(cgroup, &fact);
        let owner = self.identity.owner(cgroup);
        let own = owner == cgroup;
        if self.identity.is_above_containers(cgroup) {
            self.above_containers(time, cgroup, &fact, out);
            return;
        }
        let about_cgroup = matches!(
            fact,
            KernelFact::CgroupCreated { .. }
                | KernelFact::CgroupRemoved { .. }
                | KernelFact::CgroupEmpty { .. }
                | KernelFact::CgroupFrozen { .. }
        );
        if about_cgroup && !own {
            // A cgroup that the container made for itself says nothing of the container's end.
            if matches!(fact, KernelFact::CgroupRemoved { .. }) {
                self.identity.remove(cgroup);
            }
            return;
        }
        let ends =
            matches!(fact, KernelFact::CgroupRemoved { .. } | KernelFact::CgroupEmpty { .. });
        if matches!(fact, KernelFact::SignalGenerated(_) | KernelFact::Exit { .. }) {
            self.holdouts.note(owner);
        }
        let room = self.processes.len() < MAX_CONTAINERS;
        let identity = &self.identity;
        let mut is_new = false;
        let processes = match self.processes.entry(owner) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) if room => {
                is_new = true;
                place.insert(Processes::default())
            }
            Entry::Vacant(_) => return self.count_loss(LossKind::EngineFull, 1),
        };
        let removed = matches!(fact, KernelFact::CgroupRemoved { .. });
        let process = fact.process();
        processes.learn(time, fact, |sender| identity.owner(sender) == owner);
        if !own && process.is_some() && process == processes.main() {
            self.identity.main_is_in(owner, cgroup);
        }
        let identity = &self.identity;
        let barren = removed && processes.saw_nobody();
        let container = identity.container(owner);
        let of_sandbox = |id: &ContainerId| {
            // A sandbox's own container bears its id.
            Some(&self.runtime.sandbox_called(id.as_str())?.info.pod)
        };
        let pod = container
            .and_then(|id| self.runtime.pod_of(id))
            .or(identity.pod(owner))
            .or_else(|| container.and_then(of_sandbox));
        if let Some(pod) = pod {
            self.dirty.pod(pod);
        }
        if ends {
            let known = container.and_then(|id| self.runtime.container(id));
            let sandbox = known.map(|known| known.info.sandbox.clone());
            out.request(Request::Cri(CriRequest::PollNow(sandbox)));
        }
        let is_stranger = is_new && container.is_none();
        if barren {
            self.note_barren(owner);
        }
        if is_stranger {
            self.note_stranger(owner);
        }
    }

    /// A container has more cgroups than are kept of it: what happens in those that were evicted is
    /// lost from now on.
    fn note_evicted(&mut self) {
        for owner in self.identity.take_evicted() {
            if let Some(processes) = self.processes.get_mut(&owner) {
                processes.lose(BootTime(u64::MAX), LossKind::EngineFull);
            }
        }
    }

    /// The cgroup may be one that was evicted: the main process of its container is known by its
    /// number.
    fn find_main(&mut self, cgroup: CgroupId, fact: &KernelFact) {
        // Nearly always nothing was.
        if self.identity.incomplete().is_empty() || self.identity.has_owner(cgroup) {
            return;
        }
        let Some(process) = fact.process() else { return };
        let is_main = |owner: &CgroupId| {
            let processes = self.processes.get(owner);
            processes.is_some_and(|p| p.main() == Some(process) && p.exit().is_none())
        };
        let owner = self.identity.incomplete().iter().copied().find(is_main);
        if let Some(owner) = owner {
            self.identity.main_is_in(owner, cgroup);
            self.note_evicted();
        }
    }

    fn above_containers(
        &mut self,
        time: BootTime,
        cgroup: CgroupId,
        fact: &KernelFact,
        out: &mut Outputs,
    ) {
        if let KernelFact::CgroupRemoved { .. } = fact {
            if let Some(uid) = self.identity.pod_level(cgroup).cloned() {
                if self.runtime.has_sandbox(&uid) {
                    let fresh = self.unknown_pod(&uid);
                    self.pods.entry(uid.clone()).or_insert(fresh).cgroup_removed = Some(time);
                }
                self.dirty.pods.insert(uid);
                out.request(Request::Cri(CriRequest::PollNow(None)));
            }
            self.identity.remove(cgroup);
        }
    }

    fn owner_of_victim(&self, pid: u32) -> Option<CgroupId> {
        let killed = |(owner, p): (&CgroupId, &Processes)| Some((p.killed_by_kernel(pid)?, *owner));
        self.processes.iter().filter_map(killed).max().map(|(_, owner)| owner)
    }

    fn tick(&mut self, now: BootTime, out: &mut Outputs) {
        self.ticks += 1;
        let refused =
            self.runtime.take_refused() + self.objects.take_refused() + self.leaks.take_refused();
        let forgotten = self.identity.take_forgotten();
        self.count_loss(LossKind::EngineFull, refused + forgotten);
        if forgotten > 0 {
            // Any of them may be without its cgroup now.
            self.dirty.containers.extend(self.runtime.containers().map(|c| c.info.id.clone()));
        }
        let mut dirty = self.dirty.take();
        self.add_unlisted(now, &dirty.pods);
        let mut active = std::mem::take(&mut self.active);
        active.extend(dirty.pods.iter().cloned());
        active.retain(|uid| self.look(now, uid, dirty.is_report(uid), out));
        self.active = active;
        self.ask(now, std::mem::take(&mut dirty.containers), out);
        let due = self.holdouts.due(now, &self.processes);
        out.requests.extend(due.wanted.into_iter().map(Request::InspectProcesses));
        for (cgroup, detail) in due.over {
            out.report(self.holdout(cgroup, detail, true));
        }
        let (leaks, sources) = self.judge_and_sources();
        leaks.judge(now, sources, dirty, out);
        if self.ticks.is_multiple_of(10) {
            self.forget(now, out);
        }
    }

    /// Somebody looked into /proc. Of a container that is forgotten by now it is of no use.
    fn looked(&mut self, report: ProcReport, out: &mut Outputs) {
        let cgroup = report.cgroup;
        let Some(processes) = self.processes.get_mut(&cgroup) else { return };
        processes.lingering.learn(report);
        if let Some(detail) = self.holdouts.looked(cgroup, processes) {
            out.report(self.holdout(cgroup, detail, false));
        }
        let pod = self.identity.container(cgroup).and_then(|c| self.runtime.pod_of(c));
        self.dirty.pods.extend(pod.cloned());
    }

    fn holdout(&self, cgroup: CgroupId, detail: String, over: bool) -> Report {
        let container = self.identity.container(cgroup).cloned();
        let known = container.as_ref().and_then(|id| self.runtime.container(id));
        let name = known.map(|known| known.info.name.clone()).unwrap_or_default();
        let sandbox = known.and_then(|known| self.runtime.sandbox(&known.info.sandbox));
        let pod = sandbox.map(|s| s.info.pod_ref());
        let object = pod.as_ref().and_then(|pod| self.objects.get(&pod.uid));
        let spec = object.and_then(|object| object.pod.containers.get(&name));
        let kind = spec.map_or(ContainerKind::Main, |spec| spec.kind);
        Report::Unkillable(Box::new(Holdout { container, name, kind, pod, detail, over }))
    }

    /// What the adapters must find out, of the containers of which something is new.
    fn ask(&mut self, now: BootTime, containers: BTreeSet<ContainerId>, out: &mut Outputs) {
        for id in containers {
            let Some(container) = self.runtime.container(&id) else { continue };
            if container.exited.is_some() || self.asked.contains(&id) {
                continue;
            }
            let Some(cgroup) = self.identity.cgroup(&id) else {
                if now >= container.first_seen + CGROUP_DUE {
                    self.asked.insert(id.clone());
                    out.request(Request::Cri(CriRequest::FindCgroup(id)));
                } else {
                    self.dirty.containers.insert(id);
                }
                continue;
            };
            let by_spec = self
                .runtime
                .pod_of(&id)
                .and_then(|uid| self.objects.get(uid))
                .and_then(|o| o.pod.containers.get(&container.info.name))
                .and_then(|c| c.stop_signal);
            if let Some(signal) = container.stop_signal.or(by_spec) {
                self.asked.insert(id);
                if !COMMON_STOP_SIGNALS.contains(&signal) {
                    out.request(Request::TraceSignal { cgroup, signal });
                }
            }
        }
    }
}
