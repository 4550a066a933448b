//! coroner as it is deployed: its image, run by the lab's kubelet in the lab's containerd as the pod
//! that the lab's controller makes of its DaemonSet, with exactly the capabilities, mounts, user, namespaces and arguments
//! of the manifest. What a cluster would add is added (see [`pod`]); of the manifest one word is
//! another: the lab's node is a mount namespace on somebody else's machine, whose first process is
//! not the node's.

use super::pod;
use crate::{chart, manifests, tls::TlsFront};
use anyhow::{Context as _, Result, bail, ensure};
use axum::http::StatusCode;
use coroner::config::args::DEFAULT_API_PORT;
use coroner_lab_cluster::{
    Cluster,
    apiserver::{DeleteOptions, ResourceKind},
    containerd,
    daemonset::{self, DaemonSetController},
    kubelet::{self, security::SECCOMP_PROFILES, translate::PodId},
    network::Forward,
    tidy, wait,
};
use coroner_lab_harness::{
    agent::{self, Http},
    environment::work_directory,
    failures::{Failures, Remains},
    ground_truth::GroundTruth,
    monitor::{AgentMonitor, THRESHOLD},
    run::{self, scenario},
};
use coroner_lab_scenarios::Scenario;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

/// In the work directory: what pods are told of the apiserver.
const CREDENTIALS: &str = "credentials";

/// A node on which the image is.
pub(crate) struct DaemonSetNode {
    pub(super) lab: Cluster,
    work: PathBuf,
    _controller: DaemonSetController,
    _front: TlsFront,
    _service: Forward,
}

/// A pod of the DaemonSet whose agent answers.
pub(crate) struct Deployed<'a> {
    pub(super) node: &'a DaemonSetNode,
    set: DaemonSet,
    id: PodId,
    probes: pod::Probes,
    /// Where probes and Prometheus reach it.
    pub(super) address: SocketAddr,
    http: Http,
    /// Its API, as `kubectl port-forward` reaches it.
    api: Http,
    // Connections end with these.
    _forwards: [Forward; 2],
}

/// What a probe of the kubelet's would see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProbeAnswer {
    /// The probe succeeds.
    pub(crate) ok: bool,
    /// What was said.
    pub(crate) text: String,
}

impl DaemonSetNode {
    /// Brings the lab up and imports the archive of the image of this name.
    pub(crate) async fn start(
        options: containerd::ContainerdOptions,
        archive: &Path,
        image: &str,
    ) -> Result<Self> {
        ensure!(
            archive.is_file(),
            "{} is not there: build the image (cargo xtask image)",
            archive.display()
        );
        let work = work_directory(&options.work)?;
        let options = containerd::ContainerdOptions { work: work.clone(), ..options };
        let lab = Cluster::start(options, &|_| ()).await?;
        let served = async {
            lab.import(archive, image).await?;
            serve(&lab, &work.join(CREDENTIALS)).await
        };
        let (_front, _service) = match served.await {
            Ok(served) => served,
            Err(error) => {
                let stopped = lab.stop().await;
                clear(&work);
                return Err(error.context(format!("the lab was taken down: {stopped:?}")));
            }
        };
        let (host_root, credentials) = (lab.host_root().to_owned(), work.join(CREDENTIALS));
        let apiserver = _service.address;
        let admit = move |pod: &mut Pod| pod::admit(pod, &host_root, &credentials, apiserver);
        let _controller = DaemonSetController::start(lab.store(), admit);
        Ok(Self { lab, work, _controller, _front, _service })
    }

    /// Puts a seccomp profile where the node's kubelet takes those of the type Localhost from.
    pub(crate) fn install_seccomp_profile(&self, file: &Path, name: &str) -> Result<()> {
        let profiles = self.lab.host_root().join(SECCOMP_PROFILES.trim_start_matches('/'));
        std::fs::create_dir_all(&profiles)
            .and_then(|()| std::fs::copy(file, profiles.join(name)))
            .with_context(|| format!("cannot copy {} onto the node", file.display()))?;
        Ok(())
    }

    fn credentials(&self) -> PathBuf {
        self.work.join(CREDENTIALS)
    }

    /// The directory of the agent's socket.
    pub(super) fn socket(&self) -> PathBuf {
        pod::socket(&self.credentials())
    }

    /// Creates the DaemonSet, with what else `deploy/base` has, and waits until its agent answers.
    pub(crate) async fn run(&self, set: &DaemonSet) -> Result<Deployed<'_>> {
        let base = chart::kustomized(&manifests::deploy().join("base"))?;
        for (name, object) in base {
            let kind = name.split(' ').next().unwrap_or_default();
            let kind = ResourceKind::all().find(|one| one.name() == kind).context(name)?;
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
            if kind != ResourceKind::DaemonSet {
                // Another one before it has left the rest.
                let _ = self.lab.store().create(kind, &namespace, object);
            }
        }
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let set = serde_json::to_value(set)?;
        let made = self.lab.store().create(ResourceKind::DaemonSet, namespace, set)?;
        self.deployed(&serde_json::from_value(made)?).await
    }

    /// Waits until the agent of a DaemonSet that there is answers.
    pub(crate) async fn deployed(&self, set: &DaemonSet) -> Result<Deployed<'_>> {
        let probes = pod::probes(set)?;
        let id = wait::until("the controller creates a pod", || {
            let pods = daemonset::pods_of(&self.lab.store(), set.metadata.uid.as_deref());
            Ok(pods.first().and_then(PodId::of))
        })
        .await?;
        let network = self.wait(&id, "a sandbox", || self.lab.network(&id.uid)).await?;
        let ip = self.wait(&id, "an address", async || Ok(self.ip(&id))).await?;
        let address = (ip, probes.port).into();
        let into = Forward::into_network(self.lab.node_network().await, address).await?;
        // The API is on the pod's loopback, and read as by `kubectl port-forward`.
        let loopback = (Ipv4Addr::LOCALHOST, DEFAULT_API_PORT).into();
        let api = Forward::into_network(network, loopback).await?;
        let (http, api_http) = (Http::new(into.address), Http::new(api.address));
        let _forwards = [into, api];
        let deployed = Deployed {
            node: self,
            set: set.clone(),
            id,
            probes,
            address,
            http,
            api: api_http,
            _forwards,
        };
        let answers = || async { Ok(deployed.liveness().await.ok().filter(|answer| answer.ok)) };
        self.wait(&deployed.id, "an answer of the liveness probe", answers).await?;
        Ok(deployed)
    }

    /// `kubectl create`.
    pub(super) fn add(&self, pod: Pod) -> Result<PodId> {
        PodId::of(&self.lab.create(pod)?).context("the apiserver gave the pod no UID")
    }

    /// The pod's address, once it has one.
    fn ip(&self, id: &PodId) -> Option<IpAddr> {
        self.lab.pod(&id.namespace, &id.name)?.status?.pod_ip?.parse().ok()
    }

    /// Waits until there is one, as long as the pod can still come to it.
    pub(super) async fn wait<T, F: Future<Output = Result<Option<T>>>>(
        &self,
        id: &PodId,
        what: &str,
        look: impl Fn() -> F,
    ) -> Result<T> {
        let looking = wait::asking(what, async || {
            if let Some(found) = look().await? {
                return Ok(Some(found));
            }
            let object = self.lab.pod(&id.namespace, &id.name).context("the pod is gone")?;
            match failure(&object) {
                Some(why) => bail!("the pod has failed: {why}"),
                None => Ok(None),
            }
        });
        looking.await.with_context(|| {
            let log = id.log_file(self.lab.logs(), pod::CONTAINER);
            format!("the log of {}:\n{}", id.name, agent::tail(&log, 15))
        })
    }

    /// Takes everything down; what remains is an error.
    pub(crate) async fn stop(self) -> Result<()> {
        let stopped = self.lab.stop().await;
        clear(&self.work);
        stopped
    }
}

fn clear(work: &Path) {
    let _ = std::fs::remove_dir_all(work.join(CREDENTIALS));
    tidy(work);
    // Somebody else's files may be in it; then it stays.
    let _ = std::fs::remove_dir(work);
}

/// Has the apiserver speak TLS to pods of the DaemonSet, and writes their credentials.
async fn serve(lab: &Cluster, credentials: &Path) -> Result<(TlsFront, Forward)> {
    let network = lab.node_network().await;
    let node = network.addresses().context("the node has no address")?.v4;
    let front = TlsFront::of(&node.to_string(), lab.apiserver()).await?;
    let service = Forward::out_of_network(&network, front.address)?;
    pod::write_credentials(&front.certificate, credentials)?;
    Ok((front, service))
}

/// Why a pod will not come to anything.
fn failure(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let over = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let ended = status.container_statuses.iter().flatten().find_map(|container| {
        let of = |state: Option<&k8s_openapi::api::core::v1::ContainerState>| {
            state?.terminated.as_ref().map(|end| format!("it ended with {}", end.exit_code))
        };
        of(container.state.as_ref()).or_else(|| of(container.last_state.as_ref()))
    });
    ended.or_else(|| over.then(|| status.message.clone().unwrap_or_default()))
}

impl Deployed<'_> {
    /// What the liveness probe sees.
    pub(crate) async fn liveness(&self) -> Result<ProbeAnswer> {
        self.probe(&self.probes.liveness).await
    }

    /// What the readiness probe sees.
    pub(crate) async fn readiness(&self) -> Result<ProbeAnswer> {
        self.probe(&self.probes.readiness).await
    }

    /// Waits until the readiness probe succeeds.
    pub(crate) async fn ready(&self) -> Result<ProbeAnswer> {
        let ready = || async { Ok(self.readiness().await.ok().filter(|answer| answer.ok)) };
        match self.node.wait(&self.id, "readiness", ready).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let said = self.readiness().await.map(|answer| answer.text);
                Err(error.context(format!("the readiness probe says {said:?}")))
            }
        }
    }

    async fn probe(&self, path: &str) -> Result<ProbeAnswer> {
        let (status, body) = self.http.page(path).await?;
        let text = String::from_utf8_lossy(&body).into_owned();
        // As the kubelet's prober: anything below 400.
        Ok(ProbeAnswer { ok: status < StatusCode::BAD_REQUEST, text })
    }

    /// The first process of its container, as the host numbers it.
    pub(crate) fn pid(&self) -> Result<i32> {
        self.node.lab.main_pid(&self.id, pod::CONTAINER)
    }

    /// `kubectl exec POD -- COMMAND`: its stdout.
    pub(crate) async fn exec(&self, command: &[&str]) -> Result<String> {
        let (lab, id) = (&self.node.lab, &self.id);
        let pod = lab.pod(&id.namespace, &id.name).context("the pod is gone")?;
        lab.hand().exec(&pod, pod::CONTAINER, command).await
    }

    /// Plays scenarios on the node, all at once, and compares what this agent says of each with what is expected; what
    /// does not agree is the error.
    pub(crate) async fn plays(&self, scenarios: &[&Scenario]) -> Result<()> {
        let (lab, truth) = (&self.node.lab, GroundTruth::of(&self.node.lab, THRESHOLD));
        let watcher = AgentMonitor::of_foreign(self.api.clone(), Some(lab.name().await));
        let played = async {
            watcher.detects().await?;
            let play = |&one| scenario::from_begin_to_end(one, lab, &watcher, &truth, None);
            let outcomes = futures::future::join_all(scenarios.iter().map(play)).await;
            lab.run_kubelet(kubelet::VERSION)?;
            let strays = run::strays(&watcher, &truth, &outcomes).await;
            anyhow::Ok((outcomes, strays))
        };
        let played = played.await;
        watcher.stop().await;
        let (outcomes, strays) = played?;
        let mut wrong: Vec<_> =
            strays.iter().map(|leak| format!("of no scenario: {leak:?}")).collect();
        for outcome in &outcomes {
            let has_report = outcome.timeline.is_some();
            if outcome.ok && has_report == (outcome.expected.lives != 0) {
                continue;
            }
            let said = outcome.disagreements.join("; ");
            wrong.push(format!("{}: {said} (a report: {has_report})", outcome.scenario));
            let (agent, kubelet, work) = (Some(&self.api), lab.kubelet(), &self.node.work);
            let remains = Remains { agent, kubelet: Some(kubelet), work: Some(work) };
            Failures::new(None, work).save(outcome.scenario, remains).await;
        }
        let log = self.id.log_file(lab.logs(), pod::CONTAINER);
        ensure!(
            wrong.is_empty(),
            "{} of {}: {wrong:#?}\nthe agent's log:\n{}",
            wrong.len(),
            outcomes.len(),
            agent::tail(&log, 30)
        );
        Ok(())
    }

    /// Deletes the DaemonSet, and waits until its pod's object is gone.
    pub(crate) async fn end(self) -> Result<()> {
        let (namespace, name) = (&self.set.metadata.namespace, &self.set.metadata.name);
        let (namespace, name) = (namespace.as_deref().unwrap_or_default(), name.as_deref());
        let options = DeleteOptions::default();
        let store = self.node.lab.store();
        store.delete(ResourceKind::DaemonSet, namespace, name.unwrap_or_default(), &options)?;
        self.gone().await
    }

    /// Waits until the pod's object is gone.
    pub(crate) async fn gone(self) -> Result<()> {
        let (lab, id) = (&self.node.lab, &self.id);
        wait::until("the agent's pod ends", || {
            Ok(lab.pod(&id.namespace, &id.name).is_none().then_some(()))
        })
        .await
    }
}
