//! `cargo xtask chaos`: rounds of faults while pods come and go, and after each a judge who knows how
//! every pod really died. What is done and what is demanded is written down in docs/chaos.md.
//!
//! [`fault`], [`plan`], [`truth`] and [`judge`] are pure; [`churn`] makes the pods, [`inflict`] does
//! the faults, [`wire`] stands between it and
//! its apiserver.
#![allow(missing_docs)] // a name that says it need not say it twice

mod churn;
pub mod fault;
mod inflict;
mod judge;
pub mod plan;
mod reuse;
mod round;
mod slope;
pub mod soak;
mod truth;
mod vitals;
pub mod wire;

use coroner_lab_cluster::{Cluster, apiserver, pages::Pages};
use coroner_lab_harness::{
    agent,
    console::Console,
    environment::{Environment, Setup, unless_interrupted},
    ground_truth::GroundTruth,
    monitor::{AgentMonitor, OwnAgent},
};
use fault::Fault;
use plan::{Length, Plan};
use round::{Round, RoundOutcome};
use serde_json::json;
use std::{
    fs, io,
    io::Write as _,
    time::{Duration, Instant},
};
use wire::Between;

/// The seed where nobody chooses one: the same in every run.
pub const SEED: u64 = 0;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct ChaosOptions {
    pub setup: Setup,
    pub faults: Vec<&'static Fault>,
    pub length: Length,
    /// Of the order, the ways to die and the moments.
    pub seed: u64,
    /// A missed goal fails a round: memory, descriptors and the time to be ready, which depend on the machine as well.
    pub goals: bool,
}

/// Runs it. True: nobody complained. Whatever happens, nothing is left behind.
pub async fn run(options: &ChaosOptions) -> anyhow::Result<bool> {
    in_environment(options, async |stage, console| play(stage, options, console).await).await
}

async fn play(
    stage: &ChaosTargets<'_>,
    options: &ChaosOptions,
    console: Console,
) -> anyhow::Result<bool> {
    let began = Instant::now();
    let mut round = Round::on(stage, options);
    let mut outcomes: Vec<RoundOutcome> = Vec::new();
    let plan = Plan::new(options.faults.clone(), options.seed);
    for (number, fault) in plan.enumerate() {
        let over = match options.length {
            Length::Rounds(rounds) => number >= options.faults.len() * rounds as usize,
            Length::For(long) => began.elapsed() >= long,
        };
        if over {
            break;
        }
        let outcome = round.play(fault).await?;
        console.print(&outcome.line());
        object(options.setup.json, &outcome);
        outcomes.push(outcome);
    }
    let bad = outcomes.iter().filter(|outcome| !outcome.judgement.is_good()).count();
    console.print(&format!("\n{}\n", round::summary(&outcomes, options.seed)));
    Ok(bad == 0)
}

fn object(wanted: bool, outcome: &RoundOutcome) {
    if wanted {
        let judgement = &outcome.judgement;
        let line = json!({
            "fault": outcome.fault, "done": outcome.done, "deaths": judgement.deaths,
            "right": judgement.right, "unknown": judgement.unknown, "missing": judgement.missing,
            "wrong": judgement.wrong, "false_leaks": judgement.false_leaks,
            "left_behind": judgement.left_behind, "lost": outcome.lost,
            "complaints": judgement.complaints, "missed_goals": judgement.missed_goals,
            "ready": outcome.ready.as_secs_f64(), "memory": outcome.after.memory,
            "fds": outcome.after.fds, "ok": judgement.is_good(),
        });
        let _ = writeln!(io::stdout(), "{line}");
    }
}

/// What the rounds are played on.
struct ChaosTargets<'a> {
    lab: &'a Cluster,
    between: Between,
    agent: &'a AgentMonitor,
    pages: Pages,
    truth: GroundTruth,
}

/// Brings everything up, does something with it, and takes everything down whatever happens.
async fn in_environment(
    options: &ChaosOptions,
    what: impl AsyncFnOnce(&ChaosTargets<'_>, Console) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let mut environment = Environment::new(&options.setup)?;
    let (console, work) = (environment.console, environment.work());
    let mut monitor = None;
    let played = async {
        let lab = &*environment.set_up().await?;
        let truth = GroundTruth::of(lab, THRESHOLD);
        let name = lab.name().await;
        let pages = Pages::make(&format!("{name}-chaos"))?;
        let between = Between::start(lab.apiserver()).await?;
        let kubeconfig = work.join(KUBECONFIG);
        apiserver::write_kubeconfig(&between.url(), &kubeconfig)?;
        console.step("starting the agent");
        let own = OwnAgent {
            options: agent::AgentOptions {
                kubeconfig,
                // What it knows must be newer than what it takes to conclude something from it.
                cri_idle: Some(THRESHOLD / 4),
                leak_threshold: Some(THRESHOLD),
                state_dir: Some(lab.state()),
                ..Environment::agent(&options.setup, lab)
            },
            flags: vec![
                format!("--history-limit={HISTORY}"),
                format!("--settle-window={}ms", SETTLE.as_millis()),
            ],
            state: lab.state(),
            late: false,
        };
        let agent = &*monitor.insert(AgentMonitor::start(own, name).await?);
        what(&ChaosTargets { lab, between, agent, pages, truth }, console).await
    };
    let result = unless_interrupted(console, played).await;
    if let Some(monitor) = monitor {
        monitor.stop().await;
    }
    let _ = fs::remove_file(work.join(KUBECONFIG));
    let fell_short = matches!(result, Ok(false));
    environment.tear_down(result, fell_short).await
}

/// The agent's own, which leads to [`Between`].
const KUBECONFIG: &str = "agent.kubeconfig";
/// Reports that the agent keeps: more than come between two questions, and few enough that memory which they fill is
/// full soon.
const HISTORY: usize = 64;
/// How long something must have been leaked before the agent reports it.
const THRESHOLD: Duration = Duration::from_secs(4);
/// How long it waits for the last answers of its sources.
const SETTLE: Duration = Duration::from_secs(2);
