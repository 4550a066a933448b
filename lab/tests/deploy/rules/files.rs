//! The rule files and their tests, as far as these tests read them.

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Groups of rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleFile {
    pub(crate) groups: Vec<Group>,
}

/// Rules that are evaluated one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// How often; Prometheus' own interval by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<String>,
    pub(crate) rules: Vec<Rule>,
}

/// An alert, or what is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alert: Option<String>,
    pub(crate) expr: String,
    /// How long it must hold before the alert fires.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub(crate) hold: Option<String>,
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

/// A file of unit tests.
#[derive(Debug, Deserialize)]
pub(crate) struct TestFile {
    pub(crate) rule_files: Vec<String>,
    pub(crate) tests: Vec<Case>,
}

/// What happens, and what must be said of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    #[serde(rename = "interval")]
    _interval: String,
    /// Those of the Prometheus, which templates can use.
    #[serde(rename = "external_labels", default)]
    _external_labels: BTreeMap<String, String>,
    pub(crate) input_series: Vec<InputSeries>,
    #[serde(default)]
    pub(crate) alert_rule_test: Vec<AlertTest>,
    #[serde(default)]
    pub(crate) promql_expr_test: Vec<ExpressionTest>,
}

/// A series and its values.
#[derive(Debug, Deserialize)]
pub(crate) struct InputSeries {
    pub(crate) series: String,
}

/// Whether an alert fires at a moment.
#[derive(Debug, Deserialize)]
pub(crate) struct AlertTest {
    pub(crate) alertname: String,
    pub(crate) exp_alerts: Vec<Fired>,
}

/// An alert that fires.
#[derive(Debug, Deserialize)]
pub(crate) struct Fired {}

/// What an expression is at a moment.
#[derive(Debug, Deserialize)]
pub(crate) struct ExpressionTest {
    pub(crate) expr: String,
}

/// The workspace's folder.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// `dashboards/rules`.
pub(crate) fn folder() -> PathBuf {
    workspace().join("dashboards/rules")
}

/// The files of a folder, which must have nothing but YAML (and no folders but `below`), by name.
pub(crate) fn listed(folder: &Path, below: &[&str]) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| below.iter().any(|b| name == *b)) {
            continue;
        }
        let yaml = path.is_file() && path.extension().is_some_and(|extension| extension == "yaml");
        ensure!(yaml, "{}: only *.yaml is read here", path.display());
        paths.push(path);
    }
    ensure!(!paths.is_empty(), "{}: nothing is here", folder.display());
    paths.sort();
    Ok(paths)
}

/// The rule files that are deployed.
pub(crate) fn rule_paths() -> Result<Vec<PathBuf>> {
    listed(&folder(), &["tests", "examples"])
}

/// The rule files that are only shown.
pub(crate) fn example_paths() -> Result<Vec<PathBuf>> {
    listed(&folder().join("examples"), &[])
}

/// The unit tests.
pub(crate) fn test_paths() -> Result<Vec<PathBuf>> {
    listed(&folder().join("tests"), &[])
}

/// Reads a file of YAML.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
}

/// The rules of these files.
pub(crate) fn rules(paths: &[PathBuf]) -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for path in paths {
        let file: RuleFile = read(path)?;
        rules.extend(file.groups.into_iter().flat_map(|group| group.rules));
    }
    Ok(rules)
}

/// All unit tests.
pub(crate) fn tests() -> Result<Vec<TestFile>> {
    test_paths()?.iter().map(|path| read(path)).collect()
}

/// The names that rules record.
pub(crate) fn recorded(rules: &[Rule]) -> BTreeSet<String> {
    rules.iter().filter_map(|rule| rule.record.clone()).collect()
}
