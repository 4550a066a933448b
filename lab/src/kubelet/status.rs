//! What the kubelet reports of a pod, in the form of a status. Pure.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, Pod, PodCondition, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use std::collections::BTreeMap;

/// What the runtime says of one container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observed {
    /// Its id.
    pub id: String,
    /// Its image's reference.
    pub image_id: String,
    /// started_at, ns since the epoch.
    pub started_ns: i64,
    /// How it ended; `None` while it runs.
    pub ended: Option<Ended>,
}

/// How a container ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// finished_at, ns since the epoch.
    pub finished_ns: i64,
    /// exit_code.
    pub exit_code: i32,
    /// reason.
    pub reason: String,
}

/// The phase: a pod that will not run again is Succeeded if all its main containers left with 0,
/// else Failed; kubelets ≥ 1.33 say so of a deleted pod too, before its object goes.
pub fn phase(pod: &Pod, containers: &BTreeMap<String, Observed>, terminal: bool) -> &'static str {
    let mut mains =
        pod.spec.iter().flat_map(|spec| &spec.containers).map(|main| containers.get(&main.name));
    if terminal {
        let succeeded = mains.all(|main| {
            main.and_then(|main| main.ended.as_ref()).is_some_and(|ended| ended.exit_code == 0)
        });
        if succeeded { "Succeeded" } else { "Failed" }
    } else if mains.all(|main| main.is_some()) {
        "Running"
    } else {
        "Pending"
    }
}

/// The whole status. `terminal`: nothing of it runs, and nothing will.
pub fn status(
    pod: &Pod,
    containers: &BTreeMap<String, Observed>,
    terminal: bool,
    node_ip: &str,
    now: Timestamp,
) -> PodStatus {
    let phase = phase(pod, containers, terminal);
    let before = pod.status.clone().unwrap_or_default();
    let running = phase == "Running" && containers.values().all(|c| c.ended.is_none());
    let finished = terminal.then_some("PodCompleted");
    let not_ready = if running { None } else { finished.or(Some("ContainersNotReady")) };
    let condition = |kind: &str, holds: bool, reason: Option<&str>| {
        let status = if holds { "True" } else { "False" };
        let since = before
            .conditions
            .iter()
            .flatten()
            .find(|known| known.type_ == kind && known.status == status)
            .and_then(|known| known.last_transition_time.clone());
        PodCondition {
            type_: kind.into(),
            status: status.into(),
            last_transition_time: Some(since.unwrap_or(Time(now))),
            reason: reason.map(Into::into),
            ..Default::default()
        }
    };
    let spec_images: BTreeMap<&str, &str> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
        .map(|c| (c.name.as_str(), c.image.as_deref().unwrap_or_default()))
        .collect();
    let report =
        |name: &str| container_status(name, spec_images.get(name).copied(), containers.get(name));
    let spec = pod.spec.as_ref();
    let inits: Vec<ContainerStatus> = spec
        .and_then(|spec| spec.init_containers.as_ref())
        .into_iter()
        .flatten()
        .map(|init| report(&init.name))
        .collect();
    PodStatus {
        phase: Some(phase.into()),
        conditions: Some(vec![
            condition("PodReadyToStartContainers", !containers.is_empty() && !terminal, None),
            condition("Initialized", true, finished),
            condition("Ready", running, not_ready),
            condition("ContainersReady", running, not_ready),
            condition("PodScheduled", true, None),
        ]),
        host_ip: Some(node_ip.into()),
        pod_ip: (!containers.is_empty()).then(|| node_ip.into()),
        start_time: before.start_time.or(Some(Time(now))),
        container_statuses: spec
            .map(|spec| spec.containers.iter().map(|main| report(&main.name)).collect()),
        init_container_statuses: (!inits.is_empty()).then_some(inits),
        qos_class: Some(match super::translate::qos_class(pod) {
            "burstable" => "Burstable".into(),
            _ => "BestEffort".into(),
        }),
        ..Default::default()
    }
}

fn container_status(name: &str, image: Option<&str>, seen: Option<&Observed>) -> ContainerStatus {
    let id = seen.map(|seen| format!("containerd://{}", seen.id));
    let state = match seen {
        None => ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some("ContainerCreating".into()),
                ..Default::default()
            }),
            ..Default::default()
        },
        Some(Observed { ended: None, started_ns, .. }) => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(*started_ns) }),
            ..Default::default()
        },
        Some(Observed { ended: Some(ended), started_ns, .. }) => ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: ended.exit_code,
                reason: Some(ended.reason.clone()),
                started_at: time(*started_ns),
                finished_at: time(ended.finished_ns),
                container_id: id.clone(),
                ..Default::default()
            }),
            ..Default::default()
        },
    };
    let runs = state.running.is_some();
    ContainerStatus {
        name: name.into(),
        image: image.unwrap_or_default().into(),
        image_id: seen.map(|seen| seen.image_id.clone()).unwrap_or_default(),
        container_id: id,
        ready: runs,
        started: Some(runs),
        restart_count: 0,
        last_state: Some(ContainerState::default()),
        state: Some(state),
        ..Default::default()
    }
}

/// The API's times are whole seconds.
fn time(ns: i64) -> Option<Time> {
    Timestamp::from_second(ns.div_euclid(1_000_000_000)).ok().map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, PodSpec};

    fn pod() -> Pod {
        let named = |name: &str| Container { name: name.into(), ..Default::default() };
        Pod {
            spec: Some(PodSpec {
                containers: vec![named("a"), named("b")],
                init_containers: Some(vec![Container {
                    restart_policy: Some("Always".into()),
                    ..named("side")
                }]),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn seen(exit_code: Option<i32>) -> Observed {
        Observed {
            id: "c0ffee".into(),
            image_id: "sha256:0".into(),
            started_ns: 1_000_000_001,
            ended: exit_code.map(|exit_code| Ended {
                finished_ns: 2_999_999_999,
                exit_code,
                reason: "Completed".into(),
            }),
        }
    }

    fn all(a: Observed, b: Observed) -> BTreeMap<String, Observed> {
        BTreeMap::from([("a".into(), a), ("b".into(), b), ("side".into(), seen(Some(137)))])
    }

    #[test]
    fn the_phase_follows_the_main_containers_alone() {
        assert_eq!(phase(&pod(), &BTreeMap::new(), false), "Pending");
        assert_eq!(phase(&pod(), &all(seen(None), seen(None)), false), "Running");
        assert_eq!(phase(&pod(), &all(seen(Some(0)), seen(None)), false), "Running");
        assert_eq!(phase(&pod(), &all(seen(Some(0)), seen(Some(0))), true), "Succeeded");
        assert_eq!(phase(&pod(), &all(seen(Some(0)), seen(Some(137))), true), "Failed");
        assert_eq!(phase(&pod(), &BTreeMap::new(), true), "Failed");
    }

    #[test]
    fn a_terminated_container_tells_its_code_and_id() {
        let now = Timestamp::UNIX_EPOCH;
        let status = status(&pod(), &all(seen(Some(7)), seen(Some(0))), true, "10.0.0.1", now);
        let a = &status.container_statuses.unwrap()[0];
        let ended = a.state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!(
            (ended.exit_code, ended.container_id.as_deref()),
            (7, Some("containerd://c0ffee"))
        );
        assert_eq!(ended.finished_at.as_ref().unwrap().0.as_second(), 2);
        assert_eq!(status.init_container_statuses.unwrap()[0].name, "side");
        let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_deref()),
            ("False", Some("PodCompleted"))
        );
    }
}
