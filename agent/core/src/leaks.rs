//! Leak detection.
//!
//!
//! A thing that looks like a leak is a *candidate*. It becomes a leak when it has looked so for the
//! threshold, counted only while all sources are in sync ([`clock`]), and when the apiserver, queried
//! directly, does not contradict. Otherwise nothing is reported: unknown is not false.

mod cause;
mod classify;
mod clock;
mod evidence;
mod facts;
mod netns;
mod orphans;
mod resources;
mod sandbox_status;
mod subject;
mod tracker;

pub use tracker::LeakGauges;

use super::{
    cri::Sandbox,
    dirty::Dirty,
    ids::{PodUid, SandboxId},
    input::{ApiEvent, CriEvent, HostEvent, HostSurvey, PersistedLeak},
    leak::{DetectionState, Leak, LeakKey},
    output::{CriRequest, Outputs, Request},
    pod_view::Stores,
    table::Table,
    time::BootTime,
};
use classify::{Classes, Classifier};
use clock::DetectionClock;
use facts::LeakFacts;
use netns::Namespaces;
use orphans::OrphanCandidates;
use sandbox_status::{Need, SandboxStatusCache};
use std::{collections::BTreeSet, time::Duration};
use tracker::LeakTracker;

/// Verbose sandbox statuses requested per tick.
const MAX_STATUSES: usize = 5;
/// Evaluate at least this often: thresholds pass without an input.
const EVALUATE_AT_LEAST: Duration = Duration::from_secs(10);

/// Leak candidates and confirmed leaks.
#[derive(Clone, Debug, Default)]
pub struct Leaks {
    clock: DetectionClock,
    statuses: SandboxStatusCache,
    survey: Option<HostSurvey>,
    /// Index of each pod's cgroup in the survey.
    cgroups: Table<PodUid, usize>,
    tracker: LeakTracker,
    /// Pods changed since they were classified, or whose class changes with time alone.
    dirty: BTreeSet<PodUid>,
    /// Sandboxes with a new status since they were classified.
    answered: BTreeSet<SandboxId>,
    /// Pods with a static pod's sandbox: the class of one depends on the others.
    statics: BTreeSet<PodUid>,
    orphans: OrphanCandidates,
    /// When the candidates were last evaluated.
    evaluated: Option<BootTime>,
    /// An input came since then.
    stale: bool,
}

impl Leaks {
    /// No candidates.
    pub fn new(threshold: Duration) -> Self {
        Self { tracker: LeakTracker::new(threshold), stale: true, ..Self::default() }
    }

    /// Applies what an earlier run had stored.
    pub fn restore(&mut self, leaks: Vec<PersistedLeak>) {
        self.tracker.restore(leaks);
    }

    /// Applies a survey of the host.
    pub fn apply_host(&mut self, event: HostEvent) {
        if let HostEvent::Survey(survey) = event {
            let groups = survey.pod_cgroups.iter().flatten().enumerate();
            self.cgroups = groups.map(|(place, group)| (group.pod.clone(), place)).collect();
            self.survey = Some(survey);
            self.orphans = OrphanCandidates::default();
        }
        self.stale = true;
    }

    /// Applies the apiserver's answer to a verification.
    pub fn apply_api(&mut self, event: &ApiEvent) {
        if let ApiEvent::Checked { asked, pods } = event {
            self.tracker.verified(*asked, pods);
        }
        self.stale = true;
    }

    /// Applies a verbose sandbox status.
    pub fn apply_cri(&mut self, at: BootTime, event: &CriEvent) {
        match event {
            CriEvent::SandboxStatus(status) => self.statuses.answered(at, status.clone()),
            CriEvent::SandboxStatusRefused { sandbox, code } => {
                self.statuses.refused(at, sandbox, code.clone());
            }
            _ => {}
        }
        self.stale = true;
    }

    /// Updates the detection state. Called after each input that may change it, so that not even a short
    /// outage counts as watched.
    pub fn advance(&mut self, now: BootTime, stores: &Stores<'_>) {
        self.clock.advance(now, self.detection_state(stores));
    }

    fn detection_state(&self, stores: &Stores<'_>) -> DetectionState {
        if !stores.api.has_apiserver() {
            return DetectionState::NoApi;
        }
        if !stores.api.was_in_sync() || !stores.cri.was_connected() {
            return DetectionState::Starting;
        }
        if !stores.api.is_in_sync() {
            return DetectionState::ApiOutOfSync;
        }
        if !stores.cri.is_connected() {
            return DetectionState::CriUnreachable;
        }
        match stores.cri.is_current() {
            true => stores.node.detection_state(),
            false => DetectionState::Starting,
        }
    }

    /// Evaluates the changed candidates, on a tick.
    pub fn tick(&mut self, now: BootTime, stores: Stores<'_>, changed: Dirty, out: &mut Outputs) {
        self.advance(now, &stores);
        if changed.orphans {
            self.orphans.reset();
        }
        let mut changed = changed.pods;
        for id in self.statuses.take_answered() {
            match stores.cri.sandbox(&id) {
                Some(sandbox) if sandbox.removed.is_none() => _ = self.answered.insert(id),
                _ => self.statuses.evict(&id),
            }
        }
        for uid in &changed {
            let removed = stores.cri.sandboxes_of(uid).filter(|sandbox| sandbox.removed.is_some());
            removed.for_each(|sandbox| self.statuses.evict(&sandbox.info.id));
        }
        if self.clock.detection_state() != DetectionState::Possible {
            let Self { statuses, survey, cgroups, tracker, .. } = self;
            let facts = LeakFacts { stores, statuses, survey: survey.as_ref(), cgroups, now };
            tracker.drop_vanished(&facts, &changed, out);
            // A pod without a sandbox and an object cannot become a leak.
            let is_known =
                |uid: &PodUid| stores.cri.has_sandbox(uid) || stores.api.get(uid).is_some();
            self.dirty.append(&mut changed);
            self.dirty.retain(is_known);
            self.answered.retain(|id| stores.cri.sandbox(id).is_some());
            self.statics.retain(is_known);
            return;
        }
        self.dirty.append(&mut changed);
        let due = self.evaluated.is_none_or(|evaluated| now >= evaluated + EVALUATE_AT_LEAST);
        if !self.stale && !due && !self.tracker.is_waiting() {
            return;
        }
        self.evaluate(now, stores, out);
        (self.evaluated, self.stale) = (Some(now), false);
    }

    fn facts<'a>(&'a self, now: BootTime, stores: Stores<'a>) -> LeakFacts<'a> {
        let Self { statuses, survey, cgroups, .. } = self;
        LeakFacts { stores, statuses, survey: survey.as_ref(), cgroups, now }
    }

    fn evaluate(&mut self, now: BootTime, stores: Stores<'_>, out: &mut Outputs) {
        let mut dirty = std::mem::take(&mut self.dirty);
        let answered = std::mem::take(&mut self.answered);
        self.note_statics(now, stores, &mut dirty);
        let Self { statuses, survey, cgroups, tracker, statics, orphans, .. } = self;
        let facts = LeakFacts { stores, statuses, survey: survey.as_ref(), cgroups, now };
        let (mut classes, classifier) = (Classes::new(), Classifier::new(&facts, statics));
        let pod_of = |id: &SandboxId| Some(&stores.cri.sandbox(id)?.info.pod);
        let of_answers: BTreeSet<&PodUid> = answered.iter().filter_map(pod_of).collect();
        for uid in of_answers.into_iter().filter(|uid| !dirty.contains(*uid)) {
            classifier.pod(uid, |id| answered.contains(id), &mut classes);
        }
        dirty.retain(|uid| classifier.pod(uid, |_| true, &mut classes));
        let namespaces = Namespaces::new(&facts);
        orphans.scan(&facts);
        let orphans = classify::orphans(&facts, orphans, &namespaces);
        let watched = self.clock.watched();
        dirty.append(&mut tracker.track(&facts, &namespaces, watched, &classes, orphans, out));
        let for_claims = namespaces.any_unused();
        let needs: Vec<(&Sandbox, Option<Need>)> = classes
            .iter()
            .filter_map(|(key, class)| match key {
                LeakKey::Sandbox { id } => Some((stores.cri.sandbox(id)?, class)),
                _ => None,
            })
            .filter(|(sandbox, _)| sandbox.removed.is_none())
            .map(|(sandbox, class)| {
                let of_leak = class.is_some() || !sandbox.info.ready;
                let status = facts.statuses.get(&sandbox.info.id);
                let of_claim = netns::is_unknown(status).then_some(Need::Claim);
                (sandbox, if of_leak { Some(Need::Leak) } else { of_claim })
            })
            .collect();
        for (sandbox, need) in needs {
            statuses.schedule(sandbox, need);
        }
        let asked = statuses.ask(now, for_claims, MAX_STATUSES);
        out.requests
            .extend(asked.into_iter().map(|id| Request::Cri(CriRequest::SandboxStatus(id))));
        self.dirty = dirty;
    }

    /// Updates which pods are static. If one of them changed, all of them are classified again.
    fn note_statics(&mut self, now: BootTime, stores: Stores<'_>, dirty: &mut BTreeSet<PodUid>) {
        let facts = self.facts(now, stores);
        let (now_static, others): (Vec<_>, Vec<_>) = dirty
            .iter()
            .cloned()
            .partition(|uid| facts.listed_of(uid).any(|sandbox| facts.is_static(sandbox)));
        let mut any = !now_static.is_empty();
        for uid in others {
            any |= self.statics.remove(&uid);
        }
        if any {
            self.statics.extend(now_static);
            dirty.extend(self.statics.iter().cloned());
        }
    }

    /// Candidates older than `at_least` that are not confirmed.
    pub fn candidates(&self, now: BootTime, stores: Stores<'_>, at_least: Duration) -> Vec<Leak> {
        let facts = self.facts(now, stores);
        self.tracker.candidates(&facts, self.clock.watched(), at_least)
    }

    /// Numbers for the metrics.
    pub fn gauges(&self) -> LeakGauges {
        let mut gauges = self.tracker.gauges();
        gauges.detection_state = self.clock.detection_state();
        gauges.watched = self.clock.watched();
        gauges
    }

    /// How many candidates were refused since the last call because the tracker is full.
    pub fn take_refused(&mut self) -> u64 {
        self.tracker.take_refused()
    }
}
