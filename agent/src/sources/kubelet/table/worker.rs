//! The pod workers: `pkg/kubelet/pod_workers.go`, `pkg/kubelet/kubelet.go`.

use super::{Logged, Pattern};
use coroner_core::input::KubeletStatement;

/// The patterns.
pub(super) const WORKER: &[Pattern] = messages! {
    "Pod is being synced for the first time" => WorkerFirstSync [23-36: 4 "pod_workers.go" UpdatePod],
    "Pod has been deleted and must be killed" => KillRequested [23-36: 3 "kubelet.go" deletePod],
    "Pod is marked for graceful deletion, begin teardown" => TeardownDeletion [23-36: 4 "pod_workers.go" UpdatePod],
    "Pod is being removed by the kubelet, begin teardown" => TeardownRemoval [23-36: 4 "pod_workers.go" UpdatePod],
    "Pod is being evicted by the kubelet, begin teardown" => TeardownEviction [23-36: 4 "pod_workers.go" UpdatePod],
    "Pod is in a terminal phase (success/failed), begin teardown" => TeardownPhase
        [23-36: 4 "pod_workers.go" UpdatePod],
    "Pod is orphaned and must be torn down" => TeardownOrphan [23-36: 4 "pod_workers.go" UpdatePod],
    "Pod is orphaned and still running, began terminating" => TeardownOrphan
        [27-36: 4 "pod_workers.go" removeTerminatedWorker],
    "Pod is orphaned and still terminating, notified the pod worker" => OrphanNotified
        [27-36: 4 "pod_workers.go" removeTerminatedWorker],
    "Pod is orphaned and has not been started" => OrphanNotStarted [27-36: 4 "pod_workers.go" removeTerminatedWorker],
    "Cancelling current pod sync" => SyncCancelled [23-36: 3 "pod_workers.go" UpdatePod],
    "Sync exited with context cancellation error" => SyncCancelled
        [23-26: 2 "pod_workers.go" managePodLoop] [27-36: 2 "pod_workers.go" podWorkerLoop],
    "Notifying pod of pending update" => WorkerNotified [27-36: 4 "pod_workers.go" UpdatePod],
    "Processing pod event" => WorkerBegin
        [23-26: 4 "pod_workers.go" managePodLoop] [27-36: 4 "pod_workers.go" podWorkerLoop],
    "Processing pod event done" => WorkerEnd
        [23-26: 4 "pod_workers.go" managePodLoop] [27-36: 4 "pod_workers.go" podWorkerLoop],
    "Pod worker has observed request to terminate" => TerminationObserved
        [23-36: 4 "pod_workers.go" acknowledgeTerminating],
    "Pod indicated lifecycle completed naturally and should now terminate" => CompletedNaturally
        [23-36: 4 "pod_workers.go" completeSync],
    "syncPod enter" => SyncBegin [23-26: 4 "kubelet.go" syncPod],
    "SyncPod enter" => SyncBegin [27-36: 4 "kubelet.go" SyncPod],
    "syncPod exit" => SyncEnd [23-26: 4 "kubelet.go" syncPod],
    "SyncPod exit" => SyncEnd [27-36: 4 "kubelet.go" SyncPod],
    "syncTerminatingPod enter" => TerminatingBegin [23-26: 4 "kubelet.go" syncTerminatingPod],
    "SyncTerminatingPod enter" => TerminatingBegin [27-36: 4 "kubelet.go" SyncTerminatingPod],
    "SyncTerminatingRuntimePod enter" => TerminatingBegin [27-36: 4 "kubelet.go" SyncTerminatingRuntimePod],
    "syncTerminatingPod exit" => TerminatingEnd [23-26: 4 "kubelet.go" syncTerminatingPod],
    "SyncTerminatingPod exit" => TerminatingEnd [27-36: 4 "kubelet.go" SyncTerminatingPod],
    "SyncTerminatingRuntimePod exit" => TerminatingEnd [27-36: 4 "kubelet.go" SyncTerminatingRuntimePod],
    "syncTerminatedPod enter" => TerminatedBegin [23-26: 4 "kubelet.go" syncTerminatedPod],
    "SyncTerminatedPod enter" => TerminatedBegin [27-36: 4 "kubelet.go" SyncTerminatedPod],
    "syncTerminatedPod exit" => TerminatedEnd [23-26: 4 "kubelet.go" syncTerminatedPod],
    "SyncTerminatedPod exit" => TerminatedEnd [27-36: 4 "kubelet.go" SyncTerminatedPod],
    "Pod terminating with grace period" => TerminatingGrace
        [23-26: 4 "kubelet.go" syncTerminatingPod] [27-36: 4 "kubelet.go" SyncTerminatingPod],
    "Orphaned running pod terminating without grace period" => TerminatingGrace
        [27-36: 4 "kubelet.go" SyncTerminatingRuntimePod],
    "Pod termination stopped all running containers" => ContainersStopped
        [23-26: 4 "kubelet.go" syncTerminatingPod] [27-36: 4 "kubelet.go" SyncTerminatingPod],
    "Pod termination stopped all running orphan containers" => ContainersStopped
        [23-26: 4 "kubelet.go" syncTerminatingPod],
    "Pod termination stopped all running orphaned containers" => ContainersStopped
        [27-36: 4 "kubelet.go" SyncTerminatingRuntimePod],
    "Pod terminated all containers successfully" => WorkerTerminatingDone
        [23-36: 4 "pod_workers.go" completeTerminating],
    "Pod terminated all orphaned containers successfully and worker can now stop" => WorkerTerminatingDone
        [23-36: 4 "pod_workers.go" completeTerminatingRuntimePod],
    "Pod is terminated and will need no more status updates" => StatusFinal
        [23-26: 4 "kubelet.go" syncTerminatedPod] [27-36: 4 "kubelet.go" SyncTerminatedPod],
    "Pod is complete and the worker can now stop" => WorkerDone [23-36: 4 "pod_workers.go" completeTerminated],
    "Pod never started and the worker can now stop" => WorkerDone
        [23-26: 4 "pod_workers.go" completeUnstartedTerminated],
    "Pod worker has stopped" => WorkerStopped [27-36: 3 "pod_workers.go" UpdatePod],
    "Pod is finished processing, no further updates" => WorkerUpdateIgnored [23-36: 4 "pod_workers.go" UpdatePod],
    "Pod has been terminated and is no longer known to the kubelet, remove all history" => WorkerRemoved
        [23-36: 4 "pod_workers.go" removeTerminatedWorker],
    "Pod has been terminated but another pod with the same UID was created, remove history to allow restart" => WorkerRemovedForRestart
        [23-36: 4 "pod_workers.go" removeTerminatedWorker],
    "Pod is terminating but has been requested to restart with same UID, will be reconciled later" => RestartRequested
        [23-36: 4 "pod_workers.go" UpdatePod],
    "Pod worker has been requested for removal but is still not fully terminated" => WorkerStuck
        [23-36: 4 "pod_workers.go" removeTerminatedWorker],
    "Pod worker has been requested for removal but is not a known pod" => WorkerUnknown
        [23-26: 4 "pod_workers.go" removeTerminatedWorker],
    "Pod cannot start yet" => StartDelayed
        [23-26: 4 "pod_workers.go" managePodLoop] [27-36: 4 "pod_workers.go" startPodSync],
    "Error syncing pod, skipping" => SyncFailed
        [23-26: 0 "pod_workers.go" managePodLoop] [27-36: 0 "pod_workers.go" podWorkerLoop],
    "Clean up containers for orphaned pod we had not seen before" => OrphanFound
        [27-36: 2 "kubelet_pods.go" HandlePodCleanups],
    "Clean up orphaned pod containers" => OrphanFound [23-26: 3 "kubelet_pods.go" HandlePodCleanups],
};
