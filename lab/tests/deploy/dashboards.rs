//! The Grafana dashboards, and every query of dashboards, rules and docs/metrics.md, asked of a real Prometheus that
//! scrapes every series of the agent's catalogue.

use crate::{
    rules,
    tools::{PROMETHEUS, PYTHON, hold, workspace},
};
use anyhow::{Context as _, Result, ensure};
use axum::{Router, routing::get};
use coroner::outputs::metrics::{CATALOGUE, MetricKind, Values};
use coroner_lab::{
    agent::{Http, die_with_parent, tail},
    port::Port,
    wait,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// The files' names, without their ends.
pub(crate) const NAMES: [&str; 4] = ["fleet", "namespace", "leaks", "agent"];

/// It is made of the grafana-foundation-sdk's types, which are generated from Grafana's own schemas.
#[test]
fn generated_json_is_what_the_code_makes() -> Result<()> {
    let folder = workspace().join("dashboards");
    for name in NAMES {
        let mut command = std::process::Command::new(PYTHON.find()?);
        // -B: no compiled copies in the sources' folder.
        let output = command.arg("-B").arg(folder.join("generate.py")).arg(name).output()?;
        ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        hold(&format!("dashboards/{name}.json"), &String::from_utf8(output.stdout)?)?;
    }
    Ok(())
}

/// Series that queries use and no agent has: Prometheus' own, those of the agent's process, and kube-state-metrics'.
const FOREIGN: [&str; 13] = [
    "ALERTS{alertname=\"CoronerEvidenceLost\",alertstate=\"firing\",severity=\"warning\"}",
    "kube_daemonset_status_desired_number_scheduled{daemonset=\"coroner\"}",
    "kube_node_info{os_image=\"Windows\"}",
    "kube_node_spec_taint{key=\"eks.amazonaws.com/compute-type\"}",
    "kube_node_spec_taint{key=\"virtual-kubelet.io/provider\"}",
    "kube_node_spec_unschedulable{}",
    "kube_node_status_allocatable{resource=\"pods\"}",
    "kube_node_status_condition{condition=\"Ready\",status=\"true\"}",
    "kube_pod_info{created_by_kind=\"DaemonSet\",created_by_name=\"coroner\"}",
    "kube_replicaset_created{namespace=\"shop\"}",
    "process_cpu_seconds_total{}",
    "process_resident_memory_bytes{}",
    "process_start_time_seconds{}",
];

/// Recorded only while agents fail, as none does here.
const OF_FAILURES: [&str; 3] = [
    "cluster:coroner_agents_missing",
    "node:coroner_agent_missing",
    "node_reason:coroner_agent_not_ready",
];

/// A scrape of all series, which are greater each time: every value of closed labels, one of open ones.
fn exposition(scrape: u64) -> String {
    let mut text = String::new();
    for entry in &CATALOGUE {
        let mut sets = vec![String::new()];
        for (label, values) in entry.labels.iter().zip(entry.values) {
            let values = match values {
                Values::Closed(values) => values(),
                Values::Open(_) => vec!["some"],
            };
            let pairs = |set: &String| {
                let pair = |value: &&str| format!("{set}{label}=\"{value}\",");
                values.iter().map(pair).collect::<Vec<_>>()
            };
            sets = sets.iter().flat_map(pairs).collect();
        }
        let name = entry.name;
        let MetricKind::Histogram(buckets) = entry.kind else {
            sets.iter().for_each(|set| text += &format!("{name}{{{set}}} {scrape}\n"));
            continue;
        };
        text += &format!("# TYPE {name} histogram\n");
        for set in &sets {
            let edges = buckets.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            for (number, edge) in (1_u64..).zip(edges) {
                let count = number * scrape;
                text += &format!("{name}_bucket{{{set}le=\"{edge}\"}} {count}\n");
            }
            let count = (buckets.len() as u64 + 1) * scrape;
            text += &format!("{name}_sum{{{set}}} {count}\n{name}_count{{{set}}} {count}\n");
        }
    }
    FOREIGN.iter().for_each(|series| text += &format!("{series} 1\n"));
    text
}

/// A Prometheus that scrapes these series once a second, with the labels that a cluster gives a target, and records the
/// rules.
struct Prometheus {
    _child: tokio::process::Child,
    _port: Port,
    http: Http,
}

impl Prometheus {
    async fn start(work: &Path) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let target: SocketAddr = listener.local_addr()?;
        let scrapes = std::sync::Arc::new(AtomicU64::new(1));
        let answer = move || async move { exposition(scrapes.fetch_add(1, Ordering::Relaxed)) };
        tokio::spawn(async move {
            axum::serve(listener, Router::new().route("/metrics", get(answer))).await
        });
        let labels = json!({
            "namespace": "coroner", "pod": "coroner-abc", "container": "coroner", "node": "n1", "cluster": "c1",
        });
        let mut rule_files = Vec::new();
        for (number, file) in rules::files("")?.iter().enumerate() {
            let mut rules = rules::read(file)?;
            for group in rules["groups"].as_array_mut().into_iter().flatten() {
                group["interval"] = json!("1s"); // as nobody waits for minutes here
            }
            rule_files.push(work.join(format!("rules-{number}.yaml")));
            fs::write(&rule_files[number], rules.to_string())?;
        }
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": rule_files,
            "scrape_configs": [{
                "job_name": "coroner",
                "static_configs": [{"targets": [target.to_string()], "labels": labels}],
            }],
        });
        let (file, log) = (work.join("config.yaml"), work.join("log")); // JSON is YAML, too
        fs::write(&file, config.to_string())?;
        let (port, output) = (Port::reserve()?, fs::File::create(&log)?);
        let mut command = tokio::process::Command::new(PROMETHEUS.find()?);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", work.join("data").display()))
            .arg(format!("--web.listen-address={}", port.address()))
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        let child = command.spawn()?;
        let prometheus = Self { _child: child, http: Http::new(port.address()), _port: port };
        let mut recorded = Vec::new();
        for file in rules::files("")? {
            texts(&rules::read(&file)?, "record", &mut recorded);
        }
        recorded.retain(|name| !OF_FAILURES.contains(&name.as_str()));
        for name in recorded {
            let what = format!("Prometheus has recorded {name}");
            let look = async || Ok(prometheus.has_data(&name).await.ok());
            wait::asking(what, look).await.with_context(|| tail(&log, 15))?;
        }
        Ok(prometheus)
    }

    async fn ask(&self, path: &str, name: &str, query: &str) -> Result<Value> {
        let parameters =
            form_urlencoded::Serializer::new(String::new()).append_pair(name, query).finish();
        let (_, body) = self.http.page(&format!("/api/v1/{path}?{parameters}")).await?;
        let answer: Value = serde_json::from_str(&body)?;
        ensure!(answer["status"] == "success", "{query}: {}", answer["error"]);
        Ok(answer["data"].clone())
    }

    async fn has_data(&self, query: &str) -> Result<()> {
        // Also where a scrape took too long on a slow machine.
        let found = self.ask("query", "query", &format!("last_over_time({query}[1h])")).await?;
        ensure!(found["result"].as_array().is_some_and(|all| !all.is_empty()), "no data: {query}");
        Ok(())
    }

    /// Answers the query; every series that the query selects exists, with each of the values, and every label by which
    /// the query groups. An alert may have no data.
    async fn check(&self, query: &str, labels: &[Value]) -> Result<()> {
        self.ask("query", "query", query).await?;
        let (mut selectors, mut groupings) = (Vec::new(), Vec::new());
        read(&self.ask("parse_query", "query", query).await?, &mut selectors, &mut groupings);
        ensure!(!selectors.is_empty(), "selects nothing: {query}");
        let never = |selector: &String| OF_FAILURES.iter().any(|name| selector.contains(name));
        for selector in selectors.into_iter().filter(|selector| !never(selector)) {
            self.has_data(&selector).await.with_context(|| query.to_owned())?;
        }
        let unknown: Vec<_> = groupings.iter().filter(|one| !labels.contains(one)).collect();
        ensure!(unknown.is_empty(), "{unknown:?} are no labels: {query}");
        Ok(())
    }
}

/// Collects selectors, one for each alternative of a value, and labels of a parsed query.
fn read(node: &Value, selectors: &mut Vec<String>, groupings: &mut Vec<Value>) {
    for key in ["grouping", "labels", "include"] {
        groupings.extend(node[key].as_array().into_iter().flatten().cloned());
    }
    if let Some(matchers) = node["matchers"].as_array() {
        let mut made = vec![String::new()];
        for matcher in matchers {
            let word = |key: &str| matcher[key].as_str().unwrap_or_default();
            let (name, operator, value) = (word("name"), word("type"), word("value"));
            let alternatives: Vec<_> = match operator {
                "=~" if !value.contains('(') => value.split('|').collect(),
                _ => vec![value],
            };
            let with = |before: &String| {
                let one = |value: &&str| format!("{before}{name}{operator}{value:?},");
                alternatives.iter().map(one).collect::<Vec<_>>()
            };
            made = made.iter().flat_map(with).collect();
        }
        selectors.extend(made.iter().map(|matchers| format!("{{{matchers}}}")));
    }
    let below: Vec<&Value> = match node {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    below.into_iter().for_each(|one| read(one, selectors, groupings));
}

/// The texts of a field, wherever it is in a dashboard or a rule file.
fn texts(of: &Value, field: &str, found: &mut Vec<String>) {
    found.extend(of[field].as_str().map(str::to_owned));
    match of {
        Value::Object(fields) => fields.values().for_each(|one| texts(one, field, found)),
        Value::Array(items) => items.iter().for_each(|one| texts(one, field, found)),
        _ => {}
    }
}

/// What Grafana puts in the place of variables.
const VARIABLES: [(&str, &str); 9] = [
    ("${__from}", "0"),
    ("${namespace:text}", ".*"),
    ("$__rate_interval", "2m"),
    ("$__interval", "1m"),
    ("$__range", "1h"),
    ("$cluster", ".*"),
    ("$node", ".*"),
    ("$namespace", ".*"),
    ("$job", "coroner"),
];

#[tokio::test]
async fn every_query_selects_series_that_exist() -> Result<()> {
    let work = tempfile::tempdir()?;
    let prometheus = Prometheus::start(work.path()).await?;
    let labels = prometheus.ask("labels", "limit", "0").await?;
    let labels = labels.as_array().context("no labels")?;
    let mut queries: Vec<_> = CATALOGUE.iter().map(|entry| entry.example.to_owned()).collect();
    for file in rules::files("")? {
        texts(&rules::read(&file)?, "expr", &mut queries);
    }
    for name in NAMES {
        let text = fs::read(workspace().join(format!("dashboards/{name}.json")))?;
        let (before, json) = (queries.len(), serde_json::from_slice(&text)?);
        texts(&json, "expr", &mut queries);
        ensure!(queries.len() > before + 10, "{name} has few queries");
        let mut variables = Vec::new();
        texts(&json, "query", &mut variables);
        for variable in &variables {
            let values = variable.strip_prefix("label_values(");
            let values = values.and_then(|text| text.strip_suffix(')')?.split_once(", "));
            queries.extend(values.map(|(metric, label)| format!("count by ({label}) ({metric})")));
        }
    }
    let mut wrong = String::new();
    for mut query in queries {
        for (name, value) in VARIABLES {
            query = query.replace(name, value);
        }
        if let Err(error) = prometheus.check(&query, labels).await {
            writeln!(wrong, "{error:#}")?;
        }
    }
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(())
}

/// What the dashboard of Loki and Tempo asks for is an attribute of what the agent sends.
#[test]
fn the_dashboard_of_the_export_knows_the_attributes() -> Result<()> {
    let dashboard = fs::read(workspace().join("dashboards/export.json"))?;
    let dashboard = serde_json::from_slice(&dashboard)?;
    let sent = fs::read_to_string(workspace().join("agent/tests/golden/otlp.txt"))?;
    let sent = sent.split_whitespace().filter_map(|word| Some(word.split_once('=')?.0));
    let sent: BTreeSet<_> =
        sent.flat_map(|name| [name.to_owned(), name.replace('.', "_")]).collect();
    let mut queries = Vec::new();
    ["expr", "query"].iter().for_each(|field| texts(&dashboard, field, &mut queries));
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let words = queries.iter().flat_map(|query| query.split(|c| !is_of_name(c)));
    let names = words.map(|word| word.trim_start_matches("span."));
    let names: BTreeSet<_> = names
        .filter(|one| {
            one.starts_with("coroner_") || one.starts_with("coroner.") || one.starts_with("k8s")
        })
        .collect();
    ensure!(names.len() > 8, "{names:?}");
    let unknown: Vec<_> = names.iter().filter(|name| !sent.contains(**name)).collect();
    ensure!(unknown.is_empty(), "no such attribute: {unknown:?}");
    Ok(())
}
