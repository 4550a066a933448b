//! docs/metrics.md: the reference of the metrics, made of the catalogue.

use super::{CATALOGUE, MetricEntry, MetricKind, Stability, Values};
use std::{fmt::Write, fs, path::Path};

const HEAD: &str = "\
<!-- Generated from agent/src/outputs/metrics/catalogue.rs by `cargo xtask docs`; do not edit. -->
# Metrics

The agent serves these metrics on `/metrics`, in the Prometheus text format. Times are in seconds, sizes in bytes. Counters
begin at zero when the agent starts.

Series whose labels are all closed sets exist as soon as the counted event is possible. Series by namespace begin at zero with the
first pod of the namespace on the node, and series by workload with the workload's first pod, so that `increase()` counts the first
event. A scrape changes nothing: every Prometheus server gets the same values.

A termination and the deaths in it are counted once: when the report is final, or 60 s after the pod has terminated
([revisions](deaths.md#revisions)). Later updates are only in `coroner_pod_termination_updates_total`.

Labels that name a workload (`namespace`, `pod`) belong to coroner: scrape with `honorLabels: true` (as the chart's PodMonitor
does), otherwise Prometheus renames them to `exported_…`. `node` is a label of the target, which the PodMonitor adds; the agent
does not set it.

*Stable* metrics change their name, type, labels or meaning only with a new major version. *Internal* metrics describe the agent's
internals and may change with every minor version. The number of series is bounded: see [Cardinality](#cardinality).

Each metric has its kind, what it counts, its labels with their values, and an example query.
";

const TAIL: &str = "\
## Process

These are the standard process metrics, with CPU time in nanosecond resolution: `process_cpu_seconds_total`,
`process_max_fds`, `process_open_fds`, `process_resident_memory_bytes`,
`process_start_time_seconds`, `process_threads`, `process_virtual_memory_bytes`.

## Cardinality

A node with 250 pods in 30 namespaces and no leaks has at most 910 series with the agent's defaults; a test checks this
(`agent/src/outputs/metrics/tests.rs`). These bounds hold on any node, for any uptime of the agent:

| label | bound |
|---|---|
| `namespace` of `coroner_container_deaths_total` | the first 100, then `other`; each with all 12 verdicts |
| identity labels of `coroner_leaked_sandbox_created_timestamp_seconds` and `…_observed_…` | `--leak-series` (50) each, and only while the leak exists |
| labels of `coroner_workload_container_deaths_total` | `--workload-metrics` (0) workloads, then `other`; each with all 12 verdicts |
| `namespace` of `coroner_namespace_pod_termination_duration_seconds` | `--namespace-histograms` (0), then `other` |
| all others | closed sets, listed above |
";

/// The whole page.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut group = "";
    for entry in &CATALOGUE {
        if entry.group != group {
            group = entry.group;
            let _ = write!(page, "\n## {group}\n"); // to a String: cannot fail
        }
        page += &section(entry);
    }
    page + "\n" + TAIL
}

fn section(entry: &MetricEntry) -> String {
    let kind = match entry.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram(_) => "histogram",
    };
    let unit = if entry.unit.is_empty() { String::new() } else { format!(", {}", entry.unit) };
    let stability = match entry.stability {
        Stability::Stable => "stable",
        Stability::Internal => "internal",
    };
    let mut text = format!("\n### {}\n\n*{kind}{unit}, {stability}.* {}\n", entry.name, entry.help);
    if let MetricKind::Histogram(buckets) = entry.kind {
        let edges: Vec<_> = buckets.0.iter().map(f64::to_string).collect();
        let _ = writeln!(text, "Upper bounds of the buckets: {}.", edges.join(", "));
    }
    for label in entry.labels {
        let values = match entry.values(label).expect("each label has its values") {
            Values::Closed(values) => {
                values().iter().map(|v| format!("`{v}`")).collect::<Vec<_>>().join(", ")
            }
            Values::Open(bound) => bound.to_owned(),
        };
        let _ = writeln!(text, "- `{label}`: {values}");
    }
    let query = entry.example.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(text, "\n`{query}`");
    text
}

#[test]
fn docs_metrics_md_is_what_the_catalogue_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, page, "docs/metrics.md is stale; run `cargo xtask docs`");
}
