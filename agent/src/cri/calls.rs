//! The calls that are made: all of them, and no others can be. They are made by path, without the
//! generated client, which could do everything.

use tonic::codegen::http::uri::PathAndQuery;

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
    pub(super) const CONTAINER_STATUS: Self = call!("ContainerStatus");
    pub(super) const SANDBOX_STATUS: Self = call!("PodSandboxStatus");

    pub(super) fn path(self) -> PathAndQuery {
        PathAndQuery::from_static(self.path)
    }
}
