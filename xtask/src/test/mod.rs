//! `cargo xtask test`: the layers, and what they came to.
//!
//! Two lanes run at once. One has the layers that share the machine's kernel and containers, which
//! wait more than they compute; the other has those that compute, with a lower priority.

pub(crate) mod absent;
mod arm64;
mod binaries;
mod lint;
mod tally;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    hash::{BuildHasher as _, RandomState},
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};

pub(crate) use self::{
    binaries::{BinaryRun, ExpectedTests, TestBinary, compile, compile_programs},
    tally::Tally,
};
use crate::{
    bench,
    build::{self, Profile},
    cli::{Layer, Subject, Times},
    fuzz,
    host::Arch,
    image,
    progress::{capture, elapsed, note, step},
    root, run, setup,
    setup::Need,
    toolchain::cargo,
    vm::{self, Guest},
    workspace::Workspace,
};

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct TestOrder {
    /// The layers; those of the gate, or all with `long`, if none is named.
    pub(crate) layers: Vec<Layer>,
    /// Random seeds, all faults, the release image.
    pub(crate) long: bool,
    /// How often.
    pub(crate) repeat: u32,
    /// The foreign kernels.
    pub(crate) guests: Vec<Guest>,
    /// How long some layers take.
    pub(crate) times: Times,
}

/// A row of the closing table: a layer, or what comes before all of them.
#[derive(Debug)]
struct Outcome {
    title: String,
    tally: Tally,
    took: Duration,
    /// Minutes.
    budget: u32,
    /// Why it failed, unless the failed tests say so.
    trouble: Option<String>,
    /// Whether it has tests.
    tests: bool,
    /// Tests that cannot run here, and why.
    absent: Vec<String>,
}

impl Outcome {
    fn ok(&self) -> bool {
        self.trouble.is_none() && self.tally.failed == 0 && self.tally.ignored == 0
    }

    fn verdict(&self) -> String {
        let mut words = vec![if self.ok() { "✔".to_owned() } else { "✘".to_owned() }];
        words.extend(self.trouble.iter().filter_map(|why| why.lines().next()).map(str::to_owned));
        if self.tally.ignored > 0 {
            words.push("ignored tests prove nothing".to_owned());
        }
        if !self.absent.is_empty() {
            words.push(format!("not run here: {}", self.absent.join("; ")));
        }
        words.join(" ")
    }

    /// Of something without tests, such as the build.
    fn of_preparation(title: &str, budget: u32, begun: Instant) -> Self {
        Self {
            title: title.to_owned(),
            tally: Tally::default(),
            took: begun.elapsed(),
            budget,
            trouble: None,
            tests: false,
            absent: Vec::new(),
        }
    }
}

/// Runs the layers and prints the closing table; whether all passed.
///
/// # Errors
/// When something is missing, or does not compile, that no layer can run without.
pub(crate) fn run(workspace: &Workspace, order: TestOrder, list_only: bool) -> Result<bool> {
    let begun = Instant::now();
    let mut layers = match (order.layers.is_empty(), order.long) {
        (false, _) => order.layers.clone(),
        (true, false) => Layer::GATE.to_vec(),
        (true, true) => Layer::ALL.to_vec(),
    };
    layers.sort();
    layers.dedup();
    if !list_only {
        demand_root(&layers)?;
    }
    let mut outcomes = Vec::new();
    let mut unprepared = BTreeMap::new();
    let setting_up = Instant::now();
    // What a single layer of `--long` needs keeps no other from running.
    let (apart, together): (Vec<Layer>, Vec<Layer>) =
        layers.iter().partition(|layer| !list_only && !Layer::GATE.contains(layer));
    setup::ensure(workspace, &needs(&together, &order.guests), list_only)?;
    for layer in apart {
        if let Err(error) = setup::ensure(workspace, &needs(&[layer], &order.guests), list_only) {
            unprepared.insert(layer, format!("{error:#}"));
        }
    }
    outcomes.push(Outcome::of_preparation("set-up", SETUP_BUDGET, setting_up));

    let failed = workspace.failed();
    if failed.is_dir() {
        root::take_back(workspace, &failed)?;
        // Of another run. The folder itself may be a mount point.
        for entry in fs::read_dir(&failed)?.flatten() {
            let path = entry.path();
            let gone =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            gone.with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    if layers.contains(&Layer::Lint)
        && let Err(error) = lint::format(workspace)
    {
        if !order.long {
            return Err(error); // a second, before minutes of compiling
        }
        unprepared.insert(Layer::Lint, format!("{error:#}"));
    }
    let building = Instant::now();
    build::kernel_programs(workspace)?;
    let tests = compile(workspace, &layers)?;
    if layers.contains(&Layer::Deploy) {
        // What is tested for another architecture is not built yet: the layer arm64 does.
        let (profile, arches) = match order.long {
            true => (Profile::Release, Arch::built()?),
            false => (Profile::Dev, vec![Arch::host()?]),
        };
        let file = image::default_file(workspace);
        if let Err(error) = image::make(workspace, &file, profile, &arches) {
            unprepared.insert(Layer::Deploy, format!("{error:#}"));
        }
    }
    outcomes.push(Outcome::of_preparation("build", BUILD_BUDGET, building));

    let job = Job { workspace, order: &order, tests: &tests, unprepared: &unprepared };
    for run in 1..=order.repeat {
        let suffix = if order.repeat > 1 { format!("-{run}") } else { String::new() };
        outcomes.extend(job.lanes(&layers, &suffix));
    }
    println!("{}", summary(&outcomes, begun.elapsed()));
    repeat_reasons(&outcomes, &failed);
    if fs::read_dir(&failed).is_ok_and(|mut entries| entries.next().is_some()) {
        note(&format!("what failed tests left is in {}", failed.display()));
    }
    Ok(outcomes.iter().all(Outcome::ok))
}

/// Minutes from nothing to all tools.
const SETUP_BUDGET: u32 = 3;
/// Minutes from nothing to all tests.
const BUILD_BUDGET: u32 = 12;

fn needs(layers: &[Layer], guests: &[Guest]) -> Vec<Need> {
    let mut needs = setup::BUILD.to_vec();
    for (layer, more) in [
        (Layer::Lint, setup::LINT),
        (Layer::Lab, setup::LAB),
        (Layer::Lab, setup::VERSIONS),
        (Layer::Deploy, setup::LAB),
        (Layer::Deploy, setup::DEPLOY),
        (Layer::Vm, setup::VM),
        (Layer::Arm64, setup::CROSS),
        (Layer::Arm64, setup::EMULATOR),
        (Layer::Fuzz, setup::FUZZ),
        (Layer::Soak, setup::LAB),
        (Layer::Bench, setup::LAB),
        (Layer::Bench, setup::STORM),
        (Layer::Bench, setup::INSTRUCTIONS),
    ] {
        if layers.contains(&layer) {
            needs.extend(more);
        }
    }
    if layers.contains(&Layer::Vm) {
        needs.extend(guests.iter().map(|guest| Need::Kernel(guest.kernel)));
        if guests.iter().any(|guest| !guest.kernel.arch.is_host()) {
            needs.extend([setup::CROSS, setup::VM_ARM64].concat());
        }
    }
    needs
}

/// # Errors
/// When a layer takes root and this cannot become it; the error names those layers.
fn demand_root(layers: &[Layer]) -> Result<()> {
    let names: Vec<&str> =
        layers.iter().filter(|layer| layer.needs_root()).map(|layer| layer.name()).collect();
    if names.is_empty() {
        return Ok(());
    }
    root::demand().with_context(|| format!("cannot test {}", names.join(", ")))
}

/// Which layers run beside which. The last ones measure, and so run alone.
fn lanes(layers: &[Layer]) -> ([Vec<Layer>; 2], Vec<Layer>) {
    let of = |lane: &[Layer]| layers.iter().copied().filter(|layer| lane.contains(layer)).collect();
    let containers = of(&[Layer::Programs, Layer::Lab, Layer::Deploy]);
    let computing = of(&[Layer::Lint, Layer::Unit, Layer::Vm, Layer::Arm64, Layer::Fuzz]);
    ([containers, computing], of(&[Layer::Soak, Layer::Bench]))
}

struct Job<'a> {
    workspace: &'a Workspace,
    order: &'a TestOrder,
    tests: &'a [TestBinary],
    /// What failed already, for a layer alone.
    unprepared: &'a BTreeMap<Layer, String>,
}

impl Job<'_> {
    /// Runs all layers once, and returns their outcomes in the order of the layers.
    fn lanes(&self, layers: &[Layer], suffix: &str) -> Vec<Outcome> {
        let outcomes = Mutex::new(Vec::new());
        let run = |lane: &[Layer]| {
            for layer in lane {
                let outcome = self.layer(*layer, suffix);
                outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((*layer, outcome));
            }
        };
        let ([containers, computing], alone) = lanes(layers);
        thread::scope(|scope| {
            scope.spawn(|| {
                if !containers.is_empty() {
                    // Of this thread and what it starts. A little only: beside others' work the emulated
                    // guests would hardly run at all. That it is refused costs time only.
                    let _ = rustix::process::nice(3);
                }
                run(&computing);
            });
            run(&containers);
        });
        run(&alone);
        let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcomes.sort_by_key(|(layer, _)| *layer);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn layer(&self, layer: Layer, suffix: &str) -> Outcome {
        let begun = Instant::now();
        let result = match self.unprepared.get(&layer) {
            Some(trouble) => Err(anyhow!("{trouble}")),
            None => self.run(layer, suffix),
        };
        let has_tests = !matches!(layer, Layer::Lint | Layer::Arm64 | Layer::Soak | Layer::Bench);
        let (tally, trouble) = match result {
            Ok(tally) if has_tests && tally == Tally::default() => {
                (tally, Some("no test ran: it proves nothing".to_owned()))
            }
            Ok(tally) => (tally, None),
            Err(error) => (Tally::default(), Some(format!("{error:#}"))),
        };
        if let Some(trouble) = &trouble {
            note(&format!("\n{}: {trouble}\n", layer.name()));
        }
        Outcome {
            title: format!("{}{suffix}", layer.name()),
            tally,
            took: begun.elapsed(),
            budget: layer.budget(),
            trouble,
            tests: has_tests,
            absent: self.absent(layer),
        }
    }

    fn absent(&self, layer: Layer) -> Vec<String> {
        let tests = self.tests.iter().filter(|test| test.layer() == layer);
        tests.flat_map(TestBinary::absent).map(absent::Absent::told).collect()
    }

    fn run(&self, layer: Layer, suffix: &str) -> Result<Tally> {
        let workspace = self.workspace;
        match layer {
            Layer::Lint => {
                lint::dependencies(workspace, self.order.long)?;
                lint::clippy(workspace)?;
                lint::links(workspace).map(|()| Tally::default())
            }
            Layer::Arm64 => arm64::run(workspace).map(|()| Tally::default()),
            Layer::Vm => vm::run(workspace, &self.order.guests, programs(self.tests)?, suffix),
            Layer::Fuzz => {
                fuzz::run(workspace, &fuzz::FuzzOrder::of_all(self.order.times.fuzz_for), false)
            }
            Layer::Soak => {
                let binaries = build::binaries(workspace, Profile::Dev)?;
                let mut soak = run::command(workspace, &binaries, "soak")?;
                let time = format!("{}s", self.order.times.soak_for.as_secs());
                let seed = RandomState::new().hash_one(0);
                note(&format!("soak: --seed {seed}"));
                let arguments = ["--for", &time, "--seed", &seed.to_string()];
                step("soak", soak.args(arguments)).map(|_| Tally::default())
            }
            Layer::Bench => {
                let all = <Subject as clap::ValueEnum>::value_variants();
                let arguments = |subject: Subject| match self.order.times.bench_briefly {
                    true => subject.brief().iter().map(OsString::from).collect(),
                    false => Vec::new(),
                };
                let failed = bench::run(workspace, all, arguments, false)?;
                if failed.is_empty() {
                    return Ok(Tally::default());
                }
                let names: Vec<&str> = failed.into_iter().map(Subject::name).collect();
                bail!("missed a goal or could not measure, see above: {}", names.join(", "))
            }
            Layer::Unit | Layer::Programs | Layer::Lab | Layer::Deploy => {
                let mut tally = Tally::default();
                for test in self.tests.iter().filter(|test| test.layer() == layer) {
                    let run = test.run(workspace, self.order.long, suffix)?;
                    let name = format!("{}-{}{suffix}", test.package, test.name);
                    tally.add(self.report(&name, run));
                }
                if layer == Layer::Unit {
                    let mut command = cargo("test");
                    command.current_dir(workspace.root()).env("PATH", workspace.path()).args([
                        "--workspace",
                        "--locked",
                        "--doc",
                    ]);
                    let output = capture("documentation's examples", &mut command)?;
                    tally.add(self.report(
                        "doctests",
                        BinaryRun::of(output.success, output.text, ExpectedTests::WHOLE),
                    ));
                }
                Ok(tally)
            }
        }
    }

    fn report(&self, name: &str, run: BinaryRun) -> Tally {
        report(self.workspace, name, run)
    }
}

/// Keeps what a failed run printed under `target/failed`, and says where.
pub(crate) fn keep(workspace: &Workspace, name: &str, text: &str) {
    let file = workspace.failed().join(format!("{name}.log"));
    let kept = fs::create_dir_all(workspace.failed()).and_then(|()| fs::write(&file, text));
    match kept {
        Ok(()) => note(&format!("{name} failed; all of its output is in {}", file.display())),
        Err(error) => note(&format!("cannot keep the output in {}: {error}", file.display())),
    }
}

/// How much is repeated of why layers failed, in characters: CI shows the last 2,000 of what is printed.
const REASON_CHARACTERS: usize = 1500;
/// Of how many layers and test binaries.
const REASONS: usize = 5;

/// Repeats why layers failed, at the very end.
fn repeat_reasons(outcomes: &[Outcome], failed: &Path) {
    let troubles =
        outcomes.iter().filter_map(|one| Some((one.title.clone(), one.trouble.clone()?)));
    let entries = fs::read_dir(failed).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut logs: Vec<_> = entries.filter(|path| path.is_file()).collect();
    logs.sort();
    let logs = logs.iter().map(|log| {
        let text = fs::read(log).unwrap_or_default();
        let name = log.file_stem().unwrap_or_default().display().to_string();
        (name, String::from_utf8_lossy(&text).into_owned())
    });
    let all: Vec<_> = troubles.chain(logs).collect();
    let each = REASON_CHARACTERS / all.len().clamp(1, REASONS);
    for (name, text) in all.iter().take(REASONS) {
        note(&format!("{name}:\n{}", tally::reasons(text, each)));
    }
    if let more @ 1.. = all.len().saturating_sub(REASONS) {
        note(&format!("[… and {more} more]"));
    }
}

/// The test binary that loads and proves the kernel programs.
///
/// # Errors
/// When there is none.
pub(crate) fn programs(tests: &[TestBinary]) -> Result<&TestBinary> {
    match tests.iter().find(|test| test.layer() == Layer::Programs) {
        Some(test) => Ok(test),
        None => bail!("agent/tests/programs.rs is not there"),
    }
}

/// Shows what a failed run printed, and keeps it under this name.
pub(crate) fn report(workspace: &Workspace, name: &str, run: BinaryRun) -> Tally {
    if run.tally.failed > 0 {
        note(run.text.trim_end());
        keep(workspace, name, &run.text);
    }
    run.tally
}

fn summary(outcomes: &[Outcome], took: Duration) -> String {
    let row = |title: &str, counts: [&str; 3], time: &str, budget: &str, verdict: &str| {
        let [passed, failed, ignored] = counts;
        let counts = format!("{passed:>8}{failed:>8}{ignored:>9}");
        format!("{title:<14}{counts}  {time:<14}{budget:<10}{verdict}").trim_end().to_owned()
    };
    let head = row("layer", ["passed", "failed", "ignored"], "time", "budget", "");
    let mut lines = vec![String::new(), head];
    let mut total = Tally::default();
    for outcome in outcomes {
        let Tally { passed, failed, ignored, .. } = outcome.tally;
        total.add(outcome.tally);
        if outcome.trouble.is_some() {
            // A layer that could not run is a failure, too.
            total.failed += 1;
        }
        let counts = [passed, failed, ignored]
            .map(|number| if outcome.tests { number.to_string() } else { String::new() });
        lines.push(row(
            &outcome.title,
            counts.each_ref().map(String::as_str),
            &elapsed(outcome.took),
            &format!("{} min", outcome.budget),
            &outcome.verdict(),
        ));
    }
    let time = format!("{} in all, some of it at once", elapsed(took));
    lines.push(row("", [""; 3], &time, "", ""));
    lines.push(String::new());
    let Tally { passed, failed, ignored, .. } = total;
    lines.push(format!("{passed} passed, {failed} failed, {ignored} ignored"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(layer: Layer, passed: u64, failed: u64, trouble: Option<&str>) -> Outcome {
        Outcome {
            title: layer.name().to_owned(),
            tally: Tally { passed, failed, ..Tally::default() },
            took: Duration::from_secs(1),
            budget: layer.budget(),
            trouble: trouble.map(str::to_owned),
            tests: true,
            absent: Vec::new(),
        }
    }

    #[test]
    fn the_last_line_counts_tests_and_layers_that_could_not_run() {
        let outcomes = [
            Outcome::of_preparation("build", 12, Instant::now()),
            outcome(Layer::Unit, 7, 1, None),
            outcome(Layer::Vm, 0, 0, Some("no QEMU\ndetails")),
        ];
        let text = summary(&outcomes, Duration::from_secs(3));
        assert_eq!(text.lines().last(), Some("7 passed, 2 failed, 0 ignored"));
        assert!(text.contains("✘ no QEMU") && !text.contains("details"), "{text}");
    }

    #[test]
    fn an_ignored_test_fails_its_layer_and_one_that_cannot_run_here_is_named() {
        let mut outcome = outcome(Layer::Deploy, 7, 0, None);
        outcome.absent = vec!["on_v1: no cgroup v1".to_owned()];
        assert!(outcome.ok() && outcome.verdict() == "✔ not run here: on_v1: no cgroup v1");
        outcome.tally.ignored = 1;
        assert!(!outcome.ok() && outcome.verdict().starts_with("✘ ignored"));
        let text = summary(&[outcome], Duration::from_secs(3));
        assert_eq!(text.lines().last(), Some("7 passed, 0 failed, 1 ignored"));
    }

    #[test]
    fn a_layer_brings_only_its_own_needs() {
        let guests =
            vm::matrix(&vm::choose(&["6.1".into()]).expect("known"), &vm::CgroupVersion::ALL);
        let kernel = [Need::Kernel(guests[0].kernel)];
        for (layer, more) in
            [(Layer::Vm, setup::VM), (Layer::Vm, &kernel), (Layer::Deploy, setup::DEPLOY)]
        {
            assert!(more.iter().all(|need| needs(&[layer], &guests).contains(need)));
            assert!(more.iter().all(|need| !needs(&[Layer::Unit], &guests).contains(need)));
        }
    }

    #[test]
    fn every_layer_runs_in_one_lane() {
        let ([containers, computing], alone) = lanes(&Layer::ALL);
        let mut all = [containers, computing, alone].concat();
        all.sort();
        assert_eq!(all, Layer::ALL);
    }

    /// What a contributor reads of the gate's time is what it is held against.
    #[test]
    fn the_budgets_are_those_of_the_docs() {
        let file = Workspace::here().root().join("CONTRIBUTING.md");
        let text = fs::read_to_string(file).expect("is there");
        let gate = Layer::GATE.iter().map(|layer| (layer.name(), layer.budget()));
        for (name, budget) in gate.chain([("set-up", SETUP_BUDGET), ("build", BUILD_BUDGET)]) {
            let cells = text
                .lines()
                .filter_map(|line| line.strip_prefix(&format!("| {name} |")))
                .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
            let budgets: Vec<_> = cells.filter_map(|cells| cells.first().copied()).collect();
            assert_eq!(budgets, [budget.to_string()], "{name}: its budget");
        }
    }
}
