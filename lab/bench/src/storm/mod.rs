//! `cargo xtask bench storm`: the same storm of signals and exits under nothing, under coroner, under
//! `sigsnoop` and `exitsnoop`, and under bpftrace: what each costs and what each loses. What is
//! counted is written down in docs/performance.md.
//!
//! Facts → figures: [`load`], [`crowd`], [`pods`], [`tool`] and [`cost`] act and collect; [`mix`],
//! [`lines`] and [`report`] are pure.

mod cost;
mod crowd;
mod lines;
pub mod load;
mod mix;
mod pods;
mod report;
mod tool;

use super::publish;
use anyhow::Context as _;
use aya::sys::{Stats, enable_stats};
use coroner_lab_cluster::{Cluster, containerd, tidy};
use coroner_lab_harness::{
    agent::{self, Agent, Http},
    console::Screen,
    work::{self, AGENT_LOG, unless_interrupted, went_wrong, work_directory},
};
use cost::Parts;
use crowd::Crowd;
use mix::{CONTAINERS, Mix};
use pods::Pods;
use report::{Evidence, Report, Run};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tool::Tool;

/// How long each run of the load takes.
pub const SECONDS: u64 = 30;
/// How long the burst takes.
const BURST: Duration = Duration::from_secs(2);
/// From the load's end until a tool has told all that it will: coroner's rings are read, the others'
/// buffers are empty.
const SETTLE: Duration = Duration::from_secs(2);

/// What the benchmark is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long each run of the load takes.
    pub lasting: Duration,
    /// Figures as objects on stdout, everything else on stderr.
    pub json: bool,
    /// The agent's binary.
    pub agent: PathBuf,
    /// What the lab is made of, and where it keeps its files.
    pub lab: containerd::Options,
    /// `coroner-lab` itself, which is also the load.
    pub program: PathBuf,
}

/// Runs the benchmark. True: no goal was missed. Whatever happens, nothing is left behind.
///
/// # Errors
/// A tool, the lab or the agent does not start, or ends, or the run is [`Interrupted`].
pub async fn run(options: &Options) -> anyhow::Result<bool> {
    let screen = Screen::new(options.json);
    let mut options = options.clone();
    options.lab.work = work_directory(&options.lab.work)?;
    let options = &options;
    let mut lab = None;
    let result = unless_interrupted(screen, measure(&mut lab, options, screen)).await;
    let cleared = match lab {
        Some(lab) => lab.stop().await.context("the lab was not taken down completely"),
        None => Ok(()),
    };
    tidy(&options.lab.work);
    work::leave(&options.lab.work, went_wrong(&result), screen);
    let report = result?;
    cleared?;
    publish(screen, options.json, &report.figures())
}

/// What is dropped here is taken down by that, but for the lab.
async fn measure(
    lab: &mut Option<Cluster>,
    options: &Options,
    screen: Screen,
) -> anyhow::Result<Report> {
    let lab = &*lab.insert(Cluster::start(options.lab.clone(), &|text| screen.step(text)).await?);
    let base = lab.cgroup_root().join(lab.name().await);
    fs::create_dir_all(&base).with_context(|| format!("cannot make {}", base.display()))?;
    let pods = Pods::make(&base, CONTAINERS)?;
    let _statistics =
        enable_stats(Stats::RunTime).context("the kernel does not count programs' run time")?;
    let stage = Stage { program: &options.program, pods: &pods, screen };

    let lasting = options.lasting;
    let nothing = stage.play("nothing", &Mix::STORM, lasting, &Parts::default(), None).await?.0;
    screen.step("starting the agent");
    let agent =
        Agent::start(&agent::Options::on(lab, &options.agent, options.lab.work.join(AGENT_LOG)))
            .await?;
    let (parts, http) = (Parts::of(&[agent.pid().context("the agent has ended")?]), agent.http());
    let coroner = stage.play("coroner", &Mix::STORM, lasting, &parts, Some(&http)).await?;
    let burst = stage.play("coroner, burst", &Mix::BURST, BURST, &parts, Some(&http)).await?;
    agent.stop().await;

    let mut others = Vec::new();
    screen.step("starting sigsnoop and exitsnoop");
    let tool = Tool::snoops(&options.program).await?;
    let (run, _) = stage.play("snoops", &Mix::STORM, lasting, &tool.parts, None).await?;
    others.push(("snoops", run, tool.stop().await?));
    screen.step("starting bpftrace");
    let tool = Tool::bpftrace(&options.program).await?;
    let (run, _) = stage.play("bpftrace", &Mix::STORM, lasting, &tool.parts, None).await?;
    others.push(("bpftrace", run, tool.stop().await?));
    Ok(Report { nothing, coroner, burst, others })
}

/// Where the load rages.
struct Stage<'a> {
    program: &'a Path,
    pods: &'a Pods,
    screen: Screen,
}

impl Stage<'_> {
    /// Has the load rage under something, whose parts and, if it is coroner, whose pages these are.
    async fn play(
        &self,
        under: &str,
        mix: &Mix,
        lasting: Duration,
        parts: &Parts,
        http: Option<&Http>,
    ) -> anyhow::Result<(Run, Evidence)> {
        self.screen.step(&format!("{under}: the load, {} s", lasting.as_secs()));
        let mut crowd = Crowd::gather(self.program, self.pods).await?;
        // What the gathering itself made is told.
        tokio::time::sleep(SETTLE).await;
        let (evidence, cost) = (evidence(http).await?, parts.cost()?);
        let totals = crowd.rage(mix, lasting, self.pods).await?;
        tokio::time::sleep(SETTLE).await;
        let run = Run { totals, lasting, cost: parts.cost()?.since(cost) };
        let evidence = self::evidence(http).await?.since(&evidence);
        crowd.disperse().await?;
        Ok((run, evidence))
    }
}

async fn evidence(http: Option<&Http>) -> anyhow::Result<Evidence> {
    let Some(http) = http else { return Ok(Evidence::default()) };
    let (status, page) = http.page("/metrics").await?;
    anyhow::ensure!(status.is_success(), "/metrics: {status}");
    Ok(Evidence::read(&String::from_utf8_lossy(&page)))
}
