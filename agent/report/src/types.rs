//! The vocabulary of reports: closed sets, each value with its label in metrics, on screen and in the API.

use crate::labels;

labels! {
    /// What an update changes in the report of a terminated pod: the first that applies. A closed set; the
    /// values that make a new revision are a metric's label.
    pub enum Change {
        /// Late evidence: the verdict of a container. A new revision.
        Verdict = "verdict",
        /// Late evidence: something else, such as a cause, a time or a finding. A new revision.
        Other = "other",
        /// The sandbox was removed after the object. Expected, and no new revision.
        SandboxRemoved = "sandbox_removed",
        /// Only that no further revision follows.
        Final = "final",
    }

    /// What kind of request a pod's end follows.
    pub enum CauseClass {
        /// Somebody deleted it.
        Deletion = "deletion",
        /// Something made it leave its node.
        Eviction = "eviction",
    }

    /// Why a pod or a container was stopped. A closed set: it is a metric's label. The reasons to stop one container
    /// stand together, from `Liveness` to `Restart`.
    pub enum Cause {
        /// Deleted through the apiserver.
        ApiDelete = "api_delete",
        /// Deleted with grace 0 while part of the pod still ran.
        ForceDelete = "force_delete",
        /// Evicted through the eviction API (drain).
        ApiEviction = "api_eviction",
        /// Evicted by the kubelet because the node was short of a resource.
        NodePressureEviction = "node_pressure_eviction",
        /// Evicted by the kubelet because the pod exceeded its own limits of local storage.
        LocalStorageLimit = "local_storage_limit",
        /// Preempted by the scheduler.
        Preemption = "preemption",
        /// Preempted by the kubelet, for a critical static pod (preemption.go).
        KubeletPreemption = "kubelet_preemption",
        /// A taint without a toleration.
        TaintEviction = "taint_eviction",
        /// Deleted by the control plane's pod garbage collector.
        PodGc = "pod_gc",
        /// Graceful node shutdown.
        NodeShutdown = "node_shutdown",
        /// The pod's `activeDeadlineSeconds` expired (active_deadline.go).
        DeadlineExceeded = "deadline_exceeded",
        /// A liveness probe failed.
        Liveness = "liveness",
        /// A startup probe failed.
        Startup = "startup",
        /// The container's image was changed in the pod's spec.
        DefinitionChanged = "definition_changed",
        /// The container's resources were changed, and its resizePolicy is RestartContainer.
        ResizeRestart = "resize_restart",
        /// A container exited with the rule RestartAllContainers (KEP-5532).
        RestartAllContainers = "restart_all_containers",
        /// The pod's sandbox had died and was replaced.
        SandboxChanged = "sandbox_changed",
        /// The container's postStart hook failed.
        PostStartFailed = "post_start_failed",
        /// Stopped by something other than the kubelet: an administrator's `crictl stop`, another process,
        /// the runtime itself.
        ExternalStop = "external_stop",
        /// Stopped and restarted by the kubelet, for an unknown one of its reasons.
        Restart = "restart",
        /// Exited on its own.
        Completed = "completed",
        /// A static pod's manifest was removed.
        StaticRemoved = "static_removed",
        /// No source shows the cause.
        #[serde(other)]
        Unknown = "unknown",
    }

    /// How a container died. A closed set, in the order of precedence: the first that matches wins.
    #[derive(Default)]
    pub enum Verdict {
        /// The OOM killer selected the container's init.
        OomKilled = "oom_killed",
        /// A fatal signal that the program caused itself.
        Crashed = "crashed",
        /// SIGKILL from outside with no stop signal before it.
        ForceKilled = "force_killed",
        /// preStop used up the grace period: the stop signal came with only the kubelet's minimum left.
        PrestopExhaustedGrace = "prestop_exhausted_grace",
        /// PID 1 without a handler, or SIG_IGN; then SIGKILL.
        StopSignalIgnored = "stop_signal_ignored",
        /// The stop signal was still pending when SIGKILL came.
        StopSignalBlocked = "stop_signal_blocked",
        /// The process took the stop signal, was still running at the deadline, and got SIGKILL.
        GraceExceeded = "grace_exceeded",
        /// The stop signal's default action ended the process without any cleanup.
        TerminatedByDefault = "terminated_by_default",
        /// The process took the stop signal and exited within the grace period.
        Graceful = "graceful",
        /// Exited with code 0 without a signal.
        Completed = "completed",
        /// Exited with another code without a signal.
        Failed = "failed",
        /// Evidence was lost or never available.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }

    /// Further findings about a death. A closed set: it is a metric's label.
    pub enum FindingKind {
        /// The kernel killed processes with the PID namespace that were never sent the stop signal.
        ChildrenNotSignalled = "children_not_signalled",
        /// The container ran well past its deadline.
        DeadlineMissed = "deadline_missed",
        /// The apiserver or the runtime contradicts the kernel.
        Contradiction = "contradiction",
        /// The pod's processes outlived its object.
        OutlivedObject = "outlived_object",
        /// The runtime was down and came back during the termination.
        RuntimeRestarted = "runtime_restarted",
        /// The kubelet ended or restarted during the termination.
        KubeletRestarted = "kubelet_restarted",
        /// preStop was still running when the stop signal came.
        PrestopCutOff = "prestop_cut_off",
        /// Alive long after SIGKILL: which process, in which state, and in which kernel function.
        Unkillable = "unkillable",
        /// The cgroup was frozen when the stop signal came or before the container ended.
        Frozen = "frozen",
        /// Kata, gVisor and similar runtimes: the host's kernel does not see inside.
        UnsupportedRuntime = "unsupported_runtime",
        /// The exit of a process cut connections with a request unanswered or data unread.
        ConnectionsCut = "connections_cut",
        /// Connections were refused while the pod terminated.
        ConnectionsRefused = "connections_refused",
        /// Clients kept connecting for more than a second after the stop signal.
        LateConnections = "late_connections",
        /// The process closed its listener, and clients that still connected were refused.
        ListenerClosedEarly = "listener_closed_early",
    }

    /// The subject of a contradiction. A closed set: it is a metric's label.
    pub enum Contradiction {
        /// The runtime's exit code differs from the kernel's.
        RuntimeExitCode = "runtime_exit_code",
        /// The apiserver's exit code differs from the kernel's.
        ApiExitCode = "api_exit_code",
        /// The runtime reports OOMKilled, but the OOM killer selected no process of the container.
        RuntimeOomKilled = "runtime_oom_killed",
        /// The runtime listed the container as running long after its last process had exited.
        RunningWithoutProcesses = "running_without_processes",
        /// The runtime listed the container as exited while its processes were alive.
        ExitedWithProcesses = "exited_with_processes",
    }

    /// The source of a piece of evidence.
    pub enum Source {
        /// A kernel program.
        Kernel = "kernel",
        /// The container runtime.
        Cri = "cri",
        /// The apiserver.
        Api = "api",
        /// The host's /proc.
        Proc = "proc",
        /// The kubelet's Events.
        Kubelet = "kubelet",
        /// Inferred from the others.
        #[serde(other)]
        Inferred = "inferred",
    }

    pub enum MilestoneKind {
        /// The deletion request reached this node.
        DeleteRequested = "delete_requested",
        /// The end of a postStart hook that the kubelet waited for before the deletion.
        PostStartEnded = "post_start_ended",
        /// The beginning of the stop: preStop or the stop signal.
        StopBegan = "stop_began",
        /// The preStop hook's process began.
        PreStopBegan = "pre_stop_began",
        /// The preStop hook's process ended.
        PreStopEnded = "pre_stop_ended",
        /// The stop signal was sent.
        TermSent = "term_sent",
        /// The stop signal's handler ran.
        TermHandled = "term_handled",
        /// The last listener was closed.
        ListenerClosed = "listener_closed",
        /// The last new connection of a client.
        LastNewConnection = "last_new_connection",
        /// SIGKILL was sent.
        KillSent = "kill_sent",
        /// The init's last thread exited.
        Exited = "exited",
        /// The container's last task left its cgroup.
        CgroupEmpty = "cgroup_empty",
        /// The runtime lists the container as exited.
        ContainerExited = "container_exited",
        /// The sandbox is stopped (not ready).
        SandboxStopped = "sandbox_stopped",
        /// The kubelet reported to the apiserver that nothing of the pod runs any more.
        StatusReported = "status_reported",
        /// A later deletion request shortened the grace period.
        GraceShortened = "grace_shortened",
        /// The kubelet deleted the object for good; finalizers hold it.
        FinalDelete = "final_delete",
        /// The pod's object is gone.
        ObjectGone = "object_gone",
        /// The runtime removed the sandbox.
        SandboxRemoved = "sandbox_removed",
        /// The pod's cgroup is gone.
        CgroupRemoved = "cgroup_removed",
    }

    /// The phases of a pod's termination, along its critical path. A closed set: a metric's label.
    pub enum PhaseKind {
        /// Deletion request → end of a postStart hook that the kubelet waits for before it stops anything
        /// (`startContainer`, kuberuntime_container.go, in the pod's worker).
        PostStart = "post_start",
        /// Deletion request → the kubelet's first action.
        KubeletReaction = "kubelet_reaction",
        /// The preStop hook runs.
        PreStop = "pre_stop",
        /// End of preStop → stop signal.
        StopCall = "stop_call",
        /// A native sidecar waits until all other containers have ended, then gets its stop signal.
        SidecarWait = "sidecar_wait",
        /// Stop signal → exit or SIGKILL.
        Shutdown = "shutdown",
        /// SIGKILL → exit.
        Kill = "kill",
        /// Exit of the init → empty cgroup.
        Reap = "reap",
        /// Empty cgroup → the runtime lists the container as exited.
        RuntimeNotice = "runtime_notice",
        /// Container exited → sandbox stopped (including the CNI teardown).
        SandboxStop = "sandbox_stop",
        /// Sandbox stopped → the kubelet deletes the object (status, volumes, cgroup).
        Cleanup = "cleanup",
        /// The kubelet's last delete → the last finalizer is removed, and the object with it.
        Finalizers = "finalizers",
        /// Time between two known milestones when a required one in between is missing.
        Unattributed = "unattributed",
    }
}

impl Change {
    pub fn is_revision(self) -> bool {
        matches!(self, Self::Verdict | Self::Other)
    }
}

impl Cause {
    /// A reason to stop one container; a pod's cause only if the pod ended with that container.
    pub fn is_of_a_container(self) -> bool {
        (Self::Liveness..=Self::Restart).contains(&self)
    }

    /// `None`: the pod ended on its own, or one of its containers was stopped.
    pub fn class(self) -> Option<CauseClass> {
        match self {
            Self::ApiDelete | Self::ForceDelete | Self::PodGc | Self::StaticRemoved => {
                Some(CauseClass::Deletion)
            }
            Self::ApiEviction
            | Self::NodePressureEviction
            | Self::LocalStorageLimit
            | Self::Preemption
            | Self::KubeletPreemption
            | Self::TaintEviction
            | Self::NodeShutdown => Some(CauseClass::Eviction),
            _ => None,
        }
    }

    /// The pod's deletion was requested at the apiserver.
    pub fn is_requested(self) -> bool {
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

impl FindingKind {
    /// A finding about the whole pod, as opposed to one of its containers.
    pub const fn is_of_the_pod(self) -> bool {
        matches!(
            self,
            Self::OutlivedObject
                | Self::RuntimeRestarted
                | Self::KubeletRestarted
                | Self::ConnectionsCut
                | Self::ConnectionsRefused
                | Self::LateConnections
                | Self::ListenerClosedEarly
        )
    }
}

impl MilestoneKind {
    /// May come long after the pod's end, and changes nothing that was reported.
    pub fn is_of_the_tail(self) -> bool {
        matches!(self, Self::SandboxRemoved | Self::CgroupRemoved)
    }
}

labels! {
    /// Kinds of loss. A closed set: it is a metric's label.
    pub enum LossKind {
        /// The ring for deciding records was full.
        DecidingRingFull = "deciding_ring_full",
        /// The ring for detail records was full.
        DetailRingFull = "detail_ring_full",
        /// A container used up its budget of detail records; `KernelFact::BudgetSpent` names it.
        BudgetSpent = "budget_spent",
        /// The kernel skipped both programs of a hook, because it had preempted them on the same CPU.
        ProgramSkipped = "program_skipped",
        /// The same for an event of a connection, also because of an interrupt: the counts may be too low.
        ConnectionSkipped = "connection_skipped",
        /// A record of an unknown kind or a wrong length.
        Undecodable = "undecodable",
        /// The kernel programs' map of cgroups was full.
        CgroupMapFull = "cgroup_map_full",
        /// A store of the engine was full and something was evicted or refused.
        EngineFull = "engine_full",
        /// The runtime never listed the container of a cgroup.
        NeverResolved = "never_resolved",
        /// Only in a replay: inputs are missing in the recording.
        Unrecorded = "unrecorded",
    }
}

impl LossKind {
    /// Only detail records were lost: deliveries of signals, processes from outside, signals among a
    /// container's own processes.
    pub fn is_detail_only(self) -> bool {
        matches!(self, Self::DetailRingFull | Self::BudgetSpent)
    }
}
