//! The messages that are read: the kubelet versions, the verbosity and what each states. Compared with the sources of
//! kubelets 1.23 to 1.36 and with the logs of real ones.

use Stage::*;
use Topic as T;
use coroner_core::labels;

labels! {
    /// The kubelet's stages of a pod's end, in the order of a deletion.
    pub enum Stage {
        /// The sync loop got the deletion, the removal of the manifest, or another reason to end the pod.
        Noticed = "noticed",
        /// The pod worker's step that stops the containers and the sandbox (`SyncTerminatingPod`).
        Terminating = "terminating",
        PreStop = "pre_stop",
        /// The call that stops a container, until the runtime has answered it.
        Kill = "kill",
        /// The event generator (PLEG) reports an ended container or sandbox.
        Pleg = "pleg",
        /// The pod worker's step that cleans up a stopped pod (`SyncTerminatedPod`).
        Terminated = "terminated",
        /// That step waits for the volumes to be unmounted.
        Unmount = "unmount",
        Cgroup = "cgroup",
        /// The sync loop got the mirror pod's new status.
        StatusUpdate = "status_update",
        /// The status manager deletes the object with grace 0.
        ApiDelete = "api_delete",
        /// The sync loop got the removal of the object.
        Removed = "removed",
        /// Housekeeping removes the pod worker, directories and cgroups.
        Housekeeping = "housekeeping",
        /// The kubelet deletes the mirror pod of a static pod.
        MirrorDelete = "mirror_delete",
        /// The sync loop got the deletion and the removal of a mirror pod.
        MirrorRemoved = "mirror_removed",
        MirrorCreate = "mirror_create",
        ContainerRemoval = "container_removal",
        /// Garbage collection removes the sandbox and the logs.
        GarbageCollection = "garbage_collection",
    }
}

impl Stage {
    /// It may be about a mirror pod, which has another UID each time.
    pub(super) fn is_of_a_mirror(self) -> bool {
        matches!(self, StatusUpdate | MirrorDelete | MirrorRemoved | MirrorCreate)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edge {
    Begin,
    End,
    /// It ends with a failure.
    Failed,
    /// It has no length.
    Moment,
    /// It lasts from the first such message to the last.
    Part,
}

/// What keeps a pod, a sandbox or a container from being removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topic {
    /// A container is not stopped.
    Container,
    /// The sandbox is not stopped.
    Sandbox,
    /// A container or the sandbox is not removed from the runtime.
    Removal,
    /// A volume is not unmounted, or a directory not removed.
    Volume,
    /// The cgroup is not removed.
    Cgroup,
    /// The pod worker does not end.
    Worker,
    /// The object is not deleted.
    Object,
}

#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The text between the quotes; of a volume's message, which names its objects there, the beginning.
    pub text: &'static str,
    /// The first and the last minor version that logs it; 23 and 36 are the oldest and the newest that were compared.
    pub versions: (u8, u8),
    /// `-v` that it needs; errors and warnings need none.
    pub level: u8,
    pub stage: Option<(Edge, Stage)>,
    pub why: Option<Topic>,
    /// It states that these succeeded.
    pub success: &'static [Topic],
}

const ALL: (u8, u8) = (23, 36);

const fn message(text: &'static str, versions: (u8, u8), level: u8) -> Message {
    Message { text, versions, level, stage: None, why: None, success: &[] }
}

impl Message {
    const fn is(self, edge: Edge, stage: Stage) -> Self {
        Self { stage: Some((edge, stage)), ..self }
    }

    const fn why(self, topic: Topic) -> Self {
        Self { why: Some(topic), ..self }
    }

    const fn after(self, success: &'static [Topic]) -> Self {
        Self { success, ..self }
    }
}

pub const MESSAGES: &[Message] = &[
    message("SyncLoop DELETE", ALL, 2).is(Edge::Moment, Noticed),
    message("SyncLoop REMOVE", ALL, 2).is(Edge::Moment, Removed),
    message("SyncLoop RECONCILE", ALL, 4).is(Edge::Moment, StatusUpdate),
    message("Evicting pod", ALL, 3).is(Edge::Moment, Noticed),
    message("Preempting pod to free up resources", (23, 33), 3).is(Edge::Moment, Noticed),
    message("Preempting pod to free up resources", (34, 36), 2).is(Edge::Moment, Noticed),
    message("Shutdown manager killing pod with gracePeriod", ALL, 1).is(Edge::Moment, Noticed),
    message("Pod indicated lifecycle completed naturally and should now terminate", ALL, 4)
        .is(Edge::Moment, Noticed),
    message("syncTerminatingPod enter", (23, 26), 4).is(Edge::Begin, Terminating),
    message("SyncTerminatingPod enter", (27, 36), 4).is(Edge::Begin, Terminating),
    message("SyncTerminatingRuntimePod enter", (27, 36), 4).is(Edge::Begin, Terminating),
    message("syncTerminatingPod exit", (23, 26), 4).is(Edge::End, Terminating),
    message("SyncTerminatingPod exit", (27, 36), 4).is(Edge::End, Terminating),
    message("SyncTerminatingRuntimePod exit", (27, 36), 4).is(Edge::End, Terminating),
    message("Running preStop hook", ALL, 3).is(Edge::Begin, PreStop),
    message("PreStop hook completed", ALL, 3).is(Edge::End, PreStop),
    message("PreStop hook failed", ALL, 0).is(Edge::Failed, PreStop),
    message("PreStop hook not completed in grace period", ALL, 2).is(Edge::Failed, PreStop),
    message("Killing container with a grace period", ALL, 2).is(Edge::Begin, Kill),
    message("Container exited normally", ALL, 3).is(Edge::End, Kill).after(&[T::Container]),
    message("Container termination failed with gracePeriod", ALL, 0)
        .is(Edge::Failed, Kill)
        .why(T::Container),
    message("Kill container failed", ALL, 0).is(Edge::Failed, Kill).why(T::Container),
    message("StopContainer from runtime service failed", ALL, 0).why(T::Container),
    message("SyncLoop (PLEG): event for pod", ALL, 2).is(Edge::Moment, Pleg),
    message("SyncLoop (PLEG): pod does not exist, ignore irrelevant event", ALL, 4)
        .is(Edge::Moment, Pleg),
    message("Pod termination stopped all running containers", ALL, 4)
        .after(&[T::Container, T::Sandbox]),
    message("StopPodSandbox from runtime service failed", ALL, 0).why(T::Sandbox),
    message("Failed to stop sandbox", ALL, 0).why(T::Sandbox),
    message("Failed to stop sandbox before removing", ALL, 0).why(T::Sandbox),
    // Of a container or of the sandbox, as its error says.
    message("Error syncing pod, skipping", ALL, 0).why(T::Container),
    message("syncTerminatedPod enter", (23, 26), 4).is(Edge::Begin, Terminated),
    message("SyncTerminatedPod enter", (27, 36), 4).is(Edge::Begin, Terminated),
    message("syncTerminatedPod exit", (23, 26), 4).is(Edge::End, Terminated),
    message("SyncTerminatedPod exit", (27, 36), 4).is(Edge::End, Terminated),
    message("Waiting for volumes to unmount for pod", ALL, 3).is(Edge::Begin, Unmount),
    message("All volumes are unmounted for pod", ALL, 3).is(Edge::End, Unmount),
    message("Pod termination unmounted volumes", ALL, 4).after(&[T::Volume]),
    message("UnmountVolume.TearDown succeeded for volume", ALL, 0).after(&[T::Volume]),
    message(OPERATION, ALL, 0).why(T::Volume),
    message("Pod is terminated, but some volumes have not been cleaned up", ALL, 3).why(T::Volume),
    message("Orphaned pod found, but volumes are not cleaned up", ALL, 3).why(T::Volume),
    message("Orphaned pod found, but failed to remove volumes subdir", ALL, 0).why(T::Volume),
    message("Failed to remove orphaned pod dir", ALL, 0).why(T::Volume),
    message("Failed to remove orphaned pod subdir", ALL, 0).why(T::Volume),
    message(SIMILAR, ALL, 0).why(T::Volume),
    message("Pod termination removed cgroups", ALL, 4).is(Edge::Moment, Cgroup).after(&[T::Cgroup]),
    message("Failed to delete cgroup paths", ALL, 0).why(T::Cgroup),
    message("Failed to kill all the processes attached to cgroup", ALL, 0).why(T::Cgroup),
    message("Failed to destroy orphaned pod cgroup", (35, 36), 0).why(T::Cgroup),
    message("Pod fully terminated and removed from etcd", ALL, 3)
        .is(Edge::Moment, ApiDelete)
        .after(&[T::Object]),
    message("Failed to delete status for pod", ALL, 0).is(Edge::Failed, ApiDelete).why(T::Object),
    message("Delaying pod deletion as the phase is non-terminal", (27, 36), 3).why(T::Object),
    message("Pod is terminated, but some containers are still running", (23, 26), 3).why(T::Object),
    message(
        "Pod has been terminated and is no longer known to the kubelet, remove all history",
        ALL,
        4,
    )
    .is(Edge::Part, Housekeeping)
    .after(&[T::Worker]),
    message("Pod worker has been requested for removal but is still not fully terminated", ALL, 4)
        .why(T::Worker),
    message("Cleaned up orphaned pod volumes dir", ALL, 0).is(Edge::Part, Housekeeping),
    message("Orphaned pod found, removing", ALL, 3).is(Edge::Part, Housekeeping),
    message("Orphaned pod found, removing pod cgroups", ALL, 3).is(Edge::Part, Housekeeping),
    message("Deleting a mirror pod", ALL, 2).is(Edge::Begin, MirrorDelete),
    message("Deleted mirror pod", (27, 36), 3).is(Edge::End, MirrorDelete),
    message("Deleted mirror pod because it is outdated", (23, 31), 0).is(Edge::End, MirrorDelete),
    message("Deleted mirror pod as it didn't match the static Pod", (32, 36), 0)
        .is(Edge::End, MirrorDelete),
    message("Failed deleting a mirror pod", ALL, 0).is(Edge::Failed, MirrorDelete).why(T::Object),
    message("Creating a mirror pod for static pod", (23, 31), 4).is(Edge::Moment, MirrorCreate),
    message("Creating a mirror pod for static pod", (32, 36), 0).is(Edge::Moment, MirrorCreate),
    message("Removing container", ALL, 4).is(Edge::Moment, ContainerRemoval),
    message("Failed to remove container", ALL, 0)
        .is(Edge::Failed, ContainerRemoval)
        .why(T::Removal),
    message("RemoveContainer from runtime service failed", ALL, 0).why(T::Removal),
    message("Removing sandbox", ALL, 4).is(Edge::Part, GarbageCollection),
    message("Removing pod logs", ALL, 4).is(Edge::Part, GarbageCollection),
    message("Failed to remove sandbox", ALL, 0).is(Edge::Failed, GarbageCollection).why(T::Removal),
    message("RemovePodSandbox from runtime service failed", ALL, 0).why(T::Removal),
];

/// The beginning of a volume's failed operation, which is no structured message.
pub(super) const OPERATION: &str = "Operation for \"{volumeName:";

/// Stands for all orphaned pods that could not be cleaned up; its error names one of them.
pub(super) const SIMILAR: &str = "There were many similar errors. Turn up verbosity to see them.";
