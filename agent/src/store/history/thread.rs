//! The thread that has the database: it writes what was reported within a moment together, and answers readers.

use super::{
    FOLDER, Fault, HistoryOptions, Job, KeptLeak, Shared, Write,
    database::{Database, is_corrupt},
};
use crate::linux::{
    landlock::{self, FileAccess},
    privileges,
};
use anyhow::{Context, anyhow};
use rusqlite::ErrorCode;
use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::{debug, error, info, warn};

/// Reports of this time are written together.
const GATHER: Duration = Duration::from_millis(200);
/// At most so many.
const BATCH: usize = 64;
const RETRY: Duration = Duration::from_secs(1);
/// When what is too old is removed.
const SHRINK: Duration = Duration::from_secs(60);

/// Starts the thread; the leaks that an earlier run of this boot found.
pub(super) fn start(
    options: HistoryOptions,
    jobs: Receiver<Job>,
    shared: Arc<Shared>,
    limit: Duration,
) -> anyhow::Result<Vec<KeptLeak>> {
    let (opened, is_open) = sync_channel(1);
    let directory = options.directory.clone();
    let run = move || match open(options, shared) {
        Err(error) => drop(opened.send(Err(error))),
        Ok((mut worker, leaks)) => {
            if opened.send(Ok(leaks)).is_ok() {
                let closed = worker.work(&jobs);
                drop(worker);
                drop(closed);
            }
        }
    };
    thread::Builder::new()
        .name("history".into())
        .spawn(run)
        .context("cannot start the thread of the history")?;
    let opened = is_open.recv_timeout(limit).unwrap_or_else(|_| Err(anyhow!("it does not answer")));
    opened.with_context(|| {
        format!(
            "cannot keep the history in {}; set --state-dir to a writable directory that no other agent uses, \
             or --history-age 0",
            directory.unwrap_or_default().display()
        )
    })
}

fn open(options: HistoryOptions, shared: Arc<Shared>) -> anyhow::Result<(Worker, Vec<KeptLeak>)> {
    let directory = options.directory.as_deref().map(make).transpose()?;
    // SQLite reads its seed from /dev/urandom once, which is out of reach later.
    rusqlite::Connection::open_in_memory()?.query_row("SELECT random()", [], |_| Ok(()))?;
    privileges::keep_none(false)?;
    let own = directory.clone().map_or(FileAccess::Opened, FileAccess::Write);
    if let Err(why) = landlock::restrict(&own) {
        debug!(why, "the thread of the history is not restricted");
    }
    let opened = Database::open(directory.as_deref(), &options, &shared);
    let (database, is_full) = match opened {
        // Leaks matter most where the disk is full.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
            (Database::open(None, &options, &shared)?, Some(error))
        }
        opened => (opened?, None),
    };
    let leaks = database.open_leaks()?;
    let mut worker = Worker { database, options, shared, batch: Vec::new(), is_failing: false };
    if let Some(error) = is_full {
        error!(%error, "cannot begin a history (--state-dir); it is in memory until the next start");
        worker.shared.count(Fault::WriteFailed, 1);
    } else if let Err(error) = worker.database.take_over() {
        worker.failed(&error);
    }
    Ok((worker, leaks))
}

/// The directory of the database, for this user only.
fn make(state: &Path) -> anyhow::Result<PathBuf> {
    let directory = state.join(FOLDER);
    std::fs::create_dir_all(state)?;
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && directory.is_dir() => {}
        made => made?,
    }
    Ok(directory)
}

struct Worker {
    database: Database,
    options: HistoryOptions,
    shared: Arc<Shared>,
    /// What is not stored yet; as long as the disk takes nothing, until there is no room for more.
    batch: Vec<(Write, OwnedSemaphorePermit)>,
    is_failing: bool,
}

impl Worker {
    /// Returns what is to be dropped once the database is closed.
    fn work(&mut self, jobs: &Receiver<Job>) -> Option<oneshot::Sender<()>> {
        // Not before the agent has started: there may be days to remove.
        self.shrink();
        let (mut due, mut shrinks, mut closed) = (None, Instant::now() + SHRINK, None);
        loop {
            let next: Instant = due.unwrap_or(shrinks).min(shrinks);
            let job = jobs.recv_timeout(next.saturating_duration_since(Instant::now()));
            let is_over = matches!(job, Err(RecvTimeoutError::Disconnected) | Ok(Job::End(_)));
            match job {
                Ok(Job::Write(write, permit)) => {
                    self.batch.push((write, permit));
                    let pause = if self.is_failing { RETRY } else { GATHER };
                    due.get_or_insert_with(|| Instant::now() + pause);
                    if self.batch.len() < BATCH || self.is_failing {
                        continue;
                    }
                    due = self.store();
                }
                Ok(Job::Read(read)) => {
                    due = self.store();
                    if read(&mut self.database) {
                        self.database.begin_again(&self.options, "it is corrupt");
                    }
                }
                Ok(Job::End(reply)) => {
                    self.store();
                    closed = Some(reply);
                }
                Err(_) => due = self.store(),
            }
            if is_over {
                return closed;
            }
            if Instant::now() >= shrinks {
                shrinks = Instant::now() + SHRINK;
                self.shrink();
            }
        }
    }

    fn shrink(&mut self) {
        let shrunk = self.database.shrink();
        shrunk.unwrap_or_else(|error| self.failed(&error));
    }

    /// Stores what waits; when to try again, if that is not possible.
    fn store(&mut self) -> Option<Instant> {
        while !self.batch.is_empty() {
            let some = self.batch.len().min(BATCH);
            let stored = self.database.write(self.batch[..some].iter().map(|(write, _)| write));
            if let Err(error) = stored {
                self.failed(&error);
                return Some(Instant::now() + RETRY);
            }
            self.batch.drain(..some);
            if std::mem::take(&mut self.is_failing) {
                info!("the history is stored again");
            }
        }
        None
    }

    fn failed(&mut self, error: &rusqlite::Error) {
        if is_corrupt(error) {
            return self.database.begin_again(&self.options, &error.to_string());
        }
        self.shared.count(Fault::WriteFailed, 1);
        if !std::mem::replace(&mut self.is_failing, true) {
            warn!(
                %error,
                "cannot store the history (--state-dir); what was stored is kept, and what comes waits while \
                 there is room. Retrying every second"
            );
        }
    }
}
