//! One candidate: its verification and its description.

use super::detail::DetailBudget;
use crate::{
    ids::PodUid,
    leak::{Leak, LeakCause, LeakClass, LeakEvidence, LeakKey, LeakedResources, LikelyCause},
    leaks::{
        cause,
        evidence::{self, EvidenceBuilder},
        facts::LeakFacts,
        remediation, stuck,
        subject::pod_of,
    },
    output::{Outputs, Report},
    time::BootTime,
    types::Source,
};
use std::{sync::Arc, time::Duration};

/// An older answer confirms nothing. An answer may take 60 s.
const VERIFICATION_VALID: Duration = Duration::from_secs(90);
/// Ask again if no answer came by then: none does after 60 s.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(90);
/// Bound on the evidence that a leak collects.
const MAX_EVIDENCE: usize = 32;
/// A leak is described again after this, because its resources may change.
const DESCRIBE_AGAIN: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) class: LeakClass,
    pub(super) first_observed: BootTime,
    pub(super) preexisting: bool,
    /// When this run first saw it.
    pub(super) first: BootTime,
    /// The detection clock when it became a candidate.
    pub(super) from: Duration,
    /// When its threshold was first seen to have passed.
    pub(super) due: Option<BootTime>,
    pub(super) verification: Verification,
    /// The pod that is being verified.
    pub(super) asked_about: Option<PodUid>,
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
    pub(super) described: BootTime,
    /// With its evidence and remediation.
    pub(super) detailed: bool,
}

/// The apiserver's answer about a candidate's pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verification {
    /// Not queried.
    None,
    /// Queried at this moment.
    Asked(BootTime),
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
        match (needed, self.verification) {
            (None, _) => Next::Report,
            (Some(needed), Verification::Answered { asked, exists })
                if now < asked + VERIFICATION_VALID =>
            {
                match (exists == needed, self.basis) {
                    (true, AbsenceBasis::None) => Next::Report,
                    (true, _) => Next::Begin { basis: AbsenceBasis::None },
                    (false, _) => Next::Begin { basis: AbsenceBasis::Contradicted },
                }
            }
            (Some(_), Verification::Asked(at)) if now < at + VERIFICATION_TIMEOUT => Next::Wait,
            (Some(_), _) => Next::Ask,
        }
    }

    /// Reports the leak. True: it was reported.
    pub(super) fn report(
        &mut self,
        facts: &LeakFacts<'_>,
        key: &LeakKey,
        room: &mut DetailBudget,
        out: &mut Outputs,
    ) -> bool {
        let detailed = room.take(self.class);
        let Some(leak) = self.describe(facts, key, detailed) else { return false };
        let leak = Arc::new(leak);
        out.report(Report::LeakOpened(Arc::clone(&leak)));
        self.reported = Some(ReportedLeak { leak, described: facts.now, detailed });
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
        let kind = |class: LeakClass| match class {
            LeakClass::NotreadyNoPod
            | LeakClass::NotreadyWithContainers
            | LeakClass::ReadyNoPod => LeakClass::NotreadyNoPod,
            other => other,
        };
        let is_another = kind(class) != kind(self.class);
        self.class = class;
        if !is_another {
            return None;
        }
        (self.from, self.verification) = (watched, Verification::None);
        (self.first_observed, self.first, self.preexisting) = (now, now, false);
        self.reported.take().map(|reported| reported.leak)
    }

    /// The answer of the apiserver that the report requires: whether the pod exists. `None`: none, because
    /// the watch shows the object.
    pub(super) fn needs(&self, key: &LeakKey) -> Option<bool> {
        match (key, self.class) {
            (LeakKey::PodCgroup { .. }, _) => Some(false),
            (LeakKey::Pod { .. }, _) => Some(true),
            (
                LeakKey::Sandbox { .. },
                LeakClass::NotreadyNoPod
                | LeakClass::ReadyNoPod
                | LeakClass::NotreadyWithContainers,
            ) => Some(false),
            _ => None,
        }
    }

    /// Describes a reported leak again, and returns it if it changed.
    pub(super) fn describe_again(
        &mut self,
        facts: &LeakFacts<'_>,
        key: &LeakKey,
        detailed: &mut DetailBudget,
    ) -> Option<Arc<Leak>> {
        let reported = self.reported.as_ref()?;
        if facts.now < reported.described + DESCRIBE_AGAIN && reported.leak.class == self.class {
            return None;
        }
        let promoted = !reported.detailed && detailed.take(self.class);
        let now = self.describe(facts, key, false)?;
        let is_news = promoted || is_news(&reported.leak, &now);
        let detailed = reported.detailed || promoted;
        let now = match is_news && detailed {
            true => self.describe(facts, key, true)?,
            false => now,
        };
        let reported = self.reported.as_mut()?;
        reported.described = facts.now;
        if !is_news {
            return None;
        }
        (reported.leak, reported.detailed) = (Arc::new(changed(&reported.leak, now)), detailed);
        Some(Arc::clone(&reported.leak))
    }

    /// Describes the leak; unless `detailed`, without evidence and remediation.
    pub(super) fn describe(
        &self,
        facts: &LeakFacts<'_>,
        key: &LeakKey,
        detailed: bool,
    ) -> Option<Leak> {
        let mut evidence = EvidenceBuilder::new(facts, detailed);
        if let Verification::Answered { asked, exists } = self.verification {
            let message = match exists {
                true => "the apiserver, queried directly, still has the pod",
                false => "the apiserver, queried directly, has no pod of this UID",
            };
            evidence.add(Some(asked), Source::Api, message);
        }
        let pod = pod_of(facts, key).filter(|pod| !pod.name.is_empty());
        let mut leak = Leak {
            class: self.class,
            key: key.clone(),
            pod,
            attempt: None,
            created: None,
            first_observed: facts.wall(self.first_observed),
            preexisting: self.preexisting,
            confirmed: facts.wall(facts.now),
            resources: LeakedResources::default(),
            cause: LikelyCause { kind: LeakCause::Unknown, message: String::new() },
            blocked_on: None,
            evidence: Vec::new(),
            remediation: Vec::new(),
        };
        match key {
            LeakKey::Sandbox { id } => {
                let sandbox = facts.stores.cri.sandbox(id)?;
                leak.attempt = Some(sandbox.info.attempt);
                leak.created = Some(sandbox.info.created);
                leak.resources = evidence::holds(facts, sandbox);
                leak.cause = cause::of_sandbox(facts, self.class, sandbox, &mut evidence);
            }
            LeakKey::Pod { uid } => {
                evidence.object(uid);
                let (stuck, kind, message) = stuck::reason(facts, uid, &mut evidence);
                evidence.kubelet(stuck::deadline(facts, uid));
                leak.created = facts.object(uid)?.request().map(|request| request.api_time);
                leak.resources = facts
                    .listed_of(uid)
                    .next_back()
                    .map_or_else(LeakedResources::default, |last| evidence::holds(facts, last));
                leak.cause = LikelyCause { kind, message };
                leak.blocked_on = Some(stuck);
            }
            _ => cause::of_orphan(facts, &mut leak, &mut evidence),
        }
        if detailed {
            leak.evidence = evidence.build();
            leak.remediation = remediation::steps(&leak);
        } else {
            leak.cause.message = String::new();
        }
        Some(leak)
    }
}

/// A known cause is kept when the sources no longer have its evidence.
fn keeps_cause(before: &Leak, now: &Leak) -> bool {
    let known = before.cause.kind;
    let same_matter = (now.class, now.blocked_on) == (before.class, before.blocked_on);
    // Whether the kubelet runs is always known; any other evidence may be evicted.
    let forgotten = now.cause.kind == LeakCause::Unknown && known != LeakCause::KubeletDown;
    same_matter && (forgotten || now.cause.kind == known)
}

/// The leak has changed. Other processes in it are no change.
fn is_news(before: &Leak, now: &Leak) -> bool {
    let (held, holds) = (&before.resources, &now.resources);
    let is_same = (&held.netns, &held.ips, &held.cgroup, &held.containers)
        == (&holds.netns, &holds.ips, &holds.cgroup, &holds.containers);
    !keeps_cause(before, now) || !is_same
}

/// The leak as it is now, with the evidence collected so far.
fn changed(before: &Leak, mut now: Leak) -> Leak {
    if keeps_cause(before, &now) {
        now.cause = before.cause.clone();
    }
    now.confirmed = before.confirmed;
    if now.evidence.is_empty() {
        return now;
    }
    now.remediation = remediation::steps(&now);
    let known = |one: &LeakEvidence| {
        before.evidence.iter().any(|old| (old.source, &old.message) == (one.source, &one.message))
    };
    let news: Vec<_> = now.evidence.iter().filter(|one| !known(one)).cloned().collect();
    now.evidence = before.evidence.iter().cloned().chain(news).take(MAX_EVIDENCE).collect();
    now.evidence.sort_by_key(|one| (one.at.is_none(), one.at));
    now
}
