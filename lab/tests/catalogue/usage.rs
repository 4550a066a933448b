//! What the lab says without playing anything.

use crate::binaries;
use coroner_lab_scenarios::catalogue;
use libtest_mimic::{Failed, Trial};
use std::process::Command;

/// `coroner-lab run`.
pub(crate) fn lab_run() -> Command {
    let mut command = Command::new(binaries::LAB);
    command.arg("run");
    command
}

pub(crate) fn trials() -> Vec<Trial> {
    let all: [(&str, fn()); 4] = [
        (
            "a_version_that_is_not_there_is_wrong_usage_and_says_which_are",
            a_version_that_is_not_there_is_wrong_usage_and_says_which_are,
        ),
        (
            "an_unknown_scenario_is_wrong_usage_and_lists_the_known_ones",
            an_unknown_scenario_is_wrong_usage_and_lists_the_known_ones,
        ),
        ("the_list_needs_no_root_and_names_all", the_list_needs_no_root_and_names_all),
        ("a_real_node_needs_all_three_of_its_flags", a_real_node_needs_all_three_of_its_flags),
    ];
    let passes = |test: fn()| {
        test();
        Ok::<(), Failed>(())
    };
    all.map(|(name, test)| Trial::test(format!("usage/{name}"), move || passes(test))).into()
}

fn a_version_that_is_not_there_is_wrong_usage_and_says_which_are() {
    let output = lab_run().args(["--containerd", "0.1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("containerd 0.1") && told.contains("cargo xtask setup"), "{told}");
}

fn an_unknown_scenario_is_wrong_usage_and_lists_the_known_ones() {
    let output = lab_run().args(["--scenario", "nonsense"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("\"nonsense\"") && told.contains("handles-sigterm"), "{told}");
}

fn the_list_needs_no_root_and_names_all() {
    let output = lab_run().args(["--list"]).output().unwrap();
    assert!(output.status.success());
    let told = String::from_utf8_lossy(&output.stdout);
    for scenario in catalogue() {
        assert!(told.contains(scenario.name), "{} is missing\n{told}", scenario.name);
    }
}

fn a_real_node_needs_all_three_of_its_flags() {
    let output = lab_run().args(["--cri", "unix:///run/x.sock"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", String::from_utf8_lossy(&output.stderr));
}
