//! The leak tracker: from the first candidate to the reported leak and its resolution.

mod candidate;
mod seen;

use candidate::{AbsenceBasis, Candidate, DetailBudget, Next, Verification};
use seen::SurveyedKinds;

use super::{classify::Classes, facts::LeakFacts, netns::UnusedNamespaces, orphans};
use crate::{
    ids::*,
    input::*,
    leak::{BlockedOn, DetectionState, Leak, LeakCause, LeakClass},
    output::{Outputs, Report, Request},
    table::Table,
    time::*,
};
use std::{collections::BTreeMap, time::Duration};

/// Bound on candidates, the same as on sandboxes.
const MAX_CANDIDATES: usize = 65_536;
/// Leaks reported per tick; on a node with many leaks the reports take some seconds.
const MAX_REPORTED: usize = 500;
/// Pods verified per tick.
const MAX_VERIFICATIONS: usize = 500;
/// Stored leaks that are not found again by then are resolved.
const RESTORED_FOR: Duration = Duration::from_secs(120);
/// A network plugin may take this long to set up a pod's network (the kubelet's default is 4 min).
const NETWORK_SETUP: Duration = Duration::from_secs(900);

/// Candidates and leaks.
#[derive(Clone, Debug, Default)]
pub(super) struct LeakTracker {
    threshold: Duration,
    candidates: BTreeMap<LeakKey, Candidate>,
    restored: Table<LeakKey, PersistedLeak>,
    /// The detection clock at the last evaluation.
    watched: Duration,
    seen: SurveyedKinds,
}

/// Numbers for the metrics.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeakGauges {
    /// Whether leak detection is possible, and if not why.
    pub detection_state: DetectionState,
    /// How long leak detection was possible.
    pub watched: Duration,
    /// Candidates that are not confirmed.
    pub candidates: usize,
    /// Leaks by class and cause.
    pub reported: BTreeMap<(LeakClass, LeakCause), usize>,
    /// Stuck pods, by what they wait for.
    pub blocked_on: BTreeMap<BlockedOn, usize>,
    /// Addresses held by leaked sandboxes: IPv4 or IPv6, whichever are more. A pod needs one of each.
    pub ips: usize,
}

impl LeakTracker {
    /// An empty tracker.
    pub(super) fn new(threshold: Duration) -> Self {
        Self { threshold, ..Self::default() }
    }

    /// Applies what an earlier run had stored.
    pub(super) fn restore(&mut self, leaks: Vec<PersistedLeak>) {
        let known = leaks.into_iter().take(MAX_CANDIDATES);
        self.restored = known.map(|one| (one.key.clone(), one)).collect();
    }

    /// Applies the apiserver's answers.
    pub(super) fn verified(&mut self, asked: BootTime, pods: &[PodCheck]) {
        let answers = pods.iter().filter_map(|check| Some((&check.uid, check.exists?)));
        let answers: Table<&PodUid, bool> = answers.collect();
        for candidate in self.candidates.values_mut() {
            let Verification::Asked(at, uid) = &candidate.verification else { continue };
            if let Some(exists) = answers.get(uid).filter(|_| asked >= *at) {
                candidate.verification = Verification::Answered { asked, exists: *exists };
            }
        }
    }

    /// Candidates older than `at_least` that are not confirmed, with all their evidence.
    pub(super) fn candidates(
        &self,
        facts: &LeakFacts<'_>,
        watched: Duration,
        at_least: Duration,
    ) -> Vec<Leak> {
        self.candidates
            .iter()
            .filter(|(_, candidate)| candidate.reported.is_none())
            .filter(|(_, candidate)| watched.saturating_sub(candidate.from) >= at_least)
            .filter_map(|(key, candidate)| candidate.describe(facts, key, true))
            .collect()
    }

    /// While detection is suspended: drops candidates that are certainly gone.
    pub(super) fn drop_vanished(&mut self, facts: &LeakFacts<'_>, out: &mut Outputs) {
        let gone: Vec<_> =
            self.candidates.keys().filter(|key| facts.is_gone(key)).cloned().collect();
        gone.iter().for_each(|key| self.drop(key, out));
    }

    /// Removes a candidate, and resolves its leak.
    fn drop(&mut self, key: &LeakKey, out: &mut Outputs) {
        let reported = self.candidates.remove(key).and_then(|candidate| candidate.reported);
        out.reports.extend(reported.map(|reported| Report::LeakResolved(reported.leak)));
    }

    /// Evaluates all candidates while all sources are in sync. `watched`: the detection clock; `classes`: the
    /// current classes of changed things, and all current orphans. Returns candidates that were refused.
    pub(super) fn track(
        &mut self,
        facts: &LeakFacts<'_>,
        namespaces: &UnusedNamespaces<'_>,
        watched: Duration,
        classes: &Classes,
        out: &mut Outputs,
    ) -> Vec<LeakKey> {
        let elapsed = watched.saturating_sub(self.watched);
        self.watched = watched;
        // There may be thousands: only orphans are looked up.
        let mut gone = Vec::new();
        let orphans = self.candidates.iter_mut().filter(|(_, one)| one.class.orphan().is_some());
        for (key, candidate) in orphans.filter(|(key, _)| !classes.contains_key(key)) {
            match orphans::is_unseen(facts, namespaces, key) {
                true => candidate.from += elapsed, // its time stands still
                false => gone.push(key.clone()),
            }
        }
        gone.iter().for_each(|key| self.drop(key, out));
        let mut refused = Vec::new();
        for (key, class) in classes {
            let Some(class) = class else {
                self.drop(key, out);
                continue;
            };
            if let Some(candidate) = self.candidates.get_mut(key) {
                let gone = candidate.reclassify(*class, watched, facts.now);
                out.reports.extend(gone.map(Report::LeakResolved));
            } else if self.candidates.len() < MAX_CANDIDATES {
                self.add(facts, watched, key, *class);
            } else {
                refused.push(key.clone());
            }
        }
        self.seen.note(facts);
        if watched >= RESTORED_FOR {
            self.restored.clear();
        }
        self.confirm(facts, namespaces, watched, out);
        refused
    }

    fn add(&mut self, facts: &LeakFacts<'_>, watched: Duration, key: &LeakKey, class: LeakClass) {
        let (first_observed, preexisting) = match self.restored.remove(key) {
            Some(known) => (known.first_observed, known.preexisting),
            None => (facts.now, self.seen.is_since_start(facts, key, class)),
        };
        let candidate = Candidate {
            class,
            first_observed,
            preexisting,
            from: watched,
            due: None,
            verification: Verification::None,
            basis: match facts.pod_uid(key) {
                Some(uid) if facts.object(uid).is_none() => AbsenceBasis::New,
                _ => AbsenceBasis::None,
            },
            reported: None,
        };
        self.candidates.insert(key.clone(), candidate);
    }

    fn confirm(
        &mut self,
        facts: &LeakFacts<'_>,
        namespaces: &UnusedNamespaces<'_>,
        watched: Duration,
        out: &mut Outputs,
    ) {
        let mut wanted: BTreeMap<PodUid, PodRef> = BTreeMap::new();
        let mut room = MAX_REPORTED;
        let is_detailed =
            |one: &&Candidate| one.reported.as_ref().is_some_and(|reported| reported.is_detailed);
        let mut detailed = DetailBudget::default();
        let with_details = self.candidates.values().filter(is_detailed);
        with_details.for_each(|one| _ = detailed.take(one.class));
        // There may be thousands: look-ups come last.
        for (key, candidate) in &mut self.candidates {
            if candidate.reported.is_some() {
                let news = candidate.describe_again(facts, key, &mut detailed);
                out.reports.extend(news.map(Report::LeakChanged));
                continue;
            }
            let threshold = match candidate.class {
                LeakClass::OrphanNetns if namespaces.creates => self.threshold.max(NETWORK_SETUP),
                _ => self.threshold,
            };
            let needed = candidate.needs(key);
            let is_over = watched.saturating_sub(candidate.from) >= threshold;
            candidate.due = is_over.then(|| candidate.due.unwrap_or(facts.now));
            let is_due = is_over || (candidate.basis == AbsenceBasis::New && needed == Some(false));
            let next = if is_due { candidate.next(facts.now, needed) } else { Next::Wait };
            match next {
                Next::Ask if wanted.len() < MAX_VERIFICATIONS => {
                    if let Some(pod) = facts.pod_of(key) {
                        candidate.verification = Verification::Asked(facts.now, pod.uid.clone());
                        wanted.insert(pod.uid.clone(), pod);
                    }
                }
                Next::Begin { basis } => {
                    (candidate.from, candidate.verification, candidate.basis) =
                        (watched, Verification::None, basis);
                }
                Next::Report if room > 0 => {
                    if candidate.due.is_some_and(|due| facts.is_shown_since(key, due)) {
                        room -= usize::from(candidate.report(facts, key, &mut detailed, out));
                    }
                }
                Next::Wait | Next::Ask | Next::Report => {}
            }
        }
        if !wanted.is_empty() {
            out.requests.push(Request::VerifyPods(wanted.into_values().collect()));
        }
    }

    /// Numbers for the metrics.
    pub(super) fn gauges(&self) -> LeakGauges {
        let mut gauges = LeakGauges::default();
        let (mut ipv4, mut ipv6) = (0, 0);
        for candidate in self.candidates.values() {
            let Some(reported) = &candidate.reported else {
                gauges.candidates += 1;
                continue;
            };
            let leak = &reported.leak;
            *gauges.reported.entry((leak.class, leak.cause.kind)).or_default() += 1;
            if let Some(reason) = leak.blocked_on {
                *gauges.blocked_on.entry(reason).or_default() += 1;
            }
            let of_ipv6 = leak.resources.ips.iter().filter(|ip| ip.contains(':')).count();
            ipv6 += of_ipv6;
            ipv4 += leak.resources.ips.len() - of_ipv6;
        }
        gauges.ips = ipv4.max(ipv6);
        gauges
    }
}
