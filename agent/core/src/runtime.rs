//! What the container runtime told: sandboxes and containers with the times between which each
//! change must have happened. Facts only.

use super::{
    ids::{ContainerId, PodUid, SandboxId},
    input::{CriContainer, CriEvent, CriExit, CriSandbox, CriState, DaemonProcess},
    table::Table,
    time::BootTime,
};
use std::{collections::BTreeSet, time::Duration};

/// Bound on what is remembered of either kind: beyond it new ones are refused and counted.
const MAX_KNOWN: usize = 65_536;
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
    /// Alive when last listed, and missing once.
    missing: Option<Between>,
    last_asked: BootTime,
    /// When the newest list was asked for that covers it, whether it was in it or not.
    covered: BootTime,
    /// The last list that had it.
    listed: u64,
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
    /// Alive when last listed, and missing once.
    missing: Option<Between>,
    last_asked: BootTime,
    /// When the newest list was asked for that covers it, whether it was in it or not.
    covered: BootTime,
    /// The last list that had it.
    listed: u64,
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
    /// Containers of which something is new that the adapters may have to find out about.
    news: Vec<ContainerId>,
    /// Pods of which it tells something else than before.
    changed: Vec<PodUid>,
    /// How often it ceased to tell of something.
    losses: u64,
    refused: u64,
}

impl Runtime {
    /// Takes an answer, and adds the pods that it touches.
    pub fn learn(&mut self, at: BootTime, event: CriEvent, touched: &mut BTreeSet<PodUid>) {
        if !matches!(event, CriEvent::Connected { .. } | CriEvent::Unreachable { .. }) {
            self.answered(at);
        }
        match event {
            CriEvent::Connected { process, .. } => self.connect(at, process),
            CriEvent::Unreachable { error, code } => {
                if self.connected || self.outages.is_empty() {
                    self.note(Outage { from: at, to: None, error, code, restarted: None });
                }
                self.connected = false;
            }
            CriEvent::Sandboxes { asked, only, sandboxes } => {
                self.list_sandboxes(at, asked, only, sandboxes, touched);
            }
            CriEvent::Containers { asked, only, containers } => {
                self.list_containers(at, asked, only, containers, touched);
            }
            CriEvent::ContainerExited(exit) => {
                if let Some(known) = self.containers.get_mut(&exit.container) {
                    known.exit = Some(CriExit { container: known.info.id.clone(), ..exit });
                    touched.extend(pod_of(&self.sandboxes, known).cloned());
                }
            }
            CriEvent::StopSignal { container, signal } => {
                if let Some(known) = self.containers.get_mut(&container) {
                    known.stop_signal = Some(signal);
                    self.news.push(container);
                    touched.extend(pod_of(&self.sandboxes, known).cloned());
                }
            }
            CriEvent::RuntimeType { container, runtime } => {
                if let Some(known) = self.containers.get_mut(&container) {
                    known.runtime_type = Some(runtime);
                    touched.extend(pod_of(&self.sandboxes, known).cloned());
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

    fn list_sandboxes(
        &mut self,
        at: BootTime,
        asked: BootTime,
        only: Option<SandboxId>,
        listed: Vec<CriSandbox>,
        touched: &mut BTreeSet<PodUid>,
    ) {
        let since = self.full.0.unwrap_or_default();
        if only.is_none() {
            self.full.0 = self.full.0.max(Some(asked));
        }
        self.lists += 1;
        let list = self.lists;
        for info in listed {
            let room = self.sandboxes.len() < MAX_KNOWN;
            match self.sandboxes.get_mut(&info.id) {
                // The adapter asks for filtered lists while a full one is under way: what a list
                // says that was asked for later is newer, though the answer came first.
                Some(known) if known.covered > asked => {}
                Some(known) => {
                    if known.info.ready && !info.ready && known.stopped.is_none() {
                        known.stopped = Some(Between { after: known.last_asked, by: at });
                        touched.insert(info.pod.clone());
                    }
                    if known.removed.is_some() {
                        self.changed.push(info.pod.clone());
                    }
                    (known.removed, known.missing) = (None, None);
                    known.seen_ready |= info.ready;
                    (known.last_asked, known.covered, known.listed) = (asked, asked, list);
                    // Nearly always the same: kept, so that each list does not leave the memory
                    // of the last one in shreds.
                    if known.info != info {
                        let before = std::mem::replace(&mut known.info, info);
                        let (id, pod) = (before.id.clone(), known.info.pod.clone());
                        if (&before.pod, before.created) != (&pod, known.info.created) {
                            self.disown(&before.pod, &id);
                            self.own(&pod, id);
                        }
                        self.changed.extend([before.pod, pod]);
                    }
                }
                None if room => {
                    touched.insert(info.pod.clone());
                    let (pod, id) = (info.pod.clone(), info.id.clone());
                    self.news.extend(self.by_sandbox.get(&id).into_iter().flatten().cloned());
                    let known = Sandbox {
                        seen_ready: info.ready,
                        stopped: (!info.ready).then_some(Between { after: since, by: at }),
                        removed: None,
                        missing: None,
                        last_asked: asked,
                        covered: asked,
                        listed: list,
                        info,
                    };
                    self.sandboxes.insert(id.clone(), known);
                    self.own(&pod, id);
                    self.changed.push(pod);
                }
                None => self.refused += 1,
            }
        }
        let Self { sandboxes, changed, losses, .. } = self;
        let mut not_listed = |known: &mut Sandbox| {
            if known.listed != list && known.miss(asked, at) {
                *losses += 1;
                touched.insert(known.info.pod.clone());
                changed.push(known.info.pod.clone());
            }
        };
        match only {
            Some(id) => sandboxes.get_mut(&id).into_iter().for_each(&mut not_listed),
            None => sandboxes.values_mut().for_each(not_listed),
        }
    }

    fn list_containers(
        &mut self,
        at: BootTime,
        asked: BootTime,
        only: Option<SandboxId>,
        listed: Vec<CriContainer>,
        touched: &mut BTreeSet<PodUid>,
    ) {
        let since = self.full.1.unwrap_or_default();
        if only.is_none() {
            self.full.1 = self.full.1.max(Some(asked));
        }
        self.lists += 1;
        let list = self.lists;
        for info in listed {
            let alive = matches!(info.state, CriState::Created | CriState::Running);
            let room = self.containers.len() < MAX_KNOWN;
            match self.containers.get_mut(&info.id) {
                // As for the sandboxes.
                Some(known) if known.covered > asked => {}
                Some(known) => {
                    if info.state == CriState::Exited && known.exited.is_none() {
                        known.exited = Some(Between { after: known.last_asked, by: at });
                        touched.extend(pod_of(&self.sandboxes, known).cloned());
                    }
                    if known.removed.is_some() {
                        self.changed.extend(pod_of(&self.sandboxes, known).cloned());
                    }
                    (known.removed, known.missing) = (None, None);
                    known.seen_alive |= alive;
                    (known.last_asked, known.covered, known.listed) = (asked, asked, list);
                    // As for the sandboxes.
                    if known.info != info {
                        self.news.push(info.id.clone());
                        known.info = info;
                        self.changed.extend(pod_of(&self.sandboxes, known).cloned());
                    }
                }
                None if room => {
                    let info = self.sharing(info);
                    let exited = info.state == CriState::Exited;
                    let (sandbox, id) = (info.sandbox.clone(), info.id.clone());
                    self.news.push(id.clone());
                    let known = Container {
                        seen_alive: alive,
                        first_seen: at,
                        exited: exited.then_some(Between { after: since, by: at }),
                        removed: None,
                        exit: None,
                        stop_signal: None,
                        runtime_type: None,
                        missing: None,
                        last_asked: asked,
                        covered: asked,
                        listed: list,
                        info,
                    };
                    let pod = pod_of(&self.sandboxes, &known);
                    touched.extend(pod.cloned());
                    self.changed.extend(pod.cloned());
                    self.containers.insert(id.clone(), known);
                    let Self { containers, by_sandbox, .. } = self;
                    let place =
                        |id: &ContainerId| Some((containers.get(id)?.info.created, id.clone()));
                    insert_sorted(by_sandbox.entry(sandbox).or_default(), id, place);
                }
                None => self.refused += 1,
            }
        }
        let Self { sandboxes, containers, by_sandbox, changed, losses, .. } = self;
        let mut not_listed = |known: &mut Container| {
            if known.listed != list && known.miss(asked, at) {
                *losses += 1;
                let pod = pod_of(sandboxes, known);
                touched.extend(pod.cloned());
                changed.extend(pod.cloned());
            }
        };
        match only {
            Some(id) => {
                for id in by_sandbox.get(&id).into_iter().flatten() {
                    containers.get_mut(id).into_iter().for_each(&mut not_listed);
                }
            }
            None => containers.values_mut().for_each(not_listed),
        }
    }

    /// A sandbox is no longer one of this pod's.
    fn disown(&mut self, pod: &PodUid, id: &SandboxId) {
        self.losses += 1;
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

    /// The container with the ids that its sandbox has, instead of copies of them.
    fn sharing(&self, mut info: CriContainer) -> CriContainer {
        if let Some((id, sandbox)) = self.sandboxes.get_key_value(&info.sandbox) {
            info.sandbox = id.clone();
            if info.pod.as_ref() == Some(&sandbox.info.pod) {
                info.pod = Some(sandbox.info.pod.clone());
            }
        }
        info
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
    pub fn forget(&mut self, id: &SandboxId) -> Vec<ContainerId> {
        if let Some(sandbox) = self.sandboxes.remove(id) {
            self.disown(&sandbox.info.pod, id);
            self.changed.push(sandbox.info.pod);
        }
        let containers: Vec<ContainerId> =
            self.by_sandbox.remove(id).into_iter().flatten().collect();
        for container in &containers {
            self.containers.remove(container);
        }
        containers
    }

    /// Forgets a container that is gone and accounted for.
    pub fn forget_container(&mut self, id: &ContainerId) {
        self.losses += 1;
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

    /// Counts whatever it has ceased to tell of: while that is the same, what was known is known.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Pods of which something else is told than before, since the last call.
    pub fn take_changed(&mut self) -> Vec<PodUid> {
        std::mem::take(&mut self.changed)
    }

    /// Containers that are new, or of which something is, since the last call.
    pub fn take_news(&mut self) -> Vec<ContainerId> {
        std::mem::take(&mut self.news)
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
        self.missing.is_some()
    }

    /// When the runtime was last asked for a list that showed it.
    pub fn last_listed(&self) -> BootTime {
        self.last_asked
    }

    /// A list that was asked for then did not have it. True: it is gone, and was not before.
    fn miss(&mut self, asked: BootTime, by: BootTime) -> bool {
        if self.covered > asked {
            return false; // a newer list has been answered before
        }
        self.covered = asked;
        if self.removed.is_some() {
            return false;
        }
        let gone = Between { after: self.last_asked, by };
        self.removed = missed(&mut self.missing, self.info.ready, gone);
        if self.stopped.is_none() && self.info.ready {
            self.stopped = self.removed;
        }
        self.removed.is_some()
    }
}

impl Container {
    /// When the runtime was last asked for a list that showed it.
    pub fn last_listed(&self) -> BootTime {
        self.last_asked
    }

    /// A list that was asked for then did not have it. True: it is gone, and was not before.
    fn miss(&mut self, asked: BootTime, by: BootTime) -> bool {
        if self.covered > asked {
            return false; // a newer list has been answered before
        }
        self.covered = asked;
        if self.removed.is_some() {
            return false;
        }
        let gone = Between { after: self.last_asked, by };
        let alive = matches!(self.info.state, CriState::Created | CriState::Running);
        self.removed = missed(&mut self.missing, alive, gone);
        self.exited = self.exited.or(self.removed);
        self.removed.is_some()
    }
}

/// One answer without it does not end what was alive a moment ago: an entry that could not be read
/// is left out. What had ended is gone at once.
fn missed(missing: &mut Option<Between>, alive: bool, now: Between) -> Option<Between> {
    match *missing {
        Some(first) => Some(first),
        None if alive => {
            *missing = Some(now);
            None
        }
        None => Some(now),
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
