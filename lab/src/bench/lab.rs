//! All that the benchmarks use of the lab: its containerd and apiserver, pods of its workload, and the agent.

use crate::{
    agent::{Agent, AgentOptions},
    console::Console,
    image,
    lab::{Lab, NODE},
    run::{Setup, in_lab},
    scenarios::NAMESPACE,
};
use anyhow::Context as _;
use coroner_cri_api::v1::{
    ContainerFilter, ContainerState, ContainerStatusRequest, ContainerStatusResponse,
    ListContainersRequest,
};
use coroner_report::{ContainerDeath, PodTermination};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A running lab, and the agent to measure.
pub(crate) struct BenchLab<'a> {
    lab: &'a Lab,
    agent: &'a Path,
    console: Console,
}

/// Brings the lab up, measures, and takes it down, whatever happens.
pub(crate) async fn run(
    setup: &Setup,
    measure: impl AsyncFnOnce(&BenchLab<'_>) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let measure =
        async |lab: &Lab, console| measure(&BenchLab { lab, agent: &setup.agent, console }).await;
    in_lab(setup, measure).await
}

impl BenchLab<'_> {
    /// A line of progress.
    pub(crate) fn step(&self, what: &str) {
        self.console.step(what);
    }

    /// Creates a pod of the workload: `{ "metadata": …, "spec": { "containers": … } }` with the name of each container and
    /// its behaviour in `args`. What the lab demands of a pod is added. The result is the pod's UID.
    pub(crate) fn create(&self, mut pod: Value) -> anyhow::Result<String> {
        pod["metadata"]["namespace"] = NAMESPACE.into();
        let spec = &mut pod["spec"];
        spec["nodeName"] = NODE.into();
        spec["hostNetwork"] = true.into();
        spec["restartPolicy"] = "Never".into();
        for container in spec["containers"].as_array_mut().into_iter().flatten() {
            container["image"] = image::NAME.into();
            container["imagePullPolicy"] = "Never".into();
            container["command"] = json!([image::PROGRAM]);
        }
        let pod = self.lab.create(&serde_json::from_value(pod)?)?;
        pod.metadata.uid.context("the apiserver gave the pod no UID")
    }

    /// Deletes it, with its own grace period.
    pub(crate) fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.lab.delete(NAMESPACE, name, None)
    }

    /// The IDs of a pod's containers, as the runtime lists them.
    pub(crate) async fn containers(&self, uid: &str) -> anyhow::Result<Vec<String>> {
        let label_selector = [("io.kubernetes.pod.uid".to_owned(), uid.to_owned())].into();
        let filter = Some(ContainerFilter { label_selector, ..Default::default() });
        let listed = self.lab.cri.clone().list_containers(ListContainersRequest { filter }).await?;
        Ok(listed.into_inner().containers.into_iter().map(|one| one.id).collect())
    }

    /// How many containers run.
    pub(crate) async fn running(&self) -> anyhow::Result<usize> {
        let listed = self.lab.cri.clone().list_containers(ListContainersRequest::default()).await?;
        let state = ContainerState::ContainerRunning as i32;
        Ok(listed.into_inner().containers.iter().filter(|one| one.state == state).count())
    }

    /// What the runtime reports of a container.
    pub(crate) async fn status(&self, container: &str) -> anyhow::Result<ContainerStatusResponse> {
        let request = ContainerStatusRequest { container_id: container.into(), verbose: true };
        Ok(self.lab.cri.clone().container_status(request).await?.into_inner())
    }

    /// The runtime's socket.
    pub(crate) fn socket(&self) -> anyhow::Result<PathBuf> {
        let endpoint = self.lab.endpoint();
        Ok(endpoint.strip_prefix("unix://").context("the runtime has no Unix socket")?.into())
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.lab.kubeconfig()
    }

    /// Starts the agent with more flags, and waits until it is ready. `sources`: a socket of the runtime and a kubeconfig, in
    /// place of the lab's.
    pub(crate) async fn agent(
        &self,
        sources: Option<(&Path, &Path)>,
        flags: &[String],
    ) -> anyhow::Result<MeasuredAgent> {
        self.step("starting the agent");
        let mut options = AgentOptions::on(self.lab, self.agent);
        options.flags.extend_from_slice(flags);
        if let Some((socket, kubeconfig)) = sources {
            options.cri = format!("unix://{}", socket.display());
            options.kubeconfig = kubeconfig.into();
        }
        Ok(MeasuredAgent(Agent::start(&options).await?))
    }
}

/// The agent's process and its API. Dropped, it is killed.
pub(crate) struct MeasuredAgent(Agent);

impl MeasuredAgent {
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.0.pid().context("the agent has exited")
    }

    /// The page at this path.
    pub(crate) async fn page(&self, path: &str) -> anyhow::Result<String> {
        let (status, body) = self.0.http().page(path).await?;
        anyhow::ensure!(status.is_success(), "{path}: {status}");
        Ok(body)
    }

    /// The sum of a metric over its series whose labels contain this.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> anyhow::Result<u64> {
        Ok(self.0.http().metric(name, labels).await? as u64)
    }

    /// What it knows.
    pub(crate) async fn reports(
        &self,
    ) -> anyhow::Result<(Vec<PodTermination>, Vec<ContainerDeath>)> {
        Ok((self.0.http().terminations().await?, self.0.http().deaths().await?))
    }

    pub(crate) async fn stop(self) {
        self.0.stop().await;
    }
}
