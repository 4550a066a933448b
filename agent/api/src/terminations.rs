//! Pod terminations and container deaths.

use crate::{Moment, Open, is_zero, traffic::Traffic};
use coroner_core::{
    ids::{ContainerId, PodRef, Tgid},
    input::{
        ContainerKind, Disposition, ExitStatus, Hook, LossKind, ProcProcess, SignalResult, Workload,
    },
    report::Finding,
    types::{Cause, Certainty, MilestoneKind, PhaseKind, Source, Verdict},
};
use serde::{Deserialize, Serialize};
use std::ops::Not;
use utoipa::ToSchema;

/// The termination of one incarnation of a pod.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Termination {
    /// The node that the agent observes; absent in the output of a replay.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The pod.
    pub pod: PodRef,
    /// 1 for the first incarnation of this UID; each return of a static pod's manifest adds 1.
    pub life: u32,
    /// 1 for the first report of this incarnation. Each update has the next number, unless it changes only the removal
    /// of sandbox and cgroup, or `final`.
    pub revision: u32,
    /// No other revision follows; only the removal of sandbox and cgroup may be added.
    #[serde(rename = "final")]
    #[schema(rename = "final")]
    pub is_final: bool,
    /// The workload that the pod belongs to, if the apiserver has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// Why the pod terminated.
    #[schema(value_type = Cause)]
    pub cause: Open<Cause>,
    /// How certain the cause is.
    #[schema(value_type = Certainty)]
    pub cause_certainty: Open<Certainty>,
    /// The source of the cause.
    #[schema(value_type = Source)]
    pub cause_source: Open<Source>,
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
    pub seconds: f64,
    /// `seconds` is the upper end of an interval of this length, because a source did not report the last event, or the
    /// request, when it happened. Absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncertainty_seconds: f64,
    /// Seconds from the apiserver's timestamp of the request (deletionTimestamp − grace period, the lower bound) to
    /// `began`. Includes the clock skew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_lag_seconds: Option<f64>,
    /// Milestones of the pod and of the container on the critical path, in order of time.
    #[schema(value_type = Vec<Milestone>)]
    pub milestones: Vec<Open<Milestone>>,
    /// The phases, whose sum is `seconds`.
    #[schema(value_type = Vec<Phase>)]
    pub phases: Vec<Open<Phase>>,
    /// The container whose cgroup became empty last: the critical path.
    pub critical: Option<ContainerId>,
    /// The pod's containers.
    pub containers: Vec<Death>,
    /// The pod's TCP connections; absent: the agent did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// Findings about the pod itself; the containers have their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Finding>)]
    pub findings: Vec<Open<Finding>>,
    /// The agent started after the termination had begun.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub truncated: bool,
    /// Losses that may affect this report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<LossKind>)]
    pub incomplete: Vec<Open<LossKind>>,
}

/// The death of one container.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Death {
    /// The node that the agent observes; absent in a termination's containers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The container's id.
    pub id: ContainerId,
    /// The name in the pod; empty until the runtime reports it.
    pub name: String,
    /// The pod; `null` until a source reports it.
    pub pod: Option<PodRef>,
    /// The workload that the pod belongs to, where the apiserver has shown it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// The container's kind.
    #[schema(value_type = ContainerKind)]
    pub kind: Open<ContainerKind>,
    /// How the container died.
    #[schema(value_type = Verdict)]
    pub verdict: Open<Verdict>,
    /// The proof of the verdict.
    pub proof: Proof,
    /// Why the container was stopped.
    #[schema(value_type = Cause)]
    pub cause: Open<Cause>,
    /// How certain the cause is.
    #[schema(value_type = Certainty)]
    pub cause_certainty: Open<Certainty>,
    /// The source of the cause.
    #[schema(value_type = Source)]
    pub cause_source: Open<Source>,
    /// The evidence for the cause; for `unknown`, what is missing. One sentence.
    pub cause_message: String,
    /// Further findings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Finding>)]
    pub findings: Vec<Open<Finding>>,
    /// How the init exited, from the kernel.
    #[schema(value_type = Option<ExitStatus>)]
    pub exit: Option<Open<ExitStatus>>,
    /// The stop signal's number.
    pub stop_signal: u8,
    /// The granted grace period, seconds.
    pub grace_seconds: Option<i64>,
    /// Used share of the allowed time, from the start of the stop to the empty cgroup. The allowed time is the grace
    /// period, or less if a later request shortened it.
    pub grace_ratio: Option<f64>,
    /// The preStop hook in the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Hook>)]
    pub pre_stop: Option<Open<Hook>>,
    /// The sender of the SIGKILL that ended the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killer: Option<Process>,
    /// Number of processes that the kernel killed with the PID namespace.
    pub children_killed: u32,
    /// Names of the first few of these processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children_names: Vec<String>,
    /// Milestones in order of time.
    #[schema(value_type = Vec<Milestone>)]
    pub milestones: Vec<Open<Milestone>>,
    /// The agent started after the stop had begun.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub truncated: bool,
    /// Losses that may affect this report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<LossKind>)]
    pub incomplete: Vec<Open<LossKind>>,
}

/// A milestone of a termination.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Milestone {
    /// The kind of milestone.
    pub kind: MilestoneKind,
    /// The time at which the event had certainly happened: the end of its interval.
    pub at: Moment,
    /// The event happened within this time before `at` (the runtime is polled). Absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncertainty_seconds: f64,
    /// The source.
    pub source: Source,
}

/// A phase of a pod's termination.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Phase {
    /// The kind of phase.
    pub kind: PhaseKind,
    /// The start: the end of the previous phase.
    pub from: Moment,
    /// The end.
    pub to: Moment,
    /// `to` − `from`, seconds.
    pub seconds: f64,
    /// The phase may have ended up to this much earlier. Absent: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncertainty_seconds: f64,
}

/// The proof of a verdict: one sentence for people, and the evidence as data.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Proof {
    /// One sentence.
    pub message: String,
    /// The evidence, in order of time.
    #[schema(value_type = Vec<Evidence>)]
    pub evidence: Vec<Open<Evidence>>,
}

/// One piece of evidence.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Evidence {
    /// The time.
    pub at: Moment,
    /// The source.
    pub source: Source,
    /// The content.
    #[serde(flatten)]
    pub kind: EvidenceKind,
}

/// The content of a piece of evidence; for the kernel's records, the tracepoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EvidenceKind {
    /// A signal was sent (`__send_signal_locked`, kernel/signal.c).
    SignalGenerate {
        /// The signal's number.
        signal: u8,
        /// `si_code`: 0 is kill(2), 0x80 the kernel, negative sigqueue and the like.
        code: i32,
        /// What the kernel did with it.
        result: SignalResult,
        /// The sender.
        sender: Process,
        /// The target's state at that time, if it could be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Target>,
    },
    /// A handler took a signal (`get_signal`, kernel/signal.c).
    SignalDeliver {
        /// The signal's number.
        signal: u8,
    },
    /// The main process's last thread exited (`do_exit`, kernel/exit.c).
    SchedProcessExit {
        /// The exit status.
        status: ExitStatus,
    },
    /// The OOM killer selected a process (`__oom_kill_process`, mm/oom_kill.c).
    MarkVictim {
        /// The victim's thread ID.
        pid: u32,
    },
    /// The last process left the cgroup (`cgroup_notify_populated`, kernel/cgroup/cgroup.c).
    CgroupEmpty,
    /// The preStop hook's process started.
    PreStopExec {
        /// The process.
        pid: Tgid,
        /// `comm`.
        comm: String,
    },
    /// The preStop hook's process exited.
    PreStopExit {
        /// The exit status.
        status: ExitStatus,
    },
    /// The pod's spec has a preStop hook without a process.
    PreStopSpec {
        /// The hook.
        hook: Hook,
    },
    /// The state in /proc of a process that survives SIGKILL.
    Process(ProcProcess),
}

/// A process on the node: the sender of a signal.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// The PID in the agent's PID namespace; 0: the kernel itself, or a process outside of that namespace.
    pub pid: Tgid,
    /// `comm`: the name, truncated to 15 bytes by the kernel.
    pub comm: String,
    /// The ID of the cgroup, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<u64>,
    /// Whether the process is in a container; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_container: Option<bool>,
}

/// The state of a signal's target (`task_struct.signal`, `.sighand`, `.blocked`).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The target is the init of a PID namespace (SIGNAL_UNKILLABLE). The kernel clears the flag when a fatal signal takes
    /// effect.
    pub unkillable: bool,
    /// The target is already exiting (SIGNAL_GROUP_EXIT).
    pub group_exit: bool,
    /// The disposition of this signal.
    pub disposition: Disposition,
    /// The target thread blocks the signal.
    pub blocked: bool,
    /// Numbers of the signals that are pending.
    pub pending: Vec<u8>,
}
