//! A real Prometheus that scrapes one agent, with the labels that a cluster would give it.

use anyhow::Context as _;
use coroner_lab_cluster::{port::Port, wait};
use coroner_lab_harness::{agent::die_with_parent, agent::tail};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::SystemTime,
};
use tokio::process::{Child, Command};

/// Between two scrapes, s.
pub(crate) const SCRAPE: u64 = 1;
/// What a PodMonitor with `honorLabels` and a label for the node adds. Some of them are names of our
/// own labels, too: of these ours are kept.
pub(crate) const TARGET: [(&str, &str); 6] = [
    ("namespace", "coroner"),
    ("pod", "coroner-abc"),
    ("container", "coroner"),
    ("endpoint", "metrics"),
    ("node", "n1"),
    // As where many of them share a store.
    ("cluster", "c1"),
];
/// As deploy/monitoring's `jobLabel` has it.
pub(crate) const JOB: &str = "coroner";

/// A moment, s since 1970.
pub(crate) fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// A running one. Dropped, it is killed.
pub(crate) struct Prometheus {
    _child: Child,
    _port: Port,
    address: SocketAddr,
    client: Client<HttpConnector, Empty<axum::body::Bytes>>,
}

/// The values of one series, each with its labels.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Series {
    #[serde(rename = "metric")]
    pub(crate) labels: BTreeMap<String, String>,
    /// Time, s since 1970, and value, as Prometheus writes it: `NaN` is one.
    values: Vec<(f64, String)>,
}

impl Series {
    /// Its values as numbers.
    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        self.values.iter().map(|(_, value)| value.parse().unwrap_or(f64::NAN))
    }

    /// When it has values, s since 1970.
    pub(crate) fn times(&self) -> impl Iterator<Item = f64> {
        self.values.iter().map(|(time, _)| *time)
    }
}

#[derive(Deserialize)]
struct PrometheusAnswer<T> {
    data: Option<T>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Matrix {
    result: Vec<Series>,
}

impl Prometheus {
    /// Starts it in `work`, and waits until it answers.
    pub(crate) async fn start(
        program: &Path,
        work: &Path,
        agent: SocketAddr,
    ) -> anyhow::Result<Self> {
        let port = Port::reserve()?;
        let address = port.address();
        let config = work.join("prometheus.json"); // which is YAML, too
        let labels: BTreeMap<&str, &str> = TARGET.into();
        let written = serde_json::json!({
            "global": {"scrape_interval": format!("{SCRAPE}s"), "scrape_timeout": format!("{SCRAPE}s"),
                "evaluation_interval": format!("{SCRAPE}s")},
            "rule_files": [work.join("rules/*.yaml")],
            "scrape_configs": [{
                "job_name": JOB,
                "honor_labels": true,
                "static_configs": [{"targets": [agent.to_string()], "labels": labels}],
            }],
        });
        std::fs::write(&config, written.to_string())?;
        let log: PathBuf = work.join("prometheus.log");
        let file = std::fs::File::create(&log)?;
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", work.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn")
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        let child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let prometheus = Self { _child: child, _port: port, address, client };
        let ready =
            wait::asking("Prometheus is ready", async || Ok(prometheus.get("/-/ready").await.ok()));
        ready.await.with_context(|| format!("its log ends with:\n{}", tail(&log, 15)))?;
        Ok(prometheus)
    }

    /// Waits until it has tried to scrape the agent, whether that answers or not.
    pub(crate) async fn has_scraped(&self) -> anyhow::Result<()> {
        wait::asking("Prometheus scrapes", async || {
            let up = self.series("up", (now(), now())).await?;
            Ok((!up.is_empty()).then_some(()))
        })
        .await
    }

    /// What a query gives from `begin` to `end`, every second: a query of one moment too, as if one
    /// had looked at each of them.
    pub(crate) async fn series(
        &self,
        query: &str,
        range: (f64, f64),
    ) -> anyhow::Result<Vec<Series>> {
        self.every(1, query, range).await
    }

    /// What a query gives every so many seconds.
    pub(crate) async fn every(
        &self,
        step: u64,
        query: &str,
        (begin, end): (f64, f64),
    ) -> anyhow::Result<Vec<Series>> {
        let parameters = form_urlencoded::Serializer::new(String::new())
            .append_pair("query", query)
            .append_pair("start", &begin.to_string())
            .append_pair("end", &end.to_string())
            .append_pair("step", &step.to_string())
            .finish();
        let matrix: Matrix = self.ask(&format!("query_range?{parameters}")).await?;
        Ok(matrix.result)
    }

    /// What `label_values(METRIC, LABEL)` gives in Grafana.
    pub(crate) async fn label_values(
        &self,
        metric: &str,
        label: &str,
    ) -> anyhow::Result<Vec<String>> {
        let parameters =
            form_urlencoded::Serializer::new(String::new()).append_pair("match[]", metric).finish();
        self.ask(&format!("label/{label}/values?{parameters}")).await
    }

    async fn ask<T: DeserializeOwned>(&self, what: &str) -> anyhow::Result<T> {
        let (_, body) = self.answer(&format!("/api/v1/{what}")).await?;
        let answer: PrometheusAnswer<T> = serde_json::from_slice(&body)
            .with_context(|| String::from_utf8_lossy(&body).into_owned())?;
        answer.data.with_context(|| answer.error.unwrap_or_default())
    }

    async fn get(&self, path: &str) -> anyhow::Result<()> {
        let (status, _) = self.answer(path).await?;
        anyhow::ensure!(status.is_success(), "{status}");
        Ok(())
    }

    async fn answer(
        &self,
        path: &str,
    ) -> anyhow::Result<(axum::http::StatusCode, axum::body::Bytes)> {
        let uri: axum::http::Uri = format!("http://{}{path}", self.address).parse()?;
        let answer = self.client.get(uri).await?;
        let status = answer.status();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }
}
