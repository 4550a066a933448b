//! Grafana's schemas: packages of PyPI with the checksums of `dashboards/requirements.txt`, read by the
//! project's own python.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::debian::PYTHON;
use crate::{progress::step, workspace::Workspace};

/// How a person without apt makes what is used here.
pub(super) const ADVICE: &str = "python3 -m venv target/tools/grafana && target/tools/grafana/bin/pip \
     install --requirement dashboards/requirements.txt && ln -s python3 target/tools/grafana/bin/python";

fn requirements(workspace: &Workspace) -> PathBuf {
    workspace.root().join("dashboards/requirements.txt")
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("grafana")
}

/// The python that has the schemas.
pub(crate) fn python(workspace: &Workspace) -> PathBuf {
    folder(workspace).join("bin/python")
}

/// What was installed: a copy of the requirements.
fn record(workspace: &Workspace) -> PathBuf {
    folder(workspace).join("requirements.txt")
}

/// Whether it has all that is required, or a person has made it.
pub(super) fn present(workspace: &Workspace) -> bool {
    let callable = PYTHON.installed(workspace).is_some()
        && fs::read_to_string(python(workspace)).is_ok_and(|text| text == script(workspace));
    let by_xtask = callable && is_unpacked(workspace);
    by_xtask || workspace.system_tools() && python(workspace).is_file()
}

/// What calls the interpreter with the packages that are installed.
fn script(workspace: &Workspace) -> String {
    format!(
        "#!/bin/sh\nPYTHONPATH='{}' exec '{}' \"$@\"\n",
        folder(workspace).join("lib").display(),
        PYTHON.program(workspace, "python3").display()
    )
}

fn is_unpacked(workspace: &Workspace) -> bool {
    match (fs::read(record(workspace)), fs::read(requirements(workspace))) {
        (Ok(installed), Ok(required)) => installed == required,
        _ => false,
    }
}

/// Installs what is required, with the pip of Debian's package.
///
/// # Errors
/// When the package index cannot be reached, or has something else than the checksums say.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    if PYTHON.installed(workspace).is_none() {
        PYTHON.install(workspace)?;
    }
    let folder = folder(workspace);
    if is_unpacked(workspace) {
        return call(workspace); // it was moved or copied here
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let interpreter = PYTHON.program(workspace, "python3");
    let library = folder.join("lib");
    let wheels = PYTHON.folder(workspace).join("usr/share/python-wheels");
    let mut pip = Command::new(&interpreter);
    pip.env("PYTHONPATH", wheel(&wheels)?)
        .args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"])
        .args(["--no-cache-dir", "--only-binary=:all:", "--require-hashes", "--target"])
        .arg(&library)
        .arg("--requirement")
        .arg(requirements(workspace));
    step("installing Python packages", &mut pip)?;
    call(workspace)?;
    fs::copy(requirements(workspace), record(workspace))
        .context("cannot record what is installed")?;
    Ok(())
}

fn call(workspace: &Workspace) -> Result<()> {
    let python = python(workspace);
    fs::create_dir_all(folder(workspace).join("bin"))
        .and_then(|()| fs::write(&python, script(workspace)))
        .and_then(|()| fs::set_permissions(&python, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", python.display()))
}

/// pip itself, as a package that python can run from.
fn wheel(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pip-"))
        })
        .with_context(|| format!("{} holds no pip", folder.display()))
}
