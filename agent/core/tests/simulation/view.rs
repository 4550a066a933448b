//! What the faulted sources delivered of one history, read without the core: who was sent which signal, what each
//! version of the pod's status showed and in which order, what the runtime listed, and when nothing came.

use super::truth::is_main;
use coroner_core::{
    ids::{CgroupId, ContainerId},
    input::{
        ApiContainer, ApiEvent, ApiPod, ContainerKind, CriContainer, CriEvent, ExitStatus, Input,
        KernelFact, LossKind, Received,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

/// By how much the clocks of two machines differ, where they are kept; and how late a watch is, where nothing is wrong
/// with it. ms.
const SKEW: u64 = 1_000;
/// How late the events just before an outage may be, ms.
const LAG: u64 = 5_000;
/// What came up in an outage of the watch may come so long after it, ms.
const QUEUED: u64 = 10_000;

/// No hook runs longer, ms.
const LONGEST_HOOK: u64 = 3_000;

/// A version of the pod, as the apiserver delivered it.
pub(super) struct Version<'a> {
    pub(super) at: u64,
    pub(super) pod: &'a ApiPod,
    /// The watch delivered it: no version between the last one and this one is missing.
    pub(super) in_order: bool,
    /// By so much the node's wall clock was ahead of its boot clock, ms.
    ahead: i64,
}

/// How the status showed the end of an attempt in a pod that was to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// `running(N)`, then `running(N+1)` or `waiting(N)`: the kubelet stopped it and starts it again in one sync.
    SameSync,
    /// `terminated(N)` without a successor: the kubelet found it ended.
    FoundEnded,
    /// Neither.
    NotShown,
}

/// A process that entered a container.
struct Entered {
    name: String,
    began: u64,
    ended: Option<(u64, ExitStatus)>,
}

/// What the kernel's records showed of one cgroup.
#[derive(Default)]
struct Recorded {
    /// Signals from outside the container to its main process.
    signals: Vec<u64>,
    entered: BTreeMap<u32, Vec<Entered>>,
    /// Its main process ended.
    ended: Option<u64>,
    /// No process was left in it.
    empty: Option<u64>,
}

/// All that was delivered.
pub(super) struct View<'a> {
    /// When the agent began.
    pub(super) starts: u64,
    pub(super) versions: Vec<Version<'a>>,
    recorded: BTreeMap<CgroupId, Recorded>,
    cgroups: BTreeMap<&'a str, CgroupId>,
    /// Cgroups that were there when the agent began.
    scanned: BTreeSet<CgroupId>,
    ahead: i64,
    /// When the watch was away: from the last event before to the moment when it was back.
    outages: Vec<RangeInclusive<u64>>,
    /// The last event of the watch.
    shown: u64,
    /// When losses of deciding records were noticed.
    lost: Vec<u64>,
    listed: BTreeMap<&'a ContainerId, &'a CriContainer>,
    sandboxes: BTreeSet<&'a str>,
    /// From the last list before the runtime was away to the first after it.
    away: Vec<RangeInclusive<u64>>,
}

fn ms(received: &Received) -> u64 {
    received.at.0 / 1_000_000
}

impl<'a> View<'a> {
    pub(super) fn of(inputs: &'a [Received]) -> Self {
        let mut view = Self {
            starts: inputs.first().map_or(0, ms),
            versions: Vec::new(),
            recorded: BTreeMap::new(),
            cgroups: BTreeMap::new(),
            scanned: BTreeSet::new(),
            ahead: 0,
            outages: Vec::new(),
            shown: 0,
            lost: Vec::new(),
            listed: BTreeMap::new(),
            sandboxes: BTreeSet::new(),
            away: Vec::new(),
        };
        let (mut answered, mut failed, mut connected) = (view.starts, false, false);
        for one in inputs {
            let at = ms(one);
            match &one.input {
                Input::Api(event) => view.watch(at, event),
                Input::Kernel(event) => view.kernel(event.time.0 / 1_000_000, &event.fact),
                Input::Lost(loss) if loss.kind != LossKind::DetailRingFull => view.lost.push(at),
                Input::Clock(anchor) => {
                    view.ahead = (anchor.wall_ns - anchor.boot_ns as i64) / 1_000_000;
                }
                Input::Cri(CriEvent::Connected { .. }) => {
                    failed |= std::mem::replace(&mut connected, true);
                }
                Input::Cri(CriEvent::Unreachable { .. }) => failed = true,
                Input::Cri(CriEvent::Containers { containers, .. }) => {
                    if std::mem::take(&mut failed) {
                        view.away.push(answered..=at);
                    }
                    answered = at;
                    view.listed.extend(containers.iter().map(|one| (&one.id, one)));
                }
                Input::Cri(CriEvent::Sandboxes { sandboxes, .. }) => {
                    view.sandboxes.extend(sandboxes.iter().map(|one| one.id.as_str()));
                }
                _ => {}
            }
        }
        view
    }

    fn watch(&mut self, at: u64, event: &'a ApiEvent) {
        let (pods, in_order) = match event {
            ApiEvent::Snapshot { pods } => (pods.as_slice(), false),
            ApiEvent::Applied(pod) | ApiEvent::Deleted(pod) => (std::slice::from_ref(pod), true),
            ApiEvent::OutOfSync { .. } => return self.outages.push(self.shown..=u64::MAX),
            ApiEvent::Resumed => (&[][..], true),
            _ => return,
        };
        if let Some(outage) = self.outages.last_mut().filter(|outage| *outage.end() > at) {
            *outage = *outage.start()..=at;
        }
        let ahead = self.ahead;
        self.versions.extend(pods.iter().map(|pod| Version { at, pod, in_order, ahead }));
        self.shown = at;
    }

    fn kernel(&mut self, at: u64, fact: &'a KernelFact) {
        match fact {
            KernelFact::CgroupCreated { cgroup, name, scanned, .. } => {
                self.cgroups.insert(name, *cgroup);
                if *scanned {
                    self.scanned.insert(*cgroup);
                }
            }
            KernelFact::SignalGenerated(sent) if sent.sender.in_container == Some(false) => {
                self.recorded.entry(sent.cgroup).or_default().signals.push(at);
            }
            KernelFact::Exec { cgroup, task, parent }
                if parent.in_container == Some(false) && !is_main(task) =>
            {
                let entered = &mut self.recorded.entry(*cgroup).or_default().entered;
                let one = Entered { name: task.comm.clone(), began: at, ended: None };
                entered.entry(task.tid).or_default().push(one);
            }
            KernelFact::Exit { cgroup, task, status, .. } => {
                let recorded = self.recorded.entry(*cgroup).or_default();
                let of = recorded.entered.get_mut(&task.tid).and_then(|all| all.last_mut());
                match of {
                    Some(one) => _ = one.ended.get_or_insert((at, *status)),
                    None if is_main(task) => _ = recorded.ended.get_or_insert(at),
                    None => {}
                }
            }
            KernelFact::CgroupEmpty { cgroup } => {
                self.recorded.entry(*cgroup).or_default().empty = Some(at);
            }
            _ => {}
        }
    }

    fn recorded(&self, id: &str) -> Option<&Recorded> {
        self.recorded.get(self.cgroups.get(id)?)
    }

    /// When the first signal from outside was sent to it, if any was recorded.
    pub(super) fn stopped(&self, id: &str) -> Option<u64> {
        self.recorded(id)?.signals.iter().min().copied()
    }

    /// When its main process ended.
    pub(super) fn ended(&self, id: &str) -> Option<u64> {
        self.recorded(id)?.ended
    }

    /// After this moment nothing of the pod was being stopped for so long, and then some of it was. A kubelet that
    /// stops a pod stops its main containers at once, then its sidecars, then its sandbox.
    pub(super) fn ran_on(&self, after: u64, for_ms: u64) -> bool {
        let ids = self.listed.keys().map(|id| id.as_str());
        let stops = ids.filter_map(|id| {
            let stopped = self.stopped(id)?;
            let has_hook =
                self.listed.get(&ContainerId::new(id)).is_some_and(|one| one.pre_stop.is_some());
            // The record of a hook may be lost.
            let unseen = || if has_hook { stopped.saturating_sub(LONGEST_HOOK) } else { stopped };
            // So may that of its end.
            let ended = self.ended(id).unwrap_or(u64::MAX);
            Some((self.hook(id, stopped).unwrap_or_else(unseen), ended))
        });
        let pause = |id: &&str| self.recorded(id)?.empty.map(|at| (at, at));
        let sandboxes = self.sandboxes.iter().filter_map(pause);
        let mut stops: Vec<_> =
            stops.chain(sandboxes).filter(|(_, ended)| *ended > after).collect();
        stops.sort_unstable();
        stops.first().is_some_and(|(began, _)| *began >= after + for_ms)
    }

    /// A loss of deciding records was noticed in this time.
    pub(super) fn lost(&self, when: RangeInclusive<u64>) -> bool {
        self.lost.iter().any(|at| when.contains(at))
    }

    /// The runtime was away in some part of this time, or may have been.
    pub(super) fn was_away(&self, when: RangeInclusive<u64>) -> bool {
        self.away.iter().any(|away| away.start() <= when.end() && when.start() <= away.end())
    }

    /// The last run of the exec probe before its stop failed.
    pub(super) fn probe_failed(&self, id: &str, name: &str, stopped: u64) -> bool {
        let probe = self.last(name).and_then(|one| one.liveness.as_ref()?.exec.as_deref());
        let ran = |one: &&Entered| one.ended.is_some_and(|(at, _)| at <= stopped);
        let runs = self.entered(id).filter(|one| Some(one.name.as_str()) == probe);
        let last = runs.filter(ran).max_by_key(|one| one.began).and_then(|one| one.ended);
        last.is_some_and(|(_, status)| status != ExitStatus::Code(0))
    }

    /// When the process with the name of its preStop hook began that ended just before its stop signal.
    pub(super) fn hook(&self, id: &str, stopped: u64) -> Option<u64> {
        let just_before = |one: &&Entered| {
            one.ended.is_some_and(|(at, _)| at <= stopped && at + 1_000 >= stopped)
        };
        let mut hooks = self.entered(id).filter(|one| one.name == "hook");
        hooks.find(just_before).map(|hook| hook.began)
    }

    /// When its stop began, if one was recorded: with its hook, or with its stop signal.
    pub(super) fn stop_began(&self, id: &str) -> Option<u64> {
        let stopped = self.stopped(id)?;
        Some(self.hook(id, stopped).unwrap_or(stopped))
    }

    fn entered(&self, id: &str) -> impl Iterator<Item = &Entered> {
        self.recorded(id).into_iter().flat_map(|one| one.entered.values().flatten())
    }

    /// It was there when the agent began.
    pub(super) fn was_found(&self, id: &str) -> bool {
        self.cgroups.get(id).is_some_and(|cgroup| self.scanned.contains(cgroup))
    }

    /// The runtime listed it once, or a status named it.
    pub(super) fn is_named(&self, id: &str, name: &str) -> bool {
        self.listed.contains_key(&ContainerId::new(id))
            || self.states(name).any(|one| is_own(one, id) || has_ended(one, id))
    }

    /// Of two attempts of one container that were listed: whether their definitions differ.
    pub(super) fn redefined(&self, id: &str) -> Option<bool> {
        let own = self.listed.get(&ContainerId::new(id))?;
        let is_next =
            |other: &&&CriContainer| other.name == own.name && other.attempt == own.attempt + 1;
        Some(self.listed.values().find(is_next)?.hash != own.hash)
    }

    /// A later attempt of the same container was delivered by the runtime or in a status.
    pub(super) fn has_later(&self, id: &str, name: &str) -> bool {
        let listed = self.listed.get(&ContainerId::new(id)).is_some_and(|own| {
            self.listed.values().any(|one| one.name == own.name && one.attempt > own.attempt)
        });
        let is_own = |one: &ApiContainer| one.id.as_ref().is_some_and(|own| own.as_str() == id);
        let mut states = self.states(name).skip_while(|one| !is_own(one));
        listed || states.any(|one| !is_own(one))
    }

    fn states(&self, name: &str) -> impl Iterator<Item = &'a ApiContainer> + use<'_, 'a> {
        let name = name.to_owned();
        self.versions.iter().filter_map(move |version| version.pod.containers.get(&name))
    }

    /// The spec as it was delivered last.
    pub(super) fn last(&self, name: &str) -> Option<&'a ApiContainer> {
        self.states(name).last()
    }

    /// When a version with a deletionTimestamp was first delivered.
    pub(super) fn deleted(&self) -> Option<u64> {
        let deleted = |version: &&Version<'_>| version.pod.deletion_timestamp.is_some();
        self.versions.iter().find(deleted).map(|version| version.at)
    }

    /// The deletion was requested later than this, by the apiserver's clock and by when that was received. Either may
    /// deceive: the clock may be wrong, and the watch late.
    pub(super) fn was_deleted_after(&self, at: u64) -> bool {
        let mut requests = self.versions.iter().filter_map(|version| {
            let ApiPod { deletion_timestamp, deletion_grace_seconds, .. } = version.pod;
            let deadline = deletion_timestamp.as_ref()?.0 / 1_000_000;
            Some((version, deadline - 1_000 * deletion_grace_seconds.unwrap_or_default()))
        });
        let Some((version, asked)) = requests.next() else { return false };
        // What came up in an outage is delivered after it.
        let is_of = |outage: &RangeInclusive<u64>| {
            *outage.start() <= version.at && version.at <= outage.end().saturating_add(QUEUED)
        };
        let mut outages = self.outages.iter().filter(|outage| is_of(outage));
        version.in_order
            && outages.all(|outage| *outage.start() > at + LAG)
            && version.at > at + SKEW
            && asked - version.ahead > (at + SKEW) as i64
    }

    /// A container is waiting in back-off after this attempt, which the kubelet counts for each definition.
    pub(super) fn backs_off(&self, id: &str, name: &str) -> bool {
        let backs_off = |one: &ApiContainer| one.waiting.as_deref() == Some("CrashLoopBackOff");
        self.states(name).any(|one| is_own(one, id) && backs_off(one))
    }

    /// When another image than before was first delivered.
    pub(super) fn image_changed(&self, name: &str) -> Option<u64> {
        let first = self.states(name).next()?.image;
        let other = self
            .versions
            .iter()
            .find(|version| version.pod.containers.get(name).is_some_and(|one| one.image != first));
        other.map(|version| version.at)
    }

    /// A version without a deletionTimestamp shows the end of this attempt.
    pub(super) fn is_outlasted(&self, id: &str, name: &str) -> bool {
        let mut going_on =
            self.versions.iter().filter(|version| version.pod.deletion_timestamp.is_none());
        going_on
            .any(|version| version.pod.containers.get(name).is_some_and(|one| has_ended(one, id)))
    }

    /// Any version shows its end.
    pub(super) fn is_end_shown(&self, id: &str, name: &str) -> bool {
        self.states(name).any(|one| has_ended(one, id))
    }

    /// In which order the status showed its end.
    pub(super) fn order(&self, id: &str, name: &str) -> Order {
        let mut before: Option<&ApiContainer> = None;
        for version in &self.versions {
            let Some(now) = version.pod.containers.get(name) else { continue };
            let ran = before.replace(now).is_some_and(|one| is_own(one, id) && !has_ended(one, id));
            if is_own(now, id) && has_ended(now, id) && now.waiting.is_none() {
                // Where a pod ends, the order shows nothing. A list shows it, too: it is a state of its own.
                let goes_on = version.pod.deletion_timestamp.is_none();
                return if goes_on { Order::FoundEnded } else { Order::NotShown };
            }
            if ran && version.in_order && (!is_own(now, id) || now.waiting.is_some()) {
                return Order::SameSync;
            }
        }
        Order::NotShown
    }
}

/// The main containers of the pod, in any version.
impl<'a> View<'a> {
    pub(super) fn mains(&self) -> BTreeSet<&'a str> {
        let all = self.versions.iter().flat_map(|version| version.pod.containers.values());
        let mains = all.filter(|one| one.kind == ContainerKind::Main);
        mains.filter_map(|one| one.id.as_ref().map(ContainerId::as_str)).collect()
    }
}

fn is_own(one: &ApiContainer, id: &str) -> bool {
    one.id.as_ref().is_some_and(|own| own.as_str() == id)
}

fn has_ended(one: &ApiContainer, id: &str) -> bool {
    one.terminated.iter().any(|end| end.id.as_ref().is_some_and(|of| of.as_str() == id))
}
