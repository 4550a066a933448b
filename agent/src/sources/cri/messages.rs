//! Answers of the protocol, cut down to what is read: the rest need not be decoded, and
//! `cri-api/` has a proto older than some of it. Field numbers: kubernetes/cri-api v0.36, `api.proto`.

use super::convert::{
    RawContainer, RawSandbox, RawStatus, WANTED, sandbox_status::RawSandboxStatus,
};
use coroner_cri_api::v1;
use prost::{
    DecodeError,
    bytes::{Buf, BufMut, Bytes},
    encoding::{self, DecodeContext, WireType},
};
use std::collections::HashMap;

/// ListPodSandboxResponse, ListContainersResponse, and what the streams of both send
/// (StreamPodSandboxesResponse, StreamContainersResponse; KEP-5825): each is a repeated message
/// under tag 1. The items stay as they came, slices of one buffer, until each has its turn: decoded
/// all at once, their maps take several times the 16 MiB that an answer may have.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ItemList {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(super) items: Vec<Bytes>,
}

/// PodSandbox, in a list.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SandboxItem {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<v1::PodSandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub(super) state: i32,
    #[prost(int64, tag = "4")]
    pub(super) created_at: i64,
    #[prost(message, optional, tag = "5")]
    pub(super) labels: Option<Picked>,
    #[prost(message, optional, tag = "6")]
    pub(super) annotations: Option<Picked>,
    #[prost(string, tag = "7")]
    pub(super) runtime_handler: String,
}

/// Container, in a list.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerItem {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) metadata: Option<v1::ContainerMetadata>,
    #[prost(int32, tag = "6")]
    pub(super) state: i32,
    #[prost(int64, tag = "7")]
    pub(super) created_at: i64,
    #[prost(message, optional, tag = "8")]
    pub(super) labels: Option<Picked>,
    #[prost(message, optional, tag = "9")]
    pub(super) annotations: Option<Picked>,
}

/// Of a map of strings the entries that are read: a pod may have some hundred thousand labels. On the
/// wire a map is a message for each entry, a key under tag 1 and a value under tag 2; that they are
/// merged into one message here is what protobuf prescribes for a field that is not repeated.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Picked {
    /// Found, with their names.
    pub(super) entries: HashMap<String, String>,
    /// The name that was read last, if its value is wanted and still to come.
    wanted: Option<&'static str>,
}

impl prost::Message for Picked {
    /// It is only ever read.
    fn encode_raw(&self, _: &mut impl BufMut) {}

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match (tag, self.wanted) {
            (1, _) => {
                let mut key = String::new();
                encoding::string::merge(wire_type, &mut key, from, context)?;
                self.wanted = WANTED.into_iter().find(|wanted| *wanted == key);
                Ok(())
            }
            (2, Some(wanted)) => {
                self.wanted = None;
                let value = self.entries.entry(wanted.to_owned()).or_default();
                encoding::string::merge(wire_type, value, from, context)
            }
            _ => encoding::skip_field(wire_type, tag, from, context),
        }
    }

    fn encoded_len(&self) -> usize {
        0
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// ContainerStatusResponse.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<ContainerStatusPart>,
    #[prost(map = "string, string", tag = "2")]
    pub(super) info: HashMap<String, String>,
}

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

impl From<SandboxItem> for RawSandbox {
    fn from(from: SandboxItem) -> Self {
        let metadata = from.metadata.unwrap_or_default();
        Self {
            id: from.id,
            name: metadata.name,
            uid: metadata.uid,
            namespace: metadata.namespace,
            attempt: metadata.attempt,
            state: from.state,
            created_at: from.created_at,
            labels: from.labels.unwrap_or_default().entries,
            annotations: from.annotations.unwrap_or_default().entries,
            handler: from.runtime_handler,
        }
    }
}

impl From<ContainerItem> for RawContainer {
    fn from(from: ContainerItem) -> Self {
        let metadata = from.metadata.unwrap_or_default();
        Self {
            id: from.id,
            sandbox: from.pod_sandbox_id,
            name: metadata.name,
            attempt: metadata.attempt,
            state: from.state,
            created_at: from.created_at,
            labels: from.labels.unwrap_or_default().entries,
            annotations: from.annotations.unwrap_or_default().entries,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn of_labels_only_those_that_are_read_are_kept() {
        let labels = |extra: usize| {
            let wanted = WANTED.map(|name| (name.to_owned(), format!("of {name}")));
            let others = (0..extra).map(|n| (format!("label-{n}"), "x".repeat(63)));
            wanted.into_iter().chain(others).collect::<HashMap<_, _>>()
        };
        let sandbox = v1::PodSandbox {
            id: "s1".into(),
            labels: labels(100_000),
            annotations: labels(1),
            runtime_handler: "runc".into(),
            state: 1,
            created_at: 7,
            ..Default::default()
        };
        let read = SandboxItem::decode(&*sandbox.encode_to_vec()).unwrap();
        let expected = RawSandbox {
            id: "s1".into(),
            handler: "runc".into(),
            state: 1,
            created_at: 7,
            labels: labels(0),
            annotations: labels(0),
            ..RawSandbox::default()
        };
        assert_eq!(RawSandbox::from(read), expected);
        let container = v1::Container {
            id: "c1".into(),
            pod_sandbox_id: "s1".into(),
            labels: labels(1_000),
            annotations: labels(1_000),
            state: 2,
            created_at: 7,
            ..Default::default()
        };
        let read = ContainerItem::decode(&*container.encode_to_vec()).unwrap();
        let expected = RawContainer {
            id: "c1".into(),
            sandbox: "s1".into(),
            state: 2,
            created_at: 7,
            labels: labels(0),
            annotations: labels(0),
            ..RawContainer::default()
        };
        assert_eq!(RawContainer::from(read), expected);
    }

    #[test]
    fn a_value_belongs_to_its_own_name() {
        let mut picked = Picked::default();
        let name = WANTED[0];
        let key = |name: &str| [&[0x0a, name.len() as u8], name.as_bytes()].concat();
        // Values without a key, and one of a key that nobody wants, are nobody's.
        for entry in
            [b"\x12\x01x".to_vec(), key(name), b"\x12\x01a".to_vec(), b"\x12\x01b".to_vec()]
        {
            picked.merge(&*entry).unwrap();
        }
        picked.merge(&*[key("other"), b"\x12\x01c".to_vec()].concat()).unwrap();
        assert_eq!(picked.entries, HashMap::from([(name.to_owned(), "a".to_owned())]));
    }
}
