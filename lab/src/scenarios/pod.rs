//! Pods of the lab's own workload.

use super::NAMESPACE;
use crate::{driver, image};
use k8s_openapi::{
    api::core::v1::{
        Container, ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler, Pod, PodSecurityContext,
        PodSpec, Probe, ResourceRequirements, SleepAction, Sysctl,
    },
    apimachinery::pkg::{
        api::resource::Quantity, apis::meta::v1::OwnerReference, util::intstr::IntOrString,
    },
};
use std::collections::BTreeMap;

/// The port on which pods serve.
pub(crate) const PORT: u16 = 8080;

/// What a scenario's pod is made from.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    pub(crate) grace: i64,
    pub(crate) restart: &'static str,
    pub(crate) share_pid: bool,
    pub(crate) host_pid: bool,
    /// A network namespace and an address of its own.
    pub(crate) own_network: bool,
    pub(crate) is_static: bool,
    pub(crate) never_starts: bool,
    /// What the driver does not remove.
    pub(crate) leaves: Option<&'static str>,
    /// metadata.finalizers.
    pub(crate) finalizer: Option<&'static str>,
    /// Kind and name of the controller in metadata.ownerReferences.
    pub(crate) owner: Option<(&'static str, &'static str)>,
    pub(crate) containers: Vec<Part>,
}

/// One container.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    image: &'static str,
    /// Words of the workload's command line, as one text.
    life: &'static str,
    sidecar: bool,
    post_start: Option<LifecycleHandler>,
    pre_stop: Option<LifecycleHandler>,
    /// lifecycle.stopSignal.
    stop_signal: Option<&'static str>,
    has_liveness: bool,
    /// A limit such as `32Mi`.
    pub(crate) memory: Option<&'static str>,
}

impl Part {
    pub(crate) fn new(name: &'static str, life: &'static str) -> Self {
        Self {
            name,
            image: image::NAME,
            life,
            sidecar: false,
            post_start: None,
            pre_stop: None,
            stop_signal: None,
            has_liveness: false,
            memory: None,
        }
    }

    pub(super) fn image(self, image: &'static str) -> Self {
        Self { image, ..self }
    }

    /// A native sidecar: an init container that is always restarted.
    pub(super) fn sidecar(self) -> Self {
        Self { sidecar: true, ..self }
    }

    pub(super) fn post_start(self, life: &'static str) -> Self {
        Self { post_start: Some(exec(life)), ..self }
    }

    pub(crate) fn pre_stop(self, life: &'static str) -> Self {
        Self { pre_stop: Some(exec(life)), ..self }
    }

    pub(super) fn pre_stop_http(self) -> Self {
        let http_get = Some(http_get("/prestop"));
        Self { pre_stop: Some(LifecycleHandler { http_get, ..Default::default() }), ..self }
    }

    pub(super) fn pre_stop_sleep(self, seconds: i64) -> Self {
        let sleep = Some(SleepAction { seconds });
        Self { pre_stop: Some(LifecycleHandler { sleep, ..Default::default() }), ..self }
    }

    pub(super) fn stop_signal(self, name: &'static str) -> Self {
        Self { stop_signal: Some(name), ..self }
    }

    /// A probe that the driver never runs: what it finds, the scenario decides.
    pub(super) fn liveness_http(self) -> Self {
        Self { has_liveness: true, ..self }
    }

    pub(crate) fn memory(self, limit: &'static str) -> Self {
        Self { memory: Some(limit), ..self }
    }

    fn build(&self) -> Container {
        let lifecycle = Lifecycle {
            post_start: self.post_start.clone(),
            pre_stop: self.pre_stop.clone(),
            stop_signal: self.stop_signal.map(Into::into),
        };
        let liveness = Probe {
            http_get: Some(http_get("/healthz")),
            failure_threshold: Some(2),
            ..Default::default()
        };
        let limits = self
            .memory
            .map(|limit| BTreeMap::from([("memory".to_owned(), Quantity(limit.into()))]));
        Container {
            name: self.name.into(),
            image: Some(self.image.into()),
            image_pull_policy: Some("Never".into()),
            command: Some(command(self.life)),
            lifecycle: (lifecycle != Lifecycle::default()).then_some(lifecycle),
            restart_policy: self.sidecar.then(|| "Always".into()),
            liveness_probe: self.has_liveness.then_some(liveness),
            resources: limits
                .map(|limits| ResourceRequirements { limits: Some(limits), ..Default::default() }),
            ..Default::default()
        }
    }
}

impl Blueprint {
    pub(crate) fn new(grace: i64) -> Self {
        Self {
            grace,
            restart: "Always",
            share_pid: false,
            host_pid: false,
            own_network: false,
            is_static: false,
            never_starts: false,
            leaves: None,
            finalizer: None,
            owner: None,
            containers: Vec::new(),
        }
    }

    pub(crate) fn build(&self, name: &str, node: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some(NAMESPACE.into());
        let leaves = self.leaves.map(|what| [(driver::LEAVES.into(), what.into())].into());
        pod.metadata.annotations = leaves;
        pod.metadata.finalizers = self.finalizer.map(|name| vec![name.to_owned()]);
        pod.metadata.owner_references = self.owner.map(|(kind, name)| {
            vec![OwnerReference {
                api_version: "apps/v1".into(),
                kind: kind.into(),
                name: name.into(),
                uid: name.into(),
                controller: Some(true),
                block_owner_deletion: None,
            }]
        });
        let built = |sidecars: bool| -> Vec<Container> {
            let parts = self.containers.iter().filter(|part| part.sidecar == sidecars);
            parts.map(Part::build).collect()
        };
        let sidecars = built(true);
        pod.spec = Some(PodSpec {
            node_name: Some(node.into()),
            host_network: (!self.own_network).then_some(true),
            host_pid: self.host_pid.then_some(true),
            share_process_namespace: self.share_pid.then_some(true),
            restart_policy: Some(self.restart.into()),
            termination_grace_period_seconds: Some(self.grace),
            containers: built(false),
            // Of no namespace of the pod's own: the runtime refuses it.
            security_context: self.never_starts.then(|| PodSecurityContext {
                sysctls: Some(vec![Sysctl { name: "vm.laptop_mode".into(), value: "0".into() }]),
                ..Default::default()
            }),
            init_containers: (!sidecars.is_empty()).then_some(sidecars),
            ..Default::default()
        });
        pod
    }
}

fn exec(life: &str) -> LifecycleHandler {
    let exec = Some(ExecAction { command: Some(command(life)) });
    LifecycleHandler { exec, ..Default::default() }
}

fn http_get(path: &str) -> HTTPGetAction {
    let port = IntOrString::Int(PORT.into());
    HTTPGetAction { path: Some(path.into()), port, ..Default::default() }
}

fn command(life: &str) -> Vec<String> {
    std::iter::once(image::PROGRAM).chain(life.split_whitespace()).map(str::to_owned).collect()
}
