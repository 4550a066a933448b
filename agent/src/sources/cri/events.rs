//! The runtime's container events, as a hint to look at a sandbox now. All that is known still comes
//! from the lists: whether events come, are lost or end makes no difference but a little time.
//!
//! **Invariant.** Only runtimes that send every event to every subscriber are subscribed to. In
//! containerd before 2.0 and CRI-O before 1.28 all subscribers read from one Go channel: what one
//! is sent the others (the kubelet's Evented PLEG) never see.
//!
//! What a subscription costs, even so. containerd (`internal/eventq`) holds 100 events for a
//! subscriber that does not read, then waits for it in the middle of its work: so the events are
//! read by a task that does nothing else, never waits, and ends with the connection. And it keeps
//! events for five minutes while nobody is subscribed, for who comes first: a kubelet with Evented
//! PLEG that comes second finds them gone, and relists, as it does on its own start.

use super::{CriCounters, calls::Runtime, pending::PendingRequests};
use crate::linux::clock;
use coroner_core::ids::SandboxId;
use std::sync::atomic::Ordering;
use tonic::{Code, Status, Streaming};
use tracing::debug;

/// ContainerEventResponse, cut down to whom it is about.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerEvent {
    #[prost(string, tag = "1")]
    container_id: String,
    /// ns since the epoch.
    #[prost(int64, tag = "3")]
    created_at: i64,
    /// Not set once the sandbox is removed.
    #[prost(message, optional, tag = "4")]
    sandbox: Option<EventSandbox>,
}

/// PodSandboxStatus, cut down.
#[derive(Clone, PartialEq, prost::Message)]
struct EventSandbox {
    #[prost(string, tag = "1")]
    id: String,
}

impl ContainerEvent {
    /// Whom to look at. In the last event of a sandbox the container is the sandbox itself
    /// (containerd, `internal/cri/server/sandbox_remove.go`).
    fn sandbox(self) -> Option<SandboxId> {
        let id = self.sandbox.map(|sandbox| sandbox.id).unwrap_or_default();
        let id = if id.is_empty() { self.container_id } else { id };
        (!id.is_empty()).then(|| SandboxId::new(id))
    }
}

/// Whether this runtime sends every event to every subscriber. Unknown runtimes and versions do
/// not.
pub(super) fn broadcast(runtime: &Runtime) -> bool {
    let since = match runtime.name.as_str() {
        // The first betas of 2.0 still had the one channel.
        "containerd" if !runtime.version.starts_with("2.0.0-beta") => (2, 0),
        "cri-o" => (1, 28),
        _ => return false,
    };
    release(&runtime.version).is_some_and(|release| release >= since)
}

/// Major and minor of a version such as `1.7.24`, `2.1.9~ds1` or `1.28.4+k3s1`.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?;
    let digits = minor.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(minor.len());
    Some((major, minor[..digits].parse().ok()?))
}

/// Turns events into requests until the stream ends; after that they are not requested again on
/// this connection.
pub(super) async fn follow(
    subscription: impl Future<Output = Result<Streaming<ContainerEvent>, Status>>,
    pending: &PendingRequests,
    counters: &CriCounters,
) {
    let mut heard = 0_u64;
    match listen(subscription, pending, &mut heard).await {
        Ok(()) if heard == 0 => {
            debug!("the runtime has container events disabled (CRI-O: enable_pod_events)");
        }
        Ok(()) => {
            debug!(heard, "the runtime closed the container event stream; continuing with polling")
        }
        Err(status) => {
            if status.code() != Code::Unimplemented {
                counters.errors.fetch_add(1, Ordering::Relaxed);
            }
            debug!(heard, %status, "container event stream failed; continuing with polling");
        }
    }
}

async fn listen(
    subscription: impl Future<Output = Result<Streaming<ContainerEvent>, Status>>,
    pending: &PendingRequests,
    heard: &mut u64,
) -> Result<(), Status> {
    let since = clock::anchor().wall_ns;
    let mut kept = true;
    let mut events = subscription.await?;
    while let Some(event) = events.message().await? {
        *heard += 1;
        // What containerd kept from before is in the full list that a connection begins with.
        kept &= event.created_at < since;
        if kept {
            continue;
        }
        if let Some(sandbox) = event.sandbox() {
            pending.hint(sandbox);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_that_broadcast() {
        for (name, version, expected) in [
            ("containerd", "1.4.13~ds1", false),
            ("containerd", "1.6.20~ds1", false),
            ("containerd", "1.7.27", false),
            ("containerd", "1.7.11-k3s2", false),
            ("containerd", "2.0.0-beta.0", false),
            ("containerd", "2.0.0-rc.1", true),
            ("containerd", "2.0.0", true),
            ("containerd", "2.1.9~ds1", true),
            ("containerd", "2.2", true),
            ("containerd", "10.0.0", true),
            ("cri-o", "1.9.1", false),
            ("cri-o", "1.27.8", false),
            ("cri-o", "1.28.0", true),
            ("cri-o", "1.36.0-dev", true),
            ("cri-o", "2.0", true),
            ("docker", "28.1.0", false),
            ("Containerd", "2.1.9", false),
            ("containerd", "", false),
            ("containerd", "2", false),
            ("containerd", "2.x", false),
            ("containerd", "two.1", false),
            ("containerd", "99999999999999.1", false),
        ] {
            let runtime = Runtime { name: name.into(), version: version.into() };
            assert_eq!(broadcast(&runtime), expected, "{name} {version}");
        }
    }
}
