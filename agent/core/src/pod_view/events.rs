//! What the kubelet's Events say of the stop of a container, and of the pod's end.

use super::PodView;
use crate::{
    cause::AttributedCause,
    cri::Container,
    events::Posted,
    input::{ApiContainer, EventReason, KillReason, PostedEvent, ProbeKind},
    report::ContainerDeath,
    time::BootTime,
    types::*,
};
use std::time::Duration;

/// A sandbox that is found changed is stopped in the same synchronisation of the pod.
const SAME_SYNC: Duration = Duration::from_secs(5);

/// What the kubelet's Events say of the stop of one container.
#[derive(Clone, Debug, Default)]
pub(super) struct StopEvents {
    /// Why, by the message of an Event.
    pub(super) stated: Option<AttributedCause>,
    /// The probe whose failure an Event has just before a stop without a reason.
    pub(super) unhealthy: Option<Cause>,
}

impl<'a> PodView<'a> {
    /// What the Events say of the stop of a container that began then. Only the last ones before its end count.
    pub(super) fn stop_events(
        &self,
        container: &'a Container,
        began: BootTime,
        ended: Option<BootTime>,
    ) -> StopEvents {
        let all = self.stores.events.of(self.uid);
        let info = &container.info;
        let processes = self.processes_of(&info.id);
        let created = processes.and_then(|own| own.created);
        let created = created.or_else(|| Some(self.stores.anchor.boot(info.created?)));
        // If that is unknown, no Event is surely its.
        let created = created.unwrap_or(BootTime(u64::MAX));
        let until = ended.unwrap_or(BootTime(u64::MAX));
        let is_its = |posted: &&&Posted| {
            let event = &posted.event;
            let surely = event.earliest() >= created;
            let near = event.time.max(began).since(event.time.min(began));
            let perhaps =
                event.latest() >= created && near <= event.uncertainty() + Duration::from_secs(1);
            event.earliest() <= until
                && event.container.as_deref() == Some(info.name.as_str())
                && (surely || perhaps)
        };
        let own: Vec<&Posted> = all.iter().filter(is_its).copied().collect();
        let stated = own.iter().rev().find_map(|posted| stated(&posted.event, created, &all));
        let is_bare = |event: &&PostedEvent| {
            (event.about, event.reason) == (EventReason::Killing, Some(KillReason::Stopping))
                && event.earliest() <= began
        };
        let killing = own.iter().map(|posted| &posted.event).rfind(is_bare);
        let spec = self.object().and_then(|object| object.pod.containers.get(&info.name));
        let unhealthy = killing.zip(spec).and_then(|(kill, spec)| failed_before(kill, spec, &own));
        StopEvents { stated, unhealthy }
    }

    /// Why the pod ended, by an Event, where that was not a deletion.
    pub(super) fn cause_by_events(&self) -> Option<AttributedCause> {
        let until = self.members.ended?;
        let all = self.stores.events.of(self.uid);
        let found = all.iter().rev().map(|posted| &posted.event);
        found.filter(|event| event.earliest() <= until).find_map(|event| {
            let (cause, text) = match event.about {
                EventReason::Preempting => {
                    (Cause::KubeletPreemption, "it preempted the pod for a critical one")
                }
                EventReason::Shutdown => {
                    (Cause::NodeShutdown, "it stopped the pod because the node was shutting down")
                }
                EventReason::Deadline => {
                    (Cause::DeadlineExceeded, "the pod's activeDeadlineSeconds expired")
                }
                _ => return None,
            };
            Some(by_event(cause, text))
        })
    }

    /// An Event may prove why a container was stopped while its pod went on, and the pod's Events were not listed since.
    pub fn may_be_proven_by_events(&self, death: &ContainerDeath, ended: BootTime) -> bool {
        let events = &self.stores.events;
        events.is_on
            && death.cause_certainty != Certainty::Proven
            && events.lookup(self.uid, ended).is_none()
    }

    /// What a cause that is not proven lacks.
    pub(super) fn without_events(&self, cause: &AttributedCause, ended: BootTime) -> &'static str {
        let is_proven = cause.certainty() == Certainty::Proven;
        match self.stores.events.lookup(self.uid, ended) {
            Some(false) if !is_proven => {
                " The pod's Events, which might prove it, could not be listed."
            }
            _ => "",
        }
    }
}

fn by_event(cause: Cause, text: &str) -> AttributedCause {
    AttributedCause::new(cause, Source::Kubelet, format!("The kubelet's Event: {text}."))
}

/// The reason that an Event states, if it is one of a container's own.
fn stated(event: &PostedEvent, created: BootTime, all: &[&Posted]) -> Option<AttributedCause> {
    let cause = match (event.about, event.reason) {
        (EventReason::Killing, Some(reason)) => match reason {
            KillReason::LivenessProbe => Cause::Liveness,
            KillReason::StartupProbe => Cause::Startup,
            KillReason::DefinitionChanged => Cause::DefinitionChanged,
            KillReason::Resize => Cause::ResizeRestart,
            KillReason::PostStartHook => Cause::PostStartFailed,
            KillReason::UnknownState => Cause::Restart,
            KillReason::Stopping if sandbox_changed(created, event, all) => Cause::SandboxChanged,
            // RestartAllContainers (`SyncPod`, kuberuntime_manager.go).
            KillReason::Other if event.message.as_deref() == Some("killing") => {
                Cause::RestartAllContainers
            }
            KillReason::Stopping | KillReason::Other => return None,
        },
        (EventReason::PostStartFailed, _) => Cause::PostStartFailed,
        _ => return None,
    };
    let text = match (&event.message, cause) {
        (_, Cause::SandboxChanged) => "the pod's sandbox had changed".to_owned(),
        (Some(message), _) => format!("\"{message}\""),
        (None, Cause::PostStartFailed) => "its postStart hook failed".to_owned(),
        (None, _) => cause.as_str().replace('_', " "),
    };
    Some(by_event(cause, &text))
}

/// The sandbox was found changed in the synchronisation of the pod that stops the container.
fn sandbox_changed(created: BootTime, kill: &PostedEvent, all: &[&Posted]) -> bool {
    all.iter().map(|posted| &posted.event).any(|event| {
        event.about == EventReason::SandboxChanged
            && (created..=kill.latest()).contains(&event.earliest())
            && event.latest() + SAME_SYNC >= kill.earliest()
    })
}

/// The probe that failed last, if that was just before the stop and not because of it, as often as the kubelet needs
/// for a stop. A probe that has reached its failureThreshold is not run again (worker.go, `onHold`). An Event has whole
/// seconds: what was posted in that of the stop may be due to it, unless the probe had failed before as well.
fn failed_before(kill: &PostedEvent, spec: &ApiContainer, own: &[&Posted]) -> Option<Cause> {
    let unhealthy = own.iter().filter(|posted| posted.event.about == EventReason::Unhealthy);
    let posted = unhealthy.max_by_key(|posted| posted.last)?;
    let event = &posted.event;
    let (cause, probe) = match event.probe? {
        ProbeKind::Liveness => (Cause::Liveness, spec.liveness.as_ref()?),
        ProbeKind::Startup => (Cause::Startup, spec.startup.as_ref()?),
        ProbeKind::Readiness => return None,
    };
    let uncertainty = event.uncertainty();
    let is_due = posted.last + uncertainty + SAME_SYNC >= kill.earliest()
        && posted.last - uncertainty <= kill.time;
    // A threshold of 0 is not known. At one of 1, the first failure would have been the reason of an earlier stop.
    let needed = probe.failures;
    let first_or_last = if needed > 1 { event.time } else { posted.last };
    let is_before = first_or_last + uncertainty <= kill.earliest();
    let is_enough = needed > 0 && event.posted.unwrap_or(1) >= needed;
    (is_due && is_before && is_enough).then_some(cause)
}
