//! `cargo xtask bench`: how exact the agent is and what it costs, beside what else could be used, measured in the same
//! run. docs/performance.md describes each subject and its results.

mod accuracy;
mod lab;
mod node;
mod process;
mod programs;
mod proxy;
mod table;

use crate::run::Setup;

/// What is measured.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Subject {
    /// Error of the times of exits and signals, beside the runtime's `finished_at`
    Accuracy,
    /// Memory, CPU and series on a full node, beside the container runtime's, and the cost of each kernel program
    Node,
}

/// Measures, and prints the result. `brief`: shows that the benchmark works, the numbers are worth little.
pub async fn run(setup: &Setup, subject: Subject, brief: bool) -> anyhow::Result<()> {
    let result = match subject {
        Subject::Accuracy => lab::run(setup, async |lab| accuracy::measure(lab, brief).await).await,
        Subject::Node => lab::run(setup, async |lab| node::measure(lab, brief).await).await,
    };
    println!("\n{}", result?);
    Ok(())
}
