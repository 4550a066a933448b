//! Protobuf → what the core knows. Pure: nonsense comes back as [`Nonsense`], never as a panic.

pub mod sandbox_status;
#[cfg(test)]
mod tests;

use coroner_core::{
    ids::{ContainerId, PodUid, SandboxId},
    input::{CriContainer, CriExit, CriSandbox, CriState, Hook},
    signal,
    time::WallTime,
};
use coroner_cri_api::v1;
use serde::{Deserialize, de::IgnoredAny};
use std::collections::HashMap;

// Keys the kubelet writes: staging/src/k8s.io/kubelet/pkg/types/labels.go and
// pkg/kubelet/kuberuntime/labels.go.
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
const HASH: &str = "io.kubernetes.container.hash";
const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// Why something in an answer was left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Nonsense {
    /// No id.
    #[error("it has no id")]
    NoId,
    /// A container without a sandbox.
    #[error("it has no sandbox")]
    NoSandbox,
    /// Neither metadata nor labels say what it is.
    #[error("neither its metadata nor its labels name it")]
    NoName,
    /// A state that this version does not know.
    #[error("its state {0} is unknown")]
    State(i32),
    /// A time before 1970.
    #[error("its time {0} is negative")]
    Time(i64),
    /// Not a message of the protocol.
    #[error("it cannot be decoded")]
    Undecodable,
    /// More text than could be sensible.
    #[error("its info of {0} bytes is too long to be read")]
    Long(usize),
    /// Not the JSON that it should be.
    #[error("its info is not what containerd or CRI-O write")]
    Info,
}

/// A pod sandbox as it stands in the protocol, with nothing judged: the seam between the wire (or
/// a recording) and [`sandbox`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawSandbox {
    /// id.
    pub id: String,
    /// metadata.name.
    pub name: String,
    /// metadata.uid.
    pub uid: String,
    /// metadata.namespace.
    pub namespace: String,
    /// metadata.attempt.
    pub attempt: u32,
    /// state: 0 ready, 1 not ready.
    pub state: i32,
    /// created_at, ns since the epoch.
    pub created_at: i64,
    /// labels.
    pub labels: HashMap<String, String>,
    /// annotations.
    pub annotations: HashMap<String, String>,
    /// runtime_handler.
    pub handler: String,
}

/// A container as it stands in the protocol: the seam between the wire and [`container`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawContainer {
    /// id.
    pub id: String,
    /// pod_sandbox_id.
    pub sandbox: String,
    /// metadata.name.
    pub name: String,
    /// metadata.attempt.
    pub attempt: u32,
    /// state: 0 created, 1 running, 2 exited, 3 unknown.
    pub state: i32,
    /// created_at, ns since the epoch.
    pub created_at: i64,
    /// labels.
    pub labels: HashMap<String, String>,
    /// annotations.
    pub annotations: HashMap<String, String>,
}

/// The part of a ContainerStatus that is read: the seam between the wire and [`exit`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawStatus {
    /// id.
    pub id: String,
    /// state: 0 created, 1 running, 2 exited, 3 unknown.
    pub state: i32,
    /// started_at, ns since the epoch; 0 is unset.
    pub started_at: i64,
    /// finished_at, ns since the epoch; 0 is unset.
    pub finished_at: i64,
    /// exit_code.
    pub exit_code: i32,
    /// reason.
    pub reason: String,
    /// stop_signal: a value of the CRI's own enumeration; 0 says nothing.
    pub stop_signal: i32,
}

impl From<v1::PodSandbox> for RawSandbox {
    fn from(from: v1::PodSandbox) -> Self {
        let metadata = from.metadata.unwrap_or_default();
        Self {
            id: from.id,
            name: metadata.name,
            uid: metadata.uid,
            namespace: metadata.namespace,
            attempt: metadata.attempt,
            state: from.state,
            created_at: from.created_at,
            labels: from.labels,
            annotations: from.annotations,
            handler: from.runtime_handler,
        }
    }
}

impl From<v1::Container> for RawContainer {
    fn from(from: v1::Container) -> Self {
        let metadata = from.metadata.unwrap_or_default();
        Self {
            id: from.id,
            sandbox: from.pod_sandbox_id,
            name: metadata.name,
            attempt: metadata.attempt,
            state: from.state,
            created_at: from.created_at,
            labels: from.labels,
            annotations: from.annotations,
        }
    }
}

/// A sandbox. A sandbox that its metadata does not name is taken by its labels; one that neither
/// names, or in a state unknown, is nonsense: nobody could be told what it is.
pub fn sandbox(raw: RawSandbox) -> Result<CriSandbox, Nonsense> {
    let RawSandbox { id, labels, annotations, .. } = raw;
    let named = |own: String, label: &str| {
        let text =
            if own.is_empty() { labels.get(label).cloned().unwrap_or_default() } else { own };
        if text.is_empty() { Err(Nonsense::NoName) } else { Ok(text) }
    };
    if id.is_empty() {
        return Err(Nonsense::NoId);
    }
    Ok(CriSandbox {
        id: SandboxId::new(id),
        pod: PodUid::new(named(raw.uid, POD_UID)?),
        name: named(raw.name, POD_NAME)?,
        namespace: named(raw.namespace, POD_NAMESPACE)?,
        attempt: raw.attempt,
        ready: match v1::PodSandboxState::try_from(raw.state) {
            Ok(v1::PodSandboxState::SandboxReady) => true,
            Ok(v1::PodSandboxState::SandboxNotready) => false,
            Err(_) => return Err(Nonsense::State(raw.state)),
        },
        created: created(raw.created_at)?,
        handler: raw.handler,
        config_source: annotations.get(CONFIG_SOURCE).cloned(),
    })
}

/// A container.
pub fn container(raw: RawContainer) -> Result<CriContainer, Nonsense> {
    let RawContainer { id, sandbox, name, labels, annotations, .. } = raw;
    if id.is_empty() {
        return Err(Nonsense::NoId);
    }
    if sandbox.is_empty() {
        return Err(Nonsense::NoSandbox);
    }
    let name = if name.is_empty() {
        labels.get(CONTAINER_NAME).cloned().unwrap_or_default()
    } else {
        name
    };
    if name.is_empty() {
        return Err(Nonsense::NoName);
    }
    Ok(CriContainer {
        id: ContainerId::new(id),
        sandbox: SandboxId::new(sandbox),
        name,
        attempt: raw.attempt,
        state: state(raw.state),
        created: created(raw.created_at)?,
        pod: labels.get(POD_UID).filter(|uid| !uid.is_empty()).map(PodUid::new),
        hash: annotations.get(HASH).cloned(),
        grace_seconds: annotations
            .get(GRACE_PERIOD)
            .and_then(|text| text.parse().ok())
            .filter(|seconds| *seconds >= 0),
        pre_stop: annotations.get(PRE_STOP).and_then(|json| hook(json)),
    })
}

/// How a container ended; `None` while it has not.
pub fn exit(raw: &RawStatus) -> Result<Option<CriExit>, Nonsense> {
    if raw.id.is_empty() {
        return Err(Nonsense::NoId);
    }
    if state(raw.state) != CriState::Exited {
        return Ok(None);
    }
    Ok(Some(CriExit {
        container: ContainerId::new(&raw.id),
        started: moment(raw.started_at)?,
        finished: moment(raw.finished_at)?,
        exit_code: raw.exit_code,
        reason: raw.reason.clone(),
    }))
}

/// A container's state. Values of a later protocol are as unknown as CONTAINER_UNKNOWN.
pub fn state(raw: i32) -> CriState {
    match v1::ContainerState::try_from(raw) {
        Ok(v1::ContainerState::ContainerCreated) => CriState::Created,
        Ok(v1::ContainerState::ContainerRunning) => CriState::Running,
        Ok(v1::ContainerState::ContainerExited) => CriState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => CriState::Unknown,
    }
}

/// The number of a signal of the CRI's enumeration `Signal` (cri-api v0.34, `api.proto`), which
/// counts by name, not by number. `None`: the runtime's default, or a value of a later protocol.
pub fn stop_signal(raw: i32) -> Option<u8> {
    /// In the enumeration's order, from 1.
    const NAMES: [&str; 34] = [
        "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT",
        "KILL", "PIPE", "POLL", "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM",
        "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
    ];
    match raw {
        1..=34 => signal::number(NAMES[raw as usize - 1]),
        35..=50 => signal::number(&format!("RTMIN+{}", raw - 35)),
        51..=65 => signal::number(&format!("RTMAX-{}", 65 - raw)),
        _ => None,
    }
}

/// The pid of a container's main process in the `info` of a verbose ContainerStatus, which
/// containerd and CRI-O both write as JSON under the key `info`.
pub fn pid(info: &str) -> Option<u32> {
    #[derive(Deserialize)]
    struct Info {
        pid: u32,
    }
    serde_json::from_str::<Info>(info).ok().map(|info| info.pid).filter(|pid| *pid > 0)
}

/// The shim that runs a container, in the same `info`, where containerd writes it
/// (`internal/cri/types/container_info.go`). CRI-O does not.
pub fn runtime_type(info: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Info {
        runtime_type: String,
    }
    let runtime = serde_json::from_str::<Info>(info).ok()?.runtime_type;
    (!runtime.is_empty()).then_some(runtime)
}

/// A preStop hook as the kubelet writes it into the annotation: JSON of a v1.LifecycleHandler.
fn hook(json: &str) -> Option<Hook> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Handler {
        exec: Option<Exec>,
        http_get: Option<IgnoredAny>,
        tcp_socket: Option<IgnoredAny>,
        sleep: Option<Sleep>,
    }
    #[derive(Deserialize)]
    struct Exec {
        #[serde(default)]
        command: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Sleep {
        #[serde(default)]
        seconds: i64,
    }
    match serde_json::from_str(json).ok()? {
        Handler { exec: Some(exec), .. } => Some(Hook::exec(exec.command.first()?)),
        Handler { http_get: Some(_), .. } => Some(Hook::HttpGet),
        Handler { tcp_socket: Some(_), .. } => Some(Hook::TcpSocket),
        Handler { sleep: Some(sleep), .. } => Some(Hook::Sleep(sleep.seconds)),
        _ => None,
    }
}

fn created(ns: i64) -> Result<WallTime, Nonsense> {
    if ns < 0 { Err(Nonsense::Time(ns)) } else { Ok(WallTime(ns)) }
}

/// A time of which 0 says that it is not set.
fn moment(ns: i64) -> Result<Option<WallTime>, Nonsense> {
    created(ns).map(|time| (ns != 0).then_some(time))
}
