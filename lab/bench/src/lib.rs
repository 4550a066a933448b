//! The benchmarks of `cargo xtask bench`: each acts, measures coroner and its alternative in the
//! same run, and ends in [`Figure`]s.
#![allow(missing_docs)] // a name that says it need not say it twice

pub mod accuracy;
pub mod engine;
mod figure;
pub mod heap;
pub mod instructions;
pub mod kernel;
pub mod load;
pub mod node;
pub mod programs;
pub mod storm;
mod tracers;

pub use figure::{Beside, Bound, Figure};

use anyhow::Context as _;
use coroner_lab_harness::console::Console;
use std::io::{self, Write as _};

/// Shows a benchmark's figures: a table for a person, and with `json` one object each on stdout.
/// True: no goal was missed.
pub fn publish(console: Console, json: bool, figures: &[Figure]) -> anyhow::Result<bool> {
    console.print(&format!("\n{}\n", figure::table(figures)));
    print_objects(json, figures)?;
    Ok(figure::all_met(figures))
}

/// The figures as objects on stdout, if `json` asks for them.
fn print_objects(json: bool, figures: &[Figure]) -> anyhow::Result<()> {
    if json {
        let mut out = io::stdout().lock();
        for figure in figures {
            writeln!(out, "{}", figure.line()).context("stdout")?;
        }
    }
    Ok(())
}
