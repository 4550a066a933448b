//! Every query of every panel, asked of a real Prometheus that has scraped the real agent while real
//! pods died in the lab.

use super::{
    model::{Dashboard, Substitution, dashboards, label_values},
    prometheus::{JOB, Prometheus, SCRAPE, Series, now},
    quiet::{BRIEF, QUIET},
};
use crate::{binaries, rules::files::rule_paths, tools::Tool};
use anyhow::Context as _;
use coroner_lab_cluster::port::Port;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::Path,
    process::Stdio,
};

/// Few and quick, and together they contain every event that a panel shows.
const SCENARIOS: [&str; 18] = [
    // Verdicts, findings and causes.
    "handles-sigterm",
    "sigterm-ignored",
    "prestop-exhausts-grace",
    "slower-than-grace",
    "shared-pid-namespace",
    "children-not-signalled",
    "crash",
    "oom-killed",
    "job-completes",
    "force-delete",
    // Clients that are cut, refused, and late.
    "exits-with-requests",
    "closes-its-listener",
    "clients-come-late",
    // What is left behind: a sandbox, addresses, an orphan, pods that are stuck.
    "ready-orphan",
    "netns-kept-open",
    "orphan-pod-cgroup",
    "stuck-by-finalizer",
    "stuck-by-process",
];
/// Sources that fail: the runtime is killed for a moment, and the apiserver is away for many scrapes,
/// in which nothing is judged and the agent is not ready.
const FAILING: [&str; 2] = ["pod-worker-stuck", "apiserver-away-for-long"];

/// Plays the scenarios with the agent listening there; gives what was said on the way.
async fn play(agent: SocketAddr, work: &Path) -> anyhow::Result<String> {
    let output = tokio::process::Command::new(binaries::LAB)
        .args(["run", "--json", "--listen", &agent.to_string()])
        .args(SCENARIOS.iter().chain(&FAILING).flat_map(|name| ["--scenario", name]))
        .args(binaries::flags(work))
        // Its environment is the agent's.
        .env("CORONER_WORKLOAD_METRICS", "10")
        .env("CORONER_NAMESPACE_HISTOGRAMS", "10")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "the run went wrong: {}\n{said}", output.status);
    Ok(said)
}

/// What has become of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Drawn {
    /// No point that is a number.
    Nothing,
    /// Zero all the time.
    Zero,
    /// Something has happened.
    Something,
}

impl Drawn {
    fn of(series: &[Series]) -> Self {
        let mut numbers = series.iter().flat_map(Series::values).filter(|value| value.is_finite());
        let first = numbers.next();
        if first.into_iter().chain(numbers).any(|value| value != 0.0) {
            Self::Something
        } else {
            first.map_or(Self::Nothing, |_| Self::Zero)
        }
    }
}

/// A run of the lab, and the Prometheus that has seen it.
struct ObservedRun {
    prometheus: Prometheus,
    /// Its pair.
    second: Prometheus,
    time: (f64, f64),
    said: String,
}

impl ObservedRun {
    async fn of(work: &Path) -> anyhow::Result<Self> {
        let port = Port::reserve()?;
        let agent = port.address();
        let program = Tool::Prometheus.find()?;
        write_rules(&work.join("rules"))?;
        let prometheus = Prometheus::start(&program, work, agent).await?;
        let pair = work.join("second");
        fs::create_dir(&pair)?;
        let second = Prometheus::start(&program, &pair, agent).await?;
        // What does not answer, as the agent does not yet, is seen too.
        prometheus.has_scraped().await?;
        second.has_scraped().await?;
        let begin = now();
        let said = play(agent, work).await?;
        Ok(Self { prometheus, second, time: (begin, now()), said })
    }

    /// As Grafana would show the whole run; its rates are of 31 s, so that a scrape that is late on a
    /// slow machine hides nothing.
    fn substitution(&self) -> Substitution {
        let range = (self.time.1 - self.time.0).ceil() as u64;
        Substitution::new(range, 30, SCRAPE)
            .with("$cluster", ".*")
            .with("$node", ".*")
            .with("$namespace", ".*")
            .with("$job", JOB)
    }

    async fn ask(&self, query: &str) -> anyhow::Result<Vec<Series>> {
        self.prometheus.series(query, self.time).await.with_context(|| query.to_owned())
    }

    /// The greatest value of each series, by one of its labels.
    async fn greatest(&self, query: &str, label: &str) -> anyhow::Result<BTreeMap<String, f64>> {
        let series = self.ask(query).await?;
        let greatest = |one: &Series| one.values().fold(f64::NEG_INFINITY, f64::max);
        Ok(series
            .iter()
            .map(|one| (one.labels.get(label).cloned().unwrap_or_default(), greatest(one)))
            .collect())
    }
}

#[tokio::test]
async fn every_query_tells_of_its_event_in_a_run_that_contains_it() -> anyhow::Result<()> {
    binaries::demand_root();
    let work = tempfile::tempdir()?;
    let run = ObservedRun::of(work.path()).await?;
    let dashboards = dashboards();
    let mut wrong = Vec::new();
    wrong.extend(queries(&run, &dashboards).await?);
    wrong.extend(variables(&run, &dashboards).await?);
    wrong.extend(labels(&run).await?);
    wrong.extend(pairs(&run).await?);
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), run.said);
    Ok(())
}

/// Every query gives data; those that are listed as quiet give zero, and no others but the brief.
async fn queries(run: &ObservedRun, dashboards: &[Dashboard]) -> anyhow::Result<Vec<String>> {
    let quiet: BTreeMap<&str, &str> = QUIET.iter().copied().collect();
    let mut wrong = Vec::new();
    let mut asked = BTreeSet::new();
    for query in dashboards.iter().flat_map(Dashboard::queries) {
        let name = query.name();
        let series = run.ask(&run.substitution().apply(query.expression())).await?;
        let (told, reason) = (Drawn::of(&series), quiet.get(name.as_str()));
        let is_brief = BRIEF.iter().any(|(brief, _)| *brief == name);
        match (told, reason) {
            (Drawn::Something, None) | (Drawn::Zero, Some(_)) => {}
            (Drawn::Zero, None) if is_brief => {}
            (Drawn::Something, Some(reason)) => {
                wrong.push(format!(
                    "{name}: tells something; it is listed as quiet, for it {reason}"
                ));
            }
            (Drawn::Zero, None) => wrong.push(format!("{name}: nothing has happened")),
            (Drawn::Nothing, _) => {
                wrong.push(format!("{name}: no data ({} series)", series.len()));
            }
        }
        asked.insert(name);
    }
    let known = QUIET.iter().chain(BRIEF).map(|(name, _)| name);
    wrong.extend(
        known.filter(|name| !asked.contains(**name)).map(|name| format!("{name}: no such query")),
    );
    Ok(wrong)
}

/// Every variable has the values that there are, and is told from what the target is called.
async fn variables(run: &ObservedRun, dashboards: &[Dashboard]) -> anyhow::Result<Vec<String>> {
    let expected =
        BTreeMap::from([("cluster", "c1"), ("node", "n1"), ("namespace", "lab"), ("job", JOB)]);
    let mut wrong = Vec::new();
    for dashboard in dashboards {
        for (name, variable) in dashboard.variables() {
            let Some((metric, label)) = label_values(variable) else { continue };
            let metric = run.substitution().apply(metric);
            let values = run.prometheus.label_values(&metric, label).await?;
            if values.iter().map(String::as_str).ne(expected.get(name).copied()) {
                wrong.push(format!("{}: ${name} has the values {values:?}", dashboard.name));
            }
        }
    }
    Ok(wrong)
}

/// Where target and metric have a label of the same name, the metric's is kept; the node is always
/// the target's.
async fn labels(run: &ObservedRun) -> anyhow::Result<Vec<String>> {
    let expected = [
        ("coroner_container_deaths_total", "namespace", "lab"),
        ("coroner_container_deaths_total", "pod", "coroner-abc"),
        ("coroner_leaked_sandbox_created_timestamp_seconds", "namespace", "lab"),
        (
            "coroner_leaked_sandbox_created_timestamp_seconds{cause=\"cni_delete_failing\"}",
            "pod",
            "netns-kept-open",
        ),
        ("coroner_pods_terminating", "namespace", "coroner"),
        ("coroner_pods_terminating", "pod", "coroner-abc"),
    ];
    let mut wrong = Vec::new();
    for (metric, label, value) in expected {
        let series = run.ask(metric).await?;
        let as_expected = |one: &Series| {
            let of = |label| one.labels.get(label).map(String::as_str);
            of(label) == Some(value) && of("node") == Some("n1")
        };
        if series.is_empty() || !series.iter().all(as_expected) {
            wrong.push(format!("{metric}: {label} is not {value}: {series:#?}"));
        }
    }
    Ok(wrong)
}

/// Every server of a pair counts every death, the first one of a verdict included: a scrape changes nothing for the
/// next one.
async fn pairs(run: &ObservedRun) -> anyhow::Result<Vec<String>> {
    let counter = "coroner_container_deaths_total";
    let truth = run.greatest(&format!("sum by (verdict) ({counter})"), "verdict").await?;
    let range = (run.time.1 - run.time.0).ceil();
    let counted = format!("round(sum by (verdict) (increase({counter}[{range}s])))");
    let mut wrong = Vec::new();
    for server in [&run.prometheus, &run.second] {
        let series = server.series(&counted, (run.time.1, run.time.1)).await?;
        let shown: BTreeMap<_, _> = series
            .iter()
            .filter_map(|one| Some((one.labels.get("verdict")?.clone(), one.values().last()?)))
            .collect();
        if shown != truth {
            wrong.push(format!("deaths of a run: {shown:?}, but they are {truth:?}"));
        }
    }
    let once = truth.values().any(|count| *count == 1.0);
    let many = truth.get("graceful").is_some_and(|count| *count > 1.0);
    anyhow::ensure!(once && many, "the run has too little: {truth:?}");
    Ok(wrong)
}

/// The rules as they are deployed, but that an alert fires at once.
fn write_rules(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    for path in rule_paths()? {
        let text = fs::read_to_string(&path)?;
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("for: "));
        let name = path.file_name().context("a file has a name")?;
        fs::write(folder.join(name), lines.collect::<Vec<_>>().join("\n"))?;
    }
    Ok(())
}
