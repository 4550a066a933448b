//! One container's report.

use super::PodView;
use crate::{
    api::{CLOCK_SKEW, DeletionRequest, PodObject},
    cause::{AttributedCause, Stop, unstopped},
    cri::Container,
    exit_blockers,
    isolation::Isolation,
    process::{Children, ContainerProcesses, SIGKILL, SIGTERM, SentSignal},
    verdict::{Assessment, VerdictInputs, assess},
};
use crate::{ids::*, input::*, report::*};
use std::time::Duration;

/// The grace of a container that is restarted with all others: 0, which the kubelet raises to its floor.
const RESTART_ALL_GRACE_SECONDS: i64 = 2;

/// The kubelet raises any grace to its floor; 0 is a force delete.
fn granted(grace_seconds: i64) -> i64 {
    if grace_seconds > 0 { grace_seconds.max(GRACE_FLOOR_SECONDS) } else { 0 }
}

/// A stop that is not the kubelet's runs no preStop hook, and neither does one of the kubelet's without a grace
/// (`killContainer`, kuberuntime_container.go).
fn runs_pre_stop(cause: Cause) -> bool {
    !matches!(cause, Cause::ExternalStop | Cause::RestartAllContainers)
}

/// What a container's own processes show.
fn own_findings(
    assessment: &Assessment,
    processes: &ContainerProcesses,
    children: &Children,
    stop_signal: u8,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let at = |kind| assessment.milestones.iter().find(|m| m.kind == kind).map(|m| m.at.boot);
    let stopped = at(MilestoneKind::TermSent).map(|at| (at, stop_signal));
    // Records of a container's own processes are the first to be lost, unless they are counted.
    let harmless = |loss: &LossKind| children.are_counted && loss.is_detail_only();
    if children.unsignalled > 0 && stopped.is_some() && assessment.gaps.iter().all(harmless) {
        findings.push(super::findings::not_signalled(children, stop_signal));
    }
    if assessment.pre_stop_cut_off {
        let detail = "The preStop hook was still running when the stop signal came.";
        findings.push(Finding::new(FindingKind::PrestopCutOff, detail));
    }
    let killed = || Some((processes.killed_since()?, SIGKILL));
    findings.extend(exit_blockers::frozen(processes, stopped.or_else(killed)));
    findings.extend(exit_blockers::unkillable(processes));
    if let Some(how) = &assessment.isolated {
        let detail = format!("{how}: the host's kernel does not see inside.");
        findings.push(Finding::new(FindingKind::UnsupportedRuntime, detail));
    }
    findings
}

impl<'a> PodView<'a> {
    /// The stop signal: the one that the runtime's tool was seen to send, else the runtime's (it has read the
    /// image), else the spec's (containerd before 2.3 ignores `lifecycle.stopSignal`), else the image's, else SIGTERM.
    pub(super) fn stop_signal(&self, container: &Container) -> u8 {
        let by_spec = self.spec(&container.info.name).and_then(|spec| spec.stop_signal);
        let seen = || self.processes_of(&container.info.id)?.sent_by_runtime();
        seen().or_else(|| container.status.stop_signal(by_spec)).unwrap_or(SIGTERM)
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
            .filter(|r| granted(r.grace_seconds) < granted(grace_seconds) && r.date > from);
        let allowed = match shortened {
            Some(r) => r.date.since(from) + seconds(granted(r.grace_seconds)),
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
                Some(_) => DeletionRequest { date: request.made.latest, ..*request },
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

    /// One container's report, not dated yet. `pod_cause`: the cause of the pod's termination, if one is in progress.
    pub fn death(&self, id: &ContainerId, pod_cause: Option<&AttributedCause>) -> ContainerDeath {
        let nothing = ContainerProcesses::default();
        let processes = self.processes_of(id).unwrap_or(&nothing);
        let container = self.container(id);
        let request = self.object().and_then(PodObject::request);
        let request = request.filter(|_| self.ended_with_its_pod(id));
        let inputs = self.verdict_inputs(container, processes, request);
        let (assessment, cause, grace_seconds) = self.attribute(id, inputs, request, pod_cause);
        let processes = if assessment.isolated.is_some() { &nothing } else { processes };
        let mut milestones = assessment.milestones.clone();
        let exited = container.and_then(|c| c.ended);
        milestones.extend(Milestone::within(MilestoneKind::ContainerExited, exited, Source::Cri));
        milestones.sort_by_key(|m| (m.at, m.kind));
        let children = processes.killed_with_namespace(inputs.stop_signal, assessment.stop_began());
        let mut findings = own_findings(&assessment, processes, &children, inputs.stop_signal);
        findings.extend(self.deadline_missed(id, request));
        // With records missing, another process may have been taken for the main one.
        if assessment.isolated.is_none() && assessment.gaps.is_empty() {
            findings.extend(self.contradictions(id, assessment.exit));
        }
        let stop = assessment.stop_began().zip(self.ended(id)).zip(grace_seconds);
        let grace_ratio = stop.and_then(|((from, to), grace)| {
            let allowed = self.allowed(from, to, grace, request)?;
            Some(to.since(from).as_secs_f64() / allowed.as_secs_f64())
        });
        let mut proof = assessment.proof;
        proof.evidence.extend(exit_blockers::evidence(processes));
        proof.evidence.sort_by_key(|e| e.at);
        ContainerDeath {
            node: String::new(),
            id: id.clone(),
            name: container.map(|c| c.info.name.clone()).unwrap_or_default(),
            pod: Some(self.pod_ref()),
            workload: self.workload(),
            kind: inputs.kind,
            verdict: assessment.verdict,
            proof,
            cause: cause.cause,
            cause_source: cause.source,
            cause_message: cause.message,
            findings,
            exit: assessment.exit,
            stop_signal: assessment.stop.map_or(inputs.stop_signal, |stop| stop.signal.signal),
            grace_seconds: grace_seconds.map(granted),
            grace_ratio,
            pre_stop: inputs.pre_stop.cloned(),
            killer: assessment.killer.as_ref().map(Process::from),
            children_killed: children.killed,
            children_names: children.names,
            milestones,
            truncated: assessment.truncated || self.is_truncated(),
            incomplete: assessment.gaps,
        }
    }

    /// A container's verdict, why it was stopped or ended, and the grace of that, seconds. The cause rests on the stop
    /// that the verdict's evidence shows, and the verdict on the grace and the hook of a stop of that cause.
    fn attribute(
        &self,
        id: &ContainerId,
        inputs: VerdictInputs<'_>,
        request: Option<&DeletionRequest>,
        pod_cause: Option<&AttributedCause>,
    ) -> (Assessment, AttributedCause, Option<i64>) {
        let container = self.container(id);
        let name = container.map_or("", |c| c.info.name.as_str());
        let assessment = self.assess(container, inputs);
        let stop = self.stop_of(id, &assessment, request, pod_cause);
        let stated = stop.as_ref().and_then(Stop::stated);
        let is_own = stated.is_some();
        let cause = stated
            .unwrap_or_else(|| self.unstated(id, stop.as_ref(), &assessment, request, pod_cause));
        let Some(stop) = stop else { return (assessment, cause, inputs.grace_seconds) };
        // What ended the pod with another container says nothing of this one's grace.
        let is_anothers = !is_own && cause.cause.is_of_a_container();
        let grace_seconds = match is_anothers && cause.cause != Cause::Restart {
            true => inputs.grace_seconds,
            false => self.grace_of(name, cause.cause, inputs.grace_seconds),
        };
        // Anyone who may create Events may forge them: no verdict depends on them.
        let proven = Stop { event: None, ..stop }.stated().map(|stated| stated.cause);
        let allowed = proven
            .map_or(inputs.grace_seconds, |cause| self.grace_of(name, cause, inputs.grace_seconds));
        let hook = inputs.pre_stop.filter(|_| proven.is_none_or(runs_pre_stop));
        if (allowed, hook) == (inputs.grace_seconds, inputs.pre_stop) {
            return (assessment, cause, grace_seconds);
        }
        let inputs = VerdictInputs { grace_seconds: allowed, pre_stop: hook, ..inputs };
        (self.assess(container, inputs), cause, grace_seconds)
    }

    /// Why one container was stopped, or ended, where nobody states it of its stop.
    fn unstated(
        &self,
        id: &ContainerId,
        stop: Option<&Stop<'_>>,
        assessment: &Assessment,
        request: Option<&DeletionRequest>,
        pod_cause: Option<&AttributedCause>,
    ) -> AttributedCause {
        let Some(stop) = stop else {
            // A container that was not stopped ended with its pod only if it ended when the deletion was
            // certain.
            let gone = || self.object()?.gone.map(|gone| gone.latest);
            let deleted = request.map(|request| request.made.latest).or_else(gone);
            let ended_after = self.ended(id).zip(deleted).is_none_or(|(ended, by)| ended >= by);
            let pod_cause = pod_cause.filter(|pod| !pod.cause.is_requested() || ended_after);
            let pod_cause = pod_cause.filter(|pod| !pod.cause.is_of_a_container());
            return unstopped(pod_cause.cloned(), assessment.unproven.as_deref());
        };
        let with_another = pod_cause.filter(|pod| pod.cause.is_of_a_container());
        if let Some(pod) = with_another.filter(|_| !self.went_on_after(id)) {
            let message = format!("Its pod ended with another container. {}", pod.message);
            return AttributedCause::new(pod.cause, pod.source, message);
        }
        let silent = self.silent(id, stop.began);
        let policy = self.object().zip(stop.spec).map(|(o, spec)| o.pod.restart_policy_of(spec));
        if self.went_on_after(id) && policy != Some("Never") {
            let message = format!("It was stopped while its pod kept running: {silent}.");
            return AttributedCause::inferred(Cause::Restart, message);
        }
        AttributedCause::unknown(format!("It was stopped, and why is not known: {silent}."))
    }

    /// The grace of a stop: known where a statement names the stop.
    fn grace_of(&self, container: &str, cause: Cause, grace: Option<i64>) -> Option<i64> {
        let spec = self.spec(container);
        let of_probe = |probe: Option<&ApiProbe>| probe?.grace_seconds;
        match cause {
            Cause::Liveness => of_probe(spec.and_then(|spec| spec.liveness.as_ref())).or(grace),
            Cause::Startup => of_probe(spec.and_then(|spec| spec.startup.as_ref())).or(grace),
            Cause::RestartAllContainers => Some(RESTART_ALL_GRACE_SECONDS),
            Cause::ExternalStop | Cause::Restart | Cause::Unknown => None,
            _ => grace,
        }
    }

    /// The stop of a container with what the sources say of it; `None`: not stopped.
    pub(super) fn stop_of<'s>(
        &'s self,
        id: &ContainerId,
        assessment: &'s Assessment,
        request: Option<&DeletionRequest>,
        pod_cause: Option<&'s AttributedCause>,
    ) -> Option<Stop<'s>> {
        let began = assessment.stop_began()?;
        let container = self.container(id)?;
        let processes = self.processes_of(id)?;
        let is_kill = |s: &&SentSignal| s.from_outside() && s.signal.signal == SIGKILL;
        let at_once =
            assessment.verdict == Verdict::ForceKilled && self.stop_signal(container) != SIGKILL;
        let killed = processes.sent().find(is_kill).filter(|_| at_once);
        let sent = assessment.stop.as_ref().or(killed);
        let neighbour = sent
            .and_then(|sent| sent.signal.sender.cgroup)
            .and_then(|cgroup| self.stores.cgroups.container(self.stores.cgroups.owner(cgroup)))
            .filter(|owner| *owner != id)
            .and_then(|owner| self.container(owner));
        let attempt = self.object().and_then(|object| object.attempts.get(id));
        let is_dated = assessment.stop.is_some() || assessment.hook.is_some();
        let earliest = if is_dated { began } else { BootTime(0) };
        // What a later attempt or the status shows to have gone on was not stopped with its pod.
        let goes_on = self.went_on_after(id);
        let earlier = self.began_before(began, assessment, request);
        let is_for_it = |pod: &&AttributedCause| {
            let is_of_the_pod = pod.cause != Cause::Unknown && !pod.cause.is_of_a_container();
            is_of_the_pod && !goes_on && !(earlier && pod.cause.is_requested())
        };
        Some(Stop {
            began,
            container: container.info.name.as_str(),
            processes,
            sent,
            neighbour: neighbour.map(|container| container.info.name.as_str()),
            hook: assessment.hook,
            spec: self.spec(&container.info.name),
            started: attempt.is_some_and(|attempt| attempt.started),
            pod: pod_cause.filter(is_for_it),
            status: attempt.and_then(|attempt| attempt.stopped_for),
            event: self.stated_by_event(container, Interval { earliest, latest: began }),
        })
    }

    /// The stop began before the pod's deletion was requested, by the apiserver's stamp as far as the watch bears it
    /// out. Of a stop whose signal may be lost only the SIGKILL is known, which comes at the end of the grace.
    fn began_before(
        &self,
        began: BootTime,
        assessment: &Assessment,
        request: Option<&DeletionRequest>,
    ) -> bool {
        let is_dated =
            assessment.stop.is_some() || assessment.hook.is_some() || assessment.unproven.is_none();
        let object = self.object();
        let grace = match object.and_then(|o| o.in_force(began)) {
            Some(request) if !is_dated => granted(request.grace_seconds),
            _ => 0,
        };
        let gone = || object?.gone.map(|gone| gone.latest);
        match request {
            Some(request) => began < request.made.earliest + seconds(grace),
            None => gone().is_some_and(|gone| began + CLOCK_SKEW < gone + seconds(grace)),
        }
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.object().is_some_and(|o| o.found_deleting)
    }
}
