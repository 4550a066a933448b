//! The short form of the chaos suite: one round of each fault under churn, judged. Needs root, and
//! what `cargo xtask build` makes. The long form is `cargo xtask chaos --for 1h`.

mod lab;

use serde_json::Value;
use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

fn chaos() -> Command {
    let mut command = Command::new(lab::LAB);
    command.arg("chaos");
    command
}

#[test]
fn whatever_breaks_the_agent_tells_no_lie_and_comes_back() {
    lab::demand_root();
    let work = tempfile::tempdir().unwrap();
    let output = chaos()
        .arg("--json")
        .args(lab::flags(work.path()))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let objects: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let faults: Vec<&str> = objects.iter().filter_map(|o| o["fault"].as_str()).collect();
    let all: Vec<&str> = coroner_lab::chaos::fault::FAULTS.iter().map(|fault| fault.name).collect();
    assert_eq!(faults, all, "\n{told}");
    for object in &objects {
        assert_eq!(object["ok"], true, "{object:#}\n{told}");
        assert_ne!(object["deaths"], 0, "{} had nothing to judge\n{told}", object["fault"]);
    }
    assert!(output.status.success(), "{}\n{told}", output.status);
    assert!(!lab::folder(work.path()).exists(), "the lab left something behind\n{told}");
}

#[test]
fn an_unknown_fault_is_wrong_usage_and_lists_the_known_ones() {
    let output = chaos().args(["--fault", "rain"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("\"rain\"") && told.contains("runtime-killed"), "{told}");
}

#[test]
fn the_list_needs_no_root_and_names_all() {
    let output = chaos().arg("--list").output().unwrap();
    assert!(output.status.success());
    let told = String::from_utf8_lossy(&output.stdout);
    let names: BTreeSet<&str> =
        told.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let faults = coroner_lab::chaos::fault::FAULTS;
    assert!(faults.iter().all(|fault| names.contains(fault.name)), "{told}");
}
