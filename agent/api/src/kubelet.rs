//! The kubelet's own account of a termination.

use crate::{Moment, Open};
use coroner_core::{
    input::{KubeletLogGap, KubeletStatement},
    types::StageKind,
};
use serde::{Deserialize, Serialize};
use std::ops::Not;
use utoipa::ToSchema;

/// The kubelet's own account of a termination, from its log and its Events: a lane beside the phases. No verdict depends
/// on it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletLane {
    /// The kubelet runs with at least this `-v`; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<u8>,
    /// Its stages, in the order in which they began.
    #[schema(value_type = Vec<KubeletStage>)]
    pub stages: Vec<Open<KubeletStage>>,
    /// Stages that this verbosity hides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<StageKind>)]
    pub not_logged: Vec<Open<StageKind>>,
    /// Why lines may be missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<KubeletLogGap>)]
    pub missing: Vec<Open<KubeletLogGap>>,
    /// What failed, in the kubelet's own words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<KubeletTrouble>)]
    pub troubles: Vec<Open<KubeletTrouble>>,
}

/// A stage of the kubelet.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletStage {
    /// The kind of stage.
    pub stage: StageKind,
    /// The beginning; of some kinds there is a moment only.
    pub from: Moment,
    /// The end; absent: not logged, or still to come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Moment>,
    /// How far both may be off, seconds. Absent: 0.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub uncertainty_seconds: f64,
    /// The container, of a stage that each has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// It failed.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub failed: bool,
    /// What it waited for, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<StageWait>,
}

/// The time between a stage and the one that it waited for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct StageWait {
    /// The stage that it waited for.
    #[serde(rename = "for")]
    #[schema(rename = "for")]
    pub stage: StageKind,
    /// How long after that it began, seconds.
    pub seconds: f64,
}

/// A failure in the kubelet's own words.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct KubeletTrouble {
    /// The first time.
    pub at: Moment,
    /// The last time.
    pub last: Moment,
    /// How often.
    pub count: u32,
    /// What was said.
    pub statement: KubeletStatement,
    /// The container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The error, cut; of most only its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A part of a phase, which ends where a stage of the kubelet begins or ends; the last one ends with the phase.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhasePart {
    /// The stage that ends this part; absent: the end of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<StageKind>,
    /// The part ends where the stage ends, not where it begins.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub by_its_end: bool,
    /// The beginning.
    pub from: Moment,
    /// The end.
    pub to: Moment,
    /// `to` − `from`, seconds.
    pub seconds: f64,
}
