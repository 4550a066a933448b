//! The register of suspects, from the first suspicion to the certain leak and its end.

use super::{
    cause, census::Census, dossier, dossier::Dossier, facts::Facts, remedy, stuck, suspects,
};
use crate::{
    ids::PodUid,
    input::PodCheck,
    leak::{
        Evidence, Holds, Judgement, Leak, LeakCause, LeakClass, LeakKey, LikelyCause, Recollection,
        StuckReason,
    },
    observation::{Observation, PodRef, Source},
    runtime::Sandbox,
    table::Table,
    time::BootTime,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Bound on suspects, as on sandboxes that are remembered.
const MAX_SUSPECTS: usize = 65_536;
/// Leaks told in one tick: a node that is full of them is told of over some seconds.
const MAX_TOLD: usize = 500;
/// Leaks that are told in full, with their evidence and what to do: beyond that a node has a matter
/// of another kind, and what is known of each would only be memory.
const MAX_IN_FULL: usize = 1_000;
/// Pods looked up past the watch in one tick.
const MAX_CHECKS: usize = 500;
/// An answer older than this confirms nothing any more.
const CHECK_HOLDS: Duration = Duration::from_secs(60);
/// One that has not come by then is asked for again.
const CHECK_LOST: Duration = Duration::from_secs(30);
/// Bound on the evidence that a leak gathers while it lasts.
const MAX_EVIDENCE: usize = 32;
/// What an earlier run had found is found again by then, or is no longer so.
const RECALL_HOLDS: Duration = Duration::from_secs(120);
/// A network plugin may take so long to set up a pod's network (the kubelet's default is 4 min).
const SETUP: Duration = Duration::from_secs(900);
/// What is known of a certain leak is looked at again after this: what it holds may change.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Suspects and leaks.
#[derive(Clone, Debug)]
pub(super) struct Docket {
    threshold: Duration,
    suspects: BTreeMap<LeakKey, Suspect>,
    recalled: Table<LeakKey, Recollection>,
    /// The judges' clock when they were judged last.
    watched: Duration,
    /// Something was judged before: what comes now began under the agent's eyes.
    opened: bool,
    refused: u64,
    contradicted: u64,
}

#[derive(Clone, Debug)]
struct Suspect {
    class: LeakClass,
    observed: BootTime,
    since_start: bool,
    /// When this run saw it so first.
    first: BootTime,
    /// The judges' clock when it began to be one.
    from: Duration,
    /// When its threshold was first seen to have passed.
    due: Option<BootTime>,
    check: Check,
    /// The pod that the apiserver was asked about.
    asked_about: Option<PodUid>,
    /// What the watch says of its pod cannot be relied on.
    doubt: Doubt,
    told: Option<Told>,
}

/// Since when a pod is gone of which the watch has told nothing, or less than the apiserver knew: the
/// watch may carry nothing although it stands, and the pod may have lived until a moment ago. Its time
/// counts from an answer of the apiserver itself that it is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doubt {
    /// None: the watch has shown its object, and its end; or the apiserver has said that it is gone.
    None,
    /// It was never asked.
    New,
    /// It has said that the pod is there.
    Contradicted,
}

#[derive(Clone, Debug)]
struct Told {
    leak: Arc<Leak>,
    looked: BootTime,
}

/// What the apiserver itself said of a suspect's pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Check {
    /// It was not asked.
    None,
    /// It was asked, at this moment.
    Asked(BootTime),
    /// It answered; asked at this moment.
    Answered { asked: BootTime, exists: bool },
}

/// Numbers for the metrics.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeakGauges {
    /// Whether leaks can be judged, and if not why.
    pub judgement: Judgement,
    /// How long they could be judged in all.
    pub watched: Duration,
    /// Suspects that are not certain (yet).
    pub suspects: usize,
    /// Leaks by class and cause.
    pub told: BTreeMap<(LeakClass, LeakCause), usize>,
    /// Pods that are stuck, by what they wait for.
    pub stuck: BTreeMap<StuckReason, usize>,
    /// Addresses that leaked sandboxes hold.
    pub ips: usize,
    /// Suspects whose pod the apiserver knew, though the watch did not.
    pub contradicted: u64,
}

impl Docket {
    /// An empty one.
    pub(super) fn new(threshold: Duration) -> Self {
        Self {
            threshold,
            suspects: BTreeMap::new(),
            recalled: Table::default(),
            watched: Duration::ZERO,
            opened: false,
            refused: 0,
            contradicted: 0,
        }
    }

    /// Takes what an earlier run had found.
    pub(super) fn recall(&mut self, leaks: Vec<Recollection>) {
        let known = leaks.into_iter().take(MAX_SUSPECTS);
        self.recalled = known.map(|one| (one.key.clone(), one)).collect();
    }

    /// Takes the apiserver's answers.
    pub(super) fn checked(&mut self, asked: BootTime, pods: &[PodCheck]) {
        let answers: Table<&PodUid, bool> =
            pods.iter().filter_map(|check| Some((&check.uid, check.exists?))).collect();
        for suspect in self.suspects.values_mut() {
            let Check::Asked(at) = suspect.check else { continue };
            let pod = suspect.asked_about.as_ref();
            let Some(exists) = pod.and_then(|uid| answers.get(uid)) else { continue };
            if asked >= at {
                suspect.check = Check::Answered { asked, exists: *exists };
            }
        }
    }

    /// A suspect waits for its time or for an answer.
    pub(super) fn is_waiting(&self) -> bool {
        self.suspects.values().any(|suspect| suspect.told.is_none())
    }

    /// All suspects, certain or not.
    pub(super) fn keys(&self) -> impl Iterator<Item = &LeakKey> {
        self.suspects.keys()
    }

    /// Those that have looked like a leak for so long, and are not certain (yet): all that
    /// is known of each.
    pub(super) fn suspected(
        &self,
        facts: &Facts<'_>,
        watched: Duration,
        at_least: Duration,
    ) -> Vec<Leak> {
        self.suspects
            .iter()
            .filter(|(_, suspect)| suspect.told.is_none())
            .filter(|(_, suspect)| watched.saturating_sub(suspect.from) >= at_least)
            .filter_map(|(key, suspect)| suspect.describe(facts, key))
            .collect()
    }

    /// Those that are certain.
    pub(super) fn told(&self) -> impl Iterator<Item = &Arc<Leak>> {
        self.suspects.values().filter_map(|suspect| Some(&suspect.told.as_ref()?.leak))
    }

    /// While nothing can be judged: what is certainly gone is gone all the same.
    pub(super) fn let_go(&mut self, facts: &Facts<'_>, said: &mut Vec<Observation>) {
        self.suspects.retain(|key, suspect| {
            let gone = is_gone(facts, key);
            if gone && let Some(told) = suspect.told.take() {
                said.push(Observation::LeakGone(told.leak));
            }
            !gone
        });
    }

    /// Judges, with all sources in sync. `watched`: the judges' clock.
    pub(super) fn judge(
        &mut self,
        facts: &Facts<'_>,
        watched: Duration,
        said: &mut Vec<Observation>,
    ) {
        let census = Census::of(facts);
        let mut found = suspects::all(facts, &census);
        let elapsed = watched.saturating_sub(self.watched);
        self.watched = watched;
        self.suspects.retain(|key, suspect| match found.remove(key) {
            Some(class) => {
                said.extend(suspect.turn_to(class, watched, facts.now).map(Observation::LeakGone));
                true
            }
            None if suspects::is_unseen(facts, &census, key) => {
                suspect.from += elapsed; // its time stands still
                true
            }
            None => {
                if let Some(told) = suspect.told.take() {
                    said.push(Observation::LeakGone(told.leak));
                }
                false
            }
        });
        for (key, class) in found {
            if self.suspects.len() >= MAX_SUSPECTS {
                self.refused += 1;
                continue;
            }
            let recalled = self.recalled.remove(&key);
            let suspect = Suspect {
                class,
                observed: recalled.as_ref().map_or(facts.now, |known| known.observed),
                since_start: recalled.as_ref().map_or(!self.opened, |known| known.since_start),
                first: facts.now,
                from: watched,
                due: None,
                check: Check::None,
                asked_about: None,
                doubt: match pod_of(facts, &key) {
                    Some(pod) if facts.object(&pod.uid).is_none() => Doubt::New,
                    _ => Doubt::None,
                },
                told: None,
            };
            self.suspects.insert(key, suspect);
        }
        self.opened = true;
        if watched >= RECALL_HOLDS {
            self.recalled.clear();
        }
        self.confirm(facts, &census, watched, said);
    }

    fn confirm(
        &mut self,
        facts: &Facts<'_>,
        census: &Census<'_>,
        watched: Duration,
        said: &mut Vec<Observation>,
    ) {
        let mut wanted: BTreeMap<PodUid, PodRef> = BTreeMap::new();
        let mut room = MAX_TOLD;
        let mut in_full = Shelves::of(self.told());
        let surveyed = facts.survey.map(|survey| survey.asked);
        for (key, suspect) in &mut self.suspects {
            if suspect.told.is_some() {
                let news = suspect.look_again(facts, key, &mut in_full);
                said.extend(news.map(Observation::LeakChanged));
                continue;
            }
            let threshold = match suspect.class {
                LeakClass::OrphanNetns if census.creates() => self.threshold.max(SETUP),
                _ => self.threshold,
            };
            // Of the host a look is needed that is younger than the suspicion.
            let seen_since = suspect.class.orphan().is_none()
                || surveyed.is_some_and(|asked| asked > suspect.first);
            let in_doubt = !seen_since || is_missing(facts, key);
            let needed = suspect.needs(key);
            let is_over = watched.saturating_sub(suspect.from) >= threshold;
            suspect.due = is_over.then(|| suspect.due.unwrap_or(facts.now));
            let is_due = is_over || (suspect.doubt == Doubt::New && needed == Some(false));
            if !is_due || in_doubt {
                continue;
            }
            let answer = match (needed, suspect.check) {
                (None, _) => true,
                (Some(needed), Check::Answered { asked, exists })
                    if facts.now < asked + CHECK_HOLDS =>
                {
                    let doubt = std::mem::replace(&mut suspect.doubt, Doubt::None);
                    let begins = exists != needed || doubt != Doubt::None;
                    if begins {
                        (suspect.from, suspect.check) = (watched, Check::None);
                    }
                    if exists != needed {
                        // The watch and the apiserver disagree: all begins anew.
                        suspect.doubt = Doubt::Contradicted;
                        self.contradicted += 1;
                    }
                    !begins
                }
                (Some(_), Check::Asked(at)) if facts.now < at + CHECK_LOST => false,
                (Some(_), _) => {
                    if wanted.len() < MAX_CHECKS
                        && let Some(pod) = pod_of(facts, key)
                    {
                        suspect.check = Check::Asked(facts.now);
                        suspect.asked_about = Some(pod.uid.clone());
                        wanted.insert(pod.uid.clone(), pod);
                    }
                    false
                }
            };
            if answer
                && suspect.due.is_some_and(|due| is_shown_since(facts, key, due))
                && room > 0
                && let Some(mut leak) = suspect.describe(facts, key)
            {
                room -= 1;
                if !in_full.take(leak.class) {
                    leak = in_short(leak);
                }
                let leak = Arc::new(leak);
                said.push(Observation::LeakFound(Arc::clone(&leak)));
                suspect.told = Some(Told { leak, looked: facts.now });
            }
        }
        if !wanted.is_empty() {
            said.push(Observation::PodsWanted(wanted.into_values().collect()));
        }
    }

    /// Numbers for the metrics.
    pub(super) fn gauges(&self) -> LeakGauges {
        let mut gauges = LeakGauges { contradicted: self.contradicted, ..LeakGauges::default() };
        for suspect in self.suspects.values() {
            let Some(told) = &suspect.told else {
                gauges.suspects += 1;
                continue;
            };
            let leak = &told.leak;
            *gauges.told.entry((leak.class, leak.cause.kind)).or_default() += 1;
            if let Some(reason) = leak.stuck {
                *gauges.stuck.entry(reason).or_default() += 1;
            }
            gauges.ips += leak.holds.ips.len();
        }
        gauges
    }

    /// How many suspects were refused for want of room, since the last call.
    pub(super) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }
}

impl Suspect {
    /// It looks like this now. Another kind of suspicion begins anew, and what was told of the old
    /// one is over; without a pod it is one, whatever of it is left.
    fn turn_to(&mut self, class: LeakClass, watched: Duration, now: BootTime) -> Option<Arc<Leak>> {
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
        (self.from, self.check) = (watched, Check::None);
        (self.observed, self.first, self.since_start) = (now, now, false);
        self.told.take().map(|told| told.leak)
    }

    /// What the apiserver must have said of its pod; `None`: it need not be asked, for the watch
    /// shows the object.
    fn needs(&self, key: &LeakKey) -> Option<bool> {
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

    /// A leak that was told: what is new about it.
    fn look_again(
        &mut self,
        facts: &Facts<'_>,
        key: &LeakKey,
        in_full: &mut Shelves,
    ) -> Option<Arc<Leak>> {
        let told = self.told.as_ref()?;
        if facts.now < told.looked + LOOK_AGAIN && told.leak.class == self.class {
            return None;
        }
        let mut now = self.describe(facts, key)?;
        if told.leak.evidence.is_empty() && !in_full.take(self.class) {
            now = in_short(now);
        }
        let news = changed(&told.leak, now);
        let told = self.told.as_mut()?;
        told.looked = facts.now;
        told.leak = Arc::new(news?);
        Some(Arc::clone(&told.leak))
    }

    fn describe(&self, facts: &Facts<'_>, key: &LeakKey) -> Option<Leak> {
        let mut dossier = Dossier::new(facts);
        if let Check::Answered { asked, exists } = self.check {
            let sentence = match exists {
                true => "the apiserver, asked itself, still has the pod",
                false => "the apiserver, asked itself, has no pod of this UID",
            };
            dossier.add(Some(asked), Source::Api, sentence);
        }
        let pod = pod_of(facts, key).filter(|pod| !pod.name.is_empty());
        let mut leak = Leak {
            class: self.class,
            key: key.clone(),
            pod,
            attempt: None,
            created: None,
            observed: facts.wall(self.observed),
            since_start: self.since_start,
            confirmed: facts.wall(facts.now),
            holds: Holds::default(),
            cause: LikelyCause { kind: LeakCause::Unknown, sentence: String::new() },
            stuck: None,
            evidence: Vec::new(),
            remedy: Vec::new(),
        };
        match key {
            LeakKey::Sandbox { id } => {
                let sandbox = facts.of.runtime.sandbox(id)?;
                leak.attempt = Some(sandbox.info.attempt);
                leak.created = Some(sandbox.info.created);
                leak.holds = dossier::holds(facts, sandbox);
                leak.cause = cause::of_sandbox(facts, self.class, sandbox, &mut dossier);
            }
            LeakKey::Pod { uid } => {
                dossier.object(uid);
                let (stuck, kind, sentence) = stuck::reason(facts, uid, &mut dossier);
                dossier.kubelet(stuck::deadline(facts, uid));
                leak.created = facts.object(uid)?.request().map(|request| request.asked_wall);
                leak.holds = facts
                    .sandboxes_of(uid)
                    .last()
                    .map_or_else(Holds::default, |last| dossier::holds(facts, last));
                leak.cause = LikelyCause { kind, sentence };
                leak.stuck = Some(stuck);
            }
            _ => cause::of_orphan(facts, &mut leak, &mut dossier),
        }
        leak.evidence = dossier.close();
        leak.remedy = remedy::of(&leak);
        Some(leak)
    }
}

/// The pod of a suspect, as far as it is known: of a cgroup only the UID is.
fn pod_of(facts: &Facts<'_>, key: &LeakKey) -> Option<PodRef> {
    let nameless =
        |uid: &PodUid| PodRef { namespace: String::new(), name: String::new(), uid: uid.clone() };
    match key {
        LeakKey::Sandbox { id } => Some(facts.of.runtime.sandbox(id)?.info.pod_ref()),
        LeakKey::Pod { uid } | LeakKey::PodCgroup { pod: uid, .. } => {
            let object = facts.object(uid).map(|object| PodRef {
                namespace: object.pod.namespace.clone(),
                name: object.pod.name.clone(),
                uid: uid.clone(),
            });
            Some(object.unwrap_or_else(|| nameless(uid)))
        }
        LeakKey::Shim { .. } | LeakKey::Netns { .. } => None,
    }
}

/// One of too many.
fn in_short(leak: Leak) -> Leak {
    let cause = LikelyCause { sentence: String::new(), ..leak.cause };
    Leak { cause, evidence: Vec::new(), remedy: Vec::new(), ..leak }
}

/// It may just have gone.
fn is_missing(facts: &Facts<'_>, key: &LeakKey) -> bool {
    let LeakKey::Sandbox { id } = key else { return false };
    facts.of.runtime.sandbox(id).is_some_and(Sandbox::is_missing)
}

/// The runtime, or a look at the host, has shown it after this moment: what either had shown before
/// may be gone. Of a pod the apiserver is asked itself.
fn is_shown_since(facts: &Facts<'_>, key: &LeakKey, due: BootTime) -> bool {
    match key {
        LeakKey::Sandbox { id } => {
            facts.of.runtime.sandbox(id).is_some_and(|sandbox| sandbox.last_listed() >= due)
        }
        LeakKey::Shim { .. } | LeakKey::Netns { .. } | LeakKey::PodCgroup { .. } => {
            facts.survey.is_some_and(|survey| survey.asked >= due)
        }
        LeakKey::Pod { .. } => true,
    }
}

/// What it names is no longer there, whatever else is or is not known.
fn is_gone(facts: &Facts<'_>, key: &LeakKey) -> bool {
    match key {
        LeakKey::Sandbox { id } => {
            facts.of.runtime.sandbox(id).is_none_or(|sandbox| sandbox.removed.is_some())
        }
        LeakKey::Pod { uid } => facts.object(uid).is_none_or(|object| object.gone.is_some()),
        // Only the next look at the host can tell.
        LeakKey::Shim { .. } | LeakKey::Netns { .. } | LeakKey::PodCgroup { .. } => false,
    }
}

/// Room for leaks that are told in full: sandboxes do not take it from orphans and pods.
#[derive(Debug)]
struct Shelves {
    sandboxes: usize,
    orphans: usize,
    pods: usize,
}

impl Shelves {
    /// What is left of it.
    fn of<'a>(told: impl Iterator<Item = &'a Arc<Leak>>) -> Self {
        let (sandboxes, orphans, pods) = (MAX_IN_FULL, MAX_IN_FULL, MAX_IN_FULL);
        let mut room = Self { sandboxes, orphans, pods };
        for leak in told.filter(|leak| !leak.evidence.is_empty()) {
            room.take(leak.class);
        }
        room
    }

    /// Takes room for one, if there is some.
    fn take(&mut self, class: LeakClass) -> bool {
        let room = match class {
            class if class.is_sandbox() => &mut self.sandboxes,
            LeakClass::StuckTerminating => &mut self.pods,
            _ => &mut self.orphans,
        };
        let some = *room > 0;
        *room = room.saturating_sub(1);
        some
    }
}

/// The leak as it is now, if that is news. What was known once stays known, though its sources may
/// have forgotten it; other processes in it are no news.
fn changed(before: &Leak, mut now: Leak) -> Option<Leak> {
    let known = before.cause.kind;
    let same_matter = (now.class, now.stuck) == (before.class, before.stuck);
    // Whether the kubelet runs is known at any time; of all else the sources may forget.
    let forgotten = now.cause.kind == LeakCause::Unknown && known != LeakCause::KubeletDown;
    if same_matter && (forgotten || now.cause.kind == known) {
        now.cause = before.cause.clone();
    }
    now.confirmed = before.confirmed;
    let was_in_short = before.evidence.is_empty();
    let holds = |leak: &Leak| Holds { pids: Vec::new(), ..leak.holds.clone() };
    let is_same = (now.class, &now.cause, now.stuck) == (before.class, &before.cause, before.stuck)
        && holds(&now) == holds(before)
        && was_in_short == now.evidence.is_empty();
    if is_same {
        return None;
    }
    if now.evidence.is_empty() {
        return Some(now);
    }
    now.remedy = remedy::of(&now);
    let known = |one: &Evidence| {
        before.evidence.iter().any(|old| (old.source, &old.sentence) == (one.source, &one.sentence))
    };
    let news: Vec<_> = now.evidence.iter().filter(|one| !known(one)).cloned().collect();
    now.evidence = before.evidence.iter().cloned().chain(news).take(MAX_EVIDENCE).collect();
    now.evidence.sort_by_key(|one| (one.at.is_none(), one.at));
    Some(now)
}
