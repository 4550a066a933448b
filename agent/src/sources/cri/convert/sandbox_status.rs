//! A verbose PodSandboxStatus → what it says of the sandbox' process and network.
//!
//! The runtimes put JSON of their own into the answer. Where what is wanted stands in it:
//!
//! | | pause process | network namespace | is it closed |
//! |---|---|---|---|
//! | containerd 1.4 to 1.7 (`pkg/cri/server/sandbox_status.go`) | `pid` | `runtimeSpec.linux.namespaces` | `netNamespaceClosed` |
//! | containerd 2.x (`internal/cri/server/podsandbox/sandbox_status.go`) | `pid` | `sandboxMetadata.Metadata.NetNSPath`, and the runtimeSpec | `netNamespaceClosed` |
//! | CRI-O (`server/sandbox_status.go`) | `pid`, except without infra container | `runtimeSpec.linux.namespaces` | not told |
//!
//! The runtimeSpec is not always there: not in containerd 2.x once the controller has lost the
//! sandbox, not in CRI-O without infra container.

use super::InvalidItem;
use coroner_core::{
    ids::SandboxId,
    input::{CriSandboxStatus, SandboxNetwork},
    time::BootTime,
};
use coroner_cri_api::v1::NamespaceMode;
use serde::Deserialize;
use std::net::IpAddr;

/// Addresses of one sandbox: the CRI knows one of each family, networks beside the first give more.
const MAX_ADDRESSES: usize = 32;

/// The longest path that Linux takes (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

/// The part of a PodSandboxStatusResponse that is read: the seam between the wire and
/// [`sandbox_status`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawSandboxStatus {
    /// status.network.ip, and all of status.network.additional_ips.
    pub ips: Vec<String>,
    /// status.linux.namespaces.options.network, where there are options.
    pub network: Option<i32>,
    /// info["info"]; empty: the runtime gave none.
    pub info: String,
}

/// What is read of `info`. What the runtime does not tell is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SandboxInfo {
    pid: Option<u32>,
    path: Option<String>,
    closed: Option<bool>,
}

impl SandboxInfo {
    /// Reads it. Nothing is kept of the rest, which may be megabytes.
    ///
    /// # Errors
    ///
    /// It is no JSON with these types.
    pub fn parse(info: &str) -> Result<Self, InvalidItem> {
        if info.is_empty() {
            return Ok(Self::default());
        }
        let json: Json = serde_json::from_str(info).map_err(|_| InvalidItem::Info)?;
        let by_metadata = json.sandbox_metadata.and_then(|it| it.metadata?.path);
        let namespaces = json.runtime_spec.and_then(|spec| spec.linux?.namespaces);
        let by_spec = namespaces
            .into_iter()
            .flatten()
            .find(|namespace| namespace.kind == "network")
            .and_then(|namespace| namespace.path);
        let path = [by_metadata, by_spec]
            .into_iter()
            .flatten()
            .find(|path| !path.is_empty() && path.len() <= LONGEST_PATH);
        // containerd writes false where it has no namespace to look at, too.
        let closed = json.net_namespace_closed.filter(|closed| *closed || path.is_some());
        let pid = json.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        Ok(Self { pid, path, closed })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Json {
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

/// A sandbox' status. Addresses that are none are left out.
pub fn sandbox_status(
    sandbox: SandboxId,
    asked: BootTime,
    raw: &RawSandboxStatus,
    info: SandboxInfo,
) -> CriSandboxStatus {
    let SandboxInfo { pid, path, closed } = info;
    let mode = raw.network.map(NamespaceMode::try_from);
    let network = match mode {
        // It has neither path nor namespace, and containerd calls that not closed.
        Some(Ok(NamespaceMode::Node)) => SandboxNetwork::Host,
        Some(Ok(NamespaceMode::Pod)) => SandboxNetwork::Own { path, closed },
        _ if path.is_some() || closed.is_some() => SandboxNetwork::Own { path, closed },
        _ => SandboxNetwork::Unknown,
    };
    let addresses = raw.ips.iter().filter_map(|text| text.parse::<IpAddr>().ok());
    let addresses = addresses.take(MAX_ADDRESSES);
    let ips = addresses.map(|address| address.to_string()).collect();
    CriSandboxStatus { sandbox, asked, pid, ips, network }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As containerd 1.4 to 1.7 marshal their `SandboxInfo`, in their order.
    const CONTAINERD_1: &str = r#"{"pid":4711,"processStatus":"running",
        "netNamespaceClosed":false,"image":"registry.k8s.io/pause:3.6","snapshotKey":"s1",
        "snapshotter":"overlayfs","runtimeHandler":"","runtimeType":"io.containerd.runc.v2",
        "runtimeOptions":{},"config":{"metadata":{"name":"web-0","uid":"u1","namespace":"shop"},
        "annotations":{"pid":"no number","netNamespaceClosed":"?"},"linux":{"security_context":
        {"namespace_options":{"pid":1}}}},"runtimeSpec":{"ociVersion":"1.0.2-dev","process":
        {"args":["/pause"]},"linux":{"resources":{},"namespaces":[{"type":"pid"},
        {"type":"ipc"},{"type":"uts"},{"type":"mount"},{"type":"network",
        "path":"/var/run/netns/cni-1"}]}},"cniResult":{"Interfaces":{"eth0":
        {"IPConfigs":[{"IP":"10.88.0.2","Gateway":"10.88.0.1"}]}},"DNS":[{}],"Routes":null}}"#;

    /// As containerd 2.x does, of a sandbox that its controller has lost.
    const CONTAINERD_2_LOST: &str = r#"{"pid":0,"processStatus":"deleted",
        "netNamespaceClosed":false,"image":"","snapshotKey":"","snapshotter":"","runtimeType":"",
        "runtimeOptions":null,"config":{},"runtimeSpec":null,"cniResult":{},"sandboxMetadata":
        {"Version":"v1","Metadata":{"ID":"s1","Name":"web-0_shop_u1_0","Config":{},
        "NetNSPath":"/var/run/netns/cni-2","IP":"10.88.0.3","AdditionalIPs":null,
        "RuntimeHandler":"","CNIResult":{},"ProcessLabel":""}}}"#;

    /// As all of containerd's do of a sandbox in the host's network.
    const CONTAINERD_HOST: &str = r#"{"pid":4712,"processStatus":"running",
        "netNamespaceClosed":false,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},
        {"type":"ipc"},{"type":"mount"}]}},"cniResult":null,"sandboxMetadata":{"Version":"v1",
        "Metadata":{"ID":"s1","NetNSPath":""}}}"#;

    const CRI_O: &str = r#"{"image":"registry.k8s.io/pause:3.9","pid":4713,"runtimeSpec":
        {"ociVersion":"1.0.2-dev","linux":{"namespaces":[{"type":"pid"},{"type":"network",
        "path":"/var/run/netns/3d1"},{"type":"ipc","path":"/var/run/ipcns/3d1"}]}}}"#;

    const CRI_O_WITHOUT_INFRA: &str = r#"{"runtimeSpec":{"ociVersion":"","annotations":{}}}"#;

    fn info(pid: u32, path: &str, closed: impl Into<Option<bool>>) -> SandboxInfo {
        SandboxInfo {
            pid: (pid != 0).then_some(pid),
            path: (!path.is_empty()).then(|| path.to_owned()),
            closed: closed.into(),
        }
    }

    #[test]
    fn what_each_runtime_tells() {
        let closed = CONTAINERD_1.replace(":4711", ":0").replace("Closed\":false", "Closed\":true");
        for (text, expected) in [
            (CONTAINERD_1, info(4711, "/var/run/netns/cni-1", false)),
            (&closed, info(0, "/var/run/netns/cni-1", true)),
            (CONTAINERD_2_LOST, info(0, "/var/run/netns/cni-2", false)),
            (CONTAINERD_HOST, info(4712, "", None)),
            (CRI_O, info(4713, "/var/run/netns/3d1", None)),
            (CRI_O_WITHOUT_INFRA, info(0, "", None)),
        ] {
            assert_eq!(SandboxInfo::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_told_is_not_known() {
        for (text, expected) in [
            ("", info(0, "", None)),
            ("{}", info(0, "", None)),
            (r#"{"pid":-1}"#, info(0, "", None)),
            (r#"{"pid":null,"sandboxMetadata":{"Metadata":null}}"#, info(0, "", None)),
            (r#"{"netNamespaceClosed":false}"#, info(0, "", None)),
            (r#"{"netNamespaceClosed":true}"#, info(0, "", true)),
            (r#"{"runtimeSpec":{"linux":{"namespaces":[{"path":"/x"},{}]}}}"#, info(0, "", None)),
            (r#"{"runtimeSpec":{"linux":{"namespaces":[{"type":"network"}]}}}"#, info(0, "", None)),
        ] {
            assert_eq!(SandboxInfo::parse(text), Ok(expected), "{text}");
        }
        let path = format!(
            r#"{{"sandboxMetadata":{{"Metadata":{{"NetNSPath":"/{}"}}}}}}"#,
            "x".repeat(4096)
        );
        assert_eq!(SandboxInfo::parse(&path), Ok(SandboxInfo::default()));
    }

    #[test]
    fn invalid() {
        for text in ["{", "[]", "7", r#"{"pid":"7"}"#, r#"{"runtimeSpec":7}"#] {
            assert_eq!(SandboxInfo::parse(text), Err(InvalidItem::Info), "{text}");
        }
        let long =
            format!(r#"{{"config":{}"x"{},"pid":7}}"#, "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert_eq!(SandboxInfo::parse(&long), Ok(info(7, "", None)));
    }

    #[test]
    fn the_hosts_network_is_nobodys_leak() {
        const POD: Option<i32> = Some(NamespaceMode::Pod as i32);
        const NODE: Option<i32> = Some(NamespaceMode::Node as i32);
        let own = |path: &str, closed: Option<bool>| {
            let path = (!path.is_empty()).then(|| path.to_owned());
            SandboxNetwork::Own { path, closed }
        };
        for (network, info, expected) in [
            (NODE, info(1, "", None), SandboxNetwork::Host),
            (NODE, info(1, "/run/netns/x", false), SandboxNetwork::Host),
            (POD, info(1, "/run/netns/x", false), own("/run/netns/x", Some(false))),
            (POD, info(1, "/run/netns/x", true), own("/run/netns/x", Some(true))),
            (POD, info(1, "", None), own("", None)),
            (None, info(1, "/run/netns/x", None), own("/run/netns/x", None)),
            (None, info(1, "", true), own("", Some(true))),
            (None, info(1, "", None), SandboxNetwork::Unknown),
            (Some(9), info(1, "", None), SandboxNetwork::Unknown),
        ] {
            let raw = RawSandboxStatus { network, ..RawSandboxStatus::default() };
            let status = sandbox_status("s1".into(), BootTime(5), &raw, info.clone());
            assert_eq!(status.network, expected, "{network:?} {info:?}");
        }
    }

    #[test]
    fn only_addresses_are_addresses() {
        let ips = ["10.88.0.2", "", "fd00::2", "x".repeat(1 << 20).as_str()].map(str::to_owned);
        let raw = RawSandboxStatus { ips: ips.to_vec(), ..RawSandboxStatus::default() };
        let status = sandbox_status("s1".into(), BootTime(5), &raw, info(7, "", None));
        assert_eq!(
            status,
            CriSandboxStatus {
                sandbox: "s1".into(),
                asked: BootTime(5),
                pid: Some(7),
                ips: vec!["10.88.0.2".into(), "fd00::2".into()],
                network: SandboxNetwork::Unknown,
            }
        );
    }
}
