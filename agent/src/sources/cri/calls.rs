//! The calls that are made: all of them, and no others can be. They are made by path, without the
//! generated client, which could do everything.

//!
//! **Both versions of the protocol are one on the wire.** v1 began as a copy of v1alpha2: it differs
//! in the name of its package, in calls and in fields that were added, and no field has another number
//! or type (`cri-api/tests/versions.rs` compares the protos). containerd 1.6 itself serves v1alpha2 by
//! unmarshalling the bytes of either as the other (`pkg/cri/server/instrumented_service.go`,
//! `alphaReqToV1Req`). So the same messages serve for both, and what v1alpha2 does not send is not set.

use tonic::codegen::http::uri::PathAndQuery;

/// A version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    /// containerd from 1.6, CRI-O from 1.23.
    V1,
    /// All that is older; containerd and CRI-O spoke it beside v1 for some releases.
    V1Alpha2,
}

impl Version {
    /// As the protocol names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Alpha2 => "v1alpha2",
        }
    }
}

/// What a runtime says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Runtime {
    /// RuntimeName: `containerd`, `cri-o`.
    pub(super) name: String,
    /// RuntimeVersion, without the `v` that some write: `1.7.24`.
    pub(super) version: String,
    /// The version of the protocol that is spoken with it from now on.
    pub(super) speaks: Version,
}

/// A call of the RuntimeService.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// As the protocol names it.
    pub(super) name: &'static str,
    v1: &'static str,
    v1alpha2: &'static str,
}

macro_rules! call {
    ($name:literal) => {
        Call {
            name: $name,
            v1: concat!("/runtime.v1.RuntimeService/", $name),
            v1alpha2: concat!("/runtime.v1alpha2.RuntimeService/", $name),
        }
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

    pub(super) fn path(self, version: Version) -> PathAndQuery {
        PathAndQuery::from_static(match version {
            Version::V1 => self.v1,
            Version::V1Alpha2 => self.v1alpha2,
        })
    }
}
