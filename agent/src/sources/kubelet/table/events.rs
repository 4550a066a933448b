//! Events that the kubelet posts and logs (`Event occurred`, `client-go/tools/record/event.go`), by their reason,
//! and lines that are not structured.

use super::{Pattern, at, says};
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
pub(super) const BEGINNINGS: &[Pattern] = &[
    says(
        "operationExecutor.UnmountVolume started for volume",
        UnmountStarted,
        &[
            at(23, 25, 0, "reconciler.go", "unmountVolumes"),
            at(26, 36, 0, "reconciler_common.go", "unmountVolumes"),
        ],
    ),
    says(
        "operationExecutor.UnmountVolume failed",
        UnmountFailed,
        &[
            at(23, 25, 0, "reconciler.go", "unmountVolumes"),
            at(26, 36, 0, "reconciler_common.go", "unmountVolumes"),
        ],
    ),
    says(
        "UnmountVolume.TearDown succeeded for volume",
        TeardownDone,
        &[at(23, 36, 0, "operation_generator.go", "GenerateUnmountVolumeFunc")],
    ),
    says(
        "UnmountVolume.TearDown failed for volume",
        UnmountFailed,
        &[at(23, 36, 0, "operation_generator.go", "GenerateUnmountVolumeFunc")],
    ),
    says(
        "Operation for \"{volumeName:",
        VolumeOperationFailed,
        &[at(23, 36, 0, "nestedpendingoperations.go", "operationComplete")],
    ),
];
