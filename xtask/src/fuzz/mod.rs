//! The fuzz targets (`fuzz/`): cargo-fuzz builds them with the project's own compiler, and as many
//! as there are cores run at once. What they find goes to `target/fuzz`; what the repository has of
//! inputs (`fuzz/corpus`) is only read, save by `--keep`.

mod outcome;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use self::outcome::{FuzzOutcome, table};
use crate::{
    build,
    host::Arch,
    progress::{capture, note, step},
    setup,
    test::Tally,
    toolchain,
    workspace::Workspace,
};

/// An input that takes longer than this does not end, as far as anybody can tell. (Seconds by the clock: on a
/// saturated disk an input of 1 ms was seen to take 45 s.)
const ENDLESS: u32 = 120;
/// An input that takes more memory than this takes too much, MiB.
const MEMORY: u32 = 1024;
/// A target that executed fewer inputs is not called quiet.
const QUIET_EXECUTIONS: u64 = 1_000_000;
/// A target that finds something still after so many runs is left as it is: the table says so.
const MOST_RUNS: u32 = 20;

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct FuzzOrder {
    /// The targets; all, if none is named.
    pub(crate) targets: Vec<String>,
    /// How long each of them.
    pub(crate) time: Duration,
    /// Repeat each of them until a run finds nothing new.
    pub(crate) until_quiet: bool,
    /// Only replay this input.
    pub(crate) input: Option<PathBuf>,
    /// Afterwards take what reached something new into the repository, no more than is needed.
    pub(crate) keep: bool,
}

impl FuzzOrder {
    /// All targets, so long each.
    pub(crate) fn of_all(time: Duration) -> Self {
        Self { targets: Vec::new(), time, until_quiet: false, input: None, keep: false }
    }
}

/// Builds and runs the targets, prints what they came to; how many went well.
///
/// # Errors
/// When something is missing, does not build, or a target has no such name.
pub(crate) fn run(workspace: &Workspace, order: &FuzzOrder, list_only: bool) -> Result<Tally> {
    setup::ensure(workspace, &[setup::BUILD, setup::FUZZ].concat(), list_only)?;
    let targets = choose(&all(workspace)?, &order.targets)?;
    build::kernel_programs(workspace)?;
    build(workspace)?;
    if let Some(input) = &order.input {
        let [target] = &targets[..] else { bail!("name the one target that --input is for") };
        return replay(workspace, target, input);
    }
    let outcomes = run_all(workspace, &targets, order)?;
    outcomes.iter().filter_map(FuzzOutcome::trouble).for_each(note);
    println!("{}", table(&outcomes));
    if order.keep {
        targets.iter().try_for_each(|target| keep(workspace, target))?;
    }
    let failed = outcomes.iter().filter(|outcome| outcome.trouble().is_some()).count() as u64;
    Ok(Tally { passed: outcomes.len() as u64 - failed, failed, ..Tally::default() })
}

/// The targets that there are, by their files.
fn all(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = workspace.root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|is| is == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

fn choose(all: &[String], wanted: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("there is no fuzz target {unknown}; there are: {}", all.join(", "));
    }
    Ok(if wanted.is_empty() { all.to_vec() } else { wanted.to_vec() })
}

fn target_dir(workspace: &Workspace) -> PathBuf {
    workspace.target("fuzz")
}

/// Fails if the fuzz targets' lock file lacks a dependency.
///
/// # Errors
/// That, or what cargo says.
pub(crate) fn check_lock_file(workspace: &Workspace) -> Result<()> {
    step(
        "checking the fuzz targets' lock file",
        toolchain::cargo("metadata")
            .args(["--locked", "--format-version=1", "--quiet", "--manifest-path"])
            .arg(workspace.root().join("fuzz/Cargo.toml")),
    )?;
    Ok(())
}

/// Without a sanitizer: what is fuzzed has next to no unsafe code, and so a stable compiler will do
/// (coverage needs no unstable flag), dependencies are built once, and inputs run twice as fast.
fn build(workspace: &Workspace) -> Result<()> {
    // cargo-fuzz has no --locked of its own.
    check_lock_file(workspace)?;
    step(
        "building the fuzz targets",
        Command::new(
            toolchain::cargo_tool(workspace, "cargo-fuzz").context("cargo-fuzz is not there")?,
        )
        .current_dir(workspace.root())
        .env("PATH", workspace.path())
        .env_remove("RUSTFLAGS")
        .args(["fuzz", "build", "--release", "--sanitizer", "none", "--target-dir"])
        .arg(target_dir(workspace)),
    )
    .map(|_| ())
}

fn run_all(
    workspace: &Workspace,
    targets: &[String],
    order: &FuzzOrder,
) -> Result<Vec<FuzzOutcome>> {
    let queue = Mutex::new(targets.iter());
    let outcomes = Mutex::new(Vec::new());
    let more_runs = if order.until_quiet { MOST_RUNS - 1 } else { 0 };
    let lanes = thread::available_parallelism().map_or(1, usize::from).min(targets.len());
    thread::scope(|scope| {
        let lane = || -> Result<()> {
            loop {
                let next = lock(&queue).next();
                let Some(target) = next else { return Ok(()) };
                let mut outcome = fuzz(workspace, target, order.time)?;
                for _ in 0..more_runs {
                    if outcome.is_quiet(QUIET_EXECUTIONS) {
                        break;
                    }
                    note(&outcome.progress());
                    outcome = outcome.then(fuzz(workspace, target, order.time)?);
                }
                lock(&outcomes).push(outcome);
            }
        };
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| match lane.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut outcomes = outcomes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    outcomes.sort_by(|one, other| one.target.cmp(&other.target));
    Ok(outcomes)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn fuzz(workspace: &Workspace, target: &str, time: Duration) -> Result<FuzzOutcome> {
    let found = target_dir(workspace).join("corpus").join(target);
    let crashes = target_dir(workspace).join("crashes").join(target);
    for folder in [&found, &crashes] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let mut command = binary(workspace, target)?;
    command
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg(format!("-artifact_prefix={}/", crashes.display()))
        .arg("-print_final_stats=1")
        .arg(&found)
        .arg(unpack(workspace, target)?);
    let ran = capture(&format!("fuzzing {target}"), &mut command)?;
    FuzzOutcome::of(target, time, ran.success, &ran.text)
}

/// The target's program, with the bounds that every run of it has.
fn binary(workspace: &Workspace, target: &str) -> Result<Command> {
    let built = target_dir(workspace).join(Arch::host()?.triple).join("release");
    let mut command = Command::new(built.join(target));
    command
        .current_dir(workspace.root())
        // Weighing inputs by how rare their features are takes 7 ms an execution where there are 10,000 of them.
        .arg("-entropic=0")
        .arg(format!("-timeout={ENDLESS}"))
        .arg(format!("-report_slow_units={ENDLESS}"))
        .arg(format!("-rss_limit_mb={MEMORY}"));
    Ok(command)
}

/// The inputs that the repository keeps: an archive, for they are much alike.
fn archive(workspace: &Workspace, target: &str) -> PathBuf {
    workspace.root().join(format!("fuzz/corpus/{target}.tar.gz"))
}

/// Puts them into a folder.
fn unpack(workspace: &Workspace, target: &str) -> Result<PathBuf> {
    let (archive, folder) = (archive(workspace, target), emptied(workspace, "kept", target)?);
    if archive.is_file() {
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--gzip", "--file"]).arg(archive).arg("--directory").arg(&folder);
        step(&format!("unpacking the inputs of {target}"), &mut tar)?;
    }
    Ok(folder)
}

/// An empty folder of a target.
fn emptied(workspace: &Workspace, name: &str, target: &str) -> Result<PathBuf> {
    let folder = target_dir(workspace).join(name).join(target);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

fn replay(workspace: &Workspace, target: &str, input: &Path) -> Result<Tally> {
    let input = input.canonicalize().with_context(|| format!("read {}", input.display()))?;
    let ran = capture(&format!("replaying {target}"), binary(workspace, target)?.arg(&input))?;
    note(ran.text.trim_end());
    let (passed, failed) = if ran.success { (1, 0) } else { (0, 1) };
    Ok(Tally { passed, failed, ..Tally::default() })
}

/// Puts in place of the repository's inputs the fewest and smallest of those and of the found ones
/// that reach as much (libFuzzer's merge, which is what `cargo fuzz cmin` calls).
fn keep(workspace: &Workspace, target: &str) -> Result<()> {
    let (kept, fewest) = (unpack(workspace, target)?, emptied(workspace, "fewest", target)?);
    step(
        &format!("minimising the inputs of {target}"),
        binary(workspace, target)?
            // Edges alone: with how often each is run the inputs would be ten times as many.
            .args(["-set_cover_merge=1", "-use_counters=0"])
            .arg(&fewest)
            .arg(&kept)
            .arg(target_dir(workspace).join("corpus").join(target)),
    )?;
    let mut tar = Command::new("tar");
    // The same inputs make the same archive.
    tar.args(["--create", "--use-compress-program=gzip -9n", "--sort=name", "--mtime=@0"])
        .args(["--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX", "--file"])
        .arg(archive(workspace, target))
        .arg("--directory")
        .arg(&fewest)
        .arg(".");
    step(&format!("packing the inputs of {target}"), &mut tar)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn all_targets_unless_some_are_named() {
        let all = names(&["api", "btf"]);
        assert_eq!(choose(&all, &[]).expect("all"), all);
        assert_eq!(choose(&all, &names(&["btf"])).expect("one"), ["btf"]);
        let error = choose(&all, &names(&["bft"])).expect_err("no such target").to_string();
        assert!(error.contains("api, btf"), "{error}");
    }

    #[test]
    fn every_file_is_a_target_of_the_manifest() {
        let workspace = Workspace::here();
        let manifest = fs::read_to_string(workspace.root().join("fuzz/Cargo.toml")).expect("there");
        let all = all(&workspace).expect("targets");
        assert!(!all.is_empty());
        for target in &all {
            assert!(manifest.contains(&format!("\nname = \"{target}\"\n")), "{target}");
        }
        assert_eq!(manifest.matches("[[bin]]").count(), all.len());
    }

    /// Otherwise other code is fuzzed than is shipped.
    #[test]
    fn the_targets_are_built_with_the_dependencies_of_the_workspace() {
        let root = Workspace::here();
        let packages = |file: &str| -> Vec<(String, String)> {
            let text = fs::read_to_string(root.root().join(file)).expect("a lock file");
            let value = |block: &str, key: &str| {
                let line = block.lines().find_map(|line| line.strip_prefix(key));
                line.map(|value| value.trim_matches('"').to_owned()).unwrap_or_default()
            };
            let blocks = text.split("[[package]]").skip(1);
            blocks.map(|block| (value(block, "name = "), value(block, "version = "))).collect()
        };
        let shipped = packages("Cargo.lock");
        for (name, version) in packages("fuzz/Cargo.lock") {
            let others: Vec<_> = shipped.iter().filter(|(other, _)| *other == name).collect();
            assert!(
                others.is_empty() || others.iter().any(|(_, other)| *other == version),
                "fuzz/Cargo.lock has {name} {version}, Cargo.lock {others:?}; to mend it: \
                 cp Cargo.lock fuzz/ && cargo metadata --manifest-path fuzz/Cargo.toml >/dev/null"
            );
        }
    }
}
