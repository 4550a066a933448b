//! `cargo xtask chaos`: rounds of faults while pods come and go, and after each a judge who knows how
//! every pod really died. What is done and what is demanded is written down in docs/chaos.md.
//!
//! [`fault`], [`plan`], [`truth`] and [`judge`] are pure; [`churn`] makes the pods, [`inflict`] does
//! the faults, [`watched`] keeps the agent and collects what it tells, [`wire`] stands between it and
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
mod watched;
pub mod wire;

use anyhow::Context as _;
use coroner_lab_cluster::{Cluster, apiserver, containerd, pages::Pages, tidy};
use coroner_lab_harness::{
    agent,
    console::Screen,
    ground_truth::GroundTruth,
    work::{self, AGENT_LOG, unless_interrupted, went_wrong, work_directory},
};
use fault::Fault;
use plan::{Length, Plan};
use round::{Outcome, Round};
use serde_json::json;
use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};
use watched::Watched;
use wire::Between;

/// The seed where nobody chooses one: the same in every run.
pub const SEED: u64 = 0;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which faults.
    pub faults: Vec<&'static Fault>,
    /// How long.
    pub length: Length,
    /// Of the order, the ways to die and the moments.
    pub seed: u64,
    /// A missed goal fails a round: memory, descriptors and the time to be ready, which depend on the
    /// machine as well.
    pub goals: bool,
    /// Where a folder is kept for each failure; `None`: `failed` in the target directory.
    pub failed: Option<PathBuf>,
    /// Objects on stdout, everything else on stderr.
    pub json: bool,
    /// The agent's binary.
    pub agent: PathBuf,
    /// What the lab is made of, and where it keeps its files.
    pub lab: containerd::Options,
}

/// Runs it. True: nobody complained. Whatever happens, nothing is left behind.
///
/// # Errors
/// The lab or the agent does not start, the agent dies by itself, or the run is [`Interrupted`].
pub async fn run(options: &Options) -> anyhow::Result<bool> {
    let screen = Screen::new(options.json);
    on_a_stage(options, screen, async |stage| play(stage, options, screen).await).await
}

async fn play(stage: &Stage, options: &Options, screen: Screen) -> anyhow::Result<bool> {
    let began = Instant::now();
    let mut round = Round::on(stage, options);
    let mut outcomes: Vec<Outcome> = Vec::new();
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
        screen.print(&outcome.line());
        object(options.json, &outcome);
        outcomes.push(outcome);
    }
    let bad = outcomes.iter().filter(|outcome| !outcome.judgement.is_good()).count();
    screen.print(&format!("\n{}\n", round::summary(&outcomes, options.seed)));
    Ok(bad == 0)
}

fn object(wanted: bool, outcome: &Outcome) {
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
struct Stage {
    lab: Cluster,
    between: Between,
    agent: Watched,
    pages: Pages,
    truth: Arc<GroundTruth>,
}

/// Brings everything up, does something with it, and takes everything down whatever happens.
async fn on_a_stage(
    options: &Options,
    screen: Screen,
    what: impl AsyncFnOnce(&Stage) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let mut lab_options = options.lab.clone();
    lab_options.work = work_directory(&lab_options.work)?;
    let work = lab_options.work.clone();
    let mut up = Up::default();
    let played = async {
        up.rise(&options.agent, lab_options, screen).await?;
        what(up.stage.as_ref().context("it is up")?).await
    };
    let result = unless_interrupted(screen, played).await;
    let cleared = up.clear(screen).await;
    tidy(&work);
    let _ = fs::remove_file(work.join(KUBECONFIG));
    work::leave(&work, went_wrong(&result) || matches!(result, Ok(false)), screen);
    let good = result?;
    cleared?;
    Ok(good)
}

/// The agent's own, which leads to [`Between`].
const KUBECONFIG: &str = "agent.kubeconfig";

/// What is up. Filled as it comes up, so that whatever there is can be taken down.
#[derive(Default)]
struct Up {
    lab: Option<Cluster>,
    stage: Option<Stage>,
}

impl Up {
    async fn rise(
        &mut self,
        binary: &Path,
        options: containerd::Options,
        screen: Screen,
    ) -> anyhow::Result<()> {
        let work = options.work.clone();
        let lab = &*self.lab.insert(Cluster::start(options, &|text| screen.step(text)).await?);
        let truth = Arc::new(GroundTruth::of(lab, watched::THRESHOLD));
        let name = lab.name().await;
        let pages = Pages::make(&format!("{name}-chaos"))?;
        let between = Between::start(lab.apiserver()).await?;
        let kubeconfig = work.join(KUBECONFIG);
        apiserver::write_kubeconfig(&between.url(), &kubeconfig)?;
        screen.step("starting the agent");
        let options = agent::Options {
            kubeconfig,
            // What it knows must be newer than what it takes to conclude something from it.
            cri_idle: Some(watched::THRESHOLD / 4),
            leak_threshold: Some(watched::THRESHOLD),
            state_dir: Some(lab.state()),
            ..agent::Options::on(lab, binary, work.join(AGENT_LOG))
        };
        let agent = Watched::start(options, name, Arc::clone(&truth)).await?;
        if let Some(lab) = self.lab.take() {
            self.stage = Some(Stage { lab, between, agent, pages, truth });
        }
        Ok(())
    }

    /// Takes down what is up, the agent first: it need not tell of the lab's own end.
    async fn clear(self, screen: Screen) -> anyhow::Result<()> {
        let lab = match self.stage {
            Some(Stage { lab, agent, pages, .. }) => {
                agent.stop().await;
                drop(pages);
                Some(lab)
            }
            None => self.lab,
        };
        if let Some(lab) = lab {
            screen.step("taking the lab down");
            lab.stop().await.context("the lab was not taken down completely")?;
        }
        Ok(())
    }
}
