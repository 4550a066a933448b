//! The judge of what was left behind.
//!
//! What looks like a leak is a *suspect*. It becomes one when it has looked so for the threshold,
//! counted only while all sources were in sync ([`clock`]), and when the apiserver itself, asked
//! past the watch, has not contradicted. Everything else is silence: unknown is not false.

mod cause;
mod classify;
mod clock;
mod docket;
mod dossier;
mod facts;
mod netns;
mod remedy;
mod statuses;
mod strays;
mod stuck;

pub use docket::LeakGauges;

use super::{
    account::Sources,
    dirty::Dirty,
    ids::{PodUid, SandboxId},
    input::{ApiEvent, CriEvent, HostEvent, HostSurvey},
    leak::{Judgement, Leak, LeakKey, Recollection},
    output::{CriRequest, Outputs, Request},
    runtime::Sandbox,
    table::Table,
    time::BootTime,
};
use classify::{Classes, Classifier};
use clock::Clock;
use docket::Docket;
use facts::Facts;
use netns::Namespaces;
use statuses::{Need, Statuses};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use strays::Strays;

/// Verbose statuses asked for in one tick.
const MAX_STATUSES: usize = 5;
/// However quiet it is: deadlines pass by themselves.
const AT_LEAST: Duration = Duration::from_secs(10);

/// All that is suspected, and what is certain.
#[derive(Clone, Debug)]
pub struct Leaks {
    clock: Clock,
    statuses: Statuses,
    survey: Option<HostSurvey>,
    /// Where in it a pod's cgroup is.
    cgroups: Table<PodUid, usize>,
    docket: Docket,
    /// Pods of which something is new since they were classified, or that change with time alone.
    dirty: BTreeSet<PodUid>,
    /// Sandboxes about which the runtime has answered since they were classified.
    answered: BTreeSet<SandboxId>,
    /// Pods with a sandbox of a static pod: what one of them is hangs on the others.
    statics: BTreeSet<PodUid>,
    strays: Strays,
    /// When they were judged last.
    judged: Option<BootTime>,
    /// Something has changed since.
    stale: bool,
}

impl Leaks {
    /// Nothing is suspected.
    pub fn new(threshold: Duration) -> Self {
        Self {
            clock: Clock::default(),
            statuses: Statuses::default(),
            survey: None,
            cgroups: Table::default(),
            docket: Docket::new(threshold),
            dirty: BTreeSet::new(),
            answered: BTreeSet::new(),
            statics: BTreeSet::new(),
            strays: Strays::default(),
            judged: None,
            stale: true,
        }
    }

    /// Takes what an earlier run had found.
    pub fn recall(&mut self, leaks: Vec<Recollection>) {
        self.docket.recall(leaks);
    }

    /// Takes what the host tells.
    pub fn learn_host(&mut self, event: HostEvent) {
        if let HostEvent::Survey(survey) = event {
            let groups = survey.pod_cgroups.iter().flatten().enumerate();
            self.cgroups = groups.map(|(place, group)| (group.pod.clone(), place)).collect();
            self.survey = Some(survey);
            self.strays = Strays::default();
        }
        self.stale = true;
    }

    /// Takes what of the apiserver's words answers a question.
    pub fn learn_api(&mut self, event: &ApiEvent) {
        if let ApiEvent::Checked { asked, pods } = event {
            self.docket.checked(*asked, pods);
        }
        self.stale = true;
    }

    /// Takes what of the runtime's words answers a question.
    pub fn learn_cri(&mut self, at: BootTime, event: &CriEvent) {
        match event {
            CriEvent::SandboxStatus(status) => self.statuses.told(at, status.clone()),
            CriEvent::SandboxStatusRefused { sandbox, code } => {
                self.statuses.refused(at, sandbox, code.clone());
            }
            _ => {}
        }
        self.stale = true;
    }

    /// How the sources are from now on: said after each input that may have changed it, so that
    /// not even a short outage is counted.
    pub fn turn(&mut self, now: BootTime, of: &Sources<'_>) {
        self.clock.turn(now, self.judgement_of(of));
    }

    fn judgement_of(&self, of: &Sources<'_>) -> Judgement {
        if !of.objects.has_apiserver() {
            return Judgement::NoApi;
        }
        if !of.objects.was_in_sync() || !of.runtime.was_connected() {
            return Judgement::Starting;
        }
        if !of.objects.is_in_sync() {
            return Judgement::ApiOutOfSync;
        }
        if !of.runtime.is_connected() {
            return Judgement::CriUnreachable;
        }
        match of.runtime.is_current() {
            true => of.keepers.judgement(),
            false => Judgement::Starting,
        }
    }

    /// Evaluates what is dirty, on a tick.
    pub fn judge(&mut self, now: BootTime, of: Sources<'_>, changed: Dirty, out: &mut Outputs) {
        self.turn(now, &of);
        if changed.orphans {
            self.strays.reset();
        }
        let mut changed = changed.pods;
        for id in self.statuses.take_answered() {
            match of.runtime.sandbox(&id) {
                Some(sandbox) if sandbox.removed.is_none() => _ = self.answered.insert(id),
                _ => self.statuses.forget(&id),
            }
        }
        for uid in &changed {
            let removed = of.runtime.sandboxes_of(uid).filter(|sandbox| sandbox.removed.is_some());
            removed.for_each(|sandbox| self.statuses.forget(&sandbox.info.id));
        }
        if self.clock.judgement() != Judgement::Possible {
            let Self { statuses, survey, cgroups, docket, .. } = self;
            let facts = Facts { of, statuses, survey: survey.as_ref(), cgroups, now };
            docket.let_go(&facts, &changed, out);
            // What neither source remembers can become no leak.
            let is_known =
                |uid: &PodUid| of.runtime.has_sandbox(uid) || of.objects.get(uid).is_some();
            self.dirty.append(&mut changed);
            self.dirty.retain(is_known);
            self.answered.retain(|id| of.runtime.sandbox(id).is_some());
            self.statics.retain(is_known);
            return;
        }
        self.dirty.append(&mut changed);
        let due = self.judged.is_none_or(|judged| now >= judged + AT_LEAST);
        if !self.stale && !due && !self.docket.is_waiting() {
            return;
        }
        self.evaluate(now, of, out);
        (self.judged, self.stale) = (Some(now), false);
    }

    fn facts<'a>(&'a self, now: BootTime, of: Sources<'a>) -> Facts<'a> {
        let Self { statuses, survey, cgroups, .. } = self;
        Facts { of, statuses, survey: survey.as_ref(), cgroups, now }
    }

    fn evaluate(&mut self, now: BootTime, of: Sources<'_>, out: &mut Outputs) {
        let mut dirty = std::mem::take(&mut self.dirty);
        let answered = std::mem::take(&mut self.answered);
        self.note_statics(now, of, &mut dirty);
        let Self { statuses, survey, cgroups, docket, statics, strays, .. } = self;
        let facts = Facts { of, statuses, survey: survey.as_ref(), cgroups, now };
        let (mut classes, classifier) = (Classes::new(), Classifier::new(&facts, statics));
        let pod_of = |id: &SandboxId| Some(&of.runtime.sandbox(id)?.info.pod);
        let of_answers: BTreeSet<&PodUid> = answered.iter().filter_map(pod_of).collect();
        for uid in of_answers.into_iter().filter(|uid| !dirty.contains(*uid)) {
            classifier.pod(uid, |id| answered.contains(id), &mut classes);
        }
        dirty.retain(|uid| classifier.pod(uid, |_| true, &mut classes));
        let namespaces = Namespaces::new(&facts);
        strays.look(&facts);
        let orphans = classify::orphans(&facts, strays, &namespaces);
        let watched = self.clock.watched();
        dirty.append(&mut docket.judge(&facts, &namespaces, watched, &classes, orphans, out));
        let for_claims = namespaces.any_unused();
        let needs: Vec<(&Sandbox, Option<Need>)> = classes
            .iter()
            .filter_map(|(key, class)| match key {
                LeakKey::Sandbox { id } => Some((of.runtime.sandbox(id)?, class)),
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

    /// Which pods are static. Where one of them is new or another, all of them are looked at.
    fn note_statics(&mut self, now: BootTime, of: Sources<'_>, dirty: &mut BTreeSet<PodUid>) {
        let facts = self.facts(now, of);
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

    /// All that is certain, by what it is.
    pub fn told(&self) -> impl Iterator<Item = &Arc<Leak>> {
        self.docket.told()
    }

    /// What has looked like a leak for so long and is not certain (yet).
    pub fn suspected(&self, now: BootTime, of: Sources<'_>, at_least: Duration) -> Vec<Leak> {
        let facts = self.facts(now, of);
        self.docket.suspected(&facts, self.clock.watched(), at_least)
    }

    /// Numbers for the metrics.
    pub fn gauges(&self) -> LeakGauges {
        let mut gauges = self.docket.gauges();
        gauges.judgement = self.clock.judgement();
        gauges.watched = self.clock.watched();
        gauges
    }

    /// How many suspects were refused for want of room, since the last call.
    pub fn take_refused(&mut self) -> u64 {
        self.docket.take_refused()
    }
}
