//! Pod terminations and container deaths.

use crate::{ids::*, process::*, serialize, time::*, traffic::Traffic, types::*};
use serde::{Deserialize, Serialize};
use std::{ops::Not, time::Duration};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    pub kind: FindingKind,
    /// The details, as one sentence.
    pub detail: String,
    /// For a contradiction: its subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradiction: Option<Contradiction>,
}

impl Finding {
    /// A finding other than a contradiction.
    pub fn new(kind: FindingKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), contradiction: None }
    }

    /// A contradiction: both sides, and which one is proven.
    pub fn contradiction(about: Contradiction, detail: impl Into<String>) -> Self {
        let kind = FindingKind::Contradiction;
        Self { kind, detail: detail.into(), contradiction: Some(about) }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Milestone {
    pub kind: MilestoneKind,
    /// The time at which the event had certainly happened: the end of its interval.
    pub at: Moment,
    /// The event happened within this time before `at` (the runtime is polled). Absent: 0.
    #[serde(
        rename = "uncertaintySeconds",
        with = "serialize::seconds",
        default,
        skip_serializing_if = "Duration::is_zero"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub uncertainty: Duration,
    pub source: Source,
}

impl Milestone {
    /// A milestone whose moment is known.
    pub fn exact(kind: MilestoneKind, at: Option<BootTime>, source: Source) -> Option<Self> {
        at.map(|at| Self { kind, at: at.into(), uncertainty: Duration::ZERO, source })
    }

    /// A milestone that happened within an interval.
    pub fn within(kind: MilestoneKind, change: Option<Interval>, source: Source) -> Option<Self> {
        let change = change?;
        Some(Self { kind, at: change.latest.into(), uncertainty: change.uncertainty(), source })
    }
}

/// A phase of a pod's termination.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Phase {
    pub kind: PhaseKind,
    /// The start: the end of the previous phase.
    pub from: Moment,
    pub to: Moment,
    /// `to` − `from`, seconds.
    #[serde(rename = "seconds", with = "serialize::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub took: Duration,
    /// The phase may have ended up to this much earlier. Absent: 0.
    #[serde(
        rename = "uncertaintySeconds",
        with = "serialize::seconds",
        default,
        skip_serializing_if = "Duration::is_zero"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub uncertainty: Duration,
}

impl Phase {
    /// The length is a measurement, not an interval.
    pub fn is_exact(&self) -> bool {
        is_exact(self.took, self.uncertainty)
    }
}

/// The proof of a verdict: one sentence for people, and the evidence as data.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Proof {
    pub message: String,
    /// The evidence, in order of time.
    #[serde(deserialize_with = "serialize::known")]
    pub evidence: Vec<Evidence>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Evidence {
    pub at: Moment,
    pub source: Source,
    #[serde(flatten)]
    pub kind: EvidenceKind,
}

/// The content of a piece of evidence; for the kernel's records, the tracepoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EvidenceKind {
    /// A signal was sent (`__send_signal_locked`, kernel/signal.c).
    SignalGenerate {
        signal: u8,
        /// `si_code`: 0 is kill(2), 0x80 the kernel, negative sigqueue and the like.
        code: i32,
        /// What the kernel did with it.
        result: SignalResult,
        sender: Process,
        /// The target's state at that time, if it could be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Target>,
    },
    /// A handler took a signal (`get_signal`, kernel/signal.c).
    SignalDeliver { signal: u8 },
    /// The main process's last thread exited (`do_exit`, kernel/exit.c).
    SchedProcessExit { status: ExitStatus },
    /// The OOM killer selected a process (`__oom_kill_process`, mm/oom_kill.c).
    MarkVictim {
        /// The victim's thread ID.
        pid: u32,
    },
    /// The last process left the cgroup (`cgroup_notify_populated`, kernel/cgroup/cgroup.c).
    CgroupEmpty,
    /// The preStop hook's process started.
    PreStopExec {
        pid: Tgid,
        /// `comm`.
        comm: String,
    },
    /// The preStop hook's process exited.
    PreStopExit { status: ExitStatus },
    /// The pod's spec has a preStop hook without a process.
    PreStopSpec { hook: Hook },
    /// The state in /proc of a process that survives SIGKILL.
    Process(ProcProcess),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Death))]
#[serde(rename_all = "camelCase")]
pub struct ContainerDeath {
    /// The node that the agent observes; absent in a termination's containers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    pub id: ContainerId,
    /// The name in the pod; empty until the runtime reports it.
    pub name: String,
    /// The pod; `null` until a source reports it.
    pub pod: Option<PodRef>,
    /// The workload that the pod belongs to, where the apiserver has shown it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    pub kind: ContainerKind,
    /// How the container died.
    pub verdict: Verdict,
    pub proof: Proof,
    /// Why the container was stopped.
    pub cause: Cause,
    pub cause_source: Source,
    /// The evidence for the cause; for `unknown`, what is missing. One sentence.
    pub cause_message: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "serialize::known")]
    pub findings: Vec<Finding>,
    /// How the init exited, from the kernel.
    pub exit: Option<ExitStatus>,
    pub stop_signal: u8,
    /// The granted grace period, seconds.
    pub grace_seconds: Option<i64>,
    /// Used share of the allowed time, from the start of the stop to the empty cgroup. The allowed time is the grace
    /// period, or less if a later request shortened it.
    pub grace_ratio: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<Hook>,
    /// The sender of the SIGKILL that ended the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killer: Option<Process>,
    /// Number of processes that the kernel killed with the PID namespace.
    pub children_killed: u32,
    /// Names of the first few of these processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children_names: Vec<String>,
    /// Milestones in order of time.
    #[serde(deserialize_with = "serialize::known")]
    pub milestones: Vec<Milestone>,
    /// The agent started after the stop had begun.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub truncated: bool,
    /// Losses that may affect this report.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "serialize::known")]
    pub incomplete: Vec<LossKind>,
}

impl ContainerDeath {
    pub fn milestone(&self, kind: MilestoneKind) -> Option<&Milestone> {
        self.milestones.iter().find(|m| m.kind == kind)
    }

    /// Sets the wall clock of all its times.
    pub fn date(&mut self, clock: &Anchor) {
        let evidence = self.proof.evidence.iter_mut().map(|one| &mut one.at);
        let milestones = self.milestones.iter_mut().map(|one| &mut one.at);
        evidence.chain(milestones).for_each(|at| at.date(clock));
    }
}

/// The termination of one incarnation of a pod.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Termination))]
#[serde(rename_all = "camelCase")]
pub struct PodTermination {
    /// The node that the agent observes; absent in the output of a replay.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    pub pod: PodRef,
    /// 1 for the first incarnation of this UID; each return of a static pod's manifest adds 1.
    pub life: u32,
    /// 1 for the first report of this incarnation, 2 if it was corrected.
    pub revision: u32,
    /// It is not corrected any more; only the removal of sandbox and cgroup may be added.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// The workload that the pod belongs to, if the apiserver has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// Why the pod terminated.
    pub cause: Cause,
    pub cause_source: Source,
    /// The evidence for the cause; for `unknown`, what is missing. One sentence.
    pub cause_message: String,
    /// The grace period of the first request, seconds.
    pub grace_seconds: Option<i64>,
    /// A later request shortened the grace period to this, in seconds from that request (the apiserver sets 1 if the new
    /// deadline has already passed).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortened_to_seconds: Option<i64>,
    /// Where the report begins.
    pub began: Moment,
    /// Where the report ends: the last of the processes, the sandbox and the object.
    pub ended: Moment,
    /// `ended` − `began`, seconds.
    #[serde(rename = "seconds", with = "serialize::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub took: Duration,
    /// `seconds` is the upper end of an interval of this length, because a source did not report the last event, or the
    /// request, when it happened. Absent: 0.
    #[serde(
        rename = "uncertaintySeconds",
        with = "serialize::seconds",
        default,
        skip_serializing_if = "Duration::is_zero"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub uncertainty: Duration,
    /// Seconds from the apiserver's timestamp of the request (deletionTimestamp − grace period, the lower bound) to
    /// `began`. Includes the clock skew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_lag_seconds: Option<f64>,
    /// Milestones of the pod and of the container on the critical path, in order of time.
    #[serde(deserialize_with = "serialize::known")]
    pub milestones: Vec<Milestone>,
    /// The phases, whose sum is `seconds`.
    #[serde(deserialize_with = "serialize::known")]
    pub phases: Vec<Phase>,
    /// The container whose cgroup became empty last: the critical path.
    pub critical: Option<ContainerId>,
    pub containers: Vec<ContainerDeath>,
    /// The pod's TCP connections; absent: the agent did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// Findings about the pod itself; the containers have their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "serialize::known")]
    pub findings: Vec<Finding>,
    /// The agent started after the termination had begun.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub truncated: bool,
    /// Losses that may affect this report.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "serialize::known")]
    pub incomplete: Vec<LossKind>,
}

/// When the first of these containers began to be stopped.
pub fn stop_began(containers: &[ContainerDeath]) -> Option<BootTime> {
    let began = containers.iter().filter_map(|c| c.milestone(MilestoneKind::StopBegan));
    began.map(|began| began.at.boot).min()
}

impl PodTermination {
    pub fn milestone(&self, kind: MilestoneKind) -> Option<&Milestone> {
        self.milestones.iter().find(|m| m.kind == kind)
    }

    /// When the first of its containers began to be stopped, by a preStop hook or a signal.
    pub fn stop_began(&self) -> Option<BootTime> {
        stop_began(&self.containers)
    }

    /// It listened on no port: clients are refused whether it terminates or not.
    pub fn never_listened(&self) -> bool {
        let traffic = self.traffic.as_ref();
        traffic.is_some_and(|traffic| traffic.never_listened(self.stop_began(), self.truncated))
    }

    /// The total is a measurement, not an interval.
    pub fn is_exact(&self) -> bool {
        is_exact(self.took, self.uncertainty)
    }

    pub fn phase(&self, kind: PhaseKind) -> Duration {
        self.phases.iter().filter(|p| p.kind == kind).map(|p| p.took).sum()
    }

    /// Sets the wall clock of all its times.
    pub fn date(&mut self, clock: &Anchor) {
        let milestones = self.milestones.iter_mut().map(|one| &mut one.at);
        let phases = self.phases.iter_mut().flat_map(|one| [&mut one.from, &mut one.to]);
        let all = milestones.chain(phases).chain([&mut self.began, &mut self.ended]);
        all.for_each(|at| at.date(clock));
        self.containers.iter_mut().for_each(|death| death.date(clock));
        self.traffic.iter_mut().for_each(|traffic| traffic.date(clock));
    }
}

/// Whether a duration with this uncertainty counts as measured: polling is no more precise than a second, and
/// 10 % are less than a histogram's bucket.
fn is_exact(duration: Duration, uncertainty: Duration) -> bool {
    uncertainty <= Duration::from_secs(1) || uncertainty * 10 <= duration
}
