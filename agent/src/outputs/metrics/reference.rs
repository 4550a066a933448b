//! docs/metrics.md: the reference of the metrics, made of the catalogue.

use super::{CATALOGUE, MetricEntry, MetricKind, Stability, Values};
use std::{fmt::Write, fs, path::Path};

const HEAD: &str = "\
<!-- Generated from agent/src/outputs/metrics/catalogue.rs by `cargo xtask docs`; do not edit. -->
# Metrics

The agent serves these metrics on `/metrics`, in the Prometheus text format. Times are in seconds, sizes in bytes. Counters
begin at zero when the agent starts.

Series of counters with labels do not exist before something is counted, and then show 0 for two minutes, so that `increase()`
sees the first event; what a node counts first in its last two minutes is only in the log. A scrape changes nothing: every Prometheus server gets the same values.

A termination and the deaths in it are counted once: when the report is final, at most 60 s after the pod has
terminated ([revisions](deaths.md#revisions)).

No label is one of a scrape's own (`namespace`, `pod`, `container`, `node`, `job`, `instance`, `endpoint`): `honorLabels` is not
needed. `node` is a label of the target, which the chart's monitors add; the agent does not set it.

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

A node has SERIES series: so many at the start, and on a node with 250 pods of 75 workloads in 30 namespaces after each pod has been
deleted once. A test counts them (`agent/src/outputs/metrics/tests.rs`). A fleet has, in thousands of series:

| nodes | at the start | full |
|---:|---:|---:|
FLEETS
These are usual nodes. A limit of a scrape (`sampleLimit`) must be above what may be: 2,000. These bounds hold on any node, for any uptime of the agent:

| series | bound |
|---|---|
| of `coroner_containers_by_stop_response` | 150, those with most containers; the rest is counted with `pod_namespace=\"other\"` |
| of each of the four metrics by namespace or workload | `--workload-metrics` (150; 0: 150 by namespace alone, with empty labels of the workload). Beyond it the series that was counted least recently makes room, if nothing was counted on it for ten minutes. If there is none, the new one is counted as workload `other` of its namespace, up to as many series again, then with `pod_namespace=\"other\"` |
| `coroner_leaked_sandbox_created_timestamp_seconds` and `…_observed_…` | 50 each, and only while the leak exists |
| all others | closed sets, listed above |
";

/// Series of a node at the start, and of a full one.
pub(super) const SERIES: [usize; 2] = [213, 386];

fn series() -> String {
    format!("{} to {} series", SERIES[0], SERIES[1])
}

fn with_series(text: &str) -> String {
    let [idle, full] = SERIES;
    let fleets = [100, 500, 5_000].map(|nodes| {
        format!("| {nodes} | {} | {} |\n", nodes * idle / 1_000, nodes * full / 1_000)
    });
    text.replace("SERIES series", &series()).replace("FLEETS\n", &(fleets.concat() + "\n"))
}

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
    page + "\n" + &with_series(TAIL)
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
        let edges: Vec<_> = buckets.iter().map(f64::to_string).collect();
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
    assert!(written == page, "docs/metrics.md is stale; run `cargo xtask docs`");
    for page in ["README.md", "docs/scale.md", "docs/performance.md"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page));
        assert!(text.unwrap().contains(&series()), "{page} does not say {}", series());
    }
}
