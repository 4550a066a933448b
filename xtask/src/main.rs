//! `cargo xtask`: brings what is needed, builds, runs and tests coroner.

mod bare;
mod bench;
mod build;
mod chart;
mod cli;
mod docs;
mod fuzz;
mod host;
mod image;
mod progress;
mod root;
mod run;
mod setup;
mod simulate;
mod test;
mod toolchain;
mod vm;
#[cfg(test)]
mod workflows;
mod workspace;

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Result, bail};
use clap::{Parser as _, ValueEnum as _};

use crate::{
    build::Profile,
    cli::{Cli, Install, Subject, XtaskCommand},
    host::Arch,
    progress::note,
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
    let workspace = Workspace::here().with_system_tools(cli.system_tools);
    match cli.command {
        XtaskCommand::Setup { check: true, long, .. } => Ok(setup::check(&workspace, long)),
        XtaskCommand::Bare { suite, with, fresh, command } => {
            bare::run(&workspace, &bare::BareOrder { suite, with, fresh, command })
        }
        XtaskCommand::Setup { install, long, .. } => {
            setup::ensure(&workspace, &setup::all(long), install.no_install)?;
            Ok(true)
        }
        XtaskCommand::Build { release, install } => {
            setup::ensure(&workspace, setup::BUILD, install.no_install)?;
            let built = build::all(&workspace, profile(release))?;
            for binary in [built.agent, built.lab, built.workload] {
                note(&format!("  {}", binary.display()));
            }
            Ok(true)
        }
        XtaskCommand::Image { output, arch, install } => {
            let named = arch.iter().map(|name| Arch::named(name)).collect::<Result<Vec<_>>>()?;
            let arches = if named.is_empty() { Arch::built()? } else { named };
            let native = arches.iter().all(|arch| arch.is_host());
            let needs = if native { setup::BUILD } else { &[setup::BUILD, setup::CROSS].concat() };
            setup::ensure(&workspace, needs, install.no_install)?;
            let file = output.unwrap_or_else(|| image::default_file(&workspace));
            let made = image::make(&workspace, &file, Profile::Release, &arches)?;
            let mib = made.size as f64 / f64::from(1 << 20);
            println!("{}  {mib:.1} MiB\n{}@{}", made.file.display(), made.name, made.digest);
            Ok(true)
        }
        XtaskCommand::Chart { install } => {
            setup::ensure(&workspace, setup::CHART, install.no_install)?;
            println!("{}", chart::make(&workspace)?.display());
            Ok(true)
        }
        XtaskCommand::Run { mut install, mut release, tour } => {
            let (ours, tour) = cli::split_own_flags(tour);
            install.no_install |= ours.iter().any(|flag| flag == "--no-install");
            release |= ours.iter().any(|flag| flag == "--release");
            let workspace = with_own_flags(workspace, &ours);
            match run::lab(&workspace, "run", profile(release), install.no_install, &tour)? {}
        }
        XtaskCommand::Chaos { install, arguments } => {
            become_the_lab(workspace, "chaos", install, arguments)
        }
        XtaskCommand::Soak { install, arguments } => {
            become_the_lab(workspace, "soak", install, arguments)
        }
        XtaskCommand::Test { install, layers, long, repeat, kernels, times } => {
            let guests = kernels.guests(long)?;
            let order = test::TestOrder { layers, long, repeat, guests, times };
            test::run(&workspace, order, install.no_install)
        }
        XtaskCommand::Docs { install } => {
            let needs = [setup::BUILD, docs::NEEDS].concat();
            setup::ensure(&workspace, &needs, install.no_install)?;
            docs::write(&workspace)?;
            Ok(true)
        }
        XtaskCommand::Bench {
            install, subject, json, no_fail, baseline: Some(revision), ..
        } => {
            if subject.is_some_and(|subject| subject != Subject::Engine) {
                bail!(
                    "--baseline compares the engine only: cargo xtask bench engine --baseline COMMIT"
                );
            }
            Ok(bench::compare(&workspace, &revision, json, install.no_install)? || no_fail)
        }
        XtaskCommand::Bench { mut install, subject, json, no_fail, baseline: None, arguments } => {
            let (ours, mut arguments) = cli::split_own_flags(arguments);
            arguments.extend(json.then(|| "--json".into()));
            arguments.extend(no_fail.then(|| "--no-fail".into()));
            install.no_install |= ours.iter().any(|flag| flag == "--no-install");
            let workspace = with_own_flags(workspace, &ours);
            let subjects = subject.as_ref().map_or(Subject::value_variants(), std::slice::from_ref);
            let arguments = |_| arguments.clone();
            let failed = bench::run(&workspace, subjects, arguments, install.no_install)?;
            Ok(failed.is_empty())
        }
        XtaskCommand::Fuzz { install, targets, time, until_quiet, input, keep } => {
            let order = fuzz::FuzzOrder { targets, time, until_quiet, input, keep };
            Ok(fuzz::run(&workspace, &order, install.no_install)?.failed == 0)
        }
        XtaskCommand::Simulate { cases, seed, fault, json } => {
            simulate::run(&workspace, cases, seed, fault, json)
        }
        XtaskCommand::Vm { install, kernels, only } => {
            let (layers, mut guests) = (vec![cli::Layer::Vm], kernels.guests(true)?);
            guests.iter_mut().for_each(|guest| guest.only.clone_from(&only));
            let times = cli::Times::default();
            let order = test::TestOrder { layers, long: false, repeat: 1, guests, times };
            test::run(&workspace, order, install.no_install)
        }
    }
}

/// Of the build that run and test use, so that nothing is built twice.
fn become_the_lab(
    workspace: Workspace,
    command: &str,
    mut install: Install,
    arguments: Vec<OsString>,
) -> Result<bool> {
    let (ours, arguments) = cli::split_own_flags(arguments);
    install.no_install |= ours.iter().any(|flag| flag == "--no-install");
    let workspace = with_own_flags(workspace, &ours);
    match run::lab(&workspace, command, Profile::Dev, install.no_install, &arguments)? {}
}

fn with_own_flags(workspace: Workspace, ours: &[OsString]) -> Workspace {
    let system_tools = ours.iter().any(|flag| flag == "--system-tools") || workspace.system_tools();
    workspace.with_system_tools(system_tools)
}

fn profile(release: bool) -> Profile {
    if release { Profile::Release } else { Profile::Dev }
}
