//! The pod's report: its containers, cause and phases.

use super::PodView;
use crate::{
    api::{DeletionRequest, PodObject},
    cause::{AttributedCause, TERMINATION_BY_KUBELET, by_kubelet, deletion, perhaps_stopped},
    cri::Container,
    phases::phases,
    verdict::{Assessment, KUBELET_SLACK},
};
use crate::{ids::*, input::*, report::*};
use std::{collections::BTreeSet, time::Duration};

/// How the containers ended that decide why their pod did: the main ones or, if none of them ran, the others.
struct PodEnd<'a> {
    deciding: Vec<(&'a ContainerId, Option<Assessment>)>,
    had_main: bool,
    /// One of them was stopped, and did not go on.
    stopped: bool,
    is_static: bool,
}

impl<'a> PodView<'a> {
    /// The containers that ended with the pod: after the request or, without one, together with the last.
    /// Earlier deaths and replaced attempts were reported on their own. Init containers count only if the pod
    /// had no others.
    fn final_containers(&self) -> impl Iterator<Item = &ContainerId> {
        let request = self.request();
        let last = self.members.all.iter().filter_map(|id| self.ended(id)).max();
        let is_init = |c: &Container| self.kind(&c.info.name) == ContainerKind::Init;
        let only_init = self.members.all.iter().filter_map(|id| self.container(id)).all(is_init);
        let longest = |id: &ContainerId| self.graces(Some(self.container(id)?), None).max();
        let grace = self.members.all.iter().filter_map(longest).max().unwrap_or_default();
        let window = seconds(grace) + KUBELET_SLACK;
        self.members.all.iter().filter(move |id| match request {
            Some(_) => self.ended_with_its_pod(id),
            None => {
                let of_end = |c: &Container| self.is_last_attempt(c) && (only_init || !is_init(c));
                let late = self.ended(id).zip(last).is_none_or(|(at, last)| at + window >= last);
                late && self.container(id).is_none_or(of_end)
            }
        })
    }

    /// No later attempt of the container exists.
    pub(super) fn is_last_attempt(&self, container: &Container) -> bool {
        // The wall clock, by which the runtime dates them, may be set back. The kernel's may not.
        let attempt = |c: &Container| {
            let began = self.processes_of(&c.info.id).and_then(|own| own.created);
            (began, c.info.attempt, c.info.created)
        };
        let (id, name) = (&container.info.id, &container.info.name);
        let is_other = |c: &&Container| c.info.name == *name && c.info.id != *id && self.ran(c);
        !self.containers().filter(is_other).any(|c| attempt(c) > attempt(container))
    }

    pub(super) fn kind(&self, container: &str) -> ContainerKind {
        self.spec(container).map_or(ContainerKind::Main, |c| c.kind)
    }

    /// Why the pod terminated: the first statement that there is.
    pub fn cause(&self) -> AttributedCause {
        let end = self.pod_end();
        let statements = [
            Self::by_deletion,
            Self::by_the_kubelets_status,
            Self::by_events,
            Self::by_a_deletion_in_a_gap,
            Self::by_its_own_end,
            Self::by_another_reason,
            Self::by_its_last_container,
            Self::by_its_manifest,
        ];
        let stated = statements.into_iter().find_map(|statement| statement(self, &end));
        stated.unwrap_or_else(|| {
            let last = end.deciding.first().map(|(id, _)| *id);
            let silent = last.map(|id| self.silent(id, self.ended(id).unwrap_or_default()));
            AttributedCause::unknown(format!(
                "It was stopped without a deletion, and why is not known: {}.",
                silent.unwrap_or_default()
            ))
        })
    }

    /// How the containers ended that decide.
    fn pod_end(&self) -> PodEnd<'_> {
        let is_main = |c: &Container| self.kind(&c.info.name) == ContainerKind::Main;
        let (mains, others): (Vec<_>, Vec<_>) =
            self.final_containers().partition(|id| self.container(id).is_some_and(is_main));
        let had_main = !mains.is_empty();
        let assess = |id: &ContainerId| {
            let container = Some(self.container(id)?);
            let inputs = self.verdict_inputs(container, self.processes_of(id)?, None);
            Some(self.assess(container, inputs))
        };
        let deciding = if had_main { mains } else { others };
        let deciding: Vec<_> = deciding.into_iter().map(|id| (id, assess(id))).collect();
        let stopped = deciding.iter().any(|(id, assessment)| {
            assessment.as_ref().is_some_and(|one| one.stop_began().is_some())
                && !self.went_on_after(id)
        });
        // Deleting the mirror of a static pod stops nothing.
        let is_static = self.is_static() || self.object().is_some_and(PodObject::is_mirror);
        PodEnd { deciding, had_main, stopped, is_static }
    }

    /// The apiserver: it was deleted while part of it ran.
    fn by_deletion(&self, end: &PodEnd<'_>) -> Option<AttributedCause> {
        let (object, outlived) = (self.object(), self.outlived().is_some());
        // The last status showed part of the pod running when the object was deleted, and that part was stopped.
        let forced = |object: &PodObject| {
            let disrupted = object.pod.disruption.as_deref();
            let by_control_plane = disrupted.is_some_and(|reason| reason != TERMINATION_BY_KUBELET);
            let unasked = object.requested.is_none() && !object.pod.is_over();
            object.deletion_observed && (by_control_plane || unasked)
        };
        let deleted =
            self.request().is_some() || outlived || end.stopped && object.is_some_and(forced);
        (deleted && !end.is_static).then(|| deletion(object, outlived))
    }

    /// The apiserver: the reason that the kubelet gave.
    fn by_the_kubelets_status(&self, _: &PodEnd<'_>) -> Option<AttributedCause> {
        by_kubelet(self.object()?)
    }

    /// The kubelet: its Events of the pod that was stopped. They come before what was missed of its object.
    fn by_events(&self, end: &PodEnd<'_>) -> Option<AttributedCause> {
        end.stopped.then(|| self.cause_by_events())?
    }

    /// The watch was away when its object was deleted. Without a stop nothing tells whether it ended before.
    fn by_a_deletion_in_a_gap(&self, end: &PodEnd<'_>) -> Option<AttributedCause> {
        let object = self.object().filter(|one| !end.is_static && one.deleted_during_gap())?;
        if end.stopped && self.gone().is_some() {
            return Some(deletion(Some(object), false));
        }
        let pod = &object.pod;
        // In back-off nothing runs either, and the pod is not over.
        let is_over = pod.is_finished() || pod.is_over() && pod.is_completing();
        (!is_over).then(|| {
            AttributedCause::unknown(
                "Its object was deleted while the watch of the apiserver was broken: whether that was before its \
                 containers ended is not known.",
            )
        })
    }

    /// The kernel: none of its containers was stopped.
    fn by_its_own_end(&self, end: &PodEnd<'_>) -> Option<AttributedCause> {
        if end.stopped {
            return None;
        }
        let assessments = || end.deciding.iter().map(|(_, assessment)| assessment.as_ref());
        let complete = assessments().all(|one| one.is_some_and(|one| one.exit.is_some()));
        let unproven = assessments().flatten().find_map(|one| one.unproven.as_deref());
        Some(match unproven {
            _ if !end.is_static
                && self.object().is_none()
                && self.stores.api.watch.last_up.is_some() =>
            {
                AttributedCause::unknown(
                    "Its containers ended without a recorded stop signal; its object was deleted while the \
                     watch of the apiserver was broken: whether it was deleted first is not known.",
                )
            }
            _ if !complete => {
                perhaps_stopped("the kernel's record of how one of its containers ended is missing")
            }
            Some(missing) => perhaps_stopped(missing),
            None => {
                let message = if end.had_main {
                    "Its main containers ended, and none had been stopped with the pod."
                } else {
                    "None of its main containers ran; the others ended, and none had been stopped."
                };
                AttributedCause::new(Cause::Completed, Source::Kernel, message)
            }
        })
    }

    /// The apiserver: a reason that coroner does not know.
    fn by_another_reason(&self, _: &PodEnd<'_>) -> Option<AttributedCause> {
        let reason = self.object().map(|object| object.pod.reason.as_str());
        let reason = reason.filter(|reason| !reason.is_empty())?;
        let message = format!("It was stopped without a deletion; its status.reason is {reason}.");
        Some(AttributedCause::new(Cause::Unknown, Source::Api, message))
    }

    /// What is stated of the stop of the main container that ended last. The kubelet stops a sidecar after all main
    /// containers have exited, seen or not; and a pod whose container is restarted has not ended with it.
    fn by_its_last_container(&self, end: &PodEnd<'_>) -> Option<AttributedCause> {
        let of_end = end.deciding.iter().filter(|(id, _)| !self.went_on_after(id));
        let last = of_end.filter(|_| end.had_main).max_by_key(|(id, _)| self.ended(id));
        let (id, assessment) = last?;
        let stated = self.stop_of(id, assessment.as_ref()?, None, None)?.stated()?;
        let may_be = !stated.cause.is_of_a_container()
            || !self.stores.api.has_apiserver
            || self.object().is_some_and(|object| object.pod.is_finished());
        may_be.then_some(stated)
    }

    /// The runtime: it is a static pod.
    fn by_its_manifest(&self, end: &PodEnd<'_>) -> Option<AttributedCause> {
        let message = if self.is_replaced() {
            "A static pod was stopped: its manifest was changed. A static pod with its name and another UID followed."
        } else {
            "A static pod was stopped: its manifest was removed or changed."
        };
        end.is_static.then(|| AttributedCause::new(Cause::StaticRemoved, Source::Cri, message))
    }

    /// A static pod whose manifest changes has another UID, and its sandbox follows once this one is over
    /// (pod_workers.go, `allowStaticPodStart`).
    fn is_replaced(&self) -> bool {
        let own = self.pod_ref();
        let created = self.sandboxes.iter().filter_map(|sandbox| sandbox.info.created).max();
        self.stores.cri.sandboxes.entries().values().any(|other| {
            let is_namesake =
                (&other.info.namespace, &other.info.name) == (&own.namespace, &own.name);
            // Anyone may create a pod of that name at the apiserver.
            is_namesake
                && other.info.is_static()
                && other.info.pod != own.uid
                && other.info.created > created
        })
    }

    /// By how much the processes outlived the object.
    fn outlived(&self) -> Option<Duration> {
        let gone = self.gone()?;
        let last = self.members.all.iter().filter_map(|id| Some(self.end(id)?.earliest)).max()?;
        (last > gone.latest && !self.object()?.is_mirror()).then(|| last.since(gone.latest))
    }

    pub(crate) fn pod_ref(&self) -> PodRef {
        if let Some(sandbox) = self.stores.cri.sandboxes_of(self.uid).next() {
            return sandbox.info.pod_ref();
        }
        self.object().map_or_else(|| PodRef::nameless(self.uid), PodObject::pod_ref)
    }

    /// The reports of the containers that ended with the pod, oldest first.
    fn deaths(&self, cause: &AttributedCause) -> Vec<ContainerDeath> {
        let mut containers: Vec<ContainerDeath> =
            self.final_containers().map(|id| self.death(id, Some(cause))).collect();
        let order =
            |id: &ContainerId| self.container(id).map(|c| (c.info.created, c.info.name.clone()));
        containers.sort_by_key(|c| (order(&c.id), c.id.clone()));
        containers
    }

    /// Builds the report from the evidence so far.
    pub fn build(&self, incarnation: u32) -> PodTermination {
        let (request, gone, cause) = (self.request(), self.gone(), self.cause());
        let containers = self.deaths(&cause);
        let critical = containers.iter().max_by_key(|c| (self.ended(&c.id), &c.id));

        let stopping = stop_began(&containers);
        let began = self.began(request, gone, &cause, &containers);
        let ended = self.last().unwrap_or(began).max(began);
        let traffic = self.traffic();
        let pod = self.pod_milestones(request, gone, began, stopping, traffic.as_ref());

        let path = critical.map(|c| c.milestones.as_slice()).unwrap_or_default();
        let found = critical.and_then(|c| self.processes_of(&c.id)?.found);
        let phases = phases((began, ended), critical, &pod, stopping, found, cause.cause);
        let mut milestones: Vec<Milestone> = path.iter().chain(&pod).cloned().collect();
        milestones.sort_by_key(|m| (m.at, m.kind));
        let uncertainty = ended.since(earliest_end(&milestones, ended))
            + request.map(|request| request.uncertainty()).unwrap_or_default();

        let truncated = self.is_truncated() || containers.iter().any(|c| c.truncated);
        let mut findings = self.pod_findings(began, ended);
        if let Some(traffic) = &traffic {
            let never_listened = traffic.never_listened(stopping, truncated);
            findings.extend(self.traffic_findings(traffic, never_listened));
        }
        let lost = containers.iter().flat_map(|container| container.incomplete.iter().copied());
        let incomplete: BTreeSet<LossKind> = lost.chain(self.traffic_loss()).collect();
        let clock = &self.stores.anchor;
        let began_wall_ns = clock.wall(began).0;
        let mut report = PodTermination {
            node: String::new(),
            pod: self.pod_ref(),
            life: incarnation,
            revision: 1,
            is_final: self.is_final(),
            workload: self.workload(),
            cause: cause.cause,
            cause_source: cause.source,
            cause_message: cause.message,
            grace_seconds: self.graces(None, request).next(),
            shortened_to_seconds: self.shortened().map(|s| s.grace_seconds),
            began: began.into(),
            ended: ended.into(),
            took: ended.since(began),
            request_lag_seconds: request
                .map(|r| began_wall_ns.saturating_sub(r.stamp.0) as f64 / 1e9),
            critical: critical.map(|c| c.id.clone()),
            milestones,
            phases,
            uncertainty,
            containers,
            traffic,
            findings,
            truncated,
            incomplete: incomplete.into_iter().collect(),
        };
        report.date(clock);
        report
    }

    fn pod_milestones(
        &self,
        request: Option<&DeletionRequest>,
        gone: Option<Interval>,
        began: BootTime,
        stopping: Option<BootTime>,
        traffic: Option<&Traffic>,
    ) -> Vec<Milestone> {
        use MilestoneKind as M;
        let object = self.object().filter(|_| request.is_some());
        // Once the object is gone no later status can come.
        let reported = self.object().filter(|_| gone.is_some()).and_then(|o| o.reported);
        let shortened = self.shortened().filter(|s| s.uncertainty().is_zero());
        let by_api = |kind, at| Milestone::exact(kind, at, Source::Api);
        let requested = request.map(|request| Milestone {
            kind: M::DeleteRequested,
            at: began.into(),
            uncertainty: request.uncertainty(),
            source: if began < request.date { Source::Inferred } else { Source::Api },
        });
        let of_pod = [
            requested,
            request.and_then(|r| self.post_start_ended(r, stopping)),
            Milestone::within(M::SandboxStopped, self.all_sandboxes(|s| s.ended), Source::Cri),
            Milestone::within(M::ObjectGone, gone, Source::Api),
            by_api(M::StatusReported, reported.filter(|at| *at >= began)),
            by_api(M::FinalDelete, object.and_then(|o| o.final_delete)),
            by_api(M::GraceShortened, shortened.map(|s| s.date)),
        ];
        let of_traffic = traffic.map(|traffic| Self::traffic_milestones(traffic, began));
        let all = of_pod.into_iter().flatten().chain(of_traffic.into_iter().flatten());
        all.chain(self.tail(began)).collect()
    }

    fn pod_findings(&self, began: BootTime, ended: BootTime) -> Vec<Finding> {
        let outlived = self.outlived().map(|by| {
            let detail = format!("Its processes outlived the pod's object by {}.", secs(by));
            Finding::new(FindingKind::OutlivedObject, detail)
        });
        let restarted =
            [self.runtime_restarted(began, ended), self.kubelet_restarted(began, ended)];
        outlived.into_iter().chain(restarted.into_iter().flatten()).collect()
    }

    /// The last request that shortened the grace.
    fn shortened(&self) -> Option<&DeletionRequest> {
        self.request()?;
        self.object()?.shortened()
    }

    /// The end of a postStart hook that ran after the deletion was requested: the pod's worker waits for it
    /// before it stops anything. Of the hooks without a process only a sleep has a known length.
    fn post_start_ended(
        &self,
        request: &DeletionRequest,
        stopping: Option<BootTime>,
    ) -> Option<Milestone> {
        let held_up = |at: &BootTime| *at > request.date && stopping.is_none_or(|stop| *at <= stop);
        let ended = |container: &'a Container| {
            let hook = self.spec(&container.info.name)?.post_start.as_ref()?;
            let processes = self.processes_of(&container.info.id)?;
            match hook {
                Hook::Exec(_) if processes.found.is_some() => None,
                Hook::Exec(binary) => {
                    // The kubelet runs the hook before any probe.
                    let named = processes.exec_processes().filter(|one| one.is_named(binary));
                    let hook = named.min_by_key(|one| one.began)?;
                    Some((hook.ended?.0, Source::Kernel))
                }
                Hook::Sleep(slept) => {
                    let began = self.stores.anchor.boot(container.info.created?);
                    Some((began + seconds(*slept), Source::Inferred))
                }
                Hook::HttpGet | Hook::TcpSocket => None,
            }
        };
        let all = self.containers().filter_map(ended).filter(|(at, _)| held_up(at));
        let (at, source) = all.max_by_key(|(at, _)| *at)?;
        Milestone::exact(MilestoneKind::PostStartEnded, Some(at), source)
    }

    /// The removal of sandbox and cgroup so far, for the report that begins at `began`.
    pub fn tail(&self, began: BootTime) -> impl Iterator<Item = Milestone> {
        let sandbox = self.all_sandboxes(|s| s.removed);
        let sandbox = Milestone::within(MilestoneKind::SandboxRemoved, sandbox, Source::Cri);
        let cgroup = self.cgroup_removed.filter(|at| *at >= began);
        let cgroup = Milestone::exact(MilestoneKind::CgroupRemoved, cgroup, Source::Kernel);
        sandbox.into_iter().chain(cgroup)
    }

    /// Where the report begins.
    fn began(
        &self,
        request: Option<&DeletionRequest>,
        gone: Option<Interval>,
        cause: &AttributedCause,
        containers: &[ContainerDeath],
    ) -> BootTime {
        use MilestoneKind as M;
        // A stop that somebody else had begun is not that of the deletion.
        let for_it = |c: &&ContainerDeath| request.is_none() || c.cause == cause.cause;
        let its_stop = containers.iter().filter(for_it).filter_map(|c| c.milestone(M::StopBegan));
        let stopping = its_stop.map(|began| began.at.boot).min();
        let ended = |c: &ContainerDeath| {
            let kinds = [M::Exited, M::CgroupEmpty, M::ContainerExited];
            kinds.into_iter().find_map(|kind| Some(c.milestone(kind)?.at.boot))
        };
        // The last main container that exited; sidecars are stopped after it.
        let is_main = |c: &&ContainerDeath| c.kind == ContainerKind::Main;
        let last = containers.iter().filter(is_main).filter_map(ended).max();
        let ended_by_itself = last.or_else(|| containers.iter().filter_map(ended).max());
        let stop_began = if cause.cause == Cause::Completed { None } else { stopping };
        match request {
            // The kubelet may have received the request before this watch did.
            Some(request) => stop_began.map_or(request.date, |at| at.min(request.date)),
            None => {
                let gone = gone.map(|g| g.latest).filter(|_| !self.is_static());
                let sandbox = self.all_sandboxes(|s| s.ended).map(|stopped| stopped.earliest);
                let began = stop_began.or(ended_by_itself).into_iter().chain(gone).min();
                began.or(sandbox).unwrap_or_default()
            }
        }
    }
}

/// The pod ended no earlier than the last of these events could have happened.
fn earliest_end(milestones: &[Milestone], ended: BootTime) -> BootTime {
    let of_end = |m: &&Milestone| !m.kind.is_of_the_tail() && m.at.boot <= ended;
    milestones.iter().filter(of_end).map(|m| m.at.boot - m.uncertainty).max().unwrap_or(ended)
}
