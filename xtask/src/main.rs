//! `cargo xtask`: installs what is needed, builds, runs and tests coroner.

mod bare;
mod bench;
mod build;
mod chart;
mod cli;
mod docs;
mod fuzz;
mod host;
mod image;
mod root;
mod run;
mod setup;
mod simulate;
mod size;
mod steps;
mod test;
mod toolchain;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use crate::{
    build::Profile,
    cli::{Cli, Layer, XtaskCommand},
    host::Arch,
    setup::Need,
    steps::note,
    vm::Which,
    workspace::Workspace,
};

fn main() -> ExitCode {
    let done = act(Cli::parse());
    if let Err(error) = root::give_back(&Workspace::here()) {
        note(&format!("{error:#}"));
    }
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            note(&format!("cargo xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Does it; whether all is well.
fn act(cli: Cli) -> Result<bool> {
    let workspace = Workspace::here();
    let ensure = |needs: &[Need]| setup::ensure(&workspace, needs);
    match cli.command {
        XtaskCommand::Setup { long } => {
            ensure(&test::all_needs(long))?;
        }
        XtaskCommand::Bare { command } => return bare::run(&workspace, &command),
        XtaskCommand::Build { release } => {
            ensure(setup::BUILD)?;
            let built = build::all(&workspace, profile(release))?;
            for binary in [built.agent, built.lab, built.workload] {
                note(&format!("  {}", binary.display()));
            }
        }
        XtaskCommand::Image { output, arch, .. } => {
            let mut arches = Arch::built()?;
            arches.retain(|one| arch.is_empty() || arch.iter().any(|name| name == one.debian));
            arches.first().context("this machine builds for no such architecture")?;
            let foreign = arches.iter().any(|arch| !arch.is_host());
            ensure(&[setup::BUILD, if foreign { setup::CROSS } else { &[] }].concat())?;
            let file = output.unwrap_or_else(|| image::default_file(&workspace));
            let made = image::make(&workspace, &file, Profile::Release, &arches)?;
            let mib = made.size as f64 / f64::from(1 << 20);
            println!("{}  {mib:.1} MiB\n{}@{}", made.file.display(), made.name, made.digest);
        }
        XtaskCommand::Chart => {
            ensure(&[Need::Pypi])?;
            println!("{}", chart::make(&workspace)?.display());
        }
        // Of the build that tests use, so that nothing is built twice.
        XtaskCommand::Run { release, arguments } => {
            let profile = profile(release);
            match run::become_the_lab(&workspace, "run", profile, &arguments)? {}
        }
        XtaskCommand::Soak { arguments } => {
            match run::become_the_lab(&workspace, "soak", Profile::Dev, &arguments)? {}
        }
        XtaskCommand::Test { layers, long, repeat, times } => {
            let which = if long { Which::All } else { Which::OfGate };
            let kernels = vm::choose(&[], long)?;
            let order = test::TestOrder { layers, long, repeat, kernels, which, times };
            return test::run(&workspace, &order);
        }
        XtaskCommand::Docs => {
            ensure(&[setup::BUILD, docs::NEEDS].concat())?;
            docs::write(&workspace)?;
        }
        XtaskCommand::Size => size::print(&workspace)?,
        XtaskCommand::Bench { subject, brief } => {
            ensure(&[setup::BUILD, setup::LAB, setup::BENCH].concat())?;
            root::demand()?;
            bench::run(&workspace, subject.as_deref(), brief)?;
        }
        XtaskCommand::Fuzz { targets, time, input, keep } => {
            ensure(&[setup::BUILD, setup::FUZZ].concat())?;
            fuzz::run(&workspace, &targets, time, input.as_deref(), keep)?;
        }
        XtaskCommand::Simulate { cases, seed, fault, json } => {
            return simulate::run(&workspace, cases, seed, fault.as_deref(), json);
        }
        XtaskCommand::Vm { kernels, test } => {
            let order = test::TestOrder {
                layers: vec![Layer::Vm],
                repeat: 1,
                kernels: vm::choose(&kernels, true)?,
                which: test.map_or(Which::All, Which::Like),
                ..test::TestOrder::default()
            };
            return test::run(&workspace, &order);
        }
    }
    Ok(true)
}

fn profile(release: bool) -> Profile {
    if release { Profile::Release } else { Profile::Dev }
}
