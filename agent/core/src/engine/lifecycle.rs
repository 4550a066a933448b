//! The life cycle of a pod: when its termination report and its containers' reports are due, and what
//! follows.

use super::{Engine, reported::ReportedTermination};
use crate::{ids::*, report::*};
use crate::{
    output::{CriRequest, Outputs, Report, Request},
    pod_view::PodView,
    table::{Table, push_latest},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

/// A pod report is built without missing evidence after this.
pub(super) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);
/// A container death in a pod that is still terminating is reported on its own after this.
const STANDALONE_DEATH_TIMEOUT: Duration = Duration::from_secs(60);
/// How late the watch may show why a container was stopped: a broken watch is noticed after up to 120 s
/// (`kube/watch.rs`), and the new list may take as long.
const WATCH_TIMEOUT: Duration = Duration::from_secs(240);
/// A death whose cause an Event may prove is reported without an answer after this.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(15);
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
    /// When the pod's Events were requested for the end of a container.
    pub(super) events_requested: BTreeMap<ContainerId, BootTime>,
    pub(super) reported_termination: Option<ReportedTermination>,
}

impl Pod {
    /// Nothing here that the next evaluation would not find again.
    fn is_blank(&self) -> bool {
        self.finished_sandboxes.is_empty()
            && self.reported.is_empty()
            && self.fast_polled.is_empty()
            && self.cgroup_removed.is_none()
            && self.events_requested.is_empty()
            && self.reported_termination.is_none()
    }

    /// The kubelet may have posted why a container was stopped: one list for each such end. One list is of the whole
    /// pod: it is also the one for the others that had ended when it was requested.
    fn waits_for_events(
        &mut self,
        view: &PodView<'_>,
        death: &ContainerDeath,
        now: BootTime,
        out: &mut Outputs,
    ) -> bool {
        let Some(ended) = view.ended(&death.id) else { return false };
        let stopped = death.milestone(MilestoneKind::StopBegan).is_some();
        if !stopped || !view.may_be_proven_by_events(death, ended) {
            return false;
        }
        let of_another = self.events_requested.values().filter(|at| **at >= ended).max().copied();
        let requested = *self.events_requested.entry(death.id.clone()).or_insert_with(|| {
            of_another.unwrap_or_else(|| {
                out.requests.push(Request::ListEvents(view.pod_ref()));
                now
            })
        });
        now < requested + EVENTS_TIMEOUT
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

/// How many incarnations each static pod has had: only a static pod's UID comes back.
#[derive(Debug, Default)]
pub(super) struct Incarnations {
    counts: Table<PodUid, u32>,
    order: VecDeque<PodUid>,
}

impl Incarnations {
    pub(super) fn count(&self, uid: &PodUid) -> u32 {
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
        let mut under_way = self.evaluate_instance(now, uid, &mut pod, is_dirty, out);
        if let Some(finished) = &mut pod.reported_termination {
            under_way |= finished.count_if_due(now, out);
            // Until then late evidence may have the report built again.
            if finished.report.is_final {
                Self::forget_traffic(&mut self.stores.traffic, &finished.sandboxes, out);
            }
        }
        let known = !pod.is_blank() && self.stores.cri.has_sandbox(uid);
        if known || under_way || pod.reported_termination.is_some() {
            self.pods.insert(uid.clone(), pod);
        } else {
            pod.fast_poll(BTreeSet::new(), out);
        }
        under_way
    }

    pub(super) fn new_pod(&self, uid: &PodUid) -> Pod {
        Pod { incarnation: self.incarnations.count(uid), ..Pod::default() }
    }

    /// The same for the current incarnation or, if there is none, for the report of the one before: true while its
    /// sandbox is not removed.
    fn evaluate_instance(
        &mut self,
        now: BootTime,
        uid: &PodUid,
        pod: &mut Pod,
        is_dirty: bool,
        out: &mut Outputs,
    ) -> bool {
        let settle = self.settle;
        let view = PodView::new(&self.stores, uid, &pod.finished_sandboxes, pod.cgroup_removed);
        if view.is_empty() {
            pod.terminating = false;
            pod.fast_poll(BTreeSet::new(), out);
            let reported = pod.reported_termination.as_mut();
            let Some(reported) = reported.filter(|reported| !reported.is_over(now)) else {
                return false;
            };
            if is_dirty || reported.is_open {
                let earlier = &pod.finished_sandboxes - &reported.sandboxes;
                let view = PodView::new(&self.stores, uid, &earlier, pod.cgroup_removed);
                if !view.is_partly_shown() {
                    reported.update(view, out);
                }
            }
            return !reported.is_removed();
        }
        let members = &view.members;
        if members.alive > 0
            && let Some(earlier) = pod.reported_termination.take()
        {
            earlier.close(out); // another incarnation began
        }
        let unreported = |id: &ContainerId| !pod.reported.contains(id) && view.ended(id).is_some();
        let begins = members.requested || members.all.iter().any(unreported);
        pod.terminating = begins;
        let settled = view.is_settled(now, settle);
        // The runtime is expected to act before this deadline.
        let soon = view.deadline().max(members.ended).is_none_or(|at| now < at + FAST_POLL_FOR);
        let cri_pending = view.cri_pending();
        let fast_poll =
            begins && soon && (cri_pending || (!settled && !pod.fast_polled.is_empty()));
        pod.fast_poll(if fast_poll { view.seen_sandboxes() } else { BTreeSet::new() }, out);
        if settled && view.is_complete(now, COMPLETION_TIMEOUT) {
            let incarnation = pod.incarnation + 1;
            let report = view.build(incarnation);
            // Deaths shortly before the pod's deletion, not reported yet.
            let in_report = |id: &ContainerId| report.containers.iter().any(|c| c.id == *id);
            let is_earlier = |id: &&ContainerId| !in_report(id) && !pod.reported.contains(*id);
            let mut earlier: Vec<_> = members.all.iter().filter(is_earlier).collect();
            earlier.sort_by_key(|id| view.ended(id));
            let earlier: Vec<_> = earlier.into_iter().map(|id| view.death(id, None)).collect();
            let waits = |death: &ContainerDeath| pod.waits_for_events(&view, death, now, out);
            let all = earlier.iter().chain(&report.containers);
            if all.map(waits).fold(false, |any, waits| any | waits) {
                return true;
            }
            for death in earlier {
                pod.events_requested.remove(&death.id);
                pod.reported.insert(death.id.clone());
                report_alone(death, &self.stores.anchor, out);
            }
            let mut uncounted = BTreeSet::new();
            for death in &report.containers {
                pod.events_requested.remove(&death.id);
                if pod.reported.insert(death.id.clone()) {
                    uncounted.insert(death.id.clone());
                    out.reports.push(Report::ContainerDied(Box::new(death.clone())));
                }
            }
            if let Some(earlier) = pod.reported_termination.take() {
                earlier.close(out);
            }
            let (sandboxes, is_static) = (view.sandboxes(), view.is_static());
            let evidence = view.evidence();
            let members = view.members;
            pod.fast_poll(BTreeSet::new(), out);
            pod.incarnation = incarnation;
            if is_static {
                self.incarnations.note(uid, incarnation);
            }
            pod.terminating = false;
            pod.finished_sandboxes.extend(sandboxes.iter().cloned());
            out.reports.push(Report::PodTerminated(Box::new(report.clone())));
            let (at, is_open, uncounted) = (now, true, Some(uncounted));
            pod.reported_termination = Some(ReportedTermination {
                at,
                sandboxes,
                members,
                report,
                evidence,
                is_open,
                held: None,
                uncounted,
            });
            return true;
        }
        // Deaths in a pod that keeps running or is still terminating.
        let ending = view.is_ending();
        // A pod whose containers and sandboxes have all ended stays active until its report is complete:
        // evidence may still come.
        let ended = members.alive == 0 && !members.sandbox_runs && !members.all.is_empty();
        let mut waiting = members.requested || ended;
        for id in &members.all {
            let Some(ended) = view.ended(id) else { continue };
            if pod.reported.contains(id) {
                continue;
            }
            waiting = true;
            let due = if ending || members.alive == 0 {
                ended + STANDALONE_DEATH_TIMEOUT
            } else {
                ended + settle
            };
            if now >= due && (view.is_cri_complete(id) || now >= ended + COMPLETION_TIMEOUT) {
                let with_its_pod = ending && view.ended_with_its_pod(id);
                let cause = with_its_pod.then(|| view.cause());
                let death = view.death(id, cause.as_ref());
                // A stopped container is reported on its own only once it is clear that its pod is not being
                // deleted.
                let stopped = death.milestone(MilestoneKind::StopBegan).is_some();
                if stopped && view.reason_pending(id) && now < ended + WATCH_TIMEOUT {
                    continue;
                }
                if pod.waits_for_events(&view, &death, now, out) {
                    continue;
                }
                pod.events_requested.remove(id);
                pod.reported.insert(id.clone());
                report_alone(death, &self.stores.anchor, out);
            }
        }
        waiting
    }
}

/// Reports a death that is not part of a pod report. It is never updated, so it is counted at once.
fn report_alone(mut death: ContainerDeath, clock: &Anchor, out: &mut Outputs) {
    death.date(clock);
    let death = Box::new(death);
    out.reports.push(Report::ContainerDied(death.clone()));
    out.reports.push(Report::CountDeath(death));
}
