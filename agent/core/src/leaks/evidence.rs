//! Collects the evidence for one leak: what each source shows, with a time where there is one.

use super::facts::LeakFacts;
use crate::{cri::Sandbox, exit_blockers, ids::*, input::*, leak::LeakEvidence, time::*, types::*};

/// Bounds on the evidence of one leak, and on the containers of one sandbox.
const MAX_ENTRIES: usize = 24;
const MAX_CONTAINERS: usize = 8;

/// The evidence, in order of time; entries without a time come last. `queried`: when the apiserver was
/// queried for the pod, and whether it has it.
pub(super) fn collect(
    facts: &LeakFacts<'_>,
    key: &LeakKey,
    queried: Option<(BootTime, bool)>,
) -> Vec<LeakEvidence> {
    let mut evidence = EvidenceList { facts, entries: Vec::new() };
    if let Some((asked, exists)) = queried {
        let found = if exists { "still has the pod" } else { "has no pod of this UID" };
        evidence.add(Some(asked), Source::Api, format!("the apiserver, queried directly, {found}"));
    }
    match key {
        LeakKey::Sandbox { id } => {
            if let Some(sandbox) = facts.stores.cri.sandbox(id) {
                let uid = &sandbox.info.pod;
                evidence.pod(uid, std::iter::once(sandbox));
                let gone = facts.end_of(uid).map(|(_, to)| to);
                evidence.kubelet(gone.or(sandbox.ended.map(|stopped| stopped.latest)));
            }
        }
        LeakKey::Pod { uid } => {
            // What it is stuck on comes first: there is room for a part only.
            evidence.leftovers(uid);
            evidence.kubelet(facts.deadline(uid));
            evidence.pod(uid, facts.listed_of(uid));
        }
        _ => evidence.orphan(key),
    }
    evidence.events(key);
    let mut entries = evidence.entries;
    entries.sort_by_key(|one| (one.at.is_none(), one.at));
    entries
}

/// Bound on the kubelet's Events.
const MAX_EVENTS: usize = 8;
/// Bound on the runs of a daemon, the newest ones.
const MAX_RUNS: usize = 4;

struct EvidenceList<'a> {
    facts: &'a LeakFacts<'a>,
    entries: Vec<LeakEvidence>,
}

impl<'a> EvidenceList<'a> {
    /// Adds an entry, unless it is there already.
    fn add(&mut self, at: Option<BootTime>, source: Source, message: impl Into<String>) {
        let at = at.map(|at| self.facts.moment(at));
        let one = LeakEvidence { at, source, message: message.into() };
        if self.entries.len() < MAX_ENTRIES && !self.entries.contains(&one) {
            self.entries.push(one);
        }
    }

    /// Adds what the sources show of a pod, and of the daemons around its end.
    fn pod(&mut self, uid: &PodUid, sandboxes: impl Iterator<Item = &'a Sandbox>) {
        self.object(uid);
        sandboxes.for_each(|sandbox| self.sandbox(sandbox));
        if let Some((from, to)) = self.facts.around_end(uid) {
            for outage in self.facts.stores.cri.connection.gaps.between(from, to) {
                let code = outage.reason.code.as_ref();
                let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
                let process = match outage.reason.restarted {
                    Some(true) => ", another process",
                    Some(false) => ", the same process",
                    None => "",
                };
                let back = match outage.to.map(|to| to.since(outage.from).as_secs_f64()) {
                    Some(lasted) => format!("and answered again after {lasted:.1} s{process}"),
                    None => "and has not answered since".to_owned(),
                };
                let message = format!("the runtime failed{code}: {} {back}", outage.reason.error);
                self.add(Some(outage.from), Source::Cri, message);
            }
            self.restarts(Daemon::Runtime, from, to);
            self.restarts(Daemon::Kubelet, from, to);
        }
    }

    fn object(&mut self, uid: &PodUid) {
        let Some(object) = self.facts.object(uid) else {
            let message =
                "no record of this pod's object; its deletion was not observed, or too long ago";
            return self.add(None, Source::Api, message);
        };
        if let Some(request) = object.request() {
            let message = match request.grace_seconds {
                0 => "force deleted (grace period 0)".to_owned(),
                grace => format!("its deletion was requested with a grace period of {grace} s"),
            };
            self.add(Some(request.date), Source::Api, message);
        }
        if let Some(gone) = object.gone {
            let message = match gone.uncertainty().as_secs() {
                _ if gone.earliest == gone.latest => "its object was deleted".to_owned(),
                within => format!(
                    "its object was missing from a new list; it was deleted within the last {within} s before that"
                ),
            };
            self.add(Some(gone.latest), Source::Api, message);
        }
    }

    fn sandbox(&mut self, sandbox: &Sandbox) {
        let (at, message) = match (sandbox.info.ready, sandbox.seen_alive) {
            (true, _) => (None, "its sandbox is still ready"),
            (false, true) => (sandbox.ended, "its sandbox was no longer ready"),
            (false, false) => (sandbox.ended, "its sandbox was not ready when it was first listed"),
        };
        self.add(at.map(|stopped| stopped.latest), Source::Cri, message);
        let since = self.facts.end_of(&sandbox.info.pod).map(|(from, _)| from);
        for container in self.facts.containers_of(&sandbox.info.id).take(MAX_CONTAINERS) {
            let (name, state) = (&container.info.name, container.info.state.words());
            let alive = self.facts.stores.processes_of(&container.info.id);
            let Some(processes) = alive.filter(|_| self.facts.is_alive(container)) else {
                self.add(None, Source::Cri, format!("the runtime still lists {name}, {state}"));
                continue;
            };
            let mut sent = processes.sent().filter(|sent| sent.from_outside());
            let last = sent.rfind(|sent| since.is_none_or(|since| sent.at >= since));
            let what = match last {
                Some(sent) => format!("was sent signal {} and is still alive", sent.signal.signal),
                None => "is alive and was not sent a signal".to_owned(),
            };
            let detail =
                exit_blockers::unkillable(processes).map(|one| format!(": {}", one.detail));
            let message = format!("{name} ({state}) {what}{}", detail.unwrap_or_default());
            self.add(last.map(|sent| sent.at), Source::Kernel, message);
        }
        if let Some((code, at)) = self.facts.statuses.refusal(&sandbox.info.id) {
            let message = format!("the runtime refused the status of its sandbox: {code}");
            self.add(Some(at), Source::Cri, message);
        }
        let Some(status) = self.facts.statuses.current(sandbox) else { return };
        let message = match &status.network {
            SandboxNetwork::Own { closed: Some(true), .. } => {
                "its network namespace is closed".to_owned()
            }
            SandboxNetwork::Own { closed: Some(false), path } => {
                let path = path.as_ref().map(|path| format!(" ({path})")).unwrap_or_default();
                format!("its network namespace is still open{path}")
            }
            SandboxNetwork::Host => "it used the host network".to_owned(),
            SandboxNetwork::Own { closed: None, .. } | SandboxNetwork::Unknown => return,
        };
        self.add(Some(status.asked), Source::Cri, message);
    }

    /// Adds the failures that the kubelet has posted, the last ones first.
    fn events(&mut self, key: &LeakKey) {
        let Some(uid) = self.facts.pod_uid(key) else { return };
        let all = self.facts.stores.events.of(uid);
        let failures = all.iter().rev().filter(|posted| posted.event.is_failure());
        for posted in failures.take(MAX_EVENTS) {
            let event = &posted.event;
            let what = match event.about {
                EventReason::ExceededGrace => "a container did not end in its grace period",
                _ => "the kubelet failed to stop the pod",
            };
            let of = event.container.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let often = match posted.count {
                0 | 1 => String::new(),
                count => format!(", {count} times"),
            };
            let message = format!("by the kubelet's Event, {what}{of}{often}");
            self.add(Some(event.time), Source::Kubelet, message);
        }
    }

    /// Adds what still holds the object of a pod that is being deleted.
    fn leftovers(&mut self, uid: &PodUid) {
        let mut volumes = self.facts.volumes(uid);
        if let Some(first) = volumes.next() {
            let more = match volumes.count() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let message = format!("still mounted below the pod's directory: {first}{more}");
            self.add(None, Source::Proc, message);
        }
        if let Some(group) = self.facts.pod_cgroup(uid).filter(|group| group.tasks > 0) {
            self.add(None, Source::Proc, format!("{} tasks in {}", group.tasks, group.path));
        }
        if let Some(object) = self.facts.object(uid).filter(|o| !o.pod.finalizers.is_empty()) {
            let message = format!("finalizers: {}", object.pod.finalizers.join(", "));
            self.add(object.final_delete, Source::Api, message);
        }
    }

    /// Adds what the sources show of a thing on the host without a pod, or without a sandbox.
    fn orphan(&mut self, key: &LeakKey) {
        let not_listed = match key {
            LeakKey::Shim { id, .. } => format!("the runtime lists nothing with the id {id}"),
            LeakKey::Netns { .. } => "no sandbox that the runtime lists uses it".to_owned(),
            _ => "the runtime has no sandbox of this pod".to_owned(),
        };
        self.add(None, Source::Cri, not_listed);
        match key {
            LeakKey::Shim { pid, .. } => {
                let shims = self.facts.survey.and_then(|survey| survey.shims.as_ref());
                let shim = shims.into_iter().flatten().find(|shim| shim.process.pid == *pid);
                if let Some(shim) = shim {
                    let message = format!("{} runs with {} children", shim.comm, shim.children);
                    self.add(None, Source::Proc, message);
                }
            }
            LeakKey::PodCgroup { pod, .. } => {
                self.object(pod);
                if let Some(group) = self.facts.cgroup_of(key) {
                    self.add(None, Source::Proc, format!("{} tasks in it and below", group.tasks));
                }
            }
            LeakKey::Netns { inode, .. } => {
                self.add(None, Source::Proc, format!("no process is in it (inode {inode})"));
            }
            LeakKey::Sandbox { .. } | LeakKey::Pod { .. } => {}
        }
        self.kubelet(None);
        self.restarts(Daemon::Runtime, BootTime(0), self.facts.now);
    }

    fn restarts(&mut self, daemon: Daemon, from: BootTime, to: BootTime) {
        let node = &self.facts.stores.node;
        let (name, history) = match daemon {
            Daemon::Runtime => ("the runtime", &node.runtime),
            Daemon::Kubelet => ("the kubelet", &node.kubelet),
        };
        let runs: Vec<_> = history.changes(from, to).collect();
        for run in runs.into_iter().rev().take(MAX_RUNS) {
            let pid = run.process.pid;
            if from <= run.began() && run.began() <= to {
                self.add(Some(run.began()), Source::Proc, format!("{name} started (pid {pid})"));
            }
            if let Some(ended) = run.ended.filter(|ended| from <= *ended && *ended <= to) {
                self.add(Some(ended), Source::Proc, format!("{name} exited (pid {pid})"));
            }
        }
    }

    /// Adds the kubelet's version, and whether it was restarted since.
    fn kubelet(&mut self, since: Option<BootTime>) {
        let node = &self.facts.stores.node;
        let version = node.kubelet_version().map(|(_, text)| format!(" {text}"));
        let version = version.unwrap_or_default();
        if node.kubelet_is_down() {
            let message = format!("the kubelet{version} does not run");
            self.add(node.kubelet.last_end(), Source::Proc, message);
        } else if let Some(run) = node.kubelet.running() {
            let restarted = since.is_none_or(|since| run.began() > since);
            let what = if restarted { "started" } else { "has not been restarted since" };
            let message = format!("the kubelet{version} (pid {}) {what}", run.process.pid);
            self.add(restarted.then_some(run.began()), Source::Proc, message);
        } else if !version.is_empty() {
            self.add(None, Source::Api, format!("the kubelet is{version}"));
        }
    }
}
