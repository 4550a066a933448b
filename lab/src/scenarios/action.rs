//! What is done to a scenario's pod, and to the node under it.

use crate::leftovers::LeftOver;
use coroner_core::leak::LeakClass;
use std::time::Duration;

/// One thing that is done, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub when: When,
    pub act: Action,
}

/// When a step is due, after the step before it; the first after the pod has started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    After(Duration),
    /// While the postStart hook runs, which the pod's start waits for. Only as the first step.
    PostStart,
    /// When the container has logged that it took the stop signal.
    Handled(&'static str),
    /// When another attempt of the container runs.
    Again(&'static str),
    /// When the agent has reported a leak of the scenario.
    Leaked(LeakClass),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// `kubectl delete pod`; of a static pod, that of its mirror.
    Delete {
        /// `--grace-period`, seconds.
        grace: Option<i64>,
    },
    /// A process on the node sends a signal to the container's main process.
    Kill {
        container: &'static str,
        signal: i32,
    },
    /// The kubelet stops the container and starts it again.
    Restart {
        container: &'static str,
        /// `kubectl set image` before that.
        image: Option<&'static str>,
        /// The message of the kubelet's Event.
        event: Option<&'static str>,
    },
    /// A static pod's manifest is removed.
    RemoveManifest,
    /// containerd is killed; containers and shims keep running.
    KillRuntime,
    StartRuntime,
    /// containerd stops answering.
    HangRuntime,
    ResumeRuntime,
    /// The apiserver answers nobody any more.
    StopApiserver,
    StartApiserver,
    /// The agent is stopped and started again with these flags in addition.
    RestartAgent(&'static [&'static str]),
    /// The agent gets no CPU time.
    PauseAgent,
    /// The container's cgroup is frozen and thawed so often that the records fill the agent's rings.
    FillRings {
        container: &'static str,
    },
    ResumeAgent,
    /// Nothing.
    Wait,
    /// What no annotation lets the driver leave is left by hand.
    Leave(LeftOver),
    /// While the runtime is dead, the bundles of the pod's sandboxes and containers are lost: their shims keep running,
    /// and the next runtime does not find them.
    LoseBundles,
    /// `crictl rmp -f` of the pod's sandboxes.
    RemoveSandboxes,
    /// `kubectl patch` of the pod's finalizers.
    RemoveFinalizers,
    /// The container's processes are moved into a v1 freezer, in which SIGKILL waits, too.
    Freeze {
        container: &'static str,
    },
    Thaw,
    /// The network plugin fails for the pod.
    BreakNetwork,
    MendNetwork,
}
