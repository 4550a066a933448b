//! What the container runtime told: sandboxes and containers with the times between which each
//! change must have happened. Facts only.

mod lists;

use super::{
    dirty::Dirty,
    ids::{ContainerId, PodUid, SandboxId},
    input::{CriContainer, CriEvent, CriExit, CriSandbox, DaemonProcess},
    table::Table,
    time::BootTime,
};
use lists::Listing;
use std::time::Duration;

/// Bound on what is remembered of either kind: beyond it new ones are refused and counted.
const MAX_KNOWN: usize = 65_536;
/// Bound on remembered outages: the oldest go.
const MAX_OUTAGES: usize = 32;

/// A change that lies between two polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// The last poll that did not show it was asked at this moment.
    pub after: BootTime,
    /// The answer that showed it came at this moment.
    pub by: BootTime,
}

impl Between {
    /// The width of the interval.
    pub fn uncertainty(self) -> Duration {
        self.by.since(self.after)
    }
}

/// A sandbox and its life as the runtime tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sandbox {
    /// As last listed.
    pub info: CriSandbox,
    /// First listed ready.
    pub seen_ready: bool,
    /// No longer ready.
    pub stopped: Option<Between>,
    /// No longer listed.
    pub removed: Option<Between>,
    listing: Listing,
}

/// A container and its life as the runtime tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Container {
    /// As last listed.
    pub info: CriContainer,
    /// It was listed alive at least once.
    pub seen_alive: bool,
    /// When it was first listed.
    pub first_seen: BootTime,
    /// Exited, or no longer listed.
    pub exited: Option<Between>,
    /// No longer listed.
    pub removed: Option<Between>,
    /// ContainerStatus of its end.
    pub exit: Option<CriExit>,
    /// The signal that stops it, where the runtime told.
    pub stop_signal: Option<u8>,
    /// The shim that runs it, where the runtime told.
    pub runtime_type: Option<String>,
    listing: Listing,
}

/// A time without answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outage {
    /// The first call that failed.
    pub from: BootTime,
    /// The next answer.
    pub to: Option<BootTime>,
    /// What the call said.
    pub error: String,
    /// The gRPC status' code, where there was one.
    pub code: Option<String>,
    /// The runtime that answered afterwards is another process than before; `None`: unknown.
    pub restarted: Option<bool>,
}

/// All that the runtime told.
#[derive(Clone, Debug, Default)]
pub struct Runtime {
    sandboxes: Table<SandboxId, Sandbox>,
    containers: Table<ContainerId, Container>,
    // Nearly always one of each; the oldest first.
    by_pod: Table<PodUid, Vec<SandboxId>>,
    by_sandbox: Table<SandboxId, Vec<ContainerId>>,
    outages: Vec<Outage>,
    process: Option<DaemonProcess>,
    connected: bool,
    /// When the last full list of either kind was asked for: what is not in it is younger.
    full: (Option<BootTime>, Option<BootTime>),
    /// How many lists there were.
    lists: u64,
    refused: u64,
}

impl Runtime {
    /// Applies an answer.
    pub fn apply(&mut self, at: BootTime, event: CriEvent, dirty: &mut Dirty) {
        dirty.all_reports |= !self.connected;
        if !matches!(event, CriEvent::Connected { .. } | CriEvent::Unreachable { .. }) {
            self.answered(at);
        }
        match event {
            CriEvent::Connected { process, .. } => {
                dirty.all_reports = true;
                self.connect(at, process);
            }
            CriEvent::Unreachable { error, code } => {
                if self.connected || self.outages.is_empty() {
                    self.note(Outage { from: at, to: None, error, code, restarted: None });
                }
                self.connected = false;
            }
            CriEvent::Sandboxes { asked, only, sandboxes } => {
                self.list_sandboxes(at, asked, only, sandboxes, dirty);
            }
            CriEvent::Containers { asked, only, containers } => {
                self.list_containers(at, asked, only, containers, dirty);
            }
            CriEvent::ContainerExited(exit) => {
                if let Some(known) = self.containers.get_mut(&exit.container) {
                    known.exit = Some(CriExit { container: known.info.id.clone(), ..exit });
                    dirty.pods.extend(pod_of(&self.sandboxes, known).cloned());
                }
            }
            CriEvent::StopSignal { container, signal } => {
                if let Some(known) = self.containers.get_mut(&container) {
                    known.stop_signal = Some(signal);
                    dirty.containers.insert(container);
                    dirty.pods.extend(pod_of(&self.sandboxes, known).cloned());
                }
            }
            CriEvent::RuntimeType { container, runtime } => {
                if let Some(known) = self.containers.get_mut(&container) {
                    known.runtime_type = Some(runtime);
                    dirty.pods.extend(pod_of(&self.sandboxes, known).cloned());
                }
            }
            CriEvent::ContainerCgroup { .. }
            | CriEvent::SandboxStatus(_)
            | CriEvent::SandboxStatusRefused { .. } => {}
        }
    }

    fn note(&mut self, outage: Outage) {
        if self.outages.len() >= MAX_OUTAGES {
            self.outages.remove(0);
        }
        self.outages.push(outage);
    }

    /// An answer without a new connection: a call had failed, the runtime was there all along.
    fn answered(&mut self, at: BootTime) {
        if let Some(outage) = self.outages.last_mut().filter(|o| o.to.is_none()) {
            outage.to = Some(at);
            outage.restarted = Some(false);
        }
        self.connected = true;
    }

    fn connect(&mut self, at: BootTime, process: Option<DaemonProcess>) {
        let restarted = match (self.process, process) {
            (Some(before), Some(now)) => Some(before != now),
            _ => None,
        };
        match self.outages.last_mut() {
            Some(outage) if outage.to.is_none() => {
                outage.to = Some(at);
                outage.restarted = restarted;
            }
            // Restarted so fast that no call failed.
            _ if restarted == Some(true) => self.note(Outage {
                from: at,
                to: Some(at),
                error: "another process answers at the socket".into(),
                code: None,
                restarted,
            }),
            _ => {}
        }
        if process.is_some() {
            self.process = process;
        }
        self.connected = true;
    }

    /// A sandbox is no longer one of this pod's.
    fn disown(&mut self, pod: &PodUid, id: &SandboxId) {
        if let Some(of_pod) = self.by_pod.get_mut(pod) {
            of_pod.retain(|other| other != id);
            if of_pod.is_empty() {
                self.by_pod.remove(pod);
            }
        }
    }

    /// A sandbox is one of this pod's.
    fn own(&mut self, pod: &PodUid, id: SandboxId) {
        let Self { sandboxes, by_pod, .. } = self;
        let place = |id: &SandboxId| Some((sandboxes.get(id)?.info.created, id.clone()));
        insert_sorted(by_pod.entry(pod.clone()).or_default(), id, place);
    }

    /// It has answered at least once.
    pub fn was_connected(&self) -> bool {
        self.full.0.is_some()
    }

    /// It answers, and what is known of it was asked for since it last did not.
    pub fn is_current(&self) -> bool {
        let since = self.outages.last().map_or(BootTime(0), |outage| outage.from);
        let fresh = |asked: Option<BootTime>| asked.is_some_and(|asked| asked >= since);
        self.connected && fresh(self.full.0) && fresh(self.full.1)
    }

    /// It answers.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// All that it knows was asked for after this moment.
    pub fn has_listed_since(&self, at: BootTime) -> bool {
        let since = |asked: Option<BootTime>| asked.is_some_and(|asked| asked >= at);
        since(self.full.0) && since(self.full.1)
    }

    /// A sandbox.
    pub fn sandbox(&self, id: &SandboxId) -> Option<&Sandbox> {
        self.sandboxes.get(id)
    }

    /// A container.
    pub fn container(&self, id: &ContainerId) -> Option<&Container> {
        self.containers.get(id)
    }

    /// A sandbox by the text of its id.
    pub fn sandbox_called(&self, id: &str) -> Option<&Sandbox> {
        self.sandboxes.get(id)
    }

    /// A container by the text of its id.
    pub fn container_called(&self, id: &str) -> Option<&Container> {
        self.containers.get(id)
    }

    /// All sandboxes.
    pub fn sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        self.sandboxes.values()
    }

    /// All containers.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.values()
    }

    /// A pod's sandboxes, the oldest first.
    pub fn sandboxes_of(&self, pod: &PodUid) -> impl DoubleEndedIterator<Item = &Sandbox> {
        self.by_pod.get(pod).into_iter().flatten().filter_map(|id| self.sandboxes.get(id))
    }

    /// How many sandboxes of this pod it knows.
    pub fn count(&self, pod: &PodUid) -> usize {
        self.by_pod.get(pod).map_or(0, Vec::len)
    }

    /// It knows a sandbox of this pod.
    pub fn has_sandbox(&self, pod: &PodUid) -> bool {
        self.by_pod.contains_key(pod)
    }

    /// A sandbox's containers, the oldest first.
    pub fn containers_of(&self, sandbox: &SandboxId) -> impl Iterator<Item = &Container> + Clone {
        self.by_sandbox.get(sandbox).into_iter().flatten().filter_map(|id| self.containers.get(id))
    }

    /// The pod of a container.
    pub fn pod_of(&self, container: &ContainerId) -> Option<&PodUid> {
        pod_of(&self.sandboxes, self.containers.get(container)?)
    }

    /// Outages that touch the time from `from` to `to`.
    pub fn outages(&self, from: BootTime, to: BootTime) -> impl Iterator<Item = &Outage> {
        self.outages
            .iter()
            .filter(move |o| o.from <= to && o.to.is_none_or(|answered| answered >= from))
    }

    /// Forgets a sandbox that the runtime has removed, and its containers.
    pub fn forget(&mut self, id: &SandboxId, dirty: &mut Dirty) -> Vec<ContainerId> {
        dirty.orphans = true;
        if let Some(sandbox) = self.sandboxes.remove(id) {
            self.disown(&sandbox.info.pod, id);
            dirty.pods.insert(sandbox.info.pod);
        }
        let containers: Vec<ContainerId> =
            self.by_sandbox.remove(id).into_iter().flatten().collect();
        for container in &containers {
            self.containers.remove(container);
        }
        containers
    }

    /// Forgets a container that is gone and accounted for.
    pub fn forget_container(&mut self, id: &ContainerId, dirty: &mut Dirty) {
        dirty.orphans = true;
        if let Some(known) = self.containers.remove(id)
            && let Some(siblings) = self.by_sandbox.get_mut(&known.info.sandbox)
        {
            siblings.retain(|other| other != id);
            if siblings.is_empty() {
                self.by_sandbox.remove(&known.info.sandbox);
            }
        }
    }

    /// Removed sandboxes, for the engine to forget once they are accounted for.
    pub fn removed_sandboxes(&self) -> Vec<(SandboxId, PodUid, BootTime)> {
        self.sandboxes
            .values()
            .filter_map(|s| Some((s.info.id.clone(), s.info.pod.clone(), s.removed?.by)))
            .collect()
    }

    /// Removed containers whose sandbox goes on, or is unknown.
    pub fn removed_containers(&self) -> Vec<(ContainerId, BootTime)> {
        self.containers.values().filter_map(|c| Some((c.info.id.clone(), c.removed?.by))).collect()
    }

    /// How many sandboxes and containers were refused for want of room, since the last call.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// The pods it knows.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.by_pod.keys()
    }

    /// Sizes, for the engine's gauges: sandboxes and containers.
    pub fn len(&self) -> (usize, usize) {
        (self.sandboxes.len(), self.containers.len())
    }
}

impl Sandbox {
    /// The last answer did not have it: it may be gone.
    pub fn is_missing(&self) -> bool {
        self.listing.missing.is_some()
    }

    /// When the runtime was last asked for a list that showed it.
    pub fn last_listed(&self) -> BootTime {
        self.listing.asked
    }
}

impl Container {
    /// When the runtime was last asked for a list that showed it.
    pub fn last_listed(&self) -> BootTime {
        self.listing.asked
    }
}

fn insert_sorted<T, K: Ord>(sorted: &mut Vec<T>, one: T, place: impl Fn(&T) -> K) {
    let its = place(&one);
    // Nearly always it is the last.
    let is_last = sorted.last().is_none_or(|last| place(last) <= its);
    let at = if is_last { sorted.len() } else { sorted.partition_point(|of| place(of) <= its) };
    sorted.insert(at, one);
}

fn pod_of<'a>(
    sandboxes: &'a Table<SandboxId, Sandbox>,
    container: &'a Container,
) -> Option<&'a PodUid> {
    let sandbox = sandboxes.get(&container.info.sandbox);
    sandbox.map(|s| &s.info.pod).or(container.info.pod.as_ref())
}
