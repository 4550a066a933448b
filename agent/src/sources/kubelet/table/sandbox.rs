//! Sandboxes, calls of the runtime and garbage collection: `pkg/kubelet/kuberuntime`, the CRI client.

use super::{Pattern, at, says};
use coroner_core::input::KubeletStatement::*;

/// The patterns.
pub(super) const SANDBOX: &[Pattern] = &[
    says(
        "SyncPod received new pod, will create a sandbox for it",
        SandboxNew,
        &[at(23, 36, 4, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Stopping PodSandbox for pod, will start new one",
        SandboxRestarting,
        &[at(23, 36, 4, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Stopping PodSandbox for pod, because all other containers are dead",
        SandboxStopping,
        &[at(23, 36, 4, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "No sandbox for pod can be found. Need to start a new one",
        SandboxMissing,
        &[
            at(23, 24, 2, "kuberuntime_manager.go", "podSandboxChanged"),
            at(25, 36, 2, "util.go", "PodSandboxChanged"),
        ],
    ),
    says(
        "No ready sandbox for pod can be found. Need to start a new one",
        SandboxChanged,
        &[
            at(23, 24, 2, "kuberuntime_manager.go", "podSandboxChanged"),
            at(25, 36, 2, "util.go", "PodSandboxChanged"),
        ],
    ),
    says(
        "Sandbox for pod has changed. Need to start a new one",
        SandboxChanged,
        &[
            at(23, 24, 2, "kuberuntime_manager.go", "podSandboxChanged"),
            at(25, 36, 2, "util.go", "PodSandboxChanged"),
        ],
    ),
    says(
        "Sandbox for pod has no IP address. Need to start a new one",
        SandboxChanged,
        &[
            at(23, 24, 2, "kuberuntime_manager.go", "podSandboxChanged"),
            at(25, 36, 2, "util.go", "PodSandboxChanged"),
        ],
    ),
    says(
        "Multiple sandboxes are ready for Pod. Need to reconcile them",
        SandboxChanged,
        &[
            at(23, 24, 2, "kuberuntime_manager.go", "podSandboxChanged"),
            at(25, 36, 2, "util.go", "PodSandboxChanged"),
        ],
    ),
    says(
        "Creating PodSandbox for pod",
        SandboxCreating,
        &[at(23, 36, 4, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Created PodSandbox for pod",
        SandboxCreated,
        &[at(23, 36, 4, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Failed to create sandbox for pod",
        SandboxCreateFailed,
        &[at(23, 36, 0, "kuberuntime_sandbox.go", "createPodSandbox")],
    ),
    says(
        "CreatePodSandbox for pod failed",
        SandboxCreateFailed,
        &[at(23, 36, 0, "kuberuntime_manager.go", "SyncPod")],
    ),
    says(
        "Failed to stop sandbox",
        SandboxStopFailed,
        &[at(23, 36, 0, "kuberuntime_manager.go", "killPodWithSyncResult")],
    ),
    says(
        "Failed to stop sandbox before removing",
        SandboxStopFailed,
        &[at(23, 36, 0, "kuberuntime_gc.go", "removeSandbox")],
    ),
    says(
        "StopPodSandbox from runtime service failed",
        RuntimeStopSandboxFailed,
        &[at(23, 36, 0, "remote_runtime.go", "StopPodSandbox")],
    ),
    says(
        "StopContainer from runtime service failed",
        RuntimeStopContainerFailed,
        &[at(23, 36, 0, "remote_runtime.go", "StopContainer")],
    ),
    says(
        "RemovePodSandbox from runtime service failed",
        RuntimeRemoveSandboxFailed,
        &[at(23, 36, 0, "remote_runtime.go", "RemovePodSandbox")],
    ),
    says(
        "RemoveContainer from runtime service failed",
        RuntimeRemoveContainerFailed,
        &[at(23, 36, 0, "remote_runtime.go", "RemoveContainer")],
    ),
    says(
        "RunPodSandbox from runtime service failed",
        RuntimeRunSandboxFailed,
        &[at(23, 36, 0, "remote_runtime.go", "RunPodSandbox")],
    ),
    says(
        "StartContainer from runtime service failed",
        RuntimeStartContainerFailed,
        &[at(23, 36, 0, "remote_runtime.go", "StartContainer")],
    ),
    says(
        "ListPodSandbox with filter from runtime service failed",
        RuntimeListFailed,
        &[at(23, 36, 0, "remote_runtime.go", "ListPodSandbox")],
    ),
    says(
        "ListContainers with filter from runtime service failed",
        RuntimeListFailed,
        &[at(23, 36, 0, "remote_runtime.go", "ListContainers")],
    ),
    says(
        "Container runtime sanity check failed",
        RuntimeNotReady,
        &[at(23, 36, 0, "kubelet.go", "updateRuntimeUp")],
    ),
    says(
        "Container runtime not ready",
        RuntimeNotReady,
        &[at(23, 25, 0, "kubelet.go", "updateRuntimeUp")],
    ),
    says(
        "Container runtime network not ready",
        NetworkNotReady,
        &[at(23, 25, 0, "kubelet.go", "updateRuntimeUp")],
    ),
    says(
        "Removing container",
        ContainerRemoving,
        &[at(23, 36, 4, "kuberuntime_container.go", "removeContainer")],
    ),
    says("RemoveContainer", ContainerForgotten, &[at(23, 36, 0, "scope.go", "RemoveContainer")]),
    says(
        "Removing sandbox",
        SandboxRemoving,
        &[at(23, 36, 4, "kuberuntime_gc.go", "removeSandbox")],
    ),
    says(
        "Removing pod logs",
        PodLogsRemoving,
        &[at(23, 36, 4, "kuberuntime_gc.go", "evictPodLogsDirectories")],
    ),
    says(
        "Failed to remove container",
        ContainerRemoveFailed,
        &[at(23, 36, 0, "kuberuntime_gc.go", "removeOldestN")],
    ),
    says(
        "Failed to issue the request to remove container",
        ContainerRemoveFailed,
        &[at(23, 36, 0, "pod_container_deletor.go", "deleteContainersInPod")],
    ),
    says(
        "DeleteContainer returned error",
        ContainerDeleteFailed,
        &[at(23, 36, 0, "pod_container_deletor.go", "newPodContainerDeletor")],
    ),
    says(
        "Container not found in pod's containers",
        ContainerNotFound,
        &[at(23, 36, 0, "pod_container_deletor.go", "getContainersToDeleteInPod")],
    ),
    says(
        "Failed to remove sandbox",
        SandboxRemoveFailed,
        &[at(23, 36, 0, "kuberuntime_gc.go", "removeSandbox")],
    ),
    says(
        "Container garbage collection succeeded",
        GcSucceeded,
        &[at(23, 36, 4, "kubelet.go", "StartGarbageCollection")],
    ),
    says(
        "Container garbage collection failed",
        GcFailed,
        &[at(23, 36, 0, "kubelet.go", "StartGarbageCollection")],
    ),
];
