//! All that the world may learn from the engine. Serialisable: these are the bodies of the HTTP
//! API, and what the lab compares with its expectations.

use super::{
    evidence::Evidence,
    ids::{ContainerId, PodUid},
    input::{ContainerKind, CriSandbox, ExitStatus, Hook, LossKind, Sender, TaskState},
    labels,
    time::BootTime,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A container that SIGKILL has not ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holdout {
    /// The container, where known.
    pub container: Option<ContainerId>,
    /// Its name in the pod; empty while the runtime has not told.
    pub name: String,
    /// Its kind.
    pub kind: ContainerKind,
    /// Its pod, where known.
    pub pod: Option<PodRef>,
    /// What is left of it and where it hangs, as one sentence for a person.
    pub detail: String,
    /// It has ended now.
    pub over: bool,
}

/// What an update changes in the report of a terminated pod: the first that applies. A closed set: those
/// that are a new revision are a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Change {
    /// Late evidence: the verdict of a container. A new revision.
    Verdict,
    /// Late evidence: something else, such as a cause, a time or a finding. A new revision.
    Other,
    /// The sandbox was removed after the object: the second tail. Expected, and no new revision.
    SandboxRemoved,
    /// Nothing but that no revision follows.
    Final,
}

impl Change {
    /// The report has a new revision.
    pub fn is_revision(self) -> bool {
        matches!(self, Self::Verdict | Self::Other)
    }
}

/// A pod, as a person names it.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID as the runtime knows it.
    pub uid: PodUid,
}

impl CriSandbox {
    /// The pod that it belongs to.
    pub fn pod_ref(&self) -> PodRef {
        PodRef { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.pod.clone() }
    }
}

/// Why a pod or a container was stopped. A closed set: it is a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Deleted through the apiserver.
    ApiDelete,
    /// Deleted with grace 0 while something still ran.
    ForceDelete,
    /// Evicted through the eviction API (drain).
    ApiEviction,
    /// Evicted by the kubelet: the node was short of something.
    NodePressureEviction,
    /// Evicted by the kubelet: it used more local storage than its own limits allow.
    LocalStorageLimit,
    /// Preempted by the scheduler.
    Preemption,
    /// Preempted by the kubelet, for a critical static pod (preemption.go).
    KubeletPreemption,
    /// A taint without a toleration.
    TaintEviction,
    /// Deleted by the control plane's pod garbage collector.
    PodGc,
    /// The node shuts down gracefully.
    NodeShutdown,
    /// `activeDeadlineSeconds` of the pod was over (active_deadline.go).
    DeadlineExceeded,
    /// A liveness probe failed.
    Liveness,
    /// A startup probe failed.
    Startup,
    /// The container's image was changed in the pod's spec.
    DefinitionChanged,
    /// The container's resources were changed, and its resizePolicy is RestartContainer.
    ResizeRestart,
    /// A container exited with the rule RestartAllContainers (KEP-5532).
    RestartAllContainers,
    /// The pod's sandbox had died, and got a successor.
    SandboxChanged,
    /// The container's postStart hook failed.
    PostStartFailed,
    /// Not the kubelet: an administrator's `crictl stop`, another process, the runtime itself.
    ExternalStop,
    /// Stopped by the kubelet and started again; which of its reasons it had cannot be told.
    Restart,
    /// It left by itself.
    Completed,
    /// A static pod's manifest was removed.
    StaticRemoved,
    /// The sources do not tell.
    Unknown,
}

impl Cause {
    /// Why a container was stopped; of a pod only where it ended with that container.
    pub const fn is_of_a_container(self) -> bool {
        matches!(
            self,
            Self::Liveness
                | Self::Startup
                | Self::DefinitionChanged
                | Self::ResizeRestart
                | Self::RestartAllContainers
                | Self::SandboxChanged
                | Self::PostStartFailed
                | Self::ExternalStop
                | Self::Restart
        )
    }

    /// Somebody asked the apiserver to delete the pod.
    pub(crate) fn is_requested(self) -> bool {
        matches!(
            self,
            Self::ApiDelete
                | Self::ForceDelete
                | Self::ApiEviction
                | Self::Preemption
                | Self::TaintEviction
                | Self::PodGc
        )
    }
}

/// How sure a cause is. A closed set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// A source says so, or nothing else leaves this evidence.
    Proven,
    /// The most likely reason for what the sources show.
    Inferred,
    /// The cause is unknown.
    None,
}

/// A cause, and what says so.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reason {
    /// The cause.
    pub cause: Cause,
    /// Who says so.
    pub source: Source,
    /// What it rests on; for `unknown` what is missing. One sentence.
    pub sentence: String,
}

/// How a container died. A closed set, in the order of precedence: the first that matches wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The OOM killer chose its init.
    OomKilled,
    /// A fatal signal of its own making.
    Crashed,
    /// SIGKILL from outside with no stop signal before it.
    ForceKilled,
    /// preStop used the grace up: the stop signal came with only the floor left.
    PrestopExhaustedGrace,
    /// PID 1 without a handler, or SIG_IGN; then SIGKILL.
    StopSignalIgnored,
    /// The stop signal was still pending when SIGKILL came.
    StopSignalBlocked,
    /// Took the stop signal, still ran at the deadline, SIGKILL.
    GraceExceeded,
    /// The stop signal's default action ended it: nothing was cleaned up.
    TerminatedByDefault,
    /// Took the stop signal and left by itself within the grace.
    Graceful,
    /// Left by itself with 0, nothing was sent.
    Completed,
    /// Left by itself with another code, nothing was sent.
    Failed,
    /// Evidence was lost, or never had.
    Unknown,
}

/// What else is worth knowing about a death. A closed set: it is a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The kernel killed processes with the PID namespace that never got the stop signal.
    ChildrenNotSignalled,
    /// Still running well after its deadline.
    DeadlineMissed,
    /// The API or the CRI contradicts the kernel.
    Contradiction,
    /// Its processes outlived the pod's object.
    OutlivedObject,
    /// The runtime went away and came back during the termination.
    RuntimeRestarted,
    /// The kubelet ended, or began anew, during the termination.
    KubeletRestarted,
    /// preStop was still running when the stop signal came.
    PrestopCutOff,
    /// Alive long after SIGKILL: what of it, in which state, and where in the kernel.
    Unkillable,
    /// Its cgroup was frozen when the stop signal came, or while it was to end.
    Frozen,
    /// Kata, gVisor and the like: the host's kernel does not see inside.
    UnsupportedRuntime,
}

impl FindingKind {
    /// It is about a pod as a whole; otherwise about one of its containers.
    pub const fn is_of_the_pod(self) -> bool {
        matches!(self, Self::OutlivedObject | Self::RuntimeRestarted | Self::KubeletRestarted)
    }
}

/// A finding with its particulars.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Which.
    pub kind: FindingKind,
    /// The particulars, as one sentence for a person.
    pub detail: String,
    /// Of a contradiction: what about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradiction: Option<Contradiction>,
}

impl Finding {
    /// A finding that is no contradiction.
    pub fn new(kind: FindingKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), contradiction: None }
    }

    /// A contradiction: both sides, and which one is proven.
    pub fn contradiction(about: Contradiction, detail: impl Into<String>) -> Self {
        let kind = FindingKind::Contradiction;
        Self { kind, detail: detail.into(), contradiction: Some(about) }
    }
}

/// What the sources contradict each other about. A closed set: it is a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contradiction {
    /// The runtime's exit code is not the kernel's.
    RuntimeExitCode,
    /// The apiserver's exit code is not the kernel's.
    ApiExitCode,
    /// The runtime says OOMKilled, the kernel killed nothing of it for want of memory.
    RuntimeOomKilled,
    /// The runtime called it running long after its last process was gone.
    RunningWithoutProcesses,
    /// The runtime called it exited while processes of it lived.
    ExitedWithProcesses,
}

/// Who says so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A kernel program.
    Kernel,
    /// The container runtime.
    Cri,
    /// The apiserver.
    Api,
    /// The host's /proc.
    Proc,
    /// Concluded from the others.
    Inferred,
}

/// The milestones of a termination.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MilestoneKind {
    /// The delete request reached this node.
    DeleteRequested,
    /// The postStart hook ended for which the kubelet had made the deletion wait.
    PostStartEnded,
    /// The first act of stopping: preStop, or the stop signal.
    StopBegan,
    /// The preStop hook's process began.
    PreStopBegan,
    /// The preStop hook's process ended.
    PreStopEnded,
    /// The stop signal was sent.
    TermSent,
    /// The stop signal's handler ran.
    TermHandled,
    /// SIGKILL was sent.
    KillSent,
    /// The init's last thread exited.
    Exited,
    /// The container's last task left its cgroup.
    CgroupEmpty,
    /// The runtime says the container exited.
    ContainerExited,
    /// The sandbox is stopped (not ready).
    SandboxStopped,
    /// The kubelet has reported to the apiserver that nothing of the pod runs any more.
    StatusReported,
    /// A later delete request shortened the grace.
    GraceShortened,
    /// The kubelet has done its part and deleted the object for good; finalizers hold it.
    FinalDelete,
    /// The pod's object is gone.
    ObjectGone,
    /// The runtime has forgotten the sandbox.
    SandboxRemoved,
    /// The pod's cgroup is gone.
    CgroupRemoved,
}

impl MilestoneKind {
    /// It may come long after the pod's end, and changes nothing that was reported.
    pub(crate) fn is_of_the_tail(self) -> bool {
        matches!(self, Self::SandboxRemoved | Self::CgroupRemoved)
    }
}

/// A moment of a termination.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Milestone {
    /// Which.
    pub kind: MilestoneKind,
    /// When: for an interval its end, the moment it was certain.
    pub at: BootTime,
    /// It happened within this time before `at` (a CRI fact lies between two polls).
    #[serde(default, skip_serializing_if = "Duration::is_zero", with = "nanos")]
    pub uncertainty: Duration,
    /// Who says so.
    pub source: Source,
}

/// The phases of a pod's termination, along its critical path. A closed set: a metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// Delete request → the end of a postStart hook, which the kubelet waits for before it stops anything
    /// (`startContainer`, kuberuntime_container.go, in the pod's worker).
    PostStart,
    /// Delete request → the kubelet's first act.
    KubeletReaction,
    /// The preStop hook runs.
    PreStop,
    /// preStop's end → the stop signal.
    StopCall,
    /// A native sidecar waits until all others have ended, then gets its stop signal.
    SidecarWait,
    /// The stop signal → exit, or SIGKILL.
    Shutdown,
    /// SIGKILL → exit.
    Kill,
    /// The init's exit → the cgroup is empty.
    Reap,
    /// The cgroup is empty → the runtime says exited.
    RuntimeNotice,
    /// The runtime knows → the sandbox is stopped (CNI teardown and all).
    SandboxStop,
    /// The sandbox is stopped → the kubelet has deleted the object (status, volumes, cgroup).
    Cleanup,
    /// The kubelet is done → the last finalizer is gone, and the object with it.
    Finalizers,
    /// Between two known milestones where one that is required is missing.
    Unattributed,
}

/// A stretch of a pod's termination.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// Which.
    pub kind: PhaseKind,
    /// Its beginning; the end of the one before.
    pub from: BootTime,
    /// Its end.
    pub to: BootTime,
    /// It may have ended up to so much earlier.
    #[serde(default, skip_serializing_if = "Duration::is_zero", with = "nanos")]
    pub uncertainty: Duration,
}

impl Phase {
    /// Its length, at the most.
    pub fn took(&self) -> Duration {
        self.to.since(self.from)
    }

    /// Its length is a measurement, and not an interval.
    pub fn is_exact(&self) -> bool {
        is_exact(self.took(), self.uncertainty)
    }
}

/// What proves a verdict: one sentence for a person, and the evidence as data.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Proof {
    /// One sentence.
    pub sentence: String,
    /// In order of time.
    pub evidence: Vec<Evidence>,
}

/// One container life's end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ContainerDeath {
    /// Its id.
    pub id: ContainerId,
    /// Its name in the pod; empty while the runtime has not told.
    pub name: String,
    /// Its pod; `None` while nobody has told.
    pub pod: Option<PodRef>,
    /// Its kind.
    pub kind: ContainerKind,
    /// How it died.
    pub verdict: Verdict,
    /// What proves it.
    pub proof: Proof,
    /// Why it was stopped.
    pub cause: Cause,
    /// How sure that is.
    pub cause_certainty: Certainty,
    /// What says so.
    pub cause_source: Source,
    /// What the cause rests on; for `unknown` what is missing. One sentence.
    pub cause_proof: String,
    /// What else is worth knowing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// How its init ended, as the kernel saw it.
    pub exit: Option<ExitStatus>,
    /// The signal that was to stop it.
    pub stop_signal: u8,
    /// The grace that was granted, seconds.
    pub grace_seconds: Option<i64>,
    /// Share of the time that was allowed, from the first act of stopping to empty: the grace, or
    /// less where a later request shortened it.
    pub grace_ratio: Option<f64>,
    /// Its preStop hook by the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<Hook>,
    /// Who sent the SIGKILL that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killer: Option<Sender>,
    /// Processes that the kernel killed with its PID namespace.
    pub children_killed: u32,
    /// Names of those, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children_names: Vec<String>,
    /// Its milestones in order of time.
    pub milestones: Vec<Milestone>,
    /// Its end was not seen from the beginning: the agent started later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Losses that may have touched it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<LossKind>,
}

/// One pod life's end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PodTermination {
    /// The pod.
    pub pod: PodRef,
    /// 1 for the first life of this UID; a static pod whose manifest comes back has more.
    pub life: u32,
    /// 1 for the first report of this life. Each update has the next number, but for those that change
    /// nothing but the removal of sandbox and cgroup, or `final`.
    pub revision: u32,
    /// No other revision follows: only the removal of sandbox and cgroup may be added.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// Why.
    pub cause: Cause,
    /// How sure that is.
    pub cause_certainty: Certainty,
    /// What says so.
    pub cause_source: Source,
    /// What the cause rests on; for `unknown` what is missing. One sentence.
    pub cause_proof: String,
    /// The grace that the first request granted, seconds.
    pub grace_seconds: Option<i64>,
    /// A later request shortened it to this, seconds from then on (the apiserver makes it 1 where
    /// the new deadline has passed already).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortened_to_seconds: Option<i64>,
    /// Where the account begins.
    pub began: BootTime,
    /// Where the account ends: the latest of the processes, the sandbox and the object.
    pub ended: BootTime,
    /// `began`, ns since the epoch, by the anchor.
    pub began_wall_ns: i64,
    /// The apiserver's own figure of the request (deletionTimestamp − grace): the lower bound, as
    /// seconds before `began`. Includes the clocks' skew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_lag_seconds: Option<f64>,
    /// The pod's milestones with those of the container on the critical path, in order of time.
    pub milestones: Vec<Milestone>,
    /// Additive: they sum to `ended` − `began` exactly.
    pub phases: Vec<Phase>,
    /// `ended` − `began` is an interval of this length: a source did not show the pod's last event, or the
    /// request, when it happened.
    #[serde(default, skip_serializing_if = "Duration::is_zero", with = "nanos")]
    pub uncertainty: Duration,
    /// The container whose emptying came last: the one on the critical path.
    pub critical: Option<ContainerId>,
    /// All its containers' ends.
    pub containers: Vec<ContainerDeath>,
    /// Findings of the pod itself; the containers have their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// The agent did not see the beginning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Losses that may have touched it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<LossKind>,
}

impl PodTermination {
    /// From the request to the end of everything, the sandbox's removal left out.
    pub fn total(&self) -> Duration {
        self.ended.since(self.began)
    }

    /// The milestone, if it is known.
    pub fn milestone(&self, kind: MilestoneKind) -> Option<&Milestone> {
        self.milestones.iter().find(|m| m.kind == kind)
    }

    /// What the later report of the same life changes; `None`: nothing but the removal of sandbox and
    /// cgroup, its number or that it is final.
    pub(crate) fn change(&self, later: &Self) -> Option<Change> {
        let comparable = |report: &Self| {
            let mut report = Self { revision: 0, is_final: false, ..report.clone() };
            report.milestones.retain(|milestone| !milestone.kind.is_of_the_tail());
            report
        };
        if comparable(self) == comparable(later) {
            return None;
        }
        let has_another_verdict = |now: &ContainerDeath| {
            let before = self.containers.iter().find(|before| before.id == now.id);
            before.is_some_and(|before| before.verdict != now.verdict)
        };
        let verdict = later.containers.iter().any(has_another_verdict);
        Some(if verdict { Change::Verdict } else { Change::Other })
    }

    /// The total is a measurement, and not an interval.
    pub fn is_exact(&self) -> bool {
        is_exact(self.total(), self.uncertainty)
    }

    /// Time spent in a phase.
    pub fn phase(&self, kind: PhaseKind) -> Duration {
        self.phases.iter().filter(|p| p.kind == kind).map(Phase::took).sum()
    }
}

/// A duration with this uncertainty counts as measured: polling is no more precise than a second, and 10 %
/// are less than a bucket of a histogram.
fn is_exact(duration: Duration, uncertainty: Duration) -> bool {
    uncertainty <= Duration::from_secs(1) || uncertainty * 10 <= duration
}

impl ContainerDeath {
    /// The milestone, if it is known.
    pub fn milestone(&self, kind: MilestoneKind) -> Option<&Milestone> {
        self.milestones.iter().find(|m| m.kind == kind)
    }
}

labels! {
    Change {
        Verdict = "verdict", Other = "other", SandboxRemoved = "sandbox_removed", Final = "final",
    }
    Cause {
        ApiDelete = "api_delete", ForceDelete = "force_delete", ApiEviction = "api_eviction",
        NodePressureEviction = "node_pressure_eviction", LocalStorageLimit = "local_storage_limit",
        Preemption = "preemption",
        TaintEviction = "taint_eviction", PodGc = "pod_gc", NodeShutdown = "node_shutdown",
        KubeletPreemption = "kubelet_preemption", DeadlineExceeded = "deadline_exceeded",
        Liveness = "liveness", Startup = "startup", DefinitionChanged = "definition_changed",
        ResizeRestart = "resize_restart", RestartAllContainers = "restart_all_containers",
        SandboxChanged = "sandbox_changed", PostStartFailed = "post_start_failed",
        ExternalStop = "external_stop", Restart = "restart", Completed = "completed",
        StaticRemoved = "static_removed", Unknown = "unknown",
    }
    Certainty { Proven = "proven", Inferred = "inferred", None = "none" }
    Verdict {
        OomKilled = "oom_killed", Crashed = "crashed", ForceKilled = "force_killed",
        PrestopExhaustedGrace = "prestop_exhausted_grace",
        StopSignalIgnored = "stop_signal_ignored", StopSignalBlocked = "stop_signal_blocked",
        GraceExceeded = "grace_exceeded", TerminatedByDefault = "terminated_by_default",
        Graceful = "graceful", Completed = "completed", Failed = "failed", Unknown = "unknown",
    }
    FindingKind {
        ChildrenNotSignalled = "children_not_signalled", DeadlineMissed = "deadline_missed",
        Contradiction = "contradiction", OutlivedObject = "outlived_object",
        RuntimeRestarted = "runtime_restarted", KubeletRestarted = "kubelet_restarted",
        PrestopCutOff = "prestop_cut_off",
        Unkillable = "unkillable", Frozen = "frozen", UnsupportedRuntime = "unsupported_runtime",
    }
    Source {
        Kernel = "kernel", Cri = "cri", Api = "api", Proc = "proc", Inferred = "inferred",
    }
    TaskState {
        Uninterruptible = "uninterruptible", Running = "running", Sleeping = "sleeping",
        Stopped = "stopped", Zombie = "zombie", Other = "other",
    }
    Contradiction {
        RuntimeExitCode = "runtime_exit_code", ApiExitCode = "api_exit_code",
        RuntimeOomKilled = "runtime_oom_killed",
        RunningWithoutProcesses = "running_without_processes",
        ExitedWithProcesses = "exited_with_processes",
    }
    MilestoneKind {
        DeleteRequested = "delete_requested", PostStartEnded = "post_start_ended", StopBegan = "stop_began",
        PreStopBegan = "pre_stop_began", PreStopEnded = "pre_stop_ended", TermSent = "term_sent",
        TermHandled = "term_handled", KillSent = "kill_sent", Exited = "exited",
        CgroupEmpty = "cgroup_empty",
        ContainerExited = "container_exited", SandboxStopped = "sandbox_stopped",
        StatusReported = "status_reported", GraceShortened = "grace_shortened",
        FinalDelete = "final_delete",
        ObjectGone = "object_gone", SandboxRemoved = "sandbox_removed",
        CgroupRemoved = "cgroup_removed",
    }
    PhaseKind {
        PostStart = "post_start", KubeletReaction = "kubelet_reaction", PreStop = "pre_stop", StopCall = "stop_call",
        SidecarWait = "sidecar_wait",
        Shutdown = "shutdown", Kill = "kill", Reap = "reap", RuntimeNotice = "runtime_notice",
        SandboxStop = "sandbox_stop", Cleanup = "cleanup", Finalizers = "finalizers",
        Unattributed = "unattributed",
    }
    LossKind {
        DecidingRingFull = "deciding_ring_full", DetailRingFull = "detail_ring_full",
        BudgetSpent = "budget_spent", Undecodable = "undecodable",
        CgroupMapFull = "cgroup_map_full", EngineFull = "engine_full",
        NeverResolved = "never_resolved", Unrecorded = "unrecorded",
    }
}

mod nanos {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}
