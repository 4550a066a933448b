//! `cargo xtask mutants`: how many small changes of the core its own tests notice (cargo-mutants). It fails nothing.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{setup::cargo_tool, steps::note, workspace::Workspace};

/// The first of these that a file's path below agent/core/src begins with is its group.
const GROUPS: [&str; 5] = ["verdict", "cause.rs", "engine/lifecycle.rs", "leaks", ""];
/// cargo-mutants writes a list of each, a mutant a line.
const OUTCOMES: [&str; 4] = ["caught", "missed", "timeout", "unviable"];

/// Tests every nth mutant in a copy of the workspace, and prints the outcomes by group and what no test noticed.
///
/// # Errors
/// cargo-mutants cannot be started, or the tests fail without a mutant.
pub(crate) fn run(workspace: &Workspace, shard: &str, files: &[String]) -> Result<()> {
    let output = workspace.target("mutants");
    fs::create_dir_all(&output).with_context(|| format!("make {}", output.display()))?;
    let mut mutants = Command::new(cargo_tool(workspace, "cargo-mutants"));
    mutants.current_dir(workspace.root()).env("CARGO_PROFILE_DEV_DEBUG", "0");
    mutants.args(["mutants", "--package=coroner-core", "--sharding=round-robin", "--shard", shard]);
    mutants.args(files.iter().map(|file| format!("--file={file}")));
    // Without examples, which take a fifth of the time; three times as long as without a mutant is an endless loop.
    mutants.args(["--cargo-arg=--tests", "--timeout-multiplier=3", "--output"]).arg(&output);
    note("→ testing the mutants");
    let code = mutants.status().context("cannot start cargo-mutants")?.code();
    // 2 and 3: not all were caught.
    ensure!(matches!(code, Some(0 | 2 | 3)), "cargo-mutants fails, or the tests without a mutant");
    print(&output.join("mutants.out"))
}

fn print(results: &Path) -> Result<()> {
    let read = |outcome| fs::read_to_string(results.join(format!("{outcome}.txt")));
    let [caught, missed, timeout, unviable] = OUTCOMES.map(read);
    let lists = [caught?, missed?, timeout?, unviable?];
    let group = |line: &str| {
        let file = line.trim_start_matches("agent/core/src/");
        GROUPS.into_iter().find(|start| file.starts_with(start)).unwrap_or_default()
    };
    let row = |name: &str, [caught, missed, timeout, unviable]: [usize; 4]| {
        let share = 100.0 * (caught + timeout) as f64 / (caught + missed + timeout).max(1) as f64;
        println!("{name:<20}{caught:>9}{missed:>9}{timeout:>9}{unviable:>9}{share:>9.1} %");
    };
    let [caught, missed, timeout, unviable] = OUTCOMES;
    println!("{:<20}{caught:>9}{missed:>9}{timeout:>9}{unviable:>9}{:>11}", "", "noticed");
    for name in GROUPS {
        let count = |list: &String| list.lines().filter(|line| group(line) == name).count();
        row(if name.is_empty() { "rest" } else { name }, lists.each_ref().map(count));
    }
    row("all", lists.each_ref().map(|list| list.lines().count()));
    print!("missed:\n{}", lists[1]);
    Ok(())
}
