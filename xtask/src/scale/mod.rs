//! `cargo xtask scale`: what a fleet of agents asks of what they share, computed from what one was
//! measured to ask (`docs/scale.json`), as `docs/scale.md`.

mod arrival;
mod figures;
mod page;

use std::fs;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use self::figures::Figures;
use crate::{
    bench,
    build::{self, Profile},
    cli::Subject,
    progress::{note, step},
    setup,
    workspace::Workspace,
};

const FIGURES: &str = "docs/scale.json";
const PAGE: &str = "docs/scale.md";
/// What the benchmark of one node is asked for.
const ARGUMENTS: [&str; 5] = ["--json", "--no-fail", "--pods", "110", "--seconds=60"];

/// Writes the page; before that, if `measure`, measures one node anew.
///
/// # Errors
/// When something is missing, does not build, cannot be measured, read or written.
pub(crate) fn run(workspace: &Workspace, measure: bool, list_only: bool) -> Result<()> {
    if measure {
        self::measure(workspace, list_only)?;
    }
    let page = workspace.root().join(PAGE);
    fs::write(&page, text(workspace)?).with_context(|| format!("write {}", page.display()))?;
    note(&format!("  {}", page.display()));
    Ok(())
}

fn text(workspace: &Workspace) -> Result<String> {
    Ok(page::page(&Figures::of(&read(workspace)?)?))
}

fn read(workspace: &Workspace) -> Result<Value> {
    let path = workspace.root().join(FIGURES);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// Replaces the measured figures by those of a run of the benchmark `node`.
fn measure(workspace: &Workspace, list_only: bool) -> Result<()> {
    let subject = Subject::Node;
    let needs = [setup::BUILD, setup::LAB, subject.needs()].concat();
    setup::ensure(workspace, &needs, list_only)?;
    let binaries = build::all(workspace, Profile::Release)?;
    let mut lab = bench::command(workspace, &binaries, subject)?;
    let output = step("measuring one node", lab.args(ARGUMENTS))?;
    let mut file = read(workspace)?;
    file["measured"] = measured(&output.stdout)?;
    let path = workspace.root().join(FIGURES);
    let text = serde_json::to_string_pretty(&file)? + "\n";
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// The figures of a run that are computed with, by name: what another machine would give as well.
fn measured(lines: &str) -> Result<Value> {
    let mut figures = json!({});
    for line in lines.lines().filter(|line| line.starts_with('{')) {
        let figure: Value = serde_json::from_str(line).context("a figure of the benchmark")?;
        let name = figure["figure"].as_str().context("a figure without a name")?;
        if !figures::USED.contains(&name) {
            continue;
        }
        figures[name] = json!({ "value": figure["value"], "unit": figure["unit"] });
    }
    match figures.as_object() {
        Some(all) if !all.is_empty() => Ok(figures),
        _ => bail!("the benchmark wrote no figures"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_scale_md_is_what_the_figures_say() {
        let workspace = Workspace::here();
        let text = text(&workspace).expect("the figures");
        let page = workspace.root().join(PAGE);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&page, &text).expect("the page can be written");
        }
        let written = fs::read_to_string(&page).unwrap_or_default();
        assert!(text == written, "docs/scale.md is stale: `cargo xtask scale` writes it anew");
    }

    #[test]
    fn figures_are_taken_from_the_benchmarks_lines() {
        let lines = "\
{\"bench\":\"node\",\"figure\":\"scrape.series\",\"value\":331.0,\"unit\":\"\",\"goal\":500.0}
{\"bench\":\"node\",\"figure\":\"rss.peak\",\"value\":20.0,\"unit\":\"MiB\"}
{\"bench\":\"node\",\"figure\":\"scrape.size\",\"value\":40.5,\"unit\":\"KiB\",\"goal\":null}\n";
        let figures = measured(lines).expect("figures");
        assert_eq!(figures["scrape.series"]["value"], 331.0);
        assert_eq!(figures["scrape.size"]["unit"], "KiB");
        assert_eq!(figures["rss.peak"], Value::Null, "nothing is computed with it");
        assert!(measured("").is_err() && measured("{\"value\":1}").is_err());
    }
}
