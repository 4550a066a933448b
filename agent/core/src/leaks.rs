//! The judge of what was left behind.
//!
//! What looks like a leak is a *suspect*. It becomes one when it has looked so for the threshold,
//! counted only while all sources were in sync ([`clock`]), and when the apiserver itself, asked
//! past the watch, has not contradicted. Everything else is silence: unknown is not false.

mod cause;
mod census;
mod clock;
mod docket;
mod dossier;
mod facts;
mod remedy;
mod statuses;
mod strays;
mod stuck;
mod suspects;

pub use docket::LeakGauges;

use super::{
    account::Sources,
    ids::{PodUid, SandboxId},
    input::{ApiEvent, CriEvent, HostEvent, HostSurvey},
    leak::{Judgement, Leak, LeakKey, Recollection},
    observation::Observation,
    table::Table,
    time::BootTime,
};
use clock::Clock;
use docket::Docket;
use facts::Facts;
use statuses::Statuses;
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
    /// Pods with a sandbox that may look like a leak: all others are not looked at.
    odd: BTreeSet<PodUid>,
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
            odd: BTreeSet::new(),
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

    /// Looks anew at pods of which the runtime or the apiserver has told something else than
    /// before.
    pub fn reconsider(&mut self, now: BootTime, of: Sources<'_>, changed: &BTreeSet<PodUid>) {
        let Self { statuses, survey, cgroups, odd, strays, .. } = self;
        let (survey, none) = (survey.as_ref(), BTreeSet::new());
        let facts = Facts { of, statuses, survey, cgroups, odd: &none, strays, now };
        for uid in changed {
            if suspects::is_plain(&facts, uid) {
                odd.remove(uid);
            } else if !odd.contains(uid) {
                odd.insert(uid.clone());
            }
        }
    }

    /// Judges, on a tick.
    pub fn judge(&mut self, now: BootTime, of: Sources<'_>, said: &mut Vec<Observation>) {
        self.turn(now, &of);
        let facts = Facts {
            of,
            statuses: &self.statuses,
            survey: self.survey.as_ref(),
            cgroups: &self.cgroups,
            odd: &self.odd,
            strays: &self.strays,
            now,
        };
        if self.clock.judgement() != Judgement::Possible {
            self.docket.let_go(&facts, said);
            return;
        }
        let due = self.judged.is_none_or(|judged| now >= judged + AT_LEAST);
        if !self.stale && !due && !self.docket.is_waiting() {
            return;
        }
        let mut strays = self.strays.clone();
        strays.look(&facts);
        let facts = Facts { strays: &strays, ..facts };
        self.docket.judge(&facts, self.clock.watched(), said);
        let wanted = self.statuses_wanted(&facts);
        for id in wanted {
            self.statuses.ask(now, &id);
            said.push(Observation::SandboxStatusWanted(id));
        }
        let listed = |id: &SandboxId| of.runtime.sandbox(id).is_some_and(|s| s.removed.is_none());
        self.statuses.retain(listed);
        (self.judged, self.stale) = (Some(now), false);
        self.strays = strays;
    }

    /// Sandboxes that are suspected, that may hold their network though they are stopped, or that
    /// may claim a namespace which nobody seems to use.
    fn statuses_wanted(&self, facts: &Facts<'_>) -> Vec<SandboxId> {
        let stopped = facts.odd().filter(|sandbox| !sandbox.info.ready);
        let suspected = self.docket.keys().filter_map(|key| match key {
            LeakKey::Sandbox { id } => facts.of.runtime.sandbox(id),
            _ => None,
        });
        let orphaned = suspects::unused_namespaces(facts).next().is_some();
        let unheard = orphaned.then(|| suspects::unheard(facts)).into_iter().flatten();
        let wanted = suspected.chain(stopped).chain(unheard);
        self.statuses.due(facts.now, wanted, MAX_STATUSES)
    }

    /// All that is certain, by what it is.
    pub fn told(&self) -> impl Iterator<Item = &Arc<Leak>> {
        self.docket.told()
    }

    /// What has looked like a leak for so long and is not certain (yet).
    pub fn suspected(&self, now: BootTime, of: Sources<'_>, at_least: Duration) -> Vec<Leak> {
        let Self { statuses, survey, cgroups, odd, strays, .. } = self;
        let facts = Facts { of, statuses, survey: survey.as_ref(), cgroups, odd, strays, now };
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
