//! The cases of the random tests: the same ones in every run, unless the environment asks for others.

use proptest::test_runner::{Config, RngSeed};
use std::{
    env::{self, VarError},
    num::NonZeroU32,
};

/// The seed where none is asked for. Any would do.
const SEED: u64 = 13;

/// So many cases of the fixed seed. `CORONER_TEST_SEED` is another seed, or `random`;
/// `CORONER_TEST_CASES` is how many times as many cases.
pub(crate) fn cases(cases: u32) -> Config {
    let seed = match asked("CORONER_TEST_SEED").as_deref() {
        None => SEED,
        Some("random") => fastrand::u64(..),
        Some(seed) => seed.parse().expect("CORONER_TEST_SEED is a number or `random`"),
    };
    let times = asked("CORONER_TEST_CASES").map_or(1, |times| {
        times.parse::<NonZeroU32>().expect("CORONER_TEST_CASES is a number above 0").get()
    });
    // libtest prints it if the test fails.
    eprintln!("the same cases again: CORONER_TEST_SEED={seed} CORONER_TEST_CASES={times}");
    Config {
        cases: cases.saturating_mul(times),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    }
}

fn asked(variable: &str) -> Option<String> {
    match env::var(variable) {
        Ok(value) => Some(value),
        Err(VarError::NotPresent) => None,
        Err(error) => panic!("{variable}: {error}"),
    }
}
