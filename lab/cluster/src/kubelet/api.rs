//! What the kubelet needs of an apiserver.

use super::translate::PodId;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

/// A change of a pod that is bound to the node.
#[derive(Clone, Debug)]
pub enum PodChange {
    /// There from the beginning, added or modified.
    Applied(Pod),
    /// Its object is gone; the last state.
    Gone(Pod),
}

/// An apiserver, as the kubelet uses it.
pub trait Api: Send + Sync + 'static {
    /// All pods of the node, then their changes, for ever.
    fn watch(&self, node: &str) -> mpsc::UnboundedReceiver<PodChange>;

    /// Replaces the status, if the object with this very UID, or its mirror, is still there.
    fn replace_status(&self, pod: &PodId, status: &PodStatus);

    /// DELETE with a grace of 0 and the UID as precondition: the kubelet's last word. Gives the moment at which it is
    /// done; its end without one: the object is gone already.
    fn delete_for_good(&self, pod: &PodId) -> oneshot::Receiver<()>;

    /// Creates an Event of core/v1.
    fn post_event(&self, event: Value);

    /// Creates a static pod's mirror.
    fn create_mirror(&self, mirror: &Pod);
}
