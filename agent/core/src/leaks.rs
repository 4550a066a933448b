//! Leak detection.
//!
//! A thing that looks leaked ([`class`]) is a *candidate*. It becomes a leak when it has looked so for the
//! threshold, counted only while all sources are in sync ([`clock`]), when the apiserver, queried directly, does
//! not contradict, and when it is there still ([`tracker`]). Otherwise nothing is reported: unknown is not false.

mod cause;
mod class;
mod clock;
mod evidence;
mod facts;
mod remedy;
mod resources;
mod statuses;
mod tracker;

pub use tracker::LeakGauges;

use super::{
    cri::CriState,
    leak::{DetectionState, Leak},
    output::{CriRequest, Outputs, Request},
    pod_view::Stores,
};
use crate::{ids::*, input::*, time::*};
use class::{Classes, UnusedNamespaces};
use clock::DetectionClock;
use facts::LeakFacts;
use statuses::SandboxStatuses;
use std::{collections::BTreeSet, time::Duration};
use tracker::LeakTracker;

/// Verbose sandbox statuses requested per tick.
const MAX_STATUSES: usize = 5;

/// Leak candidates and confirmed leaks.
#[derive(Clone, Debug, Default)]
pub struct Leaks {
    clock: DetectionClock,
    statuses: SandboxStatuses,
    survey: Option<HostSurvey>,
    tracker: LeakTracker,
    /// Pods changed since they were classified, or whose class may change without a change of theirs.
    dirty: BTreeSet<PodUid>,
}

impl Leaks {
    pub fn new(threshold: Duration) -> Self {
        Self { tracker: LeakTracker::new(threshold), ..Self::default() }
    }

    pub fn restore(&mut self, leaks: Vec<PersistedLeak>) {
        self.tracker.restore(leaks);
    }

    /// Applies a survey of the host.
    pub fn apply_host(&mut self, event: HostEvent) {
        if let HostEvent::Survey(mut survey) = event {
            // Sorted for look-ups by pod.
            survey.pod_cgroups.iter_mut().for_each(|all| all.sort_by(|a, b| a.pod.cmp(&b.pod)));
            self.survey = Some(survey);
        }
    }

    /// Applies the apiserver's answer to a verification.
    pub fn apply_api(&mut self, event: &ApiEvent) {
        if let ApiEvent::Checked { asked, pods } = event {
            self.tracker.verified(*asked, pods);
        }
    }

    /// Applies a verbose sandbox status, unless the sandbox is gone.
    pub fn apply_cri(&mut self, at: BootTime, event: &CriEvent, cri: &CriState) {
        let CriEvent::SandboxStatus(status) = event else { return };
        let sandbox = cri.sandbox(&status.sandbox).filter(|sandbox| sandbox.removed.is_none());
        if let Some(sandbox) = sandbox {
            self.dirty.insert(sandbox.info.pod.clone());
            self.statuses.answered(at, status.clone());
        }
    }

    /// Updates the detection state. Called after each input that may change it, so that not even a short
    /// outage counts as watched.
    pub fn advance(&mut self, now: BootTime, stores: &Stores) {
        self.clock.advance(now, detection_state(stores, self.survey.as_ref()));
    }

    /// Evaluates the candidates, on a tick. `changed`: pods changed since the last tick.
    pub fn tick(
        &mut self,
        now: BootTime,
        stores: &Stores,
        mut changed: BTreeSet<PodUid>,
        out: &mut Outputs,
    ) {
        self.advance(now, stores);
        for sandbox in changed.iter().flat_map(|uid| stores.cri.sandboxes_of(uid)) {
            if sandbox.removed.is_some() {
                self.statuses.evict(&sandbox.info.id);
            }
        }
        self.dirty.append(&mut changed);
        let (statuses, survey) = (&self.statuses, self.survey.as_ref());
        let facts = LeakFacts { stores, statuses, survey, now };
        if self.clock.detection_state != DetectionState::Possible {
            self.tracker.drop_vanished(&facts, out);
            // A pod without a sandbox and an object cannot become a leak.
            self.dirty.retain(|uid| stores.cri.has_sandbox(uid) || facts.object(uid).is_some());
            return;
        }
        let mut classes = Classes::new();
        self.dirty.retain(|uid| class::of_pod(&facts, uid, &mut classes));
        let namespaces = UnusedNamespaces::new(&facts);
        class::of_orphans(&facts, &namespaces, &mut classes);
        self.tracker.track(&facts, &namespaces, self.clock.watched, &classes, out);
        let is_certain = namespaces.is_certain;
        for (key, class) in &classes {
            let LeakKey::Sandbox { id } = key else { continue };
            if let Some(sandbox) = stores.cri.sandbox(id).filter(|s| s.removed.is_none()) {
                self.statuses.schedule(sandbox, class.is_some() || !sandbox.info.ready);
            }
        }
        if !is_certain {
            let listed = stores.cri.sandboxes.entries().values().filter(|s| s.removed.is_none());
            for sandbox in listed {
                if self.statuses.claim(&sandbox.info.id).is_none() {
                    self.statuses.schedule(sandbox, true);
                }
            }
        }
        let asked = self.statuses.ask(now, MAX_STATUSES).into_iter();
        out.requests.extend(asked.map(|id| Request::Cri(CriRequest::SandboxStatus(id))));
    }

    /// Candidates older than `at_least` that are not confirmed.
    pub fn candidates(&self, now: BootTime, stores: &Stores, at_least: Duration) -> Vec<Leak> {
        let (statuses, survey) = (&self.statuses, self.survey.as_ref());
        let facts = LeakFacts { stores, statuses, survey, now };
        self.tracker.candidates(&facts, self.clock.watched, at_least)
    }

    pub fn gauges(&self) -> LeakGauges {
        let DetectionClock { detection_state, watched, .. } = self.clock;
        LeakGauges { detection_state, watched, ..self.tracker.gauges() }
    }
}

fn detection_state(stores: &Stores, survey: Option<&HostSurvey>) -> DetectionState {
    let Stores { api, cri, node, .. } = stores;
    if !api.has_apiserver {
        DetectionState::NoApi
    } else if api.watch.last_up.is_none() || !cri.was_connected() {
        DetectionState::Starting
    } else if !api.watch.is_up() {
        DetectionState::ApiOutOfSync
    } else if !cri.connection.is_up() {
        DetectionState::CriUnreachable
    } else if !cri.is_current() {
        DetectionState::Starting
    } else {
        match node.detection_state() {
            // What the first survey shows is observed from then on, so nothing may count before.
            DetectionState::Possible if survey.is_none() => DetectionState::Starting,
            state => state,
        }
    }
}
