//! What is done to a scenario's pod, and to the node under it.

use crate::{controlplane::Disruption, kubelet::Ending};
use std::time::Duration;

/// One thing that is done, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// When.
    pub when: When,
    /// What.
    pub act: Act,
}

/// When a step is due. Counted from the step before it; the first from the moment the pod runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// After this long.
    After(Duration),
    /// When the container has told on its log that it took the stop signal.
    Handled(&'static str),
    /// When another life of the container has run for so long.
    Anew(&'static str, Duration),
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// The agent starts: what comes before it, it did not see.
    StartAgent,
    /// `kubectl delete pod`; of a static pod, that of its mirror.
    Delete {
        /// `--grace-period`, seconds.
        grace: Option<i64>,
    },
    /// A controller of the control plane ends it.
    Disrupt(Disruption),
    /// The kubelet ends it by itself.
    End(Ending),
    /// Somebody on the node kills the container's main process.
    Kill {
        /// The container.
        container: &'static str,
        /// The signal's number.
        signal: i32,
    },
    /// Somebody freezes the container's cgroup.
    Freeze {
        /// The container.
        container: &'static str,
    },
    /// `kubectl set image`.
    ChangeImage {
        /// The container.
        container: &'static str,
        /// The new image.
        image: &'static str,
    },
    /// A static pod's manifest is taken away.
    RemoveManifest,
    /// It is put back.
    ReturnManifest,
    /// The container runtime is killed; containers and shims live on.
    KillRuntime,
    /// It is started again.
    StartRuntime,
    /// The apiserver answers nobody any more.
    StopApiserver,
    /// It answers again.
    StartApiserver,
}
