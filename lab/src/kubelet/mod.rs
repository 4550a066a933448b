//! A small kubelet: drives the real CRI in the real one's order and with its arithmetic.
//!
//! Facts → decision → effect: [`grace`], [`order`], [`translate`], [`status`] and [`gc`] decide and
//! are pure; [`stop`], [`worker`](self) and [`cgroup`] act.
//!
//! What it leaves out: images (imported beforehand), volumes other than hostPath, probes, networks
//! (all pods use the host's), plain init containers, and restarts: a container that ended stays
//! ended, whatever the restart policy says.

pub mod api;
pub mod cgroup;
pub mod gc;
pub mod grace;
mod local;
pub mod order;
pub mod status;
pub mod stop;
pub mod translate;
mod worker;

use api::{Api, Change};
use cgroup::Cgroups;
use k8s_cri::v1::{
    ListContainersRequest, ListPodSandboxRequest, PodSandboxState, RemovePodSandboxRequest,
    StopPodSandboxRequest, runtime_service_client::RuntimeServiceClient,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Semaphore, watch},
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use tonic::transport::Channel;
use translate::PodId;
pub use worker::START_FAILED;
use worker::{Wanted, Worker};

/// The kubelet's line to the container runtime; clones share one connection.
pub type Cri = RuntimeServiceClient<Channel>;

/// What the kubelet is asked to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name.
    pub node: String,
    /// The address that its pods report.
    pub node_ip: String,
    /// Where the runtime writes the containers' logs: a directory for each pod.
    pub log_root: PathBuf,
    /// How long it takes from the watch event to the first act of stopping. Real ones: 0.1 to
    /// 0.9 s (FACTS §7).
    pub reaction: Duration,
    /// How often the runtime is asked what has changed (the PLEG's relist).
    pub relist: Duration,
    /// How often sandboxes are collected. Real ones: 60 s.
    pub collect: Duration,
    /// How many pods may start at once.
    pub parallel_starts: usize,
}

impl Config {
    /// The lab's own pace: as the real one's, but for the collector, for which nobody wants to
    /// wait a minute.
    pub fn new(node: &str, log_root: PathBuf) -> Self {
        Self {
            node: node.into(),
            node_ip: "127.0.0.1".into(),
            log_root,
            reaction: Duration::from_millis(150),
            relist: Duration::from_secs(1),
            collect: Duration::from_secs(2),
            parallel_starts: 4,
        }
    }
}

/// What all workers share.
struct Shared {
    config: Config,
    cri: Cri,
    api: Arc<dyn Api>,
    cgroups: Cgroups,
    starts: Arc<Semaphore>,
    epoch: Instant,
}

impl Shared {
    /// Sleeps until the next relist: one beat for all pods.
    async fn next_relist(&self) {
        let beat = self.config.relist.as_nanos().max(1);
        let into = self.epoch.elapsed().as_nanos() % beat;
        let left = u64::try_from(beat - into).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_nanos(left)).await;
    }
}

/// A running kubelet. Dropped, it lets go of everything at once and leaves the pods as they are.
#[derive(Debug)]
pub struct Kubelet {
    task: JoinHandle<()>,
}

impl Kubelet {
    /// Starts: from now on every pod that is bound to the node is run.
    pub fn start(config: Config, cri: Cri, api: Arc<dyn Api>, cgroups: Cgroups) -> Self {
        let starts = Arc::new(Semaphore::new(config.parallel_starts));
        let shared = Arc::new(Shared { config, cri, api, cgroups, starts, epoch: Instant::now() });
        Self { task: tokio::spawn(run(shared)) }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A pod that the kubelet knows. Forgotten when its worker has finished and its object is gone:
/// the last changes of the object come after the worker's end, and must not begin a new life.
struct Known {
    tell: watch::Sender<Wanted>,
    finished: bool,
}

async fn run(shared: Arc<Shared>) {
    let mut changes = shared.api.watch(&shared.config.node);
    let mut pods: BTreeMap<String, Known> = BTreeMap::new();
    let mut workers = JoinSet::new();
    let mut collect = tokio::time::interval(shared.config.collect);
    loop {
        tokio::select! {
            change = changes.recv() => {
                let Some(change) = change else { return };
                let (pod, gone) = match change {
                    Change::Applied(pod) => (pod, false),
                    Change::Gone(pod) => (pod, true),
                };
                let Some(id) = PodId::of(&pod) else { continue };
                if let Some(known) = pods.get(&id.uid) {
                    let _ = known.tell.send(Wanted { pod, gone });
                    if gone && known.finished {
                        pods.remove(&id.uid);
                    }
                } else if !gone {
                    let (tell, wanted) = watch::channel(Wanted { pod, gone });
                    pods.insert(id.uid.clone(), Known { tell, finished: false });
                    let worker = Worker::new(shared.clone(), id.clone(), wanted);
                    workers.spawn(async move {
                        worker.run().await;
                        id.uid
                    });
                }
            }
            Some(ended) = workers.join_next() => match ended {
                Ok(uid) => {
                    if let Some(known) = pods.get_mut(&uid) {
                        known.finished = true;
                        if known.tell.borrow().gone {
                            pods.remove(&uid);
                        }
                    }
                }
                Err(error) => tracing::error!(%error, "a pod's worker failed"),
            },
            _ = collect.tick() => {
                if let Err(error) = collect_sandboxes(&shared, &pods).await {
                    tracing::warn!(error = format!("{error:#}"), "collecting sandboxes");
                }
            }
        }
    }
}

/// kuberuntime_gc.go, `evictSandboxes`: stops each once more before it removes it.
async fn collect_sandboxes(
    shared: &Shared,
    pods: &BTreeMap<String, Known>,
) -> Result<(), tonic::Status> {
    let mut cri = shared.cri.clone();
    let listed = cri.list_pod_sandbox(ListPodSandboxRequest::default()).await?.into_inner().items;
    let sandboxes: Vec<gc::Sandbox> = listed
        .into_iter()
        .map(|sandbox| gc::Sandbox {
            pod: sandbox.metadata.map(|metadata| metadata.uid).unwrap_or_default(),
            ready: sandbox.state == PodSandboxState::SandboxReady as i32,
            created: sandbox.created_at,
            id: sandbox.id,
        })
        .collect();
    if sandboxes.iter().all(|sandbox| sandbox.ready) {
        return Ok(());
    }
    let occupied: BTreeSet<String> = cri
        .list_containers(ListContainersRequest::default())
        .await?
        .into_inner()
        .containers
        .into_iter()
        .map(|container| container.pod_sandbox_id)
        .collect();
    for id in gc::evictable(&sandboxes, &occupied, |pod| !pods.contains_key(pod)) {
        cri.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: id.into() }).await?;
        cri.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: id.into() }).await?;
    }
    Ok(())
}
