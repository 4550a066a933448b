//! Each list names the same sandboxes, pods and containers as the last one. Their ids are kept once:
//! a full node's list would otherwise bring some thousand small pieces of memory, and the core would
//! give them all back a moment later.

use super::Poller;
use coroner_core::input::{CriContainer, CriSandbox};

impl Poller {
    /// The sandbox with the ids of the last list, where they are the same.
    pub(super) fn sharing_sandbox(&self, mut sandbox: CriSandbox) -> CriSandbox {
        if let Some((id, pod)) = self.sandboxes.get_key_value(&sandbox.id) {
            sandbox.id = id.clone();
            if sandbox.pod == *pod {
                sandbox.pod = pod.clone();
            }
        }
        sandbox
    }

    /// The container with the ids of the last list, and of its sandbox.
    pub(super) fn sharing_container(&self, mut container: CriContainer) -> CriContainer {
        if let Some((id, _)) = self.containers.get_key_value(&container.id) {
            container.id = id.clone();
        }
        if let Some((sandbox, pod)) = self.sandboxes.get_key_value(&container.sandbox) {
            container.sandbox = sandbox.clone();
            if container.pod.as_ref() == Some(pod) {
                container.pod = Some(pod.clone());
            }
        }
        container
    }
}
