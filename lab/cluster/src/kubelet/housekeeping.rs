//! The kubelet's housekeeping (kubelet_pods.go, `HandlePodCleanups`), as far as it concerns pods
//! whose object is gone: what still runs of them is killed, by a worker that knows no more of the
//! pod than its containers.
//!
//! Up to 1.26 the kubelet takes what runs from a cache that may be two seconds old, so that it
//! kills once more a pod that ended a moment ago. Where the runtime fails just then, the worker
//! stays in terminating for good and the collector passes the pod's sandbox by: kubernetes#107730.

use super::Cri;
use coroner_cri_api::v1::{
    ContainerFilter, ListContainersRequest, ListPodSandboxRequest, PodSandboxFilter,
    PodSandboxState, PodSandboxStateValue, StopContainerRequest, StopPodSandboxRequest,
};
use std::collections::HashMap;
use tokio::sync::oneshot;

/// The first minor version of Kubernetes 1 whose housekeeping asks the runtime itself
/// (`ForceUpdateIfOlder`).
const ASKS_ITSELF: u32 = 27;

/// The grace of an orphan's containers, seconds.
const ORPHANS_GRACE: i64 = 1;

/// Whether a kubelet of this version (`v1.26.15`) believes its old cache. One that cannot be read
/// is a new one.
pub fn believes_cache(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split('.');
    let minor = (parts.next() == Some("1")).then(|| parts.next()?.parse::<u32>().ok()).flatten();
    minor.is_some_and(|minor| minor < ASKS_ITSELF)
}

/// What runs of a pod, as the runtime told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RuntimeItems {
    sandboxes: Vec<String>,
    containers: Vec<String>,
}

impl RuntimeItems {
    /// Asks the runtime.
    pub(super) async fn of(cri: &Cri, uid: &str) -> Result<Self, tonic::Status> {
        let labels = HashMap::from([("io.kubernetes.pod.uid".to_owned(), uid.to_owned())]);
        let ready = PodSandboxStateValue { state: PodSandboxState::SandboxReady as i32 };
        let filter = PodSandboxFilter {
            state: Some(ready),
            label_selector: labels.clone(),
            ..Default::default()
        };
        let mut cri = cri.clone();
        let sandboxes =
            cri.list_pod_sandbox(ListPodSandboxRequest { filter: Some(filter) }).await?;
        let filter = ContainerFilter { label_selector: labels, ..Default::default() };
        let containers =
            cri.list_containers(ListContainersRequest { filter: Some(filter) }).await?;
        Ok(Self {
            sandboxes: sandboxes.into_inner().items.into_iter().map(|one| one.id).collect(),
            containers: containers.into_inner().containers.into_iter().map(|one| one.id).collect(),
        })
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.sandboxes.is_empty()
    }

    /// SyncTerminatingPod of an orphan (`SyncPodKill`): tried once.
    pub(super) async fn kill(&self, cri: &Cri) -> Result<(), tonic::Status> {
        let mut cri = cri.clone();
        for id in &self.containers {
            let request = StopContainerRequest { container_id: id.clone(), timeout: ORPHANS_GRACE };
            gone_is_fine(cri.stop_container(request).await.map(drop))?;
        }
        for id in &self.sandboxes {
            let request = StopPodSandboxRequest { pod_sandbox_id: id.clone() };
            gone_is_fine(cri.stop_pod_sandbox(request).await.map(drop))?;
        }
        Ok(())
    }
}

fn gone_is_fine(answer: Result<(), tonic::Status>) -> Result<(), tonic::Status> {
    answer.or_else(
        |status| {
            if status.code() == tonic::Code::NotFound { Ok(()) } else { Err(status) }
        },
    )
}

/// The moment in the housekeeping after a pod's object went: the kubelet has decided what to do
/// about the pod and not yet begun. It waits until this is let go.
#[derive(Debug)]
pub struct HousekeepingMoment(oneshot::Receiver<oneshot::Sender<()>>);

/// Holds the kubelet in its [`HousekeepingMoment`]; dropped, it goes on.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "its end is what tells")] oneshot::Sender<()>);

/// The kubelet's end of a [`HousekeepingMoment`].
#[derive(Debug)]
pub(super) struct Come(oneshot::Sender<oneshot::Sender<()>>);

impl HousekeepingMoment {
    pub(super) fn new() -> (Come, Self) {
        let (come, moment) = oneshot::channel();
        (Come(come), Self(moment))
    }

    /// Waits for it; `None`: the kubelet is gone.
    pub async fn comes(self) -> Option<Held> {
        self.0.await.ok().map(Held)
    }
}

impl Come {
    /// Lets whoever waits use the moment. Nobody may.
    pub(super) async fn pass(self) {
        let (held, let_go) = oneshot::channel();
        if self.0.send(held).is_ok() {
            let _ = let_go.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_before_1_27_believe_their_cache() {
        let table = [
            ("v1.23.10", true),
            ("v1.26.15", true),
            ("v1.27.0", false),
            ("1.36.2+k3s1", false),
            ("v2.1.0", false),
            ("", false),
            ("v1", false),
        ];
        for (version, expected) in table {
            assert_eq!(believes_cache(version), expected, "{version:?}");
        }
    }

    #[tokio::test]
    async fn the_kubelet_waits_in_its_moment_and_for_nobody() {
        let (come, moment) = HousekeepingMoment::new();
        let kubelet = tokio::spawn(come.pass());
        let held = moment.comes().await.unwrap();
        assert!(!kubelet.is_finished());
        drop(held);
        kubelet.await.unwrap();
        let (come, moment) = HousekeepingMoment::new();
        drop(moment);
        come.pass().await;
    }
}
