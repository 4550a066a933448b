//! Circumstances → cause, with what says so.

use coroner::domain::{
    cause::{Circumstances, ContainerCircumstances, cause, container_cause},
    input::{ApiContainer, ApiPod},
    object::{Object, Request},
    observation::{Cause, Source},
    time::{BootTime, WallTime},
};
use std::time::Duration;

fn object(disruption: Option<&str>, reason: &str, grace: Option<i64>) -> Object {
    let pod = ApiPod {
        disruption: disruption.map(Into::into),
        reason: reason.into(),
        ..ApiPod::default()
    };
    let requested = grace.map(|grace_seconds| Request {
        at: BootTime(1),
        uncertainty: Duration::ZERO,
        since: BootTime(1),
        grace_seconds,
        asked_wall: WallTime(0),
    });
    Object {
        pod,
        requested,
        changed: Vec::new(),
        last_delete: None,
        found_deleting: false,
        gone: None,
    }
}

const NOTHING: Circumstances<'static> = Circumstances {
    object: None,
    deleted: false,
    outlived: false,
    is_static: false,
    stopped: false,
    complete: true,
};

#[test]
fn causes_of_deletions() {
    let rows = [
        (None, Some(30), false, Cause::ApiDelete),
        (None, Some(0), true, Cause::ForceDelete),
        // Its processes outlived the object although there was a grace: no force.
        (None, Some(30), true, Cause::ApiDelete),
        (Some("EvictionByEvictionAPI"), Some(30), false, Cause::ApiEviction),
        (Some("PreemptionByScheduler"), Some(30), false, Cause::Preemption),
        (Some("DeletionByTaintManager"), Some(30), false, Cause::TaintEviction),
        (Some("DeletionByPodGC"), Some(0), true, Cause::PodGc),
        (Some("SomethingNew"), Some(30), false, Cause::ApiDelete),
    ];
    for (disruption, grace, outlived, expected) in rows {
        let object = object(disruption, "", grace);
        let of = Circumstances {
            object: Some(&object),
            deleted: grace.is_some(),
            outlived,
            stopped: true,
            ..NOTHING
        };
        assert_eq!(cause(of).cause, expected, "{disruption:?} {grace:?} {outlived}");
    }
}

#[test]
fn causes_without_a_deletion() {
    let by = |disruption, reason: &str| {
        let object = object(disruption, reason, None);
        cause(Circumstances { object: Some(&object), stopped: true, ..NOTHING }).cause
    };
    assert_eq!(by(None, "Evicted"), Cause::NodePressureEviction);
    assert_eq!(by(Some("TerminationByKubelet"), "Evicted"), Cause::NodePressureEviction);
    assert_eq!(by(Some("TerminationByKubelet"), "Terminated"), Cause::NodeShutdown);
    assert_eq!(by(None, ""), Cause::Unknown);
    assert_eq!(cause(NOTHING).cause, Cause::Completed);
    assert_eq!(cause(Circumstances { complete: false, ..NOTHING }).cause, Cause::Unknown);
    let of_file = Circumstances { is_static: true, ..NOTHING };
    assert_eq!(cause(Circumstances { stopped: true, ..of_file }).cause, Cause::StaticRemoved);
    assert_eq!(cause(of_file).cause, Cause::Completed);
}

/// What is missing is said.
#[test]
fn an_unknown_cause_says_what_is_missing() {
    let object = object(None, "", None);
    let rows = [
        (None, true, true, "the apiserver never told of the pod"),
        (Some(&object), true, true, "its status names no reason"),
        (Some(&object), false, false, "record of how a container of it ended is missing"),
    ];
    for (object, stopped, complete, says) in rows {
        let told = cause(Circumstances { object, stopped, complete, ..NOTHING });
        assert_eq!((told.cause, told.source), (Cause::Unknown, Source::Inferred));
        assert!(told.sentence.contains(says), "{}", told.sentence);
    }
}

#[test]
fn causes_of_a_containers_own_stop() {
    let with = |change: fn(&mut ApiContainer)| {
        let mut spec = ApiContainer::default();
        change(&mut spec);
        let mut object = object(None, "", None);
        object.pod.containers.insert("c".into(), spec);
        object
    };
    let plain = with(|_| {});
    let liveness = with(|c| c.liveness_probe = true);
    let starting = with(|c| (c.startup_probe, c.started) = (true, Some(false)));
    let started =
        with(|c| (c.startup_probe, c.liveness_probe, c.started) = (true, true, Some(true)));
    let (kernel, inferred) = (Source::Kernel, Source::Inferred);
    let rows = [
        (Some(&plain), 0, Cause::Restart, inferred, "no liveness or startup probe"),
        (Some(&liveness), 0, Cause::Liveness, inferred, "it has a liveness probe; the pod goes on"),
        (Some(&liveness), 3, Cause::Liveness, kernel, "the last 3 process(es)"),
        (Some(&starting), 0, Cause::Startup, inferred, "had not succeeded yet"),
        (Some(&started), 1, Cause::Liveness, kernel, "the last 1 process(es)"),
        (None, 3, Cause::Unknown, inferred, "never told of the pod's probes"),
    ];
    for (object, failed_probes, expected, source, says) in rows {
        let told = container_cause(ContainerCircumstances {
            object,
            container: "c",
            stopped: true,
            pod: None,
            failed_probes,
        });
        assert_eq!((told.cause, told.source), (expected, source), "{}", told.sentence);
        assert!(told.sentence.contains(says), "{}", told.sentence);
    }
}
