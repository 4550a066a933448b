//! The truth of one history: what really happens, moment by moment, and what reports about it are held against.

use coroner_core::testkit::{self, *};
use serde::{Deserialize, Serialize};
use std::ops::Range;

pub(super) const POD_CGROUP: CgroupId = CgroupId(10);
pub(super) const PAUSE_CGROUP: CgroupId = CgroupId(11);
pub(super) const MS: i64 = 1_000_000;
/// When the pod is created: so long after boot that no clock shows a time before it.
pub(super) const BEGIN: u64 = 36_000_000;

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
    pub(super) number: u32,
    pub(crate) cgroup: CgroupId,
    pub(crate) task: Task,
    pub(crate) began: u64,
    /// What the runtime says it exited with.
    pub(super) code: i32,
    /// When its main process ended, how, and why; `None`: it still runs at the end of the history.
    pub(crate) end: Option<TrueEnd>,
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
pub(crate) struct TrueEnd {
    pub(crate) at: u64,
    pub(crate) verdict: String,
    /// Any of these is true.
    pub(crate) causes: Vec<String>,
}

impl TrueEnd {
    pub(super) fn new(at: u64, verdict: &str, causes: &[&str]) -> Self {
        let causes = causes.iter().map(ToString::to_string).collect();
        Self { at, verdict: verdict.into(), causes }
    }
}

/// An Event of the kubelet: a container is stopped for this reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Posted {
    pub(crate) at: u64,
    pub(crate) container: String,
    pub(crate) reason: KillReason,
}

/// Of a history, what the reports are held against.
#[derive(Serialize, Deserialize)]
pub(crate) struct Expected {
    /// What the kubelet posted.
    #[serde(default)]
    pub(crate) posted: Vec<Posted>,
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
    pub(crate) end: Option<TrueEnd>,
}

pub(super) type Change = Box<dyn Fn(&mut ApiPod)>;

/// A whole history. Times are ms of CLOCK_BOOTTIME.
pub(crate) struct Truth {
    pub(crate) kernel: Vec<(u64, KernelFact)>,
    pub(crate) runtime: Vec<(u64, InRuntime)>,
    pub(crate) object: Vec<(u64, ApiPod)>,
    /// When the object goes.
    pub(crate) gone: Option<u64>,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) posted: Vec<Posted>,
    /// When the story begins.
    pub(crate) story: u64,
    /// Why the pod ended, if it did.
    pub(crate) pod_end: Option<&'static str>,
    /// When all of it has happened.
    pub(crate) over: u64,
    pub(super) grace: u64,
    pub(super) hooks: Vec<bool>,
    /// When the node's wall clock is set, and by how much, ms.
    pub(super) clock_set: Option<(u64, i64)>,
}

/// A container's main process.
pub(crate) fn is_main(task: &Task) -> bool {
    task.comm == "app"
}

/// The programs take runc that executes itself before the container's program for the main process, too.
pub(super) fn seems_main(task: &Task) -> bool {
    is_main(task) || task.tid < 100
}

pub(crate) fn uid() -> PodUid {
    ids(1).0
}

pub(super) fn sandbox_id() -> SandboxId {
    ids(1).1
}

pub(super) fn name(container: usize) -> String {
    format!("c{container}")
}

impl Truth {
    pub(crate) fn expected(&self, complete: u64) -> Expected {
        let attempt = |one: &Attempt| ExpectedAttempt {
            id: one.id.clone(),
            name: name(one.container),
            end: one.end.clone(),
        };
        let attempts = self.attempts.iter().map(attempt).collect();
        let posted = self.posted.clone();
        Expected { posted, complete, pod_end: self.pod_end.map(Into::into), attempts }
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
        let created = Some(self.wall(BEGIN));
        let sandboxes = sandbox.filter(|_| begun);
        let sandboxes = sandboxes.map(|ready| CriSandbox { created, ..testkit::sandbox(1, ready) });
        let containers = self.attempts.iter().zip(states).filter_map(|(one, state)| {
            Some(CriContainer {
                id: ContainerId::new(one.id.as_str()),
                name: name(one.container),
                attempt: one.number,
                created: Some(self.wall(one.began)),
                grace_seconds: Some(self.grace as i64),
                pre_stop: exec_hook("hook").filter(|_| self.hooks[one.container]),
                ..container(1, state?)
            })
        });
        (sandboxes.into_iter().collect(), containers.collect())
    }

    /// What the node's wall clock shows at this moment.
    pub(super) fn wall(&self, at: u64) -> WallTime {
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
