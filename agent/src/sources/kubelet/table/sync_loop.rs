//! The sync loop, the lifecycle event generator and housekeeping: `pkg/kubelet/kubelet.go`, `pkg/kubelet/pleg`.

use super::{Pattern, at, says};
use coroner_core::input::KubeletStatement::*;

/// The patterns.
pub(super) const SYNC_LOOP: &[Pattern] = &[
    says("SyncLoop ADD", SyncLoopAdd, &[at(23, 36, 2, "kubelet.go", "syncLoopIteration")]),
    says("SyncLoop UPDATE", SyncLoopUpdate, &[at(23, 36, 2, "kubelet.go", "syncLoopIteration")]),
    says(
        "SyncLoop RECONCILE",
        SyncLoopReconcile,
        &[at(23, 36, 4, "kubelet.go", "syncLoopIteration")],
    ),
    says("SyncLoop DELETE", SyncLoopDelete, &[at(23, 36, 2, "kubelet.go", "syncLoopIteration")]),
    says("SyncLoop REMOVE", SyncLoopRemove, &[at(23, 36, 2, "kubelet.go", "syncLoopIteration")]),
    says("SyncLoop (SYNC) pods", SyncLoopSync, &[at(23, 36, 4, "kubelet.go", "syncLoopIteration")]),
    says("SyncLoop (probe)", SyncLoopProbe, &[at(23, 36, 1, "kubelet.go", "handleProbeSync")]),
    says(
        "SyncLoop (PLEG): event for pod",
        PlegEvent,
        &[at(23, 36, 2, "kubelet.go", "syncLoopIteration")],
    ),
    says(
        "SyncLoop (PLEG): pod does not exist, ignore irrelevant event",
        PlegEventIgnored,
        &[at(23, 36, 4, "kubelet.go", "syncLoopIteration")],
    ),
    says(
        "SyncLoop (housekeeping)",
        HousekeepingBegin,
        &[at(23, 36, 4, "kubelet.go", "syncLoopIteration")],
    ),
    says(
        "SyncLoop (housekeeping) end",
        HousekeepingEnd,
        &[at(23, 36, 4, "kubelet.go", "syncLoopIteration")],
    ),
    says("Skipping pod synchronization", SyncSkipped, &[at(23, 36, 0, "kubelet.go", "syncLoop")]),
    says(
        "Failed cleaning pods",
        HousekeepingFailed,
        &[at(23, 36, 0, "kubelet.go", "syncLoopIteration")],
    ),
    says(
        "Generic (PLEG): container finished",
        PlegContainerFinished,
        &[
            at(23, 25, 2, "generic.go", "relist"),
            at(26, 35, 2, "generic.go", "Relist"),
            at(36, 36, 2, "generic.go", "reconcilePodRecord"),
        ],
    ),
    says("GenericPLEG", PlegStateChanged, &[at(23, 36, 4, "generic.go", "generateEvents")]),
    says(
        "GenericPLEG: Unable to retrieve pods",
        PlegFailed,
        &[at(23, 25, 0, "generic.go", "relist"), at(26, 36, 0, "generic.go", "Relist")],
    ),
    says("Kubelet version", KubeletVersion, &[at(23, 36, 0, "server.go", "run")]),
    says(
        "Starting kubelet main sync loop",
        KubeletStarted,
        &[at(23, 36, 0, "kubelet.go", "syncLoop")],
    ),
];
