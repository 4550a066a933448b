//! The chaos suite: one round of each fault of the gate under churn, evaluated. With
//! CORONER_TEST_LONG in the environment it is one round of every fault, and a missed goal fails too.
//! Needs root, and what `cargo xtask build` makes.

use crate::binaries;
use coroner_lab_chaos::{fault::FAULTS, fault::GATE};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

fn chaos() -> Command {
    let mut command = Command::new(binaries::LAB);
    command.arg("chaos");
    command
}

/// Another in each run that asks for random ones; a round that fails names it.
fn seed() -> Vec<String> {
    match std::env::var("CORONER_TEST_SEED").as_deref() {
        Ok("random") => vec!["--seed".to_owned(), fastrand::u64(..).to_string()],
        Ok(seed) => vec!["--seed".to_owned(), seed.to_owned()],
        Err(_) => Vec::new(),
    }
}

#[test]
fn whatever_breaks_the_agent_reports_nothing_false_and_comes_back() {
    binaries::demand_root();
    let long = std::env::var_os("CORONER_TEST_LONG").is_some();
    let wanted: Vec<&str> = match long {
        true => FAULTS.iter().map(|fault| fault.name).collect(),
        false => GATE.to_vec(),
    };
    let work = tempfile::tempdir().unwrap();
    let seed = seed();
    eprintln!("{}", seed.join(" "));
    let output = chaos()
        .arg("--json")
        .args(wanted.iter().flat_map(|name| ["--fault", name]))
        .args(long.then_some("--goals"))
        .args(seed)
        .args(binaries::flags(work.path()))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let objects: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let failed: Vec<String> = objects
        .iter()
        .filter(|object| object["ok"] != true)
        .map(|object| format!("{}: {:#}", object["fault"], object["complaints"]))
        .collect();
    assert!(failed.is_empty(), "{}\n{log}", failed.join("\n"));
    let faults: Vec<&str> = objects.iter().filter_map(|o| o["fault"].as_str()).collect();
    assert_eq!(faults, wanted, "\n{log}");
    for object in &objects {
        assert_ne!(object["deaths"], 0, "{} had nothing to evaluate\n{log}", object["fault"]);
    }
    assert!(output.status.success(), "{}\n{log}", output.status);
    assert!(!binaries::folder(work.path()).exists(), "the lab left something behind\n{log}");
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
    assert!(FAULTS.iter().all(|fault| names.contains(fault.name)), "{told}");
}
