//! All rules on what a fleet's agents serve on their first days: old leaks, new leaks on one node, a long restart of
//! the apiserver. Alerts are counted that fire at any time.
//!
//! The series are those of the agent's own engine, health and metrics, scraped once a minute of a clock that the test
//! sets.

use super::{
    files::{self, Rule},
    promtool,
};
use crate::{
    dashboards::{
        fleet::backfill,
        prometheus::{self, Prometheus},
    },
    tools::Tool,
};
use anyhow::{Context as _, Result};
use coroner::{outputs::metrics::Metrics, sources::kernel::StartReport, store::health::Health};
use coroner_core::{
    engine::{Engine, Settings},
    input::{
        ApiEvent, ApiNode, CriEvent, CriSandbox, CriSandboxStatus, HostEvent, HostSurvey, Input,
        PodCheck, Received, SandboxNetwork,
    },
    output::{CriRequest, Request},
    time::{Anchor, BootTime, WallTime},
};
use coroner_lab_cluster::port::Port;
use promql_parser::{
    parser::{self, VectorSelector},
    util::{ExprVisitor, walk_expr},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fmt::Write as _,
    fs,
    rc::Rc,
};

/// Sandboxes that had leaked before the agent's first start.
const OLD: u64 = 30;
/// Sandboxes that leak on one node within an hour.
const NEW: u64 = 20;
/// Pods that a node can have, as kube-state-metrics reports: old leaks hold more than half of the addresses.
const ALLOCATABLE: u64 = 58;
/// Minutes of the clock: when these begin to leak, when the apiserver is away and back, and the end.
const LEAKING: u64 = 150;
const AWAY: u64 = 240;
const BACK: u64 = 260;
const END: u64 = 300;
/// Between two inputs, seconds.
const STEP: u64 = 10;

/// The node of an agent.
struct RecordedNode {
    engine: Engine,
    metrics: Metrics,
    health: Health,
    at: BootTime,
}

impl RecordedNode {
    fn new() -> Result<Self> {
        let anchor = Anchor { boot_ns: 0, wall_ns: 0 };
        let (at, hooks) = (BootTime(0), [("cgroup_mkdir", Ok(()))].into());
        let mut health = Health::new(true, at);
        health.kernel_started(StartReport { hooks, ..StartReport::default() });
        let (engine, metrics) = (Engine::new(Settings::new(anchor)), Metrics::new()?);
        Ok(Self { engine, metrics, health, at })
    }

    /// As the agent's event loop does with an input; what the engine requests is answered.
    fn take(&mut self, input: Input) {
        let asked = self.at;
        let received = Received { at: asked, input };
        self.metrics.input(&received);
        self.health.note(&received);
        let out = self.engine.step(received);
        for report in &out.reports {
            self.metrics.record(report);
        }
        for request in out.requests {
            match request {
                Request::VerifyPods(pods) => {
                    let gone = |uid| PodCheck { uid, exists: Some(false) };
                    let pods = pods.into_iter().map(|pod| gone(pod.uid)).collect();
                    self.take(Input::Api(ApiEvent::Checked { asked, pods }));
                }
                Request::Cri(CriRequest::SandboxStatus(sandbox)) => {
                    let network = SandboxNetwork::Own { path: None, closed: Some(false) };
                    let ips = vec!["10.0.0.1".to_owned()];
                    let status = CriSandboxStatus { sandbox, asked, pid: None, ips, network };
                    self.take(Input::Cri(CriEvent::SandboxStatus(status)));
                }
                _ => {}
            }
        }
    }

    fn in_sync(&mut self) {
        let (boot_id, kubelet_version) = ("boot".to_owned(), "v1.30.0".to_owned());
        self.take(Input::Api(ApiEvent::Snapshot { pods: Vec::new() }));
        let node = ApiNode { boot_id, kubelet_version, ready: Some(true) };
        self.take(Input::Api(ApiEvent::Node(node)));
    }

    fn start(&mut self) {
        self.take(Input::Host(HostEvent::Boot { boot_id: Some("boot".to_owned()) }));
        self.take(Input::Cri(CriEvent::Connected {
            runtime: "containerd".to_owned(),
            process: None,
        }));
        self.in_sync();
    }

    /// Ten seconds pass, in which the runtime lists so many sandboxes without a pod.
    fn step(&mut self, leaked: u64) {
        let asked = self.at;
        let sandboxes = (0..leaked).map(|n| CriSandbox {
            id: format!("{n:064x}").as_str().into(),
            pod: format!("uid-{n}").as_str().into(),
            name: format!("web-{n}"),
            namespace: "shop".to_owned(),
            attempt: 0,
            ready: false,
            created: WallTime(0),
            handler: String::new(),
            config_source: Some("api".to_owned()),
        });
        let sandboxes = sandboxes.collect();
        self.take(Input::Cri(CriEvent::Sandboxes { asked, only: None, sandboxes }));
        self.take(Input::Cri(CriEvent::Containers { asked, only: None, containers: Vec::new() }));
        self.take(Input::Host(HostEvent::Survey(HostSurvey { asked, ..HostSurvey::default() })));
        self.take(Input::Tick);
        let gauges = self.engine.gauges();
        self.health.set_detection_state(gauges.leaks.detection_state);
        self.metrics.engine(&gauges);
        self.at = BootTime(self.at.0 + STEP * 1_000_000_000);
    }
}

/// From a series without a target's labels to its value in each minute.
type PointsOfSeries = BTreeMap<String, Vec<Option<f64>>>;

/// What an agent serves that starts in this minute, of the metrics that rules use.
fn scraped(start: u64, leaks: bool, used: &BTreeSet<String>) -> Result<PointsOfSeries> {
    let mut node = RecordedNode::new()?;
    let mut series = PointsOfSeries::new();
    for minute in start..END {
        let hour = minute.saturating_sub(LEAKING).min(60);
        let leaked = OLD + if leaks { hour * NEW / 60 } else { 0 };
        if minute == start {
            node.start();
        } else if minute == AWAY {
            node.take(Input::Api(ApiEvent::OutOfSync { error: "connection refused".to_owned() }));
        } else if minute == BACK {
            node.in_sync();
        }
        for _ in 0..60 / STEP {
            node.step(leaked);
        }
        let own = node.metrics.scrape(&node.health)?;
        let targets = "up 1\nprocess_start_time_seconds 7\n";
        for line in own.lines().chain(targets.lines()).filter(|line| !line.starts_with('#')) {
            let (series_name, value) = line.rsplit_once(' ').context("a series has a value")?;
            let name = series_name.split('{').next().unwrap_or_default();
            if used.contains(name) {
                let values = series.entry(series_name.to_owned()).or_default();
                values.resize(minute as usize, None);
                values.push(Some(value.parse()?));
            }
        }
    }
    Ok(series)
}

/// Values as promtool expands them: runs of one slope.
fn notation(values: &[Option<f64>]) -> String {
    let mut text = String::new();
    let mut rest = values;
    while let Some((first, after)) = rest.split_first() {
        let slope = match (first, after.first()) {
            (Some(first), Some(Some(next))) => next - first,
            _ => 0.0,
        };
        let expected = |place: usize| first.map(|first| first + slope * (place as f64 + 1.0));
        let run = after.iter().enumerate().take_while(|(place, value)| **value == expected(*place));
        let run = run.count();
        // To a String: cannot fail.
        let _ = match first {
            Some(first) => write!(text, "{first}{slope:+}x{run} "),
            None => write!(text, "_x{} ", run + 1),
        };
        rest = &after[run..];
    }
    text
}

/// The metrics that expressions select.
#[derive(Default)]
struct Selected(BTreeSet<String>);

impl Selected {
    fn note(&mut self, expression: &str) -> Result<()> {
        let parsed = parser::parse(expression).map_err(anyhow::Error::msg)?;
        let Ok(_) = walk_expr(self, &parsed);
        Ok(())
    }
}

impl ExprVisitor for Selected {
    type Error = Infallible;

    fn pre_visit(&mut self, expression: &parser::Expr) -> Result<bool, Infallible> {
        let mut note = |selector: &VectorSelector| self.0.extend(selector.name.clone());
        match expression {
            parser::Expr::VectorSelector(selector) => note(selector),
            parser::Expr::MatrixSelector(matrix) => note(&matrix.vs),
            _ => {}
        }
        Ok(true)
    }
}

/// A series, and its value in each minute.
type Recorded = (String, Rc<Vec<Option<f64>>>);

/// The fleet's series with their targets' labels, of the metrics that these rules use.
fn fleet(nodes: u64, rules: &[Rule]) -> Result<Vec<Recorded>> {
    let mut selected = Selected::default();
    rules.iter().try_for_each(|rule| selected.note(&rule.expr))?;
    // The agents start one after the other, in ten groups; the first one's node leaks.
    let mut agents = vec![scraped(10, true, &selected.0)?];
    for group in 0..10.min(nodes) {
        agents.push(scraped(10 + 2 * group, false, &selected.0)?);
    }
    let agents: Vec<Vec<_>> = agents
        .into_iter()
        .map(|series| series.into_iter().map(|(name, values)| (name, Rc::new(values))).collect())
        .collect();
    let mut all = Vec::new();
    for node in 0..nodes {
        let agent = if node == 0 { 0 } else { 1 + node as usize % (agents.len() - 1) };
        let target = format!("cluster=\"c\",job=\"coroner\",node=\"n{node}\"");
        all.extend(agents[agent].iter().map(|(name, values)| {
            let name = match name.strip_suffix('}') {
                Some(open) => format!("{open},{target}}}"),
                None => format!("{name}{{{target}}}"),
            };
            (name, Rc::clone(values))
        }));
        let capacity = format!(
            "kube_node_status_allocatable{{cluster=\"c\",resource=\"pods\",node=\"n{node}\"}}"
        );
        all.push((capacity, Rc::new(vec![Some(ALLOCATABLE as f64); END as usize])));
    }
    Ok(all)
}

/// Every alert that fires at any time, with its severity and the number of those with other labels.
const ALERTS: [(&str, &str, usize); 4] = [
    // The restart of the apiserver, of the cluster.
    ("CoronerApiOutOfSync", "warning", 1),
    // Of the cluster, because old leaks hold more than a quarter of the addresses.
    ("CoronerLeakedIPsHeld", "warning", 1),
    // Of the cluster, from the first day on.
    ("CoronerSandboxesLeaked", "warning", 1),
    // Of the node that leaks 20 within an hour.
    ("CoronerSandboxesLeaking", "critical", 1),
];

#[test]
fn old_leaks_do_not_page_and_new_ones_do_once() -> Result<()> {
    let series: Vec<_> = fleet(1, &files::rules(&files::rule_paths()?)?)?
        .into_iter()
        .map(|(name, values)| json!({"series": name, "values": notation(&values).trim()}))
        .collect();
    let samples = ALERTS.map(|(alert, severity, count)| {
        let labels = format!("{{alertname=\"{alert}\",severity=\"{severity}\"}}");
        json!({"labels": labels, "value": count})
    });
    let fired = format!(
        "count by (alertname, severity) (count_over_time(ALERTS{{alertstate=\"firing\"}}[{END}m]))"
    );
    let asked = json!({"expr": fired, "eval_time": format!("{END}m"), "exp_samples": samples});
    let paths = files::rule_paths()?.iter().map(fs::canonicalize).collect::<Result<Vec<_>, _>>()?;
    let test = json!({"interval": "1m", "input_series": series, "promql_expr_test": [asked]});
    let file = json!({"rule_files": paths, "evaluation_interval": "1m", "tests": [test]});
    let work = tempfile::tempdir()?;
    let path = work.path().join("day-one.yaml");
    fs::write(&path, file.to_string())?;
    promtool::promtool(&["test", "rules"], &[path])
}

/// Minutes of a rule's `for`.
fn minutes(hold: &str) -> Result<f64> {
    let (number, factor) = match hold.strip_suffix('h') {
        Some(hours) => (hours, 60.0),
        None => (hold.strip_suffix('m').context("minutes or hours")?, 1.0),
    };
    Ok(number.parse::<f64>()? * factor)
}

/// Whether a result without a gap lasts for so many minutes.
fn lasts(times: impl Iterator<Item = f64>, hold: f64) -> bool {
    let (mut began, mut last) = (f64::NAN, f64::NAN);
    times.into_iter().any(|time| {
        if time - last != 60.0 {
            began = time;
        }
        last = time;
        time - began >= hold * 60.0
    })
}

/// On more nodes than promtool's unit tests can have (10,000 samples a query): a real Prometheus evaluates each
/// alert's expression in each minute. Those of recorded series, which are by namespace, are left out: nothing
/// terminates here.
#[tokio::test]
async fn on_500_nodes_as_many_alerts_fire_as_on_one() -> Result<()> {
    let rules = files::rules(&files::rule_paths()?)?;
    let recorded = files::recorded(&rules);
    let rules: Vec<Rule> = rules
        .into_iter()
        .filter(|rule| {
            rule.alert.is_some() && !recorded.iter().any(|name| rule.expr.contains(name))
        })
        .collect();
    let begin = (prometheus::now() / 60.0).floor() * 60.0 - (END + 2) as f64 * 60.0;
    let mut past = String::new();
    for (name, values) in fleet(500, &rules)? {
        // Every third scrape is enough for expressions of ten minutes and more.
        for (minute, value) in values.iter().enumerate().step_by(3) {
            if let Some(value) = value {
                writeln!(past, "{name} {value} {}", begin + minute as f64 * 60.0)?;
            }
        }
    }
    past.push_str("# EOF\n");
    let work = tempfile::tempdir()?;
    backfill(work.path(), &past)?;
    let nobody = Port::reserve()?;
    let prometheus =
        Prometheus::start(&Tool::Prometheus.find()?, work.path(), nobody.address()).await?;
    let mut fired = BTreeMap::new();
    for rule in &rules {
        let hold = minutes(rule.hold.as_deref().unwrap_or("0m"))?;
        let range = (begin, begin + (END - 1) as f64 * 60.0);
        let results = prometheus.every(60, &rule.expr, range).await.context(rule.expr.clone())?;
        let count = results.iter().filter(|series| lasts(series.times(), hold)).count();
        if count > 0 {
            let severity = rule.labels.get("severity").map(String::as_str).unwrap_or_default();
            fired.insert((rule.alert.as_deref().unwrap_or_default(), severity), count);
        }
    }
    let expected = ALERTS.map(|(alert, severity, count)| ((alert, severity), count));
    assert_eq!(fired, expected.into());
    Ok(())
}

#[test]
fn runs_are_written_as_promtool_reads_them() {
    let values = [None, None, Some(1.0), Some(1.0), Some(3.0), Some(5.0), Some(4.5)];
    assert_eq!(notation(&values), "_x2 1+0x1 3+2x1 4.5+0x0 ");
}
