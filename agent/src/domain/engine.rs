//! step(input) → observations: the join of the three sources.
//!
//! Facts are stored by source ([`Processes`], [`Runtime`], [`Objects`]) and joined only when an
//! account is due, so that the order in which the sources arrive does not matter. An account is
//! due when all that it needs is known and the settle window has passed; what comes later amends.

use super::{
    account::{Account, Sources},
    holdouts::Holdouts,
    identity::Identity,
    ids::{CgroupId, ContainerId, PodUid, SandboxId},
    input::{
        CriEvent, Input, KernelEvent, KernelFact, Loss, LossKind, ProcReport, Received, TaskState,
    },
    keepers::Keepers,
    leak::Leak,
    leaks::{LeakGauges, Leaks},
    object::Objects,
    observation::{Amendment, Holdout, MilestoneKind, Observation, PodTermination},
    process::Processes,
    runtime::Runtime,
    time::{Anchor, BootTime},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

/// Containers that the programs can watch, and the engine with them.
const MAX_CONTAINERS: usize = 16_384;
/// A pod that takes longer than this to tell what is still missing is accounted for without it.
const PATIENCE: Duration = Duration::from_secs(30);
/// A container's death in a pod that still terminates is told by itself after this.
const ALONE: Duration = Duration::from_secs(60);
/// A container that the runtime never explained is given up.
const UNRESOLVED: Duration = Duration::from_secs(60);
/// A finished pod whose sandbox stays (a completed Job) keeps its account open for this long.
const TAIL: Duration = Duration::from_secs(600);
/// A pod that the runtime has forgotten, and that is not accounted for, keeps its evidence so long.
const STUCK: Duration = Duration::from_secs(24 * 3600);
/// The kernel is asked for a container's cgroup only after this: its mkdir may be on its way.
const CGROUP_DUE: Duration = Duration::from_secs(2);
/// Losses are counted a moment after they happened.
const LOSS_LAG: Duration = Duration::from_secs(2);
/// What will not stop is looked at often for this long after its deadline or its last process.
const HURRY: Duration = Duration::from_secs(300);
/// Static pods whose number of lives is remembered.
const MAX_STATIC_PODS: usize = 1_024;
/// Signals that the programs report for every container (HUP, INT, QUIT, KILL, TERM).
const COMMON_STOP_SIGNALS: [u8; 5] = [1, 2, 3, 9, 15];

/// The engine's settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Boot clock ↔ wall clock.
    pub anchor: Anchor,
    /// How late a fact may come and still count: design invariant 9.
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
    /// Pods whose end is under way.
    pub terminating: usize,
    /// Containers that SIGKILL does not end, by the state of what is left of them.
    pub unkillable: BTreeMap<TaskState, usize>,
    /// Losses, all kinds that there were, since the start.
    pub losses: BTreeMap<LossKind, u64>,
    /// What was left behind.
    pub leaks: LeakGauges,
}

/// One pod, over all its lives.
#[derive(Debug, Default)]
struct Pod {
    life: u32,
    /// Sandboxes of lives that are finished.
    past: BTreeSet<SandboxId>,
    /// Containers whose death has been told.
    told: BTreeSet<ContainerId>,
    /// Its end is under way.
    terminating: bool,
    /// Sandboxes that the adapter was asked to look at often.
    hurried: BTreeSet<SandboxId>,
    cgroup_removed: Option<BootTime>,
    finished: Option<Finished>,
}

impl Pod {
    /// Nothing is known that another look would not show.
    fn is_blank(&self) -> bool {
        self.past.is_empty()
            && self.told.is_empty()
            && self.hurried.is_empty()
            && self.cgroup_removed.is_none()
            && self.finished.is_none()
    }

    /// Has the adapter look often at these sandboxes, and no longer at others of this pod.
    fn hurry(&mut self, wanted: BTreeSet<SandboxId>, said: &mut Vec<Observation>) {
        let relaxed: Vec<_> = self.hurried.difference(&wanted).cloned().collect();
        let hurried: Vec<_> = wanted.difference(&self.hurried).cloned().collect();
        if !hurried.is_empty() {
            said.push(Observation::PodTerminating { sandboxes: hurried });
        }
        if !relaxed.is_empty() {
            said.push(Observation::PodSettled { sandboxes: relaxed });
        }
        self.hurried = wanted;
    }
}

#[derive(Debug)]
struct Finished {
    at: BootTime,
    sandboxes: BTreeSet<SandboxId>,
    members: BTreeSet<ContainerId>,
    account: PodTermination,
}

/// How many lives the static pods of this node have had: theirs is the only UID that comes back.
#[derive(Debug, Default)]
struct Lives {
    of: HashMap<PodUid, u32>,
    order: VecDeque<PodUid>,
}

impl Lives {
    fn had(&self, uid: &PodUid) -> u32 {
        self.of.get(uid).copied().unwrap_or_default()
    }

    fn note(&mut self, uid: &PodUid, life: u32) {
        if self.of.insert(uid.clone(), life).is_none() {
            self.order.push_back(uid.clone());
        }
        if self.of.len() > MAX_STATIC_PODS
            && let Some(oldest) = self.order.pop_front()
        {
            self.of.remove(&oldest);
        }
    }
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    identity: Identity,
    processes: HashMap<CgroupId, Processes>,
    runtime: Runtime,
    objects: Objects,
    pods: HashMap<PodUid, Pod>,
    static_lives: Lives,
    /// Pods with something under way: looked at on every tick.
    active: BTreeSet<PodUid>,
    /// Stop signals and cgroups that were asked for already.
    asked: BTreeSet<ContainerId>,
    holdouts: Holdouts,
    keepers: Keepers,
    leaks: Leaks,
    losses: BTreeMap<LossKind, u64>,
    ticks: u64,
}

impl Engine {
    /// An engine that knows nothing.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            identity: Identity::default(),
            processes: HashMap::new(),
            runtime: Runtime::default(),
            objects: Objects::new(settings.anchor),
            pods: HashMap::new(),
            static_lives: Lives::default(),
            active: BTreeSet::new(),
            asked: BTreeSet::new(),
            holdouts: Holdouts::default(),
            keepers: Keepers::default(),
            leaks: Leaks::new(settings.leak_threshold, settings.uses_api),
            losses: BTreeMap::new(),
            ticks: 0,
        }
    }

    /// Takes one input, says what follows from it.
    pub fn step(&mut self, received: Received) -> Vec<Observation> {
        let mut said = Vec::new();
        let of_the_sources =
            matches!(received.input, Input::Cri(_) | Input::Api(_) | Input::Host(_));
        match received.input {
            Input::Kernel(event) => self.kernel(event, &mut said),
            Input::Cri(event) => {
                if let CriEvent::ContainerCgroup { container, cgroup } = &event {
                    self.identity.linked(container.clone(), *cgroup);
                    self.active.extend(self.runtime.pod_of(container));
                }
                self.leaks.learn_cri(received.at, &event);
                self.active.extend(self.runtime.learn(received.at, event));
            }
            Input::Api(event) => {
                self.keepers.learn_node(&event);
                self.leaks.learn_api(&event);
                let touched = self.objects.learn(received.at, event);
                // Deleted before the runtime was ever asked about it: it lives but seconds.
                let unknown = |uid: &PodUid| {
                    let requested = self.objects.get(uid).is_some_and(|o| o.requested.is_some());
                    requested && self.runtime.sandboxes_of(uid).is_empty()
                };
                if touched.iter().any(unknown) {
                    said.push(Observation::LookNow { sandbox: None });
                }
                self.active.extend(touched);
            }
            Input::Proc(report) => self.looked(report, &mut said),
            Input::Host(event) => {
                self.keepers.learn_host(received.at, &event);
                self.leaks.learn_host(event);
            }
            Input::Recalled { leaks } => self.leaks.recall(leaks),
            Input::Lost(loss) => self.lost(received.at, &loss),
            Input::Tick => self.tick(received.at, &mut said),
        }
        if of_the_sources {
            let (leaks, sources) = self.judge_and_sources();
            leaks.turn(received.at, &sources);
        }
        said
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

    /// A loss may have touched everything that lives now, or did a moment ago.
    fn lost(&mut self, at: BootTime, loss: &Loss) {
        self.count_loss(loss.kind, loss.count);
        let recent = |p: &Processes| !p.is_over() || p.last_heard + LOSS_LAG >= at;
        for processes in self.processes.values_mut().filter(|p| recent(p)) {
            processes.lose(at, loss.kind);
        }
    }

    fn kernel(&mut self, event: KernelEvent, said: &mut Vec<Observation>) {
        let KernelEvent { time, fact } = event;
        let cgroup = match &fact {
            KernelFact::CgroupCreated { cgroup, parent, name, .. } => {
                self.identity.created(*cgroup, *parent, name);
                *cgroup
            }
            KernelFact::CgroupRemoved { cgroup }
            | KernelFact::CgroupEmpty { cgroup }
            | KernelFact::CgroupFrozen { cgroup, .. }
            | KernelFact::SignalDelivered { cgroup, .. }
            | KernelFact::Exec { cgroup, .. }
            | KernelFact::Exit { cgroup, .. }
            | KernelFact::Running { cgroup, .. } => *cgroup,
            KernelFact::SignalGenerated(signal) => signal.cgroup,
            KernelFact::OomVictim { cgroup: Some(cgroup), .. } => *cgroup,
            KernelFact::OomVictim { cgroup: None, pid } => {
                // 5.10 names the victim by pid only: the SIGKILL just before it tells whose.
                let pid = *pid;
                if let Some(owner) = self.owner_of_victim(pid)
                    && let Some(processes) = self.processes.get_mut(&owner)
                {
                    processes.learn(time, fact, |_| false);
                }
                return;
            }
        };
        let owner = self.identity.owner(cgroup);
        let own = owner == cgroup;
        if self.identity.is_above_containers(cgroup) {
            self.above_containers(time, cgroup, &fact, said);
            return;
        }
        let container = self.identity.container(owner).cloned();
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
        if !self.processes.contains_key(&owner) {
            if self.processes.len() >= MAX_CONTAINERS {
                self.count_loss(LossKind::EngineFull, 1);
                return;
            }
            self.processes.insert(owner, Processes::default());
        }
        let identity = &self.identity;
        if let Some(processes) = self.processes.get_mut(&owner) {
            processes.learn(time, fact, |sender| identity.owner(sender) == owner);
        }
        let pod = container
            .as_ref()
            .and_then(|c| self.runtime.pod_of(c))
            .or_else(|| self.identity.pod(owner).cloned());
        self.active.extend(pod);
        if ends {
            let sandbox = container
                .as_ref()
                .and_then(|c| self.runtime.container(c).map(|known| known.info.sandbox.clone()));
            said.push(Observation::LookNow { sandbox });
        }
    }

    fn above_containers(
        &mut self,
        time: BootTime,
        cgroup: CgroupId,
        fact: &KernelFact,
        said: &mut Vec<Observation>,
    ) {
        if let KernelFact::CgroupRemoved { .. } = fact {
            if let Some(uid) = self.identity.pod_level(cgroup).cloned() {
                if !self.runtime.sandboxes_of(&uid).is_empty() {
                    let fresh = self.unknown_pod(&uid);
                    self.pods.entry(uid.clone()).or_insert(fresh).cgroup_removed = Some(time);
                }
                self.active.insert(uid);
                said.push(Observation::LookNow { sandbox: None });
            }
            self.identity.remove(cgroup);
        }
    }

    fn owner_of_victim(&self, pid: u32) -> Option<CgroupId> {
        let killed = |(owner, p): (&CgroupId, &Processes)| Some((p.killed_by_kernel(pid)?, *owner));
        self.processes.iter().filter_map(killed).max().map(|(_, owner)| owner)
    }

    fn tick(&mut self, now: BootTime, said: &mut Vec<Observation>) {
        self.ticks += 1;
        let refused =
            self.runtime.take_refused() + self.objects.take_refused() + self.leaks.take_refused();
        let forgotten = self.identity.take_forgotten();
        self.count_loss(LossKind::EngineFull, refused + forgotten);
        for uid in std::mem::take(&mut self.active) {
            if self.look(now, &uid, said) {
                self.active.insert(uid);
            }
        }
        self.ask(now, said);
        let due = self.holdouts.due(now, &self.processes);
        said.extend(due.wanted.into_iter().map(Observation::ProcessesWanted));
        for (cgroup, detail) in due.over {
            said.push(self.holdout(cgroup, detail, true));
        }
        let (leaks, sources) = self.judge_and_sources();
        leaks.judge(now, sources, said);
        if self.ticks.is_multiple_of(10) {
            self.forget(now, said);
        }
    }

    /// Somebody looked into /proc. Of a container that is forgotten by now it is of no use.
    fn looked(&mut self, report: ProcReport, said: &mut Vec<Observation>) {
        let cgroup = report.cgroup;
        let Some(processes) = self.processes.get_mut(&cgroup) else { return };
        processes.lingering.learn(report);
        if let Some(detail) = self.holdouts.looked(cgroup, processes) {
            said.push(self.holdout(cgroup, detail, false));
        }
        let pod = self.identity.container(cgroup).and_then(|c| self.runtime.pod_of(c));
        self.active.extend(pod);
    }

    fn holdout(&self, cgroup: CgroupId, detail: String, over: bool) -> Observation {
        let container = self.identity.container(cgroup).cloned();
        let sandbox = container
            .as_ref()
            .and_then(|id| self.runtime.container(id))
            .and_then(|known| self.runtime.sandbox(&known.info.sandbox));
        let pod = sandbox.map(|s| s.info.pod_ref());
        Observation::Unkillable(Box::new(Holdout { container, pod, detail, over }))
    }

    /// Looks at one pod; true if something of it is under way.
    fn look(&mut self, now: BootTime, uid: &PodUid, said: &mut Vec<Observation>) -> bool {
        let mut pod = self.pods.remove(uid).unwrap_or_else(|| self.unknown_pod(uid));
        let under_way = self.look_at(now, uid, &mut pod, said);
        let known = !pod.is_blank() && !self.runtime.sandboxes_of(uid).is_empty();
        if known || under_way || pod.finished.is_some() {
            self.pods.insert(uid.clone(), pod);
        } else {
            pod.hurry(BTreeSet::new(), said);
        }
        under_way
    }

    fn unknown_pod(&self, uid: &PodUid) -> Pod {
        Pod { life: self.static_lives.had(uid), ..Pod::default() }
    }

    fn look_at(
        &mut self,
        now: BootTime,
        uid: &PodUid,
        pod: &mut Pod,
        said: &mut Vec<Observation>,
    ) -> bool {
        let settle = self.settings.settle;
        let accounts = self.account(uid, &pod.past, pod.cgroup_removed);
        if accounts.is_empty() {
            pod.terminating = false;
            pod.hurry(BTreeSet::new(), said);
            return self.amend(now, uid, pod, said);
        }
        let members = accounts.members();
        if members.alive > 0 && pod.finished.is_some() {
            pod.finished = None; // another life began
        }
        let untold = |id: &ContainerId| !pod.told.contains(id) && accounts.ended(id).is_some();
        let begins = members.requested || members.all.iter().any(untold);
        pod.terminating = begins;
        let settled = accounts.is_settled(&members, now, settle);
        // Until then the runtime has something to do soon.
        let soon = accounts.deadline(&members).max(members.ended).is_none_or(|at| now < at + HURRY);
        let owes = accounts.runtime_owes(&members);
        let hurry = begins && soon && (owes || (!settled && !pod.hurried.is_empty()));
        pod.hurry(if hurry { accounts.seen_sandboxes() } else { BTreeSet::new() }, said);
        if settled && accounts.is_complete(&members, now, PATIENCE) {
            let life = pod.life + 1;
            let account = accounts.build(&members.all, life);
            // Those that had died before the pod was to end, too recently to have been told.
            let in_account = |id: &ContainerId| account.containers.iter().any(|c| c.id == *id);
            let mut earlier: Vec<_> = members.all.iter().filter(|id| !in_account(id)).collect();
            earlier.sort_by_key(|id| accounts.ended(id));
            let earlier = earlier.into_iter().map(|id| accounts.death(id, None));
            for death in earlier.chain(account.containers.iter().cloned()) {
                if pod.told.insert(death.id.clone()) {
                    said.push(Observation::ContainerDied(Box::new(death)));
                }
            }
            said.push(Observation::PodTerminated(Box::new(account.clone())));
            let (sandboxes, is_static) = (accounts.sandboxes(), accounts.is_static());
            pod.hurry(BTreeSet::new(), said);
            pod.life = life;
            if is_static {
                self.static_lives.note(uid, life);
            }
            pod.terminating = false;
            pod.past.extend(sandboxes.iter().cloned());
            pod.finished = Some(Finished { at: now, sandboxes, members: members.all, account });
            return true;
        }
        // Deaths in a pod that goes on, or takes long to go.
        let mut waiting = members.requested;
        for id in &members.all {
            let Some(ended) = accounts.ended(id) else { continue };
            if pod.told.contains(id) {
                continue;
            }
            waiting = true;
            let due = if members.requested || members.alive == 0 {
                ended + ALONE
            } else {
                ended + settle
            };
            if now >= due && (accounts.is_explained(id) || now >= ended + PATIENCE) {
                let into_the_end = members.requested && accounts.ended_in_request(id);
                let cause = into_the_end.then(|| accounts.cause(&members.all));
                let death = accounts.death(id, cause.as_ref());
                pod.told.insert(id.clone());
                said.push(Observation::ContainerDied(Box::new(death)));
            }
        }
        waiting
    }

    /// A finished pod: what came since? True while its tail is open.
    fn amend(
        &self,
        now: BootTime,
        uid: &PodUid,
        pod: &mut Pod,
        said: &mut Vec<Observation>,
    ) -> bool {
        let Some(finished) = &mut pod.finished else { return false };
        if now > finished.at + TAIL {
            return false;
        }
        let earlier = pod.past.difference(&finished.sandboxes).cloned().collect();
        let accounts = self.account(uid, &earlier, pod.cgroup_removed);
        let account = accounts.build(&finished.members, finished.account.life);
        if account == finished.account {
            return finished.account.milestone(MilestoneKind::SandboxRemoved).is_none();
        }
        let tail = |a: &PodTermination| {
            let mut a = a.clone();
            a.milestones.retain(|m| {
                !matches!(m.kind, MilestoneKind::SandboxRemoved | MilestoneKind::CgroupRemoved)
            });
            a
        };
        let removed = |a: &PodTermination| a.milestone(MilestoneKind::SandboxRemoved).is_some();
        let only_tail = tail(&account) == tail(&finished.account);
        let newly_removed = removed(&account) && !removed(&finished.account);
        // Evidence that was needed and has been forgotten since must not unsay what was said.
        if account.milestones.len() < finished.account.milestones.len() {
            return false;
        }
        finished.account = account.clone();
        if !only_tail {
            let account = Box::new(account.clone());
            said.push(Observation::PodAmended(account, Amendment::LateEvidence));
        }
        if newly_removed {
            said.push(Observation::PodAmended(Box::new(account), Amendment::SandboxRemoved));
        }
        !removed(&finished.account)
    }

    /// The pod's facts, without those of the sandboxes of earlier lives.
    fn account<'a>(
        &'a self,
        uid: &'a PodUid,
        earlier: &BTreeSet<SandboxId>,
        cgroup_removed: Option<BootTime>,
    ) -> Account<'a> {
        let sources = Sources {
            identity: &self.identity,
            processes: &self.processes,
            runtime: &self.runtime,
            objects: &self.objects,
            keepers: &self.keepers,
            anchor: self.settings.anchor,
        };
        Account::new(sources, uid, earlier, cgroup_removed)
    }

    /// What the adapters must find out.
    fn ask(&mut self, now: BootTime, said: &mut Vec<Observation>) {
        for container in self.runtime.containers() {
            let id = &container.info.id;
            if container.exited.is_some() || self.asked.contains(id) {
                continue;
            }
            let Some(cgroup) = self.identity.cgroup(id) else {
                if now >= container.first_seen + CGROUP_DUE {
                    self.asked.insert(id.clone());
                    said.push(Observation::CgroupWanted { container: id.clone() });
                }
                continue;
            };
            let by_spec = self
                .runtime
                .pod_of(id)
                .and_then(|uid| self.objects.get(&uid))
                .and_then(|o| o.pod.containers.get(&container.info.name))
                .and_then(|c| c.stop_signal);
            if let Some(signal) = container.stop_signal.or(by_spec) {
                self.asked.insert(id.clone());
                if !COMMON_STOP_SIGNALS.contains(&signal) {
                    said.push(Observation::StopSignalLearned { cgroup, signal });
                }
            }
        }
    }

    /// Its object is to go and is still there: a finalizer may hold it for as long as it likes.
    fn is_held(&self, uid: &PodUid) -> bool {
        self.objects.get(uid).is_some_and(|o| o.request().is_some() && o.gone.is_none())
    }

    /// Forgets what is accounted for and gone, so that memory does not grow with time.
    fn forget(&mut self, now: BootTime, said: &mut Vec<Observation>) {
        for (sandbox, uid, by) in self.runtime.removed_sandboxes() {
            let settled = now >= by + self.settings.settle;
            let busy = self.active.contains(&uid);
            if settled && !busy || now >= by + STUCK && !self.is_held(&uid) {
                let mut gone = self.runtime.forget(&sandbox);
                gone.push(ContainerId::new(sandbox.as_str()));
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.past.remove(&sandbox);
                    pod.told.retain(|id| !gone.contains(id));
                }
                for id in gone {
                    self.forget_container(&id);
                }
                if self.runtime.sandboxes_of(&uid).is_empty()
                    && !busy
                    && let Some(mut pod) = self.pods.remove(&uid)
                {
                    pod.hurry(BTreeSet::new(), said);
                }
            }
        }
        // Containers removed while their sandbox goes on: kept while their pod may still need them.
        for (id, by) in self.runtime.removed_containers() {
            let uid = self.runtime.pod_of(&id);
            let told = uid
                .as_ref()
                .and_then(|uid| self.pods.get(uid))
                .is_some_and(|pod| pod.told.contains(&id) && pod.finished.is_none());
            let over = now >= by + self.settings.settle;
            let requested = uid
                .as_ref()
                .and_then(|u| self.objects.get(u))
                .is_some_and(|o| o.request().is_some());
            let stuck = now >= by + STUCK && !uid.as_ref().is_some_and(|uid| self.is_held(uid));
            if over && ((told && !requested) || stuck) {
                self.runtime.forget_container(&id);
                self.forget_container(&id);
                if let Some(pod) = uid.and_then(|uid| self.pods.get_mut(&uid)) {
                    pod.told.remove(&id);
                }
            }
        }
        for (uid, by) in self.objects.gone() {
            let busy = self.active.contains(&uid) || self.pods.contains_key(&uid);
            if now >= by + PATIENCE && !busy && self.runtime.sandboxes_of(&uid).is_empty() {
                self.objects.forget(&uid);
            }
        }
        self.close_tails(now);
        self.forget_unresolved(now);
    }

    /// The sandbox of a completed Job stays as long as the object does; its evidence need not.
    fn close_tails(&mut self, now: BootTime) {
        let mut over = Vec::new();
        for pod in self.pods.values_mut() {
            if pod.finished.as_ref().is_some_and(|f| now > f.at + TAIL) {
                pod.finished = None;
                over.extend(pod.past.iter().cloned());
            }
        }
        for sandbox in over {
            let containers = self.runtime.containers_of(&sandbox);
            let ids: Vec<_> = containers.into_iter().map(|c| c.info.id.clone()).collect();
            for id in ids {
                self.forget_container(&id);
            }
        }
    }

    /// Cgroups that ended and that the runtime never explained.
    fn forget_unresolved(&mut self, now: BootTime) {
        let given_up: Vec<CgroupId> = self
            .processes
            .iter()
            .filter(|(owner, p)| {
                // A record that came after its cgroup was forgotten, or whose mkdir was lost, has
                // no end to wait for.
                let orphan = self.identity.container(**owner).is_none();
                let end = p.removed.or(p.ended()).or(orphan.then_some(p.last_heard));
                end.is_some_and(|at| now >= at + UNRESOLVED)
            })
            .map(|(owner, _)| *owner)
            .filter(|owner| {
                self.identity.container(*owner).is_none_or(|id| {
                    self.runtime.container(id).is_none()
                        && self.runtime.sandbox(&SandboxId::new(id.as_str())).is_none()
                })
            })
            .collect();
        for owner in given_up {
            // Only a container that could have been explained counts: the runtime was there.
            if self.runtime.is_connected() && self.identity.container(owner).is_some() {
                self.count_loss(LossKind::NeverResolved, 1);
            }
            self.processes.remove(&owner);
            self.identity.remove(owner);
        }
    }

    fn forget_container(&mut self, id: &ContainerId) {
        self.asked.remove(id);
        if let Some(cgroup) = self.identity.cgroup(id) {
            self.processes.remove(&cgroup);
            self.identity.remove(cgroup);
        }
    }
}
