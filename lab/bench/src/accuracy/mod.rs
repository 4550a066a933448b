//! `cargo xtask bench accuracy`: how far from the truth are coroner's times, and how far are the
//! times that one had before? What each figure compares is written down in docs/accuracy.md.
//!
//! Facts → figures: [`observer`], [`witness`] and [`rounds`] act and collect; [`interval`], [`death`]
//! and [`report`] are pure.

mod death;
mod interval;
mod observer;
mod report;
mod rounds;
mod witness;

use super::{figure, load::Burners, print_objects};
use coroner_cri_api::v1::runtime_service_client::RuntimeServiceClient;
use coroner_lab_cluster::{containerd, pages::Pages};
use coroner_lab_harness::{
    agent::Agent,
    environment::{Environment, Setup, unless_interrupted},
};
use coroner_lab_scenarios::death_mode::{DeathMode, shuffled};
use death::CpuLoad;
use observer::Observer;
use rounds::{DeathRounds, RoundsOutcome};
use witness::Witness;

/// Fewer samples than this have no 99th percentile worth the name.
pub const DEATHS: u32 = 300;

/// Runs the benchmark. True: no goal was missed. Whatever happens, nothing is left behind.
pub async fn run(setup: &Setup, deaths: usize, seed: u64) -> anyhow::Result<bool> {
    let mut environment = Environment::new(setup)?;
    let console = environment.console;
    let mut agent = None;
    let measured = measure(setup, deaths, seed, &mut environment, &mut agent);
    let result = unless_interrupted(console, measured).await;
    if let Some(agent) = agent {
        agent.stop().await;
    }
    let outcome = environment.tear_down(result, false).await?;
    let figures = report::figures(&outcome.deaths, outcome.failures.len());
    for failure in &outcome.failures {
        console.print(&format!("✘ {failure}\n"));
    }
    console.print(&format!("\n{}", report::table(&outcome.deaths, &figures)));
    print_objects(setup.json, &figures)?;
    Ok(figure::all_met(&figures))
}

async fn measure(
    setup: &Setup,
    deaths: usize,
    seed: u64,
    environment: &mut Environment,
    agent: &mut Option<Agent>,
) -> anyhow::Result<RoundsOutcome> {
    let console = environment.console;
    let lab = &*environment.set_up().await?;
    let pages = Pages::make(&lab.name().await)?;
    console.step("starting the agent");
    let agent = agent.insert(Agent::start(&Environment::agent(setup, lab)).await?);
    let observer = Observer::start()?;
    if !observer.is_real_time() {
        console.step("the observer is refused real-time priority: the truth is wider under load");
    }
    let can_limit = lab.can_limit_memory();
    let ways: Vec<DeathMode> =
        DeathMode::ALL.into_iter().filter(|way| can_limit || !way.needs_memory_limit()).collect();
    if !can_limit {
        console.step("no memory controller here: nothing is oom-killed");
    }
    let cri = RuntimeServiceClient::new(containerd::connect(&lab.cri()).await?);
    let witness = Witness::start(lab.watch(), cri.clone());
    let mut stage = DeathRounds {
        lab,
        agent,
        cri,
        observer: &observer,
        witness: &witness,
        pages: &pages.0,
        console,
    };
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all = RoundsOutcome::default();
    let busy = deaths / 2;
    for (load, deaths) in [(CpuLoad::Idle, deaths - busy), (CpuLoad::Busy, busy)] {
        let ways = shuffled(&ways, deaths, &mut random);
        let burning = match load {
            CpuLoad::Idle => None,
            CpuLoad::Busy => Some(Burners::light(&setup.program)?),
        };
        let outcome = stage.play(&ways, load, &mut random).await?;
        drop(burning);
        all.deaths.extend(outcome.deaths);
        all.failures.extend(outcome.failures);
    }
    Ok(all)
}
