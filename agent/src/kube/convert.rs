//! k8s-openapi's Pod → what the core knows. Pure.

use crate::domain::{
    ids::{ContainerId, PodUid},
    input::{ApiContainer, ApiPod, ApiTerminated, ContainerKind, Hook},
    signal,
    time::WallTime,
};
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateTerminated, ContainerStatus, Lifecycle, LifecycleHandler, Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use std::collections::BTreeMap;

/// Written by the kubelet on a static pod's mirror: pkg/kubelet/types/pod_update.go.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod; `None` if it has no uid, namespace or name, so that nothing can be joined to it.
pub fn pod(pod: &Pod) -> Option<ApiPod> {
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let uid = filled(metadata.uid.as_ref())?;
    let namespace = filled(metadata.namespace.as_ref())?;
    let name = filled(metadata.name.as_ref())?;
    Some(ApiPod {
        uid,
        namespace,
        name,
        mirror_of: filled(metadata.annotations.as_ref().and_then(|all| all.get(MIRROR)))
            .map(PodUid::new),
        deletion_timestamp: metadata.deletion_timestamp.as_ref().map(wall),
        deletion_grace_seconds: metadata.deletion_grace_period_seconds,
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        grace_seconds: spec.and_then(|spec| spec.termination_grace_period_seconds),
        restart_policy: spec.and_then(|spec| spec.restart_policy.clone()).unwrap_or_default(),
        phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
        reason: status.and_then(|status| status.reason.clone()).unwrap_or_default(),
        disruption: status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten()
            .find(|one| one.type_ == "DisruptionTarget" && one.status == "True")
            .map(|one| one.reason.clone().unwrap_or_default()),
        containers: containers(pod),
    })
}

fn containers(pod: &Pod) -> BTreeMap<String, ApiContainer> {
    let mut all = BTreeMap::new();
    if let Some(spec) = &pod.spec {
        for container in &spec.containers {
            let one = ApiContainer {
                liveness_probe: container.liveness_probe.is_some(),
                startup_probe: container.startup_probe.is_some(),
                ..specified(ContainerKind::Main, container.lifecycle.as_ref())
            };
            all.insert(container.name.clone(), one);
        }
        for container in spec.init_containers.iter().flatten() {
            let kind = match container.restart_policy.as_deref() {
                Some("Always") => ContainerKind::Sidecar,
                _ => ContainerKind::Init,
            };
            let one = ApiContainer {
                liveness_probe: container.liveness_probe.is_some(),
                startup_probe: container.startup_probe.is_some(),
                ..specified(kind, container.lifecycle.as_ref())
            };
            all.insert(container.name.clone(), one);
        }
        for container in spec.ephemeral_containers.iter().flatten() {
            let one = specified(ContainerKind::Ephemeral, container.lifecycle.as_ref());
            all.insert(container.name.clone(), one);
        }
    }
    if let Some(status) = &pod.status {
        let of_kind = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ];
        for status in of_kind.into_iter().flatten().flatten() {
            // Only what the spec names: the kind of anything else is unknown.
            if let Some(container) = all.get_mut(&status.name) {
                add_status(container, status);
            }
        }
    }
    all
}

fn specified(kind: ContainerKind, lifecycle: Option<&Lifecycle>) -> ApiContainer {
    ApiContainer {
        kind,
        pre_stop: lifecycle.and_then(|all| all.pre_stop.as_ref()).and_then(hook),
        stop_signal: lifecycle
            .and_then(|all| all.stop_signal.as_ref())
            .and_then(|name| signal::number(name)),
        ..ApiContainer::default()
    }
}

fn add_status(container: &mut ApiContainer, status: &ContainerStatus) {
    container.started = status.started;
    container.restarts = u32::try_from(status.restart_count).unwrap_or(0);
    container.id = container_id(status.container_id.as_ref());
    container.terminated = [&status.state, &status.last_state]
        .into_iter()
        .filter_map(|state: &Option<ContainerState>| state.as_ref()?.terminated.as_ref())
        .map(terminated)
        .collect();
}

fn terminated(state: &ContainerStateTerminated) -> ApiTerminated {
    ApiTerminated {
        id: container_id(state.container_id.as_ref()),
        exit_code: state.exit_code,
        reason: state.reason.clone().unwrap_or_default(),
        finished: state.finished_at.as_ref().map(wall),
    }
}

/// A hook, reduced to its kind and, for exec, the binary's file name.
fn hook(handler: &LifecycleHandler) -> Option<Hook> {
    if let Some(exec) = &handler.exec {
        return exec.command.as_ref()?.first().map(|command| Hook::exec(command));
    }
    if handler.http_get.is_some() {
        return Some(Hook::HttpGet);
    }
    if handler.tcp_socket.is_some() {
        return Some(Hook::TcpSocket);
    }
    handler.sleep.as_ref().map(|sleep| Hook::Sleep(sleep.seconds))
}

/// The id in `containerd://id`; an empty one is how the API says that there is none.
fn container_id(text: Option<&String>) -> Option<ContainerId> {
    let text = text?;
    let id = text.split_once("://").map_or(text.as_str(), |(_, id)| id);
    (!id.is_empty()).then(|| ContainerId::new(id))
}

fn filled(text: Option<&String>) -> Option<String> {
    text.filter(|text| !text.is_empty()).cloned()
}

fn wall(time: &Time) -> WallTime {
    let ns = time.0.as_nanosecond();
    // i64 holds until 2262.
    WallTime(i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX }))
}
