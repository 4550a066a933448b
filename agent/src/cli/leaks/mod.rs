//! `coroner leaks`: lists the leaks of this node, from a running agent or by a standalone scan of runtime, apiserver
//! and host.

mod agent;
mod answer;
mod scanner;
mod standalone;
mod timing;

use super::{print_note, usage};
use crate::config::args::{LeaksArgs, ListOutput};
use crate::config::{HostDefaults, StandaloneConfig};
use answer::LeaksAnswer;
use coroner_api::client::NoAgent;
use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

/// Exit status with --exit-code if a leak is confirmed.
const EXIT_LEAKS: u8 = 3;

/// When to print a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Now.
    Once,
    /// When all candidates are confirmed or gone.
    Wait,
    /// Whenever the list changes.
    Watch,
}

pub(super) fn main(args: &LeaksArgs) -> anyhow::Result<ExitCode> {
    if let Some(log) = &args.kubelet_log {
        if !is_table(args.output) {
            return Ok(usage(
                "--kubelet-log adds quotes to the text; use it with -o table or wide",
            ));
        }
        if args.watch && log.as_os_str() == "-" {
            return Ok(usage("--kubelet-log - can be read once, not with --watch"));
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(answer(args));
    // A look at the host that hangs (a dead mount) must not keep the process alive.
    runtime.shutdown_background();
    result
}

async fn answer(args: &LeaksArgs) -> anyhow::Result<ExitCode> {
    let mode = match (args.watch, args.wait || args.exit_code) {
        (true, _) => Mode::Watch,
        (false, true) => Mode::Wait,
        (false, false) => Mode::Once,
    };
    let mut out = Printer::new(args);
    if !args.standalone {
        let agent = super::agent(&args.agent)?;
        match agent::answer(&agent, args.namespaces.chosen(), mode, &mut out).await {
            Err(error) if error.is::<NoAgent>() && args.agent.url.is_none() => {
                print_note(&format!(
                    "no agent answers at {}; scanning runtime, apiserver and host instead",
                    args.agent.socket.display()
                ))
            }
            asked => return asked.map(|certain| status(args, certain)),
        }
    }
    match StandaloneConfig::validate(args, &HostDefaults::probe()) {
        Err(error) => Ok(usage(&error.to_string())),
        Ok(look) => {
            let certain = standalone::answer(look, args.namespaces.chosen(), mode, &mut out).await;
            certain.map(|certain| status(args, certain))
        }
    }
}

/// `certain`: the number of confirmed leaks.
fn status(args: &LeaksArgs, certain: usize) -> ExitCode {
    match args.exit_code && certain > 0 {
        true => ExitCode::from(EXIT_LEAKS),
        false => ExitCode::SUCCESS,
    }
}

/// Prints lists to stdout in the requested format.
struct Printer {
    form: ListOutput,
    verbose: bool,
    kubelet_log: Option<PathBuf>,
    with_header: bool,
    since: Option<Duration>,
    /// Each list replaces the previous one on the terminal.
    screen: bool,
    watch: bool,
    /// The list that was printed last.
    printed: Option<answer::Snapshot>,
}

impl Printer {
    fn new(args: &LeaksArgs) -> Self {
        let form = args.output;
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let screen = args.watch && is_table(form) && io::stdout().is_terminal() && !dumb;
        Self {
            form,
            verbose: args.verbose || args.kubelet_log.is_some(),
            kubelet_log: args.kubelet_log.clone(),
            with_header: !args.no_headers,
            since: args.since,
            screen,
            watch: args.watch,
            printed: None,
        }
    }

    /// Prints a list; while watching, only if it changed.
    fn put(&mut self, answer: &LeaksAnswer) -> anyhow::Result<()> {
        let answer = &answer.younger_than(self.since);
        let snapshot = answer.snapshot();
        if self.watch && self.printed.as_ref() == Some(&snapshot) {
            return Ok(());
        }
        let first = self.printed.replace(snapshot).is_none();
        let text = answer.text(self)?;
        let mut stdout = io::stdout().lock();
        if self.screen {
            stdout.write_all(b"\x1b[H\x1b[2J")?;
        } else if self.watch && !first && is_table(self.form) {
            stdout.write_all(b"\n")?;
        }
        if self.watch && is_table(self.form) {
            writeln!(stdout, "{}", answer.moment())?;
        }
        stdout.write_all(text.as_bytes())?;
        stdout.flush()?;
        if is_table(self.form) && answer.is_empty() {
            print_note(&answer.nothing());
        }
        Ok(())
    }
}

fn is_table(form: ListOutput) -> bool {
    matches!(form, ListOutput::Table | ListOutput::Wide)
}

/// Shows the progress on stderr if that is a terminal, and wipes it at the end.
struct Progress {
    shown: bool,
    wanted: bool,
}

impl Progress {
    fn new() -> Self {
        Self { shown: false, wanted: io::stderr().is_terminal() }
    }

    fn show(&mut self, text: &str) {
        if self.wanted {
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
            self.shown = true;
        }
    }

    fn wipe(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
    }
}
