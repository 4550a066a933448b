//! Leaks, and the state of leak detection.

use crate::{Moment, Open};
use coroner_core::{
    ids::{LeakKey, PodRef},
    input::{NodeTools, Workload},
    leak::{
        BlockedOn, DetectionState, LeakCause, LeakClass, LeakEvidenceKind, LeakedResources,
        RuntimeAtEnd,
    },
    types::Source,
};
use serde::{Deserialize, Serialize};
use std::ops::Not;
use utoipa::ToSchema;

/// A leak.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Leak {
    /// The node that the agent observes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The class.
    #[schema(value_type = LeakClass)]
    pub class: Open<LeakClass>,
    /// The leaked resource.
    #[schema(value_type = LeakKey)]
    pub key: Open<LeakKey>,
    /// The pod, as far as known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// The workload that the pod belongs to, where the apiserver has shown it since the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// metadata.attempt of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When the resource was created: the earliest possible start of the leak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Moment>,
    /// When the resource was first observed as leaked.
    pub first_observed: Moment,
    /// The resource had leaked before detection began, an unknown time earlier.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub preexisting: bool,
    /// The leak no longer exists; only in an answer to `after`.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub resolved: bool,
    /// When the threshold had passed and the apiserver had confirmed the leak.
    pub confirmed: Moment,
    /// The resources that the leak holds.
    #[serde(default)]
    pub resources: LeakedResources,
    /// The likely cause.
    pub cause: Cause,
    /// For a stuck pod: what blocks its deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BlockedOn>)]
    pub blocked_on: Option<Open<BlockedOn>>,
    /// The evidence, in order of time if it has a time. On a node with more than 1,000 leaks, the later ones have no
    /// evidence.
    #[schema(value_type = Vec<LeakEvidence>)]
    pub evidence: Vec<Open<LeakEvidence>>,
    /// The remedy, step by step. A step that begins with `$ ` is a command.
    #[serde(default)]
    pub remediation: Vec<String>,
    /// What of the node the remedy names.
    #[serde(default, skip_serializing_if = "NodeTools::is_unknown")]
    pub tools: NodeTools,
}

/// The likely cause of a leak.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LeakCauseDetail)]
pub struct Cause {
    /// The cause.
    #[schema(value_type = LeakCause)]
    pub kind: Open<LeakCause>,
    /// The container, volume or finalizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The kubelet's version, from the Node object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_version: Option<String>,
    /// The state of the runtime around the end of the pod; absent: the end was not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RuntimeAtEnd>)]
    pub runtime: Option<Open<RuntimeAtEnd>>,
    /// The cause as one sentence.
    #[serde(default)]
    pub message: String,
}

/// One piece of evidence for a leak.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LeakEvidence {
    /// The time, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Moment>,
    /// The source.
    pub source: Source,
    /// The content as one sentence.
    pub message: String,
    /// The content.
    #[serde(flatten)]
    pub kind: LeakEvidenceKind,
}

/// The state of leak detection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Detection {
    /// Whether leak detection is active, and if not, the reason. Leaks confirmed before an outage stay in the list.
    #[schema(value_type = DetectionState)]
    pub state: Open<DetectionState>,
    /// Why leak detection is suspended or incomplete, and the remedy, in words. Absent: neither.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Seconds of active leak detection since the agent started. While less than the threshold, an empty list proves
    /// nothing.
    pub watched_seconds: u64,
    /// Seconds that a candidate must be observed before it is confirmed.
    pub threshold_seconds: u64,
    /// Number of candidates that are not confirmed.
    pub candidate_count: usize,
}
