//! `cargo xtask test`: the layers, and what they came to.
//!
//! Two lanes run at once. One has the layers that share the machine's kernel and containers, which wait more than they
//! compute; the other has those that compute, with a lower priority.

mod arm64;
mod binaries;
mod lint;
mod tally;

use std::{
    fs,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum as _;

pub(crate) use self::{
    binaries::{TestBinary, programs_for},
    tally::Tally,
};
use crate::{
    bench,
    build::{self, Profile},
    cli::{Layer, Times},
    fuzz,
    host::Arch,
    image, root, run,
    setup::{self, Need},
    steps::{at_once, minutes, note, show},
    vm::{self, Kernel, Which},
    workspace::Workspace,
};

/// What is to be tested.
#[derive(Debug, Clone, Default)]
pub(crate) struct TestOrder {
    /// The layers; none: those of the gate, or all with `long`.
    pub(crate) layers: Vec<Layer>,
    /// Random seeds, all variants, the release image.
    pub(crate) long: bool,
    pub(crate) repeat: u32,
    /// The foreign kernels, and what runs on them.
    pub(crate) kernels: Vec<&'static Kernel>,
    pub(crate) which: Which,
    pub(crate) times: Times,
}

/// A row of the closing table.
struct Row {
    title: String,
    tally: Tally,
    took: Duration,
}

/// How much is repeated at the end of why layers failed, in characters: CI shows the last 2,000 of what is printed.
const REASONS: usize = 1500;

/// Runs the layers and prints the closing table; whether all passed.
///
/// # Errors
/// Something is missing, or does not compile, that no layer can run without.
pub(crate) fn run(workspace: &Workspace, order: &TestOrder) -> Result<bool> {
    let begun = Instant::now();
    let mut layers = match (order.layers.is_empty(), order.long) {
        (false, _) => order.layers.clone(),
        (true, false) => Layer::GATE.to_vec(),
        (true, true) => Layer::value_variants().to_vec(),
    };
    layers.sort();
    layers.dedup();
    let needs = needs(&layers, order);
    if layers.iter().any(|layer| layer.needs_root()) {
        root::demand()
            .context("without root `cargo xtask build` and `cargo xtask test lint unit vm` work")?;
    }
    root::take_back(workspace, &workspace.failed())?;
    // Of another run. The folder itself may be a mount point.
    for entry in fs::read_dir(workspace.failed()).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            fs::remove_dir_all(&path)?
        } else {
            fs::remove_file(&path)?
        };
    }
    if layers.contains(&Layer::Lint) {
        lint::format(workspace)?; // a second, before minutes of compiling
    }
    setup::ensure(workspace, setup::BUILD)?;
    let set_up = Row::of_preparation("set-up", begun);
    let building = Instant::now();
    // One waits for the network, the other for the CPUs.
    let (tests, fetched) = thread::scope(|scope| {
        let fetched = scope.spawn(|| setup::ensure(workspace, &needs));
        (build(workspace, &layers), fetched.join())
    });
    fetched.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let tests = tests?;
    if layers.contains(&Layer::Deploy) {
        let (profile, arches) = match order.long {
            true => (Profile::Release, Arch::built()?),
            false => (Profile::Dev, vec![Arch::host()?]),
        };
        image::make(workspace, &image::default_file(workspace), profile, &arches)?;
    }
    let mut rows = vec![set_up, Row::of_preparation("build", building)];
    for run in 1..=order.repeat {
        let suffix = if order.repeat > 1 { format!("-{run}") } else { String::new() };
        rows.extend(Job { workspace, order, tests: &tests, suffix: &suffix }.run(&layers));
    }
    Ok(conclude(&rows, begun.elapsed()))
}

fn build(workspace: &Workspace, layers: &[Layer]) -> Result<Vec<TestBinary>> {
    build::kernel_programs(workspace)?;
    binaries::compile(workspace, layers)
}

/// The tools of all layers of the gate; `long`: of all layers.
pub(crate) fn all_needs(long: bool) -> Vec<Need> {
    let layers = if long { Layer::value_variants() } else { &Layer::GATE };
    let kernels = vm::choose(&[], long).unwrap_or_default();
    needs(layers, &TestOrder { long, kernels, ..TestOrder::default() })
}

fn needs(layers: &[Layer], order: &TestOrder) -> Vec<Need> {
    let foreign = order.kernels.iter().any(|kernel| !kernel.arch.is_host());
    let mut needs = setup::BUILD.to_vec();
    for layer in layers {
        needs.extend(match layer {
            Layer::Lint => setup::LINT.to_vec(),
            Layer::Unit => Vec::new(),
            Layer::Programs if order.long => setup::PROGRAMS.to_vec(),
            Layer::Programs => Vec::new(),
            Layer::Lab if order.long => [setup::LAB, setup::VARIANTS].concat(),
            Layer::Lab | Layer::Soak => setup::LAB.to_vec(),
            Layer::Deploy if order.long => [setup::LAB, setup::DEPLOY, setup::CROSS].concat(),
            Layer::Deploy => [setup::LAB, setup::DEPLOY].concat(),
            Layer::Vm => {
                let kernels = order.kernels.iter().map(|kernel| Need::Debian(&kernel.package));
                let more =
                    if foreign { [setup::CROSS, setup::VM_ARM64].concat() } else { Vec::new() };
                kernels.chain(setup::VM.iter().copied()).chain(more).collect()
            }
            Layer::Arm64 => [setup::CROSS, setup::EMULATOR].concat(),
            Layer::Fuzz => setup::FUZZ.to_vec(),
            Layer::Bench => [setup::LAB, setup::BENCH].concat(),
        });
    }
    needs
}

struct Job<'a> {
    workspace: &'a Workspace,
    order: &'a TestOrder,
    tests: &'a [TestBinary],
    /// What tells this run from another.
    suffix: &'a str,
}

impl Job<'_> {
    /// Runs all layers once.
    fn run(&self, layers: &[Layer]) -> Vec<Row> {
        let rows = Mutex::new(Vec::new());
        let run = |lane: &[Layer]| {
            for layer in layers.iter().filter(|layer| lane.contains(layer)) {
                let row = self.layer(*layer);
                rows.lock().unwrap_or_else(PoisonError::into_inner).push((*layer, row));
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                // Of this thread and what it starts. A little only: beside others' work the emulated guests would
                // hardly run at all. That it is refused costs time only.
                let _ = rustix::process::nice(3);
                run(&[Layer::Lint, Layer::Unit, Layer::Vm, Layer::Arm64, Layer::Fuzz]);
            });
            run(&[Layer::Programs, Layer::Lab, Layer::Deploy]);
        });
        run(&[Layer::Soak, Layer::Bench]); // these measure, and so run alone
        let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
        rows.sort_by_key(|(layer, _)| *layer);
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn layer(&self, layer: Layer) -> Row {
        let begun = Instant::now();
        let failed =
            |error: anyhow::Error| Tally::of_failure(format!("{}: {error:#}", layer.name()));
        let tally = self.tally(layer).unwrap_or_else(failed);
        tally.reasons.iter().for_each(|reason| note(reason));
        Row { title: format!("{}{}", layer.name(), self.suffix), tally, took: begun.elapsed() }
    }

    fn tally(&self, layer: Layer) -> Result<Tally> {
        let (workspace, long, suffix) = (self.workspace, self.order.long, self.suffix);
        match layer {
            Layer::Lint => lint::run(workspace, long)?,
            Layer::Arm64 => arm64::run(workspace)?,
            Layer::Fuzz => fuzz::run(workspace, &[], self.order.times.fuzz_for, None, false)?,
            Layer::Soak => {
                let binaries = build::binaries(workspace, Profile::Dev)?;
                let time = format!("{}s", self.order.times.soak_for.as_secs());
                let mut soak = run::command(workspace, &binaries, &["soak"]);
                show("soak", soak.args(["--for", &time]))?;
            }
            Layer::Bench => bench::run(workspace, None, self.order.times.bench_briefly)?,
            Layer::Vm => {
                let programs = self.tests.iter().find(|test| test.layer() == Layer::Programs);
                let programs = programs.context("agent/tests/programs is not there")?;
                return vm::run(
                    workspace,
                    &self.order.kernels,
                    &self.order.which,
                    programs,
                    suffix,
                );
            }
            Layer::Unit | Layer::Programs | Layer::Lab | Layer::Deploy => {
                let mut tests: Vec<_> = self.tests.iter().collect();
                tests.retain(|test| test.layer() == layer);
                let tally = Mutex::new(Tally::default());
                let run = |test: &&TestBinary| {
                    let failed = |error| Tally::of_failure(format!("{error:#}"));
                    let run = test.run(workspace, long, suffix).unwrap_or_else(failed);
                    tally.lock().unwrap_or_else(PoisonError::into_inner).add(run);
                };
                // Tests that need no root wait for nothing but their own timeouts: two binaries at once.
                match layer {
                    Layer::Unit => at_once(&tests, run),
                    _ => tests.iter().for_each(run),
                }
                let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
                return match tally.passed + tally.failed {
                    0 => Err(anyhow!("no test ran")),
                    _ => Ok(tally),
                };
            }
        }
        Ok(Tally::default())
    }
}

impl Row {
    /// Of something without tests, such as the build.
    fn of_preparation(title: &str, begun: Instant) -> Self {
        Self { title: title.to_owned(), tally: Tally::default(), took: begun.elapsed() }
    }
}

/// Prints the closing table, why layers failed, and the closing line; whether all passed.
fn conclude(rows: &[Row], took: Duration) -> bool {
    println!("\n{:<14}{:>8}{:>8}{:>8}", "layer", "passed", "failed", "min");
    for Row { title, tally, took } in rows {
        println!("{title:<14}{:>8}{:>8}{:>8}", tally.passed, tally.failed, minutes(*took));
    }
    let reasons: Vec<&String> = rows.iter().flat_map(|row| &row.tally.reasons).collect();
    for reason in &reasons {
        let shown = reason.chars().take(REASONS / reasons.len()).collect::<String>();
        println!("\n{shown}");
    }
    let passed: u64 = rows.iter().map(|row| row.tally.passed).sum();
    let failed: u64 = rows.iter().map(|row| row.tally.failed).sum();
    println!("\n{passed} passed, {failed} failed, in {} min", minutes(took));
    failed == 0
}
