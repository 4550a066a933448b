//! What the lab prints without playing anything.

use crate::binaries::LAB;
use coroner_lab::scenarios::catalogue;
use libtest_mimic::{Failed, Trial};
use std::process::{Command, Output};

pub(crate) fn trials() -> Vec<Trial> {
    let all: [(&str, fn()); 4] = [
        ("a-version-that-is-not-there", a_version_that_is_not_there),
        ("an-unknown-scenario", an_unknown_scenario),
        ("the-list", the_list),
        ("a-real-node", a_real_node),
    ];
    let passes = |test: fn()| {
        test();
        Ok::<(), Failed>(())
    };
    all.map(|(name, test)| Trial::test(format!("usage/{name}"), move || passes(test))).into()
}

fn run(arguments: &[&str]) -> Output {
    Command::new(LAB).arg("run").args(arguments).output().unwrap()
}

fn a_version_that_is_not_there() {
    let output = run(&["--containerd", "0.1"]);
    assert_eq!(output.status.code(), Some(64));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("containerd 0.1") && text.contains("cargo xtask setup"), "{text}");
}

fn an_unknown_scenario() {
    let output = run(&["--scenario", "nonsense"]);
    assert_eq!(output.status.code(), Some(64));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("\"nonsense\"") && text.contains("handles-sigterm"), "{text}");
}

fn the_list() {
    let output = run(&["--list"]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    for scenario in catalogue() {
        assert!(text.contains(scenario.name), "{} is missing\n{text}", scenario.name);
    }
}

fn a_real_node() {
    let output = run(&["--cri", "unix:///run/x.sock"]);
    assert_eq!(output.status.code(), Some(64), "{}", String::from_utf8_lossy(&output.stderr));
}
