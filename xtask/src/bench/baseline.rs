//! The engine's benchmark beside the same of an earlier commit, in alternating runs.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::command;
use crate::{
    build::Binaries,
    cli::Subject,
    host::Arch,
    progress::{note, step},
    toolchain::cargo,
    workspace::Workspace,
};

/// Runs of each: an odd number, for the median.
const RUNS: usize = 5;
/// The memory over a million terminations is not compared.
const BRIEF: [&str; 4] = ["--json", "--no-fail", "--terminations", "10001"];
/// The inputs per second that are left of the baseline's, at least.
const GOAL: f64 = 0.95;

/// Figures of one commit, by name: the values of all runs, and the unit.
type Figures = BTreeMap<String, (Vec<f64>, String)>;

/// Builds the commit's benchmark and runs both; the medians go to stdout. Returns whether the engine is as
/// fast as it should be.
///
/// # Errors
/// When there is no such commit, it does not build, or a run fails.
pub(super) fn compare(
    workspace: &Workspace,
    binaries: &Binaries,
    revision: &str,
    json: bool,
) -> Result<bool> {
    let before = Binaries { lab: build(workspace, revision)?, ..binaries.clone() };
    let (mut of_now, mut of_before) = (Figures::new(), Figures::new());
    for run in 1..=RUNS {
        note(&format!("run {run} of {RUNS}"));
        measure(workspace, binaries, &mut of_now)?;
        measure(workspace, &before, &mut of_before)?;
    }
    let mut is_fast = false;
    if !json {
        println!("{:32} {:>14} {revision:>14} {:>7}", "median", "now", "ratio");
    }
    for (name, (values, unit)) in of_now {
        let Some((before, _)) = of_before.remove(&name) else { continue };
        let (value, before) = (median(values), median(before));
        let ratio = value / before;
        let goal = (name == "inputs").then_some(GOAL * before);
        let ok = goal.map(|goal| value >= goal);
        is_fast |= ok == Some(true);
        if json {
            let beside = json!({ "what": revision, "value": before, "ratio": ratio });
            let bound = goal.map(|_| "at_least");
            let figure = json!({
                "bench": "engine", "figure": name, "value": value, "unit": unit,
                "goal": goal, "bound": bound, "ok": ok, "beside": beside,
            });
            println!("{figure}");
        } else {
            let verdict = ok.map_or(String::new(), |ok| {
                format!(" {} at least {GOAL}", if ok { '✔' } else { '✘' })
            });
            println!(
                "{:32} {value:>14.3} {before:>14.3} {ratio:>7.3}{verdict}",
                format!("{name}, {unit}")
            );
        }
    }
    Ok(is_fast)
}

/// The lab of that commit, built below `target/baseline`.
fn build(workspace: &Workspace, revision: &str) -> Result<PathBuf> {
    let git = |arguments: &[&OsStr]| {
        let mut git = Command::new("git");
        git.current_dir(workspace.root()).args(arguments);
        git
    };
    let name = OsString::from(format!("{revision}^{{commit}}"));
    let find = ["rev-parse", "--verify", "--end-of-options"].map(OsStr::new);
    let found = step("finding the baseline", git(&find).arg(name))
        .context("is the commit here? A shallow clone has the last only: git fetch --unshallow")?;
    let commit = found.stdout.trim();
    let source = workspace.target("baseline").join(commit);
    if !source.exists() {
        let clone = ["clone", "--shared", "--no-checkout", "."].map(OsStr::new);
        step("copying the repository", git(&clone).arg(&source))?;
    }
    let checkout = ["checkout", "--detach", commit].map(OsStr::new);
    step("checking out the baseline", git(&checkout).current_dir(&source))?;
    // By its own xtask, which brings what that commit needs.
    let mut build = cargo("run");
    build.current_dir(&source).env_remove("CARGO_TARGET_DIR");
    build.args(["--quiet", "--package=xtask", "--", "build", "--release"]);
    step("building the baseline: a quarter of an hour the first time", &mut build)?;
    let built = ["release", &format!("{}/release", Arch::host()?.triple)];
    let mut built =
        built.map(|folder| source.join("target").join(folder).join("coroner-lab")).into_iter();
    built
        .find(|lab| lab.is_file())
        .with_context(|| format!("{}: no coroner-lab was built", source.display()))
}

fn measure(workspace: &Workspace, binaries: &Binaries, figures: &mut Figures) -> Result<()> {
    let mut bench = command(workspace, binaries, Subject::Engine)?;
    let ran = step("measuring", bench.args(BRIEF))?;
    for line in ran.stdout.lines() {
        let figure: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let text = |field: &str| figure[field].as_str().map(str::to_owned);
        let (Some(name), Some(unit), Some(value)) =
            (text("figure"), text("unit"), figure["value"].as_f64())
        else {
            bail!("not a figure: {line}");
        };
        figures.entry(name).or_insert_with(|| (Vec::new(), unit)).0.push(value);
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
