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

/// A container's present life as the runtime tells it, and the one before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The present life.
    pub now: Observed,
    /// The one before.
    pub before: Option<Observed>,
    /// How many there were before.
    pub restarts: u32,
    /// Not waiting for a startup probe.
    pub started: bool,
}

/// What the status says beyond the containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason<'a> {
    /// status.reason.
    pub reason: &'a str,
    /// status.message.
    pub message: &'a str,
    /// The kubelet ended the pod on its own: phase Failed, and the condition DisruptionTarget.
    pub by_kubelet: bool,
}

/// The phase: a pod that will not run again is Succeeded if all its main containers left with 0,
/// else Failed; kubelets ≥ 1.33 say so of a deleted pod too, before its object goes.
pub fn phase(pod: &Pod, containers: &BTreeMap<String, Seen>, terminal: bool) -> &'static str {
    let mut mains =
        pod.spec.iter().flat_map(|spec| &spec.containers).map(|main| containers.get(&main.name));
    if terminal {
        let succeeded = mains.all(|main| {
            main.and_then(|main| main.now.ended.as_ref()).is_some_and(|ended| ended.exit_code == 0)
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
    containers: &BTreeMap<String, Seen>,
    terminal: bool,
    reason: Option<Reason<'_>>,
    node_ip: &str,
    now: Timestamp,
) -> PodStatus {
    let by_kubelet = reason.filter(|reason| reason.by_kubelet);
    let phase = if by_kubelet.is_some() { "Failed" } else { phase(pod, containers, terminal) };
    let before = pod.status.clone().unwrap_or_default();
    let running =
        phase == "Running" && containers.values().all(|c| c.now.ended.is_none() && c.started);
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
    let mut conditions = vec![
        condition("PodReadyToStartContainers", !containers.is_empty() && !terminal, None),
        condition("Initialized", true, finished),
        condition("Ready", running, not_ready),
        condition("ContainersReady", running, not_ready),
        condition("PodScheduled", true, None),
    ];
    conditions.extend(by_kubelet.map(|by_kubelet| PodCondition {
        message: Some(by_kubelet.message.into()),
        ..condition("DisruptionTarget", true, Some("TerminationByKubelet"))
    }));
    PodStatus {
        phase: Some(phase.into()),
        conditions: Some(conditions),
        reason: reason.map(|of| of.reason.into()),
        message: reason.map(|of| of.message.into()),
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

fn container_status(name: &str, image: Option<&str>, seen: Option<&Seen>) -> ContainerStatus {
    let state = seen.map_or_else(
        || ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some("ContainerCreating".into()),
                ..Default::default()
            }),
            ..Default::default()
        },
        |seen| told(&seen.now),
    );
    let runs = state.running.is_some() && seen.is_some_and(|seen| seen.started);
    ContainerStatus {
        name: name.into(),
        image: image.unwrap_or_default().into(),
        image_id: seen.map(|seen| seen.now.image_id.clone()).unwrap_or_default(),
        container_id: seen.map(|seen| container_id(&seen.now)),
        ready: runs,
        started: Some(runs),
        restart_count: seen.and_then(|seen| i32::try_from(seen.restarts).ok()).unwrap_or_default(),
        last_state: Some(seen.and_then(|seen| seen.before.as_ref()).map(told).unwrap_or_default()),
        state: Some(state),
        ..Default::default()
    }
}

fn container_id(of: &Observed) -> String {
    format!("containerd://{}", of.id)
}

fn told(of: &Observed) -> ContainerState {
    let started_at = time(of.started_ns);
    match &of.ended {
        None => ContainerState {
            running: Some(ContainerStateRunning { started_at }),
            ..Default::default()
        },
        Some(ended) => ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: ended.exit_code,
                reason: Some(ended.reason.clone()),
                started_at,
                finished_at: time(ended.finished_ns),
                container_id: Some(container_id(of)),
                ..Default::default()
            }),
            ..Default::default()
        },
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

    fn seen(exit_code: Option<i32>) -> Seen {
        Seen { now: observed("c0ffee", exit_code), before: None, restarts: 0, started: true }
    }

    fn observed(id: &str, exit_code: Option<i32>) -> Observed {
        Observed {
            id: id.into(),
            image_id: "sha256:0".into(),
            started_ns: 1_000_000_001,
            ended: exit_code.map(|exit_code| Ended {
                finished_ns: 2_999_999_999,
                exit_code,
                reason: "Completed".into(),
            }),
        }
    }

    fn all(a: Seen, b: Seen) -> BTreeMap<String, Seen> {
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
        let status =
            status(&pod(), &all(seen(Some(7)), seen(Some(0))), true, None, "10.0.0.1", now);
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

    #[test]
    fn a_restarted_container_tells_of_the_life_before() {
        let again = Seen {
            before: Some(observed("beef", Some(3))),
            restarts: 1,
            started: false,
            ..seen(None)
        };
        let now = Timestamp::UNIX_EPOCH;
        let status = status(&pod(), &all(again, seen(None)), false, None, "10.0.0.1", now);
        let a = &status.container_statuses.unwrap()[0];
        assert_eq!((a.restart_count, a.started, a.ready), (1, Some(false), false));
        let before = a.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!(
            (before.exit_code, before.container_id.as_deref()),
            (3, Some("containerd://beef"))
        );
    }

    #[test]
    fn what_the_kubelet_ends_has_failed_though_its_containers_left_with_0() {
        let reason = Reason { reason: "Evicted", message: "The node was low.", by_kubelet: true };
        let all = all(seen(Some(0)), seen(Some(0)));
        let now = Timestamp::UNIX_EPOCH;
        let status = status(&pod(), &all, true, Some(reason), "10.0.0.1", now);
        assert_eq!(
            (status.phase.as_deref(), status.reason.as_deref()),
            (Some("Failed"), Some("Evicted"))
        );
        let target = status.conditions.unwrap().pop().unwrap();
        assert_eq!(
            (target.type_.as_str(), target.reason.as_deref()),
            ("DisruptionTarget", Some("TerminationByKubelet"))
        );
    }
}
