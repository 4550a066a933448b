//! The kubelet's main loop: who is told what (kubelet.go, `syncLoop`; pod_workers.go), and the
//! collector of sandboxes.

use super::{
    Order, Shared,
    api::Change,
    gc,
    translate::{self, PodId},
    worker::{Wanted, Worker},
};
use k8s_cri::v1::{
    ListContainersRequest, ListPodSandboxRequest, PodSandboxState, RemovePodSandboxRequest,
    StopPodSandboxRequest,
};
use k8s_openapi::api::core::v1::Pod;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

/// A pod that the kubelet knows. Forgotten when its worker has finished and its object is gone:
/// the last changes of the object come after the worker's end, and must not begin a new life.
struct Known {
    tell: watch::Sender<Wanted>,
    finished: bool,
    /// How many lives this UID has had: only a static pod has more than one.
    lives: u32,
    /// The manifest came back before the last life was over: another one follows.
    again: bool,
}

struct Manager {
    shared: Arc<Shared>,
    pods: BTreeMap<String, Known>,
    workers: JoinSet<String>,
    /// The mirrors that the apiserver has, by the UID of the static pod.
    mirrors: BTreeMap<String, PodId>,
}

pub(super) async fn run(shared: Arc<Shared>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut changes = shared.api.watch(&shared.config.node);
    let mut collect = tokio::time::interval(shared.config.collect);
    let mut manager = Manager {
        shared,
        pods: BTreeMap::new(),
        workers: JoinSet::new(),
        mirrors: BTreeMap::new(),
    };
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Some(Change::Applied(pod)) => manager.applied(pod),
                Some(Change::Gone(pod)) => manager.gone(pod),
                None => return,
            },
            Some(order) = orders.recv() => manager.obey(order),
            Some(ended) = manager.workers.join_next() => match ended {
                Ok(uid) => manager.ended(&uid),
                Err(error) => tracing::error!(%error, "a pod's worker failed"),
            },
            _ = collect.tick() => {
                if let Err(error) = collect_sandboxes(&manager.shared, &manager.pods).await {
                    tracing::warn!(error = format!("{error:#}"), "collecting sandboxes");
                }
            }
        }
    }
}

impl Manager {
    fn applied(&mut self, pod: Pod) {
        let Some(id) = PodId::of(&pod) else { return };
        if let Some(of) = translate::mirrored(&pod) {
            // Somebody wants to delete it: that stops nothing (mirror_client.go).
            if pod.metadata.deletion_timestamp.is_some() {
                self.shared.api.delete_for_good(&id);
            }
            self.mirrors.insert(of.into(), id);
        } else if let Some(known) = self.pods.get(&id.uid) {
            known.tell.send_modify(|wanted| wanted.pod = pod);
        } else {
            self.begin(id, pod, 0);
        }
    }

    fn gone(&mut self, pod: Pod) {
        let Some(id) = PodId::of(&pod) else { return };
        if let Some(of) = translate::mirrored(&pod) {
            self.mirrors.remove(of);
            // It comes back as long as the manifest is there.
            if let Some(known) = self.pods.get(of)
                && !known.finished
                && (known.again || !known.tell.borrow().gone)
            {
                let pod = known.tell.borrow().pod.clone();
                self.shared.api.create_mirror(&translate::mirror(&pod));
            }
            return;
        }
        let Some(known) = self.pods.get(&id.uid) else { return };
        known.tell.send_modify(|wanted| (wanted.pod, wanted.gone) = (pod, true));
        if known.finished {
            self.pods.remove(&id.uid);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::AddStatic(pod) => {
                let Some(id) = PodId::of(&pod) else { return };
                if !self.mirrors.contains_key(&id.uid) {
                    self.shared.api.create_mirror(&translate::mirror(&pod));
                }
                match self.pods.get_mut(&id.uid) {
                    // pod_workers.go, `restartRequested`: first the old life ends.
                    Some(known) => known.again = known.tell.borrow().gone,
                    None => self.begin(id, *pod, 0),
                }
            }
            Order::RemoveStatic(uid) => {
                if let Some(known) = self.pods.get_mut(&uid) {
                    known.again = false;
                    known.tell.send_modify(|wanted| wanted.gone = true);
                }
            }
            Order::End(uid, ending) => match self.pods.get(&uid) {
                Some(known) => known.tell.send_modify(|wanted| wanted.ending = Some(ending)),
                None => tracing::warn!(uid, "no such pod to end"),
            },
        }
    }

    fn begin(&mut self, id: PodId, pod: Pod, lives: u32) {
        let (tell, wanted) = watch::channel(Wanted::new(pod));
        let known = Known { tell, finished: false, lives: lives + 1, again: false };
        self.pods.insert(id.uid.clone(), known);
        let worker = Worker::new(self.shared.clone(), id.clone(), wanted, lives);
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
        if again {
            if let Some(id) = PodId::of(&wanted.pod) {
                self.begin(id, wanted.pod, lives);
            }
        } else if let Some(mirror) = self.mirrors.get(uid) {
            self.shared.api.delete_for_good(mirror);
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
    // Evicted: its content goes, though its object stays.
    let gone = |pod: &str| {
        pods.get(pod).is_none_or(|known| {
            known.tell.borrow().ending.is_some_and(|ending| ending.removes_content)
        })
    };
    for id in gc::evictable(&sandboxes, &occupied, gone) {
        cri.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: id.into() }).await?;
        cri.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: id.into() }).await?;
    }
    Ok(())
}
