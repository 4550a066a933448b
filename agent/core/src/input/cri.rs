//! What the container runtime tells.

use super::{hook::Hook, host::DaemonProcess};
use crate::{
    ids::{CgroupId, ContainerId, PodUid, SandboxId},
    time::{BootTime, WallTime},
};
use serde::{Deserialize, Serialize};

/// An answer of the container runtime, or its silence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum CriEvent {
    /// The runtime answers (again). Sent once per connection, before its first answer.
    Connected {
        /// RuntimeName and RuntimeVersion, `containerd 1.7.24`.
        runtime: String,
        /// The process behind the socket (SO_PEERCRED) and its start time, where they could be
        /// had: another one means a restart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<DaemonProcess>,
    },
    /// A call failed; everything is unknown until the next answer.
    Unreachable {
        /// The gRPC status or the connection's error, as text.
        error: String,
        /// The gRPC status' code in its canonical spelling (`UNAVAILABLE`), where a call got that
        /// far.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    /// ListPodSandbox.
    Sandboxes {
        /// When the call was made; `Received::at` is when the answer came.
        asked: BootTime,
        /// The filter that was used: `None` for the full list.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only: Option<SandboxId>,
        /// The answer, as a set.
        sandboxes: Vec<CriSandbox>,
    },
    /// ListContainers.
    Containers {
        /// When the call was made.
        asked: BootTime,
        /// The filter that was used: containers of this sandbox only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only: Option<SandboxId>,
        /// The answer, as a set.
        containers: Vec<CriContainer>,
    },
    /// ContainerStatus of an exited container, once.
    ContainerExited(CriExit),
    /// Verbose ContainerStatus names the shim that runs the container.
    RuntimeType {
        /// The container.
        container: ContainerId,
        /// `io.containerd.kata.v2`.
        runtime: String,
    },
    /// Where a container's processes are, for those whose cgroup no path gives away.
    ContainerCgroup {
        /// The container.
        container: ContainerId,
        /// The cgroup of its main process.
        cgroup: CgroupId,
    },
    /// Verbose PodSandboxStatus, for suspects only: it costs the runtime much.
    SandboxStatus(CriSandboxStatus),
    /// The runtime refuses a call about this sandbox, but lists it.
    SandboxStatusRefused {
        /// The sandbox.
        sandbox: SandboxId,
        /// The gRPC status' code in its canonical spelling (`INTERNAL`).
        code: String,
    },
    /// ContainerStatus says with which signal the container is to be stopped.
    StopSignal {
        /// The container.
        container: ContainerId,
        /// The signal's number.
        signal: u8,
    },
}

/// PodSandboxStatus of one sandbox, verbose.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriSandboxStatus {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// When the call was made.
    pub asked: BootTime,
    /// Its pause process; `None`: none is left, or the runtime does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its addresses, as the runtime still knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// Its network.
    pub network: SandboxNetwork,
}

/// The network of a sandbox.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SandboxNetwork {
    /// The host's: there is no namespace that it could hold.
    Host,
    /// One of its own.
    Own {
        /// Where the runtime keeps it (`/run/netns/cni-…`), by the runtime's own paths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// containerd's `netNamespaceClosed`. `None`: the runtime does not tell.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        closed: Option<bool>,
    },
    /// The runtime does not tell.
    Unknown,
}

/// A pod sandbox as ListPodSandbox tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriSandbox {
    /// Its id.
    pub id: SandboxId,
    /// metadata.uid.
    pub pod: PodUid,
    /// metadata.name.
    pub name: String,
    /// metadata.namespace.
    pub namespace: String,
    /// metadata.attempt.
    pub attempt: u32,
    /// SANDBOX_READY.
    pub ready: bool,
    /// created_at.
    pub created: WallTime,
    /// Runtime handler, empty for the default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handler: String,
    /// `kubernetes.io/config.source`: `api`, `file`, `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_source: Option<String>,
}

/// A container as ListContainers tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriContainer {
    /// Its id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// metadata.name.
    pub name: String,
    /// metadata.attempt: the restart count.
    pub attempt: u32,
    /// Its state.
    pub state: CriState,
    /// created_at.
    pub created: WallTime,
    /// Label `io.kubernetes.pod.uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodUid>,
    /// Annotation `io.kubernetes.container.hash`, which changes with the container's definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Annotation `io.kubernetes.pod.terminationGracePeriod`, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// Annotation `io.kubernetes.container.preStopHandler`, reduced to kind and binary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<Hook>,
}

/// State of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CriState {
    /// CONTAINER_CREATED.
    Created,
    /// CONTAINER_RUNNING.
    Running,
    /// CONTAINER_EXITED.
    Exited,
    /// CONTAINER_UNKNOWN, or a value this version does not know.
    Unknown,
}

/// ContainerStatus of an exited container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CriExit {
    /// The container.
    pub container: ContainerId,
    /// started_at, where set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<WallTime>,
    /// finished_at, where set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<WallTime>,
    /// exit_code.
    pub exit_code: i32,
    /// reason: `Completed`, `Error`, `OOMKilled`, `Unknown`.
    pub reason: String,
}
