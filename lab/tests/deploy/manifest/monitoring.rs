//! What of the Prometheus Operator's kinds is used here, and nothing else
//! (<https://prometheus-operator.dev/docs/api-reference/api/>).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which pods are scraped, and how.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PodMonitor {
    api_version: String,
    kind: String,
    /// The object's name.
    pub(crate) metadata: ObjectMeta,
    /// The rest.
    pub(crate) spec: PodMonitorSpec,
}

/// Which pods are scraped, and how.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PodMonitorSpec {
    /// The label of the pods whose value is the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job_label: Option<String>,
    /// The pods, of the object's own namespace.
    pub(crate) selector: LabelSelector,
    /// Where they are scraped.
    pub(crate) pod_metrics_endpoints: Vec<PodMetricsEndpoint>,
}

/// Where a pod is scraped.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PodMetricsEndpoint {
    /// Name of a container's port.
    pub(crate) port: String,
    /// A metric's own labels are kept where the target has labels of the same names.
    pub(crate) honor_labels: bool,
    /// `http` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    scheme: Option<String>,
    /// How a certificate is verified; of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_config: Option<serde_json::Value>,
    /// What becomes of the target's labels.
    #[serde(default)]
    pub(crate) relabelings: Vec<Relabeling>,
}

/// A relabelling: by default, the target label becomes what the source labels hold.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Relabeling {
    /// What is joined.
    pub(crate) source_labels: Vec<String>,
    /// What it becomes.
    pub(crate) target_label: String,
}

/// Groups of rules.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PrometheusRule {
    api_version: String,
    kind: String,
    /// The object's name.
    pub(crate) metadata: ObjectMeta,
    /// The rest.
    pub(crate) spec: PrometheusRuleSpec,
}

/// Groups of rules.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrometheusRuleSpec {
    pub(crate) groups: Vec<RuleGroup>,
}

/// Rules that are evaluated one after the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleGroup {
    pub(crate) name: String,
    /// How often; Prometheus' own interval by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<String>,
    pub(crate) rules: Vec<Rule>,
}

/// A rule that alerts or records.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// Name of the alert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alert: Option<String>,
    /// Name of the series that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<String>,
    /// The query.
    pub(crate) expr: String,
    /// How long it must hold before the alert fires.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub(crate) held_for: Option<String>,
    /// How long the alert goes on when it holds no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep_firing_for: Option<String>,
    /// Added to the alert, or to the series.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    /// What the alert says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}
