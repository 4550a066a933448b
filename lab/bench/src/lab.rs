//! All that the benchmarks use of the lab: its containerd and apiserver, pods of its workload, and the agent.

use anyhow::Context as _;
use coroner_cri_api::v1::{
    ContainerFilter, ContainerState, ContainerStatusRequest, ContainerStatusResponse,
    ListContainersRequest, runtime_service_client::RuntimeServiceClient,
};
use coroner_lab_cluster::{Cluster, containerd, image};
pub(crate) use coroner_lab_harness::agent::die_with_parent;
use coroner_lab_harness::{
    agent::{self, AgentOptions},
    console::Console,
    environment::{Environment, Setup, unless_interrupted},
};
use coroner_lab_scenarios::NAMESPACE;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tonic::transport::Channel;

/// A running lab.
pub(crate) struct Lab<'a> {
    cluster: &'a Cluster,
    setup: &'a Setup,
    console: Console,
    cri: RuntimeServiceClient<Channel>,
}

/// Brings the lab up, measures, and takes it down, whatever happens.
pub(crate) async fn run(
    setup: &Setup,
    measure: impl AsyncFnOnce(&Lab<'_>) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut environment = Environment::new(setup)?;
    let console = environment.console;
    let measured = async {
        let cluster = &*environment.set_up().await?;
        let cri = RuntimeServiceClient::new(containerd::connect(&cluster.cri()).await?);
        measure(&Lab { cluster, setup, console, cri }).await
    };
    let measured = unless_interrupted(console, measured).await;
    environment.tear_down(measured, false).await
}

impl Lab<'_> {
    /// A line of progress.
    pub(crate) fn step(&self, what: &str) {
        self.console.step(what);
    }

    /// Creates a pod of the workload: `{ "metadata": …, "spec": { "containers": … } }` with the name of each container and
    /// its behaviour in `args`. What the lab demands of a pod is added. The result is the pod's UID.
    pub(crate) fn create(&self, mut pod: Value) -> anyhow::Result<String> {
        pod["metadata"]["namespace"] = NAMESPACE.into();
        let spec = &mut pod["spec"];
        spec["nodeName"] = self.cluster.node().into();
        spec["hostNetwork"] = true.into();
        spec["restartPolicy"] = "Never".into();
        for container in spec["containers"].as_array_mut().into_iter().flatten() {
            container["image"] = image::NAME.into();
            container["imagePullPolicy"] = "Never".into();
            container["command"] = json!([image::PROGRAM]);
        }
        let pod = self.cluster.create(serde_json::from_value(pod)?)?;
        pod.metadata.uid.context("the apiserver gave the pod no UID")
    }

    /// Deletes it, with its own grace period.
    pub(crate) fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.cluster.delete(NAMESPACE, name, None)
    }

    /// The IDs of a pod's containers, as the runtime lists them.
    pub(crate) async fn containers(&self, uid: &str) -> anyhow::Result<Vec<String>> {
        let label_selector = [("io.kubernetes.pod.uid".to_owned(), uid.to_owned())].into();
        let filter = Some(ContainerFilter { label_selector, ..Default::default() });
        let listed = self.cri.clone().list_containers(ListContainersRequest { filter }).await?;
        Ok(listed.into_inner().containers.into_iter().map(|one| one.id).collect())
    }

    /// How many containers run.
    pub(crate) async fn running(&self) -> anyhow::Result<usize> {
        let listed = self.cri.clone().list_containers(ListContainersRequest::default()).await?;
        let state = ContainerState::ContainerRunning as i32;
        Ok(listed.into_inner().containers.iter().filter(|one| one.state == state).count())
    }

    /// What the runtime reports of a container.
    pub(crate) async fn status(&self, container: &str) -> anyhow::Result<ContainerStatusResponse> {
        let request = ContainerStatusRequest { container_id: container.into(), verbose: true };
        Ok(self.cri.clone().container_status(request).await?.into_inner())
    }

    /// The runtime's socket.
    pub(crate) fn socket(&self) -> anyhow::Result<PathBuf> {
        let endpoint = self.cluster.cri();
        Ok(endpoint.strip_prefix("unix://").context("the runtime has no Unix socket")?.into())
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        self.cluster.kubeconfig()
    }

    /// Starts the agent and waits until it is ready. `sources`: a socket of the runtime and a kubeconfig, in place of the lab's.
    pub(crate) async fn agent(
        &self,
        sources: Option<(&Path, &Path)>,
    ) -> anyhow::Result<MeasuredAgent> {
        self.step("starting the agent");
        let mut options: AgentOptions = Environment::agent(self.setup, self.cluster);
        if let Some((socket, kubeconfig)) = sources {
            options.cri = format!("unix://{}", socket.display());
            options.kubeconfig = kubeconfig.into();
        }
        Ok(MeasuredAgent(agent::Agent::start(&options).await?))
    }
}

/// The agent's process and its API. Dropped, it is killed.
pub(crate) struct MeasuredAgent(agent::Agent);

impl MeasuredAgent {
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.0.pid().context("the agent has exited")
    }

    /// The page at this path.
    pub(crate) async fn page(&self, path: &str) -> anyhow::Result<String> {
        let (status, body) = self.0.http().page(path).await?;
        anyhow::ensure!(status.is_success(), "{path}: {status}");
        Ok(String::from_utf8(body.into())?)
    }

    /// The sum of a metric over its series whose labels contain this.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> anyhow::Result<u64> {
        Ok(sum(&self.page("/metrics").await?, name, labels))
    }

    pub(crate) async fn stop(self) {
        self.0.stop().await;
    }
}

/// The sum of a metric on a page, over its series whose labels contain this.
fn sum(page: &str, name: &str, labels: &str) -> u64 {
    let values = page.lines().filter_map(|line| {
        let series = line.strip_prefix(name)?;
        let (of, value) = series.rsplit_once(' ')?;
        (of.is_empty() || of.starts_with('{')).then_some(())?;
        of.contains(labels).then(|| value.parse::<f64>().ok())?
    });
    values.sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_sum_of_its_series() {
        let page = "# TYPE a_total counter\na_total{x=\"1 2\"} 3\na_total{x=\"2\"} 4\na_total_more 5\nb 1e1\n";
        let sums = [("a_total", ""), ("a_total", "x=\"2\""), ("b", ""), ("c", "")];
        assert_eq!(sums.map(|(name, labels)| sum(page, name, labels)), [7, 4, 10, 0]);
    }
}
