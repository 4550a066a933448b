//! `cargo xtask bench node`: what the agent costs a full node. Runtime, apiserver, cgroups and
//! processes of the node are synthetic; the agent is the real one. What is measured, and how, is
//! written down in docs/performance.md.
//!
//! [`census`] and [`figures`] are pure; [`ground`], [`runtime`] and [`pods`] are the node, [`cost`]
//! and [`relist`] measure it and what stands beside it.

mod busy_log;
mod census;
mod cost;
mod figures;
mod ground;
mod pods;
pub mod relist;
mod runtime;

use super::publish;
use anyhow::Context as _;
use busy_log::BusyLog;
use census::{NODE, Plan};
use coroner_lab_cluster::{
    apiserver::{self, ApiTraffic, Apiserver, ResourceKind},
    cluster, containerd,
};
use coroner_lab_harness::{
    agent::{self, Agent, Http},
    console::Console,
    environment::{AGENT_LOG, Environment, Setup, unless_interrupted},
};
use cost::MeasuredProcess;
use figures::{NodeMeasurements, Page, Start, Usage, Window};
use ground::Ground;
use pods::{NodeParts, RunningPod};
use relist::Relister;
use runtime::{Runtime, Serving};
use serde_json::json;
use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Pods of a full node: what large instances of the clouds allow.
pub const PODS: u32 = 250;
/// Namespaces of a full node.
pub const NAMESPACES: usize = 30;
/// How long each stretch is watched, seconds: two surveys of the host.
pub const SECONDS: u64 = 60;

/// How many pods are terminated in a second.
const RATE: u32 = 5;
/// What the agent gets to take everything in before it counts as idle, and to come to rest again.
const SETTLE: Duration = Duration::from_secs(20);
/// Terminations before those that are measured.
const WARM_UP: Duration = Duration::from_secs(10);
/// Fewer scrapes have no 99th percentile.
const SCRAPES: usize = 100;
/// Between two scrapes: each finds the agent asleep.
const SCRAPE_PAUSE: Duration = Duration::from_millis(50);
/// How long the agent may take to account for the last terminations.
const ACCOUNTED_WITHIN: Duration = Duration::from_secs(60);

/// Runs the benchmark. True: no goal was missed. Whatever happens, nothing is left behind.
pub async fn run(setup: &Setup, pods: usize, window: Duration) -> anyhow::Result<bool> {
    let environment = Environment::new(setup)?;
    let (console, work) = (environment.console, environment.work());
    let lock = containerd::lock(&work)?;
    // All that is up goes down when the future goes.
    let measured = async {
        let files = BenchFiles::new(&work);
        let up = SyntheticNode::start(setup, pods, &files, console).await?;
        up.measure(window, console).await
    };
    let measured = unless_interrupted(console, measured).await;
    let measured = environment.tear_down(measured, false).await;
    containerd::give_up(&work)?;
    drop(lock);
    publish(console, setup.json, &figures::figures(&measured?))
}

/// The benchmark's own files. Dropped, they are gone.
struct BenchFiles {
    kubeconfig: PathBuf,
    socket: PathBuf,
    kubelet_log: PathBuf,
    log: PathBuf,
}

impl BenchFiles {
    fn new(work: &Path) -> Self {
        Self {
            kubeconfig: work.join("kubeconfig"),
            socket: work.join("cri.sock"),
            kubelet_log: work.join("kubelet.log"),
            log: work.join(AGENT_LOG),
        }
    }
}

impl Drop for BenchFiles {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.kubeconfig);
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.kubelet_log);
    }
}

/// The node and who watches it. Fields are dropped in this order: the agent first, which need not
/// tell of the node's own end.
struct SyntheticNode {
    agent: Agent,
    relister: Relister,
    pods: VecDeque<RunningPod>,
    node: Arc<NodeParts>,
    planned: usize,
    log: BusyLog,
    _serving: Serving,
    apiserver: Apiserver,
}

impl SyntheticNode {
    async fn start(
        setup: &Setup,
        planned: usize,
        files: &BenchFiles,
        console: Console,
    ) -> anyhow::Result<Self> {
        let work = files.socket.parent().unwrap_or(Path::new("/"));
        let ground = Ground::prepare(work, &setup.cluster.workload, &files.socket)?;
        let apiserver = Apiserver::start(apiserver::ApiserverOptions::default()).await?;
        apiserver.write_kubeconfig(&files.kubeconfig)?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .context("cannot read this machine's boot ID")?;
        apiserver.store().create_node(&cluster::node(NODE, boot_id.trim()))?;
        for number in 0..NAMESPACES {
            let name = census::namespace(number);
            apiserver.store().create(
                ResourceKind::Namespace,
                "",
                json!({ "metadata": { "name": name } }),
            )?;
        }
        let runtime = Runtime::default();
        let serving = runtime.serve(&files.socket)?;
        let node = Arc::new(NodeParts { store: apiserver.store(), runtime, ground });
        console.step(&format!(
            "making a node of {planned} pods in {NAMESPACES} namespaces: cgroups, processes, objects"
        ));
        let pods = (0..planned)
            .map(|number| node.run(Plan::of(number, NAMESPACES)))
            .collect::<anyhow::Result<VecDeque<_>>>()?;

        let endpoint = format!("unix://{}", files.socket.display());
        let relister = Relister::start(&setup.program, &endpoint)?;
        let log = BusyLog::create(&files.kubelet_log)?;
        console.step("starting the agent");
        let agent = Agent::start(&agent::AgentOptions {
            binary: setup.agent.clone(),
            listen: None,
            node: NODE.into(),
            cri: endpoint,
            kubeconfig: files.kubeconfig.clone(),
            cgroup_root: Some(node.ground.hierarchy().into()),
            cri_idle: None,
            leak_threshold: None,
            state_dir: None,
            host_root: None,
            kubelet_process: Some(cluster::own_name(&containerd::cgroup_parent(work))?),
            kubelet_log: Some(files.kubelet_log.clone()),
            events: false,
            log: files.log.clone(),
        })
        .await?;
        console.step(&format!("it was ready after {} ms", agent.ready_after().as_millis()));
        Ok(Self { agent, relister, pods, node, planned, log, _serving: serving, apiserver })
    }

    async fn measure(
        mut self,
        window: Duration,
        console: Console,
    ) -> anyhow::Result<NodeMeasurements> {
        let process = MeasuredProcess::new(self.agent.pid().context("the agent has ended")?);
        let http = self.agent.http();
        tokio::time::sleep(SETTLE).await;
        let settled = process.weight()?;
        let start = Start { api: self.apiserver.traffic(), lists: self.node.runtime.lists() };
        let seconds = window.as_secs();

        console.step(&format!("watching the idle node for {seconds} s"));
        let meter = Meter::start(&process, &self.relister, &http).await?;
        let traffic = self.apiserver.traffic();
        tokio::time::sleep(window).await;
        let idle = Window {
            api: self.apiserver.traffic().since(traffic),
            ..meter.read(&process, &self.relister, &http).await?
        };

        let lines = busy_log::RATE;
        console.step(&format!(
            "writing {lines} lines a second into the kubelet's log for {seconds} s"
        ));
        let meter = Meter::start(&process, &self.relister, &http).await?;
        self.log.write(window).await?;
        let logged = meter.read(&process, &self.relister, &http).await?;

        console.step(&format!("terminating {RATE} pods a second for {seconds} s"));
        let before = terminations(&http).await?;
        let traffic = self.apiserver.traffic();
        let mut dying = Dying::new();
        // A termination goes on for seconds: the stretch that is measured has the tail of those before
        // it, as it lacks that of its own.
        let warm_up = self.churn(WARM_UP, &mut dying).await?;
        let meter = Meter::start(&process, &self.relister, &http).await?;
        let begun = self.churn(window, &mut dying).await?;
        let churn = meter.read(&process, &self.relister, &http).await?;
        all(dying).await?;
        // Until the last of them was gone.
        let churn = Window { api: self.apiserver.traffic().since(traffic), ..churn };
        let terminated = warm_up + begun;
        self.accounted(&http, before + terminated).await?;
        tokio::time::sleep(SETTLE).await;
        // What was counted twice was so by now.
        let counted = terminations(&http).await?.saturating_sub(before);

        console.step(&format!("scraping {SCRAPES} times"));
        let page = scrape(&http).await?;
        self.agent.check()?;
        let measured = NodeMeasurements {
            start,
            settled,
            churned: process.weight()?,
            relist: self.relister.weight()?,
            idle,
            logged,
            churn,
            page,
            begun,
            terminated,
            counted,
        };
        self.agent.stop().await;
        Ok(measured)
    }

    /// Terminates pods at the rate, each replaced by another at once. How many; `dying` gets those
    /// that have not come to their end yet.
    async fn churn(&mut self, long: Duration, dying: &mut Dying) -> anyhow::Result<u64> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        let (began, mut begun) = (Instant::now(), 0);
        while began.elapsed() < long {
            ticks.tick().await;
            let Some(oldest) = self.pods.pop_front() else { break };
            let node = Arc::clone(&self.node);
            dying.spawn(async move { node.terminate(oldest).await });
            // On this thread: the processes die with the one that started them.
            self.pods.push_back(self.node.run(Plan::of(self.planned, NAMESPACES))?);
            self.planned += 1;
            begun += 1;
            while let Some(done) = dying.try_join_next() {
                done??;
            }
        }
        Ok(begun)
    }

    /// Waits until the agent has counted so many, but not for ever.
    async fn accounted(&mut self, http: &Http, wanted: u64) -> anyhow::Result<()> {
        let began = Instant::now();
        while terminations(http).await? < wanted && began.elapsed() < ACCOUNTED_WITHIN {
            self.agent.check()?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }
}

/// Pods on their way.
type Dying = JoinSet<anyhow::Result<()>>;

/// Waits until all of them have ended.
async fn all(mut dying: Dying) -> anyhow::Result<()> {
    while let Some(done) = dying.join_next().await {
        done??;
    }
    Ok(())
}

/// What had been used when a stretch began.
struct Meter {
    began: Instant,
    agent: Usage,
    relist: Usage,
    calls: u64,
}

impl Meter {
    async fn start(
        agent: &MeasuredProcess,
        relist: &Relister,
        http: &Http,
    ) -> anyhow::Result<Self> {
        let calls = calls(http).await?;
        Ok(Self { began: Instant::now(), agent: agent.usage()?, relist: relist.usage()?, calls })
    }

    async fn read(
        self,
        agent: &MeasuredProcess,
        relist: &Relister,
        http: &Http,
    ) -> anyhow::Result<Window> {
        let (long, agent, relist) = (self.began.elapsed(), agent.usage()?, relist.usage()?);
        Ok(Window {
            long,
            agent: agent.since(self.agent),
            relist: relist.since(self.relist),
            api: ApiTraffic::default(),
            calls: calls(http).await?.saturating_sub(self.calls),
        })
    }
}

async fn page(http: &Http) -> anyhow::Result<String> {
    let (status, body) = http.page("/metrics").await?;
    anyhow::ensure!(status.is_success(), "/metrics: {status}");
    String::from_utf8(body.into()).context("/metrics")
}

async fn calls(http: &Http) -> anyhow::Result<u64> {
    Ok(figures::total(&page(http).await?, "coroner_cri_calls_total"))
}

async fn terminations(http: &Http) -> anyhow::Result<u64> {
    Ok(figures::total(&page(http).await?, "coroner_pod_terminations_total"))
}

async fn scrape(http: &Http) -> anyhow::Result<Page> {
    let mut scraped = Page::default();
    for _ in 0..SCRAPES {
        tokio::time::sleep(SCRAPE_PAUSE).await;
        let began = Instant::now();
        let text = page(http).await?;
        scraped.took.push(began.elapsed());
        (scraped.series, scraped.bytes) = (figures::series(&text), text.len());
    }
    Ok(scraped)
}
