//! Protobuf → what the core knows. Pure: invalid data is returned as [`InvalidItem`] and never panics.

pub mod sandbox_status;
#[cfg(test)]
mod tests;

use crate::sources::{
    cut::Cuts,
    spec::{exec_hook, signal_number},
};
use coroner_core::{
    ids::{ContainerId, PodUid, SandboxId},
    input::{ContainerState, CriContainer, CriExit, CriSandbox, Hook},
    time::WallTime,
};
use coroner_cri_api::v1;
use serde::Deserialize;
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

/// Of labels and annotations, those that are read.
pub(super) const WANTED: [&str; 8] =
    [POD_NAME, POD_NAMESPACE, POD_UID, CONTAINER_NAME, HASH, GRACE_PERIOD, PRE_STOP, CONFIG_SOURCE];

/// The longest id, name or word of the runtime's that is kept, bytes.
pub const MAX_TEXT: usize = 320;

/// Why something in an answer was left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidItem {
    #[error("it has no id")]
    NoId,
    /// A container without a sandbox.
    #[error("it has no sandbox")]
    NoSandbox,
    /// Neither metadata nor labels say what it is.
    #[error("neither metadata nor labels contain its name")]
    NoName,
    /// A state that this version does not know.
    #[error("its state {0} is unknown")]
    State(i32),
    /// Not a message of the protocol.
    #[error("it cannot be decoded")]
    Undecodable,
    /// Not the JSON that it should be.
    #[error("its info is not in containerd's or CRI-O's format")]
    Info,
}

/// A pod sandbox as it stands in the protocol, with nothing judged: the seam between the wire (or
/// a recording) and [`sandbox`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawSandbox {
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
    pub labels: HashMap<String, String>,
    pub annotations: HashMap<String, String>,
    /// runtime_handler.
    pub handler: String,
}

/// A container as it stands in the protocol: the seam between the wire and [`container`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawContainer {
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
    pub labels: HashMap<String, String>,
    pub annotations: HashMap<String, String>,
}

/// The part of a ContainerStatus that is read: the seam between the wire and [`exit`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawStatus {
    pub id: String,
    /// state: 0 created, 1 running, 2 exited, 3 unknown.
    pub state: i32,
    /// started_at, ns since the epoch; 0 is unset.
    pub started_at: i64,
    /// finished_at, ns since the epoch; 0 is unset.
    pub finished_at: i64,
    pub exit_code: i32,
    pub reason: String,
    /// stop_signal: a value of the CRI's own enumeration; 0 says nothing.
    pub stop_signal: i32,
}

impl RawSandbox {
    /// Cuts what is longer than is kept.
    pub(super) fn cut(mut self, cuts: &Cuts) -> Self {
        for text in
            [&mut self.id, &mut self.name, &mut self.uid, &mut self.namespace, &mut self.handler]
        {
            cuts.text(text, MAX_TEXT);
        }
        cut(&mut self.labels, &mut self.annotations, cuts);
        self
    }
}

impl RawContainer {
    /// Cuts what is longer than is kept.
    pub(super) fn cut(mut self, cuts: &Cuts) -> Self {
        for text in [&mut self.id, &mut self.sandbox, &mut self.name] {
            cuts.text(text, MAX_TEXT);
        }
        cut(&mut self.labels, &mut self.annotations, cuts);
        self
    }
}

/// Of a hook no more is kept than its binary.
fn cut(
    labels: &mut HashMap<String, String>,
    annotations: &mut HashMap<String, String>,
    cuts: &Cuts,
) {
    let of_hook = |(name, _): &(&String, &mut String)| *name != PRE_STOP;
    for (_, text) in labels.iter_mut().chain(annotations.iter_mut()).filter(of_hook) {
        cuts.text(text, MAX_TEXT);
    }
}

/// A sandbox. A sandbox that its metadata does not name is taken by its labels; one that neither
/// names, or in an unknown state, is invalid, because it could not be named in a report.
pub fn sandbox(raw: RawSandbox) -> Result<CriSandbox, InvalidItem> {
    let RawSandbox { id, labels, annotations, .. } = raw;
    let named = |own: String, label: &str| {
        let text =
            if own.is_empty() { labels.get(label).cloned().unwrap_or_default() } else { own };
        if text.is_empty() { Err(InvalidItem::NoName) } else { Ok(text) }
    };
    if id.is_empty() {
        return Err(InvalidItem::NoId);
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
            Err(_) => return Err(InvalidItem::State(raw.state)),
        },
        created: moment(raw.created_at),
        handler: raw.handler,
        config_source: annotations.get(CONFIG_SOURCE).cloned(),
    })
}

pub fn container(raw: RawContainer) -> Result<CriContainer, InvalidItem> {
    let RawContainer { id, sandbox, name, labels, annotations, .. } = raw;
    if id.is_empty() {
        return Err(InvalidItem::NoId);
    }
    if sandbox.is_empty() {
        return Err(InvalidItem::NoSandbox);
    }
    let name = if name.is_empty() {
        labels.get(CONTAINER_NAME).cloned().unwrap_or_default()
    } else {
        name
    };
    if name.is_empty() {
        return Err(InvalidItem::NoName);
    }
    Ok(CriContainer {
        id: ContainerId::new(id),
        sandbox: SandboxId::new(sandbox),
        name,
        attempt: raw.attempt,
        state: state(raw.state),
        created: moment(raw.created_at),
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
pub fn exit(raw: &RawStatus) -> Result<Option<CriExit>, InvalidItem> {
    if raw.id.is_empty() {
        return Err(InvalidItem::NoId);
    }
    if state(raw.state) != ContainerState::Exited {
        return Ok(None);
    }
    Ok(Some(CriExit {
        container: ContainerId::new(&raw.id),
        started: moment(raw.started_at),
        finished: moment(raw.finished_at),
        exit_code: raw.exit_code,
        reason: raw.reason.clone(),
    }))
}

/// A container's state. Values of a later protocol are as unknown as CONTAINER_UNKNOWN.
pub fn state(raw: i32) -> ContainerState {
    match v1::ContainerState::try_from(raw) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
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
        1..=34 => signal_number(NAMES[raw as usize - 1]),
        35..=50 => signal_number(&format!("RTMIN+{}", raw - 35)),
        51..=65 => signal_number(&format!("RTMAX-{}", 65 - raw)),
        _ => None,
    }
}

/// What is read of the `info` of a verbose ContainerStatus, which containerd and CRI-O both write as
/// JSON under the key `info`. It has the container's environment twice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ContainerInfo {
    /// The container's main process.
    pub pid: Option<u32>,
    /// The shim that runs it, where containerd writes it (`internal/cri/types/container_info.go`).
    /// CRI-O does not.
    pub runtime: Option<String>,
}

impl ContainerInfo {
    /// Reads it. What is not as it should be is not known.
    pub fn parse(info: &str, cuts: &Cuts) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Info {
            pid: Option<i64>,
            runtime_type: Option<String>,
        }
        let mut info: Info = serde_json::from_str(info).unwrap_or_default();
        info.runtime_type.iter_mut().for_each(|runtime| cuts.text(runtime, MAX_TEXT));
        Self {
            pid: info.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0),
            runtime: info.runtime_type.filter(|runtime| !runtime.is_empty()),
        }
    }
}

/// A preStop hook as the kubelet writes it into the annotation: JSON of a v1.LifecycleHandler.
fn hook(json: &str) -> Option<Hook> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Handler {
        exec: Option<Exec>,
        http_get: Option<There>,
        tcp_socket: Option<There>,
        sleep: Option<Sleep>,
    }
    #[derive(Deserialize)]
    struct Exec {
        #[serde(default)]
        command: Vec<String>,
    }
    #[derive(Deserialize)]
    struct There {}
    #[derive(Deserialize)]
    struct Sleep {
        #[serde(default)]
        seconds: i64,
    }
    match serde_json::from_str(json).ok()? {
        Handler { exec: Some(exec), .. } => Some(exec_hook(exec.command.first()?)),
        Handler { http_get: Some(There {}), .. } => Some(Hook::HttpGet),
        Handler { tcp_socket: Some(There {}), .. } => Some(Hook::TcpSocket),
        Handler { sleep: Some(sleep), .. } => Some(Hook::Sleep(sleep.seconds)),
        _ => None,
    }
}

/// 0 says that a time is not set, as does Go's zero time, in the year 1: containerd before 1.7.16 lists with it a sandbox whose
/// network could be neither set up nor removed (containerd#9673).
fn moment(ns: i64) -> Option<WallTime> {
    (ns > 0).then_some(WallTime(ns))
}
