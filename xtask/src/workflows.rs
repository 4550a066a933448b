//! Tests of `.github`: no other test runs the workflows. These compare their commands, versions and paths with
//! the code, and check the rules that keep a pull request from a fork harmless.

use std::{collections::BTreeMap, fs};

use clap::Parser as _;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    cli::Cli,
    host::{AARCH64, X86_64},
    image::{self, program_file},
    toolchain::BPF_TARGET,
    workspace::Workspace,
};

/// The fields of a workflow that the tests read.
#[derive(Debug, Deserialize)]
struct Workflow {
    on: Value,
    permissions: BTreeMap<String, String>,
    concurrency: Value,
    jobs: BTreeMap<String, WorkflowJob>,
}

/// A job with its own steps, or a call of another workflow.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct WorkflowJob {
    permissions: BTreeMap<String, String>,
    timeout_minutes: Option<u32>,
    uses: Option<String>,
    #[serde(default)]
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
struct Step {
    run: Option<String>,
    uses: Option<String>,
    #[serde(default)]
    with: BTreeMap<String, Value>,
}

impl Workflow {
    /// The scripts of all its steps.
    fn scripts(&self) -> impl Iterator<Item = &str> {
        self.jobs.values().flat_map(|job| &job.steps).filter_map(|step| step.run.as_deref())
    }
}

/// The text of a file of this repository.
fn text(file: &str) -> String {
    let path = Workspace::here().root().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text and the content of every workflow, by file name.
fn workflows() -> BTreeMap<String, (String, Workflow)> {
    let folder = Workspace::here().root().join(".github/workflows");
    let files = fs::read_dir(&folder).expect("is there").map(|file| file.expect("is read"));
    let names = files.map(|file| file.file_name().into_string().expect("is UTF-8"));
    let read = |name: String| {
        let text = text(&format!(".github/workflows/{name}"));
        let parsed =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, (text, parsed))
    };
    names.map(read).collect()
}

/// The `cargo xtask` commands of a script, each as its words.
fn commands(script: &str) -> impl Iterator<Item = Vec<&str>> {
    const SHELL: [char; 6] = ['\n', '|', '>', '&', ';', ')'];
    script.split("cargo xtask ").skip(1).map(|rest| {
        let command = rest.split(SHELL).next().unwrap_or_default();
        ["cargo xtask"].into_iter().chain(command.split_whitespace()).collect()
    })
}

#[test]
fn commands_parse_as_xtask_commands() {
    let mut seen = 0;
    for (name, (_, workflow)) in workflows() {
        for words in workflow.scripts().flat_map(commands) {
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{name}: `{}`: {error}", words.join(" "));
            }
            seen += 1;
        }
    }
    assert!(
        seen >= 2,
        "found only {seen} commands: the nightly tests and the release have one each"
    );
}

#[test]
fn pull_requests_and_releases_pass_the_gate() {
    let workflows = workflows();
    let (_, ci) = &workflows["ci.yml"];
    assert_eq!(ci.scripts().filter(|script| script.trim() == ".ci/run").count(), 1);
    for event in ["push", "pull_request", "workflow_call"] {
        assert!(ci.on.get(event).is_some(), "{event}");
    }
    let gate = &workflows["release.yml"].1.jobs["gate"];
    assert_eq!(gate.uses.as_deref(), Some("./.github/workflows/ci.yml"));
}

#[test]
fn workflows_use_the_rust_version_of_the_workspace() {
    let manifest = text("Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let version = version.expect("is there").trim_matches('"');
    for (name, (_, workflow)) in workflows() {
        let scripts: String = workflow.scripts().collect();
        if scripts.contains("cargo") || scripts.contains(".ci/run") {
            for command in ["rustup toolchain install ", "rustup default "] {
                let rests = scripts.split(command).skip(1);
                let versions: Vec<_> = rests.map(|rest| rest.split_whitespace().next()).collect();
                assert_eq!(versions, [Some(version)], "{name}: {command}");
            }
        }
    }
}

#[test]
fn every_action_is_pinned_by_its_commit() {
    for (name, (text, _)) in workflows() {
        for line in text.lines() {
            let line = line.trim_start().trim_start_matches("- ");
            let Some(used) = line.strip_prefix("uses: ") else { continue };
            if used.starts_with("./") {
                continue; // the same commit as the workflow itself
            }
            let (action, version) = used.split_once(" # v").unwrap_or((used, ""));
            let commit = action.split_once('@').map_or("", |(_, commit)| commit);
            let pinned = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(pinned, "{name}: {line}: pin the action to a full commit SHA");
            assert!(!version.is_empty(), "{name}: {line}: add the version as a comment");
        }
    }
}

#[test]
fn pull_requests_get_no_secret_and_no_shell() {
    for (name, (text, workflow)) in workflows() {
        assert!(!text.contains("pull_request_target") && !text.contains("secrets."), "{name}");
        assert!(workflow.permissions.is_empty(), "{name}: set permissions per job");
        let writes = workflow.jobs.values().flat_map(|job| job.permissions.values());
        let writes = writes.filter(|access| *access != "read").count();
        assert!(
            writes == 0 || name == "release.yml",
            "{name}: only release.yml may have write permissions"
        );
        for script in workflow.scripts() {
            assert!(!script.contains("${{"), "{name}: pass the value through `env`: {script}");
        }
        for step in workflow.jobs.values().flat_map(|job| &job.steps) {
            if step.uses.as_deref().is_some_and(|used| used.starts_with("actions/checkout@")) {
                let kept = step.with.get("persist-credentials");
                assert_eq!(
                    kept,
                    Some(&Value::Bool(false)),
                    "{name}: no later step needs the token"
                );
            }
        }
    }
}

#[test]
fn jobs_have_timeouts_and_concurrency_groups() {
    for (name, (_, workflow)) in workflows() {
        assert!(!workflow.concurrency["group"].is_null(), "{name}");
        for (id, job) in &workflow.jobs {
            let limited = job.timeout_minutes.is_some_and(|minutes| minutes < 360);
            assert!(
                limited || job.uses.is_some(),
                "{name}: job {id} has no timeout below 360 minutes"
            );
        }
    }
}

#[test]
fn a_release_publishes_what_xtask_makes() {
    let workspace = Workspace::here();
    let (release, _) = &workflows()["release.yml"];
    let arches = [&X86_64, &AARCH64];
    let programs = arches.map(|arch| program_file(&workspace, arch));
    for file in programs.into_iter().chain([image::default_file(&workspace)]) {
        let file = file.strip_prefix(workspace.root()).expect("is in the checkout");
        assert!(release.contains(&format!("cp {} release/", file.display())), "{}", file.display());
    }
    for triple in arches.map(|arch| arch.triple) {
        assert!(release.contains(triple), "the SBOM of {triple}");
    }
    assert!(release.contains(&format!(" ebpf {BPF_TARGET}\n")), "the SBOM of the kernel programs");
}

#[test]
fn dependabot_covers_every_dependency_list() {
    let config: Value = serde_saphyr::from_str(&text(".github/dependabot.yml")).expect("is YAML");
    let mut watched = Vec::new();
    for update in config["updates"].as_array().expect("a list") {
        let ecosystem = update["package-ecosystem"].as_str().expect("a name");
        let one = update.get("directory").into_iter();
        let several = update.get("directories").and_then(Value::as_array).into_iter().flatten();
        for folder in one.chain(several) {
            watched.push((ecosystem, folder.as_str().expect("a path")));
        }
    }
    let there = |file: &str| Workspace::here().root().join(file).exists();
    let lists = [
        ("cargo", "/", "Cargo.lock"),
        ("cargo", "/fuzz", "fuzz/Cargo.lock"),
        ("github-actions", "/", ".github/workflows"),
        ("pip", "/dashboards", "dashboards/requirements.txt"),
        ("pip", "/deploy", "deploy/requirements.txt"),
        ("pip", "/xtask", "xtask/requirements.txt"),
    ];
    let wanted: Vec<_> = lists
        .into_iter()
        .filter(|(_, _, file)| there(file))
        .map(|(ecosystem, folder, _)| (ecosystem, folder))
        .collect();
    assert_eq!(watched, wanted);
}
