//! The life cycle of a pod on this node, and of the report of its termination. A state is left at the first of its
//! conditions:
//!
//! | state | left when | next | what is emitted then |
//! |---|---|---|---|
//! | running | a container of it ended, and the pod goes on: that death is due | running | `ContainerDied`, `CountDeath` |
//! | running | its deletion is requested, or nothing of it runs any more | ending | |
//! | ending | a death is [`FINAL`] old and the pod is not over | ending | `ContainerDied`, `CountDeath` |
//! | ending | it is over and settled, and its evidence is complete or [`COMPLETE`] has passed | reported | `ContainerDied` of each, `PodTerminated` |
//! | reported | every source has said all, or [`FINAL`] has passed since the pod's end | final | `PodUpdated`, `CountDeath` of each, `CountTermination` |
//! | final | the sandbox is removed | final | `PodUpdated` |
//! | final | the next incarnation begins, or [`KEPT`] has passed | forgotten | |
//!
//! Three timeouts bound what is waited for: the settle window for late records of the kernel, [`COMPLETE`] for the
//! runtime, the connections and the Events, [`FINAL`] for the apiserver.

use super::Engine;
use crate::{ids::*, report::*};
use crate::{
    output::{CriRequest, Outputs, Report, Request},
    pod_view::{HeldEvidence, PodContainers, PodView, Stores},
    table::{Table, push_latest},
};
use std::{
    cell::LazyCell,
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

/// A report is built without missing evidence of the runtime, the connections or the Events after this.
pub(super) const COMPLETE: Duration = Duration::from_secs(30);
/// What a source says later than this after an end changes no report of it.
pub(super) const FINAL: Duration = Duration::from_secs(60);
/// How long the removal of the sandbox is still added to a final report. The sandbox of a completed Job stays as long
/// as its object does.
pub(super) const KEPT: Duration = Duration::from_secs(600);
/// The runtime is polled fast for this long after the deadline or the last process, however long the pod
/// takes.
const FAST_POLL_FOR: Duration = Duration::from_secs(300);
/// Bound on static pods whose number of incarnations is kept.
const MAX_STATIC_PODS: usize = 1_024;

/// One pod UID, over all its incarnations.
#[derive(Debug, Default)]
pub(super) struct Pod {
    pub(super) incarnation: u32,
    /// Sandboxes of finished incarnations.
    pub(super) finished_sandboxes: BTreeSet<SandboxId>,
    /// Containers whose death was reported.
    pub(super) reported: BTreeSet<ContainerId>,
    /// A termination is in progress.
    pub(super) terminating: bool,
    /// Sandboxes for which fast polling is on.
    pub(super) fast_polled: BTreeSet<SandboxId>,
    pub(super) cgroup_removed: Option<BootTime>,
    /// When the pod's Events were last requested.
    events_requested: Option<BootTime>,
    /// The report of the last incarnation.
    pub(super) termination: Option<Termination>,
}

/// The report of a pod that has terminated.
#[derive(Debug)]
pub(super) struct Termination {
    pub(super) report: PodTermination,
    pub(super) sandboxes: BTreeSet<SandboxId>,
    members: PodContainers,
    /// What it rests on.
    evidence: HeldEvidence,
    /// Containers whose deaths are counted with the pod; `None`: all is counted, and the report is final.
    uncounted: Option<BTreeSet<ContainerId>>,
}

/// How many incarnations each static pod has had: only a static pod's UID comes back.
#[derive(Debug, Default)]
pub(super) struct Incarnations {
    counts: Table<PodUid, u32>,
    order: VecDeque<PodUid>,
}

impl Incarnations {
    fn count(&self, uid: &PodUid) -> u32 {
        self.counts.get(uid).copied().unwrap_or_default()
    }

    fn note(&mut self, uid: &PodUid, count: u32) {
        if self.counts.insert(uid.clone(), count).is_none()
            && let Some(oldest) = push_latest(&mut self.order, uid.clone(), MAX_STATIC_PODS)
        {
            self.counts.remove(&oldest);
        }
    }
}

impl Engine {
    /// Evaluates one pod. True: a termination is in progress.
    pub(super) fn evaluate(
        &mut self,
        now: BootTime,
        uid: &PodUid,
        is_dirty: bool,
        out: &mut Outputs,
    ) -> bool {
        let mut pod = self.pods.remove(uid).unwrap_or_else(|| self.new_pod(uid));
        let view = PodView::new(&self.stores, uid, &pod.finished_sandboxes, pod.cgroup_removed);
        let under_way = if view.is_empty() {
            pod.terminating = false;
            pod.fast_poll(BTreeSet::new(), out);
            pod.follow(now, &self.stores, uid, is_dirty, out)
        } else {
            pod.advance(now, self.settle, &view, &self.stores.anchor, out)
        };
        if view.is_static() {
            self.incarnations.note(uid, pod.incarnation);
        }
        if let Some(termination) = pod.termination.as_ref().filter(|one| one.is_final()) {
            Self::forget_traffic(&mut self.stores.traffic, &termination.sandboxes, out);
        }
        let known = !pod.is_blank() && self.stores.cri.has_sandbox(uid);
        if known || under_way || pod.termination.is_some() {
            self.pods.insert(uid.clone(), pod);
        } else {
            pod.fast_poll(BTreeSet::new(), out);
        }
        under_way
    }

    pub(super) fn new_pod(&self, uid: &PodUid) -> Pod {
        Pod { incarnation: self.incarnations.count(uid), ..Pod::default() }
    }
}

impl Pod {
    /// Nothing here that the next evaluation would not find again.
    fn is_blank(&self) -> bool {
        self.finished_sandboxes.is_empty()
            && self.reported.is_empty()
            && self.fast_polled.is_empty()
            && self.cgroup_removed.is_none()
            && self.termination.is_none()
    }

    /// From running or ending, by the evidence so far. True: something has ended that is not reported.
    fn advance(
        &mut self,
        now: BootTime,
        settle: Duration,
        view: &PodView<'_>,
        clock: &Anchor,
        out: &mut Outputs,
    ) -> bool {
        let members = &view.members;
        if let Some(mut earlier) = self.termination.take() {
            earlier.finish(out);
        }
        let unreported = |id: &&ContainerId| !self.reported.contains(*id);
        let ended = members.all.iter().filter(unreported).filter(|id| view.ended(id).is_some());
        let mut ended: Vec<ContainerId> = ended.cloned().collect();
        ended.sort_by_key(|id| view.ended(id));
        self.terminating = members.requested || !ended.is_empty();
        let is_settled = view.is_settled(now, settle);
        self.poll(now, is_settled, view, out);
        if is_settled && view.is_over(now, COMPLETE) {
            self.report(now, &ended, view, clock, out);
            return true;
        }
        let is_ending = view.is_ending();
        // A pod of which nothing runs stays active until its report is complete: evidence may still come.
        let is_idle = members.alive == 0 && !members.sandbox_runs && !members.all.is_empty();
        let is_active = members.requested || is_idle || !ended.is_empty();
        let cause = LazyCell::new(|| view.cause()); // of all containers, so once for all
        for id in ended {
            let Some(at) = view.ended(&id).filter(|at| now >= *at + settle) else { continue };
            let with_its_pod = is_ending && view.ended_with_its_pod(&id);
            let death = view.death(&id, with_its_pod.then(|| &*cause));
            let waits = self.waits_for_events(view, &death, now, out);
            let is_complete = now >= at + COMPLETE || (view.is_cri_complete(&id) && !waits);
            // Until the end of its pod is ruled out, the pod's report may include it.
            let goes_on = !is_ending && members.alive > 0;
            let is_explained = !was_stopped(&death) || !view.reason_pending(&id);
            if (is_complete && goes_on && is_explained) || now >= at + FINAL {
                self.report_alone(death, clock, out);
            }
        }
        is_active
    }

    /// From ending to reported, unless the Events are waited for.
    fn report(
        &mut self,
        now: BootTime,
        ended: &[ContainerId],
        view: &PodView<'_>,
        clock: &Anchor,
        out: &mut Outputs,
    ) {
        let incarnation = self.incarnation + 1;
        let report = view.build(incarnation);
        // Deaths shortly before the pod's deletion, not reported yet.
        let in_report = |id: &ContainerId| report.containers.iter().any(|c| c.id == *id);
        let earlier = ended.iter().filter(|id| !in_report(id));
        let earlier: Vec<_> = earlier.map(|id| view.death(id, None)).collect();
        let all = earlier.iter().chain(&report.containers);
        let waits = |waits, death| waits | self.waits_for_events(view, death, now, out);
        if all.fold(false, waits) {
            return;
        }
        for death in earlier {
            self.report_alone(death, clock, out);
        }
        // Only a static pod comes back: this is what a late list shows of the end that was reported.
        if self.incarnation > 0 && view.is_deleted() {
            self.finished_sandboxes.extend(view.sandboxes());
            let late = report.containers.into_iter().filter(|one| !self.reported.contains(&one.id));
            let late: Vec<_> = late.collect();
            late.into_iter().for_each(|death| self.report_alone(death, clock, out));
            return;
        }
        let mut uncounted = BTreeSet::new();
        for death in &report.containers {
            if self.reported.insert(death.id.clone()) {
                uncounted.insert(death.id.clone());
                out.reports.push(Report::ContainerDied(Box::new(death.clone())));
            }
        }
        self.fast_poll(BTreeSet::new(), out);
        self.incarnation = incarnation;
        self.terminating = false;
        let sandboxes = view.sandboxes();
        self.finished_sandboxes.extend(sandboxes.iter().cloned());
        out.reports.push(Report::PodTerminated(Box::new(report.clone())));
        let (members, evidence) = (view.members.clone(), view.evidence());
        let uncounted = Some(uncounted);
        let mut termination = Termination { report, sandboxes, members, evidence, uncounted };
        termination.finish_if_due(now, None, out);
        self.termination = Some(termination);
    }

    /// From reported to final, and after that: what follows the report of the last incarnation.
    fn follow(
        &mut self,
        now: BootTime,
        stores: &Stores,
        uid: &PodUid,
        is_dirty: bool,
        out: &mut Outputs,
    ) -> bool {
        let Some(termination) = &mut self.termination else { return false };
        if is_dirty || termination.is_due(now) {
            let earlier = &self.finished_sandboxes - &termination.sandboxes;
            let view = PodView::new(stores, uid, &earlier, self.cgroup_removed);
            match termination.is_final() {
                true => termination.add_removal(&view, out),
                false => termination.finish_if_due(now, Some(view), out),
            }
        }
        !termination.is_final()
    }

    /// Reports a death that is not part of a pod report. It is never updated, so it is counted at once.
    fn report_alone(&mut self, mut death: ContainerDeath, clock: &Anchor, out: &mut Outputs) {
        self.reported.insert(death.id.clone());
        death.date(clock);
        let death = Box::new(death);
        out.reports.push(Report::ContainerDied(death.clone()));
        out.reports.push(Report::CountDeath(death));
    }

    /// The kubelet may have posted why a container was stopped: its pod's Events are requested once after such an end.
    fn waits_for_events(
        &mut self,
        view: &PodView<'_>,
        death: &ContainerDeath,
        now: BootTime,
        out: &mut Outputs,
    ) -> bool {
        let Some(ended) = view.ended(&death.id) else { return false };
        if now >= ended + COMPLETE
            || !was_stopped(death)
            || !view.may_be_proven_by_events(death, ended)
        {
            return false;
        }
        if self.events_requested < Some(ended) {
            out.requests.push(Request::ListEvents(view.pod_ref()));
            self.events_requested = Some(now);
        }
        true
    }

    /// Polls the runtime fast while it is expected to act.
    fn poll(&mut self, now: BootTime, is_settled: bool, view: &PodView<'_>, out: &mut Outputs) {
        let due = view.deadline().max(view.members.ended);
        let soon = due.is_none_or(|at| now < at + FAST_POLL_FOR);
        let is_open = view.cri_pending() || (!is_settled && !self.fast_polled.is_empty());
        let wanted = self.terminating && soon && is_open;
        self.fast_poll(if wanted { view.seen_sandboxes() } else { BTreeSet::new() }, out);
    }

    /// Turns fast polling on for these sandboxes, and off for the pod's others.
    pub(super) fn fast_poll(&mut self, wanted: BTreeSet<SandboxId>, out: &mut Outputs) {
        let stopped: Vec<_> = self.fast_polled.difference(&wanted).cloned().collect();
        let started: Vec<_> = wanted.difference(&self.fast_polled).cloned().collect();
        if !started.is_empty() {
            out.requests.push(Request::Cri(CriRequest::StartFastPoll(started)));
        }
        if !stopped.is_empty() {
            out.requests.push(Request::Cri(CriRequest::StopFastPoll(stopped)));
        }
        self.fast_polled = wanted;
    }
}

impl Termination {
    /// Nothing changes it any more but the removal of sandbox and cgroup.
    pub(super) fn is_final(&self) -> bool {
        self.uncounted.is_none()
    }

    fn is_due(&self, now: BootTime) -> bool {
        now >= self.report.ended.boot + FINAL
    }

    pub(super) fn is_over(&self, now: BootTime) -> bool {
        now > self.report.ended.boot + KEPT
    }

    /// Makes the report final, corrected by what came since, once every source has said all or [`FINAL`] has passed.
    /// `view`: the evidence now, if it may have changed.
    fn finish_if_due(&mut self, now: BootTime, view: Option<PodView<'_>>, out: &mut Outputs) {
        let shown = view.filter(|view| !view.is_partly_shown());
        let corrected = shown.and_then(|mut view| {
            view.members.clone_from(&self.members);
            // Evicted evidence must not take back what was reported.
            let is_whole = view.evidence().lacks_none_of(&self.evidence);
            is_whole.then(|| view.build(self.report.life))
        });
        let is_final = corrected.as_ref().unwrap_or(&self.report).is_final;
        if !is_final && !self.is_due(now) {
            return;
        }
        if let Some(corrected) = corrected {
            self.correct(corrected, out);
        }
        self.finish(out);
    }

    /// Emits what differs, once.
    fn correct(&mut self, mut report: PodTermination, out: &mut Outputs) {
        if report.began == self.report.began.boot {
            // A changed wall clock is no evidence.
            report.date(&self.clock());
            report.request_lag_seconds = self.report.request_lag_seconds;
        }
        let was_removed = self.is_removed();
        if let Some(change) = change(&self.report, &report) {
            (report.revision, report.is_final) = (self.report.revision + 1, true);
            self.count_dropped(&report, out);
            out.reports.push(Report::PodUpdated(Box::new(report.clone()), change));
            self.report = report;
        } else {
            self.report.milestones = report.milestones;
        }
        self.announce_removal(was_removed, out);
    }

    /// Counts the deaths that the corrected report does not include, as last reported.
    fn count_dropped(&mut self, corrected: &PodTermination, out: &mut Outputs) {
        let Some(uncounted) = &mut self.uncounted else { return };
        let stays = |id: &ContainerId| corrected.containers.iter().any(|death| death.id == *id);
        for death in self.report.containers.iter().filter(|death| !stays(&death.id)) {
            if uncounted.remove(&death.id) {
                out.reports.push(Report::CountDeath(Box::new(death.clone())));
            }
        }
    }

    /// Makes the report final, and counts it and its uncounted deaths. Without a correction: its evidence is being
    /// evicted, the next incarnation has begun, or the agent ends.
    pub(super) fn finish(&mut self, out: &mut Outputs) {
        let Some(deaths) = self.uncounted.take() else { return };
        if !std::mem::replace(&mut self.report.is_final, true) {
            out.reports.push(Report::PodUpdated(Box::new(self.report.clone()), Change::Final));
        }
        let deaths = self.report.containers.iter().filter(|death| deaths.contains(&death.id));
        out.reports.extend(deaths.map(|death| Report::CountDeath(Box::new(death.clone()))));
        out.reports.push(Report::CountTermination(Box::new(self.report.clone())));
    }

    /// Adds the removal of sandbox and cgroup.
    fn add_removal(&mut self, view: &PodView<'_>, out: &mut Outputs) {
        let was_removed = self.is_removed();
        let is_new = |milestone: &Milestone| self.report.milestone(milestone.kind).is_none();
        let tail: Vec<_> = view.tail(self.report.began.boot).filter(is_new).collect();
        self.report.milestones.extend(tail);
        self.report.milestones.sort_by_key(|milestone| (milestone.at, milestone.kind));
        self.report.date(&self.clock());
        self.announce_removal(was_removed, out);
    }

    /// The mapping to the wall clock when the report began.
    fn clock(&self) -> Anchor {
        let Moment { boot, time } = self.report.began;
        Anchor { boot_ns: boot.0, wall_ns: time.0 }
    }

    fn is_removed(&self) -> bool {
        self.report.milestone(MilestoneKind::SandboxRemoved).is_some()
    }

    fn announce_removal(&self, was_removed: bool, out: &mut Outputs) {
        if self.is_removed() && !was_removed {
            let report = Box::new(self.report.clone());
            out.reports.push(Report::PodUpdated(report, Change::SandboxRemoved));
        }
    }
}

fn was_stopped(death: &ContainerDeath) -> bool {
    death.milestone(MilestoneKind::StopBegan).is_some()
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
