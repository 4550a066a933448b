//! The kubelet's main loop: who is told what (kubelet.go, `syncLoop`; pod_workers.go), its
//! housekeeping and the collector of sandboxes.

use super::{
    Cri, KubeletOrder, KubeletShared,
    api::PodChange,
    gc,
    housekeeping::{self, Come, RuntimeItems},
    klog::PodLog,
    translate::{self, PodId},
    worker::{Worker, WorkerTarget},
};
use coroner_cri_api::v1::{
    ListContainersRequest, ListPodSandboxRequest, PodSandboxState, RemovePodSandboxRequest,
    StopPodSandboxRequest,
};
use k8s_openapi::api::core::v1::Pod;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::{
    sync::{Mutex, mpsc, watch},
    task::JoinSet,
};

/// Sources of pods.
const API: &str = "api";
const FILE: &str = "file";

/// A pod that the kubelet knows. Forgotten when its worker has finished and its object is gone:
/// the last changes of the object come after the worker's end, and must not begin a new life.
struct Known {
    tell: watch::Sender<WorkerTarget>,
    finished: bool,
    /// How many lives this UID has had: only a static pod has more than one.
    lives: u32,
    /// The manifest came back before the last life was over: another one follows.
    again: bool,
    /// Locked while its worker looks at it in a relist.
    looking: Arc<Mutex<()>>,
}

impl Known {
    /// A static pod of this name, and another one.
    fn is_namesake(&self, id: &PodId) -> bool {
        let wanted = self.tell.borrow();
        let is_other = |own: PodId| {
            (&own.namespace, &own.name) == (&id.namespace, &id.name) && own.uid != id.uid
        };
        translate::is_static(&wanted.pod) && PodId::of(&wanted.pod).is_some_and(is_other)
    }
}

struct Manager {
    shared: Arc<KubeletShared>,
    pods: BTreeMap<String, Known>,
    workers: JoinSet<String>,
    /// The mirrors that the apiserver has, by the UID of the static pod.
    mirrors: BTreeMap<String, PodId>,
    /// Static pods that wait for the end of another one of their name.
    waiting: Vec<Pod>,
    version: String,
    /// What the runtime cache shows of pods, by UID, until the housekeeping that follows the end
    /// of their objects.
    cached: BTreeMap<String, (RuntimeItems, Come)>,
    /// The UIDs of pods whose worker was made again by the housekeeping and failed: to the
    /// collector they are terminating, for good.
    stuck: BTreeSet<String>,
    /// Pods that are over, of which housekeeping has still to say so.
    over: Vec<PodLog>,
}

pub(super) async fn run(
    shared: Arc<KubeletShared>,
    mut orders: mpsc::UnboundedReceiver<KubeletOrder>,
) {
    let mut changes = shared.api.watch(&shared.config.node);
    let mut collect = tokio::time::interval(shared.config.collect);
    let mut housekeeping = tokio::time::interval(shared.config.housekeeping);
    let mut manager = Manager {
        version: shared.config.version.clone(),
        shared,
        pods: BTreeMap::new(),
        workers: JoinSet::new(),
        mirrors: BTreeMap::new(),
        waiting: Vec::new(),
        cached: BTreeMap::new(),
        stuck: BTreeSet::new(),
        over: Vec::new(),
    };
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Some(PodChange::Applied(pod)) => manager.applied(pod),
                Some(PodChange::Gone(pod)) => manager.gone(pod),
                None => return,
            },
            Some(order) = orders.recv() => manager.obey(order).await,
            Some(ended) = manager.workers.join_next() => match ended {
                Ok(uid) => manager.ended(&uid),
                Err(error) => tracing::error!(%error, "a pod's worker failed"),
            },
            _ = housekeeping.tick() => manager.clean_up_pods().await,
            _ = collect.tick() => {
                if let Err(status) = manager.collect_sandboxes().await {
                    tracing::warn!(error = status.message(), "collecting sandboxes");
                }
            }
        }
    }
}

impl Manager {
    fn applied(&mut self, pod: Pod) {
        let Some(id) = PodId::of(&pod) else { return };
        if let Some(of) = translate::mirrored(&pod) {
            let known = self.mirrors.insert(of.into(), id.clone());
            // Somebody wants to delete it: that stops nothing (mirror_client.go).
            if pod.metadata.deletion_timestamp.is_some() {
                self.shared.log.sync_loop("DELETE", API, &id);
                self.shared.pod_log(&id).info("Trying to delete pod");
                self.delete_mirror(&id);
            } else {
                let what = if known.as_ref() == Some(&id) { "RECONCILE" } else { "ADD" };
                self.shared.log.sync_loop(what, API, &id);
            }
        } else if let Some(known) = self.pods.get(&id.uid) {
            let before = known.tell.borrow().pod.clone();
            let is_deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
            let what = match () {
                () if is_deleted(&pod) && !is_deleted(&before) => "DELETE",
                () if pod.spec != before.spec => "UPDATE",
                () => "RECONCILE",
            };
            self.shared.log.sync_loop(what, API, &id);
            known.tell.send_modify(|wanted| wanted.pod = pod);
        } else {
            self.shared.log.sync_loop("ADD", API, &id);
            self.begin(id, pod, 0);
        }
    }

    fn gone(&mut self, pod: Pod) {
        let Some(id) = PodId::of(&pod) else { return };
        if let Some(of) = translate::mirrored(&pod) {
            self.mirrors.remove(of);
            self.shared.log.sync_loop("REMOVE", API, &id);
            // It comes back as long as the manifest is there.
            if let Some(known) = self.pods.get(of)
                && !known.finished
                && (known.again || !known.tell.borrow().gone)
            {
                let pod = known.tell.borrow().pod.clone();
                self.create_mirror(&pod);
            }
            return;
        }
        let Some(known) = self.pods.get(&id.uid) else { return };
        // The last delete changes the object, too.
        self.shared.log.sync_loop("DELETE", API, &id);
        self.shared.log.sync_loop("REMOVE", API, &id);
        let log = self.shared.pod_log(&id);
        log.info("Pod has been deleted and must be killed");
        known.tell.send_modify(|wanted| (wanted.pod, wanted.gone) = (pod, true));
        if known.finished {
            log.info("Pod is finished processing, no further updates");
            self.over.push(log);
            self.pods.remove(&id.uid);
        }
    }

    async fn obey(&mut self, order: KubeletOrder) {
        match order {
            KubeletOrder::AddStatic(pod) => self.add_static(*pod),
            KubeletOrder::RemoveStatic(uid) => {
                self.waiting.retain(|pod| pod.metadata.uid.as_ref() != Some(&uid));
                if let Some(known) = self.pods.get_mut(&uid) {
                    if let Some(id) = PodId::of(&known.tell.borrow().pod) {
                        self.shared.log.sync_loop("REMOVE", FILE, &id);
                        self.shared.pod_log(&id).info("Pod has been deleted and must be killed");
                    }
                    known.again = false;
                    known.tell.send_modify(|wanted| wanted.gone = true);
                }
            }
            KubeletOrder::End(uid, ending) => match self.pods.get(&uid) {
                Some(known) => known.tell.send_modify(|wanted| wanted.ending = Some(ending)),
                None => tracing::warn!(uid, "no such pod to end"),
            },
            KubeletOrder::Cache(uid, come) => {
                match RuntimeItems::of(&self.shared.cri, &uid).await {
                    Ok(running) => {
                        self.cached.insert(uid, (running, come));
                    }
                    Err(status) => tracing::warn!(uid, error = status.message(), "runtime cache"),
                }
            }
            KubeletOrder::Pause(uid, tell) => {
                if let Some(known) = self.pods.get(&uid) {
                    // The caller may have given up.
                    let _ = tell.send(known.looking.clone());
                }
            }
            KubeletOrder::IgnoreProbes(uid) => {
                if let Some(known) = self.pods.get(&uid) {
                    known.tell.send_modify(|wanted| wanted.ignores_probes = true);
                }
            }
            KubeletOrder::KeepContainers(uid) => {
                if let Some(known) = self.pods.get(&uid) {
                    known.tell.send_modify(|wanted| wanted.keeps_containers = true);
                }
            }
            KubeletOrder::Version(version) => self.version = version,
        }
    }

    fn add_static(&mut self, pod: Pod) {
        let Some(id) = PodId::of(&pod) else { return };
        self.shared.log.sync_loop("ADD", FILE, &id);
        // pod_workers.go, `allowStaticPodStart`: one of the same name, from a manifest that has changed, ends
        // first.
        if self.pods.values().any(|known| known.is_namesake(&id)) {
            self.waiting.push(pod);
            return;
        }
        if !self.mirrors.contains_key(&id.uid) {
            self.create_mirror(&pod);
        }
        match self.pods.get_mut(&id.uid) {
            // pod_workers.go, `restartRequested`: first the old life ends.
            Some(known) => known.again = known.tell.borrow().gone,
            None => self.begin(id, pod, 0),
        }
    }

    fn begin(&mut self, id: PodId, pod: Pod, lives: u32) {
        let (tell, wanted) = watch::channel(WorkerTarget::new(pod));
        let looking = Arc::new(Mutex::new(()));
        let worker = Worker::new(self.shared.clone(), id.clone(), wanted, lives, looking.clone());
        let known = Known { tell, finished: false, lives: lives + 1, again: false, looking };
        self.pods.insert(id.uid.clone(), known);
        self.workers.spawn(async move {
            worker.run().await;
            id.uid
        });
    }

    fn ended(&mut self, uid: &str) {
        let Some(known) = self.pods.get_mut(uid) else { return };
        known.finished = true;
        let wanted = known.tell.borrow().clone();
        if !wanted.gone {
            return;
        }
        let (again, lives) = (known.again, known.lives);
        self.pods.remove(uid);
        self.over.extend(PodId::of(&wanted.pod).map(|id| self.shared.pod_log(&id)));
        if again {
            if let Some(id) = PodId::of(&wanted.pod) {
                self.begin(id, wanted.pod, lives);
            }
        } else if let Some(mirror) = self.mirrors.get(uid) {
            self.delete_mirror(mirror);
        }
        for pod in std::mem::take(&mut self.waiting) {
            self.add_static(pod);
        }
    }

    fn create_mirror(&self, pod: &Pod) {
        if let Some(id) = PodId::of(pod) {
            self.shared.pod_log(&id).info("Creating a mirror pod for static pod");
        }
        self.shared.api.create_mirror(&translate::mirror(pod));
    }

    fn delete_mirror(&self, mirror: &PodId) {
        self.shared.pod_log(mirror).info("Deleting a mirror pod");
        self.shared.delete_for_good(mirror, "Deleted mirror pod");
    }

    /// kubelet_pods.go, `HandlePodCleanups`: kills what runs of pods that are gone, or ran when it
    /// was last looked at.
    async fn clean_up_pods(&mut self) {
        let log = self.shared.log.clone();
        log.info("SyncLoop (housekeeping)", "");
        for pod in self.over.drain(..) {
            pod.info(
                "Pod has been terminated and is no longer known to the kubelet, remove all history",
            );
            pod.info("Cleaned up orphaned pod volumes dir");
        }
        for uid in &self.stuck {
            let stuck =
                "Pod worker has been requested for removal but is still not fully terminated";
            log.info(stuck, format_args!("podUID={uid:?}"));
        }
        let gone: Vec<String> =
            self.cached.keys().filter(|uid| !self.pods.contains_key(*uid)).cloned().collect();
        for uid in gone {
            let Some((cached, come)) = self.cached.remove(&uid) else { continue };
            let believes = housekeeping::believes_cache(&self.version);
            come.pass().await;
            let orphan =
                if believes { Ok(cached) } else { RuntimeItems::of(&self.shared.cri, &uid).await };
            match orphan {
                Ok(orphan) if orphan.is_nothing() => {}
                Ok(orphan) => {
                    if let Err(status) = orphan.kill(&self.shared.cri).await {
                        let error = status.message();
                        let fields = format_args!("err={error:?} podUID={uid:?}");
                        log.error("Error syncing pod, skipping", fields);
                        tracing::warn!(uid, error, "the worker of an orphan is stuck");
                        self.stuck.insert(uid);
                    }
                }
                // It will be looked at again, and is not running then.
                Err(status) => tracing::warn!(uid, error = status.message(), "housekeeping"),
            }
        }
        log.info("SyncLoop (housekeeping) end", "");
    }

    /// pod_workers.go, `ShouldPodContentBeRemoved`.
    fn is_gone(&self, uid: &str) -> bool {
        match self.pods.get(uid) {
            // Evicted: its content goes, though its object stays.
            Some(known) => known.tell.borrow().ending.is_some_and(|ending| ending.removes_content),
            // A real collector comes once in a minute, and so after the housekeeping.
            None => !self.stuck.contains(uid) && !self.cached.contains_key(uid),
        }
    }

    /// kuberuntime_gc.go, `evictSandboxes`: stops each once more before it removes it.
    async fn collect_sandboxes(&self) -> Result<(), tonic::Status> {
        let mut cri = self.shared.cri.clone();
        let listed =
            cri.list_pod_sandbox(ListPodSandboxRequest::default()).await?.into_inner().items;
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
        for id in gc::evictable(&sandboxes, &occupied, |uid| self.is_gone(uid)) {
            // One that cannot be removed is no reason to leave the others.
            self.shared.log.info("Removing sandbox", format_args!("sandboxID={id:?}"));
            if let Err(status) = remove_sandbox(&mut cri, id).await {
                let err = format_args!("err={:?} sandboxID={id:?}", status.message());
                self.shared.log.error("Failed to remove sandbox", err);
                tracing::warn!(sandbox = id, error = status.message(), "removing a sandbox");
            }
        }
        Ok(())
    }
}

/// kuberuntime_gc.go, `removeSandbox`.
async fn remove_sandbox(cri: &mut Cri, id: &str) -> Result<(), tonic::Status> {
    cri.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: id.into() }).await?;
    cri.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: id.into() }).await?;
    Ok(())
}
