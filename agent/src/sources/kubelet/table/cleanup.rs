//! What follows the stop (volumes, cgroups, status, mirror pods), and pods that the kubelet stops for its own reasons.

use super::{Pattern, at, says};
use coroner_core::input::KubeletStatement::*;

/// The patterns.
pub(super) const CLEANUP: &[Pattern] = &[
    says(
        "Waiting for volumes to unmount for pod",
        UnmountBegin,
        &[at(23, 36, 3, "volume_manager.go", "WaitForUnmount")],
    ),
    says(
        "All volumes are unmounted for pod",
        UnmountEnd,
        &[at(23, 36, 3, "volume_manager.go", "WaitForUnmount")],
    ),
    says(
        "Pod termination unmounted volumes",
        VolumesUnmounted,
        &[
            at(23, 26, 4, "kubelet.go", "syncTerminatedPod"),
            at(27, 36, 4, "kubelet.go", "SyncTerminatedPod"),
        ],
    ),
    says(
        "Pod termination cleaned up volume paths",
        VolumePathsRemoved,
        &[at(27, 36, 3, "kubelet.go", "SyncTerminatedPod")],
    ),
    says(
        "Pod is terminated, but some volumes have not been cleaned up",
        VolumesLeft,
        &[
            at(23, 26, 3, "kubelet_pods.go", "PodResourcesAreReclaimed"),
            at(27, 36, 3, "kubelet.go", "SyncTerminatedPod"),
        ],
    ),
    says(
        "Orphaned pod found, but volumes are not cleaned up",
        VolumesLeft,
        &[at(23, 36, 3, "kubelet_volumes.go", "cleanupOrphanedPodDirs")],
    ),
    says(
        "Pod found, but volumes are still mounted on disk",
        VolumesLeft,
        &[at(23, 36, 4, "kubelet_volumes.go", "podVolumesExist")],
    ),
    says(
        "Orphaned pod found, but failed to remove volumes subdir",
        OrphanDirFailed,
        &[at(23, 36, 0, "kubelet_volumes.go", "cleanupOrphanedPodDirs")],
    ),
    says(
        "Failed to remove orphaned pod dir",
        OrphanDirFailed,
        &[at(23, 36, 0, "kubelet_volumes.go", "cleanupOrphanedPodDirs")],
    ),
    says(
        "Failed to remove orphaned pod subdir",
        OrphanDirFailed,
        &[at(23, 36, 0, "kubelet_volumes.go", "cleanupOrphanedPodDirs")],
    ),
    says(
        "Cleaned up orphaned pod volumes dir",
        OrphanVolumesRemoved,
        &[at(23, 36, 0, "kubelet_volumes.go", "removeOrphanedPodVolumeDirs")],
    ),
    says(
        "Orphaned pod found, removing",
        OrphanDirRemoving,
        &[at(23, 36, 3, "kubelet_volumes.go", "cleanupOrphanedPodDirs")],
    ),
    says(
        "Pod termination removed cgroups",
        CgroupsRemoved,
        &[
            at(23, 26, 4, "kubelet.go", "syncTerminatedPod"),
            at(27, 36, 4, "kubelet.go", "SyncTerminatedPod"),
        ],
    ),
    says(
        "Orphaned pod found, removing pod cgroups",
        OrphanCgroupsRemoving,
        &[at(23, 36, 3, "kubelet_pods.go", "cleanupOrphanedPodCgroups")],
    ),
    says(
        "Failed to delete cgroup paths",
        CgroupFailed,
        &[at(23, 36, 0, "pod_container_manager_linux.go", "Destroy")],
    ),
    says(
        "Failed to kill all the processes attached to cgroup",
        CgroupFailed,
        &[at(23, 36, 0, "pod_container_manager_linux.go", "Destroy")],
    ),
    says(
        "Failed to destroy orphaned pod cgroup",
        CgroupFailed,
        &[at(35, 36, 0, "kubelet_pods.go", "cleanupOrphanedPodCgroups")],
    ),
    says(
        "Pod is terminated, but pod cgroup sandbox has not been cleaned up",
        CgroupLeft,
        &[at(23, 26, 3, "kubelet_pods.go", "PodResourcesAreReclaimed")],
    ),
    says("Patch status for pod", StatusPatch, &[at(23, 36, 3, "status_manager.go", "syncPod")]),
    says(
        "Status for pod updated successfully",
        StatusUpdated,
        &[at(23, 36, 3, "status_manager.go", "syncPod")],
    ),
    says(
        "Failed to update status for pod",
        StatusFailed,
        &[at(23, 36, 0, "status_manager.go", "syncPod")],
    ),
    says(
        "Delaying pod deletion as the phase is non-terminal",
        DeleteDelayed,
        &[at(27, 36, 3, "status_manager.go", "canBeDeleted")],
    ),
    says(
        "The pod termination is finished as SyncTerminatedPod completes its execution",
        DeleteAllowed,
        &[at(27, 36, 3, "status_manager.go", "canBeDeleted")],
    ),
    says(
        "Pod is terminated, but some containers are still running",
        DeleteDelayedContainers,
        &[at(23, 26, 3, "kubelet_pods.go", "PodResourcesAreReclaimed")],
    ),
    says(
        "Pod is terminated, but some container status has not yet been reported",
        DeleteDelayedStatus,
        &[at(23, 26, 3, "kubelet_pods.go", "PodResourcesAreReclaimed")],
    ),
    says(
        "Pod is terminated and all resources are reclaimed",
        ResourcesReclaimed,
        &[at(23, 26, 3, "kubelet_pods.go", "PodResourcesAreReclaimed")],
    ),
    says(
        "Pod fully terminated and removed from etcd",
        ApiRemoved,
        &[at(23, 36, 3, "status_manager.go", "syncPod")],
    ),
    says(
        "Pod does not exist on the server",
        ApiGone,
        &[at(23, 36, 3, "status_manager.go", "syncPod")],
    ),
    says(
        "Pod was deleted and then recreated, skipping status update",
        ApiRecreated,
        &[at(23, 36, 2, "status_manager.go", "syncPod")],
    ),
    says(
        "Failed to delete status for pod",
        ApiRemoveFailed,
        &[at(23, 36, 0, "status_manager.go", "syncPod")],
    ),
    says(
        "Creating a mirror pod for static pod",
        MirrorCreating,
        &[
            at(23, 26, 4, "kubelet.go", "syncPod"),
            at(27, 31, 4, "kubelet.go", "SyncPod"),
            at(32, 36, 0, "kubelet.go", "tryReconcileMirrorPods"),
        ],
    ),
    says(
        "Failed creating a mirror pod for",
        MirrorCreateFailed,
        &[at(23, 26, 0, "kubelet.go", "syncPod"), at(27, 31, 0, "kubelet.go", "SyncPod")],
    ),
    says(
        "Failed creating a mirror pod",
        MirrorCreateFailed,
        &[at(32, 36, 0, "kubelet.go", "tryReconcileMirrorPods")],
    ),
    says(
        "Trying to delete pod",
        MirrorDeleteTried,
        &[
            at(23, 26, 0, "kubelet.go", "syncPod"),
            at(27, 31, 0, "kubelet.go", "SyncPod"),
            at(32, 36, 0, "kubelet.go", "tryReconcileMirrorPods"),
        ],
    ),
    says(
        "Deleting a mirror pod",
        MirrorDeleting,
        &[at(23, 36, 2, "mirror_client.go", "DeleteMirrorPod")],
    ),
    says(
        "Deleted mirror pod",
        MirrorDeleted,
        &[at(27, 36, 3, "kubelet_pods.go", "HandlePodCleanups")],
    ),
    says(
        "Deleted pod",
        MirrorDeleted,
        &[at(23, 26, 3, "kubelet_pods.go", "deleteOrphanedMirrorPods")],
    ),
    says(
        "Deleted mirror pod because it is outdated",
        MirrorOutdated,
        &[at(23, 26, 0, "kubelet.go", "syncPod"), at(27, 31, 0, "kubelet.go", "SyncPod")],
    ),
    says(
        "Deleted mirror pod as it didn't match the static Pod",
        MirrorOutdated,
        &[at(32, 36, 0, "kubelet.go", "tryReconcileMirrorPods")],
    ),
    says(
        "Failed deleting a mirror pod",
        MirrorDeleteFailed,
        &[at(23, 36, 0, "mirror_client.go", "DeleteMirrorPod")],
    ),
    says(
        "Failed deleting mirror pod",
        MirrorDeleteFailed,
        &[
            at(23, 26, 0, "kubelet.go", "syncPod"),
            at(27, 31, 0, "kubelet.go", "SyncPod"),
            at(32, 36, 0, "kubelet.go", "tryReconcileMirrorPods"),
        ],
    ),
    says(
        "Encountered error when deleting mirror pod",
        MirrorDeleteFailed,
        &[
            at(23, 26, 0, "kubelet_pods.go", "deleteOrphanedMirrorPods"),
            at(27, 36, 0, "kubelet_pods.go", "HandlePodCleanups"),
        ],
    ),
    says(
        "Unable to find pod for mirror pod, skipping",
        MirrorWithoutPod,
        &[at(27, 36, 2, "kubelet.go", "HandlePodAdditions")],
    ),
    says(
        "Preempting pod to free up resources",
        Preempting,
        &[
            at(23, 33, 3, "preemption.go", "evictPodsToFreeRequests"),
            at(34, 36, 2, "preemption.go", "evictPodsToFreeRequests"),
        ],
    ),
    says(
        "Pod evicted successfully",
        Preempted,
        &[at(23, 36, 0, "preemption.go", "evictPodsToFreeRequests")],
    ),
    says(
        "Failed to evict pod",
        PreemptFailed,
        &[at(23, 36, 0, "preemption.go", "evictPodsToFreeRequests")],
    ),
    says("Evicting pod", Evicting, &[at(23, 36, 3, "eviction_manager.go", "evictPod")]),
    says(
        "Eviction manager: must evict pod(s) to reclaim",
        EvictionDue,
        &[at(23, 36, 0, "eviction_manager.go", "synchronize")],
    ),
    says(
        "Eviction manager: pods ranked for eviction",
        EvictionRanked,
        &[at(23, 36, 0, "eviction_manager.go", "synchronize")],
    ),
    says(
        "Eviction manager: pod is evicted successfully",
        Evicted,
        &[at(23, 36, 0, "eviction_manager.go", "evictPod")],
    ),
    says(
        "Eviction manager: pod failed to evict",
        EvictFailed,
        &[at(23, 36, 0, "eviction_manager.go", "evictPod")],
    ),
    says(
        "Eviction manager: cannot evict a critical pod",
        EvictFailed,
        &[at(23, 36, 0, "eviction_manager.go", "evictPod")],
    ),
    says(
        "Eviction manager: pods successfully cleaned up",
        EvictedCleanedUp,
        &[at(23, 36, 0, "eviction_manager.go", "waitForPodsCleanup")],
    ),
    says(
        "Eviction manager: timed out waiting for pods to be cleaned up",
        EvictedNotCleanedUp,
        &[at(23, 36, 0, "eviction_manager.go", "waitForPodsCleanup")],
    ),
    says(
        "Shutdown manager detected new shutdown event",
        ShutdownDetected,
        &[at(23, 36, 1, "nodeshutdown_manager_linux.go", "start")],
    ),
    says(
        "Shutdown manager detected new shutdown event, isNodeShuttingDownNow",
        ShutdownDetected,
        &[at(23, 36, 1, "nodeshutdown_manager_linux.go", "start")],
    ),
    says(
        "Shutdown manager processing shutdown event",
        ShutdownBegin,
        &[at(23, 36, 1, "nodeshutdown_manager_linux.go", "processShutdownEvent")],
    ),
    says(
        "Shutdown manager killing pod with gracePeriod",
        ShutdownKill,
        &[
            at(23, 31, 1, "nodeshutdown_manager_linux.go", "processShutdownEvent"),
            at(32, 36, 1, "nodeshutdown_manager.go", "killPods"),
        ],
    ),
    says(
        "Shutdown manager finished killing pod",
        ShutdownKilled,
        &[
            at(23, 31, 1, "nodeshutdown_manager_linux.go", "processShutdownEvent"),
            at(32, 36, 1, "nodeshutdown_manager.go", "killPods"),
        ],
    ),
    says(
        "Shutdown manager failed killing pod",
        ShutdownKillFailed,
        &[
            at(23, 31, 1, "nodeshutdown_manager_linux.go", "processShutdownEvent"),
            at(32, 36, 1, "nodeshutdown_manager.go", "killPods"),
        ],
    ),
    says(
        "Shutdown manager pod killing time out",
        ShutdownTimedOut,
        &[
            at(23, 31, 1, "nodeshutdown_manager_linux.go", "processShutdownEvent"),
            at(32, 36, 1, "nodeshutdown_manager.go", "killPods"),
        ],
    ),
    says(
        "Shutdown manager completed processing shutdown event, node will shutdown shortly",
        ShutdownEnd,
        &[at(23, 36, 1, "nodeshutdown_manager_linux.go", "processShutdownEvent")],
    ),
];
