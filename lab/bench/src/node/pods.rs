//! A pod's life on the synthetic node: what apiserver, kubelet and runtime would do, in the order
//! in which they do it.

use super::{
    census::{CONTAINERS, Plan},
    ground::{Ground, PodProcess},
    runtime::Runtime,
};
use coroner_lab_cluster::apiserver::{DeleteOptions, ResourceKind, Store};
use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStateTerminated},
    apimachinery::pkg::apis::meta::v1::Time,
};
use rustix::process::Signal;
use std::{process::ExitStatus, time::Duration};

/// How long a container works on after SIGTERM.
const WORKS_FOR: &str = "200ms";
/// From the delete request until the kubelet begins to stop the containers.
const NOTICE: Duration = Duration::from_millis(20);
/// Between the steps of a teardown.
const STEP: Duration = Duration::from_millis(50);
/// From the end of the pod until its sandbox is removed: the kubelet collects them later.
const COLLECTED_AFTER: Duration = Duration::from_secs(5);

/// Where pods live.
#[derive(Debug)]
pub(super) struct NodeParts {
    pub(super) store: Store,
    pub(super) runtime: Runtime,
    pub(super) ground: Ground,
}

/// A pod that runs.
#[derive(Debug)]
pub(super) struct RunningPod {
    plan: Plan,
    uid: String,
    pause: PodProcess,
    shim: PodProcess,
    containers: Vec<(&'static str, PodProcess)>,
}

impl NodeParts {
    /// Creates a pod and everything that a running one has.
    pub(super) fn run(&self, plan: Plan) -> anyhow::Result<RunningPod> {
        let made = self.store.create(
            ResourceKind::Pod,
            &plan.namespace,
            plan.object(&jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        )?;
        let uid = made["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let pod = plan.cgroup(&uid);
        let shim = self.ground.start_shim(&plan.sandbox())?;
        let pause = self.main(&pod, &plan.sandbox(), &["pause"])?;
        self.runtime.run_sandbox(&plan, &uid);
        let mut containers = Vec::with_capacity(CONTAINERS.len());
        for name in CONTAINERS {
            let process =
                self.main(&pod, &plan.container(name), &["handle", "--for", WORKS_FOR])?;
            self.runtime.run_container(&plan, &uid, name, process.pid());
            containers.push((name, process));
        }
        Ok(RunningPod { plan, uid, pause, shim, containers })
    }

    fn main(&self, pod: &str, id: &str, behaviour: &[&str]) -> anyhow::Result<PodProcess> {
        let cgroup = scope(pod, id);
        self.ground.make(&cgroup)?;
        self.ground.start(&cgroup, behaviour)
    }

    /// Deletes it and lets it die: request, SIGTERM, exits, the runtime's word, teardown of the
    /// sandbox, the object's end, and after a while the sandbox'.
    pub(super) async fn terminate(&self, pod: RunningPod) -> anyhow::Result<()> {
        let RunningPod { plan, uid, mut pause, mut shim, containers } = pod;
        self.store.delete_pod(&plan.namespace, &plan.name, &DeleteOptions::default())?;
        tokio::time::sleep(NOTICE).await;
        let group = plan.cgroup(&uid);
        let deaths = containers.into_iter().map(|(name, mut process)| {
            let (plan, group) = (&plan, &group);
            async move {
                let code = code(process.end(Signal::TERM).await?);
                let id = plan.container(name);
                self.ground.remove(&scope(group, &id)).await?;
                self.runtime.exited(&id, code);
                anyhow::Ok((name, code))
            }
        });
        let codes = futures::future::try_join_all(deaths).await?;
        tokio::time::sleep(STEP).await;
        pause.end(Signal::KILL).await?;
        self.ground.remove(&scope(&group, &plan.sandbox())).await?;
        self.runtime.stop_sandbox(&plan.sandbox());
        shim.end(Signal::KILL).await?;
        tokio::time::sleep(STEP).await;
        self.ground.remove(&group).await?;
        self.runtime.remove_containers(&plan);
        self.end_object(&plan, &uid, &codes)?;
        tokio::time::sleep(COLLECTED_AFTER).await;
        self.runtime.remove_sandbox(&plan.sandbox());
        Ok(())
    }

    /// The last status, and the kubelet's own delete request.
    fn end_object(&self, plan: &Plan, uid: &str, codes: &[(&str, i32)]) -> anyhow::Result<()> {
        self.store.patch_status(&plan.namespace, &plan.name, Some(uid), |status| {
            status.phase = Some("Succeeded".into());
            for one in status.container_statuses.iter_mut().flatten() {
                let code = codes.iter().find(|(name, _)| *name == one.name).map_or(0, |(_, c)| *c);
                one.ready = false;
                one.state = Some(ContainerState {
                    terminated: Some(ContainerStateTerminated {
                        exit_code: code,
                        container_id: one.container_id.clone(),
                        finished_at: Some(Time(jiff::Timestamp::now())),
                        reason: Some("Completed".into()),
                        ..Default::default()
                    }),
                    ..Default::default()
                });
            }
        })?;
        let last = DeleteOptions { grace: Some(0), uid: Some(uid.into()), ..Default::default() };
        self.store.delete_pod(&plan.namespace, &plan.name, &last)?;
        Ok(())
    }
}

/// A container's cgroup in its pod's.
fn scope(pod: &str, id: &str) -> String {
    format!("{pod}/cri-containerd-{id}.scope")
}

/// As the runtime tells it: a signal's number counts from 128.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}
