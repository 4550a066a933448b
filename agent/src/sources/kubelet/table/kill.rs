//! Stopping a container: hooks, probes, grace periods: `pkg/kubelet/kuberuntime`, `pkg/kubelet/prober`, `pkg/kubelet/lifecycle`.

use super::{Logged, Pattern};
use coroner_core::input::KubeletStatement;

/// The patterns.
pub(super) const KILL: &[Pattern] = messages! {
    "Killing container with a grace period" => KillBegin [23-36: 2 "kuberuntime_container.go" killContainer],
    "Killing container with a grace period override" => KillGraceOverride
        [23-36: 3 "kuberuntime_container.go" killContainer],
    "Container exited normally" => KillEnd [23-36: 3 "kuberuntime_container.go" killContainer],
    "Container termination failed with gracePeriod" => KillFailed [23-36: 0 "kuberuntime_container.go" killContainer],
    "Kill container failed" => KillFailed [23-36: 0 "kuberuntime_container.go" killContainersWithSyncResult],
    "killContainer for pod failed" => KillFailed [23-36: 0 "kuberuntime_manager.go" SyncPod],
    "Failed to kill container" => KillFailed [23-36: 0 "kuberuntime_container.go" startContainer],
    "Killing unwanted container for pod" => KillUnwanted [23-36: 3 "kuberuntime_manager.go" SyncPod],
    "Killing container before removal" => KillBeforeRemoval [35-36: 3 "kuberuntime_manager.go" SyncPod],
    "Removing container before pod restarts" => RemoveBeforeRestart [35-36: 3 "kuberuntime_manager.go" SyncPod],
    "Pod marked for RestartAllContainers" => RestartAll [35-36: 3 "kuberuntime_manager.go" computePodActions],
    "Message for Container of pod" => KillReason [23-36: 2 "kuberuntime_manager.go" computePodActions],
    "Using probe-level grace period that is greater than the pod-level grace period" => ProbeGrace
        [25-36: 4 "kuberuntime_container.go" isProbeTerminationGracePeriodSecondsSet],
    "killPodWithSyncResult failed" => KillPodFailed [23-36: 0 "kuberuntime_manager.go" SyncPod],
    "KillPod failed" => KillPodFailed [23-26: 0 "kubelet.go" syncPod] [27-36: 0 "kubelet.go" SyncPod],
    "Pod is not runnable and must have running containers stopped" => NotRunnable
        [23-26: 2 "kubelet.go" syncPod] [27-30: 2 "kubelet.go" SyncPod],
    "Running preStop hook" => PreStopBegin [23-36: 3 "kuberuntime_container.go" executePreStopHook],
    "PreStop hook completed" => PreStopEnd [23-36: 3 "kuberuntime_container.go" executePreStopHook],
    "PreStop hook failed" => PreStopFailed [23-36: 0 "kuberuntime_container.go" executePreStopHook],
    "PreStop hook not completed in grace period" => PreStopTimedOut
        [23-36: 2 "kuberuntime_container.go" executePreStopHook],
    "Failed to execute PostStartHook" => PostStartFailed [23-36: 0 "kuberuntime_container.go" startContainer],
    "Exec lifecycle hook for Container in Pod failed" => HookFailed [23-36: 1 "handlers.go" Run],
    "HTTP lifecycle hook for Container in Pod failed" => HookFailed [23-36: 1 "handlers.go" Run],
    "Sleep lifecycle hook for Container in Pod failed" => HookFailed [29-36: 1 "handlers.go" Run],
    "Probe failed" => ProbeFailed [23-36: 1 "prober.go" probe],
    "Probe errored" => ProbeErrored [23-36: 1 "prober.go" probe],
    "Pod deletion requested, setting probe result to success" => ProbeEnded [23-36: 3 "worker.go" doProbe],
    "Container of pod is not in the desired state and shall be started" => StartDue
        [23-36: 3 "kuberuntime_manager.go" computePodActions],
    "Back-off restarting failed container" => BackOff [23-36: 3 "kuberuntime_manager.go" doBackOff],
    "Backing Off restarting container in pod" => BackOff [23-36: 4 "kuberuntime_manager.go" SyncPod],
    "Pod resize successfully allocated" => ResizeAllocated [34-36: 4 "allocation_manager.go" retryPendingResizes],
    "Pod resize is deferred; will reevaluate later" => ResizeDeferred
        [34-36: 4 "allocation_manager.go" retryPendingResizes],
    "Pod resize is infeasible" => ResizeInfeasible [34-36: 4 "allocation_manager.go" retryPendingResizes],
    "Resize cannot be accommodated" => ResizeInfeasible
        [27-33: 3 "kubelet.go" canResizePod] [34-35: 3 "allocation_manager.go" canResizePod],
};
