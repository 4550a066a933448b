//! `cargo xtask`: brings what is needed, builds, runs and tests coroner.

mod build;
mod cli;
mod host;
mod progress;
mod toolchain;
mod workspace;

use std::process::ExitCode;

use clap::Parser as _;

use crate::{
    build::Profile,
    cli::{Cli, Command},
    workspace::Workspace,
};

fn main() -> ExitCode {
    match act(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            progress::note(&format!("xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn act(cli: Cli) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::here();
    match cli.command {
        Command::Build { release } => {
            let profile = if release { Profile::Release } else { Profile::Dev };
            let built = build::all(&workspace, profile)?;
            for binary in [built.agent, built.lab, built.workload] {
                progress::note(&format!("  {}", binary.display()));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
