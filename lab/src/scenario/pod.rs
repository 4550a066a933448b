//! Pods of the lab's own workload.

use super::NAMESPACE;
use k8s_openapi::{
    api::core::v1::{
        Container, ExecAction, Lifecycle, LifecycleHandler, Pod, PodSpec, ResourceRequirements,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use std::collections::BTreeMap;

/// The image's only binary.
const WORKLOAD: &str = "/workload";

/// What a scenario's pod is made from.
#[derive(Clone, Debug)]
pub(super) struct Blueprint {
    pub(super) grace: i64,
    pub(super) restart: bool,
    pub(super) containers: Vec<Part>,
}

/// One container.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: &'static str,
    /// Words of the workload's command line, as one text.
    pub(super) life: &'static str,
    pub(super) post_start: Option<&'static str>,
    pub(super) pre_stop: Option<&'static str>,
    /// A limit such as `32Mi`.
    pub(super) memory: Option<&'static str>,
}

impl Part {
    pub(super) fn new(name: &'static str, life: &'static str) -> Self {
        Self { name, life, post_start: None, pre_stop: None, memory: None }
    }

    pub(super) fn post_start(self, life: &'static str) -> Self {
        Self { post_start: Some(life), ..self }
    }

    pub(super) fn pre_stop(self, life: &'static str) -> Self {
        Self { pre_stop: Some(life), ..self }
    }

    pub(super) fn memory(self, limit: &'static str) -> Self {
        Self { memory: Some(limit), ..self }
    }

    fn build(&self, image: &str) -> Container {
        let hook = |life: &str| LifecycleHandler {
            exec: Some(ExecAction { command: Some(command(life)) }),
            ..Default::default()
        };
        let lifecycle = Lifecycle {
            post_start: self.post_start.map(hook),
            pre_stop: self.pre_stop.map(hook),
            ..Default::default()
        };
        Container {
            name: self.name.into(),
            image: Some(image.into()),
            image_pull_policy: Some("Never".into()),
            command: Some(command(self.life)),
            lifecycle: (lifecycle != Lifecycle::default()).then_some(lifecycle),
            resources: self.memory.map(|limit| ResourceRequirements {
                limits: Some(BTreeMap::from([("memory".into(), Quantity(limit.into()))])),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

impl Blueprint {
    pub(super) fn build(&self, name: &str, image: &str, node: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some(NAMESPACE.into());
        pod.metadata.labels = Some(BTreeMap::from([("coroner/scenario".into(), name.into())]));
        pod.spec = Some(PodSpec {
            node_name: Some(node.into()),
            host_network: Some(true),
            restart_policy: Some(if self.restart { "Always" } else { "Never" }.into()),
            termination_grace_period_seconds: Some(self.grace),
            containers: self.containers.iter().map(|part| part.build(image)).collect(),
            ..Default::default()
        });
        pod
    }
}

fn command(life: &str) -> Vec<String> {
    std::iter::once(WORKLOAD).chain(life.split_whitespace()).map(Into::into).collect()
}
