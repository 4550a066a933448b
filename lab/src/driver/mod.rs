//! The driver of the node: it follows a kubelet's *order* through the CRI for the pods that are bound to the node, from
//! the cgroup to the removal of the sandbox.
//!
//! It has no probes, back-off, eviction, resize or images. What makes a kubelet restart one container of a pod, a
//! scenario states with [`Driver::restart`]; what a kubelet's bug leaves, an annotation of the pod ([`LEAVES`]).

mod cgroup;
mod containers;
mod events;
mod hook;
mod security;
mod status;
mod stop;
mod translate;
mod worker;

pub use cgroup::Cgroups;
pub use containers::main_pid;
pub use security::SECCOMP_PROFILES;
pub use status::START_FAILED;
pub use stop::{StopCall, StopRecord};
pub use translate::{LEAVES, PodId, REACTION_MS, qos_class};

pub(crate) use translate::{Site, container, sandbox};

use crate::{
    apiserver::{ChangeType, DeleteOptions, Kind, Store},
    containerd::{Cri, Network},
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::{JoinHandle, JoinSet},
};
use worker::{Restart, Wanted, Worker};

/// How many pods may start at once.
const STARTS: usize = 4;

#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name.
    pub node: String,
    /// Where the runtime writes the containers' logs: a directory for each pod.
    pub logs: PathBuf,
    /// Where containers of pods on the host's network find the apiserver, and where all others do.
    pub apiserver: SocketAddr,
    pub service: SocketAddr,
    /// The node's side of the pods' network, from which hooks come.
    pub network: Network,
}

/// What all workers share.
#[derive(Debug)]
struct Shared {
    config: Config,
    cri: Cri,
    cgroups: Cgroups,
    store: Store,
    /// Whether the apiserver answers.
    available: watch::Receiver<bool>,
    starts: Arc<Semaphore>,
    record: StopRecord,
    /// How often each UID has had a sandbox.
    attempts: Mutex<HashMap<String, u32>>,
    /// The slowest removal of a pod's remains from the end of its containers on, by UID.
    removals: Mutex<HashMap<String, Duration>>,
}

impl Shared {
    /// Waits while the apiserver is away.
    async fn reachable(&self) {
        let _ = self.available.clone().wait_for(|available| *available).await;
    }

    /// DELETE with grace 0. An object that is gone already, or that another pod has taken the place of, is fine.
    fn delete(&self, pod: &PodId, uid: Option<String>) {
        let options = DeleteOptions { grace: Some(0), uid };
        let _ = self.store.delete(Kind::Pod, &pod.namespace, &pod.name, &options);
    }

    fn next_attempt(&self, uid: &str) -> u32 {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let next = attempts.entry(uid.to_owned()).or_default();
        *next += 1;
        *next - 1
    }

    fn note_removal(&self, uid: &str, began: u64) {
        let took = Duration::from_nanos(crate::boot_now().saturating_sub(began));
        let mut removals = self.removals.lock().unwrap_or_else(PoisonError::into_inner);
        removals.insert(uid.to_owned(), took);
    }
}

#[derive(Debug)]
enum Order {
    /// A manifest appeared in the node's directory; as a static pod already.
    AddStatic(Box<Pod>),
    RemoveStatic(String),
    Restart(String, Restart),
}

/// Runs the pods that are bound to the node. Dropped, it leaves the pods as they are.
#[derive(Debug)]
pub struct Driver {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
    task: JoinHandle<()>,
}

impl Driver {
    pub fn start(
        config: Config,
        cri: Cri,
        cgroups: Cgroups,
        store: Store,
        available: watch::Receiver<bool>,
    ) -> Self {
        let shared = Arc::new(Shared {
            config,
            cri,
            cgroups,
            store,
            available,
            starts: Arc::new(Semaphore::new(STARTS)),
            record: StopRecord::default(),
            attempts: Mutex::default(),
            removals: Mutex::default(),
        });
        let (orders, ordered) = mpsc::unbounded_channel();
        let pods = Pods {
            shared: shared.clone(),
            known: HashMap::new(),
            mirrors: BTreeMap::new(),
            workers: JoinSet::new(),
        };
        Self { shared, orders, task: tokio::spawn(pods.follow(ordered)) }
    }

    /// How containers were stopped.
    pub fn record(&self) -> &StopRecord {
        &self.shared.record
    }

    /// How long the removal of a pod took after its containers had exited; `None`: it is not removed.
    pub fn removal(&self, uid: &str) -> Option<Duration> {
        self.shared.removals.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied()
    }

    /// Puts a manifest into the node's directory. Returns the pod that it becomes.
    pub fn add_static(&self, manifest: &Pod) -> Pod {
        let pod = translate::static_pod(manifest, &self.shared.config.node);
        let _ = self.orders.send(Order::AddStatic(Box::new(pod.clone())));
        pod
    }

    pub fn remove_static(&self, uid: &str) {
        let _ = self.orders.send(Order::RemoveStatic(uid.into()));
    }

    /// Stops one container of a pod that lives on, and starts it again. `message`: of the Event `Killing`.
    pub fn restart(&self, uid: &str, container: &str, message: Option<&str>) {
        let (container, message) = (container.into(), message.map(Into::into));
        let _ = self.orders.send(Order::Restart(uid.into(), Restart { container, message }));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The pods of the node, by UID.
struct Pods {
    shared: Arc<Shared>,
    known: HashMap<String, (watch::Sender<Wanted>, mpsc::UnboundedSender<Restart>)>,
    /// Static pods that are wanted.
    mirrors: BTreeMap<String, Pod>,
    workers: JoinSet<()>,
}

impl Pods {
    async fn follow(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let store = self.shared.store.clone();
        let mut wake = store.subscribe();
        let mut seen = 0;
        let mut relist = true;
        loop {
            self.shared.reachable().await;
            match store.changes_since(seen).ok().filter(|_| !relist) {
                Some(changes) => {
                    for change in changes {
                        seen = change.version;
                        if change.kind == Kind::Pod {
                            self.note(&change.object, change.change == ChangeType::Deleted);
                        }
                    }
                }
                // At the start, or where changes are forgotten.
                None => seen = self.list(),
            }
            relist = false;
            tokio::select! {
                changed = wake.changed() => if changed.is_err() { return },
                order = orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => return,
                },
            }
        }
    }

    fn list(&mut self) -> u64 {
        let (version, pods) = self.shared.store.list(Kind::Pod);
        pods.iter().for_each(|pod| self.note(pod, false));
        let uid = |pod: &Arc<Value>| pod["metadata"]["uid"].as_str().map(str::to_owned);
        let here: BTreeSet<String> = pods.iter().filter_map(uid).collect();
        self.known.retain(|uid, (wanted, _)| {
            let stays = here.contains(uid) || translate::is_static(&wanted.borrow().pod);
            if !stays {
                wanted.send_modify(|wanted| wanted.is_gone = true);
            }
            stays
        });
        version
    }

    fn note(&mut self, object: &Value, is_gone: bool) {
        if object["spec"]["nodeName"] != self.shared.config.node {
            return;
        }
        let Ok(pod) = serde_json::from_value::<Pod>(object.clone()) else { return };
        if let Some(uid) = translate::mirrored(&pod) {
            // A mirror whose deletion was requested is deleted, and comes back while its static pod runs.
            if is_gone && let Some(own) = self.mirrors.get(uid) {
                self.create_mirror(own);
            } else if !is_gone && pod.metadata.deletion_timestamp.is_some() {
                PodId::of(&pod).iter().for_each(|mirror| self.shared.delete(mirror, None));
            }
            return;
        }
        self.want(pod, is_gone);
    }

    fn want(&mut self, pod: Pod, is_gone: bool) {
        let Some(id) = PodId::of(&pod) else { return };
        let uid = id.uid.clone();
        match self.known.get(&uid) {
            Some((wanted, _)) => drop(wanted.send_replace(Wanted { pod, is_gone })),
            None if is_gone => {}
            None => {
                let (wanted, of_worker) = watch::channel(Wanted { pod, is_gone });
                let (restarts, restarted) = mpsc::unbounded_channel();
                let worker = Worker::new(self.shared.clone(), id, of_worker, restarted);
                self.workers.spawn(worker.run());
                self.known.insert(uid.clone(), (wanted, restarts));
            }
        }
        if is_gone {
            self.known.remove(&uid);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::AddStatic(pod) => {
                self.create_mirror(&pod);
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                self.mirrors.insert(uid, Pod::clone(&pod));
                self.want(*pod, false);
            }
            Order::RemoveStatic(uid) => {
                if let Some(pod) = self.mirrors.remove(&uid) {
                    self.want(pod, true);
                }
            }
            Order::Restart(uid, restart) => {
                if let Some((_, restarts)) = self.known.get(&uid) {
                    let _ = restarts.send(restart);
                }
            }
        }
    }

    fn create_mirror(&self, pod: &Pod) {
        if let Err(failure) = self.shared.store.create_as(Kind::Pod, &translate::mirror(pod)) {
            tracing::warn!("no mirror pod: {failure}");
        }
    }
}
