//! `cargo xtask bench engine`: how many inputs a second the pure engine takes on one core, and
//! whether its memory grows with what it has seen. What is measured is written down in
//! docs/performance.md.
//!
//! [`load`], [`node`] and [`shift`] make the inputs, before the clock runs; [`measure`] has the
//! engine take them; [`leaked`] times the ticks of a node full of leaks; [`report`] is pure.

mod leaked;
pub mod load;
pub mod measure;
mod node;
mod report;
mod shift;

use super::publish;
use coroner_lab_harness::{console::Console, environment::Setup};
use leaked::Leaked;
use load::Load;
use report::EngineMeasurements;

/// The pods that stay, beside those that end: with two containers each, a full node.
pub const PODS: u64 = 250;
/// Terminations after which the memory is compared.
const FEW: u64 = 10_000;
/// How many rounds are measured.
const ROUNDS: u32 = 200;
/// The same for what is only broken down or put beside.
const FEW_ROUNDS: u32 = 40;

/// Leaked sandboxes: as many as a message of 16 MiB lists (KEP-5825), each of another pod.
const LEAKED: u64 = 14_000;
/// The same, all of one pod.
const LEAKED_OF_ONE_POD: u64 = 1_000;

/// Runs the benchmark. True: no goal was missed. It leaves nothing behind: all of it is in memory.
pub fn run(setup: &Setup, terminations: u64) -> anyhow::Result<bool> {
    let console = Console::new(setup.json);
    let full = Load::new(PODS)?;
    let alone = Load::new(0)?;
    let mix = full.mix();
    console.step(&format!(
        "a round: {} pods end in {:.0} s on a node with {PODS} pods, {} inputs",
        full.ends(),
        full.span().as_secs_f64(),
        mix.values().sum::<u64>(),
    ));
    let speed = measure::speed(&full, ROUNDS);
    let speed_alone = measure::speed(&alone, ROUNDS);
    console.step("reading the same from JSON");
    let reading = measure::reading(&full, FEW_ROUNDS)?;
    let by_kind = measure::by_kind(&full, FEW_ROUNDS);
    let allocations = measure::allocations(&full, FEW_ROUNDS);
    console.step("a node full of leaked sandboxes");
    let leaked = Leaked { pods: LEAKED, each: 1, exist: false }.measure();
    let leaked_of_one_pod = Leaked { pods: 1, each: LEAKED_OF_ONE_POD, exist: true }.measure();
    console.step(&format!("memory over {terminations} terminations: a minute or two"));
    let held = measure::memory(&alone, FEW, terminations)?;
    let measured = EngineMeasurements {
        speed,
        alone: speed_alone,
        reading,
        by_kind,
        mix,
        allocations,
        leaked,
        leaked_of_one_pod,
        held,
    };
    publish(console, setup.json, &report::figures(&measured))
}
