//! How late the kubelet and the runtime may act, and entries of the kubelet's log.

use crate::{
    input::{KubeletEntry, KubeletStatement},
    time::{BootTime, WallTime},
};
use std::time::Duration;

/// What the kubelet and the runtime add to a grace period: the kubelet's floor of 2 s
/// (`minimumGracePeriodInSeconds`, kuberuntime_container.go), the rounds of its pod workers, and the
/// runtime's calls. At most 6 s were measured on real nodes.
pub const KUBELET_SLACK: Duration = Duration::from_secs(10);

/// The time between a hook and the kubelet's actions around it: from the ExecSync call to the hook's exec,
/// and from the hook's end to the stop signal. Measured: 10 to 30 ms on an idle node, 1.5 s on an overloaded
/// one.
pub const HOOK_GAP: Duration = Duration::from_secs(2);

/// The time from a deletion request to the kubelet's first action: 0.1 to 0.9 s on an idle node. The watch
/// may bring the request to the agent later than to the kubelet by as much.
pub const KUBELET_REACTION: Duration = Duration::from_secs(1);

impl KubeletEntry {
    /// An entry without details.
    pub fn new(time: BootTime, uncertainty_ns: u64, wall: WallTime, of: KubeletStatement) -> Self {
        Self {
            time,
            uncertainty_ns,
            wall,
            statement: of,
            pod: None,
            namespace: None,
            name: None,
            container: None,
            container_id: None,
            sandbox: None,
            grace_seconds: None,
            source: None,
            step: None,
            probe: None,
            change: None,
            exit_code: None,
            reason: None,
            message: None,
            failures: Vec::new(),
            error: None,
        }
    }
}
