//! Collects the evidence for one leak: what each source shows, with a time where there is one.

use super::facts::LeakFacts;
use crate::{cri::Sandbox, exit_blockers, ids::*, input::*, leak::LeakEvidence, time::*, types::*};

/// Bounds on the evidence of one leak, on the containers of one sandbox, and on outages of the runtime.
const MAX_ENTRIES: usize = 24;
const MAX_CONTAINERS: usize = 8;
const MAX_OUTAGES: usize = 4;

/// The evidence, in order of time; entries without a time come last. `answer`: when the apiserver was queried for
/// the pod, and whether it has it.
pub(super) fn collect(
    facts: &LeakFacts<'_>,
    key: &LeakKey,
    answer: Option<(BootTime, bool)>,
) -> Vec<LeakEvidence> {
    let mut evidence = EvidenceList { facts, entries: Vec::new() };
    if let Some((asked, exists)) = answer {
        let found = if exists { "still has the pod" } else { "has no pod of this UID" };
        evidence.add(Some(asked), Source::Api, format!("the apiserver, queried directly, {found}"));
    }
    let uid = facts.pod_uid(key);
    let (began, ended) = match uid.and_then(|uid| facts.teardown(uid)) {
        Some((began, ended)) => (Some(began), ended),
        None => (None, facts.now),
    };
    evidence.kubelet(began);
    uid.into_iter().for_each(|uid| evidence.object(uid));
    facts.sandboxes(key).into_iter().for_each(|one| evidence.sandbox(one));
    if let Some((at, words)) = uid.and_then(|uid| facts.failed_stop(uid)) {
        let words = words.map(|words| format!(": {words}")).unwrap_or_default();
        let message = format!("the kubelet's Event FailedKillPod{words}");
        evidence.add(Some(at), Source::Kubelet, message);
    }
    if began.is_some() || uid.is_none() {
        evidence.outages(began.unwrap_or_default(), ended);
    }
    let mut entries = evidence.entries;
    entries.sort_by_key(|one| (one.at.is_none(), one.at));
    entries
}

struct EvidenceList<'a> {
    facts: &'a LeakFacts<'a>,
    entries: Vec<LeakEvidence>,
}

impl EvidenceList<'_> {
    fn add(&mut self, at: Option<BootTime>, source: Source, message: impl Into<String>) {
        let at = at.map(|at| self.facts.moment(at));
        if self.entries.len() < MAX_ENTRIES {
            self.entries.push(LeakEvidence { at, source, message: message.into() });
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
                within => format!("its object was deleted within the {within} s before this list"),
            };
            self.add(Some(gone.latest), Source::Api, message);
        } else if !object.pod.finalizers.is_empty() {
            let message = format!("finalizers: {}", object.pod.finalizers.join(", "));
            self.add(object.final_delete, Source::Api, message);
        }
    }

    fn sandbox(&mut self, sandbox: &Sandbox) {
        let (at, message) = match (sandbox.info.ready, sandbox.seen_alive) {
            (true, _) => (None, "its sandbox is still ready"),
            (false, true) => (sandbox.ended, "its sandbox was no longer ready"),
            (false, false) => (sandbox.ended, "its sandbox was not ready when it was first listed"),
        };
        self.add(at.map(|stopped| stopped.latest), Source::Cri, message);
        for container in self.facts.containers_of(&sandbox.info.id).take(MAX_CONTAINERS) {
            let (name, state) = (&container.info.name, container.info.state.words());
            let processes = self.facts.stores.processes_of(&container.info.id);
            let is_alive = self.facts.is_alive(container);
            let Some(processes) = processes.filter(|_| is_alive) else { continue };
            let last = processes.sent().rfind(|sent| sent.from_outside());
            let what = match last {
                Some(sent) => format!("was sent signal {} and is still alive", sent.signal.signal),
                None => "is alive and was not sent a signal".to_owned(),
            };
            let detail =
                exit_blockers::unkillable(processes).map(|one| format!(": {}", one.detail));
            let message = format!("{name} ({state}) {what}{}", detail.unwrap_or_default());
            self.add(last.map(|sent| sent.at), Source::Kernel, message);
        }
        let Some(status) = self.facts.statuses.current(sandbox) else { return };
        if let SandboxNetwork::Own { closed: Some(closed), path } = &status.network {
            let path = path.as_ref().filter(|_| !closed).map(|path| format!(" ({path})"));
            let state = if *closed { "closed" } else { "still open" };
            let message = format!("its network namespace is {state}{}", path.unwrap_or_default());
            self.add(Some(status.asked), Source::Cri, message);
        }
    }

    fn outages(&mut self, from: BootTime, to: BootTime) {
        let all: Vec<_> = self.facts.stores.cri.connection.gaps.between(from, to).collect();
        for outage in all.into_iter().rev().take(MAX_OUTAGES) {
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
    }

    fn kubelet(&mut self, since: Option<BootTime>) {
        let node = &self.facts.stores.node;
        let version = node.kubelet_version().map_or("", |(_, text)| text);
        let (at, what) = match node.kubelet.running() {
            _ if node.kubelet_is_down() => (node.kubelet.last_end(), "does not run"),
            Some(run) if since.is_some_and(|since| run.began() <= since) => {
                (None, "has not been restarted since")
            }
            Some(run) => (Some(run.began()), "started"),
            None => return,
        };
        self.add(at, Source::Proc, format!("the kubelet {version} {what}"));
    }
}
