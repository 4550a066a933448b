//! What the others say, as they say it: the runtime, listed once a second, and the apiserver's watch.

use super::observer::ObservedMoment;
use coroner_cri_api::v1::{
    ContainerState, ContainerStatusRequest, ContainerStatusResponse, ListContainersRequest,
};
use coroner_lab_cluster::kubelet::{Cri, START_FAILED, api::PodChange};
use coroner_lab_scenarios::death_mode::CONTAINER;
use coroner_workload::page::boot_now;
use k8s_openapi::api::core::v1::Pod;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinHandle, time::MissedTickBehavior};

/// The kubelet's PLEG lists as often (generic PLEG, `genericPlegRelistPeriod`).
const RELIST: Duration = Duration::from_secs(1);
/// Between two questions for `finished_at`; it is the answer that counts, not its moment.
const ASK: Duration = Duration::from_millis(50);

/// What the apiserver has said of one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Sighting {
    /// The container's id, once it runs.
    pub(super) container: Option<String>,
    /// Why it could not be started.
    pub(super) failure: Option<String>,
    /// terminated.finishedAt, ns since the epoch.
    pub(super) finished_wall: Option<i64>,
    /// When its object went, ns of CLOCK_BOOTTIME.
    pub(super) gone: Option<u64>,
}

/// Listens in the background. Dropped, it stops.
#[derive(Debug)]
pub(super) struct Witness {
    pods: Arc<Mutex<HashMap<String, Sighting>>>,
    lists: Arc<Mutex<Vec<CriList>>>,
    tasks: [JoinHandle<()>; 2],
}

impl Witness {
    pub(super) fn start(changes: mpsc::UnboundedReceiver<PodChange>, cri: Cri) -> Self {
        let pods = Arc::new(Mutex::default());
        let lists = Arc::new(Mutex::default());
        let tasks = [
            tokio::spawn(follow(changes, Arc::clone(&pods))),
            tokio::spawn(relist(cri, Arc::clone(&lists))),
        ];
        Self { pods, lists, tasks }
    }

    pub(super) fn pod(&self, uid: &str) -> Sighting {
        lock(&self.pods).get(uid).cloned().unwrap_or_default()
    }

    /// When the first list after `since` came that does not show this container running.
    pub(super) fn relisted(&self, container: &str, since: u64) -> Option<u64> {
        first_without(&lock(&self.lists), container, since)
    }
}

/// A list of all containers.
#[derive(Debug)]
struct CriList {
    /// When it was there, ns of CLOCK_BOOTTIME.
    at: u64,
    /// Those that ran.
    running: HashSet<String>,
}

/// A PLEG takes a container for dead that it knew and that has exited, or is not there at all.
fn first_without(lists: &[CriList], container: &str, since: u64) -> Option<u64> {
    let mut after = lists.iter().filter(|list| list.at > since);
    after.find(|list| !list.running.contains(container)).map(|list| list.at)
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow(
    mut changes: mpsc::UnboundedReceiver<PodChange>,
    pods: Arc<Mutex<HashMap<String, Sighting>>>,
) {
    while let Some(change) = changes.recv().await {
        let now = boot_now();
        let (PodChange::Applied(pod) | PodChange::Gone(pod)) = &change;
        let Some(uid) = pod.metadata.uid.clone() else { continue };
        let mut pods = lock(&pods);
        let known = pods.entry(uid).or_default();
        learn(known, pod);
        if matches!(change, PodChange::Gone(_)) {
            known.gone = Some(now);
        }
    }
}

fn learn(known: &mut Sighting, pod: &Pod) {
    let Some(status) = &pod.status else { return };
    if status.reason.as_deref() == Some(START_FAILED) {
        known.failure = Some(status.message.clone().unwrap_or_default());
    }
    let statuses = status.container_statuses.iter().flatten();
    for container in statuses.filter(|container| container.name == CONTAINER) {
        if let Some((_, id)) = container.container_id.as_ref().and_then(|id| id.split_once("://")) {
            known.container = Some(id.into());
        }
        let ended = container.state.as_ref().and_then(|state| state.terminated.as_ref());
        if let Some(finished) = ended.and_then(|ended| ended.finished_at.as_ref()) {
            known.finished_wall = i64::try_from(finished.0.as_nanosecond()).ok();
        }
    }
}

/// What a PLEG sees.
async fn relist(mut cri: Cri, lists: Arc<Mutex<Vec<CriList>>>) {
    let mut beat = tokio::time::interval(RELIST);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let Ok(answer) = cri.list_containers(ListContainersRequest::default()).await else {
            continue;
        };
        let at = boot_now();
        let running = answer
            .into_inner()
            .containers
            .into_iter()
            .filter(|container| container.state == ContainerState::ContainerRunning as i32)
            .map(|container| container.id)
            .collect();
        lock(&lists).push(CriList { at, running });
    }
}

/// ContainerStatus, with what the runtime says beyond the protocol.
pub(super) async fn status(
    cri: &Cri,
    container: &str,
) -> Result<ContainerStatusResponse, tonic::Status> {
    let request = ContainerStatusRequest { container_id: container.into(), verbose: true };
    Ok(cri.clone().container_status(request).await?.into_inner())
}

/// `finished_at` as soon as the runtime knows it; `None` once it has forgotten the container.
pub(super) async fn finished(cri: &Cri, container: &str, near: ObservedMoment) -> Option<u64> {
    loop {
        let request = ContainerStatusRequest { container_id: container.into(), verbose: false };
        let status = cri.clone().container_status(request).await.ok()?.into_inner().status?;
        if status.state == ContainerState::ContainerExited as i32 {
            return near.boot_at(status.finished_at);
        }
        tokio::time::sleep(ASK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_list_without_it_counts() {
        let list = |at, running: &[&str]| CriList {
            at,
            running: running.iter().map(|id| (*id).to_owned()).collect(),
        };
        let lists = [list(1, &[]), list(2, &["a", "b"]), list(3, &["a"]), list(4, &[])];
        assert_eq!(first_without(&lists, "a", 2), Some(4));
        assert_eq!(first_without(&lists, "b", 2), Some(3), "gone is dead as well");
        assert_eq!(first_without(&lists, "a", 4), None);
    }
}
