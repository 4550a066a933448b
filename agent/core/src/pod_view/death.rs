//! One container's report.

use super::PodView;
use crate::{
    api::{CLOCK_SKEW, DeletionRequest, PodObject},
    cause::{AttributedCause, unstopped},
    cri::{Container, Sandbox},
    exit_blockers,
    isolation::Isolation,
    process::{ContainerProcesses, SI_KERNEL, SIGKILL, SIGTERM, SentSignal},
    stop::{RESTART_ALL_GRACE_SECONDS, StopEvidence},
    verdict::{Assessment, GRACE_FLOOR_SECONDS, HOOK_GAP, KUBELET_SLACK, VerdictInputs, assess},
};
use crate::{ids::*, input::*, report::*, time::*, types::*};
use std::time::Duration;

/// The kubelet raises any grace to its floor; 0 is a force delete.
fn granted(grace_seconds: i64) -> i64 {
    if grace_seconds > 0 { grace_seconds.max(GRACE_FLOOR_SECONDS) } else { 0 }
}

/// A stop that is not the kubelet's runs no preStop hook, and neither does one of the kubelet's without a grace
/// (`killContainer`, kuberuntime_container.go).
fn runs_pre_stop(cause: Cause) -> bool {
    !matches!(cause, Cause::ExternalStop | Cause::RestartAllContainers)
}

/// The SIGKILL from outside of a stop that may have begun long before it, because the record of its stop signal may be
/// lost.
fn undated_kill(stop: &StopEvidence<'_>, assessment: &Assessment) -> Option<BootTime> {
    if stop.signal.is_some() || assessment.unproven.is_none() {
        return None;
    }
    let kill = assessment.milestones.iter().find(|m| m.kind == MilestoneKind::KillSent)?.at;
    let is_it = |sent: &SentSignal| {
        let (signal, code) = (sent.signal.signal, sent.signal.code);
        (sent.at, signal) == (kill, SIGKILL) && sent.from_outside() && code != SI_KERNEL
    };
    stop.processes.sent().any(is_it).then_some(kill)
}

impl<'a> PodView<'a> {
    /// The stop signal: the one that the runtime's tool was seen to send, else the runtime's (it has read the
    /// image), else the spec's (containerd before 2.3 ignores `lifecycle.stopSignal`), else SIGTERM.
    pub(super) fn stop_signal(&self, container: &Container) -> u8 {
        let by_spec = || self.spec(&container.info.name)?.stop_signal;
        let seen = || self.processes_of(&container.info.id)?.sent_by_runtime();
        seen().or(container.status.stop_signal).or_else(by_spec).unwrap_or(SIGTERM)
    }

    /// The grace according to the first request, the runtime's annotation and the spec, in seconds. The first
    /// of them applies.
    pub(super) fn graces(
        &self,
        container: Option<&Container>,
        request: Option<&DeletionRequest>,
    ) -> impl Iterator<Item = i64> {
        let by_spec = self.object().and_then(|o| o.pod.grace_seconds);
        let by_runtime = container.and_then(|c| c.info.grace_seconds);
        [request.map(|r| r.grace_seconds), by_runtime, by_spec].into_iter().flatten()
    }

    /// The time from the stop to the deadline, which a later deletion request may have shortened.
    fn allowed(
        &self,
        from: BootTime,
        ended: BootTime,
        grace_seconds: i64,
        request: Option<&DeletionRequest>,
    ) -> Option<Duration> {
        let shortened = self
            .object()
            .filter(|_| request.is_some())
            .and_then(|o| o.in_force(ended))
            .filter(|r| granted(r.grace_seconds) < granted(grace_seconds) && r.estimate > from);
        let allowed = match shortened {
            Some(r) => r.estimate.since(from) + seconds(granted(r.grace_seconds)),
            None => seconds(granted(grace_seconds)),
        };
        (!allowed.is_zero()).then_some(allowed)
    }

    /// What the verdict of a container's end depends on.
    pub(super) fn verdict_inputs<'p>(
        &'p self,
        container: Option<&'p Container>,
        processes: &'p ContainerProcesses,
        request: Option<&DeletionRequest>,
    ) -> VerdictInputs<'p> {
        let name = container.map_or("", |c| c.info.name.as_str());
        let by_spec = self.spec(name).and_then(|spec| spec.pre_stop.as_ref());
        VerdictInputs {
            processes,
            stop_signal: container.map_or(SIGTERM, |c| self.stop_signal(c)),
            kind: self.kind(name),
            grace_seconds: container.and_then(|_| self.graces(container, request).next()),
            longest_grace_seconds: container.and_then(|_| self.graces(container, request).max()),
            pre_stop: container.and_then(|c| by_spec.or(c.info.pre_stop.as_ref())),
            // A shorter grace, too, ends early: then a SIGKILL does not tell when the request was made.
            request: request.map(|request| match self.object().and_then(PodObject::shortened) {
                Some(_) => DeletionRequest { estimate: request.latest, ..*request },
                None => *request,
            }),
        }
    }

    /// Evaluates a container's end, unless the container is isolated.
    pub(super) fn assess(
        &self,
        container: Option<&Container>,
        inputs: VerdictInputs<'_>,
    ) -> Assessment {
        let assessment = assess(inputs);
        match container.and_then(|c| self.isolated(c)) {
            Some(how) => assessment.unseen(how),
            None => assessment,
        }
    }

    /// How the container is isolated: by its runtime, or by the process that runs in place of `pause`.
    fn isolated(&self, container: &Container) -> Option<String> {
        let shim = container.status.runtime_type.as_deref();
        let Isolation { within, shown_by, name } =
            self.stores.isolation(&container.info.sandbox, shim)?;
        Some(format!("It runs in {within} ({shown_by} {name})"))
    }

    /// One container's report. `pod_cause`: the cause of the pod's termination, if one is in progress.
    pub fn death(&self, id: &ContainerId, pod_cause: Option<&AttributedCause>) -> ContainerDeath {
        let nothing = ContainerProcesses::default();
        let processes = self.processes_of(id).unwrap_or(&nothing);
        let container = self.container(id);
        let request = self.object().and_then(PodObject::request);
        let request = request.filter(|_| self.ended_with_its_pod(id));
        let name = container.map(|c| c.info.name.clone()).unwrap_or_default();
        let mut inputs = self.verdict_inputs(container, processes, request);
        let mut assessment = self.assess(container, inputs);
        // No verdict depends on the kubelet's Events.
        let stop = self.stop_of(id, &assessment);
        let why = |stop| self.why(id, stop, &assessment, inputs.grace_seconds, request, pod_cause);
        let is_stated = stop.as_ref().is_some_and(|stop| stop.stated.is_some());
        let without = is_stated.then(|| why(stop.clone().map(StopEvidence::without_events)));
        let (mut cause, grace_seconds) = why(stop);
        let (decided, allowed) = without.unwrap_or_else(|| (cause.clone(), grace_seconds));
        if let Some(ended) = self.ended(id) {
            cause.message.push_str(self.without_events(&cause, ended));
        }
        let pre_stop = inputs.pre_stop;
        let hook = pre_stop.filter(|_| runs_pre_stop(decided.cause));
        if (allowed, hook) != (inputs.grace_seconds, pre_stop) {
            (inputs.grace_seconds, inputs.pre_stop) = (allowed, hook);
            assessment = self.assess(container, inputs);
        }
        let stop_signal = inputs.stop_signal;
        let processes = if assessment.isolated.is_some() { &nothing } else { processes };
        let mut milestones = assessment.milestones.clone();
        let exited = container.and_then(|c| c.ended);
        milestones.extend(Milestone::within(MilestoneKind::ContainerExited, exited, Source::Cri));
        milestones.sort_by_key(|m| (m.at, m.kind));
        let at = |kind| milestones.iter().find(|m| m.kind == kind).map(|m| m.at);
        let stop_began = at(MilestoneKind::StopBegan);
        let children = processes.killed_with_namespace(stop_signal, stop_began);

        let mut findings = Vec::new();
        let was_sent = at(MilestoneKind::TermSent).is_some();
        // Records of a container's own processes are the first to be lost, unless they are counted.
        let harmless = |loss: &LossKind| children.are_counted && loss.is_detail_only();
        if children.unsignalled > 0 && was_sent && assessment.gaps.iter().all(harmless) {
            findings.push(super::findings::not_signalled(&children, stop_signal));
        }
        if assessment.pre_stop_cut_off {
            let detail = "The preStop hook was still running when the stop signal came.";
            findings.push(Finding::new(FindingKind::PrestopCutOff, detail));
        }
        let stopped = at(MilestoneKind::TermSent).map(|at| (at, stop_signal));
        let killed = || Some((processes.killed_since()?, SIGKILL));
        findings.extend(exit_blockers::frozen(processes, stopped.or_else(killed)));
        findings.extend(exit_blockers::unkillable(processes));
        findings.extend(self.deadline_missed(id, request));
        match &assessment.isolated {
            Some(how) => findings.push(Finding::new(
                FindingKind::UnsupportedRuntime,
                format!("{how}: the host's kernel does not see inside."),
            )),
            // With records missing, another process may have been taken for the main one.
            None if assessment.gaps.is_empty() => {
                findings.extend(self.contradictions(id, assessment.exit));
            }
            None => {}
        }

        let ended = self.ended(id);
        let grace_ratio =
            stop_began.zip(ended).zip(grace_seconds).and_then(|((from, to), grace)| {
                let allowed = self.allowed(from, to, grace, request)?;
                Some(to.since(from).as_secs_f64() / allowed.as_secs_f64())
            });
        let mut proof = assessment.proof;
        proof.evidence.extend(exit_blockers::evidence(processes));
        proof.evidence.sort_by_key(|e| e.at);
        ContainerDeath {
            id: id.clone(),
            pod: Some(self.pod_ref()),
            workload: self.workload(),
            kind: inputs.kind,
            verdict: assessment.verdict,
            proof,
            cause: cause.cause,
            cause_certainty: cause.certainty(),
            cause_source: cause.source,
            cause_message: cause.message,
            findings,
            exit: assessment.exit,
            stop_signal: assessment.stop.map_or(stop_signal, |stop| stop.signal.signal),
            grace_seconds: grace_seconds.map(granted),
            grace_ratio,
            pre_stop: pre_stop.cloned(),
            killer: assessment.killer,
            children_killed: children.killed,
            children_names: children.names,
            milestones,
            truncated: assessment.truncated || self.is_truncated(),
            incomplete: assessment.gaps,
            name,
        }
    }

    /// The cause, and the grace that applied: a stop that is not the pod's may have its own.
    fn why(
        &self,
        id: &ContainerId,
        stop: Option<StopEvidence<'_>>,
        assessment: &Assessment,
        grace: Option<i64>,
        request: Option<&DeletionRequest>,
        pod_cause: Option<&AttributedCause>,
    ) -> (AttributedCause, Option<i64>) {
        let Some(stop) = stop else {
            // A container that was not stopped ended with its pod only if it ended when the deletion was
            // certain.
            let gone = || self.object()?.gone.map(|gone| gone.latest);
            let deleted = request.map(|request| request.latest).or_else(gone);
            let ended_after = self.ended(id).zip(deleted).is_none_or(|(ended, by)| ended >= by);
            let pod_cause = pod_cause.filter(|pod| !pod.cause.is_requested() || ended_after);
            let pod_cause = pod_cause.filter(|pod| !pod.cause.is_of_a_container());
            return (unstopped(pod_cause.cloned(), assessment.unproven.as_deref()), grace);
        };
        // A container whose pod kept running was not stopped for its pod's termination.
        let pod_cause = pod_cause.filter(|_| !self.went_on_after(id));
        // The stop began before the pod's deletion was requested, so the kubelet may have had another reason.
        let gone = || self.gone().map(|gone| gone.latest);
        let certain = request.map(|request| request.latest).or_else(gone);
        let asked_later = request.is_some_and(|request| {
            stop.began < request.earliest && stop.began + CLOCK_SKEW < request.by_its_clock
        });
        // Of a stop for the deletion, SIGKILL comes at the end of the grace.
        let killed = undated_kill(&stop, assessment);
        let too_early = |at| self.shortest_deadline(request?, at).filter(|deadline| at < *deadline);
        let killed_early = killed.and_then(too_early).is_some();
        let killed_late = killed.is_some_and(|at| {
            let grace = grace.map_or(Duration::ZERO, |grace| seconds(granted(grace)));
            match request {
                Some(request) => at > request.latest + grace + KUBELET_SLACK,
                None => certain.is_some_and(|by| at + CLOCK_SKEW < by),
            }
        });
        // A list dates the request into the whole outage before it, so the rest of the pod decides.
        let shown_later = certain.is_some_and(|by| {
            (killed_late || killed.is_none() && stop.began + CLOCK_SKEW < by)
                && self.ran_on_after(id)
                || stop.began < by && stop.is_redefined_before(by)
        });
        let is_requested = pod_cause.is_some_and(|reason| reason.cause.is_requested());
        let before_request =
            is_requested && (asked_later || killed_early || shown_later || stop.stated.is_some());
        let unknown = |message| AttributedCause::unknown(message);
        if is_requested
            && !before_request
            && killed.is_some()
            && certain.is_some_and(|by| stop.is_redefined_before(by))
        {
            let reason = unknown(
                "It was stopped; whether for its pod's deletion or for its changed image is not known, because the \
                 record of its stop signal is missing.",
            );
            return (reason, grace);
        }
        if before_request {
            let reason = stop.explained().or_else(|| stop.remaining()).unwrap_or_else(|| {
                unknown(
                    "It was stopped before its pod was deleted, according to the apiserver's clock or to when the \
                     rest of the pod was stopped; the reason is not known, because no later attempt and no status shows that the pod kept running in between.",
                )
            });
            let grace = self.graces(self.container(id), None).next();
            return match &stop.stated {
                Some(_) => (reason.clone(), self.own_grace(&stop, reason.cause, grace)),
                None => (reason, grace),
            };
        }
        // Another container's own stop explains this one's only if the same reason applies to it.
        match pod_cause {
            Some(pod) if !pod.cause.is_of_a_container() => return (pod.clone(), grace),
            Some(pod) => return (stop.of_ended_pod().unwrap_or_else(|| pod.clone()), grace),
            None => {}
        }
        if !self.went_on_after(id) && self.object().is_some() {
            let reason = stop.evident().unwrap_or_else(|| {
                unknown(
                    "It was stopped; whether its pod was being deleted is not known, because nothing \
                     shows that the pod kept running, and the watch of the apiserver may be late.",
                )
            });
            return (reason, grace);
        }
        let reason = stop.reason();
        let own_grace = self.own_grace(&stop, reason.cause, grace);
        (reason, own_grace)
    }

    /// When a container may have been killed first that is stopped for the deletion: at the end of the shortest grace
    /// that was granted before `killed`. The kubelet's own last delete, of a grace of 0, follows.
    fn shortest_deadline(&self, request: &DeletionRequest, killed: BootTime) -> Option<BootTime> {
        let earlier = |later: &&DeletionRequest| later.grace_seconds > 0 || later.estimate < killed;
        let shortened = self.object()?.changed.iter().filter(earlier);
        let all = shortened.chain([request]).map(|request| granted(request.grace_seconds));
        Some(request.earliest + seconds(all.min()?))
    }

    /// The grace of a stop that is not the pod's.
    fn own_grace(&self, stop: &StopEvidence<'_>, cause: Cause, grace: Option<i64>) -> Option<i64> {
        let spec = self.spec(stop.container);
        let of_probe = |probe: Option<&ApiProbe>| probe?.grace_seconds;
        match cause {
            Cause::Liveness => of_probe(spec.and_then(|spec| spec.liveness.as_ref())).or(grace),
            Cause::Startup => of_probe(spec.and_then(|spec| spec.startup.as_ref())).or(grace),
            Cause::RestartAllContainers => Some(RESTART_ALL_GRACE_SECONDS),
            Cause::ExternalStop => None,
            _ => grace,
        }
    }

    /// What else of the pod ran was stopped later than by a kubelet that stops the pod: it stops the main
    /// containers at once, then the sidecars, then the sandbox.
    fn ran_on_after(&self, id: &ContainerId) -> bool {
        let is_main = |id: &ContainerId| {
            self.container(id).is_some_and(|c| self.kind(&c.info.name) == ContainerKind::Main)
        };
        let (all, own) = (&self.members.all, self.ended(id));
        let mains_ended = all.iter().filter(|other| is_main(other)).map(|id| self.ended(id)).max();
        let after = |after: Option<BootTime>, at: Option<BootTime>| {
            after.zip(at).is_some_and(|(after, at)| at > after + HOOK_GAP)
        };
        let is_later = |other: &ContainerId| {
            let (container, processes) = (self.container(other), self.processes_of(other));
            let inputs = |of| self.verdict_inputs(container, of, None);
            // The kernel does not see when a hook without a process began.
            let is_seen =
                |inputs: &VerdictInputs<'_>| matches!(inputs.pre_stop, None | Some(Hook::Exec(_)));
            let seen = processes.map(inputs).filter(is_seen);
            let began = seen.and_then(|inputs| self.assess(container, inputs).stop_began());
            after(if is_main(other) { own } else { mains_ended.flatten().max(own) }, began)
        };
        let pause = |s: &Sandbox| self.processes_of_sandbox(&s.info.id)?.ended();
        let sandbox = self.own_sandboxes().filter_map(pause).max();
        after(self.members.ended, sandbox) || all.iter().any(|other| other != id && is_later(other))
    }

    /// The stop of a container with the evidence for its reason; `None`: not stopped.
    pub(super) fn stop_of<'s>(
        &'s self,
        id: &ContainerId,
        assessment: &'s Assessment,
    ) -> Option<StopEvidence<'s>> {
        let began = assessment.stop_began()?;
        let container = self.container(id)?;
        let processes = self.processes_of(id)?;
        let is_kill = |s: &&SentSignal| s.from_outside() && s.signal.signal == SIGKILL;
        let at_once =
            assessment.verdict == Verdict::ForceKilled && self.stop_signal(container) != SIGKILL;
        let killed = processes.sent().find(is_kill).filter(|_| at_once);
        let sender = assessment.stop.as_ref().or(killed).and_then(|sent| sent.signal.sender.cgroup);
        let neighbour = sender
            .and_then(|cgroup| self.stores.cgroups.container(self.stores.cgroups.owner(cgroup)))
            .filter(|owner| *owner != id)
            .and_then(|owner| self.container(owner));
        let sandbox = &container.info.sandbox;
        let pause_ended = self.processes_of_sandbox(sandbox).and_then(ContainerProcesses::ended);
        let stopped = self.stores.cri.sandbox(sandbox).and_then(|sandbox| sandbox.ended);
        let sandbox_died = match (pause_ended, stopped) {
            (Some(at), _) => (at < began).then_some(Source::Kernel),
            (None, Some(Interval { latest: by, .. })) => (by < began).then_some(Source::Cri),
            (None, None) => None,
        };
        let name = container.info.name.as_str();
        let after = container.info.attempt.checked_add(1);
        let next = self
            .containers()
            .find(|other| other.info.name == name && Some(other.info.attempt) == after);
        let ended = self.ended(id);
        let until = ended.unwrap_or(began);
        let interrupted = self.stores.cri.connection.gaps.between(began, until).next().is_some()
            || self.stores.node.kubelet.changes(began, until).next().is_some();
        let hashes =
            next.and_then(|next| next.info.hash.as_ref()).zip(container.info.hash.as_ref());
        let events = self.stop_events(container, began, ended);
        Some(StopEvidence {
            stated: events.stated,
            unhealthy: events.unhealthy,
            began,
            ended,
            container: name,
            processes,
            signal: assessment.stop.as_ref(),
            killed,
            neighbour: neighbour.map(|container| container.info.name.as_str()),
            object: self.object(),
            attempt: self.object().and_then(|object| object.attempts.get(id)),
            sandbox_died,
            redefined: hashes.map(|(next, own)| next != own),
            moved: next.is_some_and(|next| next.info.sandbox != *sandbox),
            hook: assessment.hook,
            interrupted,
            sandbox_followed: pause_ended.zip(ended).map(|(pause, own)| pause.since(own)),
        })
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.object().is_some_and(|o| o.found_deleting)
    }
}
