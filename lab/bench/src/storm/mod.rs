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
use coroner_lab_harness::{
    agent::{Agent, Http},
    console::Console,
    environment::{Environment, Setup, unless_interrupted},
};
use cost::Parts;
use crowd::Crowd;
use mix::{CONTAINERS, Mix};
use pods::Pods;
use report::{Report, StormEvidence, StormRun};
use std::{fs, path::Path, time::Duration};
use tool::Tool;

/// How long each run of the load takes.
pub const SECONDS: u64 = 30;
/// How long the burst takes.
const BURST: Duration = Duration::from_secs(2);
/// From the load's end until a tool has told all that it will: coroner's rings are read, the others'
/// buffers are empty.
const SETTLE: Duration = Duration::from_secs(2);

/// Runs the benchmark. True: no goal was missed. Whatever happens, nothing is left behind.
pub async fn run(setup: &Setup, lasting: Duration) -> anyhow::Result<bool> {
    let mut environment = Environment::new(setup)?;
    let console = environment.console;
    // What is dropped when it ends is taken down by that, but for the cluster.
    let measured = measure(setup, lasting, &mut environment);
    let result = unless_interrupted(console, measured).await;
    let report = environment.tear_down(result, false).await?;
    publish(console, setup.json, &report.figures())
}

async fn measure(
    setup: &Setup,
    lasting: Duration,
    environment: &mut Environment,
) -> anyhow::Result<Report> {
    let console = environment.console;
    let lab = &*environment.set_up().await?;
    let base = lab.cgroup_root().join(lab.name().await);
    fs::create_dir_all(&base).with_context(|| format!("cannot make {}", base.display()))?;
    let pods = Pods::make(&base, CONTAINERS)?;
    let _statistics =
        enable_stats(Stats::RunTime).context("the kernel does not count programs' run time")?;
    let stage = StormSite { program: &setup.program, pods: &pods, console };

    let nothing = stage.play("nothing", &Mix::STORM, lasting, &Parts::default(), None).await?.0;
    console.step("starting the agent");
    let agent = Agent::start(&Environment::agent(setup, lab)).await?;
    let (parts, http) = (Parts::of(&[agent.pid().context("the agent has ended")?]), agent.http());
    let coroner = stage.play("coroner", &Mix::STORM, lasting, &parts, Some(&http)).await?;
    let burst = stage.play("coroner, burst", &Mix::BURST, BURST, &parts, Some(&http)).await?;
    agent.stop().await;

    let mut others = Vec::new();
    console.step("starting sigsnoop and exitsnoop");
    let tool = Tool::snoops(&setup.program).await?;
    let (run, _) = stage.play("snoops", &Mix::STORM, lasting, &tool.parts, None).await?;
    others.push(("snoops", run, tool.stop().await?));
    console.step("starting bpftrace");
    let tool = Tool::bpftrace(&setup.program).await?;
    let (run, _) = stage.play("bpftrace", &Mix::STORM, lasting, &tool.parts, None).await?;
    others.push(("bpftrace", run, tool.stop().await?));
    Ok(Report { nothing, coroner, burst, others })
}

/// Where the load rages.
struct StormSite<'a> {
    program: &'a Path,
    pods: &'a Pods,
    console: Console,
}

impl StormSite<'_> {
    /// Has the load rage under something, whose parts and, if it is coroner, whose pages these are.
    async fn play(
        &self,
        under: &str,
        mix: &Mix,
        lasting: Duration,
        parts: &Parts,
        http: Option<&Http>,
    ) -> anyhow::Result<(StormRun, StormEvidence)> {
        self.console.step(&format!("{under}: the load, {} s", lasting.as_secs()));
        let mut crowd = Crowd::gather(self.program, self.pods).await?;
        // What the gathering itself made is told.
        tokio::time::sleep(SETTLE).await;
        let (evidence, cost) = (evidence(http).await?, parts.cost()?);
        let totals = crowd.rage(mix, lasting, self.pods).await?;
        tokio::time::sleep(SETTLE).await;
        let run = StormRun { totals, lasting, cost: parts.cost()?.since(cost) };
        let evidence = self::evidence(http).await?.since(&evidence);
        crowd.disperse().await?;
        Ok((run, evidence))
    }
}

async fn evidence(http: Option<&Http>) -> anyhow::Result<StormEvidence> {
    let Some(http) = http else { return Ok(StormEvidence::default()) };
    let (status, page) = http.page("/metrics").await?;
    anyhow::ensure!(status.is_success(), "/metrics: {status}");
    Ok(StormEvidence::read(&String::from_utf8_lossy(&page)))
}
