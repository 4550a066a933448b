//! What kernel, runtime and kubelet do in one history, step by step. Of the core it knows only what can be put into
//! it.

use super::{
    plan::{Fault, Plan, Response},
    truth::{Attempt, Change, InRuntime, MS, PAUSE_CGROUP, POD_CGROUP, Posted, TrueEnd, name},
};
use coroner_core::testkit::*;

pub(super) struct Builder<'a> {
    pub(super) plan: &'a Plan,
    pub(super) random: fastrand::Rng,
    pub(super) kernel: Vec<(u64, KernelFact)>,
    pub(super) runtime: Vec<(u64, InRuntime)>,
    pub(super) changes: Vec<(u64, Change)>,
    /// When a container ended, and the change that shows it.
    pub(super) ends: Vec<(u64, usize)>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) posted: Vec<Posted>,
    /// When the story begins.
    pub(super) story: u64,
}

impl Builder<'_> {
    pub(super) fn soon(&mut self, from: u64, to: u64) -> u64 {
        self.random.u64(from..to)
    }

    pub(super) fn start(&mut self, at: u64, container: usize) -> usize {
        let index = self.attempts.len();
        let number = self.attempts.iter().filter(|one| one.container == container).count() as u32;
        let id = format!("{:064x}", 0xc0 + index);
        let cgroup = CgroupId(20 + index as u64);
        let pid = 100 + index as u32;
        let ns_pid = if self.plan.shares_pids { pid } else { 1 };
        let task = task(pid, ns_pid, "app");
        self.kernel.push((at, created(cgroup, Some(POD_CGROUP), &id)));
        // The runtime may leave the cgroup once before it moves the main process there.
        if self.random.bool() {
            self.kernel.push((at + 2, KernelFact::CgroupEmpty { cgroup }));
        }
        // Or it executes itself there first.
        if self.random.bool() {
            self.executes_itself(at + 3, cgroup, 50 + index as u32);
        }
        self.kernel.push((at + 5, exec(cgroup, task.clone())));
        self.runtime.push((at + 10, InRuntime::Runs(index)));
        let previous = self.attempts.iter().rev().find(|one| one.container == container);
        let before = previous.map(|one| terminated(ContainerId::new(one.id.as_str()), one.code));
        let told = at + self.random.u64(50..900);
        let running = ContainerId::new(id.as_str());
        self.changes.push((
            told,
            Box::new(move |pod| {
                let status = pod.containers.get_mut(&name(container)).expect("it is in the spec");
                status.id = Some(running.clone());
                status.started = Some(true);
                status.restarts = number;
                status.waiting = None;
                status.terminated = before.iter().cloned().collect();
            }),
        ));
        self.attempts.push(Attempt {
            id,
            container,
            number,
            cgroup,
            task,
            began: at + 5,
            code: 0,
            end: None,
        });
        index
    }

    pub(super) fn signal(&mut self, at: u64, index: usize, signal: u8, response: Response) {
        let one = &self.attempts[index];
        let kill = signal == 9;
        let disposition = match response {
            Response::Ignores if self.plan.shares_pids => Disposition::Ignore,
            Response::Ignores | Response::Blocks => Disposition::Default,
            _ => Disposition::Handler,
        };
        let blocks = response == Response::Blocks;
        let sent = Signal::to(one.cgroup, one.task.clone(), signal).state(|state| {
            state.unkillable = !kill && !self.plan.shares_pids;
            (state.disposition, state.blocked) = (disposition, blocks);
            state.pending = if kill && blocks { 1 << 14 } else { 0 };
        });
        let is_ignored = !kill && response == Response::Ignores;
        let sent = if is_ignored { sent.ignored() } else { sent };
        self.kernel.push((at, sent.fact()));
    }

    /// `shown`: the kubelet reports that it has ended. It does not where it starts it again in the sync in
    /// which it stopped it.
    pub(super) fn ends(&mut self, at: u64, index: usize, status: ExitStatus, shown: bool) {
        let Attempt { cgroup, task, container, id, .. } = self.attempts[index].clone();
        let code = match status {
            ExitStatus::Code(code) => i32::from(code),
            ExitStatus::Signal { signal, .. } => 128 + i32::from(signal),
        };
        self.attempts[index].code = code;
        self.kernel.push((at, exit(cgroup, task, status)));
        self.kernel.push((at + 1, KernelFact::CgroupEmpty { cgroup }));
        self.kernel.push((at + 20, KernelFact::CgroupRemoved { cgroup }));
        let told = at + self.soon(5, 150);
        self.runtime.push((told, InRuntime::Exited(index, code)));
        let told = told + self.soon(50, 900);
        if !shown {
            return;
        }
        let id = ContainerId::new(id);
        self.ends.push((at, self.changes.len()));
        self.changes.push((
            told,
            Box::new(move |pod| {
                let status = pod.containers.get_mut(&name(container)).expect("it is in the spec");
                if status.id.as_ref() == Some(&id) {
                    status.started = Some(false);
                    status.terminated = vec![terminated(id.clone(), code)];
                }
            }),
        ));
    }

    /// The OOM killer chooses its main process, and the kernel kills it.
    pub(super) fn oom(&mut self, at: u64, index: usize) {
        let Attempt { cgroup, task, .. } = self.attempts[index].clone();
        let pid = task.tid;
        self.kernel.push((at, KernelFact::OomVictim { cgroup: Some(cgroup), pid }));
        self.signal(at, index, 9, Response::Ignores);
        if let Some((_, KernelFact::SignalGenerated(sent))) = self.kernel.last_mut() {
            // The kernel sends it in the process that asked for memory: this one.
            sent.code = 0x80;
            sent.sender = ProcessRef { cgroup: Some(cgroup), ..inside(&task) };
        }
        self.attempts[index].end = Some(TrueEnd::new(at, "oom_killed", &["completed"]));
        self.ends(at, index, KILLED, true);
    }

    /// What has ended waits in back-off, which the status shows from then on.
    pub(super) fn waits(&mut self, at: u64, index: usize) {
        let Attempt { id, container, code, .. } = self.attempts[index].clone();
        let id = ContainerId::new(id);
        self.changes.push((
            at,
            Box::new(move |pod| {
                let status = pod.containers.get_mut(&name(container)).expect("it is in the spec");
                status.started = Some(false);
                status.waiting = Some("CrashLoopBackOff".into());
                status.terminated = vec![terminated(id.clone(), code)];
            }),
        ));
    }

    /// The kubelet stops one: hook, stop signal, SIGKILL; when it is dead.
    pub(super) fn stop(
        &mut self,
        at: u64,
        index: usize,
        grace_ms: u64,
        causes: &[&'static str],
    ) -> u64 {
        let hook = self.plan.containers[self.attempts[index].container].hook;
        self.stops(at, index, grace_ms, (hook, true), causes)
    }

    /// `how`: for so long its preStop hook runs, and whether the kubelet reports its end.
    pub(super) fn stops(
        &mut self,
        at: u64,
        index: usize,
        grace_ms: u64,
        how: (Option<u64>, bool),
        causes: &[&'static str],
    ) -> u64 {
        let (hook, shown) = how;
        let reason = match causes {
            ["liveness"] => Some(KillReason::LivenessProbe),
            ["definition_changed"] => Some(KillReason::DefinitionChanged),
            ["external_stop"] => None,
            _ => Some(KillReason::Stopping),
        };
        // Its recorder drops Events (client-go/tools/record): here every other one.
        if let Some(reason) = reason
            && self.plan.jitter >> index & 1 == 0
        {
            let container = name(self.attempts[index].container);
            self.posted.push(Posted { at, container, reason });
        }
        let container = self.plan.containers[self.attempts[index].container];
        let (mut term, mut left) = (at + self.soon(2, 40), grace_ms.max(2_000));
        if let Some(runs) = hook {
            let Attempt { cgroup, .. } = self.attempts[index];
            let task = task(500 + index as u32, 40, "hook");
            let began = term;
            term = began + runs + self.soon(5, 60);
            left = left.saturating_sub(runs / 1000 * 1000).max(2_000);
            self.enters(task, cgroup, (began, began + runs), ExitStatus::Code(0));
        }
        let kill = term + left;
        let mut handled = term;
        match container.response {
            Response::HandlesSecond => {
                self.signal(term, index, 15, Response::Ignores);
                handled = term + 1_000;
                self.signal(term + 1_000, index, 15, container.response);
            }
            response => self.signal(term, index, 15, response),
        }
        let (dead, verdict) = match container.response {
            Response::Handles(ms) => (term + ms, "graceful"),
            Response::HandlesTooLong | Response::HandlesSecond => (kill, "grace_exceeded"),
            Response::Ignores => (kill, "stop_signal_ignored"),
            Response::Blocks => (kill, "stop_signal_blocked"),
        };
        if !matches!(container.response, Response::Ignores | Response::Blocks) {
            let Attempt { cgroup, task, .. } = self.attempts[index].clone();
            self.kernel.push((handled, taken(cgroup, task, 15)));
        }
        let status = if dead == kill {
            self.signal(kill, index, 9, container.response);
            KILLED
        } else {
            ExitStatus::Code(container.code)
        };
        // Of what the kubelet could not finish stopping it finds out later.
        let interrupted = match self.plan.fault {
            Fault::RuntimeKilled { from, lasts } => {
                let down = self.story.saturating_add_signed(from);
                down <= dead && at <= down + lasts
            }
            _ => false,
        };
        self.ends(dead, index, status, shown || interrupted);
        self.attempts[index].end = Some(TrueEnd::new(dead, verdict, causes));
        dead
    }

    /// The last runs of a container's exec probe before this moment.
    pub(super) fn probes(&mut self, before: u64, index: usize, fail: bool) {
        let container = self.plan.containers[self.attempts[index].container];
        if !(container.probed && container.by_exec) {
            return;
        }
        let Attempt { cgroup, began, .. } = self.attempts[index];
        for n in 1..=3_u32 {
            let at = before - u64::from(n) * 1_000;
            let task = task(700 + n, 50, "check");
            let status = ExitStatus::Code(u8::from(fail));
            if at > began {
                self.enters(task, cgroup, (at, at + 30), status);
            }
        }
    }

    /// runc executes itself in the cgroup, and leaves.
    fn executes_itself(&mut self, at: u64, cgroup: CgroupId, number: u32) {
        let named = |comm: &str| task(number, number, comm);
        let (status, parent) = (ExitStatus::Code(0), Some(runc()));
        let began = KernelFact::Exec { cgroup, task: named("exe"), parent: runc() };
        let task = named("runc:[0:PARENT]");
        self.kernel.push((at, began));
        self.kernel.push((at + 1, KernelFact::Exit { cgroup, task, status, parent }));
    }

    /// What `runc exec` starts is its child until it ends, and then the shim's.
    fn enters(
        &mut self,
        task: Task,
        cgroup: CgroupId,
        (began, ended): (u64, u64),
        status: ExitStatus,
    ) {
        let parent = if self.random.bool() { runc() } else { shim() };
        if self.random.bool() {
            self.executes_itself(began - 1, cgroup, 1000 + task.tid);
        }
        self.kernel.push((began, KernelFact::Exec { cgroup, task: task.clone(), parent }));
        self.kernel.push((ended, exit(cgroup, task, status)));
    }

    /// The last attempts of all containers that still run at this moment.
    pub(super) fn running(&self, at: u64) -> Vec<usize> {
        let runs =
            |one: &Attempt| one.began <= at && one.end.as_ref().is_none_or(|end| end.at > at);
        (0..self.attempts.len()).filter(|index| runs(&self.attempts[*index])).collect()
    }

    /// The kubelet stops what runs, mains first, then its native sidecars; when all are dead.
    pub(super) fn stop_all(&mut self, at: u64, cause: &'static str) -> u64 {
        let grace = self.plan.grace * 1000;
        let is_sidecar = |builder: &Self, index: &usize| {
            builder.plan.containers[builder.attempts[*index].container].sidecar
        };
        let running = self.running(at);
        let mut last = at;
        for index in
            running.iter().filter(|index| !is_sidecar(self, index)).copied().collect::<Vec<_>>()
        {
            let dead = match &self.attempts[index].end {
                // Its own stop goes on.
                Some(end) => end.at,
                None => self.stop(at, index, grace, &[cause]),
            };
            last = last.max(dead);
        }
        let left = (at + grace).saturating_sub(last);
        let mains_dead = last;
        for index in
            running.iter().filter(|index| is_sidecar(self, index)).copied().collect::<Vec<_>>()
        {
            let dead = match &self.attempts[index].end {
                Some(end) => end.at,
                None => {
                    let begins = mains_dead + self.soon(5, 100);
                    self.stop(begins, index, left, &[cause])
                }
            };
            last = last.max(dead);
        }
        last
    }

    /// The sandbox is stopped; when.
    pub(super) fn stop_sandbox(&mut self, dead: u64) -> u64 {
        let at = dead + self.soon(100, 700);
        self.kernel.push((at, KernelFact::CgroupEmpty { cgroup: PAUSE_CGROUP }));
        self.kernel.push((at + 10, KernelFact::CgroupRemoved { cgroup: PAUSE_CGROUP }));
        self.runtime.push((at + 20, InRuntime::SandboxStopped));
        at + 20
    }

    /// The pod is deleted, and the kubelet acts on it later; when its object goes, and when nothing of it is left.
    pub(super) fn delete(&mut self, at: u64, acts: u64) -> (u64, u64) {
        let grace = self.plan.grace;
        // In whole seconds.
        let deadline = (at + grace * 1000).saturating_add_signed(self.plan.skew) / 1000 * 1000;
        self.changes.push((
            at,
            Box::new(move |pod| {
                pod.deletion_timestamp = Some(WallTime(deadline as i64 * MS));
                pod.deletion_grace_seconds = Some(grace as i64);
            }),
        ));
        let dead = self.stop_all(acts, "api_delete");
        let stopped = self.stop_sandbox(dead);
        let told = stopped + self.soon(950, 1_500);
        self.changes.push((told, Box::new(|pod| pod.phase = "Succeeded".into())));
        let gone = told + self.soon(50, 500);
        self.changes.push((
            gone,
            Box::new(move |pod| {
                // The apiserver keeps when it was asked (rest.BeforeDelete).
                pod.deletion_timestamp = Some(WallTime((deadline - grace * 1000) as i64 * MS));
                pod.deletion_grace_seconds = Some(0);
            }),
        ));
        self.kernel.push((gone + 100, KernelFact::CgroupRemoved { cgroup: POD_CGROUP }));
        let removed = gone + self.soon(500, 60_000);
        for index in 0..self.attempts.len() {
            self.runtime.push((removed, InRuntime::Removed(index)));
        }
        self.runtime.push((removed + 50, InRuntime::SandboxRemoved));
        (gone + self.plan.finalizer.unwrap_or_default(), removed + 50)
    }
}

pub(super) fn terminated(id: ContainerId, exit_code: i32) -> ApiTerminated {
    let reason = if exit_code == 0 { "Completed" } else { "Error" }.into();
    ApiTerminated { id: Some(id), exit_code, reason }
}

/// The verdict of what ends by itself.
pub(super) fn by_itself(code: u8) -> &'static str {
    if code == 0 { "completed" } else { "failed" }
}
