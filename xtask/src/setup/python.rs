//! Python packages, of the versions that a requirements file pins, in an environment of the project's own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    host,
    progress::{note, step},
    toolchain::output,
    workspace::Workspace,
};

/// Prints a line `NAME==VERSION` for each package that is there.
const LIST: &str = "\
from importlib.metadata import distributions as d
for one in d(): print(one.name + '==' + one.version)";
/// The schemas' package takes this one for its types.
const OLDEST: &str = "import sys; assert sys.version_info >= (3, 11)";

/// What [`python`] runs with: where it is pinned.
fn requirements(workspace: &Workspace) -> PathBuf {
    workspace.root().join("dashboards/requirements.txt")
}

fn environment(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("python")
}

/// The environment's python.
pub(crate) fn python(workspace: &Workspace) -> PathBuf {
    environment(workspace).join("bin/python")
}

/// Whether it has all that is pinned.
pub(super) fn present(workspace: &Workspace) -> bool {
    let installed = output(Command::new(python(workspace)).args(["-c", LIST]));
    match (installed, fs::read_to_string(requirements(workspace))) {
        (Some(installed), Ok(pinned)) => has_all(&installed, &pinned),
        _ => false,
    }
}

/// Whether every line of a requirements file is among what is installed.
fn has_all(installed: &str, pinned: &str) -> bool {
    // A name is written with either.
    let plain = |line: &str| line.trim().to_lowercase().replace('_', "-");
    let installed: Vec<String> = installed.lines().map(plain).collect();
    pinned
        .lines()
        .map(plain)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .all(|line| installed.contains(&line))
}

/// Makes the environment, and installs into it what is pinned.
///
/// # Errors
/// When there is no python 3.11 with venv or pip, or the package index cannot be reached.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let Some(machine) = host::find_program("python3") else {
        bail!("there is no python3: please install the packages python3 and python3-venv");
    };
    if output(Command::new(&machine).args(["-c", OLDEST])).is_none() {
        bail!("{} is older than 3.11: please put a later one on PATH", machine.display());
    }
    let folder = environment(workspace);
    if folder.exists() {
        // Of another version of what is pinned, or of a python that is gone.
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let own_pip = make(&machine, &folder)?;
    let mut pip = if own_pip {
        let mut pip = Command::new(python(workspace));
        pip.args(["-m", "pip"]);
        pip
    } else {
        let mut pip = Command::new(&machine);
        pip.args(["-m", "pip", "--python"]).arg(python(workspace));
        pip
    };
    pip.args(["install", "--disable-pip-version-check", "--no-input", "--only-binary=:all:"])
        .arg("--requirement")
        .arg(requirements(workspace));
    step("installing Python packages", &mut pip).map(|_| ())
}

/// Makes an environment. True: it has a pip of its own. Debian keeps what would give it one in a
/// package apart (python3-venv); without it the machine's pip will do.
fn make(machine: &Path, folder: &Path) -> Result<bool> {
    let venv = |bare: bool| {
        let mut command = Command::new(machine);
        command.args(["-m", "venv"]).args(bare.then_some("--without-pip")).arg(folder);
        step("making a Python environment", &mut command)
    };
    let asks = |module| output(Command::new(machine).args(["-c", module])).is_some();
    if asks("import ensurepip") {
        venv(false)?;
        return Ok(true);
    }
    if !asks("import pip") {
        note("python3 has neither ensurepip nor pip");
        bail!("please install the package python3-venv, or python3-pip");
    }
    venv(true)?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pinned_version_will_do() {
        let pinned = "# Grafana's schemas.\ngrafana-foundation-sdk==1!11.6.0\n\n";
        assert!(has_all("pip==23.2\ngrafana_foundation_sdk==1!11.6.0\n", pinned));
        assert!(!has_all("grafana_foundation_sdk==1!11.5.0\n", pinned));
        assert!(!has_all("pip==23.2\n", pinned) && !has_all("", pinned));
    }
}
