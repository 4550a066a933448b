//! The ground truth about leaks: what the lab itself knows, over its whole life, of the objects of its
//! pods, the sandboxes that the runtime lists, the shims that run and the pods' cgroups. A leak that
//! the agent reports is held against it.
//!
//! Wherever the lab cannot know a moment exactly, the ground truth takes the one that is best for the
//! agent: it finds a report false only if no course of events could have made it true, however slow
//! the machine was.

use coroner_core::{
    leak::{Leak, LeakClass, LeakKey},
    time::WallTime,
};
use coroner_cri_api::v1::ListPodSandboxRequest;
use coroner_lab_cluster::{
    Cluster,
    apiserver::{PodObject, Store},
    kubelet::{Cri, cgroup::Cgroups},
};
use coroner_workload::page::boot_now;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::task::JoinHandle;

/// How often the lab looks at the runtime's list and at the host.
const LOOK: Duration = Duration::from_millis(250);
/// An outage of the runtime that is no longer than this may pass between two calls of the agent's.
const UNNOTICED: Duration = Duration::from_secs(3);
/// What a moment may be off by that was converted from the agent's wall clock.
const CLOCKS: Duration = Duration::from_millis(100);

/// Whether something that was reported as leaked was leaked; the evidence in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Truth {
    Leaked(String),
    /// It was not, and the report is false.
    NotLeaked(String),
}

/// The record, while it is kept.
pub struct GroundTruth {
    store: Store,
    record: Arc<Mutex<TruthRecord>>,
    keeping: JoinHandle<()>,
}

impl GroundTruth {
    /// Of this lab, from now on: start it before the first pod is made. `threshold`: the agent's.
    pub fn of(lab: &Cluster, threshold: Duration) -> Self {
        let record = Arc::new(Mutex::new(TruthRecord::new(threshold)));
        let (cri, cgroups) = (lab.hand().cri.clone(), lab.hand().cgroups.clone());
        let keeping = tokio::spawn(keep(Arc::clone(&record), cri, cgroups));
        Self { store: lab.store(), record, keeping }
    }

    /// What is known of something that the agent reports as leaked.
    ///
    /// `agents`: when agents were started that count the threshold from then on again, ns of CLOCK_BOOTTIME.
    pub fn of_leak(&self, leak: &Leak, agents: &[u64]) -> Truth {
        let record = self.record();
        record.of_leak(&leak.key, leak.class, boot_of(leak.confirmed), agents, &|uid| {
            self.store.pod_object(uid)
        })
    }

    /// It was leaked, and has gone since: the lab's own collector was late.
    pub fn was_leaked_for_a_while(&self, leak: &Leak) -> bool {
        let gone = match &leak.key {
            LeakKey::Sandbox { id } => {
                let known = Thing::Sandbox(id.as_str().into());
                self.record().things.get(&known).is_some_and(|there| there.missed.is_some())
            }
            _ => false,
        };
        gone && matches!(self.of_leak(leak, &[]), Truth::Leaked(_))
    }

    fn record(&self) -> MutexGuard<'_, TruthRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GroundTruth {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

/// The moment at which the wall clock had this reading, ns of CLOCK_BOOTTIME.
fn boot_of(wall: WallTime) -> u64 {
    let now = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
    boot_now().saturating_add_signed(wall.0.saturating_sub(now))
}

async fn keep(record: Arc<Mutex<TruthRecord>>, mut cri: Cri, cgroups: Cgroups) {
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let asked = boot_now();
        let host = tokio::task::spawn_blocking({
            let cgroups = cgroups.clone();
            move || on_the_host(&cgroups)
        });
        let listed = cri.list_pod_sandbox(ListPodSandboxRequest::default()).await;
        let listed = listed.ok().map(|listed| {
            let all = listed.into_inner().items;
            let pod = |one: &coroner_cri_api::v1::PodSandbox| {
                one.metadata.as_ref().map(|of| of.uid.clone()).unwrap_or_default()
            };
            all.iter().map(|one| (one.id.clone(), (pod(one), one.created_at))).collect()
        });
        let Ok(host) = host.await else { return };
        record.lock().unwrap_or_else(PoisonError::into_inner).looked(Look {
            asked,
            answered: boot_now(),
            listed,
            host,
        });
    }
}

/// Shims by pid and start time, and pods' cgroups.
fn on_the_host(cgroups: &Cgroups) -> BTreeMap<Thing, String> {
    let mut things: BTreeMap<Thing, String> =
        cgroups.pods().into_iter().map(|uid| (Thing::Cgroup(uid.clone()), uid)).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let text = |file: &str| fs::read(process.path().join(file)).unwrap_or_default();
        if text("comm").starts_with(b"containerd-shim")
            && let Some(started) = started(&String::from_utf8_lossy(&text("stat")))
        {
            let line = String::from_utf8_lossy(&text("cmdline")).into_owned();
            things.insert(Thing::Shim(pid, started), line);
        }
    }
    things
}

/// A process' start time, clock ticks: field 22 of /proc/PID/stat, whose second may have spaces.
fn started(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Something that can be leaked.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Thing {
    /// By its id.
    Sandbox(String),
    /// By its pid and start time.
    Shim(u32, u64),
    /// By the UID of its pod.
    Cgroup(String),
}

/// When a thing was there. Times are ns of CLOCK_BOOTTIME.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Presence {
    /// The UID of a sandbox's or cgroup's pod, a shim's command line.
    of: String,
    /// When the runtime made a sandbox, by its own clock.
    created: i64,
    /// It was not there yet: it may have come right afterwards.
    after: u64,
    /// It was last seen by a look that began then.
    last: u64,
    /// A look that ended then was the first not to see it.
    missed: Option<u64>,
}

/// What one look saw.
struct Look {
    asked: u64,
    answered: u64,
    /// Sandboxes by id, with the UID of the pod and the time of creation; `None`: no answer.
    listed: Option<HashMap<String, (String, i64)>>,
    host: BTreeMap<Thing, String>,
}

/// All that was seen. Times are ns of CLOCK_BOOTTIME.
#[derive(Debug)]
struct TruthRecord {
    threshold: Duration,
    things: BTreeMap<Thing, Presence>,
    /// When the last look began that the runtime answered, and the last at all.
    answered: u64,
    looked: u64,
    /// When the runtime did not answer, the shortest that this can have been; the oldest first.
    outages: Vec<(u64, u64)>,
}

impl TruthRecord {
    fn new(threshold: Duration) -> Self {
        Self { threshold, things: BTreeMap::new(), answered: 0, looked: 0, outages: Vec::new() }
    }

    fn looked(&mut self, look: Look) {
        let Look { asked, answered, listed, host } = look;
        let (last_list, last_look) = (self.answered, self.looked);
        self.looked = asked;
        let seen: BTreeSet<Thing> = host.keys().cloned().collect();
        for (thing, of) in host {
            self.saw(thing, of, 0, last_look, asked);
        }
        self.missed(|thing| matches!(thing, Thing::Sandbox(_)) || seen.contains(thing), answered);
        let Some(listed) = listed else {
            // It may have answered until this look began, and from the next one on.
            match self.outages.last_mut().filter(|outage| outage.0 > last_list) {
                Some(outage) => outage.1 = answered,
                None => self.outages.push((asked, answered)),
            }
            return;
        };
        self.answered = asked;
        let ids: BTreeSet<Thing> = listed.keys().cloned().map(Thing::Sandbox).collect();
        for (id, (pod, created)) in listed {
            self.saw(Thing::Sandbox(id), pod, created, last_list, asked);
        }
        self.missed(|thing| !matches!(thing, Thing::Sandbox(_)) || ids.contains(thing), answered);
    }

    fn saw(&mut self, thing: Thing, of: String, created: i64, after: u64, asked: u64) {
        let new = || Presence { of, created, after, last: asked, missed: None };
        let known = self.things.entry(thing).or_insert_with(new);
        (known.last, known.missed) = (asked, None);
    }

    /// All that is not there any more.
    fn missed(&mut self, is_there: impl Fn(&Thing) -> bool, answered: u64) {
        for (_, gone) in self.things.iter_mut().filter(|(thing, _)| !is_there(thing)) {
            gone.missed.get_or_insert(answered);
        }
    }

    fn of_leak(
        &self,
        key: &LeakKey,
        class: LeakClass,
        confirmed: u64,
        agents: &[u64],
        object: &dyn Fn(&str) -> Option<PodObject>,
    ) -> Truth {
        match self.left_since(key, class, object) {
            Ok(left) => self.for_the_threshold(&left, confirmed, agents),
            Err(why) => Truth::NotLeaked(why),
        }
    }

    /// Since when it may have been leaked.
    fn left_since(
        &self,
        key: &LeakKey,
        class: LeakClass,
        object: &dyn Fn(&str) -> Option<PodObject>,
    ) -> Result<LeakedSince, String> {
        let without_pod = |uid: &str| match object(uid) {
            None => Ok((0, "its pod never had an object".to_owned())),
            Some(PodObject { gone: Some(at), .. }) => {
                Ok((at, format!("its pod's object went at {}", secs(at))))
            }
            Some(_) => Err("its pod's object exists".to_owned()),
        };
        match key {
            LeakKey::Sandbox { id } => {
                let thing = Thing::Sandbox(id.as_str().into());
                let there = self.presence(&thing, "the runtime has never listed it")?;
                let (since, why) = match class {
                    LeakClass::NotreadyNoPod
                    | LeakClass::ReadyNoPod
                    | LeakClass::NotreadyWithContainers => without_pod(&there.of)?,
                    LeakClass::NotreadySuperseded | LeakClass::DuplicateReady => {
                        let newer = self.sandboxes_of(&there.of);
                        let newer = newer.filter(|other| other.created > there.created);
                        let since = newer.map(|other| other.after).min();
                        let since = since.ok_or("its pod has no newer sandbox")?;
                        (since, format!("its pod has a newer sandbox since {}", secs(since)))
                    }
                    other => return Err(format!("the lab does not see {other}")),
                };
                Ok(there.left_since(since, why))
            }
            LeakKey::Shim { pid, started, id } => {
                let there = self.presence(&Thing::Shim(*pid, *started), "no such shim was seen")?;
                if !there.of.contains(id.as_str()) {
                    return Err(format!("that shim runs {:?}", there.of));
                }
                let sandbox = self.things.get(&Thing::Sandbox(id.clone()));
                let (listed, why) = match sandbox {
                    Some(sandbox) if sandbox.missed.is_none() => {
                        return Err("the runtime lists its sandbox".to_owned());
                    }
                    Some(sandbox) => {
                        let last = sandbox.last;
                        (last, format!("the runtime listed its sandbox last at {}", secs(last)))
                    }
                    None => (0, "the runtime has never listed its sandbox".to_owned()),
                };
                Ok(there.left_since(listed, why))
            }
            LeakKey::PodCgroup { pod, .. } => {
                let uid = pod.as_str();
                let there = self.presence(&Thing::Cgroup(uid.into()), "no such cgroup was seen")?;
                let (gone, why) = without_pod(uid)?;
                if self.sandboxes_of(uid).any(|sandbox| sandbox.missed.is_none()) {
                    return Err("the runtime lists a sandbox of its pod".to_owned());
                }
                let listed = self.sandboxes_of(uid).map(|sandbox| sandbox.last).max().unwrap_or(0);
                Ok(there.left_since(gone.max(listed), why))
            }
            LeakKey::Pod { uid } => {
                let object = object(uid.as_str()).ok_or("it never had an object")?;
                let deadline = object.deadline.ok_or("nobody deletes it")?;
                let why = format!("its grace was over at {}", secs(deadline));
                Ok(LeakedSince { last: None, gone: object.gone, since: deadline, why })
            }
            LeakKey::Netns { .. } => Err("the lab does not see network namespaces".to_owned()),
        }
    }

    fn presence(&self, thing: &Thing, otherwise: &str) -> Result<&Presence, String> {
        self.things.get(thing).ok_or_else(|| otherwise.to_owned())
    }

    fn sandboxes_of(&self, uid: &str) -> impl Iterator<Item = &Presence> {
        self.things
            .iter()
            .filter(move |(thing, there)| matches!(thing, Thing::Sandbox(_)) && there.of == uid)
            .map(|(_, there)| there)
    }

    /// Whether it was leaked for the agent's threshold when the agent was certain of it: nothing
    /// that an earlier agent had counted counts, nor does an outage of the runtime that the agent
    /// must have noticed.
    fn for_the_threshold(&self, left: &LeakedSince, confirmed: u64, agents: &[u64]) -> Truth {
        let agent = agents.iter().filter(|start| **start <= confirmed).max();
        let since = left.since.max(agent.copied().unwrap_or(0));
        let earliest = since + nanos(self.threshold.saturating_sub(CLOCKS));
        let away = self.outages.iter().map(|(from, to)| {
            let within = (*to).min(confirmed).saturating_sub((*from).max(since));
            within.saturating_sub(nanos(UNNOTICED))
        });
        let seen = match (left.last, left.gone) {
            (_, Some(gone)) => format!("; it had gone by {}", secs(gone)),
            (Some(last), None) => format!("; it was last seen at {}", secs(last)),
            (None, None) => String::new(),
        };
        let text = format!("{}{seen}; reported at {}", left.why, secs(confirmed));
        if left.gone.is_some_and(|gone| gone < earliest) {
            Truth::NotLeaked(format!("it went before the threshold had passed: {text}"))
        } else if confirmed < earliest + away.sum::<u64>() {
            Truth::NotLeaked(format!("the threshold had not passed: {text}"))
        } else {
            Truth::Leaked(text)
        }
    }
}

impl Presence {
    fn left_since(&self, since: u64, why: String) -> LeakedSince {
        LeakedSince { last: Some(self.last), gone: self.missed, since: since.max(self.after), why }
    }
}

/// Something that is, or was, there without what it belongs to.
#[derive(Debug)]
struct LeakedSince {
    last: Option<u64>,
    /// It had gone by then.
    gone: Option<u64>,
    /// The earliest that it may have been.
    since: u64,
    why: String,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A moment for a person: seconds since the boot.
fn secs(at: u64) -> String {
    format!("{:.1} s", at as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_core::ids::{CgroupId, PodUid, SandboxId};

    const S: u64 = 1_000_000_000;

    fn record() -> TruthRecord {
        TruthRecord::new(Duration::from_secs(4))
    }

    /// A look at this second; sandboxes are of the pod `pod`, and made at the second in their name.
    fn look(record: &mut TruthRecord, at: u64, sandboxes: &[&str], host: &[(Thing, &str)]) {
        let listed = sandboxes.iter().map(|id| {
            let made = id.trim_start_matches(char::is_alphabetic).parse().unwrap();
            ((*id).to_owned(), ("pod".to_owned(), made))
        });
        let host = host.iter().map(|(thing, of)| (thing.clone(), (*of).to_owned())).collect();
        let (asked, answered) = (at * S, at * S);
        record.looked(Look { asked, answered, listed: Some(listed.collect()), host });
    }

    fn fails(record: &mut TruthRecord, at: u64) {
        let (asked, answered) = (at * S, at * S);
        record.looked(Look { asked, answered, listed: None, host: BTreeMap::new() });
    }

    fn sandbox(id: &str) -> LeakKey {
        LeakKey::Sandbox { id: SandboxId::new(id) }
    }

    fn object(deadline: Option<u64>, gone: Option<u64>) -> Option<PodObject> {
        Some(PodObject { deadline: deadline.map(|at| at * S), gone: gone.map(|at| at * S) })
    }

    /// The evidence, if it was leaked.
    fn of(
        record: &TruthRecord,
        key: &LeakKey,
        class: LeakClass,
        confirmed: u64,
        object: Option<PodObject>,
    ) -> Result<String, String> {
        of_agents(record, &[], key, class, confirmed, object)
    }

    fn of_agents(
        record: &TruthRecord,
        agents: &[u64],
        key: &LeakKey,
        class: LeakClass,
        confirmed: u64,
        object: Option<PodObject>,
    ) -> Result<String, String> {
        match record.of_leak(key, class, confirmed * S, agents, &|_| object) {
            Truth::Leaked(why) => Ok(why),
            Truth::NotLeaked(why) => Err(why),
        }
    }

    #[test]
    fn what_an_earlier_fault_left_is_known_however_much_later_it_is_reported() {
        let mut record = record();
        for at in 1..200 {
            look(&mut record, at, &["s1"], &[]);
        }
        let gone = object(None, Some(3));
        let why = of(&record, &sandbox("s1"), LeakClass::ReadyNoPod, 190, gone).unwrap();
        assert_eq!(
            why,
            "its pod's object went at 3.0 s; it was last seen at 199.0 s; reported at 190.0 s"
        );
        let why = of(&record, &sandbox("s1"), LeakClass::ReadyNoPod, 190, None).unwrap();
        assert!(why.starts_with("its pod never had an object"), "{why}");
    }

    #[test]
    fn a_report_while_the_object_exists_or_before_the_threshold_is_false() {
        let mut record = record();
        for at in 1..20 {
            look(&mut record, at, if at < 9 { &[] } else { &["s1"] }, &[]);
        }
        let class = LeakClass::NotreadyNoPod;
        let at =
            |confirmed, gone| of(&record, &sandbox("s1"), class, confirmed, object(None, gone));
        assert_eq!(at(15, None).unwrap_err(), "its pod's object exists");
        assert!(at(13, Some(10)).unwrap_err().starts_with("the threshold had not passed"));
        assert!(at(9, Some(10)).is_err());
        assert!(at(14, Some(10)).is_ok());
        let unknown = of(&record, &sandbox("s2"), class, 15, object(None, Some(1)));
        assert_eq!(unknown.unwrap_err(), "the runtime has never listed it");
        let young = |at| of(&record, &sandbox("s1"), class, at, None);
        assert!(young(11).is_err() && young(12).is_ok(), "it was made after 8 s");
    }

    #[test]
    fn what_went_before_the_threshold_had_passed_was_not_leaked() {
        let mut record = record();
        look(&mut record, 1, &["s1", "s2"], &[]);
        look(&mut record, 12, &["s1"], &[]);
        look(&mut record, 15, &[], &[]);
        let class = LeakClass::NotreadyNoPod;
        let at =
            |id, confirmed| of(&record, &sandbox(id), class, confirmed, object(None, Some(10)));
        assert!(at("s2", 15).unwrap_err().starts_with("it went before the threshold"));
        assert!(at("s1", 15).unwrap().contains("it had gone by 15.0 s"));
    }

    #[test]
    fn an_answer_that_left_a_sandbox_out_does_not_end_it() {
        let mut record = record();
        for (at, there) in [(1, true), (2, false), (3, true), (9, true)] {
            look(&mut record, at, if there { &["s1"] } else { &[] }, &[]);
        }
        let gone = object(None, Some(1));
        assert!(of(&record, &sandbox("s1"), LeakClass::NotreadyNoPod, 8, gone).is_ok());
    }

    #[test]
    fn an_outage_of_the_runtime_and_a_new_agent_only_make_it_later() {
        let mut record = record();
        look(&mut record, 1, &["s1"], &[]);
        for at in 2..12 {
            fails(&mut record, at);
        }
        look(&mut record, 12, &["s1"], &[]);
        look(&mut record, 30, &["s1"], &[]);
        let class = LeakClass::NotreadyNoPod;
        let at = |agents: &[u64], confirmed| {
            of_agents(&record, agents, &sandbox("s1"), class, confirmed, object(None, Some(2)))
        };
        assert_eq!(record.outages, [(2 * S, 11 * S)]);
        assert!(at(&[], 11).is_err(), "of 9 s without answers 6 must have been noticed");
        assert!(at(&[], 12).is_ok());
        let agents = [0, 20 * S, 28 * S];
        assert!(at(&agents, 13).is_ok(), "the agents that came later are no matter");
        assert!(at(&agents, 23).is_err());
        assert!(at(&agents, 24).is_ok());
        assert!(at(&agents, 29).is_err());
    }

    #[test]
    fn only_a_sandbox_with_a_newer_one_is_superseded() {
        let mut record = record();
        for at in 1..20 {
            look(&mut record, at, if at < 6 { &["s1"] } else { &["s1", "s5"] }, &[]);
        }
        let of =
            |id, at| of(&record, &sandbox(id), LeakClass::DuplicateReady, at, object(None, None));
        assert!(of("s1", 10).unwrap().starts_with("its pod has a newer sandbox"));
        assert!(of("s1", 8).is_err());
        assert_eq!(of("s5", 15).unwrap_err(), "its pod has no newer sandbox");
    }

    #[test]
    fn a_shim_is_an_orphan_when_the_runtime_does_not_list_its_sandbox() {
        let mut record = record();
        let shim = (Thing::Shim(7, 70), "containerd-shim -id s1 -address x");
        look(&mut record, 1, &["s1"], std::slice::from_ref(&shim));
        look(&mut record, 3, &["s1"], std::slice::from_ref(&shim));
        let key = |id: &str| LeakKey::Shim { pid: 7, started: 70, id: id.into() };
        let of =
            |record: &TruthRecord, id, at| of(record, &key(id), LeakClass::OrphanShim, at, None);
        assert_eq!(of(&record, "s1", 9).unwrap_err(), "the runtime lists its sandbox");
        for at in 4..12 {
            look(&mut record, at, &[], std::slice::from_ref(&shim));
        }
        assert!(of(&record, "s1", 6).is_err());
        assert!(of(&record, "s1", 7).is_ok());
        assert!(of(&record, "s2", 7).unwrap_err().contains("runs"), "another's shim");
        look(&mut record, 12, &[], &[]);
        assert!(of(&record, "s1", 7).unwrap().contains("gone by 12.0 s"));
    }

    #[test]
    fn a_cgroup_is_an_orphan_without_object_and_sandbox() {
        let mut record = record();
        let group = (Thing::Cgroup("pod".into()), "pod");
        for at in 1..12 {
            let listed: &[&str] = if at < 5 { &["s1"] } else { &[] };
            look(&mut record, at, listed, std::slice::from_ref(&group));
        }
        let key = LeakKey::PodCgroup { pod: PodUid::new("pod"), cgroup: CgroupId(1) };
        let of = |at, gone| of(&record, &key, LeakClass::OrphanPodCgroup, at, object(None, gone));
        assert!(of(10, None).is_err());
        assert!(of(7, Some(2)).is_err(), "its sandbox was listed until 4 s");
        assert!(of(8, Some(2)).is_ok());
    }

    #[test]
    fn a_pod_is_stuck_after_its_deadline_until_its_object_goes() {
        let record = record();
        let key = LeakKey::Pod { uid: PodUid::new("pod") };
        let of = |at, object| of(&record, &key, LeakClass::StuckTerminating, at, object);
        assert!(of(20, object(Some(5), None)).is_ok());
        assert!(of(20, object(Some(5), Some(20))).is_ok());
        assert!(of(20, object(Some(5), Some(8))).is_err());
        assert_eq!(of(20, object(None, None)).unwrap_err(), "nobody deletes it");
        assert!(of(20, None).is_err());
    }

    #[test]
    fn the_start_time_is_behind_the_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        assert_eq!(started(stat), Some(4711));
        assert_eq!(started("7"), None);
    }
}
