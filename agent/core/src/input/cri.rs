//! The container runtime's answers.

use super::host::DaemonProcess;
use crate::{ids::*, report::Hook, time::*};
use serde::{Deserialize, Serialize};

/// An answer of the container runtime, or the failure of a call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum CriEvent {
    /// The runtime answers, possibly again. Sent once per connection, before its first answer.
    Connected {
        /// RuntimeName and RuntimeVersion, `containerd 1.7.24`.
        runtime: String,
        /// The process behind the socket (SO_PEERCRED) with its start time, where available. Another process
        /// means a restart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<DaemonProcess>,
    },
    /// A call failed: the runtime's state is unknown until the next answer.
    Unreachable {
        /// The gRPC status or the connection's error, as text.
        error: String,
        /// The canonical gRPC status code (`UNAVAILABLE`), where the call got that far.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    Sandboxes {
        /// When the call was made. `Received::at` is the moment of the answer.
        asked: BootTime,
        /// The filter; `None`: the full list.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only: Option<SandboxId>,
        sandboxes: Vec<CriSandbox>,
    },
    /// So many sandboxes and containers in the full lists cannot be read: what no list shows may be one of them. Sent before a list, when
    /// the number has changed.
    UnreadableSandboxes {
        /// 0: all can be read again.
        count: u32,
    },
    Containers {
        asked: BootTime,
        /// The filter: containers of this sandbox; `None`: the full list.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only: Option<SandboxId>,
        containers: Vec<CriContainer>,
    },
    /// ContainerStatus of an exited container, once.
    ContainerExited(CriExit),
    /// The shim that runs the container, from a verbose ContainerStatus.
    RuntimeType {
        container: ContainerId,
        /// `io.containerd.kata.v2`.
        runtime: String,
    },
    /// A container's cgroup, where no path shows it.
    ContainerCgroup {
        container: ContainerId,
        /// The cgroup of its main process.
        cgroup: CgroupId,
        /// Its path from the root of the hierarchy.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        path: String,
    },
    /// Verbose PodSandboxStatus, for leak candidates only, because it is expensive for the runtime.
    SandboxStatus(CriSandboxStatus),
    /// The container's stop signal, from ContainerStatus.
    StopSignal { container: ContainerId, signal: u8 },
    /// The image of a container that runs.
    Image {
        container: ContainerId,
        /// As ContainerStatus names it.
        image: String,
        /// From ImageStatus, if the runtime does not state the container's stop signal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_signal: Option<u8>,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriSandboxStatus {
    pub sandbox: SandboxId,
    pub asked: BootTime,
    /// The pause process; `None`: gone, or not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Addresses that the runtime still has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    pub network: SandboxNetwork,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SandboxNetwork {
    /// The host's network: the sandbox holds no namespace.
    Host,
    /// A network namespace of its own.
    Own {
        /// The runtime's path of the namespace (`/run/netns/cni-…`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// containerd's `netNamespaceClosed`; `None`: not reported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        closed: Option<bool>,
    },
    Unknown,
}

/// A pod sandbox in ListPodSandbox.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriSandbox {
    pub id: SandboxId,
    /// metadata.uid.
    pub pod: PodUid,
    pub name: String,
    pub namespace: String,
    pub attempt: u32,
    /// SANDBOX_READY.
    pub ready: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<WallTime>,
    /// Runtime handler, empty for the default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handler: String,
    /// `kubernetes.io/config.source`: `api`, `file`, `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_source: Option<String>,
}

/// A container in ListContainers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriContainer {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    pub name: String,
    /// metadata.attempt: the restart count.
    pub attempt: u32,
    pub state: ContainerState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<WallTime>,
    /// Label `io.kubernetes.pod.uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodUid>,
    /// Annotation `io.kubernetes.pod.terminationGracePeriod`, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// Annotation `io.kubernetes.container.preStopHandler`, reduced to kind and binary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<Hook>,
}

/// ContainerStatus of an exited container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriExit {
    pub container: ContainerId,
    pub exit_code: i32,
    /// reason: `Completed`, `Error`, `OOMKilled`, `Unknown`.
    pub reason: String,
}

impl CriSandbox {
    pub fn pod_ref(&self) -> PodRef {
        PodRef { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.pod.clone() }
    }

    /// The kubelet read the pod from a file or a URL.
    pub fn is_static(&self) -> bool {
        self.config_source.as_deref().is_some_and(|source| source != "api")
    }
}
