//! An engine whose outputs are checked.

use coroner_core::{
    engine::{Engine, Settings},
    ids::{ContainerId, PodUid},
    input::{HostEvent, HostSurvey, Input, Received},
    leak::LeakKey,
    output::{Outputs, Report},
    report::PodTermination,
    time::BootTime,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

/// A pod of which something comes later than this after its report may be reported again: the engine no longer
/// keeps it.
const REMEMBERED: Duration = Duration::from_secs(600);

/// An engine, and what it reported so far as far as later reports may not contradict it.
#[derive(Debug)]
pub(crate) struct CheckedEngine {
    engine: Engine,
    now: BootTime,
    /// When each was reported last.
    terminated: HashMap<(PodUid, u32), BootTime>,
    counted: HashSet<(PodUid, u32)>,
    /// Deaths of each container that were reported and are not counted yet.
    uncounted: BTreeMap<ContainerId, u32>,
    leaks: BTreeSet<LeakKey>,
    /// The inputs contradict each other.
    contradicted: bool,
}

impl CheckedEngine {
    /// An engine that has just started.
    pub(crate) fn new(settings: Settings) -> Self {
        let now = BootTime(settings.anchor.boot_ns);
        let mut engine = Engine::new(settings);
        // Leak detection begins with a survey of the host. This one shows nothing.
        let survey = Input::Host(HostEvent::Survey(HostSurvey::default()));
        engine.step(Received { at: now, input: survey });
        Self {
            engine,
            now,
            terminated: HashMap::new(),
            counted: HashSet::new(),
            uncounted: BTreeMap::new(),
            leaks: BTreeSet::new(),
            contradicted: false,
        }
    }

    /// The moment of the last input.
    pub(crate) fn now(&self) -> BootTime {
        self.now
    }

    /// The leaks that are reported and not resolved.
    pub(crate) fn leaks(&self) -> &BTreeSet<LeakKey> {
        &self.leaks
    }

    /// From now on inputs may contradict each other: a sandbox that was removed comes back, a pod lives before it
    /// is made. The engine keeps nothing of what is over and removed, and may report it again.
    pub(crate) fn contradict(&mut self) {
        self.contradicted = true;
    }

    /// Applies an input and checks the outputs.
    pub(crate) fn step(&mut self, received: Received) -> Outputs {
        self.now = received.at;
        let outputs = self.engine.step(received);
        outputs.reports.iter().for_each(|report| self.check(report));
        outputs
    }

    fn check(&mut self, report: &Report) {
        match report {
            // A container that was dropped at a bound may be met again, and reported again.
            Report::ContainerDied(death) => {
                *self.uncounted.entry(death.id.clone()).or_default() += 1;
                // JSON has no other numbers.
                assert!(death.grace_ratio.is_none_or(f64::is_finite), "{death:?}");
            }
            Report::CountDeath(death) => {
                let uncounted = self.uncounted.entry(death.id.clone()).or_default();
                *uncounted = uncounted.checked_sub(1).unwrap_or_else(|| {
                    panic!("counted more often than reported: {:?}", death.id);
                });
            }
            Report::PodTerminated(report) => {
                self.termination(report);
                let key = (report.pod.uid.clone(), report.life);
                self.counted.remove(&key);
                let before = self.terminated.insert(key, self.now);
                assert!(
                    self.contradicted || before.is_none_or(|at| self.now >= at + REMEMBERED),
                    "reported twice: {:?} attempt {}",
                    report.pod,
                    report.life
                );
            }
            Report::PodUpdated(report, _) => self.termination(report),
            Report::CountTermination(report) => {
                let key = (report.pod.uid.clone(), report.life);
                assert!(self.terminated.contains_key(&key), "counted unreported: {key:?}");
                assert!(self.counted.insert(key), "counted twice: {:?}", report.pod);
            }
            Report::LeakOpened(leak) => {
                assert!(self.leaks.insert(leak.key.clone()), "opened twice: {:?}", leak.key);
            }
            Report::LeakChanged(leak) => {
                assert!(self.leaks.contains(&leak.key), "changed before it opened: {:?}", leak.key);
            }
            Report::LeakResolved(leak) => {
                assert!(self.leaks.remove(&leak.key), "resolved before it opened: {:?}", leak.key);
            }
            Report::Unkillable(_) => {}
        }
    }

    /// The phases add up to the whole, without gap or overlap.
    fn termination(&self, report: &PodTermination) {
        let mut at = report.began;
        for phase in &report.phases {
            assert_eq!(phase.from, at, "a gap before {:?}: {report:#?}", phase.kind);
            assert!(phase.to >= phase.from, "backwards: {report:#?}");
            at = phase.to;
        }
        let end = report.ended.max(report.began);
        assert_eq!(at, end, "phases do not reach the end: {report:#?}");
        let kinds: BTreeSet<_> = report.milestones.iter().map(|mark| mark.kind).collect();
        assert_eq!(kinds.len(), report.milestones.len(), "a milestone twice: {report:#?}");
    }
}
