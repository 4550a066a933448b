//! Pods of the lab's own workload.

use super::NAMESPACE;
use coroner_lab_cluster::image;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerResizePolicy, ContainerRestartRule, ContainerRestartRuleOnExitCodes,
        ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler, Pod, PodSpec, Probe,
        ResourceRequirements, SleepAction, TCPSocketAction,
    },
    apimachinery::pkg::{
        api::resource::Quantity, apis::meta::v1::OwnerReference, util::intstr::IntOrString,
    },
};
use std::{collections::BTreeMap, time::Duration};

/// In a workload's command line: a port that is free on the node.
pub(super) const PORT: &str = "{port}";

/// In a command: for so many seconds more than this, the runtime's lists may show the container.
const LISTED: &str = "+listed";

/// Where a pod is made.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The node that it is bound to.
    pub node: &'a str,
    /// A port that is free there.
    pub port: u16,
    /// How long the runtime's lists take to show a container.
    pub listed: Duration,
}

/// What a scenario's pod is made from.
#[derive(Clone, Debug)]
pub(super) struct Blueprint {
    pub(super) grace: i64,
    pub(super) restart: &'static str,
    /// activeDeadlineSeconds.
    pub(super) deadline: Option<i64>,
    pub(super) share_pid: bool,
    pub(super) host_pid: bool,
    /// A network namespace and an address of its own.
    pub(super) own_network: bool,
    /// `hostUsers: false`, which takes a network of its own.
    pub(super) own_users: bool,
    /// A static pod.
    pub(super) from_manifest: bool,
    /// metadata.finalizers.
    pub(super) finalizer: Option<&'static str>,
    /// Kind and name of the controller in metadata.ownerReferences.
    pub(super) owner: Option<(&'static str, &'static str)>,
    pub(super) containers: Vec<Part>,
}

/// A hook, by its kind.
#[derive(Clone, Copy, Debug)]
enum LifecycleHook {
    /// Words of the workload's command line.
    Exec(&'static str),
    /// Of the container's own port.
    HttpGet,
    /// Seconds.
    Sleep(i64),
}

/// A probe, by its kind.
#[derive(Clone, Copy, Debug)]
enum Check {
    /// Words of the workload's command line.
    Exec(&'static str),
    /// Of the container's own port.
    HttpGet,
    /// To the container's own port.
    TcpSocket,
}

/// One container.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: &'static str,
    image: &'static str,
    /// Words of the workload's command line, as one text.
    life: &'static str,
    sidecar: bool,
    post_start: Option<LifecycleHook>,
    pre_stop: Option<LifecycleHook>,
    /// lifecycle.stopSignal.
    stop_signal: Option<&'static str>,
    liveness: Option<Check>,
    startup: Option<Check>,
    /// terminationGracePeriodSeconds of its probes.
    probe_grace: Option<i64>,
    /// An exit code with which it has all containers of the pod restarted.
    restarts_all_on: Option<i32>,
    /// A request such as `100m`, which is changed only with a restart.
    cpu: Option<&'static str>,
    /// A limit such as `32Mi`.
    pub(super) memory: Option<&'static str>,
}

impl Part {
    pub(super) fn new(name: &'static str, life: &'static str) -> Self {
        Self {
            name,
            image: image::NAME,
            life,
            sidecar: false,
            post_start: None,
            pre_stop: None,
            stop_signal: None,
            liveness: None,
            startup: None,
            probe_grace: None,
            restarts_all_on: None,
            cpu: None,
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
        Self { post_start: Some(LifecycleHook::Exec(life)), ..self }
    }

    pub(super) fn pre_stop(self, life: &'static str) -> Self {
        Self { pre_stop: Some(LifecycleHook::Exec(life)), ..self }
    }

    pub(super) fn pre_stop_http(self) -> Self {
        Self { pre_stop: Some(LifecycleHook::HttpGet), ..self }
    }

    pub(super) fn pre_stop_sleep(self, seconds: i64) -> Self {
        Self { pre_stop: Some(LifecycleHook::Sleep(seconds)), ..self }
    }

    pub(super) fn stop_signal(self, name: &'static str) -> Self {
        Self { stop_signal: Some(name), ..self }
    }

    pub(super) fn liveness(self, life: &'static str) -> Self {
        Self { liveness: Some(Check::Exec(life)), ..self }
    }

    pub(super) fn liveness_http(self) -> Self {
        Self { liveness: Some(Check::HttpGet), ..self }
    }

    pub(super) fn liveness_tcp(self) -> Self {
        Self { liveness: Some(Check::TcpSocket), ..self }
    }

    pub(super) fn probe_grace(self, seconds: i64) -> Self {
        Self { probe_grace: Some(seconds), ..self }
    }

    pub(super) fn startup(self, life: &'static str) -> Self {
        Self { startup: Some(Check::Exec(life)), ..self }
    }

    pub(super) fn startup_tcp(self) -> Self {
        Self { startup: Some(Check::TcpSocket), ..self }
    }

    pub(super) fn memory(self, limit: &'static str) -> Self {
        Self { memory: Some(limit), ..self }
    }

    /// It is not restarted, but where it exits with this code all containers of the pod are.
    pub(super) fn restarts_all_on(self, code: i32) -> Self {
        Self { restarts_all_on: Some(code), ..self }
    }

    fn rule(code: i32) -> ContainerRestartRule {
        ContainerRestartRule {
            action: "RestartAllContainers".into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: "In".into(),
                values: Some(vec![code]),
            }),
        }
    }

    /// A request, and the resizePolicy RestartContainer.
    pub(super) fn cpu(self, request: &'static str) -> Self {
        Self { cpu: Some(request), ..self }
    }

    fn resources(&self) -> Option<ResourceRequirements> {
        let one = |kind: &str, quantity: &str| {
            BTreeMap::from([(kind.to_owned(), Quantity(quantity.into()))])
        };
        let limits = self.memory.map(|limit| one("memory", limit));
        let requests = self.cpu.map(|request| one("cpu", request));
        (limits.is_some() || requests.is_some()).then(|| ResourceRequirements {
            limits,
            requests,
            ..Default::default()
        })
    }

    fn build(&self, site: Site<'_>) -> Container {
        let hook = |hook: LifecycleHook| handler(hook, site);
        let lifecycle = Lifecycle {
            post_start: self.post_start.map(hook),
            pre_stop: self.pre_stop.map(hook),
            stop_signal: self.stop_signal.map(Into::into),
        };
        let probe = |check: Check| Probe {
            initial_delay_seconds: Some(1),
            period_seconds: Some(1),
            failure_threshold: Some(2),
            termination_grace_period_seconds: self.probe_grace,
            ..prober(check, site)
        };
        Container {
            name: self.name.into(),
            image: Some(self.image.into()),
            image_pull_policy: Some("Never".into()),
            command: Some(command(self.life, site)),
            lifecycle: (lifecycle != Lifecycle::default()).then_some(lifecycle),
            restart_policy: if self.restarts_all_on.is_some() {
                Some("Never".into())
            } else {
                self.sidecar.then(|| "Always".into())
            },
            restart_policy_rules: self.restarts_all_on.map(|code| vec![Self::rule(code)]),
            liveness_probe: self.liveness.map(probe),
            startup_probe: self.startup.map(probe),
            resize_policy: self.cpu.map(|_| {
                vec![ContainerResizePolicy {
                    resource_name: "cpu".into(),
                    restart_policy: "RestartContainer".into(),
                }]
            }),
            resources: self.resources(),
            ..Default::default()
        }
    }
}

impl Blueprint {
    pub(super) fn new(grace: i64) -> Self {
        Self {
            grace,
            restart: "Always",
            deadline: None,
            share_pid: false,
            host_pid: false,
            own_network: false,
            own_users: false,
            from_manifest: false,
            finalizer: None,
            owner: None,
            containers: Vec::new(),
        }
    }

    pub(super) fn build(&self, name: &str, site: Site<'_>) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some(NAMESPACE.into());
        pod.metadata.labels = Some(BTreeMap::from([("coroner/scenario".into(), name.into())]));
        pod.metadata.finalizers = self.finalizer.map(|name| vec![name.to_owned()]);
        pod.metadata.owner_references = self.owner.map(|(kind, name)| {
            vec![OwnerReference {
                api_version: if kind == "Job" { "batch/v1" } else { "apps/v1" }.into(),
                kind: kind.into(),
                name: name.into(),
                uid: name.into(),
                controller: Some(true),
                block_owner_deletion: None,
            }]
        });
        let built = |sidecars: bool| -> Vec<Container> {
            let parts = self.containers.iter().filter(|part| part.sidecar == sidecars);
            parts.map(|part| part.build(site)).collect()
        };
        let sidecars = built(true);
        pod.spec = Some(PodSpec {
            node_name: Some(site.node.into()),
            host_network: (!self.own_network).then_some(true),
            host_pid: self.host_pid.then_some(true),
            host_users: self.own_users.then_some(false),
            share_process_namespace: self.share_pid.then_some(true),
            restart_policy: Some(self.restart.into()),
            termination_grace_period_seconds: Some(self.grace),
            active_deadline_seconds: self.deadline,
            containers: built(false),
            init_containers: (!sidecars.is_empty()).then_some(sidecars),
            ..Default::default()
        });
        pod
    }
}

fn prober(check: Check, site: Site<'_>) -> Probe {
    let mut probe = Probe::default();
    match check {
        Check::Exec(life) => probe.exec = Some(exec(life, site)),
        Check::HttpGet => probe.http_get = Some(http_get("/healthz", site)),
        Check::TcpSocket => {
            let port = IntOrString::Int(site.port.into());
            probe.tcp_socket = Some(TCPSocketAction { port, ..Default::default() });
        }
    }
    probe
}

fn exec(life: &str, site: Site<'_>) -> ExecAction {
    ExecAction { command: Some(command(life, site)) }
}

fn http_get(path: &str, site: Site<'_>) -> HTTPGetAction {
    let port = IntOrString::Int(site.port.into());
    HTTPGetAction { path: Some(path.into()), port, ..Default::default() }
}

fn handler(hook: LifecycleHook, site: Site<'_>) -> LifecycleHandler {
    match hook {
        LifecycleHook::Exec(life) => {
            LifecycleHandler { exec: Some(exec(life, site)), ..Default::default() }
        }
        LifecycleHook::HttpGet => {
            LifecycleHandler { http_get: Some(http_get("/prestop", site)), ..Default::default() }
        }
        LifecycleHook::Sleep(seconds) => {
            LifecycleHandler { sleep: Some(SleepAction { seconds }), ..Default::default() }
        }
    }
}

fn command(life: &str, site: Site<'_>) -> Vec<String> {
    let word = |word: &str| match word.strip_suffix(LISTED).map(str::parse::<u64>) {
        Some(Ok(seconds)) => format!("{}s", seconds + site.listed.as_secs()),
        _ if word == PORT => site.port.to_string(),
        _ => word.into(),
    };
    std::iter::once(image::PROGRAM.to_owned()).chain(life.split_whitespace().map(word)).collect()
}
