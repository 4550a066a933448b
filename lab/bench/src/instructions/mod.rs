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
    console::Screen,
    work::{self, AGENT_LOG, unless_interrupted, went_wrong, work_directory},
};
use kept::Counts;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The file in the repository.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/instructions/kept.json");

/// What the benchmark is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Write the counts to the file that is kept, instead of comparing.
    pub keep: bool,
    /// Figures as objects on stdout, everything else on stderr.
    pub json: bool,
    /// The agent's binary.
    pub agent: PathBuf,
    /// The kernel programs' object.
    pub object: PathBuf,
    /// Where the agent's log and valgrind's counts go.
    pub work: PathBuf,
    /// `coroner-lab` itself, which is what valgrind runs.
    pub program: PathBuf,
}

/// Runs the benchmark. True: nothing costs more than is kept. Nothing is left behind; of a run that
/// went wrong the agent's log.
///
/// # Errors
/// valgrind or the agent does not start, the object or the kept file cannot be read, or the run is
/// [`Interrupted`].
pub async fn run(options: &Options) -> anyhow::Result<bool> {
    let screen = Screen::new(options.json);
    let work = work_directory(&options.work)?;
    // What is up goes when the future goes.
    let counted = unless_interrupted(screen, count(options, &work, screen)).await;
    let _ = fs::remove_file(work.join(engine::FILE));
    work::leave(&work, went_wrong(&counted), screen);
    let now = counted?;
    if options.keep {
        fs::write(KEPT, now.text()?).with_context(|| format!("cannot write {KEPT}"))?;
        screen.step(&format!("kept in {KEPT}"));
    }
    let text = fs::read_to_string(KEPT).with_context(|| format!("cannot read {KEPT}"))?;
    let kept: Counts = serde_json::from_str(&text)
        .with_context(|| format!("{KEPT} is broken: write it anew with --keep"))?;
    for sentence in kept::differences(&kept, &now) {
        screen.step(&sentence);
    }
    publish(screen, options.json, &kept::figures(&kept, &now))
}

async fn count(options: &Options, work: &Path, screen: Screen) -> anyhow::Result<Counts> {
    let object = object::read(&options.object)?;
    screen.step("starting the agent, for what the verifier makes of its programs");
    let root = kernel::cgroup2()?;
    let agent = kernel::Agent::start(&options.agent, &root, &work.join(AGENT_LOG)).await?;
    let verified = programs::of_process(agent.pid()?)?
        .into_iter()
        .filter_map(|program| Some((program.hook, u64::from(program.verified?))))
        .collect();
    drop(agent);
    screen.step("counting the engine's instructions with callgrind: a minute");
    let engine = engine::count(&options.program, work).await?;
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
