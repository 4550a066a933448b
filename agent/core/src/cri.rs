//! The store of the container runtime's answers: sandboxes and containers, with the interval in which each
//! change happened.

mod lists;

use super::{
    dirty::Dirty,
    ids::{ContainerId, PodUid, SandboxId},
    input::{CriContainer, CriEvent, CriExit, CriSandbox, DaemonProcess},
    table::{Table, remove_from},
    time::{BootTime, Interval},
};
pub use lists::Listing;

/// Bound on sandboxes and on containers. Further ones are refused and counted.
const MAX_KNOWN: usize = 65_536;
/// Bound on outages; the oldest are evicted.
const MAX_OUTAGES: usize = 32;

/// A sandbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sandbox {
    /// As last listed.
    pub info: CriSandbox,
    /// It was listed ready at least once.
    pub seen_ready: bool,
    /// When it stopped being ready.
    pub stopped: Option<Interval>,
    /// When it disappeared from the lists.
    pub removed: Option<Interval>,
    /// Which lists had it.
    pub listing: Listing,
}

/// A container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Container {
    /// As last listed.
    pub info: CriContainer,
    /// It was listed as created or running at least once.
    pub seen_alive: bool,
    /// When it was first listed.
    pub first_seen: BootTime,
    /// When it exited, or disappeared from the lists.
    pub exited: Option<Interval>,
    /// When it disappeared from the lists.
    pub removed: Option<Interval>,
    /// ContainerStatus after its exit.
    pub exit: Option<CriExit>,
    /// The stop signal, where the runtime reports one.
    pub stop_signal: Option<u8>,
    /// The shim that runs it, where the runtime reports it.
    pub runtime_type: Option<String>,
    /// Which lists had it.
    pub listing: Listing,
}

/// A time in which the runtime did not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outage {
    /// The first call that failed.
    pub from: BootTime,
    /// The first answer after it.
    pub to: Option<BootTime>,
    /// The error of that call.
    pub error: String,
    /// The gRPC status code, where there was one.
    pub code: Option<String>,
    /// Another process answered afterwards; `None`: unknown.
    pub restarted: Option<bool>,
}

/// All answers of the runtime, by sandbox and container.
#[derive(Clone, Debug, Default)]
pub struct CriState {
    sandboxes: Table<SandboxId, Sandbox>,
    containers: Table<ContainerId, Container>,
    // Oldest first; nearly always one entry each.
    by_pod: Table<PodUid, Vec<SandboxId>>,
    by_sandbox: Table<SandboxId, Vec<ContainerId>>,
    outages: Vec<Outage>,
    process: Option<DaemonProcess>,
    connected: bool,
    /// When the last full list of sandboxes, and of containers, was requested. A sandbox or container missing
    /// there is younger.
    full: (Option<BootTime>, Option<BootTime>),
    /// Number of lists so far.
    lists: u64,
}

impl CriState {
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

    /// An answer without a new connection: a call failed, but the runtime ran all along.
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

    /// Adds a sandbox to its pod.
    fn own(&mut self, pod: &PodUid, id: SandboxId) {
        let Self { sandboxes, by_pod, .. } = self;
        let place = |id: &SandboxId| Some((sandboxes.get(id)?.info.created, id.clone()));
        insert_sorted(by_pod.entry(pod.clone()).or_default(), id, place);
    }

    /// The runtime has answered at least once.
    pub fn was_connected(&self) -> bool {
        self.full.0.is_some()
    }

    /// The runtime answers, and both lists were requested after its last outage.
    pub fn is_current(&self) -> bool {
        let since = self.outages.last().map_or(BootTime(0), |outage| outage.from);
        self.connected && self.has_listed_since(since)
    }

    /// The runtime answers.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Both full lists were requested after `at`.
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

    /// A pod's sandboxes, oldest first.
    pub fn sandboxes_of(&self, pod: &PodUid) -> impl DoubleEndedIterator<Item = &Sandbox> {
        self.by_pod.get(pod).into_iter().flatten().filter_map(|id| self.sandboxes.get(id))
    }

    /// The runtime has listed a sandbox of this pod.
    pub fn has_sandbox(&self, pod: &PodUid) -> bool {
        self.by_pod.contains_key(pod)
    }

    /// A sandbox's containers, oldest first.
    pub fn containers_of<'a>(
        &'a self,
        sandbox: &SandboxId,
    ) -> impl Iterator<Item = &'a Container> + Clone + use<'a> {
        self.by_sandbox.get(sandbox).into_iter().flatten().filter_map(|id| self.containers.get(id))
    }

    /// The pod of a container.
    pub fn pod_of(&self, container: &ContainerId) -> Option<&PodUid> {
        pod_of(&self.sandboxes, self.containers.get(container)?)
    }

    /// Outages that overlap the time from `from` to `to`.
    pub fn outages(&self, from: BootTime, to: BootTime) -> impl Iterator<Item = &Outage> {
        self.outages
            .iter()
            .filter(move |o| o.from <= to && o.to.is_none_or(|answered| answered >= from))
    }

    /// Evicts a removed sandbox with its containers, and returns the containers.
    pub fn evict(&mut self, id: &SandboxId, dirty: &mut Dirty) -> Vec<ContainerId> {
        if let Some(sandbox) = self.sandboxes.remove(id) {
            remove_from(&mut self.by_pod, &sandbox.info.pod, id);
            dirty.pods.insert(sandbox.info.pod);
        }
        let containers: Vec<ContainerId> =
            self.by_sandbox.remove(id).into_iter().flatten().collect();
        for container in &containers {
            self.containers.remove(container);
        }
        containers
    }

    /// Evicts a removed container.
    pub fn evict_container(&mut self, id: &ContainerId) {
        if let Some(known) = self.containers.remove(id) {
            remove_from(&mut self.by_sandbox, &known.info.sandbox, id);
        }
    }

    /// Removed sandboxes: candidates for eviction.
    pub fn removed_sandboxes(&self) -> Vec<(SandboxId, PodUid, BootTime)> {
        self.sandboxes
            .values()
            .filter_map(|s| Some((s.info.id.clone(), s.info.pod.clone(), s.removed?.latest)))
            .collect()
    }

    /// Removed containers: candidates for eviction.
    pub fn removed_containers(&self) -> Vec<(ContainerId, BootTime)> {
        self.containers
            .values()
            .filter_map(|c| Some((c.info.id.clone(), c.removed?.latest)))
            .collect()
    }

    /// Number of sandboxes and of containers.
    pub fn len(&self) -> (usize, usize) {
        (self.sandboxes.len(), self.containers.len())
    }
}

fn insert_sorted<T, K: Ord>(sorted: &mut Vec<T>, one: T, place: impl Fn(&T) -> K) {
    let its = place(&one);
    // Nearly always the new entry is the last.
    let is_last = sorted.last().is_none_or(|last| place(last) <= its);
    let at =
        if is_last { sorted.len() } else { sorted.partition_point(|other| place(other) <= its) };
    sorted.insert(at, one);
}

fn pod_of<'a>(
    sandboxes: &'a Table<SandboxId, Sandbox>,
    container: &'a Container,
) -> Option<&'a PodUid> {
    let sandbox = sandboxes.get(&container.info.sandbox);
    sandbox.map(|s| &s.info.pod).or(container.info.pod.as_ref())
}
