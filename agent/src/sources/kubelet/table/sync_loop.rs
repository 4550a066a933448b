//! The sync loop, the lifecycle event generator and housekeeping: `pkg/kubelet/kubelet.go`, `pkg/kubelet/pleg`.

use super::{Logged, Pattern};
use coroner_core::input::KubeletStatement;

/// The patterns.
pub(super) const SYNC_LOOP: &[Pattern] = messages! {
    "SyncLoop ADD" => SyncLoopAdd [23-36: 2 "kubelet.go" syncLoopIteration],
    "SyncLoop UPDATE" => SyncLoopUpdate [23-36: 2 "kubelet.go" syncLoopIteration],
    "SyncLoop RECONCILE" => SyncLoopReconcile [23-36: 4 "kubelet.go" syncLoopIteration],
    "SyncLoop DELETE" => SyncLoopDelete [23-36: 2 "kubelet.go" syncLoopIteration],
    "SyncLoop REMOVE" => SyncLoopRemove [23-36: 2 "kubelet.go" syncLoopIteration],
    "SyncLoop (SYNC) pods" => SyncLoopSync [23-36: 4 "kubelet.go" syncLoopIteration],
    "SyncLoop (probe)" => SyncLoopProbe [23-36: 1 "kubelet.go" handleProbeSync],
    "SyncLoop (PLEG): event for pod" => PlegEvent [23-36: 2 "kubelet.go" syncLoopIteration],
    "SyncLoop (PLEG): pod does not exist, ignore irrelevant event" => PlegEventIgnored
        [23-36: 4 "kubelet.go" syncLoopIteration],
    "SyncLoop (housekeeping)" => HousekeepingBegin [23-36: 4 "kubelet.go" syncLoopIteration],
    "SyncLoop (housekeeping) end" => HousekeepingEnd [23-36: 4 "kubelet.go" syncLoopIteration],
    "Skipping pod synchronization" => SyncSkipped [23-36: 0 "kubelet.go" syncLoop],
    "Failed cleaning pods" => HousekeepingFailed [23-36: 0 "kubelet.go" syncLoopIteration],
    "Generic (PLEG): container finished" => PlegContainerFinished
        [23-25: 2 "generic.go" relist] [26-35: 2 "generic.go" Relist] [36-36: 2 "generic.go" reconcilePodRecord],
    "GenericPLEG" => PlegStateChanged [23-36: 4 "generic.go" generateEvents],
    "GenericPLEG: Unable to retrieve pods" => PlegFailed [23-25: 0 "generic.go" relist] [26-36: 0 "generic.go" Relist],
    "Kubelet version" => KubeletVersion [23-36: 0 "server.go" run],
    "Starting kubelet main sync loop" => KubeletStarted [23-36: 0 "kubelet.go" syncLoop],
};
