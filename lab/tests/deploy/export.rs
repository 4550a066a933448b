//! The export by OTLP to a receiver that is not ours, and OpenMetrics as its own parser reads it.

use crate::{
    tls,
    tools::{PYTHON, workspace},
};
use anyhow::{Context as _, Result, ensure};
use coroner::{
    outputs::otlp::{Endpoint, ExportCounters, Exporter, targets},
    store::history::{History, HistoryOptions},
};
use coroner_lab::{agent::die_with_parent, port::Port, wait};
use coroner_report::PodTermination;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering::Relaxed},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::TcpListener,
    process::{Child, ChildStdout},
    sync::watch,
};

/// The receiver of the published packages; it stops with this.
pub(crate) struct Receiver {
    _child: Child,
    requests: Lines<BufReader<ChildStdout>>,
}

impl Receiver {
    pub(crate) fn start(mode: &str, [http, grpc]: [&Port; 2]) -> Result<Self> {
        let mut command = tokio::process::Command::new(PYTHON.find()?);
        command.kill_on_drop(true).arg("-B").arg(workspace().join("lab/tests/deploy/receiver.py"));
        command.args([mode, &http.number().to_string(), &grpc.number().to_string()]);
        die_with_parent(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("its output")?;
        let requests = BufReader::new(stdout).lines();
        Ok(Self { _child: child, requests })
    }

    pub(crate) async fn request(&mut self) -> Result<Value> {
        let line = wait::event("a request of OTLP", self.requests.next_line()).await??;
        Ok(serde_json::from_str(&line.context("the receiver ended")?)?)
    }
}

fn report(life: u32) -> Result<PodTermination> {
    let sample = fs::read(workspace().join("agent/report/tests/golden/termination.json"))?;
    Ok(PodTermination { life, ..serde_json::from_slice(&sample)? })
}

/// Names of what came, by trace and span.
type Came = BTreeMap<(String, String), String>;

fn note(came: &mut Came, request: &Value) -> Result<()> {
    for item in request["items"].as_array().context("no items")? {
        let of = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
        let of_record = if item["body"] == "" { "" } else { "record " };
        let key = (of("trace"), format!("{of_record}{}", of("span")));
        ensure!(came.insert(key, of("name")).is_none_or(|before| before == of("name")), "{item}");
    }
    Ok(())
}

async fn sent(history: &History) -> Result<()> {
    let is_empty = async || Ok((history.unsent_count().await == 0).then_some(()));
    wait::asking("an empty queue", is_empty).await
}

#[tokio::test]
async fn everything_arrives_once_however_the_receiver_fails() -> Result<()> {
    let (http, grpc) = tokio::join!(exports("http/protobuf"), exports("grpc"));
    http.context("http/protobuf")?;
    grpc.context("grpc")
}

async fn exports(protocol: &str) -> Result<()> {
    let ports = [Port::reserve()?, Port::reserve()?];
    let ports = [&ports[0], &ports[1]];
    let (history, _) =
        History::open(HistoryOptions { exports: true, ..HistoryOptions::default() })?;
    for life in 1..=3 {
        let report = report(life)?;
        report.containers.iter().for_each(|death| history.died(Box::new(death.clone()), true));
        history.terminated(Box::new(report), true);
    }
    let mut alone = report(1)?.containers.remove(0);
    alone.id = "alone".into();
    history.died(Box::new(alone), true);
    let files = tempfile::tempdir()?;
    let certificate = files.path().join("ca.crt");
    let endpoint = match protocol {
        "grpc" => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let port = listener.local_addr()?.port();
            fs::write(&certificate, tls::front("localhost", listener, ports[1].address())?)?;
            Endpoint(format!("https://localhost:{port}"))
        }
        _ => Endpoint(format!("http://{}", ports[0].address())),
    };
    let env = |name: &str| {
        let value = match name.strip_prefix("OTEL_EXPORTER_OTLP_")? {
            "PROTOCOL" => protocol,
            "HEADERS" => "authorization=Bearer%20t0ken",
            "TIMEOUT" => "1000",
            "COMPRESSION" => "gzip",
            "CERTIFICATE" if protocol == "grpc" => certificate.to_str()?,
            _ => return None,
        };
        Some(value.to_owned())
    };
    let counters = Arc::new(ExportCounters::default());
    let (stop, stopping) = watch::channel(false);
    let targets = targets(Some(&endpoint), env)?;
    let exporter =
        Exporter::new(targets, history.clone(), "n1".into(), Arc::clone(&counters), stopping);
    let exporter = tokio::spawn(exporter.run());
    let counted =
        |name| counters.outcomes().iter().find(|(own, _)| *own == name).unwrap().1.load(Relaxed);

    // Nothing listens; then it never answers; then it has no room.
    let failed = |reason: &str| {
        let of = counters.failures().find(|(failure, _)| failure.as_str() == reason);
        of.is_some_and(|(_, count)| count.load(Relaxed) > 0)
    };
    wait::until("a failed attempt", || Ok(failed("unreachable").then_some(()))).await?;
    for (mode, reason) in [("slow", "timeout"), ("unavailable", "unavailable")] {
        let mut receiver = Receiver::start(mode, ports)?;
        receiver.request().await?;
        wait::until(mode, || Ok(failed(reason).then_some(()))).await?;
    }
    ensure!(counted("sent") == 0 && history.unsent_count().await == 6);

    let (mut receiver, mut came) = (Receiver::start("ok", ports)?, Came::new());
    while !came.values().any(|name| name == "coroner.death") {
        let request = receiver.request().await?;
        ensure!(request["headers"]["authorization"] == "Bearer t0ken", "{request}");
        ensure!(request["resource"]["k8s.node.name"] == "n1", "{request}");
        note(&mut came, &request)?;
    }
    sent(&history).await?;
    let traces: BTreeSet<_> =
        came.keys().map(|(trace, _)| trace).filter(|one| !one.is_empty()).collect();
    ensure!(traces.len() == 3, "{came:#?}");
    let named = |wanted: &str| came.values().filter(|name| *name == wanted).count();
    ensure!(named("pod termination") == 3 && named("coroner.termination") == 3, "{came:#?}");
    ensure!(named("coroner.death") == 1 && named("container web") == 3, "{came:#?}");
    ensure!(counted("sent") == came.len() as u64, "{} of {}", counted("sent"), came.len());
    drop(receiver);

    for (life, mode, outcome) in
        [(4, "partial", "rejected"), (5, "refuse", "refused"), (6, "redirect", "refused")]
    {
        let before = counted(outcome);
        let mut receiver = Receiver::start(mode, ports)?;
        history.terminated(Box::new(report(life)?), true);
        receiver.request().await?;
        receiver.request().await?;
        sent(&history).await?;
        let by = counted(outcome) - before;
        ensure!(if mode == "partial" { by == 2 } else { by > 2 }, "{mode}: {by}");
    }

    // What is queued when the agent stops is sent before it ends.
    let mut receiver = Receiver::start("ok", ports)?;
    history.terminated(Box::new(report(10)?), true);
    stop.send(true)?;
    wait::event("the end", exporter).await??;
    let last = receiver.request().await?;
    ensure!(last["items"][0]["attributes"]["coroner.life"] == 10, "{last}");
    ensure!(history.unsent_count().await == 0);
    Ok(())
}

#[test]
fn openmetrics_is_what_its_parser_reads() -> Result<()> {
    let check = "import sys; from prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n\
                 samples = [s for f in read(open(sys.argv[1]).read()) for s in f.samples]\n\
                 print(len(samples), sum(s.exemplar is not None for s in samples))";
    let file = workspace().join("agent/tests/golden/openmetrics.txt");
    let lines = fs::read_to_string(&file)?;
    let samples = lines.lines().filter(|line| !line.starts_with('#')).count();
    let output = Command::new(PYTHON.find()?).args(["-B", "-c", check]).arg(file).output()?;
    let read = String::from_utf8(output.stdout)?;
    ensure!(read.trim() == format!("{samples} 1"), "{read}{}", String::from_utf8(output.stderr)?);
    Ok(())
}
