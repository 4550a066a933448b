//! What the kubelet says in its log, one name per statement. The patterns that recognise them, with the versions and
//! the verbosity of each, are in the agent (`agent/src/sources/kubelet/table`).

use super::labels;

labels! {
    /// What a line of the kubelet's log says.
    pub enum KubeletStatement {
        /// The sync loop got a new pod from a source.
        SyncLoopAdd = "sync_loop_add",
        /// The sync loop got a changed pod.
        SyncLoopUpdate = "sync_loop_update",
        /// The sync loop got a pod whose status alone changed.
        SyncLoopReconcile = "sync_loop_reconcile",
        /// The sync loop got a pod with a deletion timestamp.
        SyncLoopDelete = "sync_loop_delete",
        /// A pod has gone from its source: its object or its manifest.
        SyncLoopRemove = "sync_loop_remove",
        /// The sync loop synchronises pods whose time has come.
        SyncLoopSync = "sync_loop_sync",
        /// A probe changed its result, and the pod is synchronised.
        SyncLoopProbe = "sync_loop_probe",
        /// The lifecycle event generator reports a change of a container.
        PlegEvent = "pleg_event",
        /// A change of a container whose pod the kubelet no longer knows.
        PlegEventIgnored = "pleg_event_ignored",
        /// Housekeeping begins, every 2 s.
        HousekeepingBegin = "housekeeping_begin",
        /// Housekeeping ends.
        HousekeepingEnd = "housekeeping_end",
        /// No pod is synchronised: the runtime or the event generator is not healthy.
        SyncSkipped = "sync_skipped",
        /// Housekeeping failed.
        HousekeepingFailed = "housekeeping_failed",
        /// The event generator saw an ended container, with its exit code.
        PlegContainerFinished = "pleg_container_finished",
        /// The event generator saw another state of a container or sandbox.
        PlegStateChanged = "pleg_state_changed",
        /// The event generator cannot list the pods of the runtime.
        PlegFailed = "pleg_failed",
        /// The kubelet starts: its version.
        KubeletVersion = "kubelet_version",
        /// The kubelet starts its sync loop.
        KubeletStarted = "kubelet_started",
        /// A pod worker takes up a new pod.
        WorkerFirstSync = "worker_first_sync",
        /// The pod has gone from its source and is to be stopped.
        KillRequested = "kill_requested",
        /// The pod worker begins to tear down a pod that is deleted.
        TeardownDeletion = "teardown_deletion",
        /// The pod worker begins to tear down a pod that has gone from its source.
        TeardownRemoval = "teardown_removal",
        /// The pod worker begins to tear down a pod that the kubelet evicts.
        TeardownEviction = "teardown_eviction",
        /// The pod worker begins to tear down a pod whose phase is final.
        TeardownPhase = "teardown_phase",
        /// The pod worker begins to tear down a pod that only the runtime has.
        TeardownOrphan = "teardown_orphan",
        /// Housekeeping found a pod that still terminates without its configuration.
        OrphanNotified = "orphan_notified",
        /// Housekeeping found a pod that never started and is no longer wanted.
        OrphanNotStarted = "orphan_not_started",
        /// The synchronisation under way is cancelled for the termination.
        SyncCancelled = "sync_cancelled",
        /// The pod worker is given an update.
        WorkerNotified = "worker_notified",
        /// The pod worker begins a step: sync, terminating or terminated.
        WorkerBegin = "worker_begin",
        /// The pod worker ends a step.
        WorkerEnd = "worker_end",
        /// The pod worker saw the request to terminate.
        TerminationObserved = "termination_observed",
        /// All containers ended and none is to be restarted.
        CompletedNaturally = "completed_naturally",
        /// The synchronisation of a pod begins.
        SyncBegin = "sync_begin",
        /// The synchronisation of a pod ends.
        SyncEnd = "sync_end",
        /// The containers of a pod are about to be stopped.
        TerminatingBegin = "terminating_begin",
        /// The step that stops the containers ends, with or without success.
        TerminatingEnd = "terminating_end",
        /// The cleanup of a stopped pod begins.
        TerminatedBegin = "terminated_begin",
        /// The cleanup of a stopped pod ends, with or without success.
        TerminatedEnd = "terminated_end",
        /// The grace period that the pod is stopped with.
        TerminatingGrace = "terminating_grace",
        /// No container of the pod runs any more.
        ContainersStopped = "containers_stopped",
        /// The pod worker goes on from terminating to terminated.
        WorkerTerminatingDone = "worker_terminating_done",
        /// The cleanup is done: the status manager may delete the object.
        StatusFinal = "status_final",
        /// The pod worker has nothing left to do.
        WorkerDone = "worker_done",
        /// The pod worker has stopped.
        WorkerStopped = "worker_stopped",
        /// An update came for a pod that is already done with.
        WorkerUpdateIgnored = "worker_update_ignored",
        /// Housekeeping removed the pod worker.
        WorkerRemoved = "worker_removed",
        /// Housekeeping removed the pod worker, and the same UID starts again.
        WorkerRemovedForRestart = "worker_removed_for_restart",
        /// A static pod came back while it terminates.
        RestartRequested = "restart_requested",
        /// Housekeeping wants to remove a pod worker that has not terminated its pod: every 2 s while it lasts.
        WorkerStuck = "worker_stuck",
        /// Housekeeping wants to remove a pod worker that does not exist.
        WorkerUnknown = "worker_unknown",
        /// The pod waits for another one of its name to terminate.
        StartDelayed = "start_delayed",
        /// A step of the pod worker failed, and is tried again later.
        SyncFailed = "sync_failed",
        /// The runtime has a pod that the kubelet does not know.
        OrphanFound = "orphan_found",
        /// A container is about to be stopped, after its preStop hook.
        KillBegin = "kill_begin",
        /// A container is stopped with another grace period than its own.
        KillGraceOverride = "kill_grace_override",
        /// The runtime answered that the container is stopped.
        KillEnd = "kill_end",
        /// The runtime could not stop a container.
        KillFailed = "kill_failed",
        /// A container is stopped while its pod goes on.
        KillUnwanted = "kill_unwanted",
        /// RestartAllContainers stops a container.
        KillBeforeRemoval = "kill_before_removal",
        /// RestartAllContainers removes a container.
        RemoveBeforeRestart = "remove_before_restart",
        /// All containers of the pod are restarted.
        RestartAll = "restart_all",
        /// Why a container is stopped while its pod goes on.
        KillReason = "kill_reason",
        /// The grace period of the probe applies.
        ProbeGrace = "probe_grace",
        /// The pod could not be stopped.
        KillPodFailed = "kill_pod_failed",
        /// The pod was refused and its containers are stopped.
        NotRunnable = "not_runnable",
        /// A preStop hook begins.
        PreStopBegin = "pre_stop_begin",
        /// A preStop hook ended.
        PreStopEnd = "pre_stop_end",
        /// A preStop hook failed.
        PreStopFailed = "pre_stop_failed",
        /// A preStop hook took the whole grace period.
        PreStopTimedOut = "pre_stop_timed_out",
        /// A postStart hook failed, and its container is stopped.
        PostStartFailed = "post_start_failed",
        /// A lifecycle hook failed.
        HookFailed = "hook_failed",
        /// One run of a probe failed.
        ProbeFailed = "probe_failed",
        /// One run of a probe could not be made.
        ProbeErrored = "probe_errored",
        /// Probing ends, for the pod is deleted.
        ProbeEnded = "probe_ended",
        /// A container that has ended is started again.
        StartDue = "start_due",
        /// A container waits before it is started again.
        BackOff = "back_off",
        /// An in-place resize is accepted.
        ResizeAllocated = "resize_allocated",
        /// An in-place resize waits for resources.
        ResizeDeferred = "resize_deferred",
        /// An in-place resize cannot be made.
        ResizeInfeasible = "resize_infeasible",
        /// A new pod needs its first sandbox.
        SandboxNew = "sandbox_new",
        /// The sandbox is stopped, for a new one.
        SandboxRestarting = "sandbox_restarting",
        /// The sandbox is stopped, for nothing runs in it and nothing will.
        SandboxStopping = "sandbox_stopping",
        /// The pod has no sandbox.
        SandboxMissing = "sandbox_missing",
        /// The sandbox is not ready, or not the right one.
        SandboxChanged = "sandbox_changed",
        /// A sandbox is about to be created.
        SandboxCreating = "sandbox_creating",
        /// A sandbox was created.
        SandboxCreated = "sandbox_created",
        /// A sandbox could not be created.
        SandboxCreateFailed = "sandbox_create_failed",
        /// The sandbox could not be stopped.
        SandboxStopFailed = "sandbox_stop_failed",
        /// The call StopPodSandbox failed.
        RuntimeStopSandboxFailed = "runtime_stop_sandbox_failed",
        /// The call StopContainer failed.
        RuntimeStopContainerFailed = "runtime_stop_container_failed",
        /// The call RemovePodSandbox failed.
        RuntimeRemoveSandboxFailed = "runtime_remove_sandbox_failed",
        /// The call RemoveContainer failed.
        RuntimeRemoveContainerFailed = "runtime_remove_container_failed",
        /// The call RunPodSandbox failed.
        RuntimeRunSandboxFailed = "runtime_run_sandbox_failed",
        /// The call StartContainer failed.
        RuntimeStartContainerFailed = "runtime_start_container_failed",
        /// A list of the runtime failed.
        RuntimeListFailed = "runtime_list_failed",
        /// The runtime does not answer, or is not ready.
        RuntimeNotReady = "runtime_not_ready",
        /// The network of the runtime is not ready.
        NetworkNotReady = "network_not_ready",
        /// A container is about to be removed.
        ContainerRemoving = "container_removing",
        /// The kubelet removes a container from its caches.
        ContainerForgotten = "container_forgotten",
        /// Garbage collection removes a sandbox.
        SandboxRemoving = "sandbox_removing",
        /// Garbage collection removes the logs of a pod.
        PodLogsRemoving = "pod_logs_removing",
        /// A container could not be removed.
        ContainerRemoveFailed = "container_remove_failed",
        /// A container was to be removed and could not be found or removed.
        ContainerDeleteFailed = "container_delete_failed",
        /// A container was to be removed that is not one of its pod.
        ContainerNotFound = "container_not_found",
        /// A sandbox could not be removed.
        SandboxRemoveFailed = "sandbox_remove_failed",
        /// A garbage collection of containers ended.
        GcSucceeded = "gc_succeeded",
        /// A garbage collection of containers failed.
        GcFailed = "gc_failed",
        /// The cleanup waits for the volumes to be unmounted.
        UnmountBegin = "unmount_begin",
        /// The volumes are unmounted.
        UnmountEnd = "unmount_end",
        /// The cleanup has the volumes behind it.
        VolumesUnmounted = "volumes_unmounted",
        /// The directories of the volumes are removed.
        VolumePathsRemoved = "volume_paths_removed",
        /// Volumes of a stopped pod are still there.
        VolumesLeft = "volumes_left",
        /// The directory of a pod that is gone could not be removed.
        OrphanDirFailed = "orphan_dir_failed",
        /// Housekeeping removed the volumes directory of a pod that is gone.
        OrphanVolumesRemoved = "orphan_volumes_removed",
        /// Housekeeping removes the directory of a pod that is gone.
        OrphanDirRemoving = "orphan_dir_removing",
        /// The cgroup of the pod is removed.
        CgroupsRemoved = "cgroups_removed",
        /// Housekeeping removes the cgroup of a pod that is gone.
        OrphanCgroupsRemoving = "orphan_cgroups_removing",
        /// The cgroup of a pod could not be removed.
        CgroupFailed = "cgroup_failed",
        /// The cgroup of a stopped pod is still there.
        CgroupLeft = "cgroup_left",
        /// The status manager is about to patch the status.
        StatusPatch = "status_patch",
        /// The status manager has written a status.
        StatusUpdated = "status_updated",
        /// The status manager could not write a status.
        StatusFailed = "status_failed",
        /// The object is not deleted yet, for the phase is not final.
        DeleteDelayed = "delete_delayed",
        /// The object may be deleted now.
        DeleteAllowed = "delete_allowed",
        /// The object is not deleted yet, for containers run.
        DeleteDelayedContainers = "delete_delayed_containers",
        /// The object is not deleted yet, for a status is missing.
        DeleteDelayedStatus = "delete_delayed_status",
        /// Nothing of the pod is left to clean up.
        ResourcesReclaimed = "resources_reclaimed",
        /// The status manager deleted the object with grace 0.
        ApiRemoved = "api_removed",
        /// The status manager found no object.
        ApiGone = "api_gone",
        /// The object has another UID.
        ApiRecreated = "api_recreated",
        /// The status manager could not delete the object.
        ApiRemoveFailed = "api_remove_failed",
        /// A mirror pod is about to be created.
        MirrorCreating = "mirror_creating",
        /// A mirror pod could not be created.
        MirrorCreateFailed = "mirror_create_failed",
        /// A mirror pod that is deleted or outdated is about to be deleted.
        MirrorDeleteTried = "mirror_delete_tried",
        /// The kubelet deletes a mirror pod with grace 0.
        MirrorDeleting = "mirror_deleting",
        /// Housekeeping deleted a mirror pod.
        MirrorDeleted = "mirror_deleted",
        /// A mirror pod that is deleted or outdated was deleted.
        MirrorOutdated = "mirror_outdated",
        /// A mirror pod could not be deleted.
        MirrorDeleteFailed = "mirror_delete_failed",
        /// A mirror pod whose static pod the kubelet does not know.
        MirrorWithoutPod = "mirror_without_pod",
        /// A pod is stopped in favour of a critical one.
        Preempting = "preempting",
        /// The preempted pod is stopped.
        Preempted = "preempted",
        /// The preempted pod could not be stopped.
        PreemptFailed = "preempt_failed",
        /// A pod is about to be evicted.
        Evicting = "evicting",
        /// A resource is short: pods will be evicted.
        EvictionDue = "eviction_due",
        /// The order in which pods will be evicted.
        EvictionRanked = "eviction_ranked",
        /// A pod was evicted.
        Evicted = "evicted",
        /// A pod could not be evicted.
        EvictFailed = "evict_failed",
        /// The evicted pods are cleaned up.
        EvictedCleanedUp = "evicted_cleaned_up",
        /// The evicted pods were not cleaned up in time.
        EvictedNotCleanedUp = "evicted_not_cleaned_up",
        /// The node is shutting down.
        ShutdownDetected = "shutdown_detected",
        /// The pods are stopped for the shutdown.
        ShutdownBegin = "shutdown_begin",
        /// A pod is stopped for the shutdown.
        ShutdownKill = "shutdown_kill",
        /// A pod was stopped for the shutdown.
        ShutdownKilled = "shutdown_killed",
        /// A pod could not be stopped for the shutdown.
        ShutdownKillFailed = "shutdown_kill_failed",
        /// Pods were not stopped in time for the shutdown.
        ShutdownTimedOut = "shutdown_timed_out",
        /// The pods are stopped for the shutdown.
        ShutdownEnd = "shutdown_end",
        /// Event Killing: why a container is stopped.
        EventKilling = "event_killing",
        /// Event Unhealthy: a probe failed.
        EventUnhealthy = "event_unhealthy",
        /// Event FailedPostStartHook.
        EventPostStartFailed = "event_post_start_failed",
        /// Event FailedPreStopHook.
        EventPreStopFailed = "event_pre_stop_failed",
        /// Event SandboxChanged.
        EventSandboxChanged = "event_sandbox_changed",
        /// Event Preempting.
        EventPreempting = "event_preempting",
        /// Event ExceededGracePeriod: a pod that is killed was not done in time.
        EventExceededGrace = "event_exceeded_grace",
        /// Event FailedKillPod.
        EventKillPodFailed = "event_kill_pod_failed",
        /// Event BackOff.
        EventBackOff = "event_back_off",
        /// Event Evicted.
        EventEvicted = "event_evicted",
        /// Event DeadlineExceeded: activeDeadlineSeconds.
        EventDeadline = "event_deadline",
        /// Event of an in-place resize.
        EventResize = "event_resize",
        /// Event Failed: a container could not be started.
        EventFailed = "event_failed",
        /// Event NodeShutdown.
        EventShutdown = "event_shutdown",
        /// Event Started: a container started.
        EventStarted = "event_started",
        /// Event of a volume.
        EventVolume = "event_volume",
        /// Event FailedCreatePodSandBox.
        EventSandboxCreateFailed = "event_sandbox_create_failed",
        /// A volume is about to be unmounted.
        UnmountStarted = "unmount_started",
        /// A volume could not be unmounted.
        UnmountFailed = "unmount_failed",
        /// A volume was unmounted.
        TeardownDone = "teardown_done",
        /// An operation on a volume failed, and is tried again later.
        VolumeOperationFailed = "volume_operation_failed",
        /// A network plugin failed, or the runtime could not set up or remove the network of a sandbox.
        CniFailed = "cni_failed",
    }
}
