//! The calls that are made: all of them, and no others can be. They are made by path, without the
//! generated client, which could do everything.

use tonic::codegen::http::uri::PathAndQuery;

/// What a runtime says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Runtime {
    /// RuntimeName: `containerd`, `cri-o`.
    pub(super) name: String,
    /// RuntimeVersion, without the `v` that some write: `1.7.24`.
    pub(super) version: String,
}

/// A call of the RuntimeService.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// As the protocol names it.
    pub(super) name: &'static str,
    path: &'static str,
}

macro_rules! call {
    ($name:literal) => {
        Call { name: $name, path: concat!("/runtime.v1.RuntimeService/", $name) }
    };
}

impl Call {
    pub(super) const VERSION: Self = call!("Version");
    pub(super) const LIST_SANDBOXES: Self = call!("ListPodSandbox");
    pub(super) const LIST_CONTAINERS: Self = call!("ListContainers");
    pub(super) const STREAM_SANDBOXES: Self = call!("StreamPodSandboxes");
    pub(super) const STREAM_CONTAINERS: Self = call!("StreamContainers");
    pub(super) const CONTAINER_STATUS: Self = call!("ContainerStatus");
    pub(super) const SANDBOX_STATUS: Self = call!("PodSandboxStatus");
    /// Only where [`super::events::broadcast`] says so.
    pub(super) const EVENTS: Self = call!("GetContainerEvents");

    /// Its answer is about one container or sandbox.
    pub(super) fn is_about_one(self) -> bool {
        [Self::CONTAINER_STATUS.name, Self::SANDBOX_STATUS.name].contains(&self.name)
    }

    pub(super) fn path(self) -> PathAndQuery {
        PathAndQuery::from_static(self.path)
    }
}
