//! The steps of a command, one line each on stderr: stdout belongs to what a command was started for (`run --json`).

use std::{
    io::{self, BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

/// How much of a failed command's output is part of the error.
const TAIL_LINES: usize = 60;

/// Prints one line.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

/// Runs `command` as the step `title` and returns what it wrote to stdout. Its output is shown only if it fails.
///
/// # Errors
/// The command cannot be started or fails; the end of its output is part of the error.
pub(crate) fn step(title: &str, command: &mut Command) -> Result<String> {
    note(&format!("→ {title}"));
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{title}: cannot start {program}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let text = stdout + &String::from_utf8_lossy(&output.stderr);
        bail!("{title}: {program}: {}\n{}", output.status, tail(&text, TAIL_LINES));
    }
    Ok(stdout)
}

/// The same with stderr shown as it comes: cargo shows its own progress there.
///
/// # Errors
/// The command cannot be started or fails.
pub(crate) fn show(title: &str, command: &mut Command) -> Result<String> {
    note(&format!("→ {title}"));
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{title}: cannot start {program}"))?;
    if !output.status.success() {
        bail!("{title}: {program}: {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command` and prints its lines as they come, each with `name` before it. Returns whether it succeeded, and all
/// that it wrote.
///
/// # Errors
/// The command cannot be started.
pub(crate) fn tee(name: &str, mut command: Command) -> Result<(bool, String)> {
    let (reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("{name}: cannot start {command:?}"))?;
    drop(command); // and with it this process's ends of the pipe
    let mut text = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if !line.trim().is_empty() {
            println!("{name}: {line}");
        }
        text += &line;
        text.push('\n');
    }
    Ok((child.wait()?.success(), text))
}

/// Does it with each of `items`, with as many at once as this machine has CPUs.
pub(crate) fn at_once<T: Sync>(items: &[T], run: impl Fn(&T) + Sync) {
    let waiting = Mutex::new(items.iter());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let count = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while let Some(item) = next() {
                    run(item);
                }
            });
        }
    });
}

/// What a quick question printed, if the program exists and succeeds.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The last lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A duration, as minutes and seconds.
pub(crate) fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}
