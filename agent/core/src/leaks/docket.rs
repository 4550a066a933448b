//! The register of suspects, from the first suspicion to the certain leak and its end.

use super::{
    cause,
    classify::{self, Classes},
    dossier,
    dossier::Dossier,
    facts::Facts,
    netns::{self, Namespaces},
    remedy, stuck,
};
use crate::{
    ids::PodUid,
    input::PodCheck,
    leak::{
        Evidence, Holds, Judgement, Leak, LeakCause, LeakClass, LeakKey, LikelyCause, Recollection,
        StuckReason,
    },
    observation::{PodRef, Source},
    output::{Outputs, Report, Request},
    runtime::Sandbox,
    table::Table,
    time::BootTime,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

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
    /// Those of them that only a look at the host shows.
    orphans: BTreeSet<LeakKey>,
    recalled: Table<LeakKey, Recollection>,
    /// The judges' clock when they were judged last.
    watched: Duration,
    seen: Seen,
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

/// What was looked at before: a thing of that kind that is found now began under the agent's eyes.
#[derive(Clone, Debug, Default)]
struct Seen {
    pods: bool,
    shims: bool,
    pod_cgroups: bool,
    /// Inodes of the network namespaces that no process was in when they were first looked at: whose
    /// they are takes an answer of the runtime about each sandbox.
    unused: Option<BTreeSet<u64>>,
    /// When the last look at the host that is counted in was taken.
    surveyed: Option<BootTime>,
}

impl Seen {
    fn is_since_start(&self, facts: &Facts<'_>, key: &LeakKey, class: LeakClass) -> bool {
        match key {
            // Whether it is open the runtime has to be asked. It had stopped before the first list.
            LeakKey::Sandbox { id } if class == LeakClass::NetnsOpen => {
                let sandbox = facts.of.runtime.sandbox(id);
                let stopped = sandbox.and_then(|sandbox| sandbox.stopped);
                stopped.is_some_and(|stopped| stopped.after == BootTime(0))
            }
            LeakKey::Sandbox { .. } | LeakKey::Pod { .. } => !self.pods,
            LeakKey::Shim { .. } => !self.shims,
            LeakKey::PodCgroup { .. } => !self.pod_cgroups,
            LeakKey::Netns { inode, .. } => {
                self.unused.as_ref().is_none_or(|unused| unused.contains(inode))
            }
        }
    }

    fn note(&mut self, facts: &Facts<'_>) {
        self.pods = true;
        let news = facts.survey.filter(|survey| Some(survey.asked) != self.surveyed);
        let Some(survey) = news else { return };
        self.surveyed = Some(survey.asked);
        self.shims |= survey.shims.is_some();
        self.pod_cgroups |= survey.pod_cgroups.is_some();
        if survey.netns.is_some() {
            let now = netns::unused(facts).map(|(_, inode)| inode);
            match &mut self.unused {
                None => self.unused = Some(now.collect()),
                Some(unused) if !unused.is_empty() => {
                    let now: BTreeSet<u64> = now.collect();
                    unused.retain(|inode| now.contains(inode));
                }
                Some(_) => {}
            }
        }
    }
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
    /// With its evidence, and what to do.
    in_full: bool,
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
            orphans: BTreeSet::new(),
            recalled: Table::default(),
            watched: Duration::ZERO,
            seen: Seen::default(),
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
            .filter_map(|(key, suspect)| suspect.describe(facts, key, true))
            .collect()
    }

    /// Those that are certain.
    pub(super) fn told(&self) -> impl Iterator<Item = &Arc<Leak>> {
        self.suspects.values().filter_map(|suspect| Some(&suspect.told.as_ref()?.leak))
    }

    /// While nothing can be judged: what of these pods is certainly gone is gone all the same.
    pub(super) fn let_go(
        &mut self,
        facts: &Facts<'_>,
        changed: &BTreeSet<PodUid>,
        out: &mut Outputs,
    ) {
        let keys: BTreeSet<LeakKey> = changed
            .iter()
            .flat_map(|uid| {
                let sandboxes = facts.of.runtime.sandboxes_of(uid);
                let keys = sandboxes.map(|s| LeakKey::Sandbox { id: s.info.id.clone() });
                keys.chain([LeakKey::Pod { uid: uid.clone() }])
            })
            .filter(|key| is_gone(facts, key))
            .collect();
        keys.iter().for_each(|key| self.drop(key, out));
    }

    /// It is no longer a suspect.
    fn drop(&mut self, key: &LeakKey, out: &mut Outputs) {
        self.orphans.remove(key);
        let told = self.suspects.remove(key).and_then(|suspect| suspect.told);
        out.reports.extend(told.map(|told| Report::LeakResolved(told.leak)));
    }

    /// Judges, with all sources in sync. `watched`: the judges' clock; `classes`: what the things that
    /// were looked at are now; `orphans`: all that the host keeps and nobody knows. Returns the pods of
    /// which something was refused for want of room: there may be some later.
    pub(super) fn judge(
        &mut self,
        facts: &Facts<'_>,
        namespaces: &Namespaces<'_>,
        watched: Duration,
        classes: &Classes,
        mut orphans: BTreeMap<LeakKey, LeakClass>,
        out: &mut Outputs,
    ) -> BTreeSet<PodUid> {
        let elapsed = watched.saturating_sub(self.watched);
        self.watched = watched;
        let mut gone = Vec::new();
        for key in &self.orphans {
            if orphans.remove(key).is_some() {
                continue;
            }
            match self.suspects.get_mut(key) {
                Some(suspect) if classify::is_unseen(facts, namespaces, key) => {
                    suspect.from += elapsed; // its time stands still
                }
                _ => gone.push(key.clone()),
            }
        }
        gone.iter().for_each(|key| self.drop(key, out));
        let mut new: Vec<(LeakKey, LeakClass)> = Vec::new();
        for (key, class) in classes {
            match (self.suspects.get_mut(key), class) {
                (Some(suspect), Some(class)) => {
                    let gone = suspect.turn_to(*class, watched, facts.now);
                    out.reports.extend(gone.map(Report::LeakResolved));
                }
                (Some(_), None) => self.drop(key, out),
                (None, Some(class)) => new.push((key.clone(), *class)),
                (None, None) => {}
            }
        }
        let mut refused = BTreeSet::new();
        for (key, class) in new.into_iter().chain(orphans) {
            if self.suspects.len() < MAX_SUSPECTS {
                self.add(facts, watched, key, class);
            } else {
                self.refused += 1;
                refused.extend(pod_uid(facts, &key).cloned());
            }
        }
        self.seen.note(facts);
        if watched >= RECALL_HOLDS {
            self.recalled.clear();
        }
        self.confirm(facts, namespaces, watched, out);
        refused
    }

    fn add(&mut self, facts: &Facts<'_>, watched: Duration, key: LeakKey, class: LeakClass) {
        let recalled = self.recalled.remove(&key);
        let suspect = Suspect {
            class,
            observed: recalled.as_ref().map_or(facts.now, |known| known.observed),
            since_start: recalled.as_ref().map_or_else(
                || self.seen.is_since_start(facts, &key, class),
                |known| known.since_start,
            ),
            first: facts.now,
            from: watched,
            due: None,
            check: Check::None,
            asked_about: None,
            doubt: match pod_uid(facts, &key) {
                Some(uid) if facts.object(uid).is_none() => Doubt::New,
                _ => Doubt::None,
            },
            told: None,
        };
        if suspect.class.orphan().is_some() {
            self.orphans.insert(key.clone());
        }
        self.suspects.insert(key, suspect);
    }

    fn confirm(
        &mut self,
        facts: &Facts<'_>,
        namespaces: &Namespaces<'_>,
        watched: Duration,
        out: &mut Outputs,
    ) {
        let mut wanted: BTreeMap<PodUid, PodRef> = BTreeMap::new();
        let mut room = MAX_TOLD;
        let mut in_full = Shelves::of(self.suspects.values().filter_map(|s| s.told.as_ref()));
        let surveyed = facts.survey.map(|survey| survey.asked);
        // There may be thousands: what costs a look-up comes last.
        for (key, suspect) in &mut self.suspects {
            if suspect.told.is_some() {
                let news = suspect.look_again(facts, key, &mut in_full);
                out.reports.extend(news.map(Report::LeakChanged));
                continue;
            }
            let threshold = match suspect.class {
                LeakClass::OrphanNetns if namespaces.creates() => self.threshold.max(SETUP),
                _ => self.threshold,
            };
            let needed = suspect.needs(key);
            let is_over = watched.saturating_sub(suspect.from) >= threshold;
            suspect.due = is_over.then(|| suspect.due.unwrap_or(facts.now));
            let is_due = is_over || (suspect.doubt == Doubt::New && needed == Some(false));
            let next = if is_due { suspect.next(facts.now, needed) } else { Next::Wait };
            let has_room = match next {
                Next::Wait => false,
                Next::Ask => wanted.len() < MAX_CHECKS,
                Next::Begin { .. } => true,
                Next::Tell => room > 0,
            };
            // Of the host a look is needed that is younger than the suspicion.
            let seen_since = suspect.class.orphan().is_none()
                || surveyed.is_some_and(|asked| asked > suspect.first);
            if !has_room || !seen_since || is_missing(facts, key) {
                continue;
            }
            match next {
                Next::Wait => {}
                Next::Ask => {
                    if let Some(pod) = pod_of(facts, key) {
                        suspect.check = Check::Asked(facts.now);
                        suspect.asked_about = Some(pod.uid.clone());
                        wanted.insert(pod.uid.clone(), pod);
                    }
                }
                Next::Begin { doubt } => {
                    (suspect.from, suspect.check, suspect.doubt) = (watched, Check::None, doubt);
                    self.contradicted += u64::from(doubt == Doubt::Contradicted);
                }
                Next::Tell => {
                    if suspect.due.is_some_and(|due| is_shown_since(facts, key, due)) {
                        room -= usize::from(suspect.tell(facts, key, &mut in_full, out));
                    }
                }
            }
        }
        if !wanted.is_empty() {
            out.request(Request::VerifyPods(wanted.into_values().collect()));
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

/// What is to be done about a suspect whose time has come.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// An answer is under way.
    Wait,
    /// The apiserver is to be asked.
    Ask,
    /// Its time begins again: the apiserver's answer was the first certain one about it, or
    /// contradicts the watch.
    Begin { doubt: Doubt },
    /// It is a leak.
    Tell,
}

impl Suspect {
    fn next(&self, now: BootTime, needed: Option<bool>) -> Next {
        match (needed, self.check) {
            (None, _) => Next::Tell,
            (Some(needed), Check::Answered { asked, exists }) if now < asked + CHECK_HOLDS => {
                match (exists == needed, self.doubt) {
                    (true, Doubt::None) => Next::Tell,
                    (true, _) => Next::Begin { doubt: Doubt::None },
                    (false, _) => Next::Begin { doubt: Doubt::Contradicted },
                }
            }
            (Some(_), Check::Asked(at)) if now < at + CHECK_LOST => Next::Wait,
            (Some(_), _) => Next::Ask,
        }
    }

    /// True: it was told.
    fn tell(
        &mut self,
        facts: &Facts<'_>,
        key: &LeakKey,
        room: &mut Shelves,
        out: &mut Outputs,
    ) -> bool {
        let in_full = room.has(self.class);
        let Some(leak) = self.describe(facts, key, in_full) else { return false };
        room.take(self.class);
        let leak = Arc::new(leak);
        out.report(Report::LeakOpened(Arc::clone(&leak)));
        self.told = Some(Told { leak, looked: facts.now, in_full });
        true
    }

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
        let promoted = !told.in_full && in_full.take(self.class);
        let now = self.describe(facts, key, false)?;
        let is_news = promoted || is_news(&told.leak, &now);
        let in_full = told.in_full || promoted;
        let now = match is_news && in_full {
            true => self.describe(facts, key, true)?,
            false => now,
        };
        let told = self.told.as_mut()?;
        told.looked = facts.now;
        if !is_news {
            return None;
        }
        (told.leak, told.in_full) = (Arc::new(changed(&told.leak, now)), in_full);
        Some(Arc::clone(&told.leak))
    }

    /// All that is known of it; not `in_full`: without the evidence, and what to do.
    fn describe(&self, facts: &Facts<'_>, key: &LeakKey, in_full: bool) -> Option<Leak> {
        let mut dossier = Dossier::new(facts, in_full);
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
                    .listed_of(uid)
                    .next_back()
                    .map_or_else(Holds::default, |last| dossier::holds(facts, last));
                leak.cause = LikelyCause { kind, sentence };
                leak.stuck = Some(stuck);
            }
            _ => cause::of_orphan(facts, &mut leak, &mut dossier),
        }
        if in_full {
            leak.evidence = dossier.close();
            leak.remedy = remedy::of(&leak);
        } else {
            leak.cause.sentence = String::new();
        }
        Some(leak)
    }
}

/// The UID of a suspect's pod.
fn pod_uid<'a>(facts: &Facts<'a>, key: &'a LeakKey) -> Option<&'a PodUid> {
    match key {
        LeakKey::Sandbox { id } => Some(&facts.of.runtime.sandbox(id)?.info.pod),
        LeakKey::Pod { uid } | LeakKey::PodCgroup { pod: uid, .. } => Some(uid),
        LeakKey::Shim { .. } | LeakKey::Netns { .. } => None,
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
    fn of<'a>(told: impl Iterator<Item = &'a Told>) -> Self {
        let (sandboxes, orphans, pods) = (MAX_IN_FULL, MAX_IN_FULL, MAX_IN_FULL);
        let mut room = Self { sandboxes, orphans, pods };
        for told in told.filter(|told| told.in_full) {
            room.take(told.leak.class);
        }
        room
    }

    fn of_class(&mut self, class: LeakClass) -> &mut usize {
        match class {
            class if class.is_sandbox() => &mut self.sandboxes,
            LeakClass::StuckTerminating => &mut self.pods,
            _ => &mut self.orphans,
        }
    }

    /// There is room for one.
    fn has(&mut self, class: LeakClass) -> bool {
        *self.of_class(class) > 0
    }

    /// Takes room for one, if there is some.
    fn take(&mut self, class: LeakClass) -> bool {
        let some = self.has(class);
        let room = self.of_class(class);
        *room = room.saturating_sub(1);
        some
    }
}

/// The cause that is known stays known, though its sources may have forgotten it.
fn keeps_cause(before: &Leak, now: &Leak) -> bool {
    let known = before.cause.kind;
    let same_matter = (now.class, now.stuck) == (before.class, before.stuck);
    // Whether the kubelet runs is known at any time; of all else the sources may forget.
    let forgotten = now.cause.kind == LeakCause::Unknown && known != LeakCause::KubeletDown;
    same_matter && (forgotten || now.cause.kind == known)
}

/// The leak is another than before. Other processes in it are no news.
fn is_news(before: &Leak, now: &Leak) -> bool {
    let (held, holds) = (&before.holds, &now.holds);
    let is_same = (&held.netns, &held.ips, &held.cgroup, &held.containers)
        == (&holds.netns, &holds.ips, &holds.cgroup, &holds.containers);
    !keeps_cause(before, now) || !is_same
}

/// The leak as it is now. What was known once stays known.
fn changed(before: &Leak, mut now: Leak) -> Leak {
    if keeps_cause(before, &now) {
        now.cause = before.cause.clone();
    }
    now.confirmed = before.confirmed;
    if now.evidence.is_empty() {
        return now;
    }
    now.remedy = remedy::of(&now);
    let known = |one: &Evidence| {
        before.evidence.iter().any(|old| (old.source, &old.sentence) == (one.source, &one.sentence))
    };
    let news: Vec<_> = now.evidence.iter().filter(|one| !known(one)).cloned().collect();
    now.evidence = before.evidence.iter().cloned().chain(news).take(MAX_EVIDENCE).collect();
    now.evidence.sort_by_key(|one| (one.at.is_none(), one.at));
    now
}
