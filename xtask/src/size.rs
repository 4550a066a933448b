//! `cargo xtask size`: how large the repository is, beside the goals. It fails nothing.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};

use crate::{steps::output, workspace::Workspace};

/// The rows: a name, the folders that it counts, those below that another row counts, and the goal in lines.
const ROWS: [(&str, &[&str], &[&str], usize); 7] = [
    ("agent/src and the report", &["agent/"], &["agent/core/", "agent/tests/"], 24_000),
    ("agent/core/src", &["agent/core/"], &["agent/core/tests/", "agent/core/testkit/"], 10_000),
    ("agent/core/tests", &["agent/core/tests/", "agent/core/testkit/"], &[], 7_000),
    ("agent/tests", &["agent/tests/"], &[], 8_000),
    ("ebpf", &["ebpf/"], &[], 2_700),
    ("lab", &["lab/"], &[], 16_000),
    ("xtask, image, fuzz, cri-api", &["xtask/", "image/", "fuzz/", "cri-api/"], &[], 7_500),
];
const SUM_GOAL: usize = 75_500;
const MARKDOWN_GOAL: usize = 4_500;

/// Prints the table.
///
/// # Errors
/// git or a file cannot be read.
pub(crate) fn print(workspace: &Workspace) -> Result<()> {
    let rust = lines(workspace, "*.rs")?;
    let of = |within: &[&str], but: &[&str]| {
        let is_below =
            |file: &str, folders: &[&str]| folders.iter().any(|one| file.starts_with(one));
        let counted =
            rust.iter().filter(|(file, _)| is_below(file, within) && !is_below(file, but));
        counted.map(|(_, lines)| lines).sum::<usize>()
    };
    let row = |name: &str, lines: usize, goal: usize| println!("{name:<28}{lines:>8}{goal:>8}");
    println!("{:<28}{:>8}{:>8}", "Rust, lines", "now", "goal");
    for (name, within, but, goal) in ROWS {
        row(name, of(within, but), goal);
    }
    row("sum", rust.iter().map(|(_, lines)| lines).sum(), SUM_GOAL);
    row("Markdown", lines(workspace, "*.md")?.iter().map(|(_, lines)| lines).sum(), MARKDOWN_GOAL);
    Ok(())
}

/// The files of git that have such a name, and their lines: blank ones and comments are lines, too.
fn lines(workspace: &Workspace, pattern: &str) -> Result<Vec<(String, usize)>> {
    let mut git = Command::new("git");
    git.current_dir(workspace.root()).args(["ls-files", pattern]);
    let files = output(&mut git).context("git ls-files fails: is this a repository?")?;
    let count = |file: &str| {
        let text = fs::read(workspace.root().join(file)).unwrap_or_default();
        Ok((file.to_owned(), text.iter().filter(|byte| **byte == b'\n').count()))
    };
    files.lines().map(count).collect()
}
