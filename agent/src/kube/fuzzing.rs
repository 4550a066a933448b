//! Bytes of the apiserver's answers → inputs of the core, as the adapter goes about it: for the
//! fuzz targets (`fuzz/targets`).

use super::{convert, pod::ReducedPod};
use coroner_core::input::{ApiNode, ApiPod};
use k8s_openapi::api::core::v1::Node;
use kube::core::{ObjectList, WatchEvent};

/// The pods of a PodList; `None` stands for one that makes no sense.
pub fn list(body: &[u8]) -> Option<Vec<Option<ApiPod>>> {
    let list: ObjectList<ReducedPod> = serde_json::from_slice(body).ok()?;
    Some(list.items.into_iter().map(|pod| pod.pod).collect())
}

/// The pod of a line of a watch, and whether it is gone.
pub fn event(line: &[u8]) -> Option<(ApiPod, bool)> {
    match serde_json::from_slice(line).ok()? {
        WatchEvent::Added::<ReducedPod>(pod) | WatchEvent::Modified(pod) => Some((pod.pod?, false)),
        WatchEvent::Deleted(pod) => Some((pod.pod?, true)),
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => None,
    }
}

/// A Node.
pub fn node(body: &[u8]) -> Option<ApiNode> {
    convert::node(&serde_json::from_slice::<Node>(body).ok()?)
}
