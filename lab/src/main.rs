//! `coroner-lab`: the lab's command line.

mod cli;
mod nested;

use anyhow::Context as _;
use clap::Parser as _;
use cli::{ChaosArgs, LabCli, LabCommand, RunArgs, SoakArgs};
use coroner_lab_bench as bench;
use coroner_lab_chaos::{self as chaos, ChaosOptions, fault, plan::Length, soak};
use coroner_lab_cluster::delay::Delays;
use coroner_lab_harness::{
    environment::{Interrupted, Setup},
    run::{self, RealNode, RunOptions, report},
};
use coroner_lab_scenarios as scenarios;
use std::{fmt, process::ExitCode};

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;
/// As a shell reports a process that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// The command line is wrong.
#[derive(Debug)]
struct WrongUsage(String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

fn wrong_usage(why: impl fmt::Display) -> anyhow::Error {
    WrongUsage(why.to_string()).into()
}

fn main() -> ExitCode {
    let cli = match LabCli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    // Under chaos the lab's kubelet complains all the time, and rightly.
    let quiet = match cli.command {
        LabCommand::Chaos(_) | LabCommand::Soak(_) => {
            "coroner_lab=warn,coroner_lab_cluster::kubelet=off"
        }
        _ => "coroner_lab=warn",
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(quiet)),
        )
        .init();
    match execute(cli) {
        Ok(code) => code,
        Err(error) if error.is::<Interrupted>() => INTERRUPTED.into(),
        Err(error) => {
            eprintln!("{error:#}");
            if error.is::<WrongUsage>() { USAGE.into() } else { ExitCode::FAILURE }
        }
    }
}

fn execute(cli: LabCli) -> anyhow::Result<ExitCode> {
    if cli.common.nested {
        ensure_root()?;
        return nested::run(&cli.common.work);
    }
    let setup = || cli.common.setup().map_err(|error| wrong_usage(format!("{error:#}")));
    let all_is_well = match cli.command {
        LabCommand::Run(args) => run(setup, args)?,
        LabCommand::Bench { subject, brief } => {
            let setup = setup()?;
            as_root(async { bench::run(&setup, subject, brief).await.map(|()| true) })?
        }
        LabCommand::Chaos(args) => chaos(setup, args)?,
        LabCommand::Soak(SoakArgs { long, seed }) => {
            let length = Length::For(long);
            let faults = soak::faults();
            let options = ChaosOptions { setup: setup()?, faults, length, seed, goals: true };
            as_root(soak::run(&options, long))?
        }
        LabCommand::Init { words } => return nested::init(&words),
        LabCommand::BenchLoad => bench::load::serve().map(|()| true)?,
    };
    Ok(if all_is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chaos(setup: impl FnOnce() -> anyhow::Result<Setup>, args: ChaosArgs) -> anyhow::Result<bool> {
    if args.list {
        print!("{}", fault::list());
        return Ok(true);
    }
    let faults = fault::choose(&args.faults).map_err(wrong_usage)?;
    let length = args.long.map_or(Length::Rounds(args.rounds), Length::For);
    let (seed, goals) = (args.seed, args.goals);
    as_root(chaos::run(&ChaosOptions { setup: setup()?, faults, length, seed, goals }))
}

fn run(setup: impl FnOnce() -> anyhow::Result<Setup>, args: RunArgs) -> anyhow::Result<bool> {
    let chosen = args.all || args.list || args.group.is_some() || !args.scenarios.is_empty();
    let scenarios = match chosen {
        true => scenarios::choose(&args.scenarios, args.group.as_deref()).map_err(wrong_usage)?,
        false => scenarios::demo(),
    };
    if args.list {
        print!("{}", report::list(&scenarios));
        return Ok(true);
    }
    let real = args.cri.zip(args.kubeconfig).zip(args.node);
    let options = RunOptions {
        scenarios,
        keep: args.keep,
        listen: args.listen,
        delays: Delays { apiserver: args.delay_apiserver, runtime: args.delay_runtime },
        real: real.map(|((cri, kubeconfig), node)| RealNode { cri, kubeconfig, node }),
    };
    as_root(run::run(&setup()?, &options))
}

/// Runs it, if this is root.
fn as_root(what: impl Future<Output = anyhow::Result<bool>>) -> anyhow::Result<bool> {
    ensure_root()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(what)
}

fn ensure_root() -> anyhow::Result<()> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "the lab needs root: it runs a container runtime of its own and loads kernel programs; \
         run it with sudo"
    );
    Ok(())
}
