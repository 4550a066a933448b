//! Long steps that show what they do: one live line on a terminal, plain lines elsewhere.
//!
//! Everything goes to stderr, so that stdout belongs to the product (`run --json`).

use std::{
    env,
    io::{BufRead as _, BufReader, IsTerminal as _, Read, Write as _},
    process::{Command, ExitStatus, Stdio},
    sync::{
        LazyLock, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// How often a step that is still running says so where there is no terminal.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// A step quicker than this leaves no trace: a second run should be silent.
const WORTH_SAYING: Duration = Duration::from_millis(1500);
/// How much of a failed command's output is shown.
const TAIL_LINES: usize = 60;

/// The live lines of all steps that run at once; on stderr.
static LIVE: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// What a command that succeeded wrote.
#[derive(Debug)]
pub(crate) struct Output {
    /// Its standard output, as text.
    pub(crate) stdout: String,
}

/// What a command wrote, and whether it succeeded.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Whether it exited with 0.
    pub(crate) success: bool,
    /// Its standard output and standard error, as they came.
    pub(crate) text: String,
}

/// Runs `command` as the step `title`; its output is swallowed, save for warnings, and shown when it fails.
///
/// # Errors
/// When the command cannot be started or exits non-zero; the end of its output is part of the error.
pub(crate) fn step(title: &str, command: &mut Command) -> Result<Output> {
    let ran = drive(title, command)?;
    let told: Vec<&str> = if ran.stderr().any(|text| !text.trim().is_empty()) {
        ran.stderr().collect()
    } else {
        ran.stdout().collect()
    };
    if !ran.status.success() {
        let from = told.len().saturating_sub(TAIL_LINES);
        let program = command.get_program().to_string_lossy();
        bail!("{title}: `{program}`: {}\n{}", ran.status, told[from..].join("\n"));
    }
    warnings(&told).for_each(note);
    Ok(Output { stdout: ran.stdout().fold(String::new(), |text, line| text + line + "\n") })
}

/// Runs `command` as the step `title` and returns what it wrote, however it ended.
///
/// # Errors
/// When the command cannot be started.
pub(crate) fn capture(title: &str, command: &mut Command) -> Result<Captured> {
    let ran = drive(title, command)?;
    let lines: Vec<&str> = ran.lines.iter().map(|(_, text)| text.as_str()).collect();
    Ok(Captured { success: ran.status.success(), text: lines.join("\n") })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

struct Ran {
    status: ExitStatus,
    lines: Vec<(Stream, String)>,
}

impl Ran {
    fn stdout(&self) -> impl Iterator<Item = &str> {
        self.of(Stream::Stdout)
    }

    fn stderr(&self) -> impl Iterator<Item = &str> {
        self.of(Stream::Stderr)
    }

    fn of(&self, stream: Stream) -> impl Iterator<Item = &str> {
        self.lines.iter().filter(move |line| line.0 == stream).map(|line| line.1.as_str())
    }
}

fn drive(title: &str, command: &mut Command) -> Result<Ran> {
    let line = ProgressLine::begin(title);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{title}: cannot start `{program}`"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let lines = Mutex::new(Vec::new());
    let latest = Mutex::new(String::new());
    let (done, finished) = mpsc::channel::<()>();
    let status = thread::scope(|scope| {
        let (line, latest) = (&line, &latest);
        let listen = |stream, pipe: Option<Box<dyn Read + Send>>| {
            let lines = &lines;
            scope.spawn(move || {
                let Some(pipe) = pipe else { return };
                // A broken pipe ends the reading; the exit status tells the rest.
                for text in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                    let text = String::from_utf8_lossy(&text).trim_end().to_owned();
                    // JSON messages are for us, not for a person.
                    if !text.starts_with('{') && !text.is_empty() {
                        lock(latest).clone_from(&text);
                        line.say(text.trim());
                    }
                    lock(lines).push((stream, text));
                }
            })
        };
        let out = listen(Stream::Stdout, stdout.map(|pipe| Box::new(pipe) as _));
        let err = listen(Stream::Stderr, stderr.map(|pipe| Box::new(pipe) as _));
        scope.spawn(move || {
            while finished.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
                line.heartbeat(lock(latest).trim());
            }
        });
        let status = child.wait();
        let _ = (out.join(), err.join());
        drop(done);
        status
    })
    .with_context(|| format!("{title}: cannot wait for `{program}`"))?;
    if status.success() {
        line.done();
    } else {
        line.failed();
    }
    Ok(Ran { status, lines: lines.into_inner().unwrap_or_else(PoisonError::into_inner) })
}

/// Says one line on stderr.
pub(crate) fn note(text: &str) {
    // Nobody to tell when stderr is gone.
    let _ = LIVE.suspend(|| writeln!(std::io::stderr(), "{text}"));
}

/// cargo's and rustc's output without the chatter of a successful build.
fn warnings<'a>(log: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    const CHATTER: [&str; 16] = [
        "Adding",
        "Blocking",
        "Building",
        "Checking",
        "Compiling",
        "Downloaded",
        "Downloading",
        "Executable",
        "Finished",
        "Fresh",
        "Installed",
        "Installing",
        "Locking",
        "Replacing",
        "Running",
        "Updating",
    ];
    let cargo = log.iter().any(|line| line.trim_start().starts_with("Finished"));
    log.iter().copied().filter(move |_| cargo).filter(|line| {
        let first = line.split_whitespace().next().unwrap_or("");
        !first.is_empty() && !CHATTER.contains(&first)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line of one step.
pub(crate) struct ProgressLine {
    title: String,
    begun: Instant,
    bar: Option<ProgressBar>,
}

impl ProgressLine {
    /// Begins a step.
    pub(crate) fn begin(title: &str) -> Self {
        let live = std::io::stderr().is_terminal() && env::var_os("CI").is_none();
        let bar = live.then(|| {
            let bar = LIVE.add(ProgressBar::no_length());
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg}")
            {
                bar.set_style(style);
            }
            bar.set_prefix(title.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { title: title.to_owned(), begun: Instant::now(), bar }
    }

    /// What the step is at.
    pub(crate) fn say(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
    }

    /// Says that the step is still running, where no live line shows it.
    pub(crate) fn heartbeat(&self, latest: &str) {
        if self.bar.is_none() {
            note(&format!("   {}: {} … {latest}", self.title, elapsed(self.begun.elapsed())));
        }
    }

    /// Ends the step well.
    pub(crate) fn done(&self) {
        self.end('✔', self.begun.elapsed() >= WORTH_SAYING);
    }

    /// Ends the step badly.
    pub(crate) fn failed(&self) {
        self.end('✘', true);
    }

    /// Ends the step, with what it came to.
    pub(crate) fn conclude(&self, well: bool, what: &str) {
        self.clear();
        let mark = if well { '✔' } else { '✘' };
        note(&format!("{mark} {}: {what} ({})", self.title, elapsed(self.begun.elapsed())));
    }

    fn end(&self, mark: char, say: bool) {
        self.clear();
        if say {
            note(&format!("{mark} {} ({})", self.title, elapsed(self.begun.elapsed())));
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A duration as a person says it.
pub(crate) fn elapsed(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..10 => format!("{seconds}.{} s", time.subsec_millis() / 100),
        seconds @ 10..60 => format!("{seconds} s"),
        seconds => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(elapsed(Duration::from_millis(1_260)), "1.2 s");
        assert_eq!(elapsed(Duration::from_secs(42)), "42 s");
        assert_eq!(elapsed(Duration::from_secs(125)), "2 min 05 s");
    }

    #[test]
    fn a_build_keeps_its_warnings_and_loses_its_chatter() {
        let log = ["   Compiling a v1", "warning: unused", "", "    Finished `dev`"];
        assert_eq!(warnings(&log).collect::<Vec<_>>(), ["warning: unused"]);
    }

    #[test]
    fn a_failing_command_says_why() {
        let error = step("trying", Command::new("sh").args(["-c", "echo the reason >&2; exit 3"]))
            .expect_err("exit 3 is a failure");
        let text = format!("{error:#}");
        assert!(text.contains("the reason") && text.contains('3'), "{text}");
    }

    #[test]
    fn a_command_s_stdout_is_returned() {
        let output = step("trying", Command::new("sh").args(["-c", "echo out"])).expect("runs");
        assert_eq!(output.stdout, "out\n");
    }
}
