//! A pod over its lives: when its account, and those of its containers, are due, and what becomes of
//! them afterwards.

use super::{Engine, finished::Finished};
use crate::{
    account::{Account, Sources},
    ids::{ContainerId, PodUid, SandboxId},
    observation::{ContainerDeath, MilestoneKind},
    output::{CriRequest, Outputs, Report, Request},
    table::Table,
    time::BootTime,
};
use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

/// A pod that takes longer than this to tell what is still missing is accounted for without it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// A container's death in a pod that still terminates is told by itself after this.
const ALONE: Duration = Duration::from_secs(60);
/// What decides why a container was stopped may come so late: a watch that is broken is noticed in 120 s
/// (`kube/watch.rs`), and may take as long again to list.
const WATCH_PATIENCE: Duration = Duration::from_secs(240);
/// What will not stop is looked at often for this long after its deadline or its last process.
const HURRY: Duration = Duration::from_secs(300);
/// Static pods whose number of lives is remembered.
const MAX_STATIC_PODS: usize = 1_024;

/// One pod, over all its lives.
#[derive(Debug, Default)]
pub(super) struct Pod {
    pub(super) life: u32,
    /// Sandboxes of lives that are finished.
    pub(super) past: BTreeSet<SandboxId>,
    /// Containers whose death has been told.
    pub(super) told: BTreeSet<ContainerId>,
    /// Its end is under way.
    pub(super) terminating: bool,
    /// Sandboxes that the adapter was asked to look at often.
    pub(super) hurried: BTreeSet<SandboxId>,
    pub(super) cgroup_removed: Option<BootTime>,
    pub(super) finished: Option<Finished>,
}

impl Pod {
    /// Nothing is known that another look would not show.
    fn is_blank(&self) -> bool {
        self.past.is_empty()
            && self.told.is_empty()
            && self.hurried.is_empty()
            && self.cgroup_removed.is_none()
            && self.finished.is_none()
    }

    /// Has the adapter look often at these sandboxes, and no longer at others of this pod.
    pub(super) fn hurry(&mut self, wanted: BTreeSet<SandboxId>, out: &mut Outputs) {
        let relaxed: Vec<_> = self.hurried.difference(&wanted).cloned().collect();
        let hurried: Vec<_> = wanted.difference(&self.hurried).cloned().collect();
        if !hurried.is_empty() {
            out.request(Request::Cri(CriRequest::StartFastPoll(hurried)));
        }
        if !relaxed.is_empty() {
            out.request(Request::Cri(CriRequest::StopFastPoll(relaxed)));
        }
        self.hurried = wanted;
    }
}

/// How many lives the static pods of this node have had: theirs is the only UID that comes back.
#[derive(Debug, Default)]
pub(super) struct Lives {
    of: Table<PodUid, u32>,
    order: VecDeque<PodUid>,
}

impl Lives {
    pub(super) fn had(&self, uid: &PodUid) -> u32 {
        self.of.get(uid).copied().unwrap_or_default()
    }

    fn note(&mut self, uid: &PodUid, life: u32) {
        if self.of.insert(uid.clone(), life).is_none() {
            self.order.push_back(uid.clone());
        }
        if self.of.len() > MAX_STATIC_PODS
            && let Some(oldest) = self.order.pop_front()
        {
            self.of.remove(&oldest);
        }
    }
}

impl Engine {
    /// Looks at one pod; true if something of it is under way.
    pub(super) fn look(
        &mut self,
        now: BootTime,
        uid: &PodUid,
        is_dirty: bool,
        out: &mut Outputs,
    ) -> bool {
        let mut pod = self.pods.remove(uid).unwrap_or_else(|| self.unknown_pod(uid));
        let mut under_way = self.look_at(now, uid, &mut pod, is_dirty, out);
        if let Some(finished) = &mut pod.finished {
            under_way |= finished.count_if_due(now, out);
        }
        let known = !pod.is_blank() && self.runtime.has_sandbox(uid);
        if known || under_way || pod.finished.is_some() {
            self.pods.insert(uid.clone(), pod);
        } else {
            pod.hurry(BTreeSet::new(), out);
        }
        under_way
    }

    pub(super) fn unknown_pod(&self, uid: &PodUid) -> Pod {
        Pod { life: self.static_lives.had(uid), ..Pod::default() }
    }

    fn look_at(
        &mut self,
        now: BootTime,
        uid: &PodUid,
        pod: &mut Pod,
        is_dirty: bool,
        out: &mut Outputs,
    ) -> bool {
        let settle = self.settings.settle;
        let accounts = self.account(uid, &pod.past, pod.cgroup_removed);
        if accounts.is_empty() {
            pod.terminating = false;
            pod.hurry(BTreeSet::new(), out);
            return self.follow_up(now, uid, pod, is_dirty, out);
        }
        let members = accounts.members();
        if members.alive > 0
            && let Some(earlier) = pod.finished.take()
        {
            earlier.close(out); // another life began
        }
        let untold = |id: &ContainerId| !pod.told.contains(id) && accounts.ended(id).is_some();
        let begins = members.requested || members.all.iter().any(untold);
        pod.terminating = begins;
        let settled = accounts.is_settled(&members, now, settle);
        // Until then the runtime has something to do soon.
        let soon = accounts.deadline(&members).max(members.ended).is_none_or(|at| now < at + HURRY);
        let owes = accounts.runtime_owes(&members);
        let hurry = begins && soon && (owes || (!settled && !pod.hurried.is_empty()));
        pod.hurry(if hurry { accounts.seen_sandboxes() } else { BTreeSet::new() }, out);
        if settled && accounts.is_complete(&members, now, PATIENCE) {
            let life = pod.life + 1;
            let account = accounts.build(&members.all, life);
            // Those that had died before the pod was to end, too recently to have been told.
            let in_account = |id: &ContainerId| account.containers.iter().any(|c| c.id == *id);
            let mut earlier: Vec<_> = members.all.iter().filter(|id| !in_account(id)).collect();
            earlier.sort_by_key(|id| accounts.ended(id));
            for death in earlier.into_iter().map(|id| accounts.death(id, None)) {
                if pod.told.insert(death.id.clone()) {
                    report_alone(death, out);
                }
            }
            let mut uncounted = BTreeSet::new();
            for death in &account.containers {
                if pod.told.insert(death.id.clone()) {
                    uncounted.insert(death.id.clone());
                    out.report(Report::ContainerDied(Box::new(death.clone())));
                }
            }
            if let Some(earlier) = pod.finished.take() {
                earlier.close(out);
            }
            let (sandboxes, is_static) = (accounts.sandboxes(), accounts.is_static());
            pod.hurry(BTreeSet::new(), out);
            pod.life = life;
            if is_static {
                self.static_lives.note(uid, life);
            }
            pod.terminating = false;
            pod.past.extend(sandboxes.iter().cloned());
            let members = members.all;
            let finished = Finished::new(now, sandboxes, members, account, uncounted, out);
            pod.finished = Some(finished);
            return true;
        }
        // Deaths in a pod that goes on, or takes long to go.
        let ending = accounts.is_ending(&members);
        // What has ended is looked at until it is finished: whatever is missing, it may still come.
        let ended = members.alive == 0 && !members.sandbox_runs && !members.all.is_empty();
        let mut waiting = members.requested || ended;
        for id in &members.all {
            let Some(ended) = accounts.ended(id) else { continue };
            if pod.told.contains(id) {
                continue;
            }
            waiting = true;
            let due = if ending || members.alive == 0 { ended + ALONE } else { ended + settle };
            if now >= due && (accounts.is_explained(id) || now >= ended + PATIENCE) {
                let into_the_end = ending && accounts.ended_with_its_pod(id);
                let cause = into_the_end.then(|| accounts.cause(&members.all));
                let death = accounts.death(id, cause.as_ref());
                // Who was told to stop is told of without its pod's end only if that is not coming.
                let stopped = death.milestone(MilestoneKind::StopBegan).is_some();
                if stopped && accounts.lost_sight_of(id) && now < ended + WATCH_PATIENCE {
                    continue;
                }
                pod.told.insert(id.clone());
                report_alone(death, out);
            }
        }
        waiting
    }

    /// The pod's facts, without those of the sandboxes of earlier lives.
    pub(super) fn account<'a>(
        &'a self,
        uid: &'a PodUid,
        earlier: &BTreeSet<SandboxId>,
        cgroup_removed: Option<BootTime>,
    ) -> Account<'a> {
        let sources = Sources {
            identity: &self.identity,
            processes: &self.processes,
            runtime: &self.runtime,
            objects: &self.objects,
            keepers: &self.keepers,
            anchor: self.settings.anchor,
        };
        Account::new(sources, uid, earlier, cgroup_removed)
    }
}

/// A death that is not part of a pod's report, or not yet: it is reported once and never updated, so it is
/// counted at once.
fn report_alone(death: ContainerDeath, out: &mut Outputs) {
    let death = Box::new(death);
    out.report(Report::ContainerDied(death.clone()));
    out.report(Report::CountDeath(death));
}
