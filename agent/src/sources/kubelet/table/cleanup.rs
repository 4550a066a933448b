//! What follows the stop (volumes, cgroups, status, mirror pods), and pods that the kubelet stops for its own reasons.

use super::{Logged, Pattern};
use coroner_core::input::KubeletStatement;

/// The patterns.
pub(super) const CLEANUP: &[Pattern] = messages! {
    "Waiting for volumes to unmount for pod" => UnmountBegin [23-36: 3 "volume_manager.go" WaitForUnmount],
    "All volumes are unmounted for pod" => UnmountEnd [23-36: 3 "volume_manager.go" WaitForUnmount],
    "Pod termination unmounted volumes" => VolumesUnmounted
        [23-26: 4 "kubelet.go" syncTerminatedPod] [27-36: 4 "kubelet.go" SyncTerminatedPod],
    "Pod termination cleaned up volume paths" => VolumePathsRemoved [27-36: 3 "kubelet.go" SyncTerminatedPod],
    "Pod is terminated, but some volumes have not been cleaned up" => VolumesLeft
        [23-26: 3 "kubelet_pods.go" PodResourcesAreReclaimed] [27-36: 3 "kubelet.go" SyncTerminatedPod],
    "Orphaned pod found, but volumes are not cleaned up" => VolumesLeft
        [23-36: 3 "kubelet_volumes.go" cleanupOrphanedPodDirs],
    "Pod found, but volumes are still mounted on disk" => VolumesLeft [23-36: 4 "kubelet_volumes.go" podVolumesExist],
    "Orphaned pod found, but failed to remove volumes subdir" => OrphanDirFailed
        [23-36: 0 "kubelet_volumes.go" cleanupOrphanedPodDirs],
    "Failed to remove orphaned pod dir" => OrphanDirFailed [23-36: 0 "kubelet_volumes.go" cleanupOrphanedPodDirs],
    "Failed to remove orphaned pod subdir" => OrphanDirFailed [23-36: 0 "kubelet_volumes.go" cleanupOrphanedPodDirs],
    "Cleaned up orphaned pod volumes dir" => OrphanVolumesRemoved
        [23-36: 0 "kubelet_volumes.go" removeOrphanedPodVolumeDirs],
    "Orphaned pod found, removing" => OrphanDirRemoving [23-36: 3 "kubelet_volumes.go" cleanupOrphanedPodDirs],
    "Pod termination removed cgroups" => CgroupsRemoved
        [23-26: 4 "kubelet.go" syncTerminatedPod] [27-36: 4 "kubelet.go" SyncTerminatedPod],
    "Orphaned pod found, removing pod cgroups" => OrphanCgroupsRemoving
        [23-36: 3 "kubelet_pods.go" cleanupOrphanedPodCgroups],
    "Failed to delete cgroup paths" => CgroupFailed [23-36: 0 "pod_container_manager_linux.go" Destroy],
    "Failed to kill all the processes attached to cgroup" => CgroupFailed
        [23-36: 0 "pod_container_manager_linux.go" Destroy],
    "Failed to destroy orphaned pod cgroup" => CgroupFailed [35-36: 0 "kubelet_pods.go" cleanupOrphanedPodCgroups],
    "Pod is terminated, but pod cgroup sandbox has not been cleaned up" => CgroupLeft
        [23-26: 3 "kubelet_pods.go" PodResourcesAreReclaimed],
    "Patch status for pod" => StatusPatch [23-36: 3 "status_manager.go" syncPod],
    "Status for pod updated successfully" => StatusUpdated [23-36: 3 "status_manager.go" syncPod],
    "Failed to update status for pod" => StatusFailed [23-36: 0 "status_manager.go" syncPod],
    "Delaying pod deletion as the phase is non-terminal" => DeleteDelayed [27-36: 3 "status_manager.go" canBeDeleted],
    "The pod termination is finished as SyncTerminatedPod completes its execution" => DeleteAllowed
        [27-36: 3 "status_manager.go" canBeDeleted],
    "Pod is terminated, but some containers are still running" => DeleteDelayedContainers
        [23-26: 3 "kubelet_pods.go" PodResourcesAreReclaimed],
    "Pod is terminated, but some container status has not yet been reported" => DeleteDelayedStatus
        [23-26: 3 "kubelet_pods.go" PodResourcesAreReclaimed],
    "Pod is terminated and all resources are reclaimed" => ResourcesReclaimed
        [23-26: 3 "kubelet_pods.go" PodResourcesAreReclaimed],
    "Pod fully terminated and removed from etcd" => ApiRemoved [23-36: 3 "status_manager.go" syncPod],
    "Pod does not exist on the server" => ApiGone [23-36: 3 "status_manager.go" syncPod],
    "Pod was deleted and then recreated, skipping status update" => ApiRecreated [23-36: 2 "status_manager.go" syncPod],
    "Failed to delete status for pod" => ApiRemoveFailed [23-36: 0 "status_manager.go" syncPod],
    "Creating a mirror pod for static pod" => MirrorCreating
        [23-26: 4 "kubelet.go" syncPod] [27-31: 4 "kubelet.go" SyncPod] [32-36: 0 "kubelet.go" tryReconcileMirrorPods],
    "Failed creating a mirror pod for" => MirrorCreateFailed
        [23-26: 0 "kubelet.go" syncPod] [27-31: 0 "kubelet.go" SyncPod],
    "Failed creating a mirror pod" => MirrorCreateFailed [32-36: 0 "kubelet.go" tryReconcileMirrorPods],
    "Trying to delete pod" => MirrorDeleteTried
        [23-26: 0 "kubelet.go" syncPod] [27-31: 0 "kubelet.go" SyncPod] [32-36: 0 "kubelet.go" tryReconcileMirrorPods],
    "Deleting a mirror pod" => MirrorDeleting [23-36: 2 "mirror_client.go" DeleteMirrorPod],
    "Deleted mirror pod" => MirrorDeleted [27-36: 3 "kubelet_pods.go" HandlePodCleanups],
    "Deleted pod" => MirrorDeleted [23-26: 3 "kubelet_pods.go" deleteOrphanedMirrorPods],
    "Deleted mirror pod because it is outdated" => MirrorOutdated
        [23-26: 0 "kubelet.go" syncPod] [27-31: 0 "kubelet.go" SyncPod],
    "Deleted mirror pod as it didn't match the static Pod" => MirrorOutdated
        [32-36: 0 "kubelet.go" tryReconcileMirrorPods],
    "Failed deleting a mirror pod" => MirrorDeleteFailed [23-36: 0 "mirror_client.go" DeleteMirrorPod],
    "Failed deleting mirror pod" => MirrorDeleteFailed
        [23-26: 0 "kubelet.go" syncPod] [27-31: 0 "kubelet.go" SyncPod] [32-36: 0 "kubelet.go" tryReconcileMirrorPods],
    "Encountered error when deleting mirror pod" => MirrorDeleteFailed
        [23-26: 0 "kubelet_pods.go" deleteOrphanedMirrorPods] [27-36: 0 "kubelet_pods.go" HandlePodCleanups],
    "Unable to find pod for mirror pod, skipping" => MirrorWithoutPod [27-36: 2 "kubelet.go" HandlePodAdditions],
    "Preempting pod to free up resources" => Preempting
        [23-33: 3 "preemption.go" evictPodsToFreeRequests] [34-36: 2 "preemption.go" evictPodsToFreeRequests],
    "Pod evicted successfully" => Preempted [23-36: 0 "preemption.go" evictPodsToFreeRequests],
    "Failed to evict pod" => PreemptFailed [23-36: 0 "preemption.go" evictPodsToFreeRequests],
    "Evicting pod" => Evicting [23-36: 3 "eviction_manager.go" evictPod],
    "Eviction manager: must evict pod(s) to reclaim" => EvictionDue [23-36: 0 "eviction_manager.go" synchronize],
    "Eviction manager: pods ranked for eviction" => EvictionRanked [23-36: 0 "eviction_manager.go" synchronize],
    "Eviction manager: pod is evicted successfully" => Evicted [23-36: 0 "eviction_manager.go" evictPod],
    "Eviction manager: pod failed to evict" => EvictFailed [23-36: 0 "eviction_manager.go" evictPod],
    "Eviction manager: cannot evict a critical pod" => EvictFailed [23-36: 0 "eviction_manager.go" evictPod],
    "Eviction manager: pods successfully cleaned up" => EvictedCleanedUp
        [23-36: 0 "eviction_manager.go" waitForPodsCleanup],
    "Eviction manager: timed out waiting for pods to be cleaned up" => EvictedNotCleanedUp
        [23-36: 0 "eviction_manager.go" waitForPodsCleanup],
    "Shutdown manager detected new shutdown event" => ShutdownDetected [23-36: 1 "nodeshutdown_manager_linux.go" start],
    "Shutdown manager detected new shutdown event, isNodeShuttingDownNow" => ShutdownDetected
        [23-36: 1 "nodeshutdown_manager_linux.go" start],
    "Shutdown manager processing shutdown event" => ShutdownBegin
        [23-36: 1 "nodeshutdown_manager_linux.go" processShutdownEvent],
    "Shutdown manager killing pod with gracePeriod" => ShutdownKill
        [23-31: 1 "nodeshutdown_manager_linux.go" processShutdownEvent] [32-36: 1 "nodeshutdown_manager.go" killPods],
    "Shutdown manager finished killing pod" => ShutdownKilled
        [23-31: 1 "nodeshutdown_manager_linux.go" processShutdownEvent] [32-36: 1 "nodeshutdown_manager.go" killPods],
    "Shutdown manager failed killing pod" => ShutdownKillFailed
        [23-31: 1 "nodeshutdown_manager_linux.go" processShutdownEvent] [32-36: 1 "nodeshutdown_manager.go" killPods],
    "Shutdown manager pod killing time out" => ShutdownTimedOut
        [23-31: 1 "nodeshutdown_manager_linux.go" processShutdownEvent] [32-36: 1 "nodeshutdown_manager.go" killPods],
    "Shutdown manager completed processing shutdown event, node will shutdown shortly" => ShutdownEnd
        [23-36: 1 "nodeshutdown_manager_linux.go" processShutdownEvent],
};
