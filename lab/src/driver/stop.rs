//! Stopping a pod's containers: preStop, the sidecars' turn, StopContainer (kuberuntime_container.go, `killContainer`);
//! the order of kuberuntime_termination_order.go; and a record of each call, with which the agent's report is compared.

use super::{
    events::Events,
    hook::{self, Reach},
};
use crate::{boot_now, wait::LIMIT};
use coroner_cri_api::v1::StopContainerRequest;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::watch, task::JoinSet, time::timeout};

/// What StopContainer is given at least, seconds (`minimumGracePeriodInSeconds`, kuberuntime_manager.go).
const STOP_FLOOR: i64 = 2;
/// What a pod is given at least, seconds (pod_workers.go, `calculateEffectiveGracePeriod`).
const POD_FLOOR: i64 = 1;
/// terminationGracePeriodSeconds, if the spec has none.
const DEFAULT_GRACE: i64 = 30;

/// The grace in force, seconds: the delete request's, else the spec's.
pub(super) fn grace_in_force(of_delete: Option<i64>, of_spec: Option<i64>) -> i64 {
    of_delete.or(of_spec).unwrap_or(DEFAULT_GRACE).max(POD_FLOOR)
}

pub(super) fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// What is left of `grace` seconds. The kubelet subtracts whole seconds, truncated.
fn left(grace: i64, since: Instant) -> i64 {
    grace.saturating_sub(i64::try_from(since.elapsed().as_secs()).unwrap_or(i64::MAX))
}

/// The containers that run along the pod's life, in the order of their start: native sidecars first.
pub(super) fn start_order(spec: &PodSpec) -> Vec<&Container> {
    sidecars(spec).chain(&spec.containers).collect()
}

fn sidecars(spec: &PodSpec) -> impl DoubleEndedIterator<Item = &Container> {
    let inits = spec.init_containers.iter().flatten();
    inits.filter(|container| container.restart_policy.as_deref() == Some("Always"))
}

/// For each sidecar the containers that must be gone before its StopContainer: every main container, and every sidecar
/// that started after it.
fn waits_for(spec: &PodSpec) -> BTreeMap<String, BTreeSet<String>> {
    let mut before: BTreeSet<String> = spec.containers.iter().map(|one| one.name.clone()).collect();
    let mut table = BTreeMap::new();
    for sidecar in sidecars(spec).rev() {
        table.insert(sidecar.name.clone(), before.clone());
        before.insert(sidecar.name.clone());
    }
    table
}

/// One attempt to stop a container; times are ns of CLOCK_BOOTTIME.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StopCall {
    /// The preStop hook was called, and was done; it may be cut off instead.
    pub hook_began: Option<u64>,
    pub hook_done: Option<u64>,
    /// StopContainer was called.
    pub asked: Option<u64>,
    /// Its timeout, seconds.
    pub timeout: Option<i64>,
    /// It was answered: the container had exited. It may fail instead, also where the container exits as it is killed.
    pub done: Option<u64>,
}

/// All attempts by the container's id, the oldest first; clones share them.
#[derive(Clone, Debug, Default)]
pub struct StopRecord(Arc<Mutex<HashMap<String, Vec<StopCall>>>>);

impl StopRecord {
    pub fn of(&self, id: &str) -> Vec<StopCall> {
        self.lock().get(id).cloned().unwrap_or_default()
    }

    pub fn all(&self) -> BTreeMap<String, Vec<StopCall>> {
        self.lock().clone().into_iter().collect()
    }

    fn begin(&self, id: &str) {
        self.lock().entry(id.to_owned()).or_default().push(StopCall::default());
    }

    /// Of the last attempt.
    fn note(&self, id: &str, what: impl FnOnce(&mut StopCall)) {
        if let Some(stop) = self.lock().get_mut(id).and_then(|stops| stops.last_mut()) {
            what(stop);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<StopCall>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What stops a pod's containers; clones are of the same pod.
#[derive(Clone)]
pub(super) struct Stopper {
    pub(super) pod: Reach,
    pub(super) record: StopRecord,
    pub(super) events: Events,
    pub(super) spec: PodSpec,
}

/// A container waits until these are gone.
pub(super) struct Turn {
    after: BTreeSet<String>,
    gone: watch::Receiver<BTreeSet<String>>,
}

impl Stopper {
    /// Stops all `running` containers (name → id) at once, each in its turn. Returns when all are gone; the first error
    /// otherwise.
    pub(super) async fn all(
        &self,
        running: &BTreeMap<String, String>,
        grace: i64,
    ) -> anyhow::Result<()> {
        let mut turns = waits_for(&self.spec);
        let (gone, _) = watch::channel(BTreeSet::<String>::new());
        let mut stops = JoinSet::new();
        for (name, id) in running.clone() {
            let mut after = turns.remove(&name).unwrap_or_default();
            after.retain(|name| running.contains_key(name));
            let (own, gone) = (self.clone(), gone.clone());
            stops.spawn(async move {
                own.events.post(&name, "Killing", &format!("Stopping container {name}"));
                let turn = Turn { after, gone: gone.subscribe() };
                let stopped = own.one(&name, &id, grace, Some(turn)).await;
                gone.send_modify(|gone| _ = gone.insert(name));
                stopped
            });
        }
        let mut result = Ok(());
        while let Some(joined) = stops.join_next().await {
            result = result.and(joined.map_err(anyhow::Error::from).and_then(|stopped| stopped));
        }
        result
    }

    /// Stops one container, within `grace` seconds and the floor.
    pub(super) async fn one(
        &self,
        name: &str,
        id: &str,
        grace: i64,
        turn: Option<Turn>,
    ) -> anyhow::Result<()> {
        let mut rest = grace;
        self.record.begin(id);
        let container = start_order(&self.spec).into_iter().find(|one| one.name == name);
        let hook = container.and_then(|one| one.lifecycle.as_ref()?.pre_stop.as_ref());
        if let Some(hook) = hook.filter(|_| rest > 0) {
            let began = Instant::now();
            self.record.note(id, |stop| stop.hook_began = Some(boot_now()));
            let ended = timeout(seconds(rest), hook::run(&self.pod, id, hook)).await;
            if let Ok(Err(error)) = &ended {
                self.events.post(
                    name,
                    "FailedPreStopHook",
                    &format!("PreStopHook failed: {error:#}"),
                );
            }
            if ended.is_ok() {
                self.record.note(id, |stop| stop.hook_done = Some(boot_now()));
            }
            rest = left(rest, began);
        }
        if let Some(Turn { after, mut gone }) = turn.filter(|_| rest > 0) {
            let began = Instant::now();
            let all_gone = gone.wait_for(|gone| after.is_subset(gone));
            let _ = timeout(seconds(rest), all_gone).await;
            rest = left(rest, began);
        }
        let limit = rest.max(STOP_FLOOR);
        self.record.note(id, |stop| (stop.asked, stop.timeout) = (Some(boot_now()), Some(limit)));
        let mut cri = self.pod.cri.clone();
        let request = StopContainerRequest { container_id: id.to_owned(), timeout: limit };
        // The kubelet's `runtimeRequestTimeout` is 120 s, too.
        let answer = timeout(seconds(limit) + LIMIT, cri.stop_container(request)).await?;
        match answer {
            Err(status) if status.code() != tonic::Code::NotFound => {
                anyhow::bail!("StopContainer {name}: {}", status.message())
            }
            _ => self.record.note(id, |stop| stop.done = Some(boot_now())),
        }
        Ok(())
    }
}
