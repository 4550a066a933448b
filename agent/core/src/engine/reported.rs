//! A terminated pod after its first report: updates, when the report becomes final, and when it is counted.

use crate::{ids::*, report::*};
use crate::{
    output::{Outputs, Report},
    pod_view::{HeldEvidence, PodContainers, PodView},
};
use std::{collections::BTreeSet, time::Duration};

/// How long a report stays open if its pod's sandbox stays (a completed Job).
pub(super) const AMEND_WINDOW: Duration = Duration::from_secs(600);
/// A report that is not final is counted this long after the pod's end; evidence that comes sooner is in the
/// numbers.
const COUNTED_AFTER: Duration = Duration::from_secs(60);

/// The report of a terminated pod.
#[derive(Debug)]
pub(super) struct ReportedTermination {
    pub(super) at: BootTime,
    pub(super) sandboxes: BTreeSet<SandboxId>,
    pub(super) members: PodContainers,
    pub(super) report: PodTermination,
    /// What it rests on.
    pub(super) evidence: HeldEvidence,
    /// Some container was not listed as exited: each list of the runtime may change the report.
    pub(super) is_open: bool,
    /// The same with more evidence, which changes no verdict and no cause: it waits until the report is final or
    /// counted, because a late runtime answers for one container after the other.
    pub(super) held: Option<PodTermination>,
    /// Containers whose deaths are counted with the pod; `None`: all is counted.
    pub(super) uncounted: Option<BTreeSet<ContainerId>>,
}

impl ReportedTermination {
    /// Counts the report if it is due. True: it is not counted yet.
    pub(super) fn count_if_due(&mut self, now: BootTime, out: &mut Outputs) -> bool {
        if self.report.is_final || now >= self.report.ended.boot + COUNTED_AFTER {
            self.count(out);
        }
        self.uncounted.is_some()
    }

    /// Counts the report and its uncounted deaths, as last reported.
    pub(super) fn count(&mut self, out: &mut Outputs) {
        let Some(deaths) = self.uncounted.take() else { return };
        if let Some(held) = self.held.take() {
            self.replace(held, out);
        }
        let deaths = self.report.containers.iter().filter(|death| deaths.contains(&death.id));
        out.reports.extend(deaths.map(|death| Report::CountDeath(Box::new(death.clone()))));
        out.reports.push(Report::CountTermination(Box::new(self.report.clone())));
    }

    /// Counts the deaths that the next report no longer includes, as last reported.
    fn count_dropped(&mut self, next: &PodTermination, out: &mut Outputs) {
        let Some(uncounted) = &mut self.uncounted else { return };
        let stays = |id: &ContainerId| next.containers.iter().any(|death| death.id == *id);
        for death in self.report.containers.iter().filter(|death| !stays(&death.id)) {
            if uncounted.remove(&death.id) {
                out.reports.push(Report::CountDeath(Box::new(death.clone())));
            }
        }
    }

    /// The amend window is over; the sandbox may stay much longer.
    pub(super) fn is_over(&self, now: BootTime) -> bool {
        now > self.at + AMEND_WINDOW
    }

    pub(super) fn is_removed(&self) -> bool {
        self.report.milestone(MilestoneKind::SandboxRemoved).is_some()
    }

    /// Makes the report final as it is: its evidence is being evicted, or the next incarnation has begun.
    pub(super) fn close(mut self, out: &mut Outputs) {
        if let Some(held) = self.held.take() {
            self.replace(PodTermination { is_final: true, ..held }, out);
        }
        if !self.report.is_final {
            self.report.is_final = true;
            out.reports.push(Report::PodUpdated(Box::new(self.report.clone()), Change::Final));
        }
        self.count(out);
    }

    /// Applies evidence that came since. To a final report only the removal of sandbox and cgroup is added.
    pub(super) fn update(&mut self, mut view: PodView<'_>, out: &mut Outputs) {
        // Each list may change a container that the runtime does not call exited.
        self.is_open = !view.are_exited();
        if !self.report.is_final {
            view.members.clone_from(&self.members);
            let evidence = view.evidence();
            // Evicted evidence must not take back what was reported.
            if evidence.lacks_none_of(&self.evidence) {
                self.evidence = evidence;
                self.replace(view.build(self.report.life), out);
            }
            return;
        }
        let is_new = |milestone: &Milestone| self.report.milestone(milestone.kind).is_none();
        let mut tail = view.tail(self.report.began.boot).filter(is_new).peekable();
        if tail.peek().is_some() {
            let mut report = self.report.clone();
            report.milestones.extend(tail);
            report.milestones.sort_by_key(|milestone| (milestone.at, milestone.kind));
            self.replace(report, out);
        }
    }

    /// Emits the rebuilt report, if it differs.
    fn replace(&mut self, mut report: PodTermination, out: &mut Outputs) {
        let Moment { boot, time } = self.report.began;
        if report.began == boot {
            // A changed wall clock is no evidence.
            report.date(&Anchor { boot_ns: boot.0, wall_ns: time.0 });
            report.request_lag_seconds = self.report.request_lag_seconds;
        }
        let change = change(&self.report, &report);
        self.held = None;
        if change.is_some()
            && !report.is_final
            && self.uncounted.is_some()
            && conclusions(&self.report) == conclusions(&report)
        {
            self.held = Some(report);
            return;
        }
        report.revision = self.report.revision + u32::from(change.is_some());
        let change = change.or((report.is_final && !self.report.is_final).then_some(Change::Final));
        let was_removed = self.is_removed();
        self.count_dropped(&report, out);
        self.report = report;
        let removed = (self.is_removed() && !was_removed).then_some(Change::SandboxRemoved);
        for change in change.into_iter().chain(removed) {
            out.reports.push(Report::PodUpdated(Box::new(self.report.clone()), change));
        }
    }
}

/// What a later report of the same incarnation changes; `None`: only the removal of sandbox and cgroup,
/// its number, or that it is final.
fn change(before: &PodTermination, later: &PodTermination) -> Option<Change> {
    let comparable = |report: &PodTermination| {
        let mut report = PodTermination { revision: 0, is_final: false, ..report.clone() };
        report.milestones.retain(|milestone| !milestone.kind.is_of_the_tail());
        report
    };
    if comparable(before) == comparable(later) {
        return None;
    }
    let has_another_verdict = |now: &ContainerDeath| {
        let before = before.containers.iter().find(|before| before.id == now.id);
        before.is_some_and(|before| before.verdict != now.verdict)
    };
    let verdict = later.containers.iter().any(has_another_verdict);
    Some(if verdict { Change::Verdict } else { Change::Other })
}

/// The cause, and the containers with their verdicts and causes.
fn conclusions(report: &PodTermination) -> (Cause, Vec<(&ContainerId, Verdict, Cause)>) {
    let all = report.containers.iter().map(|death| (&death.id, death.verdict, death.cause));
    (report.cause, all.collect())
}
