//! Builds the evidence for one leak: sentences with a source and, where there is one, a time.

use super::facts::LeakFacts;
use crate::{
    cri::Sandbox,
    gaps::Outage,
    ids::PodUid,
    input::{ContainerState, SandboxNetwork},
    leak::{LeakEvidence, LeakedResources},
    node::DaemonHistory,
    time::BootTime,
    types::Source,
};
use std::{fmt::Display, time::Duration};

/// A daemon's failure this long after a pod's end may be related.
const RELATED_WITHIN: Duration = Duration::from_secs(120);
/// Bounds on the sentences of one leak, and on the items of one sentence.
const MAX_SENTENCES: usize = 24;
const MAX_LISTED: usize = 8;

/// How the runtime failed around a pod's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// No known failure.
    None,
    /// Calls failed; the process was the same before and after.
    Failed,
    /// The runtime was down: another process answered afterwards, or that is unknown.
    Away,
}

/// The evidence for one leak.
#[derive(Debug)]
pub(super) struct EvidenceBuilder<'a> {
    facts: &'a LeakFacts<'a>,
    /// `None`: no sentences are needed.
    entries: Option<Vec<LeakEvidence>>,
}

impl<'a> EvidenceBuilder<'a> {
    /// No evidence yet. `is_read`: whether sentences are needed.
    pub(super) fn new(facts: &'a LeakFacts<'a>, is_read: bool) -> Self {
        Self { facts, entries: is_read.then(Vec::new) }
    }

    /// Adds a sentence, unless it is there already.
    pub(super) fn add(&mut self, at: Option<BootTime>, source: Source, message: impl Display) {
        let Some(entries) = self.entries.as_mut().filter(|entries| entries.len() < MAX_SENTENCES)
        else {
            return;
        };
        let at = at.map(|at| self.facts.wall(at));
        let one = LeakEvidence { at, source, message: message.to_string() };
        if !entries.contains(&one) {
            entries.push(one);
        }
    }

    /// All sentences in order of time; those without a time come last.
    pub(super) fn build(self) -> Vec<LeakEvidence> {
        let mut entries = self.entries.unwrap_or_default();
        entries.sort_by_key(|one| (one.at.is_none(), one.at));
        entries
    }

    /// Adds what the apiserver reported of the pod.
    pub(super) fn object(&mut self, uid: &PodUid) {
        let Some(object) = self.facts.object(uid) else {
            self.add(
                None,
                Source::Api,
                "no record of this pod's object: its deletion was not observed",
            );
            return;
        };
        if let Some(request) = object.request() {
            let at = Some(request.estimate);
            match request.grace_seconds {
                0 => self.add(at, Source::Api, "deleted by force (grace 0)"),
                grace => {
                    let how = format_args!("its deletion was requested with a grace of {grace} s");
                    self.add(at, Source::Api, how);
                }
            }
        }
        if let Some(gone) = object.gone {
            if gone.earliest == gone.latest {
                self.add(Some(gone.latest), Source::Api, "its object was deleted");
            } else {
                let within = gone.uncertainty().as_secs();
                let message = format_args!(
                    "its object was missing in a new list; it was deleted within the {within} s before"
                );
                self.add(Some(gone.latest), Source::Api, message);
            }
        }
    }

    /// Adds what the runtime reported of the sandbox.
    pub(super) fn sandbox(&mut self, sandbox: &Sandbox) {
        if let Some(stopped) = sandbox.ended.filter(|_| sandbox.seen_alive) {
            self.add(Some(stopped.latest), Source::Cri, "its sandbox was no longer ready");
        } else if !sandbox.info.ready {
            let message = "its sandbox was not ready when it was first listed";
            self.add(sandbox.ended.map(|stopped| stopped.latest), Source::Cri, message);
        }
        for container in self.facts.containers_of(&sandbox.info.id).take(MAX_LISTED) {
            let name = &container.info.name;
            let state = state(container.info.state);
            let processes = self.facts.processes(&container.info.id);
            let since = self.facts.end_of(&sandbox.info.pod).map(|(from, _)| from);
            let sent = processes.and_then(|processes| {
                let sent = processes.sent().filter(|sent| sent.from_outside());
                let mut late = sent.filter(|sent| since.is_none_or(|since| sent.at >= since));
                late.next_back().map(|sent| (sent.at, sent.signal.signal))
            });
            match (self.facts.is_alive(container), sent) {
                (true, Some((at, signal))) => self.add(
                    Some(at),
                    Source::Kernel,
                    format_args!("{name} ({state}) was sent signal {signal} and is still alive"),
                ),
                (true, None) if processes.is_some() => self.add(
                    None,
                    Source::Kernel,
                    format_args!("{name} ({state}) is alive and was not sent a signal"),
                ),
                _ => {
                    let message = format_args!("the runtime still lists {name}, {state}");
                    self.add(None, Source::Cri, message);
                }
            }
        }
        self.status(sandbox);
    }

    /// Adds what the verbose status shows.
    pub(super) fn status(&mut self, sandbox: &Sandbox) {
        if let Some((code, at)) = self.facts.statuses.refusal(&sandbox.info.id) {
            let message = format_args!("the runtime refused the status of its sandbox: {code}");
            self.add(Some(at), Source::Cri, message);
        }
        let Some(status) = self.facts.statuses.current(sandbox) else { return };
        let (message, path) = match &status.network {
            SandboxNetwork::Own { closed: Some(false), path } => {
                ("its network namespace is still open", path.as_deref())
            }
            SandboxNetwork::Own { closed: Some(true), .. } => {
                ("its network namespace is closed", None)
            }
            SandboxNetwork::Host => ("it used the host's network", None),
            SandboxNetwork::Own { closed: None, .. } | SandboxNetwork::Unknown => return,
        };
        match path {
            Some(path) => {
                self.add(Some(status.asked), Source::Cri, format_args!("{message} ({path})"));
            }
            None => self.add(Some(status.asked), Source::Cri, message),
        }
    }

    /// Adds the runtime's failures around `end`.
    pub(super) fn outages_around(&mut self, end: Option<(BootTime, BootTime)>) -> Failure {
        let Some((from, to)) = end.map(around) else { return Failure::None };
        let outages: Vec<&Outage> = self.facts.stores.cri.connection.outages(from, to).collect();
        for outage in &outages {
            let back = match (outage.to, outage.restarted) {
                (None, _) => "and does not answer yet".to_owned(),
                (Some(to), restarted) => format!(
                    "and answered again after {:.1} s{}",
                    to.since(outage.from).as_secs_f64(),
                    match restarted {
                        Some(true) => ", another process",
                        Some(false) => ", the same process",
                        None => "",
                    }
                ),
            };
            let code = outage.code.as_deref().map(|code| format!(" ({code})")).unwrap_or_default();
            let message = format_args!("the runtime failed{code}: {} {back}", outage.error);
            self.add(Some(outage.from), Source::Cri, message);
        }
        let restarted = self.changes("the runtime", &self.facts.stores.node.runtime, from, to);
        match (outages.is_empty(), restarted) {
            (true, false) => Failure::None,
            (false, false) if outages.iter().all(|o| o.restarted == Some(false)) => Failure::Failed,
            _ => Failure::Away,
        }
    }

    /// Adds the kubelet's restarts around `end`.
    pub(super) fn kubelet_around(&mut self, end: Option<(BootTime, BootTime)>) {
        if let Some((from, to)) = end.map(around) {
            self.changes("the kubelet", &self.facts.stores.node.kubelet, from, to);
        }
    }

    fn changes(&mut self, what: &str, runs: &DaemonHistory, from: BootTime, to: BootTime) -> bool {
        let mut any = false;
        for run in runs.changes(from, to) {
            any = true;
            if run.began() >= from && run.began() <= to {
                let message = format_args!("{what} started (pid {})", run.process.pid);
                self.add(Some(run.began()), Source::Proc, message);
            }
            if let Some(ended) = run.ended.filter(|ended| from <= *ended && *ended <= to) {
                let message = format_args!("{what} ended (pid {})", run.process.pid);
                self.add(Some(ended), Source::Proc, message);
            }
        }
        any
    }

    /// Adds the kubelet's version, and since when it runs.
    pub(super) fn kubelet(&mut self, since: Option<BootTime>) {
        let node = &self.facts.stores.node;
        let version = node.kubelet_version().map(|(_, text)| format!(" {text}"));
        let version = version.unwrap_or_default();
        if node.kubelet_is_down() {
            let message = format_args!("the kubelet{version} does not run");
            self.add(node.kubelet.last_end(), Source::Proc, message);
            return;
        }
        match (node.kubelet.running(), since) {
            (Some(run), Some(since)) if run.began() <= since => self.add(
                None,
                Source::Proc,
                format_args!(
                    "the kubelet{version} (pid {}) has not been restarted since",
                    run.process.pid
                ),
            ),
            (Some(run), _) => self.add(
                Some(run.began()),
                Source::Proc,
                format_args!("the kubelet{version} (pid {}) started", run.process.pid),
            ),
            (None, _) if !version.is_empty() => {
                self.add(None, Source::Api, format_args!("the kubelet is{version}"));
            }
            (None, _) => {}
        }
    }
}

fn around((from, to): (BootTime, BootTime)) -> (BootTime, BootTime) {
    (from - Duration::from_secs(10), to + RELATED_WITHIN)
}

/// The resources that a sandbox still holds.
pub(super) fn holds(facts: &LeakFacts<'_>, sandbox: &Sandbox) -> LeakedResources {
    let id = &sandbox.info.id;
    let status = facts.statuses.current(sandbox);
    let netns = status.and_then(|status| match &status.network {
        SandboxNetwork::Own { closed: Some(true), .. } => None,
        SandboxNetwork::Own { path, closed } => {
            let known = sandbox.info.ready || *closed == Some(false);
            known.then(|| path.clone().unwrap_or_else(|| "(path not reported)".to_owned()))
        }
        SandboxNetwork::Host | SandboxNetwork::Unknown => None,
    });
    let ips = match (&netns, status) {
        (Some(_), Some(status)) => status.ips.clone(),
        _ => Vec::new(),
    };
    let group = facts.pod_cgroup(&sandbox.info.pod);
    let mut pids: Vec<u32> =
        status.and_then(|s| s.pid).filter(|pid| *pid > 0).into_iter().collect();
    for pid in group.into_iter().flat_map(|group| &group.pids) {
        if !pids.contains(pid) {
            pids.push(*pid);
        }
    }
    let containers = facts.containers_of(id);
    LeakedResources {
        netns,
        ips,
        cgroup: group.map(|group| group.path.clone()),
        pids: pids.into_iter().take(2 * MAX_LISTED).collect(),
        containers: containers
            .take(2 * MAX_LISTED)
            .map(|container| format!("{} ({})", container.info.name, state(container.info.state)))
            .collect(),
    }
}

fn state(state: ContainerState) -> &'static str {
    match state {
        ContainerState::Created => "created",
        ContainerState::Running => "running",
        ContainerState::Exited => "exited",
        ContainerState::Unknown => "in an unknown state",
    }
}
