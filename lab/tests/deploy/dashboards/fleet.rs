//! What a fleet of many nodes makes of a panel: never more than ten lines.
//!
//! The series are those of the agent's catalogue, with every value of every closed label, on each of
//! [`NODES`] nodes. What they draw, 500 draw: either a panel has a bound, or it has a line per node.

use super::{
    model::{Dashboard, Panel, Query, Substitution, dashboards},
    prometheus::{JOB, Prometheus, now},
};
use crate::tools::Tool;
use anyhow::{Context as _, ensure};
use coroner::outputs::metrics::{CATALOGUE, MetricKind, Values};
use coroner_lab_cluster::port::Port;
use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path, process::Command};

const NODES: usize = 24;
const NAMESPACES: usize = 15;
/// On each node.
const LEAKS: usize = 20;
/// Between two samples of a series, s, and how many of them there are.
const STEP: u64 = 30;
const SAMPLES: u64 = 12;
/// Lines that a person can tell from each other.
const LINES: usize = 10;
/// Rows that a person reads: the 50 oldest leaks, and the verdicts of some namespaces.
const ROWS: usize = 60;

/// Metrics of Prometheus or of the agent's process that the panels ask for.
const FOREIGN: [&str; 4] = [
    "up",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
];

/// The series of a metric on one node, as labels: every value of closed labels, some of open ones.
fn label_sets(labels: &[&str], values: &[Values], node: usize) -> Vec<String> {
    let mut sets = vec![String::new()];
    for (label, values) in labels.iter().zip(values) {
        let values: Vec<String> = match (values, *label) {
            (Values::Closed(values), _) => values().into_iter().map(str::to_owned).collect(),
            (Values::Open(_), "namespace") => (0..NAMESPACES).map(|n| format!("ns-{n}")).collect(),
            (Values::Open(_), "version") => vec!["1.0.0".to_owned()],
            (Values::Open(_), _) => vec![format!("{label}-of-{node}")],
        };
        sets = sets
            .iter()
            .flat_map(|set| values.iter().map(move |value| format!("{set}{label}=\"{value}\",")))
            .collect();
    }
    sets
}

/// The series of a metric with a leak's identity: one for each leak, whatever its class and cause are.
fn leaks(labels: &[&str], values: &[Values], node: usize) -> Vec<String> {
    let one = |leak: usize| {
        let pairs = labels.iter().zip(values).map(|(label, values)| match (values, *label) {
            (Values::Closed(values), _) => {
                let values = values();
                format!("{label}=\"{}\",", values[leak % values.len()])
            }
            (Values::Open(_), "namespace") => format!("namespace=\"ns-{}\",", leak % NAMESPACES),
            (Values::Open(_), _) => format!("{label}=\"{label}-{node}-{leak}\","),
        });
        pairs.collect()
    };
    (0..LEAKS).map(one).collect()
}

/// A metric on every node, as OpenMetrics: the values grow, each node's and each series' at its own speed.
fn write(text: &mut String, name: &str, sets: impl Fn(usize) -> Vec<String>, begin: u64) {
    for node in 0..NODES {
        for (place, set) in sets(node).iter().enumerate() {
            for sample in 0..SAMPLES {
                let speed = 1 + (7 * node + 3 * place) % 11;
                // To a String: cannot fail.
                let _ = writeln!(
                    text,
                    "{name}{{{set}cluster=\"c1\",node=\"n{node}\",job=\"{JOB}\",instance=\"{node}\"}} {} {}",
                    sample * speed as u64,
                    begin + sample * STEP
                );
            }
        }
    }
}

/// The whole catalogue on all nodes.
fn open_metrics(begin: u64) -> String {
    let mut text = String::new();
    for entry in &CATALOGUE {
        let of = if entry.labels.contains(&"sandbox") { leaks } else { label_sets };
        let sets = |node| of(entry.labels, entry.values, node);
        match entry.kind {
            MetricKind::Counter | MetricKind::Gauge => write(&mut text, entry.name, sets, begin),
            MetricKind::Histogram(buckets) => {
                let edges = |node| {
                    let edges = buckets.0.iter().map(|edge| format!("le=\"{edge}\","));
                    let edges: Vec<_> = edges.chain(["le=\"+Inf\",".to_owned()]).collect();
                    let with = |set: String| {
                        edges.iter().map(move |edge| format!("{set}{edge}")).collect::<Vec<_>>()
                    };
                    sets(node).into_iter().flat_map(with).collect()
                };
                write(&mut text, &format!("{}_bucket", entry.name), edges, begin);
                for part in ["sum", "count"] {
                    write(&mut text, &format!("{}_{part}", entry.name), sets, begin);
                }
            }
        }
    }
    let alert = "alertname=\"CoronerDown\",alertstate=\"firing\",severity=\"warning\",".to_owned();
    write(&mut text, "ALERTS", |_| vec![alert.clone()], begin);
    for name in FOREIGN {
        write(&mut text, name, |_| vec![String::new()], begin);
    }
    text + "# EOF\n"
}

/// Puts a past, as OpenMetrics, into the folder in which a Prometheus will keep its data.
pub(crate) fn backfill(work: &Path, past: &str) -> anyhow::Result<()> {
    let file = work.join("fleet.txt");
    fs::write(&file, past)?;
    let output = Command::new(Tool::Promtool.find()?)
        .args(["tsdb", "create-blocks-from", "--max-block-duration=24h", "openmetrics"])
        .args([&file, &work.join("data")])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The lines or rows that a query gives: at any moment of the range, or at its end.
async fn series(
    prometheus: &Prometheus,
    query: &Query<'_>,
    (begin, end): (f64, f64),
) -> anyhow::Result<BTreeSet<String>> {
    let all = Substitution::new((end - begin) as u64, 15, STEP);
    let all = all.with("$cluster", ".*").with("$node", ".*").with("$namespace", ".*");
    let expression = all.with("$job", JOB).apply(query.expression());
    let begin = if query.json["instant"] == true { end } else { begin };
    let found = prometheus.series(&expression, (begin, end)).await.context(expression)?;
    Ok(found.iter().map(|one| format!("{} {:?}", query.name(), one.labels)).collect())
}

#[tokio::test]
async fn no_panel_draws_more_than_ten_lines() -> anyhow::Result<()> {
    let work = tempfile::tempdir()?;
    let begin = now() - (STEP * SAMPLES) as f64 - 60.0;
    let range = (begin, begin + (STEP * (SAMPLES - 1)) as f64);
    backfill(work.path(), &open_metrics(begin as u64))?;
    let nobody = Port::reserve()?;
    let prometheus =
        Prometheus::start(&Tool::Prometheus.find()?, work.path(), nobody.address()).await?;
    let mut wrong = Vec::new();
    for dashboard in dashboards() {
        for panel in dashboard.panels() {
            let name = format!("{} / {}", panel.dashboard, panel.title());
            let (most, unit) = match panel.json["type"].as_str().unwrap_or_default() {
                "table" => (ROWS, "rows of one query"),
                // A bucket is a row of one picture.
                "heatmap" | "text" => continue,
                "stat" => (1, "numbers"),
                _ => (LINES, "lines"),
            };
            let mut lines = BTreeSet::new();
            for query in queries(&dashboard, &panel) {
                let found = series(&prometheus, &query, range).await?;
                if found.is_empty() {
                    wrong.push(format!("{}: the fleet has nothing of it", query.name()));
                }
                if unit.starts_with("rows") && found.len() <= most {
                    continue;
                }
                lines.extend(found);
            }
            if lines.len() > most {
                wrong.push(format!("{name}: {} {unit}, not {most}", lines.len()));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn queries<'a>(dashboard: &'a Dashboard, panel: &Panel<'_>) -> impl Iterator<Item = Query<'a>> {
    let id = panel.json["id"].clone();
    dashboard.queries().filter(move |query| query.panel.json["id"] == id)
}
