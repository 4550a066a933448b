//! The leak tracker: from the first candidate over its threshold and its confirmation to the reported leak and its
//! resolution.

use super::{
    cause,
    class::{Classes, UnusedNamespaces, is_unseen},
    evidence,
    facts::LeakFacts,
    remedy, resources,
};
use crate::{
    ids::*,
    input::*,
    leak::{DetectionState, Leak, LeakCause, LeakClass},
    output::{Outputs, Report, Request},
    table::Table,
    time::*,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Leaks reported per tick; on a node with many leaks the reports take some seconds.
const MAX_REPORTED: usize = 500;
/// Pods verified per tick.
const MAX_VERIFICATIONS: usize = 500;
/// With more candidates the node has another problem, and the evidence of each only uses memory.
const MAX_WITH_EVIDENCE: usize = 1_000;
/// Stored leaks that are not found again by then are resolved.
const RESTORED_FOR: Duration = Duration::from_secs(120);
/// A network plugin may take this long to set up a pod's network (the kubelet's default is 4 min).
const NETWORK_SETUP: Duration = Duration::from_secs(900);
/// An older answer confirms nothing, and one that did not come by then is lost. It may take three requests of up to
/// 60 s each (`kube/lookup.rs`).
const ANSWER_VALID: Duration = Duration::from_secs(240);
/// A leak is described again after this: its cause may become clearer, and its resources may change.
const DESCRIBE_AGAIN: Duration = Duration::from_secs(30);

/// Candidates and leaks.
#[derive(Clone, Debug, Default)]
pub(super) struct LeakTracker {
    threshold: Duration,
    candidates: BTreeMap<LeakKey, Candidate>,
    restored: Table<LeakKey, PersistedLeak>,
    /// The detection clock at the last evaluation.
    watched: Duration,
}

#[derive(Clone, Debug)]
struct Candidate {
    class: LeakClass,
    pod: Option<PodUid>,
    first_observed: BootTime,
    /// The detection clock when the threshold will have passed.
    until: Duration,
    /// The threshold began when the pod was known to be absent. Not if the watch has never shown the pod (it may be
    /// silently stalled), or the apiserver contradicted: then the next answer begins it, and a second one confirms.
    is_certain: bool,
    /// When the threshold was first seen to have passed.
    due: Option<BootTime>,
    /// When the apiserver was asked, and whether the pod exists by its answer.
    answer: Option<(BootTime, Option<bool>)>,
    /// The leak as it was reported last, and when it is described again.
    reported: Option<(Arc<Leak>, BootTime)>,
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
    /// Addresses held by leaked sandboxes: IPv4 or IPv6, whichever are more. A pod needs one of each.
    pub ips: usize,
}

impl LeakTracker {
    pub(super) fn new(threshold: Duration) -> Self {
        Self { threshold, ..Self::default() }
    }

    pub(super) fn restore(&mut self, leaks: Vec<PersistedLeak>) {
        self.restored = leaks.into_iter().map(|one| (one.key.clone(), one)).collect();
    }

    pub(super) fn verified(&mut self, asked: BootTime, pods: &[PodCheck]) {
        let answers = pods.iter().filter_map(|check| Some((&check.uid, check.exists?)));
        let answers: Table<&PodUid, bool> = answers.collect();
        for candidate in self.candidates.values_mut() {
            let exists = candidate.pod.as_ref().and_then(|uid| answers.get(uid));
            if let (Some((at, answer @ None)), Some(exists)) = (&mut candidate.answer, exists)
                && asked >= *at
            {
                (*at, *answer) = (asked, Some(*exists));
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
        let is_old = |one: &Candidate| {
            let certain = (watched + self.threshold).saturating_sub(one.until);
            at_least.is_zero() || (one.is_certain && certain >= at_least)
        };
        let all = self.candidates.iter();
        all.filter(|(_, one)| one.reported.is_none() && is_old(one))
            .filter_map(|(key, one)| one.describe(facts, key, true))
            .collect()
    }

    /// While detection is suspended: drops candidates that are certainly gone.
    pub(super) fn drop_vanished(&mut self, facts: &LeakFacts<'_>, out: &mut Outputs) {
        let keys = self.candidates.keys();
        let gone: Vec<_> = keys.filter(|key| facts.last_shown(key).is_none()).cloned().collect();
        gone.iter().for_each(|key| self.drop(key, out));
    }

    fn drop(&mut self, key: &LeakKey, out: &mut Outputs) {
        let reported = self.candidates.remove(key).and_then(|candidate| candidate.reported);
        out.reports.extend(reported.map(|(leak, _)| Report::LeakResolved(leak)));
    }

    /// Evaluates all candidates while all sources are in sync. `watched`: the detection clock; `classes`: the
    /// current classes of changed things, and all current orphans.
    pub(super) fn track(
        &mut self,
        facts: &LeakFacts<'_>,
        namespaces: &UnusedNamespaces<'_>,
        watched: Duration,
        classes: &Classes,
        out: &mut Outputs,
    ) {
        let elapsed = watched.saturating_sub(std::mem::replace(&mut self.watched, watched));
        // There may be thousands: only orphans are looked up.
        let mut gone = Vec::new();
        let orphans = self.candidates.iter_mut().filter(|(_, one)| one.class.orphan().is_some());
        for (key, candidate) in orphans.filter(|(key, _)| !classes.contains_key(key)) {
            match is_unseen(facts, namespaces, candidate.class) {
                true => candidate.until += elapsed, // its time stands still
                false => gone.push(key.clone()),
            }
        }
        gone.iter().for_each(|key| self.drop(key, out));
        for (key, class) in classes {
            match class {
                Some(class) => self.put(facts, key, *class, out),
                None => self.drop(key, out),
            }
        }
        if watched >= RESTORED_FOR {
            self.restored.clear();
        }
        self.confirm(facts, namespaces, out);
    }

    /// Adds a candidate, or sets its class. A class of another kind is another candidate. Without a pod every class
    /// of a sandbox is of one kind.
    fn put(&mut self, facts: &LeakFacts<'_>, key: &LeakKey, class: LeakClass, out: &mut Outputs) {
        if let Some(known) = self.candidates.get_mut(key) {
            let before = std::mem::replace(&mut known.class, class);
            if before == class {
                return;
            }
            if before.lacks_pod() && class.lacks_pod() {
                return known.reported.iter_mut().for_each(|(_, due)| *due = facts.now);
            }
            self.drop(key, out);
        }
        let pod = facts.pod_uid(key).cloned();
        let is_known = pod.as_ref().is_some_and(|uid| facts.object(uid).is_some());
        let is_certain = is_known || should_exist(class) != Some(false);
        let known = self.restored.remove(key).map(|known| known.first_observed);
        let candidate = Candidate {
            class,
            pod,
            first_observed: known.unwrap_or(facts.now),
            until: self.watched + if is_certain { self.threshold } else { Duration::ZERO },
            is_certain,
            due: None,
            answer: None,
            reported: None,
        };
        self.candidates.insert(key.clone(), candidate);
    }

    /// Reports the candidates whose threshold has passed, once the apiserver has confirmed them.
    fn confirm(
        &mut self,
        facts: &LeakFacts<'_>,
        namespaces: &UnusedNamespaces<'_>,
        out: &mut Outputs,
    ) {
        let mut wanted: BTreeMap<PodUid, PodRef> = BTreeMap::new();
        let mut room = MAX_REPORTED;
        let has_evidence = self.candidates.len() <= MAX_WITH_EVIDENCE;
        let setup = NETWORK_SETUP.saturating_sub(self.threshold);
        // There may be thousands: look-ups come last.
        for (key, candidate) in &mut self.candidates {
            if candidate.reported.is_some() {
                let news = candidate.describe_again(facts, key, has_evidence);
                out.reports.extend(news.map(Report::LeakChanged));
                continue;
            }
            let is_late = candidate.class == LeakClass::OrphanNetns && namespaces.may_be_new;
            let until = candidate.until + if is_late { setup } else { Duration::ZERO };
            candidate.due = (self.watched >= until).then(|| candidate.due.unwrap_or(facts.now));
            let Some(due) = candidate.due else { continue };
            let answer = candidate.answer.filter(|(asked, _)| facts.now < *asked + ANSWER_VALID);
            match (should_exist(candidate.class), answer) {
                (Some(_), Some((_, None))) => {} // the answer is awaited
                (Some(_), None) => {
                    let pod = facts.pod_of(key).filter(|_| wanted.len() < MAX_VERIFICATIONS);
                    candidate.answer = pod.is_some().then_some((facts.now, None));
                    wanted.extend(pod.map(|pod| (pod.uid.clone(), pod)));
                }
                (Some(should), Some((_, Some(exists))))
                    if exists != should || !candidate.is_certain =>
                {
                    // It contradicts, or is the first certain answer: the threshold begins.
                    candidate.until = self.watched + self.threshold;
                    (candidate.is_certain, candidate.answer) = (exists == should, None);
                }
                _ if room > 0 && facts.last_shown(key) >= Some(due) => {
                    let leak = candidate.describe(facts, key, has_evidence).map(Arc::new);
                    candidate.reported =
                        leak.clone().map(|leak| (leak, facts.now + DESCRIBE_AGAIN));
                    room -= usize::from(leak.is_some());
                    out.reports.extend(leak.map(Report::LeakOpened));
                }
                _ => {}
            }
        }
        if !wanted.is_empty() {
            out.requests.push(Request::VerifyPods(wanted.into_values().collect()));
        }
    }

    pub(super) fn gauges(&self) -> LeakGauges {
        let mut gauges = LeakGauges::default();
        let (mut ipv4, mut ipv6) = (0, 0);
        for candidate in self.candidates.values() {
            let Some((leak, _)) = &candidate.reported else {
                gauges.candidates += 1;
                continue;
            };
            *gauges.reported.entry((leak.class, leak.cause.kind)).or_default() += 1;
            let of_ipv6 = leak.resources.ips.iter().filter(|ip| ip.contains(':')).count();
            ipv6 += of_ipv6;
            ipv4 += leak.resources.ips.len() - of_ipv6;
        }
        gauges.ips = ipv4.max(ipv6);
        gauges
    }
}

/// What the apiserver must answer: whether the pod exists. `None`: nothing, because the watch shows the object.
fn should_exist(class: LeakClass) -> Option<bool> {
    match class {
        LeakClass::StuckTerminating => Some(true),
        LeakClass::OrphanPodCgroup => Some(false),
        _ => class.lacks_pod().then_some(false),
    }
}

impl Candidate {
    /// Describes a reported leak again, and returns it if it changed. Other processes are no change.
    fn describe_again(
        &mut self,
        facts: &LeakFacts<'_>,
        key: &LeakKey,
        has_evidence: bool,
    ) -> Option<Arc<Leak>> {
        let (before, _) = self.reported.as_ref().filter(|(_, due)| facts.now >= *due)?;
        let mut leak = self.describe(facts, key, has_evidence)?;
        leak.confirmed = before.confirmed;
        let (held, holds) = (&before.resources, &leak.resources);
        let is_same = !(has_evidence && before.evidence.is_empty())
            && (before.class, &before.cause) == (leak.class, &leak.cause)
            && (&held.netns, &held.ips, &held.cgroup, &held.containers)
                == (&holds.netns, &holds.ips, &holds.cgroup, &holds.containers);
        let leak = if is_same { Arc::clone(before) } else { Arc::new(leak) };
        self.reported = Some((Arc::clone(&leak), facts.now + DESCRIBE_AGAIN));
        (!is_same).then_some(leak)
    }

    fn describe(&self, facts: &LeakFacts<'_>, key: &LeakKey, has_evidence: bool) -> Option<Leak> {
        let (attempt, created) = match key {
            LeakKey::Sandbox { id } => {
                let info = &facts.stores.cri.sandbox(id)?.info;
                (Some(info.attempt), info.created)
            }
            LeakKey::Pod { uid } => (None, facts.object(uid)?.request().map(|r| r.stamp)),
            _ => (None, None),
        };
        let pod = facts.pod_of(key).filter(|pod| !pod.name.is_empty());
        let object = pod.as_ref().and_then(|pod| facts.object(&pod.uid));
        let answer = self.answer.and_then(|(asked, exists)| Some((asked, exists?)));
        let mut leak = Leak {
            node: String::new(),
            class: self.class,
            key: key.clone(),
            workload: object.and_then(|object| object.pod.workload.as_deref().cloned()),
            pod,
            attempt,
            created: created.map(|time| Moment::of_wall(time, &facts.stores.anchor)),
            first_observed: facts.moment(self.first_observed),
            resolved_at: None,
            confirmed: facts.moment(facts.now),
            resources: resources::of(facts, key),
            cause: cause::likely(facts, self.class, key, self.first_observed),
            evidence: if has_evidence { evidence::collect(facts, key, answer) } else { vec![] },
            remediation: vec![],
        };
        leak.remediation = remedy::steps(&leak, &facts.stores.node.tools);
        Some(leak)
    }
}
