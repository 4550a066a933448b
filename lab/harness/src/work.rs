//! How every run of the lab begins and ends, whatever it is for.

use crate::console::Screen;
use anyhow::Context as _;
use std::{
    fmt, fs,
    path::{Path, PathBuf},
};
use tokio::signal::unix::{SignalKind, signal};

/// The agent's log, in the work directory.
pub const AGENT_LOG: &str = "agent.log";

/// Made, without an earlier run's log, and absolute: the runtime has another working directory.
pub fn work_directory(work: &Path) -> anyhow::Result<PathBuf> {
    let work = fs::create_dir_all(work)
        .and_then(|()| work.canonicalize())
        .with_context(|| format!("cannot make {}", work.display()))?;
    let _ = fs::remove_file(work.join(AGENT_LOG));
    Ok(work)
}

/// Leaves the work directory; with the agent's log if somebody should read it.
pub fn leave(work: &Path, worth_reading: bool, screen: Screen) {
    let log = work.join(AGENT_LOG);
    if worth_reading && log.exists() {
        screen.step(&format!("the agent's log is kept: {}", log.display()));
        return;
    }
    let _ = fs::remove_file(&log);
    // Somebody else's files may be in it; then it stays.
    let _ = fs::remove_dir(work);
}

/// Ctrl-C or SIGTERM ended the run.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// It failed, and nobody wanted it to.
pub fn went_wrong<T>(result: &anyhow::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| !error.is::<Interrupted>())
}

/// Resolves at Ctrl-C or SIGTERM.
pub async fn interrupted() {
    let (Ok(mut term), Ok(mut int)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Does this; lets go of it where it stands when the run is [`Interrupted`], which is the error then.
pub async fn unless_interrupted<T>(
    screen: Screen,
    what: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        result = what => result,
        () = interrupted() => {
            screen.step("interrupted: taking everything down");
            Err(Interrupted.into())
        }
    }
}
