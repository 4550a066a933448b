//! Collects the evidence for one leak: what each source shows, with a time where there is one.

use super::facts::LeakFacts;
use crate::{
    cri::Sandbox,
    exit_blockers,
    ids::*,
    input::*,
    leak::{LeakEvidence, LeakEvidenceKind as Kind},
    time::*,
};

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
        evidence.add(Some(asked), Kind::PodQueried { exists });
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
    fn add(&mut self, at: Option<BootTime>, kind: Kind) {
        let one = LeakEvidence { at: at.map(|at| self.facts.wall(at)), kind };
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
                let lasted = outage.to.map(|to| to.since(outage.from).as_millis());
                let kind = Kind::RuntimeFailed {
                    error: outage.reason.error.clone(),
                    code: outage.reason.code.clone(),
                    outage_ms: lasted.map(|lasted| u64::try_from(lasted).unwrap_or(u64::MAX)),
                    restarted: outage.reason.restarted,
                };
                self.add(Some(outage.from), kind);
            }
            self.restarts(Daemon::Runtime, from, to);
            self.restarts(Daemon::Kubelet, from, to);
        }
    }

    fn object(&mut self, uid: &PodUid) {
        let Some(object) = self.facts.object(uid) else {
            return self.add(None, Kind::ObjectUnknown);
        };
        if let Some(request) = object.request() {
            let grace_seconds = request.grace_seconds;
            self.add(Some(request.estimate), Kind::DeletionRequested { grace_seconds });
        }
        if let Some(gone) = object.gone {
            let was_observed = gone.earliest == gone.latest;
            let within_seconds = (!was_observed).then(|| gone.uncertainty().as_secs());
            self.add(Some(gone.latest), Kind::ObjectDeleted { within_seconds });
        }
    }

    fn sandbox(&mut self, sandbox: &Sandbox) {
        let stopped = sandbox.ended.map(|stopped| stopped.latest);
        if sandbox.info.ready {
            self.add(None, Kind::SandboxReady);
        } else {
            self.add(stopped, Kind::SandboxStopped { seen_ready: sandbox.seen_alive });
        }
        let since = self.facts.end_of(&sandbox.info.pod).map(|(from, _)| from);
        for container in self.facts.containers_of(&sandbox.info.id).take(MAX_CONTAINERS) {
            let (name, state) = (container.info.name.clone(), container.info.state);
            let alive = self.facts.stores.processes_of(&container.info.id);
            let Some(processes) = alive.filter(|_| self.facts.is_alive(container)) else {
                self.add(None, Kind::ContainerListed { name, state });
                continue;
            };
            let mut sent = processes.sent().filter(|sent| sent.from_outside());
            let last = sent.rfind(|sent| since.is_none_or(|since| sent.at >= since));
            let signal = last.map(|sent| sent.signal.signal);
            let unkillable = exit_blockers::unkillable(processes).map(|finding| finding.detail);
            let kind = Kind::ContainerAlive { name, state, signal, unkillable };
            self.add(last.map(|sent| sent.at), kind);
        }
        if let Some((code, at)) = self.facts.statuses.refusal(&sandbox.info.id) {
            self.add(Some(at), Kind::StatusRefused { code: code.to_owned() });
        }
        let Some(status) = self.facts.statuses.current(sandbox) else { return };
        let kind = match &status.network {
            SandboxNetwork::Own { closed: Some(closed), path } => {
                let path = path.clone().filter(|_| !closed);
                Kind::NetworkNamespace { open: !closed, path }
            }
            SandboxNetwork::Host => Kind::HostNetwork,
            SandboxNetwork::Own { closed: None, .. } | SandboxNetwork::Unknown => return,
        };
        self.add(Some(status.asked), kind);
    }

    /// Adds the failures that the kubelet has posted, the last ones first.
    fn events(&mut self, key: &LeakKey) {
        let Some(uid) = self.facts.pod_uid(key) else { return };
        let all = self.facts.stores.events.of(uid);
        let failures = all.iter().rev().filter(|posted| posted.event.is_failure());
        for posted in failures.take(MAX_EVENTS) {
            let event = &posted.event;
            let (about, container) = (event.about, event.container.clone());
            let kind = Kind::EventPosted { event: about, count: posted.count, container };
            self.add(Some(event.time), kind);
        }
    }

    /// Adds what still holds the object of a pod that is being deleted.
    fn leftovers(&mut self, uid: &PodUid) {
        let volumes: Vec<String> = self.facts.volumes(uid).map(str::to_owned).collect();
        if !volumes.is_empty() {
            self.add(None, Kind::VolumesMounted { volumes });
        }
        if let Some(group) = self.facts.pod_cgroup(uid).filter(|group| group.tasks > 0) {
            self.add(None, Kind::Tasks { count: group.tasks });
        }
        if let Some(object) = self.facts.object(uid).filter(|o| !o.pod.finalizers.is_empty()) {
            let names = object.pod.finalizers.clone();
            self.add(object.final_delete, Kind::Finalizers { names });
        }
    }

    /// Adds what the sources show of a thing on the host without a pod, or without a sandbox.
    fn orphan(&mut self, key: &LeakKey) {
        self.add(None, Kind::NotListed);
        match key {
            LeakKey::Shim { pid, .. } => {
                let shims = self.facts.survey.and_then(|survey| survey.shims.as_ref());
                let shim = shims.into_iter().flatten().find(|shim| shim.process.pid == *pid);
                if let Some(shim) = shim {
                    let (comm, children) = (shim.comm.clone(), shim.children);
                    self.add(None, Kind::ShimRunning { comm, children });
                }
            }
            LeakKey::PodCgroup { pod, .. } => {
                self.object(pod);
                if let Some(group) = self.facts.cgroup_of(key) {
                    self.add(None, Kind::Tasks { count: group.tasks });
                }
            }
            _ => self.add(None, Kind::Tasks { count: 0 }),
        }
        self.kubelet(None);
        self.restarts(Daemon::Runtime, BootTime(0), self.facts.now);
    }

    fn restarts(&mut self, daemon: Daemon, from: BootTime, to: BootTime) {
        let node = &self.facts.stores.node;
        let history = match daemon {
            Daemon::Runtime => &node.runtime,
            Daemon::Kubelet => &node.kubelet,
        };
        let runs: Vec<_> = history.changes(from, to).collect();
        for run in runs.into_iter().rev().take(MAX_RUNS) {
            let pid = run.process.pid;
            if from <= run.began() && run.began() <= to {
                self.add(Some(run.began()), Kind::DaemonStarted { daemon, pid });
            }
            if let Some(ended) = run.ended.filter(|ended| from <= *ended && *ended <= to) {
                self.add(Some(ended), Kind::DaemonEnded { daemon, pid });
            }
        }
    }

    /// Adds the kubelet's version, and whether it was restarted since.
    fn kubelet(&mut self, since: Option<BootTime>) {
        let node = &self.facts.stores.node;
        let version = node.kubelet_version().map(|(_, text)| text.to_owned());
        if node.kubelet_is_down() {
            self.add(node.kubelet.last_end(), Kind::KubeletDown { version });
        } else if let Some(run) = node.kubelet.running() {
            let restarted = since.is_none_or(|since| run.began() > since);
            let kind = Kind::KubeletRunning { version, pid: run.process.pid, restarted };
            self.add(restarted.then_some(run.began()), kind);
        } else if let Some(version) = version {
            self.add(None, Kind::KubeletVersion { version });
        }
    }
}
