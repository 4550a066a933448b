//! The programs that try what is deployed: `cargo xtask setup` brings them, `cargo xtask test deploy` names them.

use anyhow::{Result, ensure};
use std::{
    env,
    path::{Path, PathBuf},
};

pub(crate) const APPARMOR_PARSER: Tool = Tool("CORONER_APPARMOR_PARSER", "bin/apparmor_parser");
pub(crate) const HELM: Tool = Tool("CORONER_HELM", "pypi/bin/helm");
pub(crate) const PROMETHEUS: Tool = Tool("CORONER_PROMETHEUS", "bin/prometheus");
pub(crate) const PROMTOOL: Tool = Tool("CORONER_PROMTOOL", "bin/promtool");
/// Of the oldest Prometheus that docs/alerts.md names.
pub(crate) const PROMTOOL_OLDEST: Tool =
    Tool("CORONER_PROMTOOL_OLDEST", "promtool-2.42/bin/promtool");
/// With the packages of dashboards/requirements.txt.
pub(crate) const PYTHON: Tool = Tool("CORONER_PYTHON", "pypi/bin/python3");

/// A program: the variable that names it, and otherwise its place below `target/tools`. The machine's own is not used: it may
/// have any version.
#[derive(Clone, Copy)]
pub(crate) struct Tool(&'static str, &'static str);

impl Tool {
    pub(crate) fn find(self) -> Result<PathBuf> {
        let Self(variable, place) = self;
        let own = workspace().join("target/tools").join(place);
        let named = env::var_os(variable).filter(|path| !path.is_empty());
        let path = named.map_or(own, PathBuf::from);
        ensure!(
            path.is_file(),
            "{} does not exist: run `cargo xtask setup`, or name the program in {variable}",
            path.display()
        );
        Ok(path)
    }
}

/// The image's archive, beside which `cargo xtask image` puts its programs.
pub(crate) fn image() -> PathBuf {
    let made = workspace().join("target/image/coroner.tar");
    env::var_os("CORONER_IMAGE").map_or(made, PathBuf::from)
}

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Holds a generated file to its text, or writes it for `cargo xtask docs`.
pub(crate) fn hold(file: &str, text: &str) -> Result<()> {
    let path = workspace().join(file);
    if env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text)?;
    }
    ensure!(
        std::fs::read_to_string(&path).is_ok_and(|present| present == text),
        "{file} is not current: run `cargo xtask docs`"
    );
    Ok(())
}
