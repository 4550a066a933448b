//! Stopping a container: hooks, probes, grace periods: `pkg/kubelet/kuberuntime`, `pkg/kubelet/prober`, `pkg/kubelet/lifecycle`.

use super::{Pattern, at, says};
use coroner_core::input::KubeletStatement::*;

/// The patterns.
pub(super) const KILL: &[Pattern] = &[
    says(
        "Killing container with a grace period",
        KillBegin,
        &[at(23, 36, 2, "kuberuntime_container.go", "killContainer")],
    ),
    says(
        "Killing container with a grace period override",
        KillGraceOverride,
        &[at(23, 36, 3, "kuberuntime_container.go", "killContainer")],
    ),
    says(
        "Container exited normally",
        KillEnd,
        &[at(23, 36, 3, "kuberuntime_container.go", "killContainer")],
    ),
    says(
        "Container termination failed with gracePeriod",
        KillFailed,
        &[at(23, 36, 0, "kuberuntime_container.go", "killContainer")],
    ),
    says(
        "Kill container failed",
        KillFailed,
        &[at(23, 36, 0, "kuberuntime_container.go", "killContainersWithSyncResult")],
    ),
    says(
        "killContainer for pod failed",
        KillFailed,
        &[at(23, 36, 0, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Failed to kill container",
        KillFailed,
        &[at(23, 36, 0, "kuberuntime_container.go", "startContainer")],
    ),
    says(
        "Killing unwanted container for pod",
        KillUnwanted,
        &[at(23, 36, 3, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Killing container before removal",
        KillBeforeRemoval,
        &[at(35, 36, 3, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Removing container before pod restarts",
        RemoveBeforeRestart,
        &[at(35, 36, 3, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Pod marked for RestartAllContainers",
        RestartAll,
        &[at(35, 36, 3, "kuberuntime_manager.go", "computePodActions")],
    ),
    says(
        "Message for Container of pod",
        KillReason,
        &[at(23, 36, 2, "kuberuntime_manager.go", "computePodActions")],
    ),
    says(
        "Using probe-level grace period that is greater than the pod-level grace period",
        ProbeGrace,
        &[at(25, 36, 4, "kuberuntime_container.go", "isProbeTerminationGracePeriodSecondsSet")],
    ),
    says(
        "killPodWithSyncResult failed",
        KillPodFailed,
        &[at(23, 36, 0, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "KillPod failed",
        KillPodFailed,
        &[at(23, 26, 0, "kubelet.go", "syncPod"), at(27, 36, 0, "kubelet.go", "SyncPod")],
    ),
    says(
        "Pod is not runnable and must have running containers stopped",
        NotRunnable,
        &[at(23, 26, 2, "kubelet.go", "syncPod"), at(27, 30, 2, "kubelet.go", "SyncPod")],
    ),
    says(
        "Running preStop hook",
        PreStopBegin,
        &[at(23, 36, 3, "kuberuntime_container.go", "executePreStopHook")],
    ),
    says(
        "PreStop hook completed",
        PreStopEnd,
        &[at(23, 36, 3, "kuberuntime_container.go", "executePreStopHook")],
    ),
    says(
        "PreStop hook failed",
        PreStopFailed,
        &[at(23, 36, 0, "kuberuntime_container.go", "executePreStopHook")],
    ),
    says(
        "PreStop hook not completed in grace period",
        PreStopTimedOut,
        &[at(23, 36, 2, "kuberuntime_container.go", "executePreStopHook")],
    ),
    says(
        "Failed to execute PostStartHook",
        PostStartFailed,
        &[at(23, 36, 0, "kuberuntime_container.go", "startContainer")],
    ),
    says(
        "Exec lifecycle hook for Container in Pod failed",
        HookFailed,
        &[at(23, 36, 1, "handlers.go", "Run")],
    ),
    says(
        "HTTP lifecycle hook for Container in Pod failed",
        HookFailed,
        &[at(23, 36, 1, "handlers.go", "Run")],
    ),
    says(
        "Sleep lifecycle hook for Container in Pod failed",
        HookFailed,
        &[at(29, 36, 1, "handlers.go", "Run")],
    ),
    says("Probe failed", ProbeFailed, &[at(23, 36, 1, "prober.go", "probe")]),
    says("Probe errored", ProbeErrored, &[at(23, 36, 1, "prober.go", "probe")]),
    says(
        "Pod deletion requested, setting probe result to success",
        ProbeEnded,
        &[at(23, 36, 3, "worker.go", "doProbe")],
    ),
    says(
        "Container of pod is not in the desired state and shall be started",
        StartDue,
        &[at(23, 36, 3, "kuberuntime_manager.go", "computePodActions")],
    ),
    says(
        "Back-off restarting failed container",
        BackOff,
        &[at(23, 36, 3, "kuberuntime_manager.go", "doBackOff")],
    ),
    says(
        "Backing Off restarting container in pod",
        BackOff,
        &[at(23, 36, 4, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Pod resize successfully allocated",
        ResizeAllocated,
        &[at(34, 36, 4, "allocation_manager.go", "retryPendingResizes")],
    ),
    says(
        "Pod resize is deferred; will reevaluate later",
        ResizeDeferred,
        &[at(34, 36, 4, "allocation_manager.go", "retryPendingResizes")],
    ),
    says(
        "Pod resize is infeasible",
        ResizeInfeasible,
        &[at(34, 36, 4, "allocation_manager.go", "retryPendingResizes")],
    ),
    says(
        "Resize cannot be accommodated",
        ResizeInfeasible,
        &[
            at(27, 33, 3, "kubelet.go", "canResizePod"),
            at(34, 35, 3, "allocation_manager.go", "canResizePod"),
        ],
    ),
];
