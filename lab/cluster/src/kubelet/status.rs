//! What the kubelet reports of a pod, in the form of a status. Pure.

use super::restart;
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
    pub id: String,
    /// Its image's reference.
    pub image_id: String,
    /// started_at, ns since the epoch.
    pub started_ns: i64,
    /// How it ended; `None` while it runs.
    pub ended: Option<Ended>,
    /// The runtime does not know whether it runs: CONTAINER_UNKNOWN.
    pub is_unknown: bool,
}

/// How a container ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// finished_at, ns since the epoch.
    pub finished_ns: i64,
    pub exit_code: i32,
    pub reason: String,
}

/// A container's present life as the runtime tells it, and the one before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenStatus {
    /// The present life.
    pub now: Observed,
    pub before: Option<Observed>,
    /// How many there were before.
    pub restarts: u32,
    /// Not waiting for a startup probe.
    pub started: bool,
    /// The present life has ended and waits for the next one: state.waiting.reason.
    pub waits: Option<&'static str>,
}

impl Observed {
    fn runs(&self) -> bool {
        self.ended.is_none() && !self.is_unknown
    }
}

impl SeenStatus {
    /// A life that is shown as ended though it may not be counts already.
    fn restarts(&self) -> u32 {
        self.restarts + u32::from(self.now.is_unknown)
    }
}

/// What the kubelet does to all of a pod that goes on, as its conditions show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Underway {
    #[default]
    Nothing,
    /// Its sandbox has stopped: the condition PodReadyToStartContainers is False.
    NoSandbox,
    /// It restarts all containers: the condition AllContainersRestarting is True.
    RestartAll,
    /// It stops a container to resize it: the condition PodResizeInProgress is True.
    Resize,
}

/// state.waiting.reason and lastState.terminated.reason of a container that is restarted with all others.
pub const RESTARTING_ALL: &str = "RestartingAllContainers";

/// What the kubelet makes up of a container that it has removed to restart it with all others
/// (kubelet_pods.go, `convertToAPIContainerStatuses`).
pub fn removed() -> Observed {
    Observed {
        id: String::new(),
        image_id: String::new(),
        started_ns: 0,
        ended: Some(Ended { finished_ns: 0, exit_code: 137, reason: RESTARTING_ALL.into() }),
        is_unknown: false,
    }
}

/// What the kubelet makes up of a container that ran and whose state is unknown now (kubelet_pods.go,
/// `convertToAPIContainerStatuses`): it is shown as ended, whatever it does.
fn unknown() -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".into()),
            message: Some("The container could not be located when the pod was terminated".into()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Whether only the kubelet sets this condition: it removes one that it does not report any more
/// (types/pod_status.go, `PodConditionByKubelet`). Those that it always reports are not listed.
pub fn is_kubelets_condition(kind: &str) -> bool {
    kind == "PodResizeInProgress"
}

/// What the status says beyond the containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason<'a> {
    /// status.reason.
    pub reason: &'a str,
    /// status.message.
    pub message: &'a str,
    /// The message of the condition DisruptionTarget, reason TerminationByKubelet, if the kubelet sets
    /// this condition.
    pub disruption: Option<&'a str>,
    /// The phase is Failed, whatever the exit codes of the main containers.
    pub always_fails: bool,
}

/// The phase: a pod that will not run again is Succeeded if all its main containers left with 0,
/// else Failed; kubelets ≥ 1.33 say so of a deleted pod too, before its object goes.
pub fn phase(pod: &Pod, containers: &BTreeMap<String, SeenStatus>, terminal: bool) -> &'static str {
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
    containers: &BTreeMap<String, SeenStatus>,
    terminal: bool,
    underway: Underway,
    reason: Option<Reason<'_>>,
    node_ip: &str,
    now: Timestamp,
) -> PodStatus {
    let disruption = reason.and_then(|reason| reason.disruption);
    let always_fails = reason.is_some_and(|reason| reason.always_fails);
    let phase = if always_fails { "Failed" } else { phase(pod, containers, terminal) };
    // A reason is kept only together with the phase that it was set with, Failed (kubelet_pods.go,
    // `generateAPIPodStatus`, since 1.27).
    let reason = reason.filter(|_| phase != "Succeeded");
    let before = pod.status.clone().unwrap_or_default();
    let running = phase == "Running" && containers.values().all(|c| c.now.runs() && c.started);
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
    let has_sandbox = !containers.is_empty() && !terminal && underway != Underway::NoSandbox;
    let spec = pod.spec.as_ref();
    let inits: Vec<ContainerStatus> = spec
        .and_then(|spec| spec.init_containers.as_ref())
        .into_iter()
        .flatten()
        .map(|init| report(&init.name))
        .collect();
    let mut conditions = vec![
        condition("PodReadyToStartContainers", has_sandbox, None),
        condition("Initialized", true, finished),
        condition("Ready", running, not_ready),
        condition("ContainersReady", running, not_ready),
        condition("PodScheduled", true, None),
    ];
    if spec.is_some_and(restart::may_restart_all) {
        let restarts = underway == Underway::RestartAll;
        conditions.push(PodCondition {
            message: restarts.then(|| "container exited with restart policy rule".into()),
            ..condition(
                "AllContainersRestarting",
                restarts,
                restarts.then_some("RestartAllContainersStarted"),
            )
        });
    }
    if underway == Underway::Resize {
        conditions.push(condition("PodResizeInProgress", true, None));
    }
    conditions.extend(disruption.map(|message| PodCondition {
        message: Some(message.into()),
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

fn container_status(name: &str, image: Option<&str>, seen: Option<&SeenStatus>) -> ContainerStatus {
    let waits = seen.map_or(Some("ContainerCreating"), |seen| seen.waits);
    let now = seen.map(|seen| told(&seen.now)).unwrap_or_default();
    let before = seen.and_then(|seen| seen.before.as_ref()).map(told).unwrap_or_default();
    // The present life of a container that waits is already its last state (kubelet_pods.go,
    // `convertToAPIContainerStatuses`).
    let (state, last_state) = match waits {
        Some(reason) => (waiting(reason), if seen.is_some() { now } else { before }),
        None => (now, before),
    };
    let runs = state.running.is_some() && seen.is_some_and(|seen| seen.started);
    ContainerStatus {
        name: name.into(),
        image: image.unwrap_or_default().into(),
        image_id: seen.map(|seen| seen.now.image_id.clone()).unwrap_or_default(),
        container_id: seen.and_then(|seen| container_id(&seen.now)),
        ready: runs,
        started: Some(runs),
        restart_count: seen
            .and_then(|seen| i32::try_from(seen.restarts()).ok())
            .unwrap_or_default(),
        last_state: Some(last_state),
        state: Some(state),
        ..Default::default()
    }
}

fn waiting(reason: &str) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.into()), ..Default::default() };
    ContainerState { waiting: Some(waiting), ..Default::default() }
}

/// One that was made up has none.
fn container_id(of: &Observed) -> Option<String> {
    (!of.id.is_empty()).then(|| format!("containerd://{}", of.id))
}

fn told(of: &Observed) -> ContainerState {
    if of.is_unknown {
        return unknown();
    }
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
                container_id: container_id(of),
                message: (ended.reason == RESTARTING_ALL).then(|| {
                    "The container is removed because RestartAllContainers in place".into()
                }),
                ..Default::default()
            }),
            ..Default::default()
        },
    }
}

/// The API's times are whole seconds. 0: there is none.
fn time(ns: i64) -> Option<Time> {
    if ns == 0 {
        return None;
    }
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

    fn seen(exit_code: Option<i32>) -> SeenStatus {
        let now = observed("c0ffee", exit_code);
        SeenStatus { now, before: None, restarts: 0, started: true, waits: None }
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
            is_unknown: false,
        }
    }

    fn all(a: SeenStatus, b: SeenStatus) -> BTreeMap<String, SeenStatus> {
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
        let status = status(
            &pod(),
            &all(seen(Some(7)), seen(Some(0))),
            true,
            Underway::Nothing,
            None,
            "10.0.0.1",
            now,
        );
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

    /// kubelet_pods_test.go, `Test_generateAPIPodStatus…`: from running to terminated, and never to waiting.
    #[test]
    fn a_container_in_an_unknown_state_is_shown_as_ended() {
        let lost = SeenStatus {
            now: Observed { is_unknown: true, ..observed("c0ffee", None) },
            ..seen(None)
        };
        let now = Timestamp::UNIX_EPOCH;
        let all = all(lost, seen(None));
        let status = status(&pod(), &all, false, Underway::Nothing, None, "10.0.0.1", now);
        let a = &status.container_statuses.unwrap()[0];
        let ended = a.state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!(
            (ended.exit_code, ended.reason.as_deref()),
            (137, Some("ContainerStatusUnknown"))
        );
        assert_eq!((a.restart_count, a.ready, ended.container_id.as_deref()), (1, false, None));
        assert_eq!(status.phase.as_deref(), Some("Running"));
    }

    #[test]
    fn a_restarted_container_tells_of_the_life_before() {
        let again = SeenStatus {
            before: Some(observed("beef", Some(3))),
            restarts: 1,
            started: false,
            ..seen(None)
        };
        let now = Timestamp::UNIX_EPOCH;
        let status = status(
            &pod(),
            &all(again, seen(None)),
            false,
            Underway::Nothing,
            None,
            "10.0.0.1",
            now,
        );
        let a = &status.container_statuses.unwrap()[0];
        assert_eq!((a.restart_count, a.started, a.ready), (1, Some(false), false));
        let before = a.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!(
            (before.exit_code, before.container_id.as_deref()),
            (3, Some("containerd://beef"))
        );
    }

    /// Recording k1.36-restarts/poststart-fails.
    #[test]
    fn a_container_that_waits_has_its_present_life_as_its_last_state() {
        let waits = SeenStatus { waits: Some("PostStartHookError"), ..seen(Some(0)) };
        let now = Timestamp::UNIX_EPOCH;
        let status = status(
            &pod(),
            &all(waits, seen(None)),
            false,
            Underway::Nothing,
            None,
            "10.0.0.1",
            now,
        );
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let a = &status.container_statuses.unwrap()[0];
        let reason = a.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref();
        assert_eq!((reason, a.restart_count), (Some("PostStartHookError"), 0));
        let last = a.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!(last.container_id, a.container_id);
    }

    /// Recording k1.36-restarts/restart-all-second.
    #[test]
    fn the_last_state_of_a_container_that_is_restarted_with_all_others_is_made_up() {
        let waits = SeenStatus {
            now: removed(),
            restarts: 1,
            waits: Some(RESTARTING_ALL),
            ..seen(Some(0))
        };
        let status = status(
            &pod(),
            &all(waits, seen(None)),
            false,
            Underway::Nothing,
            None,
            "10.0.0.1",
            Timestamp::UNIX_EPOCH,
        );
        let a = &status.container_statuses.unwrap()[0];
        assert_eq!((a.container_id.as_ref(), a.restart_count), (None, 1));
        let last = a.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some(RESTARTING_ALL)));
        assert_eq!((&last.container_id, &last.finished_at), (&None, &None));
    }

    /// The status of a pod that the kubelet ended: phase, reason, and message of DisruptionTarget.
    fn ended(
        codes: [i32; 2],
        disruption: Option<&str>,
        always_fails: bool,
    ) -> (String, Option<String>, Option<String>) {
        let reason =
            Reason { reason: "Evicted", message: "The node was low.", disruption, always_fails };
        let all = all(seen(Some(codes[0])), seen(Some(codes[1])));
        let now = Timestamp::UNIX_EPOCH;
        let status = status(&pod(), &all, true, Underway::Nothing, Some(reason), "10.0.0.1", now);
        let mut conditions = status.conditions.unwrap().into_iter();
        let target = conditions.find(|condition| condition.type_ == "DisruptionTarget");
        if let Some(target) = &target {
            assert_eq!(target.reason.as_deref(), Some("TerminationByKubelet"));
        }
        (status.phase.unwrap(), status.reason, target.and_then(|target| target.message))
    }

    /// Recordings k1.36-restarts/preempt and preempt-exit3.
    #[test]
    fn a_reason_is_dropped_with_the_phase_succeeded_and_the_condition_stays() {
        let (evicted, low) = (Some("Evicted".to_owned()), Some("low".to_owned()));
        assert_eq!(ended([0, 3], low.as_deref(), false), ("Failed".into(), evicted, low.clone()));
        assert_eq!(ended([0, 0], low.as_deref(), false), ("Succeeded".into(), None, low));
        assert_eq!(ended([0, 0], None, false), ("Succeeded".into(), None, None));
    }

    #[test]
    fn a_pod_past_its_deadline_has_failed_even_if_its_containers_exited_with_0() {
        assert_eq!(ended([0, 0], None, true), ("Failed".into(), Some("Evicted".into()), None));
    }
}
