//! The JSON is what `dashboards/*.py` makes of it.
//!
//! They construct it of the grafana-foundation-sdk's types, which are generated from Grafana's own
//! schemas: a field or a value that Grafana does not know does not get into it.

use super::model::{NAMES, folder};
use anyhow::{Context as _, ensure};
use std::{env, fs, path::PathBuf, process::Command};

/// A python with grafana-foundation-sdk: `cargo xtask setup` brings it.
fn python() -> anyhow::Result<PathBuf> {
    let ours = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/tools/grafana/bin/python");
    let python = env::var_os("CORONER_PYTHON").map_or(ours, PathBuf::from);
    ensure!(
        python.is_file(),
        "{} does not exist: `cargo xtask setup` brings it, or name a python that has what \
         dashboards/requirements.txt lists in CORONER_PYTHON",
        python.display()
    );
    Ok(python)
}

#[test]
fn the_json_is_what_the_code_makes() -> anyhow::Result<()> {
    for name in NAMES {
        // -B: no compiled copies in the sources' folder.
        let output = Command::new(python()?)
            .arg("-B")
            .arg(folder().join("generate.py"))
            .arg(name)
            .output()?;
        ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let path = folder().join(format!("{name}.json"));
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &output.stdout).with_context(|| path.display().to_string())?;
        }
        ensure!(
            fs::read(&path).with_context(|| path.display().to_string())? == output.stdout,
            "{} is stale: `cargo xtask docs` writes it",
            path.display()
        );
    }
    Ok(())
}
