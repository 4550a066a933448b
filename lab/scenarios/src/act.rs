//! What is done to a scenario's pod, and to the node under it.

use coroner::outputs::events::Reason;
use coroner_core::leak::{DetectionState, LeakClass};
use coroner_lab_cluster::{controlplane::Disruption, kubelet::PodEnding, remnants::Remnant};
use std::time::Duration;

/// One thing that is done, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub when: When,
    pub act: Action,
}

/// When a step is due. Counted from the step before it; the first from the moment the pod runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// After this long.
    After(Duration),
    /// While the postStart hook runs, which its pod's start waits for. Only as the first step.
    PostStart,
    /// When the container has told on its log that it took the stop signal.
    Handled(&'static str),
    /// When the kubelet runs the container's preStop hook.
    PreStop(&'static str),
    /// When another life of the container has run for so long.
    Anew(&'static str, Duration),
    /// When the status shows that the container waits for this reason.
    Waits(&'static str, &'static str),
    /// In the midst of the kubelet's housekeeping after the pod's object went; see
    /// [`Action::ReadRuntimeCache`].
    Housekeeping,
    /// When the agent has told that something of the scenario was left behind.
    Leaked(LeakClass),
    /// When the apiserver has an Event of the agent for this reason, on the scenario's pod or on the
    /// node because of it.
    Told(Reason),
    /// When the agent has told of the end of so many of the pod's lives.
    Accounted(usize),
    /// When the agent says that of the judgement of leaks.
    Judged(DetectionState),
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
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
    End(PodEnding),
    /// Somebody on the node kills the container's main process.
    Kill {
        container: &'static str,
        /// The signal's number.
        signal: i32,
    },
    /// Somebody kills the first process of the pod's sandbox.
    KillSandbox,
    /// `crictl stop`, of which nobody waits for the end.
    StopContainer {
        container: &'static str,
        /// `--timeout`, seconds.
        timeout: i64,
    },
    /// `crictl stopp`, between two relists of the kubelet.
    StopSandbox,
    /// `systemctl stop` of the container's scope, of which nobody waits for the end.
    StopScope { container: &'static str },
    /// `ctr task kill`.
    KillTask { container: &'static str, signal: &'static str },
    /// While the runtime is dead, what it has written down of the container's state is lost: it reports
    /// CONTAINER_UNKNOWN from then on.
    LoseStatus { container: &'static str },
    /// `kubectl exec`: another process runs in the container, until it exits.
    Exec {
        container: &'static str,
        /// Words of the workload's command line, as one text.
        command: &'static str,
    },
    /// Somebody freezes the container's cgroup.
    Freeze { container: &'static str },
    /// `kubectl set image`.
    ChangeImage {
        container: &'static str,
        /// The new image.
        image: &'static str,
    },
    /// `kubectl patch --subresource resize`.
    Resize {
        container: &'static str,
        /// The new request for CPU.
        cpu: &'static str,
    },
    /// A static pod's manifest is changed: it is another pod of the same name.
    ChangeManifest,
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
    /// Nothing: time passes.
    Wait,
    /// Something asks the kubelet for its running pods: its cache shows the pod for two seconds
    /// more, and so still when its housekeeping looks at it.
    ReadRuntimeCache,
    /// What the pod's probes find changes nothing any more.
    IgnoreProbes,
    /// From now on the kubelet does not get the pod's containers removed.
    KeepContainers,
    /// Another version of the kubelet runs, with its own bugs.
    RunKubelet(&'static str),
    /// What no bug of the lab's kubelet leaves behind is left by hand.
    Leave(Remnant),
    /// While the runtime is dead, the bundles of the pod's sandboxes and containers are lost: their
    /// shims live on, and the next runtime does not find them.
    LoseBundles,
    /// Somebody removes the pod's sandboxes (`crictl rmp -f`).
    RemoveSandboxes,
    /// Somebody takes the pod's finalizers away (`kubectl patch`).
    RemoveFinalizers,
    /// Somebody moves the container's processes into a v1 freezer: SIGKILL waits too.
    FreezeForGood { container: &'static str },
    /// They go on.
    Thaw,
    /// The network plugin cannot take the pod's network down any more.
    BreakNetwork,
    /// It can again.
    MendNetwork,
    /// The agent is stopped and started anew.
    RestartAgent(AgentFlags),
}

/// What of the agent's flags a scenario is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentFlags {
    /// `--state-dir`.
    pub keeps_state: bool,
    pub makes_events: bool,
    /// `--node`, where it is not this one's name.
    pub node: Option<&'static str>,
    /// The apiserver does not let it list Events.
    pub lists_no_events: bool,
}

impl AgentFlags {
    /// None of them.
    pub const PLAIN: Self =
        Self { keeps_state: false, makes_events: false, node: None, lists_no_events: false };
}
