//! The kubelet's own account of one pod: what its log and its Events say of a stop, of the end, and of the stages.

use super::PodView;
use crate::{
    cause::AttributedCause,
    cri::Container,
    kubelet::{KUBELET_SLACK, Named, Statement},
};
use crate::{
    ids::*,
    input::{
        ApiContainer, KubeletChange, KubeletEntry, KubeletKillReason as Reason, KubeletPodSource,
        KubeletProbe, KubeletStatement as Says,
    },
    report::*,
    time::*,
    types::*,
};
use std::time::Duration;

/// The level of "Killing container with a grace period", in all versions.
const KILL_LEVEL: u8 = 2;
/// The kubelet may know of a sandbox before the runtime dates it.
const BEFORE_SANDBOX: Duration = Duration::from_secs(5);
/// A sandbox that is found changed is stopped in the same synchronisation of the pod.
const SAME_SYNC: Duration = Duration::from_secs(5);
/// The kubelet's log may be this much ahead of the kernel's record: another clock dates it.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);

/// What the kubelet says of the stop of one container.
#[derive(Clone, Debug, Default)]
pub(super) struct StopWords {
    /// Why, in its own words.
    pub(super) said: Option<AttributedCause>,
    /// Its log is complete, and has no stop of this container.
    pub(super) denied: bool,
    /// The probe whose failure an Event has just before a stop without a reason.
    pub(super) unhealthy: Option<Cause>,
}

impl<'a> PodView<'a> {
    /// Everything that the kubelet said of the pod, in order of time.
    fn statements(&self) -> Vec<Named<'a>> {
        let kubelet = &self.stores.kubelet;
        if kubelet.is_empty() {
            return Vec::new();
        }
        let mut all: Vec<&Statement> = kubelet.of(self.uid.as_str()).collect();
        if let Some(object) = self.object().filter(|object| object.is_mirror()) {
            all.extend(kubelet.of(&object.pod.uid));
        }
        for sandbox in &self.sandboxes {
            all.extend(kubelet.of(sandbox.info.id.as_str()));
            let containers = self.stores.cri.containers_of(&sandbox.info.id);
            all.extend(containers.flat_map(|container| kubelet.of(container.info.id.as_str())));
        }
        if let Some((first, next)) = self.lifetime() {
            let pod = self.pod_ref();
            let within = |said: &&Statement| {
                said.last >= first && next.is_none_or(|next| said.entry.time < next)
            };
            all.extend(kubelet.of_name(&pod.namespace, &pod.name).filter(within));
        }
        all.sort_by_key(|said| said.entry.time);
        all.into_iter().map(|said| (said, self.container_name(said))).collect()
    }

    /// From its first sandbox to the first one of the next pod of its name.
    fn lifetime(&self) -> Option<(BootTime, Option<BootTime>)> {
        let created = self.sandboxes.iter().map(|sandbox| sandbox.info.created).min()?;
        let own = self.pod_ref();
        let all = self.stores.cri.sandboxes.entries().values();
        let next = all.filter(|other| {
            other.info.pod != own.uid
                && (&other.info.namespace, &other.info.name) == (&own.namespace, &own.name)
                && other.info.created > created
        });
        let boot = |wall| self.stores.anchor.boot(wall);
        let next = next.map(|other| other.info.created).min().map(boot);
        Some((boot(created) - BEFORE_SANDBOX, next))
    }

    fn container_name(&self, said: &'a Statement) -> Option<&'a str> {
        let by_id = || {
            let container = self.container(said.entry.container_id.as_ref()?)?;
            Some(container.info.name.as_str())
        };
        said.entry.container.as_deref().or_else(by_id)
    }

    /// What it says of the stop of a container that began then. Only the last words before its end count.
    pub(super) fn stop_words(
        &self,
        container: &'a Container,
        began: BootTime,
        ended: Option<BootTime>,
    ) -> StopWords {
        let all = self.statements();
        let kubelet = &self.stores.kubelet;
        let info = &container.info;
        let processes = self.processes_of(&info.id);
        let created = processes.and_then(|own| own.created);
        let created = created.unwrap_or_else(|| self.stores.anchor.boot(info.created));
        let until = ended.unwrap_or(BootTime(u64::MAX));
        let is_its = |(said, name): &&Named<'a>| {
            let entry = &said.entry;
            let by_name = || {
                let surely = entry.earliest() >= created;
                let near =
                    BootTime(entry.time.0.max(began.0)).since(BootTime(entry.time.0.min(began.0)));
                let perhaps = entry.latest() >= created
                    && near <= entry.uncertainty() + Duration::from_secs(1);
                *name == Some(info.name.as_str()) && (surely || perhaps)
            };
            entry.earliest() <= until
                && match &entry.container_id {
                    Some(id) => *id == info.id,
                    None => by_name(),
                }
        };
        let own: Vec<_> = all.iter().filter(is_its).collect();
        let said =
            own.iter().rev().find_map(|(said, _)| Self::reason_of(said, created, &own, &all));
        let grace = self.graces(Some(container), None).max().unwrap_or_default();
        let from = created.max(began - (seconds(grace) + KUBELET_SLACK));
        let is_of_a_stop = |(said, _): &Named<'a>| {
            said.entry.is_of_a_stop() && said.last >= from && said.entry.earliest() <= until
        };
        let denied = said.is_none()
            && ended.is_some_and(|ended| kubelet.is_complete(from, ended, KILL_LEVEL))
            && !all.iter().any(is_of_a_stop);
        let is_bare = |entry: &&KubeletEntry| {
            (entry.statement, entry.reason) == (Says::EventKilling, Some(Reason::Stopping))
                && entry.earliest() <= began
        };
        let killing = own.iter().map(|(said, _)| &said.entry).rfind(is_bare);
        let spec = self.object().and_then(|object| object.pod.containers.get(&info.name));
        let unhealthy = killing.zip(spec).and_then(|(kill, spec)| failed_before(kill, spec, &own));
        StopWords { said, denied, unhealthy }
    }

    /// The reason that a statement is about, if it is one of a container's own.
    fn reason_of(
        said: &Statement,
        created: BootTime,
        own: &[&Named<'a>],
        all: &[Named<'a>],
    ) -> Option<AttributedCause> {
        let entry = &said.entry;
        let cause = match (entry.statement, entry.reason) {
            (Says::KillReason | Says::EventKilling, Some(reason)) => match reason {
                Reason::LivenessProbe => Cause::Liveness,
                Reason::StartupProbe => Cause::Startup,
                Reason::DefinitionChanged => Cause::DefinitionChanged,
                Reason::Resize => Cause::ResizeRestart,
                Reason::PostStartHook => Cause::PostStartFailed,
                Reason::UnknownState => Cause::Restart,
                Reason::Stopping if sandbox_changed(created, entry, all) => Cause::SandboxChanged,
                // RestartAllContainers (`SyncPod`, kuberuntime_manager.go).
                Reason::Other if entry.message.as_deref() == Some("killing") => {
                    Cause::RestartAllContainers
                }
                Reason::Stopping | Reason::Other => return None,
            },
            (Says::PostStartFailed | Says::EventPostStartFailed, _) => Cause::PostStartFailed,
            (Says::KillBeforeRemoval, _) => Cause::RestartAllContainers,
            _ => return None,
        };
        let words = match (&entry.message, cause) {
            (_, Cause::SandboxChanged) => "the pod's sandbox had changed".to_owned(),
            (Some(words), _) => format!("\"{words}\""),
            (None, Cause::PostStartFailed) => "its postStart hook failed".to_owned(),
            (None, _) => cause.as_str().replace('_', " "),
        };
        let message =
            format!("The kubelet's own words: {words}{}.", failures(cause, entry.time, own));
        Some(AttributedCause::new(cause, Source::Kubelet, message))
    }

    /// Why the pod ended, in the kubelet's own words, where that was not a deletion.
    pub(super) fn kubelet_cause(&self) -> Option<AttributedCause> {
        let until = self.members.ended?;
        let is_static = self.is_static();
        let all = self.statements();
        let found = all.iter().rev().filter(|(said, _)| said.entry.earliest() <= until);
        found.map(|(said, _)| &said.entry).find_map(|entry| {
            let from_manifest =
                matches!(entry.source, Some(KubeletPodSource::File | KubeletPodSource::Http));
            let (cause, words) = match entry.statement {
                Says::Evicting | Says::Evicted | Says::TeardownEviction | Says::EventEvicted => {
                    if Self::is_short(&all, entry.time) {
                        (Cause::NodePressureEviction, "it evicted the pod for lack of a resource")
                    } else if entry.statement == Says::Evicted {
                        (Cause::LocalStorageLimit, "it evicted the pod, and no resource was short")
                    } else {
                        return None;
                    }
                }
                Says::Preempting | Says::Preempted | Says::EventPreempting => {
                    (Cause::KubeletPreemption, "it preempted the pod for a critical one")
                }
                Says::ShutdownKill | Says::ShutdownKilled | Says::EventShutdown => {
                    (Cause::NodeShutdown, "it stopped the pod because the node was shutting down")
                }
                Says::EventDeadline => {
                    (Cause::DeadlineExceeded, "the pod's activeDeadlineSeconds expired")
                }
                Says::SyncLoopRemove if is_static && from_manifest => {
                    (Cause::StaticRemoved, "the manifest was removed or changed (SyncLoop REMOVE)")
                }
                _ => return None,
            };
            let message = format!("The kubelet's own words: {words}.");
            Some(AttributedCause::new(cause, Source::Kubelet, message))
        })
    }

    /// A resource was short just before, and the pod was among those that might be evicted for it. An eviction for the
    /// pod's own limit needs no ranking (`localStorageEviction`, eviction_manager.go).
    fn is_short(all: &[Named<'_>], at: BootTime) -> bool {
        all.iter().any(|(said, _)| {
            said.entry.statement == Says::EvictionRanked
                && said.entry.time <= at + CLOCKS_DIFFER
                && said.last + KUBELET_SLACK >= at
        })
    }

    /// The kubelet contradicts the kernel about the end of a container. `empty`: when its last process was gone.
    pub(super) fn kubelet_contradictions(
        &self,
        id: &ContainerId,
        empty: BootTime,
        exit: Option<crate::input::ExitStatus>,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        let statements = self.statements();
        let own = statements.iter().map(|(said, _)| &said.entry);
        let own = own.filter(|entry| entry.container_id.as_ref() == Some(id));
        for entry in own {
            let is_over = entry.statement == Says::KillEnd
                || entry.statement == Says::PlegEvent && entry.change == Some(KubeletChange::Died);
            if is_over && entry.latest() + CLOCKS_DIFFER < empty && findings.is_empty() {
                let detail = format!(
                    "The kubelet's log says that the container ended {} before its last process was gone, according \
                     to the kernel.",
                    secs(empty.since(entry.latest()))
                );
                let about = Contradiction::KubeletExitedWithProcesses;
                findings.push(Finding::contradiction(about, detail));
            }
        }
        let code = statements.iter().map(|(said, _)| &said.entry).find_map(|entry| {
            let is_its = entry.container_id.as_ref() == Some(id);
            entry.exit_code.filter(|_| is_its && entry.statement == Says::PlegContainerFinished)
        });
        if let Some((code, exit)) = code.zip(exit)
            && code != exit.runtime_code()
        {
            let detail = format!(
                "The kubelet's log says exit code {code}, the kernel recorded exit code {}.",
                exit.runtime_code()
            );
            findings.push(Finding::contradiction(Contradiction::KubeletExitCode, detail));
        }
        findings
    }

    /// An Event may prove why a container was stopped while its pod went on, and the pod's Events were not listed since.
    pub fn may_be_proven_by_events(&self, death: &ContainerDeath, ended: BootTime) -> bool {
        let kubelet = &self.stores.kubelet;
        kubelet.lists_events
            && death.cause_certainty != Certainty::Proven
            && kubelet.lookup(self.uid, ended).is_none()
    }

    /// What a cause that is not proven lacks.
    pub(super) fn without_events(&self, cause: &AttributedCause, ended: BootTime) -> &'static str {
        let is_proven = cause.certainty() == Certainty::Proven;
        match self.stores.kubelet.lookup(self.uid, ended) {
            Some(false) if !is_proven => {
                " The pod's Events, which might prove it, could not be listed."
            }
            _ => "",
        }
    }

    /// The kubelet's lane of the report from `began` to `ended`.
    pub fn kubelet_lane(&self, began: BootTime, ended: BootTime) -> Option<KubeletLane> {
        let kubelet = &self.stores.kubelet;
        let statements = self.statements();
        (kubelet.is_read() || !statements.is_empty())
            .then(|| kubelet.lane(&statements, self.is_static(), began, ended))
    }
}

/// The sandbox was found changed in the synchronisation of the pod that stops the container.
fn sandbox_changed(created: BootTime, kill: &KubeletEntry, all: &[Named<'_>]) -> bool {
    all.iter().map(|(said, _)| &said.entry).any(|entry| {
        matches!(entry.statement, Says::SandboxChanged | Says::EventSandboxChanged)
            && (created..=kill.latest()).contains(&entry.earliest())
            && entry.latest() + SAME_SYNC >= kill.earliest()
    })
}

/// The probe that failed last, if that was just before the stop and not because of it, as often as the kubelet needs
/// for a stop. A probe that has reached its failureThreshold is not run again (worker.go, `onHold`). An Event has whole
/// seconds: what was posted in that of the stop may be due to it, unless the probe had failed before as well.
fn failed_before(kill: &KubeletEntry, spec: &ApiContainer, own: &[&Named<'_>]) -> Option<Cause> {
    let posted = own.iter().filter(|(said, _)| said.entry.statement == Says::EventUnhealthy);
    let (said, _) = posted.max_by_key(|(said, _)| said.last)?;
    let (cause, probe) = match said.entry.probe? {
        KubeletProbe::Liveness => (Cause::Liveness, spec.liveness.as_ref()?),
        KubeletProbe::Startup => (Cause::Startup, spec.startup.as_ref()?),
        KubeletProbe::Readiness => return None,
    };
    let uncertainty = said.entry.uncertainty();
    let is_due = said.last + uncertainty + SAME_SYNC >= kill.earliest()
        && said.last - uncertainty <= kill.time;
    // A threshold of 0 is not known. At one of 1, the first failure would have been the reason of an earlier stop.
    let needed = probe.failures;
    let first_or_last = if needed > 1 { said.entry.time } else { said.last };
    let is_before = first_or_last + uncertainty <= kill.earliest();
    let is_enough = needed > 0 && said.entry.posted.unwrap_or(1) >= needed;
    (is_due && is_before && is_enough).then_some(cause)
}

/// How many runs of the probe had failed in a row.
fn failures(cause: Cause, at: BootTime, own: &[&Named<'_>]) -> String {
    let probe = match cause {
        Cause::Liveness => KubeletProbe::Liveness,
        Cause::Startup => KubeletProbe::Startup,
        _ => return String::new(),
    };
    let failed = own.iter().rev().find(|(said, _)| {
        said.entry.statement == Says::ProbeFailed
            && said.entry.probe == Some(probe)
            && said.entry.time <= at
    });
    failed.map_or_else(String::new, |(said, _)| {
        format!("; {} run(s) of the probe in a row had failed before", said.count)
    })
}
