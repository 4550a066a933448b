//! The pod's own end: what belongs to it, why it came, how long each part took.

use super::{Account, TOGETHER, between};
use crate::{
    cause::{Circumstances, TERMINATION_BY_KUBELET, cause},
    ids::ContainerId,
    input::{ApiPod, ContainerKind, Hook, LossKind},
    object::{Object, Request},
    observation::{
        Cause, ContainerDeath, Finding, FindingKind, Milestone, MilestoneKind, PodRef,
        PodTermination, Reason, Source,
    },
    phases::{Path, phases},
    runtime::{Between, Container},
    time::BootTime,
    verdict::{Judgement, secs},
};
use std::{collections::BTreeSet, time::Duration};

impl<'a> Account<'a> {
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
            Some(_) => self.ended_with_its_pod(id),
            None => {
                let of_end = |c: &Container| self.is_last_attempt(c) && (only_init || !is_init(c));
                let late = self.ended(id).zip(last).is_none_or(|(at, last)| at + window >= last);
                late && self.of.runtime.container(id).is_none_or(of_end)
            }
        })
    }

    /// The last attempt of each container; whether it is of `members` or not, there is no later.
    pub(super) fn is_last_attempt(&self, container: &Container) -> bool {
        let attempt = |c: &Container| (c.info.created, c.info.attempt);
        let same = |c: &&Container| c.info.name == container.info.name && self.ran(c);
        !self.containers().filter(same).any(|c| attempt(c) > attempt(container))
    }

    pub(super) fn kind(&self, container: &str) -> ContainerKind {
        let told = self.object().and_then(|o| o.pod.containers.get(container));
        told.map_or(ContainerKind::Main, |c| c.kind)
    }

    /// Why the pod ended.
    pub fn cause(&self, members: &BTreeSet<ContainerId>) -> Reason {
        let container = |id: &ContainerId| self.of.runtime.container(id);
        let is_main = |c: &Container| self.kind(&c.info.name) == ContainerKind::Main;
        // The main ones decide: the kubelet stops sidecars when all others have ended.
        let (mains, others): (Vec<_>, Vec<_>) =
            self.in_the_end(members).partition(|id| container(id).is_some_and(is_main));
        let had_main = !mains.is_empty();
        let deciding = if had_main { mains } else { others };
        let judge = |id: &ContainerId| {
            let judged = self.judged(Some(container(id)?), self.processes_of(id)?, None, None);
            Some(judged.judgement)
        };
        let judged: Vec<Option<Judgement>> = deciding.iter().map(|id| judge(id)).collect();
        // The pod ended with the main container that ended last. (The kubelet stops a sidecar after all main
        // containers exit, observed or not.)
        let of_end = deciding.iter().zip(&judged).filter(|(id, _)| !self.went_on_after(id));
        let last = of_end.filter(|_| had_main).max_by_key(|(id, _)| self.ended(id));
        let stopped_for =
            last.and_then(|(id, judged)| self.stop_of(id, judged.as_ref()?)?.of_ended_pod());
        let stopped = deciding.iter().zip(&judged).any(|(id, judged)| {
            judged.as_ref().is_some_and(|j| j.stop_began().is_some()) && !self.went_on_after(id)
        });
        let complete = judged.iter().all(|j| j.as_ref().is_some_and(|j| j.exit.is_some()));
        let unproven = judged.iter().flatten().find_map(|j| j.unproven.as_deref());
        let outlived = self.outlived(members).is_some();
        let requested = self.request(members).is_some();
        let unseen = self.object().is_some_and(Object::went_unseen);
        let gone = self.gone(members).filter(|_| unseen && !requested);
        // What is stopped, or still runs when the object has gone, had been deleted.
        let ran_on = |gone: Between| {
            members.iter().any(|id| self.ended_at_the_earliest(id).is_none_or(|at| at > gone.by))
        };
        // By its own last status something of it still ran when its object went, however late the watch
        // reported that; and it was stopped.
        let forced = |object: &Object| {
            let disrupted = object.pod.disruption.as_deref();
            let by_control_plane = disrupted.is_some_and(|reason| reason != TERMINATION_BY_KUBELET);
            let unasked = object.requested.is_none() && !object.pod.is_over();
            object.was_seen_going() && (by_control_plane || unasked)
        };
        let deleted = requested
            || gone.is_some_and(|gone| stopped || ran_on(gone))
            || stopped && self.object().is_some_and(forced);
        // In back-off nothing of it runs either, and it is not over.
        let is_over = |pod: &ApiPod| pod.is_finished() || pod.is_over() && pod.is_completing();
        let was_over = self.object().is_some_and(|o| is_over(&o.pod));
        let came_and_went = self.object().is_none() && self.of.objects.was_in_sync();
        let vanished = unseen && !deleted && !was_over || came_and_went && !stopped;
        let is_static = self.is_static();
        cause(Circumstances {
            object: self.object(),
            deleted,
            outlived,
            vanished,
            is_static,
            had_main,
            stopped,
            complete,
            unproven,
            stopped_for: stopped_for.as_ref(),
        })
    }

    /// By how much the processes outlived the object.
    fn outlived(&self, members: &BTreeSet<ContainerId>) -> Option<Duration> {
        let gone = self.gone(members)?;
        let last = members.iter().filter_map(|id| self.ended_at_the_earliest(id)).max()?;
        (last > gone.by && !self.object()?.is_mirror()).then(|| last.since(gone.by))
    }

    pub(super) fn pod_ref(&self) -> PodRef {
        if let Some(sandbox) = self.of.runtime.sandboxes_of(self.uid).next() {
            return sandbox.info.pod_ref();
        }
        let (namespace, name) = self
            .object()
            .map(|o| (o.pod.namespace.clone(), o.pod.name.clone()))
            .unwrap_or_default();
        PodRef { namespace, name, uid: self.uid.clone() }
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

        let stopping = containers
            .iter()
            .filter_map(|c| c.milestone(MilestoneKind::StopBegan))
            .map(|m| m.at)
            .min();
        let began = self.began(request, gone, cause.cause, stopping, &containers);
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
        pod_milestones.extend(request.and_then(|r| self.post_start_ended(r, stopping)));
        let stopped = self.sandbox_stopped();
        let stopped = stopped.map(|s| between(MilestoneKind::SandboxStopped, s, Source::Cri));
        pod_milestones.extend(stopped);
        pod_milestones.extend(gone.map(|g| between(MilestoneKind::ObjectGone, g, Source::Api)));
        let told =
            |kind, at| Milestone { kind, at, uncertainty: Duration::ZERO, source: Source::Api };
        // Once the object is gone no later status can come.
        let reported = self.object().filter(|_| gone.is_some()).and_then(|o| o.reported);
        let reported = reported.filter(|at| *at >= began);
        pod_milestones.extend(reported.map(|at| told(MilestoneKind::StatusReported, at)));
        let object = self.object().filter(|_| request.is_some());
        if let Some(at) = object.and_then(|o| o.final_delete) {
            pod_milestones.push(told(MilestoneKind::FinalDelete, at));
        }
        let shortened = object.and_then(Object::shortened);
        if let Some(shortened) = shortened {
            pod_milestones.push(told(MilestoneKind::GraceShortened, shortened.at));
        }
        pod_milestones.extend(self.tail(began));

        let path = critical.map(|c| c.milestones.as_slice()).unwrap_or_default();
        let pod = pod_milestones.as_slice();
        let phases = phases(Path { began, ended, critical, pod, stopping, cause: cause.cause });
        // The pod ended no earlier than the last of what it waited for could have happened.
        let until = |m: &Milestone| m.at - m.uncertainty;
        let of_end = |m: &&Milestone| !m.kind.is_of_the_tail() && m.at <= ended;
        let earliest = path.iter().chain(pod).filter(of_end).map(until).max();
        let uncertainty = ended.since(earliest.unwrap_or(ended))
            + request.map(|request| request.uncertainty).unwrap_or_default();
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
            revision: 1,
            is_final: self.is_final(members),
            cause: cause.cause,
            cause_certainty: cause.certainty(),
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
            uncertainty,
            containers,
            findings,
            truncated,
            incomplete: incomplete.into_iter().collect(),
        }
    }

    /// The end of a postStart hook that ran after the deletion was requested: the pod's worker waits for it
    /// before it stops anything. Of a hook by the kubelet itself only a sleep says how long it takes.
    fn post_start_ended(&self, request: &Request, stopping: Option<BootTime>) -> Option<Milestone> {
        let held_up = |at: &BootTime| *at > request.at && stopping.is_none_or(|stop| *at <= stop);
        let ended = |container: &'a Container| {
            let hook =
                self.object()?.pod.containers.get(&container.info.name)?.post_start.as_ref()?;
            let processes = self.processes_of(&container.info.id)?;
            match hook {
                Hook::Exec(_) if processes.found.is_some() => None,
                Hook::Exec(binary) => {
                    // The kubelet runs it before any probe.
                    let named = processes.injected().filter(|one| one.is_named(binary));
                    let hook = named.min_by_key(|one| one.began)?;
                    Some((hook.ended?.0, Source::Kernel))
                }
                Hook::Sleep(seconds) => {
                    let began = self.of.anchor.boot(container.info.created);
                    let seconds = u64::try_from(*seconds).ok()?;
                    Some((began + Duration::from_secs(seconds), Source::Inferred))
                }
                Hook::HttpGet | Hook::TcpSocket => None,
            }
        };
        let all = self.containers().filter_map(ended).filter(|(at, _)| held_up(at));
        let (at, source) = all.max_by_key(|(at, _)| *at)?;
        let (kind, uncertainty) = (MilestoneKind::PostStartEnded, Duration::ZERO);
        Some(Milestone { kind, at, uncertainty, source })
    }

    /// The removal of sandbox and cgroup, as far as known now, in the report that begins then.
    pub fn tail(&self, began: BootTime) -> impl Iterator<Item = Milestone> {
        let sandbox = self.sandbox_removed();
        let sandbox = sandbox.map(|s| between(MilestoneKind::SandboxRemoved, s, Source::Cri));
        let cgroup = self.cgroup_removed.filter(|at| *at >= began).map(|at| Milestone {
            kind: MilestoneKind::CgroupRemoved,
            at,
            uncertainty: Duration::ZERO,
            source: Source::Kernel,
        });
        sandbox.into_iter().chain(cgroup)
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
        stopping: Option<BootTime>,
        containers: &[ContainerDeath],
    ) -> BootTime {
        let ended = |c: &ContainerDeath| {
            c.milestone(MilestoneKind::Exited)
                .or_else(|| c.milestone(MilestoneKind::CgroupEmpty))
                .or_else(|| c.milestone(MilestoneKind::ContainerExited))
                .map(|m| m.at)
        };
        // The last one that ended by itself; sidecars are stopped after it.
        let of_main = |c: &&ContainerDeath| c.kind == ContainerKind::Main;
        let last = containers.iter().filter(of_main).filter_map(ended).max();
        let ended_by_itself = last.or_else(|| containers.iter().filter_map(ended).max());
        let stop_began = if cause == Cause::Completed { None } else { stopping };
        match request {
            // The kubelet may have heard of it before this watch did.
            Some(request) => stop_began.map_or(request.at, |at| at.min(request.at)),
            None => {
                let gone = gone.map(|g| g.by).filter(|_| !self.is_static());
                stop_began.or(ended_by_itself).into_iter().chain(gone).min().unwrap_or_default()
            }
        }
    }
}
