//! A node of the lab with coroner's image, and the agent as the pod of the chart's DaemonSet: what a cluster would add is
//! added. One word is another: the lab's node is a mount namespace on a machine whose first process is not the node's.

use crate::{
    chart::{named, rendered},
    tls,
    tools::{image, workspace},
};
use anyhow::{Context as _, Result, ensure};
use coroner_core::{report::PodTermination, types::Verdict};
use coroner_lab::{
    agent::{Http, tail},
    containerd::{Network, cleanup},
    driver::{PodId, SECCOMP_PROFILES},
    image as workload,
    lab::{Lab, LabOptions, NODE},
    wait,
};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use rustix::process::Pid;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    env, fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

/// What the chart calls everything.
const NAME: &str = "coroner";
/// Where other pods are.
const NAMESPACE: &str = "lab";
/// The first container of a neighbour.
const FIRST: &str = "c0";

pub(super) struct Node {
    lab: Lab,
    apiserver: SocketAddr,
}

/// The agent's pod.
pub(super) struct Agent<'a> {
    pub(super) node: &'a Node,
    id: PodId,
    /// Where probes and Prometheus reach it.
    pub(super) address: SocketAddr,
    http: Http,
    /// Its API, as `kubectl port-forward` reaches it.
    api: Http,
}

/// A way to die: the containers' command lines with their verdicts, and the deletion's grace (`None`: the containers exit on
/// their own).
pub(super) struct Death {
    name: &'static str,
    grace: Option<i64>,
    containers: &'static [(&'static str, Verdict)],
}

impl Death {
    pub(super) const fn deleted(
        name: &'static str,
        grace: i64,
        containers: &'static [(&'static str, Verdict)],
    ) -> Self {
        Self { name, grace: Some(grace), containers }
    }

    pub(super) const fn exits(
        name: &'static str,
        containers: &'static [(&'static str, Verdict)],
    ) -> Self {
        Self { name, grace: None, containers }
    }
}

impl Node {
    /// Brings the lab up and imports the image by the name that the chart has.
    pub(super) async fn start(directory: &Path) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "the lab needs root: run this with sudo");
        let workload = Path::new(env!("CARGO_BIN_EXE_coroner-lab")).with_file_name("workload");
        let workload = env::var_os("CORONER_LAB_WORKLOAD").map_or(workload, PathBuf::from);
        let archive = image();
        ensure!(archive.is_file(), "{} is not there: cargo xtask image", archive.display());
        let lab = Lab::start(LabOptions::new(directory.join("w"), workload)?, &|_| ()).await?;
        let objects = rendered(&[], &json!({}))?;
        let set = named(&objects, "DaemonSet")?;
        let name = &set["spec"]["template"]["spec"]["containers"][0]["image"];
        let name = name.as_str().context("no image")?;
        lab.containerd.lock().await.import(&archive, &[name]).await?;
        let network = lab.node_network();
        let address = network.addresses.first().context("the node has no address")?;
        let front = network.listen((Ipv4Addr::UNSPECIFIED, 0).into())?;
        let apiserver = (*address, front.local_addr()?.port()).into();
        let certificate = tls::front(&address.to_string(), front, lab.apiserver())?;
        let node = Self { lab, apiserver };
        fs::create_dir_all(node.credentials())?;
        // To the lab's apiserver, anyone who has a token is the agent.
        let files = [("token", NAME), ("namespace", NAME), ("ca.crt", &certificate)];
        for (name, content) in files {
            fs::write(node.credentials().join(name), content)?;
        }
        Ok(node)
    }

    /// What the kubelet projects into a pod.
    fn credentials(&self) -> PathBuf {
        self.lab.work().join("credentials")
    }

    /// Puts a seccomp profile where the kubelet takes those of the type Localhost from.
    pub(super) fn install_seccomp_profile(&self, name: &str) -> Result<()> {
        let profiles = self.lab.host_root.join(SECCOMP_PROFILES.trim_start_matches('/'));
        fs::create_dir_all(&profiles)?;
        fs::copy(workspace().join("deploy/seccomp").join(name), profiles.join(name))?;
        Ok(())
    }

    /// An address for pods, behind which is one of this machine; until the test ends.
    pub(super) fn publish(&self, to: SocketAddr) -> Result<SocketAddr> {
        let network = self.lab.node_network();
        let listener = network.listen((Ipv4Addr::UNSPECIFIED, 0).into())?;
        let address = (self.apiserver.ip(), listener.local_addr()?.port()).into();
        tokio::spawn(async move {
            while let Ok((mut outside, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Ok(mut inside) = TcpStream::connect(to).await {
                        let _ = copy_bidirectional(&mut outside, &mut inside).await;
                    }
                });
            }
        });
        Ok(address)
    }

    /// The pod that a DaemonSet's controller and a cluster's admission make.
    fn pod(&self, set: &DaemonSet) -> Result<Pod> {
        let mut pod = serde_json::to_value(&set.spec.template)?;
        pod["metadata"]["name"] = NAME.into();
        pod["metadata"]["namespace"] = NAME.into();
        let spec = &mut pod["spec"];
        spec["nodeName"] = NODE.into();
        let list = |value: &mut Value, item: Value| match value.as_array_mut() {
            Some(items) => items.push(item),
            None => *value = json!([item]),
        };
        let credentials = json!({"path": self.credentials()});
        list(&mut spec["volumes"], json!({"name": "token", "hostPath": credentials}));
        for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
            // The agent of this machine may have the directory.
            for (path, own) in [("/run/coroner", "socket"), ("/var/lib/coroner", "state")] {
                if volume["hostPath"]["path"] == path {
                    volume["hostPath"]["path"] = json!(self.lab.work().join(own));
                }
            }
        }
        let container = &mut spec["containers"][0];
        let at = "/var/run/secrets/kubernetes.io/serviceaccount";
        let mount = json!({"name": "token", "mountPath": at, "readOnly": true});
        list(&mut container["volumeMounts"], mount);
        for variable in container["env"].as_array_mut().into_iter().flatten() {
            if variable["value"] == "/proc/1/root" {
                variable["value"] = json!(self.lab.host_root);
            }
        }
        for (name, value) in [
            ("KUBERNETES_SERVICE_HOST", self.apiserver.ip().to_string()),
            ("KUBERNETES_SERVICE_PORT", self.apiserver.port().to_string()),
        ] {
            list(&mut container["env"], json!({"name": name, "value": value}));
        }
        Ok(serde_json::from_value(pod)?)
    }

    /// Starts the agent's pod and waits until the agent answers.
    pub(super) async fn run(&self, set: &DaemonSet) -> Result<Agent<'_>> {
        let id = self.add(self.pod(set)?)?;
        let network = self.network(&id).await?;
        let look = async || Ok(self.object(&id)?.status.and_then(|it| it.pod_ip));
        let ip: IpAddr = self.wait(&id, "an address", look).await?.parse()?;
        let address = (ip, 9470).into();
        let loopback = (Ipv4Addr::LOCALHOST, 9471).into();
        let http = Http::new(forward(self.lab.node_network().clone(), address).await?);
        let api = Http::new(forward(network, loopback).await?);
        let agent = Agent { node: self, id, address, http, api };
        let answers = async || Ok(agent.page("/healthz").await.ok().filter(|answer| answer.0));
        self.wait(&agent.id, "an answer of the liveness probe", answers).await?;
        Ok(agent)
    }

    /// `kubectl create`.
    pub(super) fn add(&self, pod: Pod) -> Result<PodId> {
        PodId::of(&self.lab.create(&pod)?).context("the apiserver gave the pod no UID")
    }

    pub(super) async fn network(&self, id: &PodId) -> Result<Network> {
        self.wait(id, "a sandbox", async || self.lab.network(&id.uid).await).await
    }

    /// Deletes pods, whatever holds them, and waits until their objects are gone.
    pub(super) async fn remove(&self, pods: &[PodId], grace: Option<i64>) -> Result<()> {
        for id in pods {
            self.lab.remove_finalizers(&id.namespace, &id.name)?;
            self.lab.delete(&id.namespace, &id.name, grace)?;
        }
        let gone = |id: &PodId| self.lab.pod(&id.namespace, &id.name).is_none();
        wait::until("the pods end", || Ok(pods.iter().all(gone).then_some(()))).await
    }

    fn object(&self, id: &PodId) -> Result<Pod> {
        self.lab.pod(&id.namespace, &id.name).context("the pod is gone")
    }

    /// Waits until there is one.
    async fn wait<T>(
        &self,
        id: &PodId,
        what: &str,
        look: impl AsyncFnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        wait::asking(what, look).await.with_context(|| format!("{}: {}", id.name, self.log(id)))
    }

    /// The end of the log of a pod's container.
    fn log(&self, id: &PodId) -> String {
        let container = if id.name == NAME { NAME } else { FIRST };
        tail(&self.lab.log(id, container), 15)
    }

    /// A pod of the lab's own workload: each container behaves as its command line says.
    pub(super) fn neighbour(&self, name: &str, behaviours: &[&str]) -> Pod {
        let container = |(n, behaviour): (usize, &&str)| {
            let words = std::iter::once(workload::PROGRAM).chain(behaviour.split_whitespace());
            let command: Vec<_> = words.collect();
            json!({
                "name": format!("c{n}"), "image": workload::NAME, "imagePullPolicy": "Never",
                "command": command,
            })
        };
        let containers: Vec<_> = behaviours.iter().enumerate().map(container).collect();
        let pod = json!({
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "nodeName": NODE, "hostNetwork": true, "restartPolicy": "Never",
                "containers": containers,
            },
        });
        serde_json::from_value(pod).expect("it is a pod")
    }

    /// The directory of the cgroup of a neighbour's container.
    pub(super) async fn cgroup(&self, id: &PodId) -> Result<PathBuf> {
        let pid = async || Ok(self.lab.main_pid(&self.object(id)?, FIRST).ok());
        let pid = self.wait(id, "a process", pid).await?;
        let pid = Pid::from_raw(pid).context("no process")?;
        cleanup::cgroup_of(pid, &self.lab.cgroup_root)
    }

    /// Takes everything down; what remains is an error.
    pub(super) async fn stop(self) -> Result<()> {
        self.lab.stop().await
    }
}

impl Agent<'_> {
    /// Whether a probe of this path succeeds, as the kubelet's prober: anything below 400; and the answer.
    pub(super) async fn page(&self, path: &str) -> Result<(bool, String)> {
        let (status, body) = self.http.page(path).await?;
        Ok((status.as_u16() < 400, body))
    }

    /// Waits until the readiness probe succeeds; its answer.
    pub(super) async fn ready(&self) -> Result<String> {
        let ready = async || Ok(self.page("/readyz").await.ok().filter(|answer| answer.0));
        Ok(self.node.wait(&self.id, "readiness", ready).await?.1)
    }

    /// It knows of so many terminations, which agents before it have stored, and stores what it observes itself.
    pub(super) async fn remembers(&self, terminations: usize) -> Result<()> {
        let known = self.api.terminations().await?.len();
        ensure!(known >= terminations, "{known} of {terminations} terminations are known");
        let errors = self.http.metric("coroner_history_errors_total", "").await?;
        ensure!(errors == 0.0, "{errors} errors of the history: {}", self.node.log(&self.id));
        let directory = self.node.lab.work().join("state/history");
        ensure!(fs::metadata(&directory)?.mode() & 0o777 == 0o700, "{}", directory.display());
        Ok(())
    }

    /// The first process of its container, as the host numbers it.
    pub(super) fn pid(&self) -> Result<i32> {
        self.node.lab.main_pid(&self.node.object(&self.id)?, NAME)
    }

    /// Pods die, all at the same time, and the agent reports each with its verdicts.
    pub(super) async fn reports(&self, deaths: &[Death]) -> Result<()> {
        let die = |death| async move { self.reports_one(death).await };
        futures::future::try_join_all(deaths.iter().map(die)).await.map(drop)
    }

    /// Deletes a pod, and itself as soon as that is gone, as a node is drained and deleted; the pod's UID.
    pub(super) async fn ends_after(self, death: &Death) -> Result<String> {
        let id = self.begin(death).await?;
        self.node.remove(std::slice::from_ref(&id), death.grace).await?;
        self.end().await?;
        Ok(id.uid)
    }

    /// A pod that runs.
    async fn begin(&self, death: &Death) -> Result<PodId> {
        let node = self.node;
        let behaviours: Vec<_> = death.containers.iter().map(|(behaviour, _)| *behaviour).collect();
        let id = node.add(node.neighbour(death.name, &behaviours))?;
        if death.grace.is_some() {
            // The workload logs this once it can take a signal.
            let has_started = |n: usize| {
                let log = node.lab.log(&id, &format!("c{n}"));
                fs::read_to_string(log).is_ok_and(|log| log.contains("start"))
            };
            let starts = async || Ok((0..behaviours.len()).all(has_started).then_some(()));
            node.wait(&id, "the start", starts).await?;
        }
        Ok(id)
    }

    /// UIDs of the pods whose terminations it has.
    pub(super) async fn terminated(&self) -> Result<Vec<String>> {
        let all = self.api.terminations().await?.into_iter();
        Ok(all.map(|one| one.pod.uid.as_str().to_owned()).collect())
    }

    async fn reports_one(&self, death: &Death) -> Result<()> {
        let (node, id) = (self.node, self.begin(death).await?);
        if death.grace.is_some() {
            node.lab.delete(&id.namespace, &id.name, death.grace)?;
        }
        let report = async || {
            let mut all = self.api.terminations().await?.into_iter();
            Ok(all.find(|one: &PodTermination| one.pod.uid.as_str() == id.uid))
        };
        let report = node.wait(&id, "a report", report).await?;
        let found: BTreeMap<_, _> =
            report.containers.iter().map(|one| (one.name.clone(), one.verdict)).collect();
        let expected = death.containers.iter().enumerate();
        let expected = expected.map(|(n, (_, verdict))| (format!("c{n}"), *verdict)).collect();
        ensure!(found == expected, "{}: {found:?}, not {expected:?}", death.name);
        if death.grace.is_none() {
            // A pod that ends on its own stays, and keeps its name.
            node.remove(&[id], Some(0)).await?;
        }
        Ok(())
    }

    /// Deletes the agent's pod, and waits until it is gone.
    pub(super) async fn end(self) -> Result<()> {
        self.node.remove(std::slice::from_ref(&self.id), None).await
    }
}

/// An address of this machine, behind which is one of another network; until the test ends.
async fn forward(network: Network, to: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut outside, _)) = listener.accept().await {
            let network = network.clone();
            tokio::spawn(async move {
                if let Ok(mut inside) = network.connect(to).await {
                    let _ = copy_bidirectional(&mut outside, &mut inside).await;
                }
            });
        }
    });
    Ok(address)
}
