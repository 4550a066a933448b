//! `cargo xtask chart`: the Helm chart as a release has it. `helm package` writes the files' times into its archive; here
//! the only time is that of the image, so that an equal commit gives an equal archive.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{image::SourceState, setup, steps::step, workspace::Workspace};

/// Makes `target/chart/coroner-VERSION.tgz`.
///
/// # Errors
/// When helm refuses the chart, or the archive cannot be written.
pub(crate) fn make(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target("chart");
    // Of another version.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut helm = Command::new(setup::helm(workspace));
    helm.arg("package").arg(workspace.root().join("deploy/chart"));
    helm.arg("--destination").arg(&folder);
    // Nothing of a person's own settings, and nothing into the home folder.
    for variable in ["HOME", "HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
        helm.env(variable, &folder);
    }
    step("packaging the chart", &mut helm)?;
    let made = fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut archives = made.filter(|file| file.extension().is_some_and(|end| end == "tgz"));
    let file = archives.next().context("helm made no archive")?;
    let time = SourceState::of(workspace)?.time;
    let archive = coroner_image::repack(&fs::read(&file)?, time)?;
    fs::write(&file, archive).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}
