//! Answers of the protocol, cut down to what is read: the rest need not be decoded, and
//! `cri-api/` has a proto older than some of it. Field numbers: kubernetes/cri-api v0.36, `api.proto`.

use super::convert::{RawStatus, sandbox_status::RawSandboxStatus};
use coroner_cri_api::v1;
use prost::bytes::Bytes;
use std::collections::HashMap;

/// ListPodSandboxResponse, ListContainersResponse, and what the streams of both send
/// (StreamPodSandboxesResponse, StreamContainersResponse; KEP-5825): each is a repeated message
/// under tag 1. The items stay as they came, slices of one buffer, until each has its turn: decoded
/// all at once, their maps take several times the 16 MiB that an answer may have.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct List {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(super) items: Vec<Bytes>,
}

/// ContainerStatusResponse.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<ContainerStatusPart>,
    #[prost(map = "string, string", tag = "2")]
    pub(super) info: HashMap<String, String>,
}

/// ContainerStatus.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerStatusPart {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(int32, tag = "3")]
    pub(super) state: i32,
    #[prost(int64, tag = "5")]
    pub(super) started_at: i64,
    #[prost(int64, tag = "6")]
    pub(super) finished_at: i64,
    #[prost(int32, tag = "7")]
    pub(super) exit_code: i32,
    #[prost(string, tag = "10")]
    pub(super) reason: String,
    /// Not in `cri-api/`: since v0.33.
    #[prost(int32, tag = "19")]
    pub(super) stop_signal: i32,
}

impl From<ContainerStatusPart> for RawStatus {
    fn from(from: ContainerStatusPart) -> Self {
        Self {
            id: from.id,
            state: from.state,
            started_at: from.started_at,
            finished_at: from.finished_at,
            exit_code: from.exit_code,
            reason: from.reason,
            stop_signal: from.stop_signal,
        }
    }
}

/// PodSandboxStatusResponse.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SandboxStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<SandboxStatusPart>,
    #[prost(map = "string, string", tag = "2")]
    pub(super) info: HashMap<String, String>,
}

/// PodSandboxStatus.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SandboxStatusPart {
    #[prost(message, optional, tag = "5")]
    pub(super) network: Option<v1::PodSandboxNetworkStatus>,
    #[prost(message, optional, tag = "6")]
    pub(super) linux: Option<v1::LinuxPodSandboxStatus>,
}

impl SandboxStatusAnswer {
    /// What is read of it; `None` if it has no status.
    pub(super) fn raw(mut self) -> Option<RawSandboxStatus> {
        let status = self.status?;
        let network = status.network.unwrap_or_default();
        let additional = network.additional_ips.into_iter().map(|more| more.ip);
        let options = status.linux.and_then(|linux| linux.namespaces?.options);
        Some(RawSandboxStatus {
            ips: std::iter::once(network.ip).chain(additional).collect(),
            network: options.map(|options| options.network),
            info: self.info.remove("info").unwrap_or_default(),
        })
    }
}
