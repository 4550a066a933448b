//! What the kubelet reports of a pod, in the form of a status. Pure.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, Pod, PodCondition, PodIP, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use std::{collections::BTreeMap, net::IpAddr};

/// status.reason of a pod that could not be started; status.message then says why.
pub const START_FAILED: &str = "StartFailed";

/// What the runtime reports of one container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Observed {
    pub(super) id: String,
    pub(super) image_id: String,
    /// Times are ns since the epoch.
    pub(super) started: i64,
    /// How it exited; `None` while it runs.
    pub(super) exit: Option<Exit>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Exit {
    pub(super) at: i64,
    pub(super) code: i32,
    pub(super) reason: String,
}

/// A container's present attempt, and the one before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) now: Observed,
    pub(super) before: Option<Observed>,
    /// How many there were before.
    pub(super) restarts: u32,
}

/// What is reported of a pod beside its containers.
pub(super) struct Facts<'a> {
    /// Nothing of it runs, and nothing will.
    pub(super) is_terminal: bool,
    /// Why it could not be started.
    pub(super) failure: Option<&'a str>,
    pub(super) has_sandbox: bool,
    pub(super) ips: &'a [IpAddr],
}

/// A pod that will not run again is Succeeded if all its main containers exited with 0, else Failed.
fn phase(pod: &Pod, containers: &BTreeMap<String, Seen>, is_terminal: bool) -> &'static str {
    let mains = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut mains = mains.map(|main| containers.get(&main.name));
    let exit_code = |seen: &Seen| seen.now.exit.as_ref().map(|exit| exit.code);
    if is_terminal {
        let succeeded = mains.all(|main| main.and_then(exit_code) == Some(0));
        if succeeded { "Succeeded" } else { "Failed" }
    } else if mains.all(|main| main.is_some()) {
        "Running"
    } else {
        "Pending"
    }
}

/// The whole status. `before`: what was reported last.
pub(super) fn status(
    pod: &Pod,
    containers: &BTreeMap<String, Seen>,
    facts: &Facts<'_>,
    before: PodStatus,
) -> PodStatus {
    let now = Timestamp::now();
    let phase = phase(pod, containers, facts.is_terminal);
    let runs = phase == "Running" && containers.values().all(|seen| seen.now.exit.is_none());
    let finished = facts.is_terminal.then_some("PodCompleted");
    let not_ready = if runs { None } else { finished.or(Some("ContainersNotReady")) };
    let condition = |kind: &str, holds: bool, reason: Option<&str>| {
        let status = if holds { "True" } else { "False" };
        let mut known = before.conditions.iter().flatten();
        let same = known.find(|known| known.type_ == kind && known.status == status);
        let since = same.and_then(|known| known.last_transition_time.clone());
        PodCondition {
            type_: kind.into(),
            status: status.into(),
            last_transition_time: Some(since.unwrap_or(Time(now))),
            reason: reason.map(Into::into),
            ..Default::default()
        }
    };
    let conditions = vec![
        condition("PodReadyToStartContainers", facts.has_sandbox, None),
        condition("Initialized", true, finished),
        condition("Ready", runs, not_ready),
        condition("ContainersReady", runs, not_ready),
        condition("PodScheduled", true, None),
    ];
    let spec = pod.spec.clone().unwrap_or_default();
    let report = |one: &k8s_openapi::api::core::v1::Container| {
        container(&one.name, one.image.as_deref().unwrap_or_default(), containers.get(&one.name))
    };
    let inits = spec.init_containers.map(|all| all.iter().map(report).collect());
    let qos =
        if super::translate::qos_class(pod) == "burstable" { "Burstable" } else { "BestEffort" };
    PodStatus {
        phase: Some(phase.into()),
        conditions: Some(conditions),
        reason: facts.failure.map(|_| START_FAILED.into()),
        message: facts.failure.map(Into::into),
        host_ip: Some("127.0.0.1".into()),
        pod_ip: facts.ips.first().map(IpAddr::to_string),
        pod_ips: Some(facts.ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect()),
        start_time: before.start_time.clone().or(Some(Time(now))),
        container_statuses: Some(spec.containers.iter().map(report).collect()),
        init_container_statuses: inits,
        qos_class: Some(qos.into()),
        ..Default::default()
    }
}

fn container(name: &str, image: &str, seen: Option<&Seen>) -> ContainerStatus {
    let reason = Some("ContainerCreating".into());
    let waiting = ContainerStateWaiting { reason, ..Default::default() };
    let waiting = ContainerState { waiting: Some(waiting), ..Default::default() };
    let runs = seen.is_some_and(|seen| seen.now.exit.is_none());
    ContainerStatus {
        name: name.into(),
        image: image.into(),
        image_id: seen.map(|seen| seen.now.image_id.clone()).unwrap_or_default(),
        container_id: seen.map(|seen| container_id(&seen.now)),
        ready: runs,
        started: Some(runs),
        restart_count: seen.map_or(0, |seen| seen.restarts.try_into().unwrap_or(i32::MAX)),
        last_state: seen.and_then(|seen| seen.before.as_ref()).map(state),
        state: Some(seen.map_or(waiting, |seen| state(&seen.now))),
        ..Default::default()
    }
}

fn container_id(of: &Observed) -> String {
    format!("containerd://{}", of.id)
}

/// The API's times are whole seconds.
fn time(ns: i64) -> Option<Time> {
    Timestamp::from_second(ns.div_euclid(1_000_000_000)).ok().map(Time)
}

fn state(of: &Observed) -> ContainerState {
    let started_at = time(of.started);
    match &of.exit {
        None => {
            let running = Some(ContainerStateRunning { started_at });
            ContainerState { running, ..Default::default() }
        }
        Some(exit) => ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: exit.code,
                reason: Some(exit.reason.clone()),
                started_at,
                finished_at: time(exit.at),
                container_id: Some(container_id(of)),
                ..Default::default()
            }),
            ..Default::default()
        },
    }
}
