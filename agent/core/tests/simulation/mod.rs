//! An oracle for deaths: random histories of a pod, told by sources that are late, hang, break or begin
//! in the middle. What the engine says is held against the truth, which the generator knows.
//! `cargo xtask simulate` plays more of them.

#[path = "oracle.rs"]
mod oracle;

use super::random;
use oracle::{FAULTS, FaultTally, judge, read, simulate};
use proptest::test_runner::{Config, RngSeed};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Histories of each fault.
const CASES: u32 = 1_000;

#[test]
fn nothing_contradicts_the_truth_and_enough_is_known() {
    let Config { cases, rng_seed: RngSeed::Fixed(seed), .. } = random::cases(CASES) else {
        panic!("no seed");
    };
    let folder = env::var_os("CORONER_FAILED_DIR").unwrap_or(env!("CARGO_TARGET_TMPDIR").into());
    let folder = PathBuf::from(folder);
    let mut wrong = Vec::new();
    println!("{}", FaultTally::head());
    for fault in FAULTS {
        let outcome = simulate(fault, cases, seed);
        println!("{outcome}");
        if !outcome.is_good() {
            let kept = outcome.keep(&folder).map(|kept| kept.to_string());
            wrong.push(format!("{outcome}{}", kept.unwrap_or_default()));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", FaultTally::head(), wrong.join("\n\n"));
}

/// Histories that `cargo xtask simulate` once found something wrong in.
#[test]
fn what_was_found_stays_fixed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/found");
    let mut wrong = Vec::new();
    let files: Vec<_> = fs::read_dir(&folder).expect("the folder").collect();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let path = file.expect("a file").path();
        let (expected, inputs) = read(&fs::read_to_string(&path).expect("text"));
        let shares = judge(&expected, &inputs);
        wrong.extend(shares.wrong.iter().map(|wrong| format!("{}: {wrong:?}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
