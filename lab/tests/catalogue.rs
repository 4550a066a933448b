//! The whole catalogue, played for real: private containerd and runc, the real agent with its
//! kernel programs, real deaths. Needs root, and what `cargo xtask build` makes.

mod lab;

use coroner_lab::{
    containerd,
    scenario::{Scenario, catalogue},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

fn tour() -> Command {
    let mut command = Command::new(lab::LAB);
    command.arg("tour");
    command
}

/// Plays these scenarios and demands that all that can be played here is told as it was meant.
fn play(arguments: &[&str], scenarios: impl Iterator<Item = &'static str>) {
    lab::demand_root();
    let work = tempfile::tempdir().unwrap();
    let output = tour()
        .arg("--json")
        .args(arguments)
        .args(lab::flags(work.path()))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let told = format!("{arguments:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    let objects: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    for object in &objects {
        let points = &object["disagreements"];
        assert_eq!(object["ok"], true, "{}: {points:#}\n{told}", object["scenario"]);
        let ends = object["expected"]["lives"] != 0;
        assert_eq!(object["timeline"]["phases"].is_array(), ends, "{object:#}");
        let left = |leaks: &Value| leaks.as_array().map_or(0, Vec::len);
        assert_eq!(left(&object["leaks"]), left(&object["expected"]["leaks"]), "{object:#}");
    }
    let names: BTreeSet<_> = objects.iter().filter_map(|o| o["scenario"].as_str()).collect();
    // Where something cannot be done, the tour says so and leaves out what needs it.
    let left_out = |name: &str| {
        ["no memory controller", "no v1 freezer"]
            .iter()
            .any(|missing| told.contains(&format!("leaving out {name}: {missing}")))
    };
    assert_eq!(names, scenarios.filter(|name| !left_out(name)).collect(), "\n{told}");
    assert!(output.status.success(), "{}\n{told}", output.status);
    assert!(!lab::folder(work.path()).exists(), "the lab left something behind\n{told}");
}

#[test]
fn every_death_is_told_as_it_was_meant() {
    play(&["--all"], catalogue().iter().map(|scenario| scenario.name));
}

/// The versions that coroner is tested with: xtask/src/setup/runtimes.rs brings them.
const VERSIONS: [&str; 3] = ["1.6", "1.7", "2"];

/// What is played on all of them: what is left behind is the runtime's doing, and one of each kind of
/// the rest.
fn is_about_the_runtime(scenario: &Scenario) -> bool {
    let named = ["handles-sigterm", "sigterm-ignored", "oom-killed", "runtime-killed"];
    scenario.group == "leaks" || named.contains(&scenario.name)
}

#[test]
fn other_versions_of_containerd_tell_the_same() {
    let own = containerd::version(&containerd::Options::new("", "").containerd).unwrap();
    let scenarios: Vec<&str> =
        catalogue().iter().filter(|one| is_about_the_runtime(one)).map(|one| one.name).collect();
    assert!(scenarios.len() >= 4, "{scenarios:?}");
    // On the machine's own all of it is played.
    let others = VERSIONS.iter().filter(|other| !own.starts_with(&format!("{other}.")));
    for other in others {
        let mut arguments = vec!["--containerd", other];
        arguments.extend(scenarios.iter().flat_map(|name| ["--scenario", name]));
        play(&arguments, scenarios.iter().copied());
    }
}

#[test]
fn a_version_that_is_not_there_is_wrong_usage_and_says_which_are() {
    let output = tour().args(["--containerd", "0.1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("containerd 0.1") && told.contains("cargo xtask setup"), "{told}");
}

#[test]
fn an_unknown_scenario_is_wrong_usage_and_lists_the_known_ones() {
    let output = tour().args(["--scenario", "nonsense"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("\"nonsense\"") && told.contains("handles-sigterm"), "{told}");
}

#[test]
fn the_list_needs_no_root_and_names_all() {
    let output = tour().args(["--list"]).output().unwrap();
    assert!(output.status.success());
    let told = String::from_utf8_lossy(&output.stdout);
    for scenario in catalogue() {
        assert!(told.contains(scenario.name), "{} is missing\n{told}", scenario.name);
    }
}

#[test]
fn a_real_node_needs_all_three_of_its_flags() {
    let output = tour().args(["--cri", "unix:///run/x.sock"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", String::from_utf8_lossy(&output.stderr));
}
