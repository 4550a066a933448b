//! `cargo xtask bench node`: memory, CPU and series of the agent on a full node, beside the container runtime's, and what it
//! asks of the runtime and of the apiserver.

use crate::bench::{
    history,
    lab::{BenchLab, MeasuredAgent},
    process,
    proxy::CountingProxy,
    table::{percentile, shown, table},
};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::{
    fs,
    ops::RangeFrom,
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

/// The kubelet's default for `maxPods`.
const PODS: usize = 110;
/// Pods that are created at once.
const BATCH: usize = 10;
/// Until the agent is at rest.
const SETTLE: Duration = Duration::from_secs(20);
/// Between two terminations. Each pod is replaced at once.
const EVERY: Duration = Duration::from_secs(1);
/// Between two audits of a container, where audits are measured: the agent has no more than 16 a second.
const AUDITS: Duration = Duration::from_secs(20);
/// Until pods run, or terminations are counted.
const WITHIN: Duration = Duration::from_secs(300);
const SCRAPES: usize = 100;
/// Between two scrapes: each finds the agent asleep.
const SCRAPE_PAUSE: Duration = Duration::from_millis(50);
const MIB: f64 = (1 << 20) as f64;
const KIB: f64 = 1024.0;

/// The measured processes, and the proxies between the agent and its sources.
struct Subjects {
    agent: MeasuredAgent,
    runtime: u32,
    cri: CountingProxy,
    api: CountingProxy,
}

/// What was used until some moment; of pairs, by the agent and by the runtime.
struct Used {
    at: Instant,
    /// Resident memory, and the part of it without a file.
    memory: [[u64; 2]; 2],
    cpu: [Duration; 2],
    /// Calls of the runtime, and bytes of its answers.
    cri_bytes: u64,
    /// Bytes of the apiserver's answers.
    api_bytes: u64,
    /// Bytes that the agent had written to disk.
    written: u64,
}

impl Subjects {
    async fn used(&self) -> anyhow::Result<Used> {
        let (agent, runtime) = (self.agent.pid()?, self.runtime);
        Ok(Used {
            at: Instant::now(),
            memory: [process::memory(agent)?, process::memory(runtime)?],
            cpu: [process::cpu(agent)?, process::cpu(runtime)?],
            cri_bytes: self.cri.bytes(),
            api_bytes: self.api.bytes(),
            written: process::written(agent)?,
        })
    }
}

pub(crate) async fn measure(lab: &BenchLab<'_>, brief: bool) -> anyhow::Result<String> {
    let (pods, window) = if brief { (20, 10) } else { (PODS, 60) };
    let window = Duration::from_secs(window);
    lab.step(&format!("starting {pods} pods of two containers"));
    for first in (0..pods).step_by(BATCH) {
        for number in first..first + BATCH {
            lab.create(pod(number))?;
        }
        running(lab, 2 * (first + BATCH)).await?;
    }

    let files = tempfile::tempdir()?;
    let subjects = start(lab, files.path()).await?;
    tokio::time::sleep(SETTLE).await;
    let start = subjects.used().await?;
    lab.step(&format!("watching the idle node for {} s", window.as_secs()));
    tokio::time::sleep(window).await;
    let idle = subjects.used().await?;

    let mut named = pods..;
    let terminated = churn(lab, &subjects.agent, pods, &mut named, window).await?;
    let busy = subjects.used().await?;

    lab.step(&format!("scraping {SCRAPES} times"));
    let mut took = Vec::new();
    let mut page = String::new();
    for _ in 0..SCRAPES {
        tokio::time::sleep(SCRAPE_PAUSE).await;
        let began = Instant::now();
        page = subjects.agent.page("/metrics").await?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let reports = subjects.agent.reports().await?;
    subjects.agent.stop().await;
    lab.step("the same without a history on disk");
    let without = lab.agent(None, &["--history-age=0".to_owned()]).await?;
    let before = process::written(without.pid()?)?;
    let again = churn(lab, &without, pods, &mut named, window).await?;
    let unkept = (process::written(without.pid()?)? - before) as f64 / again as f64;
    without.stop().await;
    let audit = audit(lab, 2 * pods, window).await?;
    let kept = (busy.written - idle.written) as f64 / terminated as f64;
    let full = history::measure(lab, reports, files.path(), brief).await?;
    let series = page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    Ok(format!(
        "{}a termination of two containers writes {} KiB to disk, without a history {} KiB\n{full}\
         an audit of 500 containers takes {} ms of CPU\n\
         {series} series, {} KiB; a scrape takes {} ms, p99 {} ms\n",
        report([&start, &idle, &busy], terminated),
        shown(kept / KIB),
        shown(unkept / KIB),
        shown(500.0 * audit),
        shown(page.len() as f64 / KIB),
        shown(percentile(&took, 50)),
        shown(percentile(&took, 99)),
    ))
}

/// CPU that the audit of one container takes, ms: what an agent that audits often uses more than one that audits nothing.
async fn audit(lab: &BenchLab<'_>, containers: usize, window: Duration) -> anyhow::Result<f64> {
    let mut used = [Duration::ZERO; 2];
    for (used, interval) in used.iter_mut().zip([Duration::ZERO, AUDITS]) {
        let audits = format!("--audit-interval={}s", interval.as_secs());
        let agent = lab.agent(None, &["--history-age=0".to_owned(), audits]).await?;
        tokio::time::sleep(SETTLE).await;
        let before = process::cpu(agent.pid()?)?;
        tokio::time::sleep(window).await;
        *used = process::cpu(agent.pid()?)? - before;
        agent.stop().await;
    }
    let audited = containers as f64 * window.as_secs_f64() / AUDITS.as_secs_f64();
    Ok(1e3 * (used[1].as_secs_f64() - used[0].as_secs_f64()) / audited)
}

/// Terminates and replaces a pod each second; how many. `named`: numbers of the next ones.
async fn churn(
    lab: &BenchLab<'_>,
    agent: &MeasuredAgent,
    pods: usize,
    named: &mut RangeFrom<usize>,
    window: Duration,
) -> anyhow::Result<usize> {
    lab.step(&format!("terminating and replacing a pod each second for {} s", window.as_secs()));
    let before = terminations(agent).await?;
    let (began, mut ticks, mut terminated) = (Instant::now(), tokio::time::interval(EVERY), 0);
    while began.elapsed() < window {
        ticks.tick().await;
        let next = named.next().unwrap_or_default();
        lab.delete(&name(next - pods))?;
        lab.create(pod(next))?;
        terminated += 1;
    }
    let began = Instant::now();
    while terminations(agent).await? < before + terminated as u64 {
        if began.elapsed() > WITHIN {
            bail!("the agent does not count all {terminated} terminations");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    tokio::time::sleep(SETTLE).await;
    let counted = terminations(agent).await? - before;
    anyhow::ensure!(counted == terminated as u64, "{terminated} terminations, {counted} counted");
    Ok(terminated)
}

/// Starts the agent behind proxies that count the bytes of its sources. `files`: a folder for their addresses.
async fn start(lab: &BenchLab<'_>, files: &Path) -> anyhow::Result<Subjects> {
    let (socket, kubeconfig) = (files.join("cri.sock"), files.join("kubeconfig"));
    let cri = CountingProxy::unix(lab.socket()?, &socket)?;
    let text = fs::read_to_string(lab.kubeconfig())?;
    let server = text.split("://").nth(1).and_then(|rest| rest.split(['\n', '"', '/']).next());
    let server = server.context("no server in the kubeconfig")?;
    let (api, address) = CountingProxy::tcp(server.to_owned()).await?;
    fs::write(&kubeconfig, text.replace(server, &address.to_string()))?;
    let runtime = rustix::net::sockopt::socket_peercred(UnixStream::connect(lab.socket()?)?)?;
    let runtime = runtime.pid.as_raw_nonzero().get().cast_unsigned();
    let state = format!("--state-dir={}", files.join("state").display());
    let agent = lab.agent(Some((&socket, &kubeconfig)), &[state]).await?;
    Ok(Subjects { agent, runtime, cri, api })
}

/// Of the start, the idle time and the time of the terminations.
fn report([start, idle, busy]: [&Used; 3], terminated: usize) -> String {
    let (rest, churn) = ((idle.at - start.at).as_secs_f64(), (busy.at - idle.at).as_secs_f64());
    let idle_rate = |used: &dyn Fn(&Used) -> f64| (used(idle) - used(start)) / rest;
    // What would have been used anyway is no cost of a termination.
    let each = |used: &dyn Fn(&Used) -> f64| {
        (used(busy) - used(idle) - idle_rate(used) * churn) / terminated as f64
    };
    let both = |of: &dyn Fn(usize) -> f64| [0, 1].map(|who| shown(of(who)));
    let mib = |used: &Used, part: usize| both(&|who| used.memory[who][part] as f64 / MIB);
    let cpu = |who: usize| move |used: &Used| used.cpu[who].as_secs_f64();
    let row = |title: &str, [agent, runtime]: [String; 2]| vec![title.into(), agent, runtime];
    let rows = vec![
        row("memory after the start, MiB", mib(start, 0)),
        row("memory after the terminations, MiB", mib(busy, 0)),
        row("… without pages of files, MiB", mib(busy, 1)),
        row("CPU at rest, % of a core", both(&|who| 100.0 * idle_rate(&cpu(who)))),
        row("CPU for a termination and the next pod, ms", both(&|who| 1e3 * each(&cpu(who)))),
    ];
    let cri = |used: &Used| used.cri_bytes as f64 / KIB;
    let api = |used: &Used| used.api_bytes as f64 / KIB;
    format!(
        "{}\n{terminated} terminations, each counted once\n\
         the runtime answers with {} KiB/s, and for a termination and the next pod {} KiB\n\
         the apiserver sends {} KiB at the start, then {} KiB/s, and for a termination and the next pod {} KiB\n",
        table(&["", "coroner", "containerd"], rows),
        shown(idle_rate(&cri)),
        shown(each(&cri)),
        shown(api(start)),
        shown(idle_rate(&api)),
        shown(each(&api)),
    )
}

/// Starts pods until there are so many.
pub(super) async fn fill(lab: &BenchLab<'_>, pods: usize) -> anyhow::Result<()> {
    let there = lab.running().await? / 2;
    lab.step(&format!("starting pods, to {pods}"));
    for first in (there..pods).step_by(BATCH) {
        for number in first..pods.min(first + BATCH) {
            lab.create(pod(1_000_000 + number))?;
        }
        running(lab, 2 * pods.min(first + BATCH)).await?;
    }
    Ok(())
}

/// Waits until so many containers of the workload run.
async fn running(lab: &BenchLab<'_>, containers: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    while lab.running().await? < containers {
        if began.elapsed() > WITHIN {
            bail!("{containers} containers do not run");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn terminations(agent: &MeasuredAgent) -> anyhow::Result<u64> {
    let unmeasured = agent.metric("coroner_pod_terminations_unmeasured_total", "").await?;
    Ok(unmeasured + agent.metric("coroner_pod_termination_duration_seconds_count", "").await?)
}

fn name(number: usize) -> String {
    format!("checkout-{number}")
}

/// A pod of some 10 KB, as charts and operators make them.
fn pod(number: usize) -> Value {
    let environment: Vec<Value> = (0..12)
        .map(|n| json!({ "name": format!("OPTION_{n}"), "value": "0123456789abcdef".repeat(4) }))
        .collect();
    let container = |name: &str| {
        json!({
            "name": name, "args": ["handle", "--for", "200ms"], "env": environment,
            "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }],
            "resources": { "requests": { "cpu": "1m", "memory": "1Mi" } },
        })
    };
    // A third of a pod.
    let fields: Value = (0..60)
        .map(|n| (format!("k:{{\"name\":\"OPTION_{n}\"}}"), json!({ ".": {}, "f:value": {} })))
        .collect();
    json!({
        "metadata": {
            "name": name(number),
            "labels": {
                "app.kubernetes.io/name": "checkout", "app.kubernetes.io/part-of": "shop",
                "app.kubernetes.io/version": "3.14.1", "pod-template-hash": "6c9f7d9b8c",
            },
            "annotations": {
                "prometheus.io/port": "9102", "prometheus.io/scrape": "true",
                "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(900),
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
                "name": "checkout-6c9f7d9b8c", "uid": "00000000-0000-4000-8000-000000000001",
            }],
            "managedFields": [{
                "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": fields },
            }],
        },
        "spec": { "containers": [container("checkout"), container("proxy")] },
    })
}
