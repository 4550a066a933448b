//! The command line.

use clap::{Parser, Subcommand};

/// Brings what is needed, builds, runs and tests coroner.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build the kernel programs, the lab's workload, the agent and the lab
    Build {
        /// Optimised binaries
        #[arg(long)]
        release: bool,
    },
}
