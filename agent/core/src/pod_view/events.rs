//! What the kubelet's Events say of the stop of a container, and of the pod's end.

use super::PodView;
use crate::{
    cause::{AttributedCause, eviction},
    cri::Container,
    events::Posted,
    ids::ContainerId,
    input::{EventReason, KillReason, PostedEvent},
    report::ContainerDeath,
    time::{BootTime, Interval},
    types::*,
    verdict::HOOK_GAP,
};
use std::time::Duration;

/// A sandbox that is found changed is stopped in the same synchronisation of the pod.
const SAME_SYNC: Duration = Duration::from_secs(5);

impl<'a> PodView<'a> {
    /// When this attempt of a container was created, and whether an Event is of it.
    fn events_of(&self, container: &'a Container) -> (BootTime, impl Fn(&&&Posted) -> bool) {
        let info = &container.info;
        let created = self.processes_of(&info.id).and_then(|own| own.created);
        let created = created.or_else(|| Some(self.stores.anchor.boot(info.created?)));
        let created = created.unwrap_or(BootTime(0));
        let until = self.ended(&info.id).unwrap_or(BootTime(u64::MAX));
        let is_its = move |posted: &&&Posted| {
            let event = &posted.event;
            event.earliest() >= created
                && event.earliest() <= until
                && event.container.as_deref() == Some(info.name.as_str())
        };
        (created, is_its)
    }

    /// Why a container was stopped, by the message of an Event. `stop`: when the stop began.
    pub(super) fn stated_by_event(
        &self,
        container: &'a Container,
        stop: Interval,
    ) -> Option<AttributedCause> {
        let (created, is_its) = self.events_of(container);
        let all = self.stores.events.of(self.uid);
        // The kubelet posts it just before the stop begins.
        let is_of_it = |posted: &&&Posted| {
            let event = &posted.event;
            event.latest() + HOOK_GAP >= stop.earliest && event.earliest() <= stop.latest + HOOK_GAP
        };
        let its = all.iter().rev().filter(is_its).filter(is_of_it);
        its.map(|posted| &posted.event).find_map(|event| stated(event, created, &all))
    }

    /// Which source was asked for the reason of a stop, and had none. A part of a sentence.
    pub(super) fn silent(&self, id: &ContainerId, began: BootTime) -> String {
        let status = match self.object() {
            _ if !self.stores.api.has_apiserver => "the apiserver is not asked".to_owned(),
            None => "the apiserver has not reported the pod".to_owned(),
            Some(_) if !self.stores.api.watch.is_up() => {
                "the watch of the apiserver is broken".to_owned()
            }
            Some(_) => "its status names no reason".to_owned(),
        };
        let ended = self.ended(id).unwrap_or(began);
        let listed = self.stores.events.lookup(self.uid, ended);
        let events = match listed {
            _ if !self.stores.events.is_on => "the kubelet's Events are not asked for".to_owned(),
            None => "the kubelet's Events were not listed since".to_owned(),
            Some(false) => "the kubelet's Events could not be listed".to_owned(),
            Some(true) => match self.container(id).map(|c| self.quoted(c)) {
                Some(quoted) if !quoted.is_empty() => {
                    format!("the kubelet's Events do not name it ({quoted})")
                }
                _ => "the kubelet posted no Event of it".to_owned(),
            },
        };
        format!("{status}, and {events}")
    }

    fn quoted(&self, container: &'a Container) -> String {
        let quote = |posted: &&Posted| {
            let event = &posted.event;
            match (event.about, &event.message, event.probe) {
                (EventReason::Killing, Some(message), _) => Some(format!("Killing \"{message}\"")),
                (EventReason::Killing, None, _) => Some("Killing".to_owned()),
                (EventReason::Unhealthy, _, Some(probe)) => {
                    let times = event.posted.unwrap_or(posted.count);
                    Some(format!("Unhealthy {times} × ({} probe)", probe.as_str()))
                }
                _ => None,
            }
        };
        let (_, is_its) = self.events_of(container);
        let all = self.stores.events.of(self.uid);
        let quotes: Vec<String> = all.iter().filter(is_its).filter_map(quote).collect();
        quotes.join(", ")
    }

    /// Why the pod ended, by an Event, where that was not a deletion.
    pub(super) fn cause_by_events(&self) -> Option<AttributedCause> {
        let until = self.members.ended?;
        let all = self.stores.events.of(self.uid);
        let found = all.iter().rev().map(|posted| &posted.event);
        // A static pod's UID comes back: an earlier incarnation may have Events, too.
        let began = self.sandboxes.iter().filter_map(|sandbox| sandbox.info.created).min();
        let began = began.map_or(BootTime(0), |began| self.stores.anchor.boot(began));
        let of_it = |event: &&PostedEvent| event.earliest() <= until && event.latest() >= began;
        found.filter(of_it).find_map(|event| {
            let (cause, text) = match event.about {
                EventReason::Evicted => {
                    let cause = eviction(event.message.as_deref().unwrap_or_default());
                    (cause, "it evicted the pod")
                }
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

    /// An Event may state why a container was stopped while its pod went on, and the pod's Events were not listed since.
    pub fn may_be_proven_by_events(&self, death: &ContainerDeath, ended: BootTime) -> bool {
        let events = &self.stores.events;
        events.is_on
            && death.cause_source == Source::Inferred
            && events.lookup(self.uid, ended).is_none()
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
