//! `cargo xtask bench accuracy`: how far from the truth are coroner's times, and how far are the
//! times that one had before? What each figure compares is written down in docs/accuracy.md.
//!
//! Facts → figures: [`observer`], [`witness`] and [`rounds`] act and collect; [`way`], [`interval`],
//! [`death`] and [`report`] are pure.

mod death;
mod interval;
mod observer;
mod report;
mod rounds;
mod witness;

use super::{figure, load::Burners, print_objects};
use anyhow::Context as _;
use coroner_cri_api::v1::runtime_service_client::RuntimeServiceClient;
use coroner_lab_cluster::{Cluster, containerd, pages::Pages, tidy};
use coroner_lab_harness::{
    agent::{self, Agent},
    console::Screen,
    work::{self, AGENT_LOG, unless_interrupted, went_wrong, work_directory},
};
use coroner_lab_scenarios::death_mode::{Way, shuffled};
use death::Load;
use observer::Observer;
use rounds::{Outcome, Stage};
use std::path::PathBuf;
use witness::Witness;

/// Fewer samples than this have no 99th percentile worth the name.
pub const DEATHS: u32 = 300;

/// What the benchmark is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many deaths, half of them under load.
    pub deaths: usize,
    /// Of the order of the ways to die, and of the moments.
    pub seed: u64,
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
/// The lab or the agent does not start, the agent dies, or the run is [`Interrupted`].
pub async fn run(options: &Options) -> anyhow::Result<bool> {
    let screen = Screen::new(options.json);
    let mut options = options.clone();
    options.lab.work = work_directory(&options.lab.work)?;
    let options = &options;
    let mut up = Up::default();
    let result = unless_interrupted(screen, up.measure(options, screen)).await;
    let cleared = up.clear(screen).await;
    tidy(&options.lab.work);
    work::leave(&options.lab.work, went_wrong(&result), screen);
    let outcome = result?;
    cleared?;
    let figures = report::figures(&outcome.deaths, outcome.failures.len());
    for failure in &outcome.failures {
        screen.print(&format!("✘ {failure}\n"));
    }
    screen.print(&format!("\n{}", report::table(&outcome.deaths, &figures)));
    print_objects(options.json, &figures)?;
    Ok(figure::all_met(&figures))
}

/// What is up. Filled as it comes up, so that whatever there is can be taken down.
#[derive(Default)]
struct Up {
    lab: Option<Cluster>,
    agent: Option<Agent>,
    pages: Option<Pages>,
}

impl Up {
    async fn measure(&mut self, options: &Options, screen: Screen) -> anyhow::Result<Outcome> {
        let lab = &*self
            .lab
            .insert(Cluster::start(options.lab.clone(), &|text| screen.step(text)).await?);
        let pages = self.pages.insert(Pages::make(&lab.name().await)?);
        screen.step("starting the agent");
        let agent = Agent::start(&agent::Options::on(
            lab,
            &options.agent,
            options.lab.work.join(AGENT_LOG),
        ))
        .await?;
        let agent = self.agent.insert(agent);
        let observer = Observer::start()?;
        if !observer.is_real_time() {
            screen
                .step("the observer is refused real-time priority: the truth is wider under load");
        }
        let can_limit = lab.can_limit_memory();
        let ways: Vec<Way> =
            Way::ALL.into_iter().filter(|way| can_limit || !way.needs_memory_limit()).collect();
        if !can_limit {
            screen.step("no memory controller here: nothing is oom-killed");
        }
        let cri = RuntimeServiceClient::new(containerd::connect(&lab.cri()).await?);
        let witness = Witness::start(lab.watch(), cri.clone());
        let mut stage = Stage {
            lab,
            agent,
            cri,
            observer: &observer,
            witness: &witness,
            pages: &pages.0,
            screen,
        };
        let mut random = fastrand::Rng::with_seed(options.seed);
        let mut all = Outcome::default();
        let busy = options.deaths / 2;
        for (load, deaths) in [(Load::Idle, options.deaths - busy), (Load::Busy, busy)] {
            let ways = shuffled(&ways, deaths, &mut random);
            let burning = match load {
                Load::Idle => None,
                Load::Busy => Some(Burners::light(&options.program)?),
            };
            let outcome = stage.play(&ways, load, &mut random).await?;
            drop(burning);
            all.deaths.extend(outcome.deaths);
            all.failures.extend(outcome.failures);
        }
        Ok(all)
    }

    /// Takes down what is up, the agent first: it need not tell of the lab's own end.
    async fn clear(self, screen: Screen) -> anyhow::Result<()> {
        if let Some(agent) = self.agent {
            agent.stop().await;
        }
        if let Some(lab) = self.lab {
            screen.step("taking the lab down");
            lab.stop().await.context("the lab was not taken down completely")?;
        }
        Ok(())
    }
}
