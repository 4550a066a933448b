//! Bytes of the runtime's answers → inputs of the core, as the adapter goes about it: for the fuzz
//! targets (`fuzz/targets`).

use super::{
    client,
    convert::{
        self, ContainerInfo, InvalidItem, RawStatus,
        sandbox_status::{SandboxInfo, sandbox_status as told},
    },
    messages::{ContainerStatusAnswer, ItemList, SandboxStatusAnswer},
};
use crate::sources::cut::Cuts;
use coroner_core::{
    ids::{ContainerId, SandboxId},
    input::{CriContainer, CriExit, CriSandbox, CriSandboxStatus},
    time::BootTime,
};
use prost::Message as _;

/// The sandboxes of a ListPodSandboxResponse; `None`: it is none.
pub fn sandboxes(answer: &[u8]) -> Option<Vec<Result<CriSandbox, InvalidItem>>> {
    let items = ItemList::decode(answer).ok()?.items.into_iter();
    let cuts = Cuts::default();
    Some(items.map(|item| client::sandbox(item, &cuts).and_then(convert::sandbox)).collect())
}

/// The containers of a ListContainersResponse; `None`: it is none.
pub fn containers(answer: &[u8]) -> Option<Vec<Result<CriContainer, InvalidItem>>> {
    let items = ItemList::decode(answer).ok()?.items.into_iter();
    let cuts = Cuts::default();
    Some(items.map(|item| client::container(item, &cuts).and_then(convert::container)).collect())
}

/// What is taken from a ContainerStatusResponse.
#[derive(Debug)]
pub struct ContainerTold {
    /// Its end.
    pub exit: Result<Option<CriExit>, InvalidItem>,
    /// Its stop signal.
    pub stop_signal: Option<u8>,
    /// The pid of its main process.
    pub pid: Option<u32>,
    /// The shim that runs it.
    pub runtime: Option<String>,
}

/// A ContainerStatusResponse that was asked for of `container`; `None`: it is none, or without a
/// status.
pub fn container_status(container: &ContainerId, answer: &[u8]) -> Option<ContainerTold> {
    let answer = ContainerStatusAnswer::decode(answer).ok()?;
    let raw = RawStatus { id: container.as_str().to_owned(), ..RawStatus::from(answer.status?) };
    let info = answer.info.get("info").map(String::as_str).unwrap_or_default();
    let read = ContainerInfo::parse(info, &Cuts::default());
    Some(ContainerTold {
        exit: convert::exit(&raw),
        stop_signal: convert::stop_signal(raw.stop_signal),
        pid: read.pid,
        runtime: read.runtime,
    })
}

/// A PodSandboxStatusResponse that was asked for of `sandbox`; `None`: it is none, or without a
/// status.
pub fn sandbox_status(sandbox: SandboxId, at: BootTime, answer: &[u8]) -> Option<CriSandboxStatus> {
    let raw = SandboxStatusAnswer::decode(answer).ok()?.raw()?;
    let info = SandboxInfo::parse(&raw.info).unwrap_or_default();
    Some(told(sandbox, at, &raw, info))
}
