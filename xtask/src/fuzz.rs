//! The fuzz targets (`fuzz/`): cargo-fuzz builds them with the project's own compiler. What they find goes to
//! `target/fuzz`; the inputs that the repository has (`fuzz/corpus`) are only read, except with `--keep`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    build,
    host::Arch,
    setup::cargo_tool,
    steps::{show, step},
    toolchain::metadata,
    workspace::Workspace,
};

/// The targets: of data that a tenant writes.
pub(crate) const TARGETS: [&str; 5] = ["api", "cri", "engine", "record", "recording"];

/// Builds the targets and runs each for `time`, or only `input`; `keep`: afterwards packs the fewest inputs that reach
/// as much into `fuzz/corpus`.
///
/// # Errors
/// A target does not build, or fails: libFuzzer prints the input and where it is.
pub(crate) fn run(
    workspace: &Workspace,
    targets: &[String],
    time: Duration,
    input: Option<&Path>,
    keep: bool,
) -> Result<()> {
    let targets: Vec<&str> = match targets {
        [] => TARGETS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    build(workspace)?;
    if let Some(input) = input {
        ensure!(targets.len() == 1, "name the one target that --input is for");
        let input = input.canonicalize().with_context(|| format!("read {}", input.display()))?;
        show("replaying the input", program(workspace, targets[0])?.arg(input))?;
        return Ok(());
    }
    let mut failed = Vec::new();
    for target in targets {
        if let Err(error) = fuzz(workspace, target, time) {
            failed.push(format!("{error:#}"));
        } else if keep {
            self::keep(workspace, target)?;
        }
    }
    ensure!(
        failed.is_empty(),
        "{}; cargo xtask fuzz TARGET --input FILE runs one input again",
        failed.join("; ")
    );
    Ok(())
}

/// Fails if the fuzz targets' lock file lacks a dependency, or has it in another version than the workspace: other code
/// would be fuzzed than is shipped.
///
/// # Errors
/// That, or what cargo reports.
pub(crate) fn check_lock_file() -> Result<()> {
    let packages = |manifest| -> Result<BTreeSet<(String, String)>> {
        let metadata = metadata(&["--manifest-path", manifest])?;
        let all = metadata["packages"].as_array().into_iter().flatten();
        Ok(all.map(|one| (one["name"].to_string(), one["version"].to_string())).collect())
    };
    let (shipped, fuzzed) = (packages("Cargo.toml")?, packages("fuzz/Cargo.toml")?);
    let is_shipped = |name: &String| shipped.iter().any(|(other, _)| other == name);
    let other: Vec<_> = fuzzed.difference(&shipped).filter(|(name, _)| is_shipped(name)).collect();
    ensure!(
        other.is_empty(),
        "fuzz/Cargo.lock has other versions than Cargo.lock: {other:?}; to fix it: cp Cargo.lock fuzz/ && \
         cargo metadata --manifest-path fuzz/Cargo.toml >/dev/null"
    );
    Ok(())
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target("fuzz")
}

/// Without a sanitizer: there is hardly any unsafe code, so a stable compiler will do (coverage needs no unstable flag),
/// and inputs run twice as fast.
fn build(workspace: &Workspace) -> Result<()> {
    build::kernel_programs(workspace)?;
    check_lock_file()?; // cargo-fuzz has no --locked of its own
    let mut build = Command::new(cargo_tool(workspace, "cargo-fuzz"));
    build.current_dir(workspace.root()).env("PATH", workspace.path()).env_remove("RUSTFLAGS");
    build.args(["fuzz", "build", "--release", "--sanitizer", "none", "--target-dir"]);
    show("building the fuzz targets", build.arg(folder(workspace)))?;
    Ok(())
}

fn fuzz(workspace: &Workspace, target: &str, time: Duration) -> Result<()> {
    let found = folder(workspace).join("corpus").join(target);
    let crashes = folder(workspace).join("crashes").join(target);
    for folder in [&found, &crashes] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let mut command = program(workspace, target)?;
    command.arg(format!("-max_total_time={}", time.as_secs()));
    command.arg(format!("-artifact_prefix={}/", crashes.display())).arg("-print_final_stats=1");
    command.arg(&found).args(inputs(workspace, target)?);
    show(&format!("fuzzing {target}"), &mut command)?;
    Ok(())
}

fn program(workspace: &Workspace, target: &str) -> Result<Command> {
    let built = folder(workspace).join(Arch::host()?.triple).join("release").join(target);
    let mut command = Command::new(built);
    // Weighing inputs by how rare their features are takes 7 ms an execution where there are 10,000 of them. Seconds are
    // by the clock: on a saturated disk an input of 1 ms was seen to take 45 s.
    command.args(["-entropic=0", "-timeout=120", "-rss_limit_mb=1024"]);
    command.current_dir(workspace.root());
    Ok(command)
}

fn archive(workspace: &Workspace, target: &str) -> PathBuf {
    workspace.root().join(format!("fuzz/corpus/{target}.tar.gz"))
}

/// Folders with the inputs that the repository has: an archive, for they are much alike. The engine's target also
/// begins with the histories that were once reported wrongly.
fn inputs(workspace: &Workspace, target: &str) -> Result<Vec<PathBuf>> {
    let kept = emptied(workspace, "kept", target)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--gzip", "--file"]).arg(archive(workspace, target));
    step(&format!("unpacking the inputs of {target}"), tar.arg("--directory").arg(&kept))?;
    let histories = workspace.root().join("agent/core/tests/simulation/found");
    Ok(if target == "engine" { vec![kept, histories] } else { vec![kept] })
}

/// An empty folder of a target.
fn emptied(workspace: &Workspace, name: &str, target: &str) -> Result<PathBuf> {
    let folder = folder(workspace).join(name).join(target);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Puts in place of the repository's inputs the fewest and smallest of those and of the found ones that reach as much.
fn keep(workspace: &Workspace, target: &str) -> Result<()> {
    let (inputs, fewest) = (inputs(workspace, target)?, emptied(workspace, "fewest", target)?);
    let mut merge = program(workspace, target)?;
    // Edges alone: with how often each is run the inputs would be ten times as many.
    merge.args(["-set_cover_merge=1", "-use_counters=0"]).arg(&fewest).args(inputs);
    merge.arg(folder(workspace).join("corpus").join(target));
    show(&format!("minimising the inputs of {target}"), &mut merge)?;
    let mut tar = Command::new("tar");
    // The same inputs make the same archive.
    tar.args(["--create", "--use-compress-program=gzip -9n", "--sort=name", "--mtime=@0"]);
    tar.args(["--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX", "--file"]);
    tar.arg(archive(workspace, target)).arg("--directory").arg(&fewest).arg(".");
    step(&format!("packing the inputs of {target}"), &mut tar)?;
    Ok(())
}
