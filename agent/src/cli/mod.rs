//! The command line: parse, set up the log, do it, say how it went.

mod audit;
mod client;
mod columns;
mod doctor;
mod explain;
mod follow;
pub mod kubelet_log;
mod leaks;
mod lists;
mod observer;
mod output;
mod replay;
mod select;

use crate::config::args::{Cli, Command, LogArgs};
use crate::{app, config::Config, outputs::log};
use clap::{CommandFactory, Parser, error::ErrorKind};
use coroner_report::{ContainerDeath, PodTermination, printable::shown};
use std::{
    io::{self, Write},
    process::ExitCode,
};
use tracing_subscriber::filter::ParseError;

/// EX_USAGE of sysexits.h: the command was used wrongly.
pub const EXIT_USAGE: u8 = 64;

pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    // The commands that answer do so on stdout; the service speaks by its log.
    let level = if matches!(cli.command, Command::Run(_)) { "info" } else { "error" };
    if let Err(error) = start_log(&cli.log, level) {
        return usage(&format!("--log-level: {error}"));
    }
    match cli.command {
        Command::Run(args) => match Config::of(args) {
            Ok(config) => {
                match config.args.sources.node.kubeconfig.as_ref().filter(|file| !file.exists()) {
                    Some(file) => usage(&format!("--kubeconfig {}: no such file", file.display())),
                    None => finish(app::run(config)),
                }
            }
            Err(error) => usage(error),
        },
        Command::Doctor(args) => match doctor::main(&args) {
            Ok(code) => code,
            Err(error) => print_failure(&error),
        },
        Command::Terminations(args) => answered(lists::main::<PodTermination>(&args)),
        Command::Deaths(args) => answered(lists::main::<ContainerDeath>(&args)),
        Command::Leaks(args) => leaks::main(&args).unwrap_or_else(|error| print_failure(&error)),
        Command::Audit(args) => answered(audit::main(&args)),
        Command::Explain(args) => answered(explain::main(&args)),
        Command::Replay(args) => answered(replay::main(&args)),
        Command::Completion(args) => {
            clap_complete::generate(args.shell, &mut Cli::command(), "coroner", &mut io::stdout());
            ExitCode::SUCCESS
        }
    }
}

fn answered(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print_failure(&error),
    }
}

fn wait<T>(answer: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(answer)
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Beside the answer, on stderr: what to know before trusting it.
fn print_note(text: &str) {
    for line in text.lines() {
        let _ = writeln!(io::stderr(), "note: {}", shown(line));
    }
}

/// clap's own words: help and version are no errors, everything else is wrong usage.
fn refuse(error: &clap::Error) -> ExitCode {
    let _ = error.print(); // nowhere to say that the terminal is gone
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_USAGE),
    }
}

fn usage(message: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "error: {message}");
    ExitCode::from(EXIT_USAGE)
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!(target: "coroner::app", "{}", crate::chain(failure.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// A reader that has had enough (`coroner terminations | head`) is not a failure.
fn print_failure(failure: &anyhow::Error) -> ExitCode {
    let io_error = failure.downcast_ref::<io::Error>();
    if io_error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let text = crate::chain(failure.as_ref());
    // A list of pods has lines of its own.
    let lines: Vec<_> = text.lines().map(shown).collect();
    let _ = writeln!(io::stderr(), "error: {}", lines.join("\n"));
    ExitCode::FAILURE
}

fn start_log(args: &LogArgs, level: &str) -> Result<(), ParseError> {
    let rust_log = || std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let directives = args.log_level.clone().or_else(rust_log).unwrap_or_else(|| level.to_owned());
    log::start(&directives, args.log_format)
}
