//! The evidence for one leak, gathered: sentences with their source and, where there is one, their
//! moment.

use super::facts::Facts;
use crate::{
    ids::PodUid,
    input::{CriState, SandboxNetwork},
    keepers::Runs,
    leak::{Evidence, Holds},
    observation::Source,
    runtime::{Outage, Sandbox},
    time::BootTime,
};
use std::{fmt::Display, time::Duration};

/// How long after a pod's end the failure of a daemon may have to do with it.
const AROUND: Duration = Duration::from_secs(120);
/// Bound on the sentences of one leak, and on what is listed in one.
const MAX_SENTENCES: usize = 24;
const MAX_LISTED: usize = 8;

/// What the runtime did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// Nothing that is known of.
    None,
    /// Calls failed; its process was the same before and after.
    Failed,
    /// It was away: another process answered afterwards, or whether it is the same is not known.
    Away,
}

/// What is known of one leak.
#[derive(Debug)]
pub(super) struct Dossier<'a> {
    facts: &'a Facts<'a>,
    /// `None`: nobody will read it.
    said: Option<Vec<Evidence>>,
}

impl<'a> Dossier<'a> {
    /// Nothing yet. `is_read`: otherwise no sentence is made.
    pub(super) fn new(facts: &'a Facts<'a>, is_read: bool) -> Self {
        Self { facts, said: is_read.then(Vec::new) }
    }

    /// One sentence more, if it is new.
    pub(super) fn add(&mut self, at: Option<BootTime>, source: Source, sentence: impl Display) {
        let Some(said) = self.said.as_mut().filter(|said| said.len() < MAX_SENTENCES) else {
            return;
        };
        let at = at.map(|at| self.facts.wall(at));
        let one = Evidence { at, source, sentence: sentence.to_string() };
        if !said.contains(&one) {
            said.push(one);
        }
    }

    /// The whole, in order of time; what has none comes last.
    pub(super) fn close(self) -> Vec<Evidence> {
        let mut said = self.said.unwrap_or_default();
        said.sort_by_key(|one| (one.at.is_none(), one.at));
        said
    }

    /// What the apiserver told of the pod.
    pub(super) fn object(&mut self, uid: &PodUid) {
        let Some(object) = self.facts.object(uid) else {
            self.add(
                None,
                Source::Api,
                "nothing is known of this pod (any more): its object was not seen to go",
            );
            return;
        };
        if let Some(request) = object.request() {
            let at = Some(request.at);
            match request.grace_seconds {
                0 => self.add(at, Source::Api, "deleted by force (grace 0)"),
                grace => {
                    let how = format_args!("its deletion was asked for, with a grace of {grace} s");
                    self.add(at, Source::Api, how);
                }
            }
        }
        if let Some(gone) = object.gone {
            if gone.after == gone.by {
                self.add(Some(gone.by), Source::Api, "its object went");
            } else {
                let within = gone.uncertainty().as_secs();
                let sentence = format_args!(
                    "its object was missed in a new list; it went within the {within} s before"
                );
                self.add(Some(gone.by), Source::Api, sentence);
            }
        }
    }

    /// What the runtime told of the sandbox.
    pub(super) fn sandbox(&mut self, sandbox: &Sandbox) {
        if let Some(stopped) = sandbox.stopped.filter(|_| sandbox.seen_ready) {
            self.add(Some(stopped.by), Source::Cri, "its sandbox was no longer ready");
        } else if !sandbox.info.ready {
            let sentence = "its sandbox was not ready when it was first listed";
            self.add(sandbox.stopped.map(|stopped| stopped.by), Source::Cri, sentence);
        }
        let containers = self.facts.containers_of(&sandbox.info.id);
        for container in containers.iter().take(MAX_LISTED) {
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
                    format_args!("{name} ({state}) got signal {signal} and lives on"),
                ),
                (true, None) if processes.is_some() => self.add(
                    None,
                    Source::Kernel,
                    format_args!("{name} ({state}) is alive, and nobody has told it to stop"),
                ),
                _ => {
                    let sentence = format_args!("the runtime still lists {name}, {state}");
                    self.add(None, Source::Cri, sentence);
                }
            }
        }
        self.status(sandbox);
    }

    /// What the verbose status tells.
    pub(super) fn status(&mut self, sandbox: &Sandbox) {
        if let Some((code, at)) = self.facts.statuses.refusal(&sandbox.info.id) {
            let sentence = format_args!("the runtime would not tell of its sandbox: {code}");
            self.add(Some(at), Source::Cri, sentence);
        }
        let Some(status) = self.facts.statuses.current(sandbox) else { return };
        let (sentence, path) = match &status.network {
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
                self.add(Some(status.asked), Source::Cri, format_args!("{sentence} ({path})"));
            }
            None => self.add(Some(status.asked), Source::Cri, sentence),
        }
    }

    /// What the runtime did around that time.
    pub(super) fn outages_around(&mut self, end: Option<(BootTime, BootTime)>) -> Failure {
        let Some((from, to)) = end else { return Failure::None };
        let (from, to) = (from - Duration::from_secs(10), to + AROUND);
        let outages: Vec<&Outage> = self.facts.of.runtime.outages(from, to).collect();
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
            let sentence = format_args!("the runtime failed{code}: {} {back}", outage.error);
            self.add(Some(outage.from), Source::Cri, sentence);
        }
        let restarted = self.changes("the runtime", &self.facts.of.keepers.runtime, from, to);
        match (outages.is_empty(), restarted) {
            (true, false) => Failure::None,
            (false, false) if outages.iter().all(|o| o.restarted == Some(false)) => Failure::Failed,
            _ => Failure::Away,
        }
    }

    /// The kubelet ended or began around that time.
    pub(super) fn kubelet_around(&mut self, end: Option<(BootTime, BootTime)>) -> bool {
        let Some((from, to)) = end else { return false };
        let (from, to) = (from - Duration::from_secs(10), to + AROUND);
        self.changes("the kubelet", &self.facts.of.keepers.kubelet, from, to)
    }

    fn changes(&mut self, what: &str, runs: &Runs, from: BootTime, to: BootTime) -> bool {
        let mut any = false;
        for run in runs.changes(from, to) {
            any = true;
            if run.began() >= from && run.began() <= to {
                let sentence = format_args!("{what} began anew (pid {})", run.process.pid);
                self.add(Some(run.began()), Source::Proc, sentence);
            }
            if let Some(ended) = run.ended.filter(|ended| from <= *ended && *ended <= to) {
                let sentence = format_args!("{what} ended (pid {})", run.process.pid);
                self.add(Some(ended), Source::Proc, sentence);
            }
        }
        any
    }

    /// The kubelet: its version, and since when it runs.
    pub(super) fn kubelet(&mut self, since: Option<BootTime>) {
        let keepers = self.facts.of.keepers;
        let version = keepers.kubelet_version().map(|(_, text)| format!(" {text}"));
        let version = version.unwrap_or_default();
        if keepers.kubelet_is_down() {
            let sentence = format_args!("the kubelet{version} does not run");
            self.add(keepers.kubelet.last_end(), Source::Proc, sentence);
            return;
        }
        match (keepers.kubelet.running(), since) {
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
                format_args!("the kubelet{version} (pid {}) began", run.process.pid),
            ),
            (None, _) if !version.is_empty() => {
                self.add(None, Source::Api, format_args!("the kubelet is{version}"));
            }
            (None, _) => {}
        }
    }
}

/// What a sandbox still holds.
pub(super) fn holds(facts: &Facts<'_>, sandbox: &Sandbox) -> Holds {
    let id = &sandbox.info.id;
    let status = facts.statuses.current(sandbox);
    let netns = status.and_then(|status| match &status.network {
        SandboxNetwork::Own { closed: Some(true), .. } => None,
        SandboxNetwork::Own { path, closed } => {
            let known = sandbox.info.ready || *closed == Some(false);
            known.then(|| path.clone().unwrap_or_else(|| "(path not told)".to_owned()))
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
    Holds {
        netns,
        ips,
        cgroup: group.map(|group| group.path.clone()),
        pids: pids.into_iter().take(2 * MAX_LISTED).collect(),
        containers: containers
            .iter()
            .take(2 * MAX_LISTED)
            .map(|container| format!("{} ({})", container.info.name, state(container.info.state)))
            .collect(),
    }
}

fn state(state: CriState) -> &'static str {
    match state {
        CriState::Created => "created",
        CriState::Running => "running",
        CriState::Exited => "exited",
        CriState::Unknown => "in an unknown state",
    }
}
