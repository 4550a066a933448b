//! What Prometheus itself says of them.

use super::files;
use crate::tools::Tool;
use anyhow::{Context as _, Result, ensure};
use std::{collections::BTreeSet, ffi::OsStr, path::PathBuf, process::Command};

pub(super) fn promtool(arguments: &[&str], files: &[PathBuf]) -> Result<()> {
    let promtool = Tool::Promtool.find()?;
    let output = Command::new(&promtool)
        .args(arguments)
        .args(files)
        .output()
        .with_context(|| format!("cannot run {}", promtool.display()))?;
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    ensure!(output.status.success(), "promtool {}:\n{}", arguments.join(" "), said.concat());
    Ok(())
}

#[test]
fn prometheus_takes_every_rule() -> Result<()> {
    let files = [files::rule_paths()?, files::example_paths()?].concat();
    promtool(&["check", "rules", "--lint=all", "--lint-fatal"], &files)
}

#[test]
fn the_unit_tests_pass() -> Result<()> {
    promtool(&["test", "rules"], &files::test_paths()?)
}

#[test]
fn every_rule_file_is_one_of_a_unit_test() -> Result<()> {
    let tested: BTreeSet<String> =
        files::tests()?.into_iter().flat_map(|file| file.rule_files).collect();
    for (prefix, paths) in [("..", files::rule_paths()?), ("../examples", files::example_paths()?)]
    {
        for path in paths {
            let name = path.file_name().and_then(OsStr::to_str).context("a name in UTF-8")?;
            let wanted = format!("{prefix}/{name}");
            ensure!(tested.contains(&wanted), "no file in tests/ has {wanted} in its rule_files");
        }
    }
    Ok(())
}
