//! `coroner-lab`: the lab's command line.

mod cli;
mod nested;

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use cli::{LabCli, LabCommand, RunArgs};
use coroner_lab::{
    bench, console,
    run::{self, Interrupted, RealNode, RunOptions, Setup},
    scenarios, soak,
};
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
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("coroner_lab=warn"));
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).init();
    match execute(cli) {
        Ok(code) => code,
        Err(error) if error.is::<Interrupted>() => INTERRUPTED.into(),
        Err(error) => {
            eprintln!("{error:#}");
            if error.is::<WrongUsage>() { USAGE.into() } else { ExitCode::FAILURE }
        }
    }
}

fn execute(cli: LabCli) -> Result<ExitCode> {
    if cli.common.nested {
        ensure_root()?;
        return nested::run(&cli.common.work);
    }
    let setup = || cli.common.setup().map_err(|error| wrong_usage(format!("{error:#}")));
    let is_ok = match cli.command {
        LabCommand::Run(args) => run(setup, args)?,
        LabCommand::Bench { subject, brief } => {
            as_root(bench::run(&setup()?, subject, brief))?;
            true
        }
        LabCommand::Soak { long } => as_root(soak::run(&setup()?, long))?,
        LabCommand::Init { words } => return nested::init(&words),
        LabCommand::BenchLoad => bench::load::serve().map(|()| true)?,
    };
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(setup: impl FnOnce() -> Result<Setup>, args: RunArgs) -> Result<bool> {
    let is_chosen = args.all || args.list || args.group.is_some() || !args.scenarios.is_empty();
    let scenarios = match is_chosen {
        true => scenarios::choose(&args.scenarios, args.group.as_deref()).map_err(wrong_usage)?,
        false => scenarios::demo(),
    };
    if args.list {
        print!("{}", console::list(&scenarios));
        return Ok(true);
    }
    let setup = setup()?;
    if let Some(((cri, kubeconfig), name)) = args.cri.zip(args.kubeconfig).zip(args.node) {
        let node = RealNode { cri, kubeconfig, name };
        return as_root(run::observe(&setup, args.listen, &node));
    }
    as_root(run::run(&setup, &RunOptions { scenarios, keep: args.keep, listen: args.listen }))
}

/// Runs it, if this is root.
fn as_root<T>(what: impl Future<Output = Result<T>>) -> Result<T> {
    ensure_root()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(what)
}

fn ensure_root() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the lab needs root: it runs a container runtime of its own and loads kernel programs; run it with sudo"
    );
    Ok(())
}
