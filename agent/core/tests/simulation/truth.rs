//! The truth: what really happens, moment by moment, as kernel, runtime and kubelet do it. Of the core it
//! knows only what can be put into it.

use super::plan::{Fault, Plan, Response, Story, Why};
use coroner_core::{
    ids::{CgroupId, ContainerId, PodUid, SandboxId, Tgid},
    input::{
        ApiContainer, ApiPod, ApiProbe, ApiTerminated, ContainerKind, ContainerState, CriContainer,
        CriSandbox, Disposition, ExitStatus, Hook, KernelFact, ProcessRef, SignalGenerated,
        SignalResult, TargetState, Task,
    },
    time::WallTime,
};
use serde::{Deserialize, Serialize};
use std::ops::Range;

const POD_CGROUP: CgroupId = CgroupId(10);
const PAUSE_CGROUP: CgroupId = CgroupId(11);
const MS: i64 = 1_000_000;
/// When the pod is created: so long after boot that no clock shows a time before it.
const BEGIN: u64 = 36_000_000;

/// What happens in the runtime's records.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InRuntime {
    Runs(usize),
    Exited(usize, i32),
    Removed(usize),
    SandboxStopped,
    SandboxRemoved,
}

/// One attempt of a container, and what is true of its end.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) id: String,
    pub(crate) container: usize,
    number: u32,
    /// Of its definition.
    hash: &'static str,
    pub(crate) cgroup: CgroupId,
    pub(crate) task: Task,
    pub(crate) began: u64,
    /// What the runtime says it exited with.
    code: i32,
    /// When its main process ended, how, and why; `None`: it still runs at the end of the history.
    pub(crate) end: Option<End>,
}

impl Attempt {
    /// What the runtime and the status say of its end.
    pub(crate) fn exit_reason(&self) -> &'static str {
        match &self.end {
            Some(end) if end.verdict == "oom_killed" => "OOMKilled",
            _ if self.code == 0 => "Completed",
            _ => "Error",
        }
    }
}

/// The truth of an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) at: u64,
    pub(crate) verdict: String,
    /// Any of these is true.
    pub(crate) causes: Vec<String>,
}

impl End {
    fn new(at: u64, verdict: &str, causes: &[&str]) -> Self {
        let causes = causes.iter().map(ToString::to_string).collect();
        Self { at, verdict: verdict.into(), causes }
    }
}

/// Of a history, what the reports are held against.
#[derive(Serialize, Deserialize)]
pub(crate) struct Expected {
    /// When all sources had reported all.
    pub(crate) complete: u64,
    /// Why the pod ended, if it did.
    pub(crate) pod_end: Option<String>,
    pub(crate) attempts: Vec<ExpectedAttempt>,
}

/// Of an attempt, what its reports are held against.
#[derive(Serialize, Deserialize)]
pub(crate) struct ExpectedAttempt {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) end: Option<End>,
}

type Change = Box<dyn Fn(&mut ApiPod)>;

/// A whole history. Times are ms of CLOCK_BOOTTIME.
pub(crate) struct Truth {
    pub(crate) kernel: Vec<(u64, KernelFact)>,
    pub(crate) runtime: Vec<(u64, InRuntime)>,
    pub(crate) object: Vec<(u64, ApiPod)>,
    /// When the object goes.
    pub(crate) gone: Option<u64>,
    pub(crate) attempts: Vec<Attempt>,
    /// When the story begins.
    pub(crate) story: u64,
    /// Why the pod ended, if it did.
    pub(crate) pod_end: Option<&'static str>,
    /// When all of it has happened.
    pub(crate) over: u64,
    grace: u64,
    hooks: Vec<bool>,
    /// When the node's wall clock is set, and by how much, ms.
    clock_set: Option<(u64, i64)>,
}

pub(crate) fn shim() -> ProcessRef {
    ProcessRef { tgid: Tgid(1), comm: "runc".into(), cgroup: None, in_container: Some(false) }
}

pub(crate) fn uid() -> PodUid {
    PodUid::new("00000001-0000-4000-8000-000000000000")
}

fn sandbox_id() -> SandboxId {
    SandboxId::new(format!("{:064x}", 0xa))
}

fn name(container: usize) -> String {
    format!("c{container}")
}

struct Builder<'a> {
    plan: &'a Plan,
    random: fastrand::Rng,
    kernel: Vec<(u64, KernelFact)>,
    runtime: Vec<(u64, InRuntime)>,
    changes: Vec<(u64, Change)>,
    /// When a container ended, and the change that shows it.
    ends: Vec<(u64, usize)>,
    attempts: Vec<Attempt>,
    /// Of the definition of what starts now.
    hash: &'static str,
    /// When the story begins.
    story: u64,
}

impl Builder<'_> {
    fn soon(&mut self, from: u64, to: u64) -> u64 {
        self.random.u64(from..to)
    }

    fn start(&mut self, at: u64, container: usize) -> usize {
        let index = self.attempts.len();
        let number = self.attempts.iter().filter(|one| one.container == container).count() as u32;
        let id = format!("{:064x}", 0xc0 + index);
        let cgroup = CgroupId(20 + index as u64);
        let pid = 100 + index as u32;
        let task =
            Task { tgid: Tgid(pid), tid: pid, ns_pid: Some(1), started: None, comm: "app".into() };
        let created = KernelFact::CgroupCreated {
            cgroup,
            parent: Some(POD_CGROUP),
            name: id.clone(),
            scanned: false,
        };
        self.kernel.push((at, created));
        // The runtime may leave the cgroup once before it moves the main process there.
        if self.random.bool() {
            self.kernel.push((at + 2, KernelFact::CgroupEmpty { cgroup }));
        }
        self.kernel.push((at + 5, KernelFact::Exec { cgroup, task: task.clone(), parent: shim() }));
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
            hash: self.hash,
            cgroup,
            task,
            began: at + 5,
            code: 0,
            end: None,
        });
        index
    }

    fn signal(&mut self, at: u64, index: usize, signal: u8, response: Response) {
        let one = &self.attempts[index];
        let kill = signal == 9;
        let handles = !matches!(response, Response::Ignores | Response::Blocks);
        let state = TargetState {
            unkillable: !kill,
            group_exit: kill,
            disposition: if handles { Disposition::Handler } else { Disposition::Default },
            blocked: response == Response::Blocks,
            pending: if kill && response == Response::Blocks { 1 << 14 } else { 0 },
        };
        let ignored = !kill && response == Response::Ignores;
        self.kernel.push((
            at,
            KernelFact::SignalGenerated(SignalGenerated {
                cgroup: one.cgroup,
                target: one.task.clone(),
                signal,
                code: 0,
                group: true,
                result: if ignored { SignalResult::Ignored } else { SignalResult::Delivered },
                sender: shim(),
                state: Some(state),
            }),
        ));
    }

    /// `shown`: the kubelet reports that it has ended. It does not where it starts it again in the sync in
    /// which it stopped it.
    fn ends(&mut self, at: u64, index: usize, status: ExitStatus, shown: bool) {
        let Attempt { cgroup, task, container, id, .. } = self.attempts[index].clone();
        let code = match status {
            ExitStatus::Code(code) => i32::from(code),
            ExitStatus::Signal { signal, .. } => 128 + i32::from(signal),
        };
        self.attempts[index].code = code;
        self.kernel.push((at, KernelFact::Exit { cgroup, task, status, parent: Some(shim()) }));
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
    fn oom(&mut self, at: u64, index: usize) {
        let Attempt { cgroup, task, .. } = self.attempts[index].clone();
        let pid = task.tid;
        self.kernel.push((at, KernelFact::OomVictim { cgroup: Some(cgroup), pid }));
        self.signal(at, index, 9, Response::Ignores);
        if let Some((_, KernelFact::SignalGenerated(sent))) = self.kernel.last_mut() {
            // The kernel sends it in the process that asked for memory: this one.
            sent.code = 0x80;
            let (tgid, comm, in_container) = (task.tgid, task.comm, Some(true));
            sent.sender = ProcessRef { tgid, comm, cgroup: Some(cgroup), in_container };
        }
        self.attempts[index].end = Some(End::new(at, "oom_killed", &["completed"]));
        self.ends(at, index, ExitStatus::Signal { signal: 9, core: false }, true);
    }

    /// What has ended waits in back-off, which the status shows from then on.
    fn waits(&mut self, at: u64, index: usize) {
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
    fn stop(&mut self, at: u64, index: usize, grace_ms: u64, causes: &[&'static str]) -> u64 {
        let hook = self.plan.containers[self.attempts[index].container].hook;
        self.stops(at, index, grace_ms, (hook, true), causes)
    }

    /// `how`: for so long its preStop hook runs, and whether the kubelet reports its end.
    fn stops(
        &mut self,
        at: u64,
        index: usize,
        grace_ms: u64,
        how: (Option<u64>, bool),
        causes: &[&'static str],
    ) -> u64 {
        let (hook, shown) = how;
        let container = self.plan.containers[self.attempts[index].container];
        let (mut term, mut left) = (at + self.soon(2, 40), grace_ms.max(2_000));
        if let Some(runs) = hook {
            let Attempt { cgroup, .. } = self.attempts[index];
            let pid = 500 + index as u32;
            let task = Task {
                tgid: Tgid(pid),
                tid: pid,
                ns_pid: Some(40),
                started: None,
                comm: "hook".into(),
            };
            let began = term;
            term = began + runs + self.soon(5, 60);
            left = left.saturating_sub(runs / 1000 * 1000).max(2_000);
            self.kernel
                .push((began, KernelFact::Exec { cgroup, task: task.clone(), parent: shim() }));
            let status = ExitStatus::Code(0);
            let parent = Some(shim());
            self.kernel.push((began + runs, KernelFact::Exit { cgroup, task, status, parent }));
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
            let disposition = Disposition::Handler;
            self.kernel.push((
                handled,
                KernelFact::SignalDelivered { cgroup, task, signal: 15, disposition },
            ));
        }
        let status = if dead == kill {
            self.signal(kill, index, 9, container.response);
            ExitStatus::Signal { signal: 9, core: false }
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
        self.attempts[index].end = Some(End::new(dead, verdict, causes));
        dead
    }

    /// The last runs of a container's exec probe before this moment.
    fn probes(&mut self, before: u64, index: usize, fail: bool) {
        let container = self.plan.containers[self.attempts[index].container];
        if !(container.probed && container.by_exec) {
            return;
        }
        let Attempt { cgroup, began, .. } = self.attempts[index];
        for n in 1..=3_u32 {
            let at = before - u64::from(n) * 1_000;
            let (tgid, comm) = (Tgid(700 + n), "check".into());
            let task = Task { tgid, tid: tgid.0, ns_pid: Some(50), started: None, comm };
            let status = ExitStatus::Code(u8::from(fail));
            if at > began {
                let parent = Some(shim());
                self.kernel
                    .push((at, KernelFact::Exec { cgroup, task: task.clone(), parent: shim() }));
                self.kernel.push((at + 30, KernelFact::Exit { cgroup, task, status, parent }));
            }
        }
    }

    /// The last attempts of all containers that still run at this moment.
    fn running(&self, at: u64) -> Vec<usize> {
        let runs =
            |one: &Attempt| one.began <= at && one.end.as_ref().is_none_or(|end| end.at > at);
        (0..self.attempts.len()).filter(|index| runs(&self.attempts[*index])).collect()
    }

    /// The kubelet stops what runs, mains first, then its native sidecars; when all are dead.
    fn stop_all(&mut self, at: u64, cause: &'static str) -> u64 {
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
    fn stop_sandbox(&mut self, dead: u64) -> u64 {
        let at = dead + self.soon(100, 700);
        self.kernel.push((at, KernelFact::CgroupEmpty { cgroup: PAUSE_CGROUP }));
        self.kernel.push((at + 10, KernelFact::CgroupRemoved { cgroup: PAUSE_CGROUP }));
        self.runtime.push((at + 20, InRuntime::SandboxStopped));
        at + 20
    }

    /// The pod is deleted, and the kubelet acts on it later; when its object goes, and when nothing of it is left.
    fn delete(&mut self, at: u64, acts: u64) -> (u64, u64) {
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

fn terminated(id: ContainerId, exit_code: i32) -> ApiTerminated {
    let reason = if exit_code == 0 { "Completed" } else { "Error" }.into();
    ApiTerminated { id: Some(id), exit_code, reason, finished: None }
}

/// The verdict of what ends by itself.
fn by_itself(code: u8) -> &'static str {
    if code == 0 { "completed" } else { "failed" }
}

impl Truth {
    pub(crate) fn of(plan: &Plan) -> Self {
        let begin = BEGIN;
        let story = begin + 2_000 + plan.ran;
        let mut builder = Builder {
            plan,
            random: fastrand::Rng::with_seed(plan.jitter),
            kernel: Vec::new(),
            runtime: Vec::new(),
            changes: Vec::new(),
            ends: Vec::new(),
            attempts: Vec::new(),
            hash: "a",
            story,
        };
        let pod = format!("/kubepods/pod{}", uid());
        for (cgroup, parent, name) in
            [(POD_CGROUP, None, pod), (PAUSE_CGROUP, Some(POD_CGROUP), sandbox_id().to_string())]
        {
            let fact = KernelFact::CgroupCreated { cgroup, parent, name, scanned: false };
            builder.kernel.push((begin, fact));
        }
        builder.changes.push((begin - 500, Box::new(|_| ())));
        builder.changes.push((begin + 1_000, Box::new(|pod| pod.phase = "Running".into())));
        for container in 0..plan.containers.len() {
            builder.start(begin + 100 + container as u64 * 20, container);
        }
        let mut ends = None;
        let mut pod_end = None;
        match plan.story {
            Story::Delete => {
                ends = Some(builder.delete(story, story + plan.reaction));
                pod_end = Some("api_delete");
            }
            Story::Stop { why, which, then_deleted } => {
                builder.probes(story, which, matches!(why, Why::Liveness));
                let deleted = then_deleted.map(|after| story + after);
                let mut acts = deleted.map(|at| at + plan.reaction);
                let grace = plan.grace * 1000;
                // Of a list not even the order of what it shows is known.
                let listed = matches!(
                    plan.fault,
                    Fault::Relisted { .. } | Fault::HungRelisted { .. } | Fault::AgentStarts { .. }
                );
                // Where no clock is right, only that the rest of the pod was stopped later tells a stop before
                // the deletion from one for it.
                let blurred = if matches!(plan.fault, Fault::Clocks { .. }) { 2_500 } else { 0 };
                // What the kubelet stops it starts again in the same sync, whatever comes meanwhile; what it
                // finds ended only if the pod is not being deleted by then.
                match why {
                    Why::Liveness | Why::Definition => {
                        if matches!(why, Why::Definition) {
                            let before = story - builder.soon(20, 100);
                            let change = Box::new(move |pod: &mut ApiPod| {
                                pod.containers.get_mut(&name(which)).expect("of the spec").image =
                                    2;
                            });
                            builder.changes.push((before, change));
                        }
                        let cause = match why {
                            Why::Definition => "definition_changed",
                            _ => "liveness",
                        };
                        let hook = plan.containers[which].hook;
                        let dead = builder.stops(story, which, grace, (hook, false), &[cause]);
                        if matches!(why, Why::Definition) {
                            builder.hash = "b";
                        }
                        // A changed image is pulled first; what was stopped for its probe may have to wait
                        // in back-off, which the status of the next sync shows. A deletion ends both.
                        let found = dead + builder.soon(100, 500);
                        let mut shown = dead;
                        if plan.pause > 0 && !matches!(why, Why::Definition) {
                            shown = found + builder.soon(200, 1_200);
                            if deleted.is_none_or(|at| at > shown) {
                                builder.waits(shown, which);
                            }
                        }
                        let again = found + plan.pause;
                        let restarts = plan.pause == 0 || acts.is_none_or(|acts| again + 50 < acts);
                        if restarts {
                            builder.start(again, which);
                            acts = acts.map(|at| at.max(again + 50));
                        } else {
                            // What the kubelet acted on nothing tells.
                            let soon = |at| at <= (shown + blurred).max(story + 5_500) || listed;
                            if deleted.is_some_and(soon) {
                                let end = builder.attempts[which].end.as_mut();
                                end.expect("it has ended").causes.push("api_delete".into());
                            }
                            acts = acts.map(|at| at.max(found));
                        }
                    }
                    Why::External | Why::Itself | Why::Oom => {
                        let (dead, cause) = if matches!(why, Why::External) {
                            let cause = "external_stop";
                            (builder.stops(story, which, grace, (None, true), &[cause]), cause)
                        } else if matches!(why, Why::Oom) {
                            builder.oom(story, which);
                            (story, "completed")
                        } else {
                            let code = plan.containers[which].code;
                            builder.ends(story, which, ExitStatus::Code(code), true);
                            builder.attempts[which].end =
                                Some(End::new(story, by_itself(code), &["completed"]));
                            (story, "completed")
                        };
                        let found = dead + builder.soon(1_000, 2_500);
                        let again = found + plan.pause;
                        let restarts = acts.is_none_or(|acts| again + 50 < acts);
                        // The deletion came while it was being stopped, or so soon after that nothing
                        // tells which of the two the kubelet acted on.
                        let soon =
                            |at| at <= (dead + blurred).max(story + 5_500) || listed && !restarts;
                        if deleted.is_some_and(soon) {
                            let end = builder.attempts[which].end.as_mut().expect("it has ended");
                            end.causes = vec![cause.into(), "api_delete".into()];
                        }
                        if plan.pause > 0 && acts.is_none_or(|acts| found + 100 < acts) {
                            builder.waits(found + 100, which);
                        }
                        if restarts {
                            builder.start(again, which);
                        }
                    }
                }
                if let Some((at, acts)) = deleted.zip(acts) {
                    ends = Some(builder.delete(at, acts));
                    pod_end = Some("api_delete");
                }
            }
            Story::Complete { .. } => {
                let (mut last, mut failed) = (story, false);
                let mains = (0..plan.containers.len()).filter(|one| !plan.containers[*one].sidecar);
                for index in mains.collect::<Vec<_>>() {
                    let at = story + builder.soon(0, 3_000);
                    let code = plan.containers[index].code;
                    failed |= code != 0;
                    builder.ends(at, index, ExitStatus::Code(code), true);
                    builder.attempts[index].end =
                        Some(End::new(at, by_itself(code), &["completed"]));
                    last = last.max(at);
                }
                let at = last + builder.soon(50, 1_000);
                let dead = builder.stop_all(at, "completed");
                let stopped = builder.stop_sandbox(dead);
                let told = stopped + builder.soon(950, 1_500);
                let phase = if failed { "Failed" } else { "Succeeded" };
                builder.changes.push((told, Box::new(move |pod| pod.phase = phase.into())));
                pod_end = Some("completed");
            }
        }
        let Builder { mut kernel, mut runtime, mut changes, ends: mut shown, attempts, .. } =
            builder;
        // A status is of one moment: it shows no end without those before.
        shown.sort_unstable();
        let mut last = 0;
        for (_, change) in shown {
            last = changes[change].0.max(last);
            changes[change].0 = last;
        }
        kernel.sort_by_key(|(at, _)| *at);
        runtime.sort_by_key(|(at, _)| *at);
        changes.sort_by_key(|(at, _)| *at);
        let mut pod = object(plan);
        let object: Vec<_> = changes
            .iter()
            .map(|(at, change)| {
                change(&mut pod);
                (*at, pod.clone())
            })
            .collect();
        let last = |times: &[u64]| times.iter().copied().max().unwrap_or_default();
        let over = last(&[
            kernel.last().map_or(0, |(at, _)| *at),
            runtime.last().map_or(0, |(at, _)| *at),
            object.last().map_or(0, |(at, _)| *at),
        ]);
        Self {
            kernel,
            runtime,
            object,
            gone: ends.map(|(gone, _)| gone + 1),
            attempts,
            story,
            pod_end,
            over,
            grace: plan.grace,
            hooks: plan.containers.iter().map(|one| one.hook.is_some()).collect(),
            clock_set: match plan.fault {
                Fault::Clocks { from, step } => Some((story.saturating_add_signed(from), step)),
                _ => None,
            },
        }
    }

    pub(crate) fn expected(&self, complete: u64) -> Expected {
        let attempt = |one: &Attempt| ExpectedAttempt {
            id: one.id.clone(),
            name: name(one.container),
            end: one.end.clone(),
        };
        let attempts = self.attempts.iter().map(attempt).collect();
        Expected { complete, pod_end: self.pod_end.map(Into::into), attempts }
    }

    /// What the runtime lists at this moment.
    pub(crate) fn listed(&self, at: u64) -> (Vec<CriSandbox>, Vec<CriContainer>) {
        let (mut sandbox, mut states) = (Some(true), vec![None; self.attempts.len()]);
        for (_, change) in self.runtime.iter().take_while(|(when, _)| *when <= at) {
            match change {
                InRuntime::Runs(index) => states[*index] = Some(ContainerState::Running),
                InRuntime::Exited(index, _) => states[*index] = Some(ContainerState::Exited),
                InRuntime::Removed(index) => states[*index] = None,
                InRuntime::SandboxStopped => sandbox = Some(false),
                InRuntime::SandboxRemoved => sandbox = None,
            }
        }
        let begun = self.runtime.first().is_some_and(|(first, _)| *first <= at + 200);
        let sandboxes = sandbox.filter(|_| begun).map(|ready| CriSandbox {
            id: sandbox_id(),
            pod: uid(),
            name: "p".into(),
            namespace: "default".into(),
            attempt: 0,
            ready,
            created: self.wall(BEGIN),
            handler: String::new(),
            config_source: Some("api".into()),
        });
        let containers = self.attempts.iter().zip(states).filter_map(|(one, state)| {
            Some(CriContainer {
                id: ContainerId::new(one.id.as_str()),
                sandbox: sandbox_id(),
                name: name(one.container),
                attempt: one.number,
                state: state?,
                created: self.wall(one.began),
                pod: Some(uid()),
                hash: Some(one.hash.into()),
                grace_seconds: Some(self.grace as i64),
                pre_stop: self.hooks[one.container].then(|| Hook::Exec("hook".into())),
            })
        });
        (sandboxes.into_iter().collect(), containers.collect())
    }

    /// What the node's wall clock shows at this moment.
    fn wall(&self, at: u64) -> WallTime {
        let step = self.clock_set.filter(|(set, _)| at >= *set).map_or(0, |(_, step)| step);
        WallTime((at as i64 + step) * MS)
    }

    /// A time that begins so many ms after the story does.
    pub(crate) fn after_story(&self, from: i64, lasts: u64) -> Range<u64> {
        let from = self.story.saturating_add_signed(from);
        from..from + lasts
    }

    /// The object at this moment, if there is one.
    pub(crate) fn object_at(&self, at: u64) -> Option<&ApiPod> {
        let there = self.gone.is_none_or(|gone| at < gone);
        self.object.iter().rev().find(|(when, _)| *when <= at).map(|(_, pod)| pod).filter(|_| there)
    }
}

fn object(plan: &Plan) -> ApiPod {
    let container = |(index, one): (usize, &super::plan::Container)| {
        let spec = ApiContainer {
            kind: if one.sidecar { ContainerKind::Sidecar } else { ContainerKind::Main },
            pre_stop: one.hook.map(|_| Hook::Exec("hook".into())),
            liveness: one.probed.then(|| ApiProbe {
                exec: one.by_exec.then(|| "check".into()),
                ..ApiProbe::default()
            }),
            image: 1,
            ..ApiContainer::default()
        };
        (name(index), spec)
    };
    ApiPod {
        uid: uid().as_str().into(),
        namespace: "default".into(),
        name: "p".into(),
        grace_seconds: Some(plan.grace as i64),
        finalizers: plan.finalizer.iter().map(|_| "example.com/held".into()).collect(),
        restart_policy: match plan.story {
            Story::Complete { policy } => policy.into(),
            _ => "Always".into(),
        },
        phase: "Pending".into(),
        containers: plan.containers.iter().enumerate().map(container).collect(),
        ..ApiPod::default()
    }
}
