//! One candidate: its verification and its description.

use crate::{
    ids::*,
    leak::{Leak, LeakCause, LeakClass, LeakEvidence},
    leaks::{cause, evidence, facts::LeakFacts, remedy, resources},
    output::{Outputs, Report},
    time::*,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// An older answer confirms nothing. It may take three requests of up to 60 s each (`kube/lookup.rs`).
const VERIFICATION_VALID: Duration = Duration::from_secs(240);
/// Ask again if no answer came by then.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(240);
/// Bound on the evidence that a leak collects.
const MAX_EVIDENCE: usize = 32;
/// A leak is described again after this, because its resources may change.
const DESCRIBE_AGAIN: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) class: LeakClass,
    pub(super) first_observed: BootTime,
    pub(super) preexisting: bool,
    /// The detection clock when it became a candidate.
    pub(super) from: Duration,
    /// When its threshold was first seen to have passed.
    pub(super) due: Option<BootTime>,
    pub(super) verification: Verification,
    /// Why the watch alone does not prove that its pod is gone.
    pub(super) basis: AbsenceBasis,
    pub(super) reported: Option<ReportedLeak>,
}

/// The basis for counting a pod as absent. If the watch never showed the pod (it may be silently stalled), or
/// the apiserver has contradicted it, the threshold starts only at a negative answer of the apiserver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AbsenceBasis {
    /// The watch has shown the object and its deletion, or the apiserver has answered that it is gone.
    None,
    /// The apiserver was not queried yet.
    New,
    /// The apiserver has answered that the pod exists.
    Contradicted,
}

#[derive(Clone, Debug)]
pub(super) struct ReportedLeak {
    pub(super) leak: Arc<Leak>,
    /// When it is described again.
    pub(super) due: BootTime,
    /// It has evidence. Each tick asks this of each leak, and does not read all leaks for it.
    pub(super) is_detailed: bool,
}

impl ReportedLeak {
    fn new(leak: &Arc<Leak>, now: BootTime) -> Self {
        let is_detailed = !leak.evidence.is_empty();
        Self { leak: Arc::clone(leak), due: now + DESCRIBE_AGAIN, is_detailed }
    }
}

/// The apiserver's answer about a candidate's pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verification {
    /// Not queried.
    None,
    /// Queried at this moment for this pod.
    Asked(BootTime, PodUid),
    /// Answered; `asked`: when it was queried.
    Answered { asked: BootTime, exists: bool },
}

/// The next step for a candidate whose threshold has passed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// Wait for an answer.
    Wait,
    /// Query the apiserver.
    Ask,
    /// Start the threshold again: the answer was the first certain one, or it contradicts the watch.
    Begin { basis: AbsenceBasis },
    /// Report the leak.
    Report,
}

impl Candidate {
    pub(super) fn next(&self, now: BootTime, needed: Option<bool>) -> Next {
        match (needed, &self.verification) {
            (None, _) => Next::Report,
            (Some(needed), Verification::Answered { asked, exists })
                if now < *asked + VERIFICATION_VALID =>
            {
                match (*exists == needed, self.basis) {
                    (true, AbsenceBasis::None) => Next::Report,
                    (true, _) => Next::Begin { basis: AbsenceBasis::None },
                    (false, _) => Next::Begin { basis: AbsenceBasis::Contradicted },
                }
            }
            (Some(_), Verification::Asked(at, _)) if now < *at + VERIFICATION_TIMEOUT => Next::Wait,
            (Some(_), _) => Next::Ask,
        }
    }

    /// Reports the leak. True: it was reported.
    pub(super) fn report(
        &mut self,
        facts: &LeakFacts<'_>,
        key: &LeakKey,
        budget: &mut DetailBudget,
        out: &mut Outputs,
    ) -> bool {
        let has_room = budget.take(self.class);
        let Some(leak) = self.describe(facts, key, has_room) else { return false };
        let leak = Arc::new(leak);
        self.reported = Some(ReportedLeak::new(&leak, facts.now));
        out.reports.push(Report::LeakOpened(leak));
        true
    }

    /// Sets the current class. A class of another kind starts the threshold again and resolves the reported
    /// leak, which is returned. Without a pod every class is of one kind.
    pub(super) fn reclassify(
        &mut self,
        class: LeakClass,
        watched: Duration,
        now: BootTime,
    ) -> Option<Arc<Leak>> {
        let is_of_one_kind = class == self.class || class.lacks_pod() && self.class.lacks_pod();
        let changes = std::mem::replace(&mut self.class, class) != class;
        if is_of_one_kind {
            self.reported.iter_mut().filter(|_| changes).for_each(|one| one.due = now);
            return None;
        }
        (self.from, self.verification) = (watched, Verification::None);
        (self.first_observed, self.preexisting) = (now, false);
        self.reported.take().map(|reported| reported.leak)
    }

    /// The answer of the apiserver that the report requires: whether the pod exists. `None`: none, because
    /// the watch shows the object.
    pub(super) fn needs(&self, key: &LeakKey) -> Option<bool> {
        match key {
            LeakKey::PodCgroup { .. } => Some(false),
            LeakKey::Pod { .. } => Some(true),
            _ => self.class.lacks_pod().then_some(false),
        }
    }

    /// Describes a reported leak again, and returns it if it changed.
    pub(super) fn describe_again(
        &mut self,
        facts: &LeakFacts<'_>,
        key: &LeakKey,
        budget: &mut DetailBudget,
    ) -> Option<Arc<Leak>> {
        let reported = self.reported.as_ref().filter(|reported| facts.now >= reported.due)?;
        let (before, is_detailed) = (&reported.leak, reported.is_detailed);
        let is_promoted = !is_detailed && budget.take(self.class);
        let has_evidence = is_promoted || is_detailed;
        let mut leak = self.describe(facts, key, has_evidence)?;
        let is_same_matter = (leak.class, leak.blocked_on) == (before.class, before.blocked_on);
        // Whether the kubelet runs is always known; any other evidence may be evicted.
        let is_forgotten =
            leak.cause.kind == LeakCause::Unknown && before.cause.kind != LeakCause::KubeletDown;
        let keeps_cause = is_same_matter && (is_forgotten || leak.cause.kind == before.cause.kind);
        if keeps_cause {
            leak.cause = before.cause.clone();
            leak.remediation = remedy::steps(&leak, &facts.stores.node.tools);
        }
        leak.confirmed = before.confirmed;
        let is_news = is_promoted || !keeps_cause || holds_other(before, &leak);
        let is_known =
            |one: &LeakEvidence| before.evidence.iter().any(|b| b.message == one.message);
        leak.evidence.retain(|one| !is_known(one));
        leak.evidence.splice(..0, before.evidence.iter().cloned());
        leak.evidence.truncate(MAX_EVIDENCE);
        leak.evidence.sort_by_key(|one| (one.at.is_none(), one.at));
        let leak = if is_news { Arc::new(leak) } else { Arc::clone(before) };
        self.reported = Some(ReportedLeak::new(&leak, facts.now));
        is_news.then_some(leak)
    }

    /// Describes the leak, with or without its evidence.
    pub(super) fn describe(
        &self,
        facts: &LeakFacts<'_>,
        key: &LeakKey,
        has_evidence: bool,
    ) -> Option<Leak> {
        let queried = match self.verification {
            Verification::Answered { asked, exists } => Some((asked, exists)),
            Verification::None | Verification::Asked(..) => None,
        };
        let (attempt, created) = match key {
            LeakKey::Sandbox { id } => {
                let info = &facts.stores.cri.sandbox(id)?.info;
                (Some(info.attempt), info.created)
            }
            LeakKey::Pod { uid } => (None, facts.object(uid)?.request().map(|r| r.stamp)),
            _ => (None, None),
        };
        let anchor = &facts.stores.anchor;
        let (cause, blocked_on) = cause::likely(facts, self.class, key);
        let is_pod = matches!(key, LeakKey::Pod { .. });
        let pod = facts.pod_of(key).filter(|pod| !pod.name.is_empty());
        let object = pod.as_ref().and_then(|pod| facts.object(&pod.uid));
        let mut leak = Leak {
            node: String::new(),
            class: self.class,
            key: key.clone(),
            workload: object.and_then(|object| object.pod.workload.as_deref().cloned()),
            pod,
            attempt,
            created: created.map(|time| Moment::of_wall(time, anchor)),
            first_observed: facts.moment(self.first_observed),
            preexisting: self.preexisting,
            resolved: false,
            confirmed: facts.moment(facts.now),
            resources: resources::of(facts, key),
            cause,
            blocked_on: is_pod.then_some(blocked_on),
            evidence: if has_evidence { evidence::collect(facts, key, queried) } else { vec![] },
            remediation: vec![],
        };
        leak.remediation = remedy::steps(&leak, &facts.stores.node.tools);
        Some(leak)
    }
}

/// Other processes are no change.
fn holds_other(before: &Leak, now: &Leak) -> bool {
    let (held, holds) = (&before.resources, &now.resources);
    (&held.netns, &held.ips, &held.cgroup, &held.containers)
        != (&holds.netns, &holds.ips, &holds.cgroup, &holds.containers)
}

/// Bound on leaks with evidence. Beyond it the node has another problem, and the evidence only uses memory.
const MAX_DETAILED: usize = 1_000;

/// Leaks with evidence so far: sandboxes, orphans and pods each have their own budget.
#[derive(Debug, Default)]
pub(super) struct DetailBudget(BTreeMap<(bool, bool), usize>);

impl DetailBudget {
    /// Uses the budget for one leak, if there is room.
    pub(super) fn take(&mut self, class: LeakClass) -> bool {
        let kind = (class.is_sandbox(), class.orphan().is_some());
        let used = self.0.entry(kind).or_default();
        *used += 1;
        *used <= MAX_DETAILED
    }
}
