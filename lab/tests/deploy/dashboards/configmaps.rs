//! The ConfigMaps that a Grafana in the cluster reads.

use super::model::{NAMES, folder};
use crate::tools::Tool;
use anyhow::{Context as _, ensure};
use serde::Deserialize;
use std::{collections::BTreeMap, process::Command};

/// What `kubectl apply` notes of an object in its annotation must fit into all annotations of it
/// (`TotalAnnotationSizeLimitB`, k8s.io/apimachinery/pkg/api/validation).
const APPLICABLE: usize = 256 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ConfigMap {
    api_version: String,
    kind: String,
    metadata: Metadata,
    data: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
    namespace: String,
    labels: BTreeMap<String, String>,
}

#[test]
fn each_dashboard_becomes_a_config_map_that_the_sidecar_finds() -> anyhow::Result<()> {
    let output = Command::new(Tool::Kubectl.find()?).arg("kustomize").arg(folder()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    let rendered = String::from_utf8(output.stdout)?;
    let mut found = Vec::new();
    for text in rendered.split("\n---\n") {
        let map: ConfigMap = serde_saphyr::from_str(text)?;
        assert_eq!((&*map.api_version, &*map.kind), ("v1", "ConfigMap"));
        assert_eq!(map.metadata.namespace, "coroner");
        assert_eq!(map.metadata.labels.get("grafana_dashboard").map(String::as_str), Some("1"));
        let (file, data) = map.data.first_key_value().context("no dashboard in it")?;
        assert_eq!(map.data.len(), 1, "{file}");
        assert_eq!(*data, std::fs::read_to_string(folder().join(file))?, "{file}");
        // As JSON in an annotation, each quotation mark and each end of a line is two.
        let noted = serde_json::to_string(data)?.len();
        assert!(noted < APPLICABLE, "{file}: `kubectl apply` cannot note {noted} bytes");
        assert_eq!(format!("{}.json", map.metadata.name), format!("coroner-dashboard-{file}"));
        found.push(file.clone());
    }
    found.sort();
    let mut expected = NAMES.map(|name| format!("{name}.json"));
    expected.sort();
    assert_eq!(found, expected);
    Ok(())
}
