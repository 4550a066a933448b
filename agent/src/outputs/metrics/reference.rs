//! docs/metrics.md: the reference of the metrics, made of the catalogue.

use super::{CATALOGUE, Entry, Kind, Stability, Values};
use std::{fmt::Write, fs, path::Path};

const HEAD: &str = "\
<!-- Generated from agent/src/outputs/metrics/catalogue.rs by `cargo xtask docs`; do not edit. -->
# The metrics

Metrics on `/metrics`, in the Prometheus text format. Times are seconds, sizes bytes. Counters begin
at zero when the agent starts. Series whose labels are all closed sets exist as soon as what they
count can happen. Of the others (`coroner_container_deaths_total`), the verdicts on stops that were not
graceful begin at zero when a namespace has its first pod on the node, so that `increase()` sees the first event
too; the rest (`oom_killed`, `crashed`, `graceful`, `completed`, `failed`, `unknown`) have a series from their first
death on, which `increase()` ignores. A scrape changes nothing: every Prometheus sees the same.

A termination and the deaths in it are counted once: when the report is final, or 60 s after the pod's end
([revisions](deaths.md#revisions)). Later updates are in `coroner_pod_termination_updates_total` alone.

Labels that name a workload (`namespace`, `pod`) are coroner's own: scrape with `honorLabels: true`
(deploy/monitoring does), or Prometheus renames them to `exported_…`. `node` is a label of the
target, which deploy/monitoring adds; the agent itself does not set it.

*Stable* metrics change their name, type, labels or meaning only with a new major version. *Internal*
ones describe coroner's internals and may change with every minor version. Nothing here grows without
bound: see [Cardinality](#cardinality).
";

const TAIL: &str = "\
## The process

The standard process metrics, with CPU time in nanosecond resolution: `process_cpu_seconds_total`,
`process_max_fds`, `process_open_fds`, `process_resident_memory_bytes`,
`process_start_time_seconds`, `process_threads`, `process_virtual_memory_bytes`.

## Cardinality

A node with 250 pods in 30 namespaces that leaks nothing, and where containers of each namespace died in every
way (no node is like that), has at most 740 series with the agent's defaults; a test proves it
(`agent/src/outputs/metrics/tests.rs`). What bounds them on any node, however long the agent runs:

| label | bound |
|---|---|
| `namespace` of `coroner_container_deaths_total` | the first 100, then `other`; each with the 7 verdicts on stops, and those of the other 5 that its containers had |
| identity of `coroner_leaked_sandbox_created_timestamp_seconds` and `…_observed_…` | `--leak-series` (50) each, and only while the leak exists |
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

fn section(entry: &Entry) -> String {
    let kind = match entry.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    let unit = if entry.unit.is_empty() { String::new() } else { format!(", {}", entry.unit) };
    let stability = match entry.stability {
        Stability::Stable => "stable",
        Stability::Internal => "internal",
    };
    let mut text = format!("\n### {}\n\n{kind}{unit} · {stability}\n\n", entry.name);
    let _ = writeln!(text, "{}", entry.help);
    if let Kind::Histogram(buckets) = entry.kind {
        let edges: Vec<_> = buckets.0.iter().map(f64::to_string).collect();
        let _ = writeln!(text, "\nUpper edges of its buckets: {}.", edges.join(", "));
    }
    if !entry.labels.is_empty() {
        text += "\n| label | values |\n|---|---|\n";
    }
    for label in entry.labels {
        let values = match entry.values(label).expect("each label has its values") {
            Values::Closed(values) => {
                values().iter().map(|v| format!("`{v}`")).collect::<Vec<_>>().join(", ")
            }
            Values::Open(bound) => bound.to_owned(),
        };
        let _ = writeln!(text, "| `{label}` | {values} |");
    }
    let _ = writeln!(text, "\n```promql\n{}\n```", entry.example);
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
