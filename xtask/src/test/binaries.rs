//! The workspace's test binaries: compiled once, run by layer.

use std::{env, path::PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Tally, absent};
use crate::{
    build::{self, Profile},
    cli::Layer,
    host::Arch,
    image,
    progress::{capture, step},
    root,
    setup::{self, FoundTool, Need},
    toolchain::{cargo, cargo_for},
    workspace::Workspace,
};

/// One compiled test binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestBinary {
    /// Its package.
    pub(crate) package: String,
    /// The target's name: of an integration test, its file.
    pub(crate) name: String,
    /// Whether it is an integration test.
    pub(crate) integration: bool,
    /// The file to run.
    pub(crate) executable: PathBuf,
    /// The package's folder, where cargo runs its tests.
    pub(crate) folder: PathBuf,
}

/// Compiles the tests that `layers` run, and the binaries that integration tests start.
///
/// # Errors
/// When something does not compile.
pub(crate) fn compile(workspace: &Workspace, layers: &[Layer]) -> Result<Vec<TestBinary>> {
    let has = |some: &[Layer]| some.iter().any(|layer| layers.contains(layer));
    if !has(&[Layer::Unit, Layer::Programs, Layer::Lab, Layer::Deploy, Layer::Vm, Layer::Soak]) {
        return Ok(Vec::new());
    }
    // Anyone who works on the kernel programs need not wait for the lab.
    let narrow = !has(&[Layer::Unit, Layer::Lab, Layer::Deploy, Layer::Soak]);
    let scope: &[&str] =
        if narrow { &["--package=coroner", "--test=programs"] } else { &["--workspace"] };
    let output = step(
        "building the tests",
        cargo("test")
            .current_dir(workspace.root())
            .env("PATH", workspace.path())
            .args(["--locked", "--no-run"])
            .args(scope)
            .arg("--message-format=json-render-diagnostics"),
    )?;
    if !narrow {
        // What the lab's tests run: no test of its own makes cargo build the workload.
        build::binaries_of_run(workspace, Profile::Dev)?;
    }
    Ok(output.stdout.lines().filter_map(parse).collect())
}

/// Compiles what loads and proves the kernel programs for another architecture, and the agent with it.
///
/// # Errors
/// When it does not compile.
pub(crate) fn compile_programs(workspace: &Workspace, arch: &Arch) -> Result<Vec<TestBinary>> {
    let mut command = cargo_for(workspace, "test", arch);
    command.args(["--locked", "--no-run", "--package=coroner", "--test=programs"]);
    command.arg("--message-format=json-render-diagnostics");
    let output = step(&format!("building the tests for {}", arch.debian), &mut command)?;
    Ok(output.stdout.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<TestBinary> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    Some(TestBinary {
        package: package_name(message["package_id"].as_str()?)?,
        name: message["target"]["name"].as_str()?.to_owned(),
        integration: message["target"]["kind"].as_array()?.iter().any(|kind| kind == "test"),
        executable: message["executable"].as_str()?.into(),
        folder,
    })
}

/// The name in a package id: `path+file:///ws/agent#coroner@0.1.0`, or `…/coroner#0.1.0` where folder and name agree.
fn package_name(id: &str) -> Option<String> {
    let (url, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name.to_owned()),
        None => url.rsplit('/').next().map(str::to_owned),
    }
}

impl TestBinary {
    /// The layer that runs it. Integration tests of the lab start containers or try what is deployed, and
    /// `programs` loads kernel programs: these have layers of their own, as root.
    pub(crate) fn layer(&self) -> Layer {
        match (self.package.as_str(), self.name.as_str()) {
            ("coroner", "programs") if self.integration => Layer::Programs,
            ("coroner-lab", "deploy") if self.integration => Layer::Deploy,
            ("coroner-lab", _) if self.integration => Layer::Lab,
            _ => Layer::Unit,
        }
    }

    /// Runs it; `long`: with random seeds, and all that the gate has no time for; `suffix`:
    /// what tells this run's failures from another's.
    ///
    /// # Errors
    /// When it cannot be run at all.
    pub(crate) fn run(&self, workspace: &Workspace, long: bool, suffix: &str) -> Result<BinaryRun> {
        let privileged = self.layer() != Layer::Unit;
        let binaries = build::binaries(workspace, Profile::Dev)?;
        let mut command = if privileged {
            let mut command = root::command(workspace, &self.executable)?;
            // They share the machine's kernel and cgroups.
            command.arg("--test-threads=1");
            command
        } else {
            std::process::Command::new(&self.executable)
        };
        let absent = self.absent();
        command.args(absent::arguments(&absent));
        // What a person has set for one test is not for all of them.
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("CORONER_TEST_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CORONER_LAB_AGENT", binaries.agent)
            .env("CORONER_LAB_WORKLOAD", binaries.workload)
            .envs(workspace.for_lab())
            .env("CORONER_FAILED_DIR", workspace.failed().join(format!("{}{suffix}", self.name)));
        if long {
            command
                .env("CORONER_TEST_LONG", "1")
                .env("CORONER_TEST_SEED", "random")
                .env("CORONER_TEST_CASES", "20");
        }
        if self.layer() == Layer::Deploy {
            command.env("CORONER_IMAGE", image::default_file(workspace));
            for (variable, tool) in [
                ("CORONER_PROMTOOL", Need::Debian(&setup::PROMTOOL)),
                ("CORONER_PROMETHEUS", Need::Debian(&setup::PROMETHEUS)),
                ("CORONER_PROMTOOL_OLDEST", Need::Debian(&setup::PROMTOOL_OLDEST)),
                ("CORONER_APPARMOR_PARSER", Need::Debian(&setup::APPARMOR)),
            ] {
                // Where its tool is missing, a test says what to do.
                if let Some(FoundTool::Own(program) | FoundTool::System(program)) =
                    tool.find(workspace)
                {
                    command.env(variable, program);
                }
            }
            command.env("CORONER_PYTHON", setup::python(workspace));
            command.env("CORONER_HELM", setup::helm(workspace));
        }
        let title = format!("{}: {}", self.package, self.name);
        let output = capture(&title, &mut command)
            .with_context(|| format!("cannot run {}", self.executable.display()))?;
        if privileged {
            root::take_back(workspace, &workspace.failed())?;
        }
        Ok(BinaryRun::of(output.success, output.text, self.expected(&absent)))
    }

    /// Its tests that cannot run on this machine.
    pub(crate) fn absent(&self) -> Vec<absent::Absent> {
        absent::of(&self.name, absent::machine_has)
    }

    /// What a run of it must count where these tests are left out.
    pub(crate) fn expected(&self, absent: &[absent::Absent]) -> ExpectedTests {
        ExpectedTests { some: self.integration, filtered: Some(absent.len() as u64) }
    }
}

/// What running a binary came to.
#[derive(Debug)]
pub(crate) struct BinaryRun {
    /// What it counted.
    pub(crate) tally: Tally,
    /// All it said.
    pub(crate) text: String,
}

/// What a run must count, so that none proves nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedTests {
    /// A test passes at least: a library or a program may have none of its own.
    pub(crate) some: bool,
    /// Tests that the arguments leave out; `None`: all but those that they name.
    pub(crate) filtered: Option<u64>,
}

impl ExpectedTests {
    /// Nothing is left out, and there may be no test.
    pub(crate) const WHOLE: Self = Self { some: false, filtered: Some(0) };
}

impl BinaryRun {
    /// A run that ended badly without naming a failed test has failed all the same; and one that ended well
    /// without having run what it should.
    pub(crate) fn of(success: bool, text: String, expected: ExpectedTests) -> Self {
        let counted = Tally::of(&text);
        let mut tally = counted.unwrap_or_default();
        let why = match counted {
            _ if !success || tally.failed > 0 => None,
            None => Some("it printed no test result".to_owned()),
            Some(_) if expected.some && tally.passed == 0 => Some("no test passed".to_owned()),
            Some(_) => match expected.filtered.filter(|filtered| tally.filtered != *filtered) {
                Some(filtered) => Some(format!(
                    "{} tests were left out, and not {filtered}: xtask/src/test/absent.rs names them",
                    tally.filtered
                )),
                None => return Self { tally, text },
            },
        };
        tally.failed = tally.failed.max(1);
        let text = why.into_iter().fold(text, |text, why| format!("{text}\n{why}"));
        Self { tally, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, name: &str, kind: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///ws/x#{package}@0.1.0",
            "manifest_path":"/ws/x/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},
            "profile":{{"test":true}},"executable":"/ws/target/debug/deps/{name}-1"}}"#
        )
    }

    #[test]
    fn artifacts_become_binaries_with_their_layers() {
        let layer = |package, name, kind| {
            parse(&artifact(package, name, kind)).map(|binary| binary.layer())
        };
        assert_eq!(layer("coroner", "coroner", "lib"), Some(Layer::Unit));
        assert_eq!(layer("coroner", "replay", "test"), Some(Layer::Unit));
        assert_eq!(layer("coroner", "programs", "test"), Some(Layer::Programs));
        assert_eq!(layer("coroner-lab", "catalogue", "test"), Some(Layer::Lab));
        assert_eq!(layer("coroner-lab", "deploy", "test"), Some(Layer::Deploy));
        assert_eq!(layer("coroner-lab-chaos", "coroner_lab_chaos", "lib"), Some(Layer::Unit));
    }

    #[test]
    fn other_messages_are_not_binaries() {
        assert_eq!(parse(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(parse("warning: text"), None);
    }

    #[test]
    fn a_package_id_names_its_package_either_way() {
        assert_eq!(package_name("path+file:///w/agent#coroner@0.1.0").as_deref(), Some("coroner"));
        assert_eq!(package_name("path+file:///w/xtask#0.1.0").as_deref(), Some("xtask"));
    }

    #[test]
    fn a_binary_that_dies_counts_as_a_failure() {
        let failed =
            |text: &str| BinaryRun::of(false, text.into(), ExpectedTests::WHOLE).tally.failed;
        assert_eq!(failed("killed"), 1);
        assert_eq!(failed("test result: FAILED. 1 passed; 2 failed;"), 2);
    }

    #[test]
    fn a_binary_that_ends_well_without_having_run_its_tests_has_failed() {
        let run = |text: &str, some, filtered| {
            let run =
                BinaryRun::of(true, text.into(), ExpectedTests { some, filtered: Some(filtered) });
            (run.tally.failed, run.text.lines().last().unwrap_or_default().to_owned())
        };
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out;";
        let some = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out;";
        assert_eq!(run("", false, 0), (1, "it printed no test result".into()));
        assert_eq!(run(none, false, 0).0, 0);
        assert_eq!(run(none, true, 0), (1, "no test passed".into()));
        assert_eq!(run(some, true, 1).0, 0);
        assert_eq!(run(some, true, 0).0, 1);
    }
}
