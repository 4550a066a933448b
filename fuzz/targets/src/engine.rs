use coroner_core::{
    engine::{Engine, Settings},
    ids::{ContainerId, PodUid},
    input::{Input, Received},
    leak::LeakKey,
    output::{Outputs, Report},
    report::PodTermination,
    time::{Anchor, BootTime},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

/// More inputs than this make an execution slow, and reach nothing new.
const MAX_INPUTS: usize = 400;
/// Seconds between the ticks at the end: past the settle window, each timeout, and what is kept how long.
const LAST_TICKS: [u64; 14] = [1, 1, 2, 3, 5, 5, 5, 5, 10, 30, 60, 300, 600, 3_600];
/// Short, so that few ticks make a leak certain.
const LEAK_THRESHOLD: Duration = Duration::from_secs(20);

/// The engine: the lines of a recording as inputs, whatever they contradict. It reports nothing that does not add up,
/// counts nothing twice, and reports the same again when it is given the same.
pub fn engine(bytes: &[u8]) {
    let outputs = outputs(bytes);
    // A check that costs as much as the rest: for some executions.
    if bytes.len().is_multiple_of(8) {
        assert_eq!(outputs, self::outputs(bytes), "the same inputs, other outputs");
    }
}

/// What the engine emits for these inputs, checked.
pub fn outputs(bytes: &[u8]) -> Outputs {
    let settings = Settings {
        leak_threshold: LEAK_THRESHOLD,
        ..Settings::new(Anchor { boot_ns: 0, wall_ns: 0 })
    };
    let (mut engine, mut checks) = (Engine::new(settings), Checks::default());
    let (mut outputs, mut at) = (Outputs::default(), BootTime(0));
    let mut step = |received: Received| {
        let emitted = engine.step(received);
        emitted.reports.iter().for_each(|report| checks.report(report));
        outputs.append(emitted);
    };
    let lines = bytes.split(|byte| *byte == b'\n').take(MAX_INPUTS);
    for received in lines.filter_map(|line| serde_json::from_slice::<Received>(line).ok()) {
        at = received.at;
        step(received);
    }
    for seconds in LAST_TICKS {
        at = at + Duration::from_secs(seconds);
        step(Received { at, input: Input::Tick });
    }
    outputs
}

/// What was emitted so far, as far as later reports may not contradict it.
#[derive(Default)]
struct Checks {
    terminated: HashSet<(PodUid, u32)>,
    counted: HashSet<(PodUid, u32)>,
    /// Deaths of each container that were reported and are not counted yet.
    uncounted: BTreeMap<ContainerId, u32>,
    leaks: BTreeSet<LeakKey>,
}

impl Checks {
    fn report(&mut self, report: &Report) {
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
            // The inputs may contradict each other, and what was over may come again.
            Report::PodTerminated(report) => {
                termination(report);
                let key = (report.pod.uid.clone(), report.life);
                self.counted.remove(&key);
                self.terminated.insert(key);
            }
            Report::PodUpdated(report, _) => termination(report),
            Report::CountTermination(report) => {
                let key = (report.pod.uid.clone(), report.life);
                assert!(self.terminated.contains(&key), "counted unreported: {key:?}");
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
}

/// The phases add up to the whole, without gap or overlap.
fn termination(report: &PodTermination) {
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
