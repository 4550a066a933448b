//! The pod workers: `pkg/kubelet/pod_workers.go`, `pkg/kubelet/kubelet.go`.

use super::{Pattern, at, says};
use coroner_core::input::KubeletStatement::*;

/// The patterns.
pub(super) const WORKER: &[Pattern] = &[
    says(
        "Pod is being synced for the first time",
        WorkerFirstSync,
        &[at(23, 36, 4, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Pod has been deleted and must be killed",
        KillRequested,
        &[at(23, 36, 3, "kubelet.go", "deletePod")],
    ),
    says(
        "Pod is marked for graceful deletion, begin teardown",
        TeardownDeletion,
        &[at(23, 36, 4, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Pod is being removed by the kubelet, begin teardown",
        TeardownRemoval,
        &[at(23, 36, 4, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Pod is being evicted by the kubelet, begin teardown",
        TeardownEviction,
        &[at(23, 36, 4, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Pod is in a terminal phase (success/failed), begin teardown",
        TeardownPhase,
        &[at(23, 36, 4, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Pod is orphaned and must be torn down",
        TeardownOrphan,
        &[at(23, 36, 4, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Pod is orphaned and still running, began terminating",
        TeardownOrphan,
        &[at(27, 36, 4, "pod_workers.go", "removeTerminatedWorker")],
    ),
    says(
        "Pod is orphaned and still terminating, notified the pod worker",
        OrphanNotified,
        &[at(27, 36, 4, "pod_workers.go", "removeTerminatedWorker")],
    ),
    says(
        "Pod is orphaned and has not been started",
        OrphanNotStarted,
        &[at(27, 36, 4, "pod_workers.go", "removeTerminatedWorker")],
    ),
    says(
        "Cancelling current pod sync",
        SyncCancelled,
        &[at(23, 36, 3, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Sync exited with context cancellation error",
        SyncCancelled,
        &[
            at(23, 26, 2, "pod_workers.go", "managePodLoop"),
            at(27, 36, 2, "pod_workers.go", "podWorkerLoop"),
        ],
    ),
    says(
        "Notifying pod of pending update",
        WorkerNotified,
        &[at(27, 36, 4, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Processing pod event",
        WorkerBegin,
        &[
            at(23, 26, 4, "pod_workers.go", "managePodLoop"),
            at(27, 36, 4, "pod_workers.go", "podWorkerLoop"),
        ],
    ),
    says(
        "Processing pod event done",
        WorkerEnd,
        &[
            at(23, 26, 4, "pod_workers.go", "managePodLoop"),
            at(27, 36, 4, "pod_workers.go", "podWorkerLoop"),
        ],
    ),
    says(
        "Pod worker has observed request to terminate",
        TerminationObserved,
        &[at(23, 36, 4, "pod_workers.go", "acknowledgeTerminating")],
    ),
    says(
        "Pod indicated lifecycle completed naturally and should now terminate",
        CompletedNaturally,
        &[at(23, 36, 4, "pod_workers.go", "completeSync")],
    ),
    says("syncPod enter", SyncBegin, &[at(23, 26, 4, "kubelet.go", "syncPod")]),
    says("SyncPod enter", SyncBegin, &[at(27, 36, 4, "kubelet.go", "SyncPod")]),
    says("syncPod exit", SyncEnd, &[at(23, 26, 4, "kubelet.go", "syncPod")]),
    says("SyncPod exit", SyncEnd, &[at(27, 36, 4, "kubelet.go", "SyncPod")]),
    says(
        "syncTerminatingPod enter",
        TerminatingBegin,
        &[at(23, 26, 4, "kubelet.go", "syncTerminatingPod")],
    ),
    says(
        "SyncTerminatingPod enter",
        TerminatingBegin,
        &[at(27, 36, 4, "kubelet.go", "SyncTerminatingPod")],
    ),
    says(
        "SyncTerminatingRuntimePod enter",
        TerminatingBegin,
        &[at(27, 36, 4, "kubelet.go", "SyncTerminatingRuntimePod")],
    ),
    says(
        "syncTerminatingPod exit",
        TerminatingEnd,
        &[at(23, 26, 4, "kubelet.go", "syncTerminatingPod")],
    ),
    says(
        "SyncTerminatingPod exit",
        TerminatingEnd,
        &[at(27, 36, 4, "kubelet.go", "SyncTerminatingPod")],
    ),
    says(
        "SyncTerminatingRuntimePod exit",
        TerminatingEnd,
        &[at(27, 36, 4, "kubelet.go", "SyncTerminatingRuntimePod")],
    ),
    says(
        "syncTerminatedPod enter",
        TerminatedBegin,
        &[at(23, 26, 4, "kubelet.go", "syncTerminatedPod")],
    ),
    says(
        "SyncTerminatedPod enter",
        TerminatedBegin,
        &[at(27, 36, 4, "kubelet.go", "SyncTerminatedPod")],
    ),
    says(
        "syncTerminatedPod exit",
        TerminatedEnd,
        &[at(23, 26, 4, "kubelet.go", "syncTerminatedPod")],
    ),
    says(
        "SyncTerminatedPod exit",
        TerminatedEnd,
        &[at(27, 36, 4, "kubelet.go", "SyncTerminatedPod")],
    ),
    says(
        "Pod terminating with grace period",
        TerminatingGrace,
        &[
            at(23, 26, 4, "kubelet.go", "syncTerminatingPod"),
            at(27, 36, 4, "kubelet.go", "SyncTerminatingPod"),
        ],
    ),
    says(
        "Orphaned running pod terminating without grace period",
        TerminatingGrace,
        &[at(27, 36, 4, "kubelet.go", "SyncTerminatingRuntimePod")],
    ),
    says(
        "Pod termination stopped all running containers",
        ContainersStopped,
        &[
            at(23, 26, 4, "kubelet.go", "syncTerminatingPod"),
            at(27, 36, 4, "kubelet.go", "SyncTerminatingPod"),
        ],
    ),
    says(
        "Pod termination stopped all running orphan containers",
        ContainersStopped,
        &[at(23, 26, 4, "kubelet.go", "syncTerminatingPod")],
    ),
    says(
        "Pod termination stopped all running orphaned containers",
        ContainersStopped,
        &[at(27, 36, 4, "kubelet.go", "SyncTerminatingRuntimePod")],
    ),
    says(
        "Pod terminated all containers successfully",
        WorkerTerminatingDone,
        &[at(23, 36, 4, "pod_workers.go", "completeTerminating")],
    ),
    says(
        "Pod terminated all orphaned containers successfully and worker can now stop",
        WorkerTerminatingDone,
        &[at(23, 36, 4, "pod_workers.go", "completeTerminatingRuntimePod")],
    ),
    says(
        "Pod is terminated and will need no more status updates",
        StatusFinal,
        &[
            at(23, 26, 4, "kubelet.go", "syncTerminatedPod"),
            at(27, 36, 4, "kubelet.go", "SyncTerminatedPod"),
        ],
    ),
    says(
        "Pod is complete and the worker can now stop",
        WorkerDone,
        &[at(23, 36, 4, "pod_workers.go", "completeTerminated")],
    ),
    says(
        "Pod never started and the worker can now stop",
        WorkerDone,
        &[at(23, 26, 4, "pod_workers.go", "completeUnstartedTerminated")],
    ),
    says("Pod worker has stopped", WorkerStopped, &[at(27, 36, 3, "pod_workers.go", "UpdatePod")]),
    says(
        "Pod is finished processing, no further updates",
        WorkerUpdateIgnored,
        &[at(23, 36, 4, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Pod has been terminated and is no longer known to the kubelet, remove all history",
        WorkerRemoved,
        &[at(23, 36, 4, "pod_workers.go", "removeTerminatedWorker")],
    ),
    says(
        "Pod has been terminated but another pod with the same UID was created, remove history to allow restart",
        WorkerRemovedForRestart,
        &[at(23, 36, 4, "pod_workers.go", "removeTerminatedWorker")],
    ),
    says(
        "Pod is terminating but has been requested to restart with same UID, will be reconciled later",
        RestartRequested,
        &[at(23, 36, 4, "pod_workers.go", "UpdatePod")],
    ),
    says(
        "Pod worker has been requested for removal but is still not fully terminated",
        WorkerStuck,
        &[at(23, 36, 4, "pod_workers.go", "removeTerminatedWorker")],
    ),
    says(
        "Pod worker has been requested for removal but is not a known pod",
        WorkerUnknown,
        &[at(23, 26, 4, "pod_workers.go", "removeTerminatedWorker")],
    ),
    says(
        "Pod cannot start yet",
        StartDelayed,
        &[
            at(23, 26, 4, "pod_workers.go", "managePodLoop"),
            at(27, 36, 4, "pod_workers.go", "startPodSync"),
        ],
    ),
    says(
        "Error syncing pod, skipping",
        SyncFailed,
        &[
            at(23, 26, 0, "pod_workers.go", "managePodLoop"),
            at(27, 36, 0, "pod_workers.go", "podWorkerLoop"),
        ],
    ),
    says(
        "Clean up containers for orphaned pod we had not seen before",
        OrphanFound,
        &[at(27, 36, 2, "kubelet_pods.go", "HandlePodCleanups")],
    ),
    says(
        "Clean up orphaned pod containers",
        OrphanFound,
        &[at(23, 26, 3, "kubelet_pods.go", "HandlePodCleanups")],
    ),
];
