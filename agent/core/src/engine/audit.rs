//! When the main process of each running container is read, and what is reported of it.

use super::Engine;
use crate::{
    audit::{Advice, PastStops, Reading, Spec, advise, read},
    cri::Container,
    exit_blockers::same_start,
    input::{ContainerState, StopStateReport},
    output::{Outputs, ReadStopState, Report, Request},
    process::SIGTERM,
    report::{Audit, ContainerId, ContainerKind, Moment, PodRef, StopResponse, Workload},
    time::BootTime,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Processes that are read in one tick, so that the containers of a node never come in one burst.
const AT_ONCE: usize = 16;
/// A container whose main process or stop signal is not known yet is tried again after this, and reported as unknown after that.
const RETRY: Duration = Duration::from_secs(5);
const UNKNOWN_AFTER: Duration = Duration::from_secs(60);
/// A container that becomes ready over and over is read no more often.
const SPACING: Duration = Duration::from_secs(60);

/// The containers that run, and when each is due.
#[derive(Debug, Default)]
pub(super) struct Audits {
    /// Zero: nothing is read.
    interval: Duration,
    /// How old a container must be.
    age: Duration,
    known: BTreeMap<ContainerId, Audited>,
    due: BTreeSet<(BootTime, ContainerId)>,
    past: PastStops,
}

#[derive(Clone, Copy, Debug)]
struct Audited {
    due: BootTime,
    /// When it was due at first.
    first: BootTime,
    was_ready: bool,
    is_reported: bool,
    /// When it was requested last.
    asked: Option<BootTime>,
    /// Its stop signal, if that is known.
    signal: Option<u8>,
}

impl Audits {
    pub(super) fn new(interval: Duration, age: Duration) -> Self {
        Self { interval, age, ..Self::default() }
    }

    fn schedule(&mut self, id: &ContainerId, at: BootTime) {
        if let Some(known) = self.known.get_mut(id) {
            self.due.remove(&(known.due, id.clone()));
            known.due = at;
            self.due.insert((at, id.clone()));
        }
    }

    fn first(&self, id: &ContainerId) -> BootTime {
        self.known.get(id).map_or(BootTime(0), |known| known.first)
    }

    fn drop(&mut self, id: &ContainerId, out: &mut Outputs) {
        if let Some(known) = self.known.remove(id) {
            self.due.remove(&(known.due, id.clone()));
            if known.is_reported {
                out.reports.push(Report::AuditOver(id.clone()));
            }
        }
    }

    pub(super) fn learn(&mut self, report: &Report) {
        match report {
            Report::CountDeath(death) => self.past.died(death),
            Report::CountTermination(termination) => self.past.terminated(termination),
            _ => {}
        }
    }
}

impl Engine {
    /// Schedules containers that changed: one that is ready when it is old enough, any other after an interval.
    pub(super) fn schedule_audits(
        &mut self,
        now: BootTime,
        containers: &BTreeSet<ContainerId>,
        out: &mut Outputs,
    ) {
        if self.audits.interval.is_zero() {
            return;
        }
        for id in containers {
            let container = self.stores.cri.container(id);
            let runs =
                |one: &&Container| one.info.state == ContainerState::Running && one.ended.is_none();
            let Some(container) = container.filter(runs) else {
                self.audits.drop(id, out);
                continue;
            };
            let is_ready = self.is_ready(container);
            let started = container.info.created.map(|at| self.stores.anchor.boot(at));
            let started = started.unwrap_or(container.first_seen).min(now);
            let due = started + if is_ready { self.audits.age } else { self.audits.interval };
            let signal = self.known_stop_signal(container);
            match self.audits.known.get_mut(id) {
                Some(known) => {
                    let becomes_ready = is_ready && !known.was_ready;
                    known.was_ready = is_ready;
                    let spaced = known.asked.map_or(now, |at| at + SPACING);
                    let is_other = std::mem::replace(&mut known.signal, signal) != signal;
                    if becomes_ready {
                        known.first = known.first.min(due.max(now));
                    }
                    let first = known.first;
                    if is_other {
                        self.audits.schedule(id, first.max(now));
                    } else if becomes_ready {
                        self.audits.schedule(id, due.max(now).max(spaced));
                    }
                }
                None => {
                    let new = Audited {
                        due,
                        first: due.max(now),
                        was_ready: is_ready,
                        is_reported: false,
                        asked: None,
                        signal,
                    };
                    self.audits.known.insert(id.clone(), new);
                    self.audits.schedule(id, due.max(now));
                }
            }
        }
    }

    /// Without an apiserver nobody says that a container is not.
    fn is_ready(&self, container: &Container) -> bool {
        let pod = self.stores.cri.pod_of(&container.info.id);
        let status = pod.and_then(|uid| self.stores.spec(uid, &container.info.name));
        let is_own = |id: &Option<ContainerId>| id.as_ref() == Some(&container.info.id);
        status.map_or(!self.stores.api.has_apiserver, |one| one.ready && is_own(&one.id))
    }

    /// Requests what is due, a few at a time.
    pub(super) fn request_audits(&mut self, now: BootTime, out: &mut Outputs) {
        for _ in 0..AT_ONCE {
            let Some((_, id)) = self.audits.due.first().filter(|(due, _)| *due <= now).cloned()
            else {
                return;
            };
            let again = match self.request_audit(now, &id) {
                Ok(Some(request)) => {
                    if let Some(known) = self.audits.known.get_mut(&id) {
                        known.asked = Some(now);
                    }
                    out.requests.push(Request::ReadStopState(request));
                    self.audits.interval
                }
                // It is being deleted: what it does now is its shutdown.
                Ok(None) => self.audits.interval,
                Err(_) if now < self.audits.first(&id) + UNKNOWN_AFTER => RETRY,
                Err(why) => {
                    self.report_audit(now, &id, None, unknown(why), out);
                    self.audits.interval
                }
            };
            self.audits.schedule(&id, now + again);
        }
    }

    /// The process to read; the error is why it is not known.
    fn request_audit(
        &self,
        now: BootTime,
        id: &ContainerId,
    ) -> Result<Option<ReadStopState>, String> {
        let container = self.stores.cri.container(id).ok_or("The runtime does not list it.")?;
        let sandbox = &container.info.sandbox;
        let shim = container.status.runtime_type.as_deref();
        if let Some(isolation) = self.stores.isolation(sandbox, shim) {
            let (within, by, name) = (isolation.within, isolation.shown_by, isolation.name);
            return Err(format!(
                "It runs in {within} ({by} {name}): the host's kernel does not see inside."
            ));
        }
        if self.is_deleted(id) {
            return Ok(None);
        }
        let processes = self.stores.processes_of(id);
        let main = processes.and_then(|known| known.init.as_ref()).ok_or(
            "Its main process is not known: the container is older than the agent, and its PID namespace is not its own.",
        )?;
        let signal = self.known_stop_signal(container);
        if signal.is_none() && now < self.audits.first(id) + UNKNOWN_AFTER {
            return Err("Its stop signal is not known yet.".into());
        }
        let signal = signal.unwrap_or(SIGTERM);
        Ok(Some(ReadStopState { container: id.clone(), main: main.tgid, signal }))
    }

    fn is_deleted(&self, id: &ContainerId) -> bool {
        let object = self.stores.cri.pod_of(id).and_then(|uid| self.stores.api.get(uid));
        object.is_some_and(|object| object.requested.is_some())
    }

    /// `None`: nothing states one so far, and the image was not read.
    fn known_stop_signal(&self, container: &Container) -> Option<u8> {
        let pod = self.stores.cri.pod_of(&container.info.id);
        let spec = pod.and_then(|uid| self.stores.spec(uid, &container.info.name));
        let status = &container.status;
        let stated = status.stop_signal(spec.and_then(|spec| spec.stop_signal));
        stated.or(status.image.as_ref().map(|_| SIGTERM))
    }

    /// Applies an answer. The container may have ended since the request, and its stop signal may be known only now.
    pub(super) fn stop_state(&mut self, now: BootTime, report: StopStateReport, out: &mut Outputs) {
        let id = &report.container;
        let Some(container) =
            self.stores.cri.container(id).filter(|_| self.audits.known.contains_key(id))
        else {
            return;
        };
        if self.is_deleted(id) {
            return;
        }
        let signal = self.known_stop_signal(container);
        if signal.unwrap_or(SIGTERM) != report.signal {
            return self.audits.schedule(id, now);
        }
        let own = self.stores.cgroups.cgroup(id);
        let processes = own.and_then(|own| self.stores.processes.get_mut(&own));
        let known = processes.filter(|known| known.exit().is_none());
        let init = known.and_then(|known| known.init.as_mut());
        let Some(init) = init.filter(|init| init.tgid == report.main) else { return };
        let Some(state) = &report.state else {
            let why = format!("Its main process could not be read: {}.", report.unread.join(", "));
            return self.report_audit(report.looked, id, None, unknown(why), out);
        };
        // The agent has seen no exit of a process that is older than the agent: from now on its start is known.
        let start = init.started.get_or_insert(state.started);
        if !same_start(*start, state.started) {
            let pid = report.main.0;
            let why = format!("Process {pid} is not the main process of the container any more.");
            return self.report_audit(report.looked, id, None, unknown(why), out);
        }
        let mut reading = read(state, report.signal, &report.unread);
        if signal.is_none() {
            reading.certain = false;
            reading.why += " The stop signal of its image is not known.";
        }
        self.report_audit(report.looked, id, Some(&report), reading, out);
    }

    fn report_audit(
        &mut self,
        looked: BootTime,
        id: &ContainerId,
        report: Option<&StopStateReport>,
        reading: Reading,
        out: &mut Outputs,
    ) {
        let Some(audit) = self.audit(looked, id, report, reading) else { return };
        if let Some(known) = self.audits.known.get_mut(id) {
            known.is_reported = true;
            out.reports.push(Report::Audited(Arc::new(audit)));
        }
    }

    fn audit(
        &self,
        looked: BootTime,
        id: &ContainerId,
        report: Option<&StopStateReport>,
        reading: Reading,
    ) -> Option<Audit> {
        let container = self.stores.cri.container(id)?;
        let pod: PodRef = self.stores.cri.sandbox(&container.info.sandbox)?.info.pod_ref();
        let object = self.stores.api.get(&pod.uid).map(|object| &object.pod);
        let workload: Option<&Workload> = object.and_then(|pod| pod.workload.as_deref());
        let name = &container.info.name;
        let one = object.and_then(|pod| pod.containers.get(name));
        let grace_seconds = object.and_then(|pod| pod.grace_seconds);
        let mains = object.map_or(0, |pod| {
            pod.containers.values().filter(|one| one.kind == ContainerKind::Main).count()
        });
        let by_spec = one.and_then(|one| one.pre_stop.as_ref());
        let spec = Spec {
            container: name,
            grace_seconds: grace_seconds.or(container.info.grace_seconds),
            pre_stop: by_spec.or(container.info.pre_stop.as_ref()),
            liveness_grace_seconds: one.and_then(|one| one.liveness.as_ref()?.grace_seconds),
            is_only: mains == 1 && one.is_some_and(|one| one.kind == ContainerKind::Main),
        };
        let of = |container| self.audits.past.of(&pod, workload?, container);
        let (past, late) = (of(name), of("").map_or(Duration::ZERO, |past| past.late()));
        let stop_signal = self.known_stop_signal(container).unwrap_or(SIGTERM);
        let state = report.and_then(|report| report.state.as_ref());
        let Advice { warnings, fix, patch } =
            advise(&reading, state, stop_signal, &spec, past, late);
        Some(Audit {
            node: String::new(),
            id: id.clone(),
            name: name.clone(),
            workload: workload.cloned(),
            kind: one.map(|one| one.kind).unwrap_or_default(),
            image: container.status.image.clone().unwrap_or_default(),
            response: reading.response,
            certain: reading.certain,
            stop_signal,
            grace_seconds: spec.grace_seconds,
            why: reading.why + &past.map(|past| past.sentence()).unwrap_or_default(),
            warnings,
            fix,
            patch,
            read: Moment::of_boot(looked, &self.stores.anchor),
            pod,
        })
    }
}

fn unknown(why: String) -> Reading {
    Reading { response: StopResponse::Unknown, certain: false, why }
}
