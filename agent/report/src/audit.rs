//! How running containers will respond to their stop signal.

use crate::{ids::*, labels, time::Moment};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

labels! {
    /// How the main process of a running container will respond to its stop signal. A closed set: it is a metric's label.
    #[derive(Default)]
    pub enum StopResponse {
        /// It discards the signal: SIGKILL ends it at the end of the grace period.
        Ignores = "ignores",
        /// It never takes the signal, which stays pending until SIGKILL.
        Blocked = "blocked",
        /// The default action of the signal ends it without any cleanup.
        EndsByDefault = "ends_by_default",
        /// A handler takes the signal. What the handler does is not known.
        HasHandler = "has_handler",
        /// It waits for the signal: sigwait or signalfd.
        Waits = "waits",
        /// The process could not be read, or the host's kernel does not see inside.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}

/// The response of one running container to its stop signal, as its main process was when it was read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// The node that the agent observes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    pub id: ContainerId,
    /// The name in the pod.
    pub name: String,
    pub pod: PodRef,
    /// The workload that the pod belongs to, where the apiserver has shown it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    pub kind: ContainerKind,
    /// The image, as the runtime names it; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    pub response: StopResponse,
    /// It follows from the rules of the kernel, as long as the process leaves its handlers and masks as they are.
    pub certain: bool,
    pub stop_signal: u8,
    /// The grace period of the pod, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    /// The reason, and what earlier terminations of the workload showed.
    pub why: String,
    /// What of the pod's spec does not fit the measured shutdowns; one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What to change; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// A strategic-merge patch of the pod's spec; absent if no change of the spec alone is known to help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<SpecPatch>,
    /// When the process was read.
    pub read: Moment,
}

/// A strategic-merge patch of a PodSpec.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SpecPatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_process_namespace: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerPatch>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContainerPatch {
    pub name: String,
    pub lifecycle: LifecyclePatch,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct LifecyclePatch {
    pub pre_stop: PreStopPatch,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreStopPatch {
    pub sleep: SleepPatch,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SleepPatch {
    pub seconds: i64,
}

impl SpecPatch {
    /// That of another container of the same workload.
    pub fn merge(&mut self, other: &Self) {
        let grace = &mut self.termination_grace_period_seconds;
        *grace = (*grace).max(other.termination_grace_period_seconds);
        self.share_process_namespace =
            self.share_process_namespace.or(other.share_process_namespace);
        for one in &other.containers {
            if self.containers.iter().all(|known| known.name != one.name) {
                self.containers.push(one.clone());
            }
        }
    }

    /// A preStop hook that only sleeps (Kubernetes 1.30).
    pub fn sleep(container: &str, seconds: i64) -> ContainerPatch {
        let pre_stop = PreStopPatch { sleep: SleepPatch { seconds } };
        ContainerPatch { name: container.to_owned(), lifecycle: LifecyclePatch { pre_stop } }
    }
}

/// Containers of one workload, or of one sidecar's image in several, that will respond alike.
#[derive(Clone, Debug)]
pub struct AuditGroup<'a> {
    /// The first of them.
    pub first: &'a Audit,
    pub pods: usize,
    pub workloads: usize,
}

/// One group for each workload and container, and for a sidecar of several workloads (never the
/// only container of its pod) only one. The worst response comes first.
pub fn grouped(all: &[Audit]) -> Vec<AuditGroup<'_>> {
    let mut in_pod: BTreeMap<&PodUid, usize> = BTreeMap::new();
    all.iter().for_each(|one| *in_pod.entry(&one.pod.uid).or_default() += 1);
    let alone = all.iter().filter(|one| in_pod[&one.pod.uid] == 1);
    let alone: BTreeSet<_> = alone.map(|one| (&*one.name, &*one.image)).collect();
    let workload = |one: &Audit| match &one.workload {
        Some(workload) => (one.pod.namespace.clone(), workload.to_string()),
        None => (one.pod.namespace.clone(), one.pod.name.clone()),
    };
    let mut groups: BTreeMap<_, Vec<&Audit>> = BTreeMap::new();
    for one in all {
        let is_sidecar = !one.image.is_empty() && !alone.contains(&(&*one.name, &*one.image));
        let of = if is_sidecar { (String::new(), one.image.clone()) } else { workload(one) };
        let alike = (one.response, one.certain, &one.name, one.stop_signal);
        groups.entry((alike, is_sidecar, of)).or_default().push(one);
    }
    let group = |of: Vec<_>| {
        let pods: BTreeSet<_> = of.iter().map(|one: &&Audit| &one.pod.uid).collect();
        let workloads: BTreeSet<_> = of.iter().map(|one| workload(one)).collect();
        AuditGroup { first: of[0], pods: pods.len(), workloads: workloads.len() }
    };
    groups.into_values().map(group).collect()
}

/// What to do about a process that discards its stop signal. `sets_ign`: it is set to SIG_IGN.
pub fn of_ignored(stop: &str, sets_ign: bool, is_shell: bool) -> String {
    if sets_ign {
        return format!(
            "Do not set {stop} to SIG_IGN (trap '', nohup) in the program or in what starts it; \
             handle it."
        );
    }
    const INIT: &str =
        "run it under an init that forwards signals (ENTRYPOINT [\"tini\", \"--\", …])";
    if is_shell {
        return format!(
            "In the entrypoint, start the program with `exec`, so that {stop} reaches it instead \
             of the shell, or {INIT}."
        );
    }
    format!("Handle {stop} in the program, or {INIT}.")
}

/// What to do about a process that blocks its stop signal.
pub fn of_blocked(stop: &str) -> String {
    format!("Do not block {stop} in the process, or take it with sigwait or signalfd.")
}

/// What to do about a process that the signal's default action ends.
pub fn of_default(stop: &str) -> String {
    format!("If the program has anything to clean up, handle {stop} in it.")
}
