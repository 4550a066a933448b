//! What holds for the reports of any inputs, contradictory ones included: the world and the fuzz target check it.

use super::{ContainerId, PodTermination, PodUid, Report};
use crate::leak::LeakKey;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// What was reported so far, as far as later reports may not contradict it, whatever the inputs were.
#[derive(Default)]
pub struct Checks {
    terminated: HashSet<(PodUid, u32)>,
    counted: HashSet<(PodUid, u32)>,
    /// Deaths of each container that were reported and are not counted yet.
    uncounted: BTreeMap<ContainerId, u32>,
    leaks: BTreeSet<LeakKey>,
}

impl Checks {
    pub fn report(&mut self, report: &Report) {
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
            Report::Audited(_) | Report::AuditOver(_) | Report::Unkillable(_) => {}
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
