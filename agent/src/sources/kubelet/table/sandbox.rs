//! Sandboxes, calls of the runtime and garbage collection: `pkg/kubelet/kuberuntime`, the CRI client.

use super::{Logged, Pattern};
use coroner_core::input::KubeletStatement;

/// The patterns.
pub(super) const SANDBOX: &[Pattern] = messages! {
    "SyncPod received new pod, will create a sandbox for it" => SandboxNew [23-36: 4 "kuberuntime_manager.go" SyncPod],
    "Stopping PodSandbox for pod, will start new one" => SandboxRestarting [23-36: 4 "kuberuntime_manager.go" SyncPod],
    "Stopping PodSandbox for pod, because all other containers are dead" => SandboxStopping
        [23-36: 4 "kuberuntime_manager.go" SyncPod],
    "No sandbox for pod can be found. Need to start a new one" => SandboxMissing
        [23-24: 2 "kuberuntime_manager.go" podSandboxChanged] [25-36: 2 "util.go" PodSandboxChanged],
    "No ready sandbox for pod can be found. Need to start a new one" => SandboxChanged
        [23-24: 2 "kuberuntime_manager.go" podSandboxChanged] [25-36: 2 "util.go" PodSandboxChanged],
    "Sandbox for pod has changed. Need to start a new one" => SandboxChanged
        [23-24: 2 "kuberuntime_manager.go" podSandboxChanged] [25-36: 2 "util.go" PodSandboxChanged],
    "Sandbox for pod has no IP address. Need to start a new one" => SandboxChanged
        [23-24: 2 "kuberuntime_manager.go" podSandboxChanged] [25-36: 2 "util.go" PodSandboxChanged],
    "Multiple sandboxes are ready for Pod. Need to reconcile them" => SandboxChanged
        [23-24: 2 "kuberuntime_manager.go" podSandboxChanged] [25-36: 2 "util.go" PodSandboxChanged],
    "Creating PodSandbox for pod" => SandboxCreating [23-36: 4 "kuberuntime_manager.go" SyncPod],
    "Created PodSandbox for pod" => SandboxCreated [23-36: 4 "kuberuntime_manager.go" SyncPod],
    "Failed to create sandbox for pod" => SandboxCreateFailed [23-36: 0 "kuberuntime_sandbox.go" createPodSandbox],
    "CreatePodSandbox for pod failed" => SandboxCreateFailed [23-36: 0 "kuberuntime_manager.go" SyncPod],
    "Failed to stop sandbox" => SandboxStopFailed [23-36: 0 "kuberuntime_manager.go" killPodWithSyncResult],
    "Failed to stop sandbox before removing" => SandboxStopFailed [23-36: 0 "kuberuntime_gc.go" removeSandbox],
    "StopPodSandbox from runtime service failed" => RuntimeStopSandboxFailed
        [23-36: 0 "remote_runtime.go" StopPodSandbox],
    "StopContainer from runtime service failed" => RuntimeStopContainerFailed
        [23-36: 0 "remote_runtime.go" StopContainer],
    "RemovePodSandbox from runtime service failed" => RuntimeRemoveSandboxFailed
        [23-36: 0 "remote_runtime.go" RemovePodSandbox],
    "RemoveContainer from runtime service failed" => RuntimeRemoveContainerFailed
        [23-36: 0 "remote_runtime.go" RemoveContainer],
    "RunPodSandbox from runtime service failed" => RuntimeRunSandboxFailed [23-36: 0 "remote_runtime.go" RunPodSandbox],
    "StartContainer from runtime service failed" => RuntimeStartContainerFailed
        [23-36: 0 "remote_runtime.go" StartContainer],
    "ListPodSandbox with filter from runtime service failed" => RuntimeListFailed
        [23-36: 0 "remote_runtime.go" ListPodSandbox],
    "ListContainers with filter from runtime service failed" => RuntimeListFailed
        [23-36: 0 "remote_runtime.go" ListContainers],
    "Container runtime sanity check failed" => RuntimeNotReady [23-36: 0 "kubelet.go" updateRuntimeUp],
    "Container runtime not ready" => RuntimeNotReady [23-25: 0 "kubelet.go" updateRuntimeUp],
    "Container runtime network not ready" => NetworkNotReady [23-25: 0 "kubelet.go" updateRuntimeUp],
    "Removing container" => ContainerRemoving [23-36: 4 "kuberuntime_container.go" removeContainer],
    "RemoveContainer" => ContainerForgotten [23-36: 0 "scope.go" RemoveContainer],
    "Removing sandbox" => SandboxRemoving [23-36: 4 "kuberuntime_gc.go" removeSandbox],
    "Removing pod logs" => PodLogsRemoving [23-36: 4 "kuberuntime_gc.go" evictPodLogsDirectories],
    "Failed to remove container" => ContainerRemoveFailed [23-36: 0 "kuberuntime_gc.go" removeOldestN],
    "Failed to issue the request to remove container" => ContainerRemoveFailed
        [23-36: 0 "pod_container_deletor.go" deleteContainersInPod],
    "DeleteContainer returned error" => ContainerDeleteFailed
        [23-36: 0 "pod_container_deletor.go" newPodContainerDeletor],
    "Container not found in pod's containers" => ContainerNotFound
        [23-36: 0 "pod_container_deletor.go" getContainersToDeleteInPod],
    "Failed to remove sandbox" => SandboxRemoveFailed [23-36: 0 "kuberuntime_gc.go" removeSandbox],
    "Container garbage collection succeeded" => GcSucceeded [23-36: 4 "kubelet.go" StartGarbageCollection],
    "Container garbage collection failed" => GcFailed [23-36: 0 "kubelet.go" StartGarbageCollection],
};
