//! What the faulted sources delivered of one history, read without the core: who was sent which signal, what each
//! version of the pod's status showed and in which order, what the runtime listed, and when nothing came.

use super::truth::is_main;
use coroner_core::testkit::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

/// A version of the pod, as the apiserver delivered it.
pub(super) struct Version<'a> {
    pub(super) at: u64,
    pub(super) pod: &'a ApiPod,
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
    /// When losses of deciding records were noticed.
    lost: Vec<u64>,
    listed: BTreeMap<&'a ContainerId, &'a CriContainer>,
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
            lost: Vec::new(),
            listed: BTreeMap::new(),
        };
        for one in inputs {
            let at = ms(one);
            match &one.input {
                Input::Api(event) => view.watch(at, event),
                Input::Kernel(event) => view.kernel(event.time.0 / 1_000_000, &event.fact),
                Input::Lost(loss) if loss.kind != LossKind::DetailRingFull => view.lost.push(at),
                Input::Cri(CriEvent::Containers { containers, .. }) => {
                    view.listed.extend(containers.iter().map(|one| (&one.id, one)));
                }
                _ => {}
            }
        }
        view
    }

    fn watch(&mut self, at: u64, event: &'a ApiEvent) {
        let pods = match event {
            ApiEvent::Snapshot { pods } => pods.as_slice(),
            ApiEvent::Applied(pod) | ApiEvent::Deleted(pod) => std::slice::from_ref(pod),
            _ => return,
        };
        self.versions.extend(pods.iter().map(|pod| Version { at, pod }));
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

    /// A loss of deciding records was noticed in this time.
    pub(super) fn lost(&self, when: RangeInclusive<u64>) -> bool {
        self.lost.iter().any(|at| when.contains(at))
    }

    /// The last run of the exec probe before its stop failed.
    pub(super) fn probe_failed(&self, id: &str, name: &str, stopped: u64) -> bool {
        let probe = self.last(name).and_then(|one| one.liveness.as_ref()?.exec.as_deref());
        let ran = |one: &&Entered| one.ended.is_some_and(|(at, _)| at <= stopped);
        let runs = self.entered(id).filter(|one| Some(one.name.as_str()) == probe);
        let last = runs.filter(ran).max_by_key(|one| one.began).and_then(|one| one.ended);
        last.is_some_and(|(_, status)| status != ExitStatus::Code(0))
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
