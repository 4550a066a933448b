//! One container's end.

use super::{Account, between};
use crate::{
    cause::unstopped,
    ids::ContainerId,
    input::{ApiProbe, Hook, LossKind},
    isolation::Isolation,
    lingering,
    object::{CLOCK_SKEW, Request},
    observation::{
        Cause, ContainerDeath, Finding, FindingKind, MilestoneKind, Reason, Source, Verdict,
    },
    pre_stop,
    process::{Processes, SIGKILL, SIGTERM, Sent},
    runtime::{Between, Container},
    stop::{RESTART_ALL_GRACE_SECONDS, Stop},
    time::BootTime,
    verdict::{Case, GRACE_FLOOR_SECONDS, Judgement, judge},
};
use std::{collections::BTreeSet, time::Duration};

/// The grace of a stop that is not the pod's; `None`: nobody knows it.
#[derive(Clone, Copy)]
pub(super) struct OwnGrace(Option<i64>);

/// A judgement, and what of the container went into it.
pub(super) struct Judged {
    pub(super) judgement: Judgement,
    stop_signal: u8,
    grace_seconds: Option<i64>,
    pre_stop: Option<Hook>,
    /// How it is kept out of the host kernel's sight.
    isolated: Option<String>,
}

impl<'a> Account<'a> {
    /// The stop signal: what the runtime's tool was seen to send, else the runtime's word (it has read the
    /// image), else the spec's (containerd before 2.3 does not know `lifecycle.stopSignal`), else SIGTERM.
    pub(super) fn stop_signal(&self, container: &Container) -> u8 {
        let by_spec = || self.object()?.pod.containers.get(&container.info.name)?.stop_signal;
        let seen = || self.processes_of(&container.info.id)?.sent_by_runtime();
        seen().or(container.stop_signal).or_else(by_spec).unwrap_or(SIGTERM)
    }

    /// The grace that was granted: by the first request, else what the runtime noted when the
    /// container was made, else the spec's.
    fn grace(&self, container: &Container, request: Option<&Request>) -> Option<i64> {
        request
            .map(|r| r.grace_seconds)
            .or(container.info.grace_seconds)
            .or_else(|| self.object()?.pod.grace_seconds)
    }

    pub(super) fn longest_grace(
        &self,
        container: &Container,
        request: Option<&Request>,
    ) -> Option<i64> {
        let by_spec = self.object().and_then(|o| o.pod.grace_seconds);
        let by_request = request.map(|r| r.grace_seconds);
        [by_request, container.info.grace_seconds, by_spec].into_iter().flatten().max()
    }

    /// The time from the first act of stopping to the deadline, which a later request may have
    /// brought nearer if it was a request that stopped it.
    fn allowed(
        &self,
        from: BootTime,
        ended: BootTime,
        grace_seconds: i64,
        request: Option<&Request>,
    ) -> Option<Duration> {
        let seconds = |s: i64| u64::try_from(s).ok().map(Duration::from_secs);
        let shortened = self
            .object()
            .filter(|_| request.is_some())
            .and_then(|o| o.in_force(ended))
            .filter(|r| r.grace_seconds < grace_seconds && r.at > from);
        match shortened {
            Some(r) => Some(r.at.since(from) + seconds(r.grace_seconds)?),
            // Whoever has a grace at all has the kubelet's floor.
            None => {
                seconds(if grace_seconds > 0 { grace_seconds.max(GRACE_FLOOR_SECONDS) } else { 0 })
            }
        }
        .filter(|allowed| !allowed.is_zero())
    }

    /// Judges a container's end by these processes, as far as the host sees inside.
    pub(super) fn judged(
        &self,
        container: Option<&Container>,
        processes: &Processes,
        request: Option<&Request>,
        own_grace: Option<OwnGrace>,
    ) -> Judged {
        let name = container.map_or("", |c| c.info.name.as_str());
        let stop_signal = container.map_or(SIGTERM, |c| self.stop_signal(c));
        let grace_seconds = match own_grace {
            Some(OwnGrace(own)) => own,
            None => container.and_then(|container| self.grace(container, request)),
        };
        let pre_stop =
            container.and_then(|c| pre_stop::spec(self.object(), name, c.info.pre_stop.as_ref()));
        let judgement = judge(Case {
            processes,
            stop_signal,
            kind: self.kind(name),
            grace_seconds,
            longest_grace_seconds: container.and_then(|c| self.longest_grace(c, request)),
            pre_stop: pre_stop.as_ref(),
            requested: request.map(|r| r.at),
            earliest_request: request.map(|r| r.since),
        });
        let isolated = container.and_then(|c| self.isolated(c));
        let judgement = match &isolated {
            Some(how) => judgement.unseen(how),
            None => judgement,
        };
        Judged { judgement, stop_signal, grace_seconds, pre_stop, isolated }
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
        let request = self.request(&alone).filter(|_| self.ended_with_its_pod(id));
        let name = container.map(|c| c.info.name.clone()).unwrap_or_default();
        let mut all = self.judged(container, processes, request, None);
        let (cause, own_grace) = self.why(id, &all.judgement, request, pod_cause);
        if own_grace.is_some_and(|OwnGrace(grace)| all.grace_seconds != grace) {
            all = self.judged(container, processes, request, own_grace);
        }
        let Judged { judgement: judged, stop_signal, grace_seconds, pre_stop, isolated } = all;
        let processes = if isolated.is_some() { &nothing } else { processes };
        let mut milestones = judged.milestones.clone();
        if let Some(exited) = container.and_then(|c| c.exited) {
            milestones.push(between(MilestoneKind::ContainerExited, exited, Source::Cri));
        }
        milestones.sort_by_key(|m| (m.at, m.kind));
        let at = |kind| milestones.iter().find(|m| m.kind == kind).map(|m| m.at);
        let stop_began = at(MilestoneKind::StopBegan);
        let children = processes.torn_down(stop_signal, stop_began);

        let mut findings = Vec::new();
        let told = at(MilestoneKind::TermSent).is_some();
        // What a container does among its own processes is the first to be lost, unless it is counted.
        let harmless = |loss: &LossKind| children.are_counted && loss.spares_what_decides();
        if children.unsignalled > 0 && told && judged.losses.iter().all(harmless) {
            findings.push(super::findings::not_signalled(&children, stop_signal));
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
                .allowed(from, to, grace, request)
                .map(|allowed| to.since(from).as_secs_f64() / allowed.as_secs_f64()),
            _ => None,
        };
        let mut proof = judged.proof;
        proof.evidence.extend(lingering::evidence(processes));
        proof.evidence.sort_by_key(|e| e.at);
        ContainerDeath {
            id: id.clone(),
            pod: Some(self.pod_ref()),
            kind: self.kind(&name),
            verdict: judged.verdict,
            proof,
            cause: cause.cause,
            cause_certainty: cause.certainty(),
            cause_source: cause.source,
            cause_proof: cause.sentence,
            findings,
            exit: judged.exit,
            stop_signal: judged.stop.map_or(stop_signal, |stop| stop.signal.signal),
            grace_seconds,
            grace_ratio,
            pre_stop,
            killer: judged.killer,
            children_killed: children.killed,
            children_names: children.names,
            milestones,
            truncated: judged.truncated || self.is_truncated(),
            incomplete: judged.losses,
            name,
        }
    }

    /// Why a container ended, and the grace of its own stop where that is not the pod's.
    fn why(
        &self,
        id: &ContainerId,
        judged: &Judgement,
        request: Option<&Request>,
        pod_cause: Option<&Reason>,
    ) -> (Reason, Option<OwnGrace>) {
        let stop = self.stop_of(id, judged);
        let Some(stop) = stop else {
            // Of what was not stopped only the order counts: it ended when the pod's deletion was certain.
            let gone = || self.object()?.gone.map(|gone| gone.by);
            let deleted = request.map(|request| request.by).or_else(gone);
            let ended_after = self.ended(id).zip(deleted).is_none_or(|(ended, by)| ended >= by);
            let pod_cause = pod_cause.filter(|pod| !pod.cause.is_requested() || ended_after);
            let pod_cause = pod_cause.filter(|pod| !pod.cause.is_of_a_container());
            return (unstopped(pod_cause.cloned(), judged.unproven.as_deref()), None);
        };
        // One after which the pod went on was not stopped for its pod's end.
        let pod_cause = pod_cause.filter(|_| !self.went_on_after(id));
        // It was being stopped before its pod's deletion was requested, as far as can be said: the kubelet
        // may have had another reason.
        let before_request = pod_cause.is_some_and(|reason| reason.cause.is_requested())
            && request.is_some_and(|request| {
                let asked = self.of.anchor.boot(request.asked_wall);
                stop.began < request.since && stop.began + CLOCK_SKEW < asked
            });
        let unknown = |sentence| Reason::new(Cause::Unknown, Source::Inferred, sentence);
        if before_request {
            let reason = stop.evident().unwrap_or_else(|| {
                unknown(
                    "It was told to stop before its pod was deleted, by the apiserver's clock; why is \
                     not known, for no later attempt and no status shows that the pod went on first.",
                )
            });
            return (reason, Some(OwnGrace(self.spec_grace(id))));
        }
        // That of a container's own stop is this one's only if it is the reason for it.
        match pod_cause {
            Some(pod) if !pod.cause.is_of_a_container() => return (pod.clone(), None),
            Some(pod) => {
                return (stop.of_ended_pod().unwrap_or_else(|| pod.clone()), None);
            }
            None => {}
        }
        if !self.went_on_after(id) && self.object().is_some() {
            let reason = stop.evident().unwrap_or_else(|| {
                unknown(
                    "It was told to stop; whether its pod was being deleted is not known, for nothing \
                     shows that the pod went on, and the watch of the apiserver may be late.",
                )
            });
            return (reason, None);
        }
        let reason = stop.reason();
        let spec = self.object().and_then(|object| object.pod.containers.get(stop.container));
        let of_probe = |probe: Option<&ApiProbe>| probe?.grace_seconds;
        let own_grace = match reason.cause {
            Cause::Liveness => of_probe(spec.and_then(|spec| spec.liveness.as_ref())).map(Some),
            Cause::Startup => of_probe(spec.and_then(|spec| spec.startup.as_ref())).map(Some),
            Cause::RestartAllContainers => Some(Some(RESTART_ALL_GRACE_SECONDS)),
            Cause::ExternalStop => Some(None),
            _ => None,
        };
        (reason, own_grace.map(OwnGrace))
    }

    fn spec_grace(&self, id: &ContainerId) -> Option<i64> {
        self.grace(self.of.runtime.container(id)?, None)
    }

    /// The stop of a container, and what its reason rests on; `None`: it was not stopped.
    pub(super) fn stop_of<'s>(
        &'s self,
        id: &ContainerId,
        judged: &'s Judgement,
    ) -> Option<Stop<'s>> {
        let began = judged.stop_began()?;
        let container = self.of.runtime.container(id)?;
        let processes = self.processes_of(id)?;
        let is_kill = |s: &&Sent| s.from_outside() && s.signal.signal == SIGKILL;
        let at_once =
            judged.verdict == Verdict::ForceKilled && self.stop_signal(container) != SIGKILL;
        let killed = processes.sent().find(is_kill).filter(|_| at_once);
        let sender = judged.stop.as_ref().or(killed).and_then(|sent| sent.signal.sender.cgroup);
        let neighbour = sender
            .and_then(|cgroup| self.of.identity.container(self.of.identity.owner(cgroup)))
            .filter(|owner| *owner != id)
            .and_then(|owner| self.of.runtime.container(owner));
        let sandbox = &container.info.sandbox;
        let pause = self.processes_of(&ContainerId::new(sandbox.as_str()));
        let pause_ended = pause.and_then(Processes::ended);
        let stopped = self.of.runtime.sandbox(sandbox).and_then(|sandbox| sandbox.stopped);
        let sandbox_died = match (pause_ended, stopped) {
            (Some(at), _) => (at < began).then_some(Source::Kernel),
            (None, Some(Between { by, .. })) => (by < began).then_some(Source::Cri),
            (None, None) => None,
        };
        let name = container.info.name.as_str();
        let after = container.info.attempt.checked_add(1);
        let next = self
            .containers()
            .find(|other| other.info.name == name && Some(other.info.attempt) == after);
        let ended = self.ended(id);
        let until = ended.unwrap_or(began);
        let interrupted = self.of.runtime.outages(began, until).next().is_some()
            || self.of.keepers.kubelet.changes(began, until).next().is_some();
        let hashes =
            next.and_then(|next| next.info.hash.as_ref()).zip(container.info.hash.as_ref());
        Some(Stop {
            began,
            ended,
            container: name,
            processes,
            signal: judged.stop.as_ref(),
            killed,
            neighbour: neighbour.map(|container| container.info.name.as_str()),
            object: self.object(),
            attempt: self.object().and_then(|object| object.attempt(id)),
            sandbox_died,
            redefined: hashes.is_some_and(|(next, own)| next != own),
            moved: next.is_some_and(|next| next.info.sandbox != *sandbox),
            hook: judged.hook,
            interrupted,
            sandbox_followed: pause_ended.zip(ended).map(|(pause, own)| pause.since(own)),
        })
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.object().is_some_and(|o| o.found_deleting)
    }
}
