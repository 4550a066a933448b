//! `cargo xtask bench`: how exact the agent is and what it costs, beside what else could be used, measured in the same
//! run. docs/performance.md describes each subject and its results.

mod accuracy;
mod cgroup;
mod history;
mod kernel;
mod lab;
pub mod load;
mod node;
mod process;
mod programs;
mod proxy;
mod storm;
mod table;

use crate::run::Setup;

/// What is measured.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Subject {
    /// Nanoseconds that the kernel programs add to each event, beside an empty program
    Kernel,
    /// CPU and losses in a storm of signals and exits, beside sigsnoop and exitsnoop
    Storm,
    /// Error of the times of exits and signals, beside the runtime's `finished_at`
    Accuracy,
    /// Memory, CPU and series on a full node, beside the container runtime's
    Node,
}

/// Measures, and prints the result. `brief`: shows that the benchmark works, the numbers are worth little.
pub async fn run(setup: &Setup, subject: Subject, brief: bool) -> anyhow::Result<()> {
    let result = match subject {
        Subject::Kernel => kernel::measure(brief).await,
        Subject::Storm => lab::run(setup, async |lab| storm::measure(lab, brief).await).await,
        Subject::Accuracy => lab::run(setup, async |lab| accuracy::measure(lab, brief).await).await,
        Subject::Node => lab::run(setup, async |lab| node::measure(lab, brief).await).await,
    };
    println!("\n{}", result?);
    Ok(())
}
