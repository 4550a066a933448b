//! What of the Prometheus Operator's kinds is used here, and nothing else
//! (<https://prometheus-operator.dev/docs/api-reference/api/>).

use crate::rules::files::RuleFile;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

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
    pub(crate) spec: RuleFile,
}
