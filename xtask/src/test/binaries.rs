//! The workspace's test binaries: compiled once, run by layer. `cargo test` itself would hold the lock of the build
//! folder while clippy runs, and would not run some as root.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Tally;
use crate::{
    build::{self, Profile},
    cli::Layer,
    host::Arch,
    image, root,
    setup::{self, APPARMOR, PROMETHEUS, PROMTOOL, PROMTOOL_OLDEST, STOPPERS},
    steps::{show, tee},
    toolchain::{cargo, cargo_for},
    workspace::Workspace,
};

/// One compiled test binary.
#[derive(Debug)]
pub(crate) struct TestBinary {
    package: String,
    /// The target's name: of an integration test, its file.
    name: String,
    is_integration: bool,
    pub(crate) executable: PathBuf,
    /// The package's folder, where cargo runs its tests.
    folder: PathBuf,
}

/// Compiles the tests that `layers` run, and the binaries that they start.
///
/// # Errors
/// Something does not compile.
pub(super) fn compile(workspace: &Workspace, layers: &[Layer]) -> Result<Vec<TestBinary>> {
    let has = |some: &[Layer]| some.iter().any(|layer| layers.contains(layer));
    // What is shared is built with equal features, whatever is wanted of the workspace.
    let mut command = cargo("test");
    command.arg("--workspace");
    if has(&[Layer::Unit, Layer::Lab, Layer::Deploy]) {
        command.args(["--lib", "--bins", "--tests"]);
    } else if has(&[Layer::Programs, Layer::Vm]) {
        command.args(["--test", "programs"]);
    } else {
        return Ok(Vec::new());
    }
    let tests = executables("building the tests", command)?;
    if has(&[Layer::Lab, Layer::Deploy]) {
        build::binaries_of_run(workspace, Profile::Dev)?;
    }
    Ok(tests)
}

/// Compiles what loads and proves the kernel programs for another architecture, and the agent with it.
///
/// # Errors
/// Something does not compile.
pub(crate) fn programs_for(arch: &Arch) -> Result<TestBinary> {
    let mut command = cargo_for("test", arch);
    command.args(["--package=coroner", "--test=programs"]);
    let tests = executables(&format!("building the tests for {}", arch.debian), command)?;
    tests.into_iter().next().context("cargo built no test")
}

fn executables(title: &str, mut command: Command) -> Result<Vec<TestBinary>> {
    command.args(["--locked", "--no-run", "--message-format=json-render-diagnostics"]);
    let messages = show(title, &mut command)?;
    let artifact = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let manifest = PathBuf::from(message["manifest_path"].as_str()?);
        (message["profile"]["test"] == true).then_some(())?;
        // `path+file:///ws/agent#coroner@0.1.0`, or `…/coroner#0.1.0` if folder and name agree.
        let (url, fragment) = message["package_id"].as_str()?.rsplit_once('#')?;
        let folder_name = url.rsplit('/').next().unwrap_or_default();
        let package = fragment.split_once('@').map_or(folder_name, |(name, _)| name);
        Some(TestBinary {
            package: package.to_owned(),
            name: message["target"]["name"].as_str()?.to_owned(),
            is_integration: message["target"]["kind"][0] == "test",
            executable: message["executable"].as_str()?.into(),
            folder: manifest.parent()?.to_path_buf(),
        })
    };
    Ok(messages.lines().filter_map(artifact).collect())
}

impl TestBinary {
    /// The layer that runs it. Integration tests of the lab start containers or try what is deployed, and `programs`
    /// loads kernel programs: these have layers of their own, as root.
    pub(super) fn layer(&self) -> Layer {
        match (self.package.as_str(), self.name.as_str()) {
            ("coroner", "programs") if self.is_integration => Layer::Programs,
            ("coroner-lab", "deploy") if self.is_integration => Layer::Deploy,
            ("coroner-lab", _) if self.is_integration => Layer::Lab,
            _ => Layer::Unit,
        }
    }

    /// Runs it; `long`: with random seeds, and all that the gate has no time for; `suffix`: what tells this run's
    /// failures from another's.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn run(&self, workspace: &Workspace, long: bool, suffix: &str) -> Result<Tally> {
        let (layer, binaries) = (self.layer(), build::binaries(workspace, Profile::Dev)?);
        let mut command = match layer {
            Layer::Unit => Command::new(&self.executable),
            _ => root::command(workspace, &self.executable),
        };
        if layer != Layer::Unit {
            command.arg("--test-threads=1"); // they share the machine's kernel and cgroups
        }
        if layer == Layer::Programs {
            command.args(["--skip", "guest_"]); // these need a kernel of their own: the layer vm runs them
        }
        // What a person has set for one test is not for all of them.
        for (name, _) in
            env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CORONER_TEST_"))
        {
            command.env_remove(name);
        }
        let name = format!("{}-{}{suffix}", self.package, self.name);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CORONER_LAB_AGENT", binaries.agent);
        command.env("CORONER_LAB_WORKLOAD", binaries.workload);
        command.env("CORONER_LAB_TOOLS", workspace.tools());
        command.env("CORONER_FAILED_DIR", workspace.failed().join(&name));
        if long {
            command.env("CORONER_TEST_LONG", "1");
            command.env("CORONER_STOPPERS", STOPPERS.folder(workspace));
            command.env("CORONER_TEST_SEED", "random").env("CORONER_TEST_CASES", "20");
        }
        if layer == Layer::Deploy {
            command.env("CORONER_IMAGE", image::default_file(workspace));
            command.env("CORONER_PYTHON", setup::python(workspace));
            command.env("CORONER_HELM", setup::helm(workspace));
            for (variable, tool, program) in [
                ("CORONER_PROMTOOL", &PROMTOOL, "promtool"),
                ("CORONER_PROMTOOL_OLDEST", &PROMTOOL_OLDEST, "promtool"),
                ("CORONER_PROMETHEUS", &PROMETHEUS, "prometheus"),
                ("CORONER_APPARMOR_PARSER", &APPARMOR, "apparmor_parser"),
            ] {
                command.env(variable, tool.program(workspace, program));
            }
        }
        let run = tee(&name, command)?;
        if layer != Layer::Unit {
            root::take_back(workspace, &workspace.failed())?;
        }
        Ok(Tally::of_run(workspace, &name, &run, u64::from(self.is_integration)))
    }
}
