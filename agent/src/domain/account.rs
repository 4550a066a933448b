//! The join: one pod's facts of all three sources, read together. Nothing here is stored; an
//! account can be built again at any time, and comes out the same from the same facts.

mod findings;

use super::{
    cause::{Circumstances, ContainerCircumstances, cause, container_cause},
    identity::Identity,
    ids::{CgroupId, ContainerId, PodUid, SandboxId},
    input::{ContainerKind, LossKind},
    isolation::Isolation,
    lingering,
    object::{Object, Objects, Request},
    observation::{
        Cause, ContainerDeath, Finding, FindingKind, Milestone, MilestoneKind, PodRef,
        PodTermination, Reason, Source,
    },
    phases::{Path, phases},
    pre_stop,
    process::{Processes, SIGKILL},
    runtime::{Between, Container, Runtime, Sandbox},
    time::{Anchor, BootTime},
    verdict::{Case, Judgement, judge, secs},
};
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// The stop signal where nobody says otherwise: SIGTERM.
const DEFAULT_STOP_SIGNAL: u8 = 15;
/// What kubelet and runtime add to the grace: containers that ended further apart did not end
/// together.
const TOGETHER: Duration = Duration::from_secs(10);

/// All that the sources told.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// cgroup ↔ container.
    pub identity: &'a Identity,
    /// What the kernel told, by the container's own cgroup.
    pub processes: &'a HashMap<CgroupId, Processes>,
    /// What the runtime told.
    pub runtime: &'a Runtime,
    /// What the apiserver told.
    pub objects: &'a Objects,
    /// Boot clock ↔ wall clock.
    pub anchor: Anchor,
}

/// The facts of one life of a pod, read together.
#[derive(Clone, Debug)]
pub struct Account<'a> {
    of: Sources<'a>,
    uid: &'a PodUid,
    /// This life's, the oldest first, whether the agent saw them run or not.
    sandboxes: Vec<&'a Sandbox>,
    /// Another life of the same UID has begun.
    superseded: bool,
    /// When the pod's own cgroup was removed.
    cgroup_removed: Option<BootTime>,
}

/// The containers of the pod's present life.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// All of them, dead or alive.
    pub all: BTreeSet<ContainerId>,
    /// How many are alive.
    pub alive: usize,
    /// The latest end of those that are dead.
    pub ended: Option<BootTime>,
    /// The pod's deletion was requested while something of it ran.
    pub requested: bool,
    /// A sandbox of it is not stopped yet.
    pub sandbox_runs: bool,
}

impl<'a> Account<'a> {
    /// The facts of the life that follows the `earlier` ones, which are finished.
    pub fn new(
        of: Sources<'a>,
        uid: &'a PodUid,
        earlier: &BTreeSet<SandboxId>,
        cgroup_removed: Option<BootTime>,
    ) -> Self {
        let mut sandboxes = of.runtime.sandboxes_of(uid);
        sandboxes.retain(|s| !earlier.contains(&s.info.id));
        let mut account = Self { of, uid, sandboxes, superseded: false, cgroup_removed };
        account.leave_out_the_next_life();
        account
    }

    /// A static pod's UID comes back with its manifest: what is made after all of it was torn
    /// down is another life. Any other pod has one life, however many sandboxes it takes.
    fn leave_out_the_next_life(&mut self) {
        if !self.is_static() {
            return;
        }
        let torn_down = |sandbox: &Sandbox| {
            sandbox.stopped.is_some()
                && self
                    .of
                    .runtime
                    .containers_of(&sandbox.info.id)
                    .iter()
                    .all(|c| self.ended(&c.info.id).is_some())
        };
        let first = self.sandboxes.iter().position(|s| self.is_own(s) && torn_down(s));
        let over = first.map_or(self.sandboxes.len(), |first| first + 1);
        if over < self.sandboxes.len() {
            self.sandboxes.truncate(over);
            self.superseded = true;
        }
    }

    fn object(&self) -> Option<&'a Object> {
        self.of.objects.get(self.uid)
    }

    fn processes_of(&self, id: &ContainerId) -> Option<&'a Processes> {
        self.of.processes.get(&self.of.identity.cgroup(id)?)
    }

    /// It ran while the agent looked on, by the runtime's word or by the kernel's on the sandbox's
    /// own container (which bears its id).
    fn is_own(&self, sandbox: &Sandbox) -> bool {
        sandbox.seen_ready
            || self.processes_of(&ContainerId::new(sandbox.info.id.as_str())).is_some()
    }

    fn own_sandboxes(&self) -> impl Iterator<Item = &'a Sandbox> {
        self.sandboxes.iter().copied().filter(|s| self.is_own(s))
    }

    fn containers(&self) -> impl Iterator<Item = &'a Container> {
        self.sandboxes.iter().flat_map(|s| self.of.runtime.containers_of(&s.info.id))
    }

    /// It ran while the agent looked on.
    fn ran(&self, container: &Container) -> bool {
        container.seen_alive || self.processes_of(&container.info.id).is_some()
    }

    /// Nothing of this life ran while the agent looked on.
    pub fn is_empty(&self) -> bool {
        self.own_sandboxes().next().is_none() && !self.containers().any(|c| self.ran(c))
    }

    /// This life's sandboxes.
    pub fn sandboxes(&self) -> BTreeSet<SandboxId> {
        self.sandboxes.iter().map(|s| s.info.id.clone()).collect()
    }

    /// This life's sandboxes that ran while the agent looked on.
    pub fn seen_sandboxes(&self) -> BTreeSet<SandboxId> {
        self.own_sandboxes().map(|s| s.info.id.clone()).collect()
    }

    /// The containers of this life that ran while the agent looked on.
    pub fn members(&self) -> Members {
        let mut members = Members::default();
        for container in self.containers().filter(|c| self.ran(c)) {
            let id = &container.info.id;
            match self.ended(id) {
                Some(at) => members.ended = members.ended.max(Some(at)),
                None => members.alive += 1,
            }
            members.all.insert(id.clone());
        }
        members.sandbox_runs = self.own_sandboxes().any(|s| s.stopped.is_none());
        members.requested = self.request(&members.all).is_some();
        members
    }

    /// When a container ended: the kernel's word, or the runtime's where the kernel's is missing.
    pub fn ended(&self, id: &ContainerId) -> Option<BootTime> {
        let by_kernel = self.processes_of(id).and_then(Processes::ended);
        by_kernel.or_else(|| Some(self.of.runtime.container(id)?.exited?.by))
    }

    fn ended_at_the_earliest(&self, id: &ContainerId) -> Option<BootTime> {
        let by_kernel = self.processes_of(id).and_then(Processes::ended);
        by_kernel.or_else(|| Some(self.of.runtime.container(id)?.exited?.after))
    }

    /// The runtime has told all it will about this container's end.
    pub fn is_explained(&self, id: &ContainerId) -> bool {
        self.of.runtime.container(id).is_none_or(|c| c.exit.is_some() || c.removed.is_some())
    }

    fn are_explained(&self, members: &Members) -> bool {
        members.all.iter().all(|id| self.is_explained(id))
    }

    /// The runtime has still to tell something of this life's end.
    pub fn runtime_owes(&self, members: &Members) -> bool {
        members.alive > 0 || members.sandbox_runs || !self.are_explained(members)
    }

    /// The deletion request, if something of the pod still ran when it came.
    fn request(&self, members: &BTreeSet<ContainerId>) -> Option<&'a Request> {
        let request = self.object()?.request()?;
        let ran_after = |at: Option<BootTime>| at.is_none_or(|at| at >= request.since);
        let containers = members.iter().any(|id| ran_after(self.ended(id)));
        let sandbox = self.own_sandboxes().any(|s| s.stopped.is_none_or(|s| s.by >= request.since));
        (containers || sandbox).then_some(request)
    }

    /// When the grace of the deletion request is over, if something of the pod still ran when
    /// that came.
    pub fn deadline(&self, members: &Members) -> Option<BootTime> {
        let request = self.request(&members.all)?;
        let grace = u64::try_from(request.grace_seconds).unwrap_or_default();
        Some(request.at + Duration::from_secs(grace))
    }

    /// The container ended after the pod's deletion was requested.
    pub fn ended_in_request(&self, id: &ContainerId) -> bool {
        let request = self.object().and_then(Object::request);
        request.is_some() && self.ran_into(request, id)
    }

    /// It ended after the request, or so shortly before, and with no attempt after it, that the
    /// watch's lag explains it.
    fn ran_into(&self, request: Option<&Request>, id: &ContainerId) -> bool {
        let last = || self.of.runtime.container(id).is_none_or(|c| self.is_last_attempt(c));
        match (request, self.ended(id)) {
            (Some(request), Some(ended)) => {
                ended >= request.at || (ended >= request.since && last())
            }
            _ => true,
        }
    }

    /// The moment the object went, if that belongs to this end and not to a later clean-up of a
    /// pod that was long over.
    fn gone(&self, members: &BTreeSet<ContainerId>) -> Option<Between> {
        let gone = self.object()?.gone?;
        let ran = members.iter().any(|id| self.ended(id).is_none_or(|at| at >= gone.after));
        let mirror = self.object().is_some_and(Object::is_mirror);
        (ran || mirror || self.request(members).is_some()).then_some(gone)
    }

    fn sandbox_stopped(&self) -> Option<Between> {
        if self.own_sandboxes().any(|s| s.stopped.is_none()) {
            return None;
        }
        self.own_sandboxes().filter_map(|s| s.stopped).max_by_key(|s| s.by)
    }

    fn sandbox_removed(&self) -> Option<Between> {
        if self.own_sandboxes().any(|s| s.removed.is_none()) {
            return None;
        }
        self.own_sandboxes().filter_map(|s| s.removed).max_by_key(|s| s.by)
    }

    /// All that the account needs is known, or `patience` with what is missing is over.
    pub fn is_complete(&self, members: &Members, now: BootTime, patience: Duration) -> bool {
        if members.alive > 0 || members.sandbox_runs {
            return false;
        }
        // Deleted before it had a container: its sandbox is all that there was.
        let Some(ended) = members.ended.or_else(|| Some(self.sandbox_stopped()?.by)) else {
            return false;
        };
        let late = now >= ended + patience;
        if !(late || self.are_explained(members)) {
            return false;
        }
        if self.superseded || !self.of.objects.was_in_sync() {
            return true;
        }
        let gone = self.gone(&members.all).is_some();
        match self.object() {
            _ if members.requested => gone,
            _ if members.all.is_empty() => false, // it gets another sandbox
            Some(object) if object.is_mirror() => gone || late,
            // Without a request a pod is over only if the kubelet says so: a sandbox that died
            // gets a successor.
            Some(object) => gone || matches!(object.pod.phase.as_str(), "Succeeded" | "Failed"),
            None => late || self.of.objects.is_in_sync(),
        }
    }

    /// The settle window has passed since the last thing that the account tells.
    pub fn is_settled(&self, members: &Members, now: BootTime, settle: Duration) -> bool {
        now >= self.last(&members.all).unwrap_or(now) + settle
    }

    /// The last thing that the account tells: the end of processes, sandbox and object.
    fn last(&self, members: &BTreeSet<ContainerId>) -> Option<BootTime> {
        let processes = members.iter().filter_map(|id| self.ended(id)).max();
        let sandbox = self.sandbox_stopped().map(|s| s.by);
        [processes, sandbox, self.gone(members).map(|g| g.by)].into_iter().flatten().max()
    }

    /// The kubelet has it from a file or a URL.
    pub fn is_static(&self) -> bool {
        self.own_sandboxes()
            .any(|s| matches!(s.info.config_source.as_deref(), Some("file" | "http")))
    }

    /// The last attempt of each container; whether it is of `members` or not, there is no later.
    fn is_last_attempt(&self, container: &Container) -> bool {
        let attempt = |c: &Container| (c.info.created, c.info.attempt);
        let same = |c: &&Container| c.info.name == container.info.name && self.ran(c);
        !self.containers().filter(same).any(|c| attempt(c) > attempt(container))
    }

    /// Those that ended in the pod's end: after the request, or, where there was none, together
    /// with the last one. Earlier deaths have been told by themselves, and so have those that were
    /// followed by another attempt. Init containers are over by then, unless they were all.
    fn in_the_end<'m>(
        &'m self,
        members: &'m BTreeSet<ContainerId>,
    ) -> impl Iterator<Item = &'m ContainerId> {
        let request = self.request(members);
        let last = members.iter().filter_map(|id| self.ended(id)).max();
        let container = |id: &ContainerId| self.of.runtime.container(id);
        let is_init = |c: &Container| self.kind(&c.info.name) == ContainerKind::Init;
        let only_init = members.iter().filter_map(container).all(is_init);
        let grace = members
            .iter()
            .filter_map(|id| self.longest_grace(container(id)?, None))
            .filter_map(|seconds| u64::try_from(seconds).ok())
            .max()
            .unwrap_or_default();
        let window = Duration::from_secs(grace) + TOGETHER;
        members.iter().filter(move |id| match request {
            Some(_) => self.ran_into(request, id),
            None => {
                let of_end = |c: &Container| self.is_last_attempt(c) && (only_init || !is_init(c));
                let late = self.ended(id).zip(last).is_none_or(|(at, last)| at + window >= last);
                late && self.of.runtime.container(id).is_none_or(of_end)
            }
        })
    }

    /// Those that decide how the pod ended: the main ones. The kubelet stops sidecars when all
    /// others have ended.
    fn deciding<'m>(
        &'m self,
        members: &'m BTreeSet<ContainerId>,
    ) -> impl Iterator<Item = &'m ContainerId> {
        let is_main = |c: &Container| self.kind(&c.info.name) == ContainerKind::Main;
        self.in_the_end(members)
            .filter(move |id| self.of.runtime.container(id).is_some_and(is_main))
    }

    fn kind(&self, container: &str) -> ContainerKind {
        let told = self.object().and_then(|o| o.pod.containers.get(container));
        told.map_or(ContainerKind::Main, |c| c.kind)
    }

    /// Why the pod ended.
    pub fn cause(&self, members: &BTreeSet<ContainerId>) -> Reason {
        let had_main = self.deciding(members).next().is_some();
        let judge = |id: &ContainerId| self.judgement(id, None);
        let judged: Vec<Option<Judgement>> = if had_main {
            self.deciding(members).map(judge).collect()
        } else {
            self.in_the_end(members).map(judge).collect()
        };
        let stopped = judged
            .iter()
            .flatten()
            .any(|j| j.milestones.iter().any(|m| m.kind == MilestoneKind::StopBegan));
        let complete = judged.iter().all(|j| j.as_ref().is_some_and(|j| j.exit.is_some()));
        let unproven = judged.iter().flatten().find_map(|j| j.unproven.as_deref());
        let outlived = self.outlived(members).is_some();
        // Or it went while nobody watched.
        let unseen = |gone: Between| gone.after < gone.by;
        let deleted = self.request(members).is_some() || self.gone(members).is_some_and(unseen);
        let is_static = self.is_static();
        cause(Circumstances {
            object: self.object(),
            deleted,
            outlived,
            is_static,
            had_main,
            stopped,
            complete,
            unproven,
        })
    }

    /// By how much the processes outlived the object.
    fn outlived(&self, members: &BTreeSet<ContainerId>) -> Option<Duration> {
        let gone = self.gone(members)?;
        let last = members.iter().filter_map(|id| self.ended_at_the_earliest(id)).max()?;
        (last > gone.by && !self.object()?.is_mirror()).then(|| last.since(gone.by))
    }

    fn pod_ref(&self) -> PodRef {
        let uid = self.uid.clone();
        if let Some(sandbox) = self.of.runtime.sandboxes_of(self.uid).first() {
            let info = &sandbox.info;
            return PodRef { namespace: info.namespace.clone(), name: info.name.clone(), uid };
        }
        let (namespace, name) = self
            .object()
            .map(|o| (o.pod.namespace.clone(), o.pod.name.clone()))
            .unwrap_or_default();
        PodRef { namespace, name, uid }
    }

    /// The stop signal: the runtime's word (it has read the image), else the spec's, else what the
    /// runtime was seen to send (containerd before 2.0 does not tell the image's), else SIGTERM.
    fn stop_signal(&self, container: &Container) -> u8 {
        let by_spec = || self.object()?.pod.containers.get(&container.info.name)?.stop_signal;
        let seen = || self.processes_of(&container.info.id)?.sent_by_runtime();
        container.stop_signal.or_else(by_spec).or_else(seen).unwrap_or(DEFAULT_STOP_SIGNAL)
    }

    /// The grace that was granted: by the first request, else what the runtime noted when the
    /// container was made, else the spec's.
    fn grace(&self, container: &Container, request: Option<&Request>) -> Option<i64> {
        request
            .map(|r| r.grace_seconds)
            .or(container.info.grace_seconds)
            .or_else(|| self.object()?.pod.grace_seconds)
    }

    fn longest_grace(&self, container: &Container, request: Option<&Request>) -> Option<i64> {
        let by_spec = self.object().and_then(|o| o.pod.grace_seconds);
        let by_request = request.map(|r| r.grace_seconds);
        [by_request, container.info.grace_seconds, by_spec].into_iter().flatten().max()
    }

    /// The time from the first act of stopping to the deadline, which a later request may have
    /// brought nearer.
    fn allowed(&self, from: BootTime, ended: BootTime, grace_seconds: i64) -> Option<Duration> {
        let seconds = |s: i64| u64::try_from(s).ok().map(Duration::from_secs);
        let shortened = self
            .object()
            .and_then(|o| o.in_force(ended))
            .filter(|r| r.grace_seconds < grace_seconds && r.at > from);
        match shortened {
            Some(r) => Some(r.at.since(from) + seconds(r.grace_seconds)?),
            None => seconds(grace_seconds),
        }
        .filter(|allowed| !allowed.is_zero())
    }

    fn judgement(&self, id: &ContainerId, request: Option<&Request>) -> Option<Judgement> {
        let container = self.of.runtime.container(id)?;
        let processes = self.processes_of(id)?;
        let pre_stop =
            pre_stop::spec(self.object(), &container.info.name, container.info.pre_stop.as_ref());
        let judged = judge(Case {
            processes,
            stop_signal: self.stop_signal(container),
            kind: self.kind(&container.info.name),
            grace_seconds: self.grace(container, request),
            longest_grace_seconds: self.longest_grace(container, request),
            pre_stop: pre_stop.as_ref(),
            requested: request.map(|r| r.at),
            earliest_request: request.map(|r| r.since),
        });
        Some(match self.isolated(container) {
            Some(how) => judged.unseen(&how),
            None => judged,
        })
    }

    /// How it is kept out of the host kernel's sight, if it is: by the runtime's word, or by what
    /// runs where other sandboxes have their `pause`.
    fn isolated(&self, container: &Container) -> Option<String> {
        let sandbox = &container.info.sandbox;
        let handler = self.of.runtime.sandbox(sandbox).map(|s| s.info.handler.as_str());
        let runtime = container.runtime_type.as_deref();
        let process = self
            .processes_of(&ContainerId::new(sandbox.as_str()))
            .and_then(|p| p.init.as_ref())
            .map(|init| init.comm.as_str());
        let by = |how: Option<Isolation>, what: &str, name: Option<&str>| {
            Some(format!("It runs in {} ({what} {})", how?.as_str(), name?))
        };
        by(handler.and_then(Isolation::by_handler), "runtime handler", handler)
            .or_else(|| by(runtime.and_then(Isolation::by_runtime_type), "runtime", runtime))
            .or_else(|| by(process.and_then(Isolation::by_sandbox_process), "process", process))
    }

    /// One container's end. `pod_cause` is the cause of the pod's own end, if that is under way.
    pub fn death(&self, id: &ContainerId, pod_cause: Option<&Reason>) -> ContainerDeath {
        let nothing = Processes::default();
        let processes = self.processes_of(id).unwrap_or(&nothing);
        let container = self.of.runtime.container(id);
        let alone = BTreeSet::from([id.clone()]);
        let request = self.request(&alone).filter(|r| self.ran_into(Some(*r), id));
        let stop_signal = container.map_or(DEFAULT_STOP_SIGNAL, |c| self.stop_signal(c));
        let name = container.map(|c| c.info.name.clone()).unwrap_or_default();
        let grace_seconds = container.and_then(|c| self.grace(c, request));
        let pre_stop =
            container.and_then(|c| pre_stop::spec(self.object(), &name, c.info.pre_stop.as_ref()));
        let kind = self.kind(&name);
        let judged = judge(Case {
            processes,
            stop_signal,
            kind,
            grace_seconds,
            longest_grace_seconds: container.and_then(|c| self.longest_grace(c, request)),
            pre_stop: pre_stop.as_ref(),
            requested: request.map(|r| r.at),
            earliest_request: request.map(|r| r.since),
        });
        let isolated = container.and_then(|c| self.isolated(c));
        let (judged, processes) = match &isolated {
            Some(how) => (judged.unseen(how), &nothing),
            None => (judged, processes),
        };
        let mut milestones = judged.milestones.clone();
        if let Some(exited) = container.and_then(|c| c.exited) {
            milestones.push(between(MilestoneKind::ContainerExited, exited, Source::Cri));
        }
        milestones.sort_by_key(|m| (m.at, m.kind));
        let at = |kind| milestones.iter().find(|m| m.kind == kind).map(|m| m.at);
        let stop_began = at(MilestoneKind::StopBegan);
        let (children_killed, unsignalled, children_names) =
            processes.torn_down(stop_signal, stop_began);

        let mut findings = Vec::new();
        let told = at(MilestoneKind::TermSent).is_some();
        // What a container does among its own processes is the first to be lost.
        if unsignalled > 0 && told && judged.losses.is_empty() {
            findings.push(findings::not_signalled(unsignalled, &children_names, stop_signal));
        }
        if judged.pre_stop_cut_off {
            let detail = "The preStop hook was still running when the stop signal came.";
            findings.push(Finding::new(FindingKind::PrestopCutOff, detail));
        }
        let told = at(MilestoneKind::TermSent).map(|at| (at, stop_signal));
        let killed = || Some((processes.killed_since()?, SIGKILL));
        findings.extend(lingering::frozen(processes, told.or_else(killed)));
        findings.extend(lingering::unkillable(processes));
        findings.extend(self.deadline_missed(id, request));
        match isolated {
            Some(how) => findings.push(Finding::new(
                FindingKind::UnsupportedRuntime,
                format!("{how}: the host's kernel does not see inside."),
            )),
            // With records missing, the main process may have been taken for another.
            None if judged.losses.is_empty() => {
                findings.extend(self.contradictions(id, judged.exit));
            }
            None => {}
        }

        let ended = self.ended(id);
        let grace_ratio = match (stop_began, ended, grace_seconds) {
            (Some(from), Some(to), Some(grace)) => self
                .allowed(from, to, grace)
                .map(|allowed| to.since(from).as_secs_f64() / allowed.as_secs_f64()),
            _ => None,
        };
        let in_pods_end = pod_cause
            .filter(|_| stop_began.is_some() || request.is_none() || self.ran_into(request, id));
        let cause = container_cause(ContainerCircumstances {
            object: self.object(),
            container: &name,
            stop: stop_began.map(|at| (processes, at)),
            unproven: judged.unproven.as_deref(),
            started: self.object().and_then(|o| o.was_started(id)),
            pod: in_pods_end.cloned(),
        });
        let mut proof = judged.proof;
        proof.evidence.extend(lingering::evidence(processes));
        proof.evidence.sort_by_key(|e| e.at);
        ContainerDeath {
            id: id.clone(),
            pod: Some(self.pod_ref()),
            kind,
            verdict: judged.verdict,
            proof,
            cause: cause.cause,
            cause_source: cause.source,
            cause_proof: cause.sentence,
            findings,
            exit: judged.exit,
            stop_signal,
            grace_seconds,
            grace_ratio,
            pre_stop,
            killer: judged.killer,
            children_killed,
            children_names,
            milestones,
            truncated: judged.truncated || self.is_truncated(),
            incomplete: judged.losses,
            name,
        }
    }

    fn is_truncated(&self) -> bool {
        self.object().is_some_and(|o| o.found_deleting)
    }

    /// The pod's whole account, as far as known now.
    pub fn build(&self, members: &BTreeSet<ContainerId>, life: u32) -> PodTermination {
        let request = self.request(members);
        let gone = self.gone(members);
        let cause = self.cause(members);
        let mut containers: Vec<ContainerDeath> =
            self.in_the_end(members).map(|id| self.death(id, Some(&cause))).collect();
        let order = |id: &ContainerId| {
            self.of.runtime.container(id).map(|c| (c.info.created, c.info.name.clone()))
        };
        containers.sort_by_key(|c| (order(&c.id), c.id.clone()));
        let critical = containers.iter().max_by_key(|c| (self.ended(&c.id), &c.id));

        let began = self.began(request, gone, cause.cause, &containers);
        let ended = self.last(members).unwrap_or(began).max(began);
        let mut pod_milestones = Vec::new();
        if let Some(request) = request {
            pod_milestones.push(Milestone {
                kind: MilestoneKind::DeleteRequested,
                at: began,
                uncertainty: request.uncertainty,
                source: if began < request.at { Source::Inferred } else { Source::Api },
            });
        }
        let of_cri = [
            (MilestoneKind::SandboxStopped, self.sandbox_stopped()),
            (MilestoneKind::SandboxRemoved, self.sandbox_removed()),
        ];
        for (kind, change) in of_cri {
            pod_milestones.extend(change.map(|c| between(kind, c, Source::Cri)));
        }
        pod_milestones.extend(gone.map(|g| between(MilestoneKind::ObjectGone, g, Source::Api)));
        let object = self.object().filter(|_| request.is_some());
        let told =
            |kind, at| Milestone { kind, at, uncertainty: Duration::ZERO, source: Source::Api };
        if let Some(at) = object.and_then(|o| o.last_delete) {
            pod_milestones.push(told(MilestoneKind::LastDelete, at));
        }
        let shortened = object.and_then(Object::shortened);
        if let Some(shortened) = shortened {
            pod_milestones.push(told(MilestoneKind::GraceShortened, shortened.at));
        }
        pod_milestones.extend(self.cgroup_removed.filter(|at| *at >= began).map(|at| Milestone {
            kind: MilestoneKind::CgroupRemoved,
            at,
            uncertainty: Duration::ZERO,
            source: Source::Kernel,
        }));

        let path = critical.map(|c| c.milestones.as_slice()).unwrap_or_default();
        let stopping = containers
            .iter()
            .filter_map(|c| c.milestone(MilestoneKind::StopBegan))
            .map(|m| m.at)
            .min();
        let pod = pod_milestones.as_slice();
        let phases = phases(Path { began, ended, critical, pod, stopping, cause: cause.cause });
        let mut milestones: Vec<Milestone> = path.iter().chain(&pod_milestones).cloned().collect();
        milestones.sort_by_key(|m| (m.at, m.kind));

        let mut findings = Vec::new();
        if let Some(by) = self.outlived(members) {
            findings.push(Finding::new(
                FindingKind::OutlivedObject,
                format!("Its processes outlived the pod's object by {}.", secs(by)),
            ));
        }
        findings.extend(self.restarts(began, ended));
        let mut incomplete: BTreeSet<LossKind> = BTreeSet::new();
        for container in &containers {
            incomplete.extend(&container.incomplete);
        }
        let began_wall_ns = self.of.anchor.wall(began).0;
        let truncated = self.is_truncated() || containers.iter().any(|c| c.truncated);
        PodTermination {
            pod: self.pod_ref(),
            life,
            cause: cause.cause,
            cause_source: cause.source,
            cause_proof: cause.sentence,
            grace_seconds: self.pod_grace(request),
            shortened_to_seconds: shortened.map(|s| s.grace_seconds),
            began,
            ended,
            began_wall_ns,
            request_lag_seconds: request
                .map(|r| began_wall_ns.saturating_sub(r.asked_wall.0) as f64 / 1e9),
            critical: critical.map(|c| c.id.clone()),
            milestones,
            phases,
            containers,
            findings,
            truncated,
            incomplete: incomplete.into_iter().collect(),
        }
    }

    /// What the first request granted; a later one may have shortened it.
    fn pod_grace(&self, request: Option<&Request>) -> Option<i64> {
        request.map(|r| r.grace_seconds).or_else(|| self.object()?.pod.grace_seconds)
    }

    /// Where the account begins.
    fn began(
        &self,
        request: Option<&Request>,
        gone: Option<Between>,
        cause: Cause,
        containers: &[ContainerDeath],
    ) -> BootTime {
        let stop_began = containers
            .iter()
            .filter_map(|c| c.milestone(MilestoneKind::StopBegan))
            .map(|m| m.at)
            .min();
        let ended = |c: &ContainerDeath| {
            c.milestone(MilestoneKind::Exited)
                .or_else(|| c.milestone(MilestoneKind::Empty))
                .or_else(|| c.milestone(MilestoneKind::ContainerExited))
                .map(|m| m.at)
        };
        // The last one that ended by itself; sidecars are stopped after it.
        let of_main = |c: &&ContainerDeath| c.kind == ContainerKind::Main;
        let last = containers.iter().filter(of_main).filter_map(ended).max();
        let ended_by_itself = last.or_else(|| containers.iter().filter_map(ended).max());
        let stop_began = if cause == Cause::Completed { None } else { stop_began };
        match request {
            Some(request) => {
                // The kubelet may have heard of it before this watch did; never before it was
                // asked, by the apiserver's clock.
                stop_began
                    .filter(|at| *at >= request.since)
                    .map_or(request.at, |at| at.min(request.at))
            }
            None => {
                let gone = gone.map(|g| g.by).filter(|_| !self.is_static());
                stop_began.or(ended_by_itself).into_iter().chain(gone).min().unwrap_or_default()
            }
        }
    }
}

fn between(kind: MilestoneKind, change: Between, source: Source) -> Milestone {
    Milestone { kind, at: change.by, uncertainty: change.uncertainty(), source }
}
