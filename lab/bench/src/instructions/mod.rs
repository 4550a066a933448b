//! `cargo xtask bench instructions`: what does it cost, in instructions? Counts that repeat are kept
//! in the repository, so that a change shows what it costs. docs/performance.md says what each is.
//!
//! [`engine`] counts by callgrind, [`object`] reads the kernel programs' object, the running kernel
//! tells of the verifier; [`kept`] is pure.

pub mod engine;
mod kept;
mod object;

use super::{kernel, programs, publish};
use anyhow::Context as _;
use coroner_lab_harness::{
    console::Console,
    environment::{AGENT_LOG, Environment, Setup, unless_interrupted},
};
use kept::Counts;
use std::{fs, path::Path};

/// The file in the repository.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/instructions/kept.json");

/// Runs the benchmark. True: nothing costs more than is kept. Nothing is left behind; of a run that
/// went wrong the agent's log.
pub async fn run(setup: &Setup, object: &Path, keep: bool) -> anyhow::Result<bool> {
    let environment = Environment::new(setup)?;
    let (console, work) = (environment.console, environment.work());
    // What is up goes when the future goes.
    let counted = unless_interrupted(console, count(setup, object, &work, console)).await;
    let _ = fs::remove_file(work.join(engine::FILE));
    let now = environment.tear_down(counted, false).await?;
    if keep {
        fs::write(KEPT, now.text()?).with_context(|| format!("cannot write {KEPT}"))?;
        console.step(&format!("written to {KEPT}"));
    }
    let text = fs::read_to_string(KEPT).with_context(|| format!("cannot read {KEPT}"))?;
    let kept: Counts = serde_json::from_str(&text)
        .with_context(|| format!("{KEPT} is broken: write it anew with --keep"))?;
    for sentence in kept::differences(&kept, &now) {
        console.step(&sentence);
    }
    publish(console, setup.json, &kept::figures(&kept, &now))
}

async fn count(
    setup: &Setup,
    object: &Path,
    work: &Path,
    console: Console,
) -> anyhow::Result<Counts> {
    let object = object::read(object)?;
    console.step("starting the agent, for what the verifier makes of its programs");
    let root = kernel::cgroup2()?;
    let agent = kernel::AgentProcess::start(&setup.agent, &root, &work.join(AGENT_LOG)).await?;
    let verified = programs::by_hook(programs::of_process(agent.pid()?)?)
        .into_values()
        .filter_map(|program| Some((program.hook, u64::from(program.verified?))))
        .collect();
    drop(agent);
    console.step("counting the engine's instructions with callgrind: a minute");
    let engine = engine::count(&setup.program, work).await?;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    Ok(Counts {
        compiler: engine::compiler().await,
        engine,
        bpf_compiler: object.compiler,
        object: object.instructions,
        kernel: release,
        verified,
    })
}
