//! A terminated pod from its first report on: what changes the report, when nothing does any more, and
//! when it is counted.

use super::{Engine, life::Pod};
use crate::{
    ids::{ContainerId, PodUid, SandboxId},
    observation::{Change, Milestone, MilestoneKind, PodTermination},
    output::{Outputs, Report},
    time::BootTime,
};
use std::{collections::BTreeSet, time::Duration};

/// A report stays open for this long after it was first given, if its pod's sandbox stays (a completed
/// Job).
pub(super) const TAIL: Duration = Duration::from_secs(600);
/// A report that is not final by then is counted so long after its pod's end: evidence that comes sooner is
/// in the numbers.
const COUNTED_AFTER: Duration = Duration::from_secs(60);

/// The report of a terminated pod.
#[derive(Debug)]
pub(super) struct Finished {
    at: BootTime,
    sandboxes: BTreeSet<SandboxId>,
    members: BTreeSet<ContainerId>,
    report: PodTermination,
    /// Each list of the runtime may change it: not all containers were listed as exited.
    is_open: bool,
    /// Containers whose deaths are counted with the pod; `None`: all is counted.
    uncounted: Option<BTreeSet<ContainerId>>,
}

impl Finished {
    /// The first report, which is emitted. The deaths that are `uncounted` are counted with it.
    pub(super) fn new(
        at: BootTime,
        sandboxes: BTreeSet<SandboxId>,
        members: BTreeSet<ContainerId>,
        report: PodTermination,
        uncounted: BTreeSet<ContainerId>,
        out: &mut Outputs,
    ) -> Self {
        out.report(Report::PodTerminated(Box::new(report.clone())));
        let uncounted = Some(uncounted);
        Self { at, sandboxes, members, report, is_open: true, uncounted }
    }

    /// Counts the report if it is due. True: it waits to be counted.
    pub(super) fn count_if_due(&mut self, now: BootTime, out: &mut Outputs) -> bool {
        if self.report.is_final || now >= self.report.ended + COUNTED_AFTER {
            self.count(out);
        }
        self.uncounted.is_some()
    }

    /// Counts what is not counted yet, as it is reported now.
    fn count(&mut self, out: &mut Outputs) {
        let Some(deaths) = self.uncounted.take() else { return };
        let deaths = self.report.containers.iter().filter(|death| deaths.contains(&death.id));
        out.reports.extend(deaths.map(|death| Report::CountDeath(Box::new(death.clone()))));
        out.report(Report::CountTermination(Box::new(self.report.clone())));
    }

    /// Counts the deaths that are not part of the next report, as they were reported last.
    fn count_dropped(&mut self, next: &PodTermination, out: &mut Outputs) {
        let Some(uncounted) = &mut self.uncounted else { return };
        let stays = |id: &ContainerId| next.containers.iter().any(|death| death.id == *id);
        for death in self.report.containers.iter().filter(|death| !stays(&death.id)) {
            if uncounted.remove(&death.id) {
                out.report(Report::CountDeath(Box::new(death.clone())));
            }
        }
    }

    /// Its sandbox stays for so long that nobody waits for its removal any more.
    pub(super) fn is_over(&self, now: BootTime) -> bool {
        now > self.at + TAIL
    }

    fn is_removed(&self) -> bool {
        self.report.milestone(MilestoneKind::SandboxRemoved).is_some()
    }

    /// Its evidence is dropped, or another incarnation of the pod has begun: the report stays as it is.
    pub(super) fn close(mut self, out: &mut Outputs) {
        if !self.report.is_final {
            self.report.is_final = true;
            out.report(Report::PodUpdated(Box::new(self.report.clone()), Change::Final));
        }
        self.count(out);
    }

    /// Takes the report as it would be built now, if that differs.
    fn replace(&mut self, mut report: PodTermination, out: &mut Outputs) {
        // Evidence that was needed and has been dropped since must not take back what was reported.
        if report.milestones.len() < self.report.milestones.len() {
            return;
        }
        if report.began == self.report.began {
            // The wall clock may be set meanwhile, which is no evidence.
            report.began_wall_ns = self.report.began_wall_ns;
            report.request_lag_seconds = self.report.request_lag_seconds;
        }
        let change = self.report.change(&report);
        report.revision = self.report.revision + u32::from(change.is_some());
        let change = change.or((report.is_final && !self.report.is_final).then_some(Change::Final));
        let was_removed = self.is_removed();
        self.count_dropped(&report, out);
        self.report = report;
        let removed = (self.is_removed() && !was_removed).then_some(Change::SandboxRemoved);
        for change in change.into_iter().chain(removed) {
            out.report(Report::PodUpdated(Box::new(self.report.clone()), change));
        }
    }

    /// Takes the removal of sandbox and cgroup, which is all that is added to a final report.
    fn extend(&mut self, tail: impl Iterator<Item = Milestone>, out: &mut Outputs) {
        let was_removed = self.is_removed();
        for milestone in tail {
            if self.report.milestone(milestone.kind).is_none() {
                self.report.milestones.push(milestone);
                self.report.milestones.sort_by_key(|milestone| (milestone.at, milestone.kind));
            }
        }
        if self.is_removed() && !was_removed {
            let report = Box::new(self.report.clone());
            out.report(Report::PodUpdated(report, Change::SandboxRemoved));
        }
    }
}

impl Engine {
    /// What has come since the report of a terminated pod. True while its sandbox is still to be removed.
    pub(super) fn follow_up(
        &self,
        now: BootTime,
        uid: &PodUid,
        pod: &mut Pod,
        is_dirty: bool,
        out: &mut Outputs,
    ) -> bool {
        let Some(finished) = &mut pod.finished else { return false };
        if finished.is_over(now) {
            return false;
        }
        if is_dirty || finished.is_open {
            let earlier = pod.past.difference(&finished.sandboxes).cloned().collect();
            let accounts = self.account(uid, &earlier, pod.cgroup_removed);
            // Of a container that the runtime does not call exited, each list may say something new.
            finished.is_open = !accounts.are_exited();
            if finished.report.is_final {
                finished.extend(accounts.tail(finished.report.began), out);
            } else {
                let report = accounts.build(&finished.members, finished.report.life);
                finished.replace(report, out);
            }
        }
        !finished.is_removed()
    }

    /// The agent ends: counts what was reported and is not counted yet, as it is reported now.
    pub fn count_the_rest(&mut self) -> Vec<Report> {
        let mut out = Outputs::default();
        for finished in self.pods.values_mut().filter_map(|pod| pod.finished.as_mut()) {
            finished.count(&mut out);
        }
        out.reports
    }
}
