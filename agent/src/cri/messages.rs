//! Answers of the protocol, cut down to what is read: the rest need not be decoded, and k8s-cri
//! 0.11 is made from a protocol older than some of it. Field numbers: cri-api v0.36, `api.proto`.

use k8s_cri::v1;
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
    /// Not in k8s-cri 0.11.
    #[prost(int32, tag = "19")]
    pub(super) stop_signal: i32,
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
