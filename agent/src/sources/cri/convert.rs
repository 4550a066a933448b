//! Protobuf → what the core knows. Pure: invalid data is returned as [`Invalid`] and never panics.

#[cfg(test)]
mod tests;

use crate::sources::{cut::Cuts, kube::pod::hook_of, spec::signal_number};
use coroner_core::{
    ids::{ContainerId, PodUid, SandboxId},
    input::{ContainerState, CriContainer, CriExit, CriSandbox, CriSandboxStatus, SandboxNetwork},
    time::{BootTime, WallTime},
};
use coroner_cri_api::read;
use prost::{Message, bytes::Bytes};
use serde::Deserialize;
use std::{collections::HashMap, net::IpAddr};

// Keys the kubelet writes: staging/src/k8s.io/kubelet/pkg/types/labels.go and
// pkg/kubelet/kuberuntime/labels.go.
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// Of labels and annotations, those that are read.
const WANTED: [&str; 7] =
    [POD_NAME, POD_NAMESPACE, POD_UID, CONTAINER_NAME, GRACE_PERIOD, PRE_STOP, CONFIG_SOURCE];

/// The longest id, name or other text of the runtime that is kept, bytes.
pub const MAX_TEXT: usize = 320;

/// Addresses of one sandbox: the CRI knows one of each family, networks beside the first give more.
const MAX_ADDRESSES: usize = 32;

/// The longest path that Linux takes (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

/// Why an object in an answer was left out.
pub type Invalid = &'static str;

#[derive(Debug)]
pub struct Items<T> {
    pub valid: Vec<T>,
    pub invalid: u32,
    /// Why, of one of these.
    pub why: Option<Invalid>,
}

impl<T> Items<T> {
    /// Decodes one item at a time: the labels of all take several times the 16 MiB of an answer.
    fn of<M: Message + Default>(
        items: Vec<Bytes>,
        convert: impl Fn(M) -> Result<T, Invalid>,
    ) -> Self {
        let mut list = Self { valid: Vec::with_capacity(items.len()), invalid: 0, why: None };
        for item in items {
            match M::decode(item).map_err(|_| "it cannot be decoded").and_then(&convert) {
                Ok(one) => list.valid.push(one),
                Err(why) => (list.invalid, list.why) = (list.invalid + 1, Some(why)),
            }
        }
        list
    }
}

pub fn sandboxes(list: read::ListPodSandboxResponse, cuts: &Cuts) -> Items<CriSandbox> {
    Items::of(list.items, |one| sandbox(one, cuts))
}

pub fn containers(list: read::ListContainersResponse, cuts: &Cuts) -> Items<CriContainer> {
    Items::of(list.items, |one| container(one, cuts))
}

/// A sandbox. One that its metadata does not name is taken by its labels; one that neither names, or in an unknown state,
/// could not be named in a report.
pub fn sandbox(from: read::PodSandbox, cuts: &Cuts) -> Result<CriSandbox, Invalid> {
    let metadata = from.metadata.unwrap_or_default();
    let (labels, annotations) = (&mut picked(from.labels), &mut picked(from.annotations));
    Ok(CriSandbox {
        id: SandboxId::new(named(from.id, cuts).ok_or("it has no id")?),
        pod: PodUid::new(named_or(metadata.uid, labels, POD_UID, cuts)?),
        name: named_or(metadata.name, labels, POD_NAME, cuts)?,
        namespace: named_or(metadata.namespace, labels, POD_NAMESPACE, cuts)?,
        attempt: metadata.attempt,
        ready: match read::PodSandboxState::try_from(from.state) {
            Ok(state) => state == read::PodSandboxState::SandboxReady,
            Err(_) => return Err("its state is unknown"),
        },
        created: moment(from.created_at),
        handler: named(from.runtime_handler, cuts).unwrap_or_default(),
        config_source: annotations.remove(CONFIG_SOURCE).and_then(|text| named(text, cuts)),
    })
}

pub fn container(from: read::Container, cuts: &Cuts) -> Result<CriContainer, Invalid> {
    let metadata = from.metadata.unwrap_or_default();
    let (labels, annotations) = (&mut picked(from.labels), &mut picked(from.annotations));
    Ok(CriContainer {
        id: ContainerId::new(named(from.id, cuts).ok_or("it has no id")?),
        sandbox: SandboxId::new(named(from.pod_sandbox_id, cuts).ok_or("it has no sandbox")?),
        name: named_or(metadata.name, labels, CONTAINER_NAME, cuts)?,
        attempt: metadata.attempt,
        state: state(from.state),
        created: moment(from.created_at),
        pod: labels.remove(POD_UID).and_then(|uid| named(uid, cuts)).map(PodUid::new),
        grace_seconds: annotations
            .get(GRACE_PERIOD)
            .and_then(|text| text.parse().ok())
            .filter(|seconds| *seconds >= 0),
        pre_stop: annotations.get(PRE_STOP).and_then(|json| hook_of(json)),
    })
}

/// The entries that are read: a pod may have some hundred thousand labels.
fn picked(entries: Vec<Bytes>) -> HashMap<String, String> {
    let entries = entries.into_iter().filter_map(|entry| read::Entry::decode(entry).ok());
    let wanted = entries.filter(|entry| WANTED.contains(&&*entry.key));
    wanted.map(|entry| (entry.key, entry.value)).collect()
}

/// A text, cut; `None` if it is empty.
fn named(mut text: String, cuts: &Cuts) -> Option<String> {
    cuts.text(&mut text, MAX_TEXT);
    (!text.is_empty()).then_some(text)
}

/// A text of the metadata, or else a label.
fn named_or(
    text: String,
    labels: &mut HashMap<String, String>,
    label: &str,
    cuts: &Cuts,
) -> Result<String, Invalid> {
    named(text, cuts)
        .or_else(|| named(labels.remove(label)?, cuts))
        .ok_or("neither metadata nor labels contain its name")
}

/// How a container ended; `None` while it has not.
pub fn exit(container: ContainerId, from: &read::ContainerStatus) -> Option<CriExit> {
    (state(from.state) == ContainerState::Exited).then(|| CriExit {
        container,
        exit_code: from.exit_code,
        reason: from.reason.chars().take(MAX_TEXT).collect(),
    })
}

/// A container's state. Values of a later protocol are as unknown as CONTAINER_UNKNOWN.
fn state(raw: i32) -> ContainerState {
    match read::ContainerState::try_from(raw) {
        Ok(read::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(read::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(read::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(read::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

/// 0 means that a time is not set, as does Go's zero time, in the year 1: containerd before 1.7.16 lists with it a sandbox whose
/// network could be neither set up nor removed (containerd#9673).
fn moment(ns: i64) -> Option<WallTime> {
    (ns > 0).then_some(WallTime(ns))
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

/// The image of a container as it is named, and as ImageStatus finds it: by its digest or id.
pub fn image(from: &read::ContainerStatus, cuts: &Cuts) -> (String, String) {
    let name = from.image.as_ref().map(|image| image.image.clone());
    let name = name.and_then(|name| named(name, cuts)).unwrap_or_default();
    let reference = named(from.image_ref.clone(), cuts).unwrap_or_else(|| name.clone());
    (name, reference)
}

/// What is read of the `info` of a verbose ImageStatus, which containerd (`internal/cri/server/images/image_status.go`) and
/// CRI-O (`server/image_status.go`) both write as JSON with the OCI image configuration. The rest, such as the
/// environment, is dropped.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ImageInfo {
    image_spec: ImageConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ImageConfig {
    config: StopConfig,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct StopConfig {
    stop_signal: String,
}

/// STOPSIGNAL of an image.
pub fn image_stop_signal(from: &read::ImageStatusResponse) -> Option<u8> {
    let info: ImageInfo = serde_json::from_str(from.info.get("info")?).ok()?;
    signal_number(&info.image_spec.config.stop_signal)
}

/// What is read of the `info` of a verbose ContainerStatus, which containerd and CRI-O both write as
/// JSON under the key `info`. It has the container's environment twice.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerInfo {
    pid: Option<i64>,
    runtime_type: Option<String>,
}

impl ContainerInfo {
    /// Reads it. Nothing is known of what is not as it should be.
    pub fn parse(info: &str) -> Self {
        serde_json::from_str(info).unwrap_or_default()
    }

    pub fn pid(&self) -> Option<u32> {
        process_id(self.pid)
    }

    /// The shim that runs it, where containerd writes it (`internal/cri/types/container_info.go`).
    /// CRI-O does not.
    pub fn runtime(self) -> Option<String> {
        self.runtime_type.filter(|runtime| (1..=MAX_TEXT).contains(&runtime.len()))
    }
}

fn process_id(pid: Option<i64>) -> Option<u32> {
    pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)
}

/// What is read of the `info` of a verbose PodSandboxStatus. The runtimes put JSON of their own into it:
///
/// | | pause process | network namespace | is it closed |
/// |---|---|---|---|
/// | containerd 1.4 to 1.7 (`pkg/cri/server/sandbox_status.go`) | `pid` | `runtimeSpec.linux.namespaces` | `netNamespaceClosed` |
/// | containerd 2.x (`internal/cri/server/podsandbox/sandbox_status.go`) | `pid` | `sandboxMetadata.Metadata.NetNSPath`, and the runtimeSpec | `netNamespaceClosed` |
/// | CRI-O (`server/sandbox_status.go`) | `pid`, except without infra container | `runtimeSpec.linux.namespaces` | not reported |
///
/// The runtimeSpec is not always there: not in containerd 2.x once the controller has lost the
/// sandbox, not in CRI-O without infra container.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SandboxInfo {
    pid: Option<i64>,
    net_namespace_closed: Option<bool>,
    sandbox_metadata: Option<Versioned>,
    runtime_spec: Option<Spec>,
}

/// containerd's `internal/cri/store/sandbox/metadata.go`, `versionedMetadata`.
#[derive(Deserialize)]
struct Versioned {
    #[serde(rename = "Metadata")]
    metadata: Option<NetworkMetadata>,
}

#[derive(Deserialize)]
struct NetworkMetadata {
    #[serde(rename = "NetNSPath")]
    path: Option<String>,
}

/// The OCI runtime specification's `config.json`.
#[derive(Deserialize)]
struct Spec {
    linux: Option<Linux>,
}

#[derive(Deserialize)]
struct Linux {
    namespaces: Option<Vec<Namespace>>,
}

#[derive(Deserialize)]
struct Namespace {
    #[serde(rename = "type", default)]
    kind: String,
    path: Option<String>,
}

/// A verbose PodSandboxStatus, `None` if it has no status, and whether its `info` could be read.
pub fn sandbox_status(
    sandbox: SandboxId,
    asked: BootTime,
    mut from: read::PodSandboxStatusResponse,
) -> Option<(CriSandboxStatus, Result<(), Invalid>)> {
    let status = from.status?;
    let info = from.info.remove("info").filter(|info| !info.is_empty());
    let info = info.map_or(Ok(SandboxInfo::default()), |info| serde_json::from_str(&info));
    let readable = info.as_ref().map(|_| ());
    let readable = readable.map_err(|_| "its info is not in containerd's or CRI-O's format");
    let info = info.unwrap_or_default();

    let by_metadata = info.sandbox_metadata.and_then(|it| it.metadata?.path);
    let namespaces = info.runtime_spec.and_then(|spec| spec.linux?.namespaces);
    let mut namespaces = namespaces.into_iter().flatten();
    let by_spec = namespaces.find(|one| one.kind == "network").and_then(|one| one.path);
    let path = [by_metadata, by_spec]
        .into_iter()
        .flatten()
        .find(|path| (1..=LONGEST_PATH).contains(&path.len()));
    // containerd writes false where it has no namespace to look at, too.
    let closed = info.net_namespace_closed.filter(|closed| *closed || path.is_some());
    let options = status.linux.and_then(|linux| linux.namespaces?.options);
    let network = match options.map(|options| read::NamespaceMode::try_from(options.network)) {
        // It has neither path nor namespace, and containerd calls that not closed.
        Some(Ok(read::NamespaceMode::Node)) => SandboxNetwork::Host,
        Some(Ok(read::NamespaceMode::Pod)) => SandboxNetwork::Own { path, closed },
        _ if path.is_some() || closed.is_some() => SandboxNetwork::Own { path, closed },
        _ => SandboxNetwork::Unknown,
    };
    let addresses = status.network.unwrap_or_default();
    let additional = addresses.additional_ips.into_iter().map(|more| more.ip);
    let ips = std::iter::once(addresses.ip)
        .chain(additional)
        .filter_map(|text| text.parse::<IpAddr>().ok())
        .take(MAX_ADDRESSES)
        .map(|address| address.to_string())
        .collect();
    Some((CriSandboxStatus { sandbox, asked, pid: process_id(info.pid), ips, network }, readable))
}
