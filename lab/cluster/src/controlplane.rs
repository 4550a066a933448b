//! What the control plane's own actors do to a pod: each writes its condition DisruptionTarget
//! first and deletes the pod then.

use crate::apiserver::{ApiFailure, DeleteOptions, Store};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::PodCondition, apimachinery::pkg::apis::meta::v1::Time};

/// Who ends a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disruption {
    /// The eviction API, as `kubectl drain` calls it (registry/core/pod/storage/eviction.go).
    Eviction,
    /// The scheduler makes room (scheduler/framework/preemption).
    Preemption,
    /// The taint manager (controller/tainteviction).
    Taint,
    /// The pod garbage collector, which also marks the pod as Failed and grants it no grace
    /// (controller/podgc/gc_controller.go, `markFailedAndDeletePodWithCondition`).
    PodGc,
}

impl Disruption {
    fn reason(self) -> &'static str {
        match self {
            Self::Eviction => "EvictionByEvictionAPI",
            Self::Preemption => "PreemptionByScheduler",
            Self::Taint => "DeletionByTaintManager",
            Self::PodGc => "DeletionByPodGC",
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Eviction => "Eviction API: evicting",
            Self::Preemption => {
                "default-scheduler: preempting to accommodate a higher priority pod"
            }
            Self::Taint => "Taint manager: deleting due to NoExecute taint",
            Self::PodGc => "PodGC: node no longer exists",
        }
    }
}

/// Ends a pod that way.
pub fn disrupt(
    store: &Store,
    namespace: &str,
    name: &str,
    disruption: Disruption,
) -> Result<(), ApiFailure> {
    let now = Timestamp::now();
    store.patch_status(namespace, name, None, |status| {
        if disruption == Disruption::PodGc {
            status.phase = Some("Failed".into());
        }
        status.conditions.get_or_insert_default().push(PodCondition {
            type_: "DisruptionTarget".into(),
            status: "True".into(),
            reason: Some(disruption.reason().into()),
            message: Some(disruption.message().into()),
            last_transition_time: Some(Time(now)),
            ..Default::default()
        });
    })?;
    let grace = (disruption == Disruption::PodGc).then_some(0);
    store.delete_pod(namespace, name, &DeleteOptions { grace, ..Default::default() })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

    fn store() -> Store {
        let store = Store::new(16);
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.spec = Some(PodSpec {
            node_name: Some("here".into()),
            termination_grace_period_seconds: Some(7),
            containers: vec![Container { name: "app".into(), ..Default::default() }],
            ..Default::default()
        });
        store.create_pod(&pod).unwrap();
        store
    }

    #[test]
    fn an_eviction_leaves_its_condition_and_the_pods_own_grace() {
        let store = store();
        disrupt(&store, "default", "web", Disruption::Eviction).unwrap();
        let pod = store.get_pod("default", "web").unwrap();
        assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(7));
        let conditions = pod.status.unwrap().conditions.unwrap();
        assert_eq!(conditions[0].reason.as_deref(), Some("EvictionByEvictionAPI"));
    }

    #[test]
    fn the_garbage_collector_grants_nothing() {
        let store = store();
        disrupt(&store, "default", "web", Disruption::PodGc).unwrap();
        assert_eq!(store.get_pod("default", "web").unwrap_err().code, 404);
        assert_eq!(disrupt(&store, "default", "web", Disruption::PodGc).unwrap_err().code, 404);
    }
}
