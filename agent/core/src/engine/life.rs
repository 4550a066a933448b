//! A pod over its lives: when its account, and those of its containers, are due, and what becomes of
//! them afterwards.

use super::Engine;
use crate::{
    account::{Account, Sources},
    ids::{ContainerId, PodUid, SandboxId},
    observation::{Amendment, MilestoneKind, Observation, PodTermination},
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
/// A finished pod whose sandbox stays (a completed Job) keeps its account open for this long.
pub(super) const TAIL: Duration = Duration::from_secs(600);
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
    pub(super) fn hurry(&mut self, wanted: BTreeSet<SandboxId>, said: &mut Vec<Observation>) {
        let relaxed: Vec<_> = self.hurried.difference(&wanted).cloned().collect();
        let hurried: Vec<_> = wanted.difference(&self.hurried).cloned().collect();
        if !hurried.is_empty() {
            said.push(Observation::PodTerminating { sandboxes: hurried });
        }
        if !relaxed.is_empty() {
            said.push(Observation::PodSettled { sandboxes: relaxed });
        }
        self.hurried = wanted;
    }
}

#[derive(Debug)]
pub(super) struct Finished {
    pub(super) at: BootTime,
    sandboxes: BTreeSet<SandboxId>,
    members: BTreeSet<ContainerId>,
    account: PodTermination,
    /// The engine's epoch when it was built last, if nothing but news of the pod can change it
    /// within one.
    built: Option<u64>,
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
        is_news: bool,
        said: &mut Vec<Observation>,
    ) -> bool {
        let mut pod = self.pods.remove(uid).unwrap_or_else(|| self.unknown_pod(uid));
        let under_way = self.look_at(now, uid, &mut pod, is_news, said);
        let known = !pod.is_blank() && self.runtime.has_sandbox(uid);
        if known || under_way || pod.finished.is_some() {
            self.pods.insert(uid.clone(), pod);
        } else {
            pod.hurry(BTreeSet::new(), said);
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
        is_news: bool,
        said: &mut Vec<Observation>,
    ) -> bool {
        let settle = self.settings.settle;
        let accounts = self.account(uid, &pod.past, pod.cgroup_removed);
        if accounts.is_empty() {
            pod.terminating = false;
            pod.hurry(BTreeSet::new(), said);
            return self.amend(now, uid, pod, is_news, said);
        }
        let members = accounts.members();
        if members.alive > 0 && pod.finished.is_some() {
            pod.finished = None; // another life began
        }
        let untold = |id: &ContainerId| !pod.told.contains(id) && accounts.ended(id).is_some();
        let begins = members.requested || members.all.iter().any(untold);
        pod.terminating = begins;
        let settled = accounts.is_settled(&members, now, settle);
        // Until then the runtime has something to do soon.
        let soon = accounts.deadline(&members).max(members.ended).is_none_or(|at| now < at + HURRY);
        let owes = accounts.runtime_owes(&members);
        let hurry = begins && soon && (owes || (!settled && !pod.hurried.is_empty()));
        pod.hurry(if hurry { accounts.seen_sandboxes() } else { BTreeSet::new() }, said);
        if settled && accounts.is_complete(&members, now, PATIENCE) {
            let life = pod.life + 1;
            let account = accounts.build(&members.all, life);
            // Those that had died before the pod was to end, too recently to have been told.
            let in_account = |id: &ContainerId| account.containers.iter().any(|c| c.id == *id);
            let mut earlier: Vec<_> = members.all.iter().filter(|id| !in_account(id)).collect();
            earlier.sort_by_key(|id| accounts.ended(id));
            let earlier = earlier.into_iter().map(|id| accounts.death(id, None));
            for death in earlier.chain(account.containers.iter().cloned()) {
                if pod.told.insert(death.id.clone()) {
                    said.push(Observation::ContainerDied(Box::new(death)));
                }
            }
            said.push(Observation::PodTerminated(Box::new(account.clone())));
            let (sandboxes, is_static) = (accounts.sandboxes(), accounts.is_static());
            pod.hurry(BTreeSet::new(), said);
            pod.life = life;
            if is_static {
                self.static_lives.note(uid, life);
            }
            pod.terminating = false;
            pod.past.extend(sandboxes.iter().cloned());
            let members = members.all;
            pod.finished = Some(Finished { at: now, sandboxes, members, account, built: None });
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
                if stopped && accounts.lost_sight_of(id) && now < ended + ALONE {
                    continue;
                }
                pod.told.insert(id.clone());
                said.push(Observation::ContainerDied(Box::new(death)));
            }
        }
        waiting
    }

    /// A finished pod: what came since? True while its tail is open.
    fn amend(
        &self,
        now: BootTime,
        uid: &PodUid,
        pod: &mut Pod,
        is_news: bool,
        said: &mut Vec<Observation>,
    ) -> bool {
        let Some(finished) = &mut pod.finished else { return false };
        if now > finished.at + TAIL {
            return false;
        }
        if !is_news && finished.built == Some(self.epoch) {
            return finished.account.milestone(MilestoneKind::SandboxRemoved).is_none();
        }
        let earlier = pod.past.difference(&finished.sandboxes).cloned().collect();
        let accounts = self.account(uid, &earlier, pod.cgroup_removed);
        let account = accounts.build(&finished.members, finished.account.life);
        // Of a container that the runtime does not call exited, each list may say something new.
        finished.built = accounts.are_exited().then_some(self.epoch);
        if account == finished.account {
            return finished.account.milestone(MilestoneKind::SandboxRemoved).is_none();
        }
        let tail = |a: &PodTermination| {
            let mut a = a.clone();
            a.milestones.retain(|m| {
                !matches!(m.kind, MilestoneKind::SandboxRemoved | MilestoneKind::CgroupRemoved)
            });
            a
        };
        let removed = |a: &PodTermination| a.milestone(MilestoneKind::SandboxRemoved).is_some();
        let only_tail = tail(&account) == tail(&finished.account);
        let newly_removed = removed(&account) && !removed(&finished.account);
        // Evidence that was needed and has been forgotten since must not unsay what was said.
        if account.milestones.len() < finished.account.milestones.len() {
            return false;
        }
        finished.account = account.clone();
        if !only_tail {
            let account = Box::new(account.clone());
            said.push(Observation::PodAmended(account, Amendment::LateEvidence));
        }
        if newly_removed {
            said.push(Observation::PodAmended(Box::new(account), Amendment::SandboxRemoved));
        }
        !removed(&finished.account)
    }

    /// The pod's facts, without those of the sandboxes of earlier lives.
    fn account<'a>(
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
