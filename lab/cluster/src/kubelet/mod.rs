//! A small kubelet: drives the real CRI in the real one's order and with its arithmetic.
//!
//! Facts → decision → effect: [`grace`], [`order`], [`restart`], [`translate`], [`status`] and [`gc`]
//! decide and are pure; [`stop`], [`hook`], [`probe`], [`worker`](self), [`housekeeping`] and
//! [`cgroup`] act.
//!
//! What it leaves out: images (imported beforehand), volumes other than hostPath and emptyDir,
//! readiness probes and probes over gRPC, and plain init containers.

pub mod api;
pub mod cgroup;
mod containers;
pub mod gc;
pub mod grace;
pub mod hook;
pub mod housekeeping;
mod klog;
mod local;
mod manager;
pub mod order;
mod probe;
pub mod record;
pub mod restart;
pub mod security;
pub mod status;
mod stop;
pub mod translate;
mod worker;

use crate::network::Network;
use anyhow::Context as _;
use api::Api;
use cgroup::Cgroups;
pub use containers::main_pid;
use coroner_cri_api::v1::runtime_service_client::RuntimeServiceClient;
use housekeeping::{Come, HousekeepingMoment};
use k8s_openapi::api::core::v1::Pod;
use klog::{KubeletLog, PodLog};
pub use local::Local;
use record::{KubeletRecord, StopCall};
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, OwnedMutexGuard, Semaphore, mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};
use tonic::transport::Channel;
use translate::PodId;
pub use worker::{PodEnding, START_FAILED};

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
    /// Where containers of pods on the host's network are told that the apiserver is.
    pub apiserver: Option<SocketAddr>,
    /// Where those of all others are.
    pub service: Option<SocketAddr>,
    /// The node's side of the pods' network: where hooks and probes come from.
    pub network: Option<Network>,
    /// How long it takes from the watch event to the first act of stopping. Real ones: 0.1 to
    /// 0.9 s (FACTS §7).
    pub reaction: Duration,
    /// How often the runtime is asked what has changed (the PLEG's relist).
    pub relist: Duration,
    /// How often sandboxes are collected. Real ones: 60 s.
    pub collect: Duration,
    /// How often it looks for what runs though its pod is gone (`housekeepingPeriod`).
    pub housekeeping: Duration,
    /// The version whose bugs it has.
    pub version: String,
    /// How many pods may start at once.
    pub parallel_starts: usize,
    /// Where its log goes; `None`: nowhere.
    pub log: Option<PathBuf>,
}

/// The version of the lab's kubelet where nobody says otherwise: of the last minor version that
/// has the bug of [`housekeeping`].
pub const VERSION: &str = "v1.26.15";

impl Config {
    /// The lab's own pace: as the real one's, but for the collector, for which nobody wants to
    /// wait a minute.
    pub fn new(node: &str, log_root: PathBuf) -> Self {
        Self {
            node: node.into(),
            node_ip: "127.0.0.1".into(),
            log_root,
            apiserver: None,
            service: None,
            network: None,
            reaction: Duration::from_millis(150),
            relist: Duration::from_secs(1),
            collect: Duration::from_secs(1),
            housekeeping: Duration::from_secs(2),
            version: VERSION.into(),
            parallel_starts: 4,
            log: None,
        }
    }

    /// The node's addresses, from which its probes come, separated by commas.
    fn host_ips(&self) -> String {
        let addresses = self.network.as_ref().and_then(Network::addresses);
        addresses.map_or_else(
            || self.node_ip.clone(),
            |of| match of.v6 {
                Some(v6) => format!("{},{v6}", of.v4),
                None => of.v4.to_string(),
            },
        )
    }
}

/// What all workers share.
struct KubeletShared {
    config: Config,
    cri: Cri,
    api: Arc<dyn Api>,
    cgroups: Cgroups,
    starts: Arc<Semaphore>,
    record: KubeletRecord,
    epoch: Instant,
    log: KubeletLog,
}

impl KubeletShared {
    /// What it says of a pod.
    fn pod_log(&self, pod: &PodId) -> PodLog {
        PodLog::new(self.log.clone(), self.api.clone(), self.config.node.clone(), pod.clone())
    }

    /// DELETE with a grace of 0, and what the kubelet then says.
    fn delete_for_good(&self, pod: &PodId, says: &'static str) {
        let (done, log) = (self.api.delete_for_good(pod), self.pod_log(pod));
        tokio::spawn(async move {
            if done.await.is_ok() {
                log.info(says);
            }
        });
    }

    /// Sleeps until the next relist: one beat for all pods.
    async fn next_relist(&self) {
        let beat = self.config.relist.as_nanos().max(1);
        let into = self.epoch.elapsed().as_nanos() % beat;
        let left = u64::try_from(beat - into).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_nanos(left)).await;
    }
}

/// What the kubelet is told by its own node, not by the apiserver.
#[derive(Debug)]
enum KubeletOrder {
    /// A manifest appeared in its directory; as a static pod already.
    AddStatic(Box<Pod>),
    /// The manifest of the static pod with this UID is gone.
    RemoveStatic(String),
    /// The pod with this UID is to end.
    End(String, PodEnding),
    /// The runtime cache is read just now, and shows the pod with this UID until the housekeeping
    /// that follows the end of its object.
    Cache(String, Come),
    /// The containers of the pod with this UID cannot be removed.
    KeepContainers(String),
    /// What the probes of the pod with this UID find changes nothing any more.
    IgnoreProbes(String),
    /// What to lock so that the pod with this UID is not looked at.
    Pause(String, oneshot::Sender<Arc<Mutex<()>>>),
    /// From now on it is a kubelet of this version.
    Version(String),
}

/// A running kubelet. Dropped, it lets go of everything at once and leaves the pods as they are.
#[derive(Debug)]
pub struct Kubelet {
    node: String,
    record: KubeletRecord,
    orders: mpsc::UnboundedSender<KubeletOrder>,
    task: JoinHandle<()>,
}

impl Kubelet {
    /// Starts: from now on every pod that is bound to the node is run.
    pub fn start(
        config: Config,
        cri: Cri,
        api: Arc<dyn Api>,
        cgroups: Cgroups,
    ) -> anyhow::Result<Self> {
        let log = config.log.clone().map(KubeletLog::to).transpose();
        let log = log.context("cannot write the kubelet's log")?.unwrap_or_default();
        log.info("Kubelet version", format_args!("kubeletVersion={:?}", config.version));
        let starts = Arc::new(Semaphore::new(config.parallel_starts));
        let node = config.node.clone();
        let record = KubeletRecord::default();
        let (own, epoch) = (record.clone(), Instant::now());
        let shared =
            Arc::new(KubeletShared { config, cri, api, cgroups, starts, record: own, epoch, log });
        let (orders, ordered) = mpsc::unbounded_channel();
        Ok(Self { node, record, orders, task: tokio::spawn(manager::run(shared, ordered)) })
    }

    /// How it stopped the container with this id: its attempts, the oldest first.
    pub fn stops(&self, container: &str) -> Vec<StopCall> {
        self.record.stops(container)
    }

    /// How it stopped all containers so far, by their ids.
    pub fn record(&self) -> BTreeMap<String, Vec<StopCall>> {
        self.record.all()
    }

    /// Puts a manifest into the kubelet's directory. Gives the pod that it becomes; the same
    /// manifest gives the same UID again.
    pub fn add_static(&self, manifest: &Pod) -> Pod {
        let pod = translate::static_pod(manifest, &self.node);
        self.order(KubeletOrder::AddStatic(Box::new(pod.clone())));
        pod
    }

    /// Takes a static pod's manifest away.
    pub fn remove_static(&self, uid: &str) {
        self.order(KubeletOrder::RemoveStatic(uid.into()));
    }

    /// Has the kubelet end a pod by itself, as it does where the node is short of something or
    /// shuts down.
    pub fn end(&self, uid: &str, ending: PodEnding) {
        self.order(KubeletOrder::End(uid.into(), ending));
    }

    /// Has its runtime cache be read just now, as a request for `/runningpods/` or
    /// `/stats/summary` does, and still show the pod as running when the housekeeping after the
    /// end of its object looks at it. Gives that moment.
    pub fn cache(&self, uid: &str) -> HousekeepingMoment {
        let (come, moment) = HousekeepingMoment::new();
        self.order(KubeletOrder::Cache(uid.into(), come));
        moment
    }

    /// Has it fail to remove the pod's containers, as where the runtime does not do it: in the
    /// collector's eyes they keep the sandbox.
    pub fn keep_containers(&self, uid: &str) {
        self.order(KubeletOrder::KeepContainers(uid.into()));
    }

    /// Has what the pod's probes find change nothing any more: it has become healthy.
    pub fn ignore_probes(&self, uid: &str) {
        self.order(KubeletOrder::IgnoreProbes(uid.into()));
    }

    /// Does not look at a pod as long as that is held: what is done to the pod meanwhile is done between two
    /// relists.
    pub async fn pause(&self, uid: &str) -> anyhow::Result<OwnedMutexGuard<()>> {
        let (tell, looking) = oneshot::channel();
        self.order(KubeletOrder::Pause(uid.into(), tell));
        Ok(looking.await.context("the lab's kubelet does not know the pod")?.lock_owned().await)
    }

    /// Becomes a kubelet of another version, with that one's bugs.
    pub fn set_version(&self, version: &str) {
        self.order(KubeletOrder::Version(version.into()));
    }

    fn order(&self, order: KubeletOrder) {
        // Its reader lives as long as this does, unless it panicked; then nothing is run any more.
        if self.orders.send(order).is_err() {
            tracing::error!("the lab's kubelet is dead");
        }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}
