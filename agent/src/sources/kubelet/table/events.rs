//! Events that the kubelet posts and logs (`Event occurred`, `client-go/tools/record/event.go`), by their reason,
//! and lines that are not structured.

use super::{Logged, Pattern};
use coroner_core::input::KubeletStatement::{self, *};

/// Reasons of Events, each with its statement.
pub(super) const EVENTS: &[(&str, KubeletStatement)] = &[
    ("Killing", EventKilling),
    ("Unhealthy", EventUnhealthy),
    ("FailedPostStartHook", EventPostStartFailed),
    ("FailedPreStopHook", EventPreStopFailed),
    ("SandboxChanged", EventSandboxChanged),
    ("Preempting", EventPreempting),
    ("ExceededGracePeriod", EventExceededGrace),
    ("FailedKillPod", EventKillPodFailed),
    ("BackOff", EventBackOff),
    ("Evicted", EventEvicted),
    ("DeadlineExceeded", EventDeadline),
    ("ResizeStarted", EventResize),
    ("ResizeCompleted", EventResize),
    ("ResizeDeferred", EventResize),
    ("ResizeInfeasible", EventResize),
    ("ResizeError", EventResize),
    ("Failed", EventFailed),
    ("NodeShutdown", EventShutdown),
    ("Shutdown", EventShutdown),
    ("Started", EventStarted),
    ("FailedMount", EventVolume),
    ("FailedUnMount", EventVolume),
    ("FailedCreatePodSandBox", EventSandboxCreateFailed),
];

/// Beginnings of lines that name their objects in the text.
pub(super) const BEGINNINGS: &[Pattern] = messages! {
    "operationExecutor.UnmountVolume started for volume" => UnmountStarted
        [23-25: 0 "reconciler.go" unmountVolumes] [26-36: 0 "reconciler_common.go" unmountVolumes],
    "operationExecutor.UnmountVolume failed" => UnmountFailed
        [23-25: 0 "reconciler.go" unmountVolumes] [26-36: 0 "reconciler_common.go" unmountVolumes],
    "UnmountVolume.TearDown succeeded for volume" => TeardownDone
        [23-36: 0 "operation_generator.go" GenerateUnmountVolumeFunc],
    "UnmountVolume.TearDown failed for volume" => UnmountFailed
        [23-36: 0 "operation_generator.go" GenerateUnmountVolumeFunc],
    "Operation for \"{volumeName:" => VolumeOperationFailed [23-36: 0 "nestedpendingoperations.go" operationComplete],
};
