//! `coroner-lab` as the tests start it: with the binaries of this build, below a folder of their own.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The lab's own binary.
pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_coroner-lab");

/// Fails where the lab cannot play.
pub(crate) fn demand_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "the lab needs root: run this test with sudo, or leave it out (cargo xtask test unit)"
    );
}

/// What tells the lab where its files go and what it plays with.
pub(crate) fn flags(work: &Path) -> [OsString; 6] {
    [
        "--work".into(),
        folder(work).into(),
        "--agent".into(),
        binary("CORONER_LAB_AGENT", "coroner").into(),
        "--workload".into(),
        binary("CORONER_LAB_WORKLOAD", "workload").into(),
    ]
}

/// Where its files go; gone when it has ended.
pub(crate) fn folder(work: &Path) -> PathBuf {
    work.join("lab")
}

/// Where `cargo xtask build` puts the binary, unless the environment names another.
fn binary(variable: &str, name: &str) -> PathBuf {
    let beside = || Path::new(LAB).with_file_name(name);
    let binary = std::env::var_os(variable).map_or_else(beside, PathBuf::from);
    assert!(
        binary.is_file(),
        "{} is not there: run `cargo xtask build`, or name it with {variable}",
        binary.display()
    );
    binary
}
