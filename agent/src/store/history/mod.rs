//! The history: terminations, deaths and leaks, in a SQLite database in the state directory, or in memory.
//!
//! One thread has the only connection. The event loop hands reports over and never waits; what finds no room is dropped
//! and counted. Readers ask and await the answer.

mod database;
mod query;
mod row;
mod thread;

pub use query::{Filter, Selected, Stored};

use coroner_core::{
    input::PersistedLeak,
    labels,
    leak::{Leak, LeakKey},
    report::{ContainerDeath, PodTermination},
    time::{Anchor, WallTime},
};
use database::Database;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

/// The database's directory in the state directory, and its file.
const FOLDER: &str = "history";
const FILE: &str = "history.db";
/// Reports of as many containers wait for the thread, of 10 KiB each, usually less.
const ROOM: usize = 2048;
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a history that is in memory only: of some hundred terminations.
const IN_MEMORY: u64 = 4 << 20;

#[derive(Clone, Debug)]
pub struct HistoryOptions {
    /// The state directory; `None`: in memory only.
    pub directory: Option<PathBuf>,
    pub age: Duration,
    pub bytes: u64,
    /// The node's boot; empty if unknown.
    pub boot_id: String,
    /// An exporter takes what is due ([`History::unsent`]).
    pub exports: bool,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        let (age, boot_id) = (Duration::MAX, String::new());
        Self { directory: None, age, bytes: IN_MEMORY, boot_id, exports: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Termination = 0,
    Death = 1,
    Leak = 2,
}

labels! {
    /// What goes wrong with the history. A closed set: it is a metric's label.
    pub enum Fault {
        /// A report was dropped because too many waited to be stored.
        NoRoom = "no_room",
        /// The disk took nothing; what waits is tried again.
        WriteFailed = "write_failed",
        /// A report could not be stored.
        NotStored = "not_stored",
        /// A report could not be read, and was left out of an answer.
        Unreadable = "unreadable",
        /// A report was removed before it was exported.
        NotExported = "not_exported",
        /// The database was not usable, and was set aside.
        SetAside = "set_aside",
    }
}

/// A leak of an earlier run on this boot that was not resolved.
#[derive(Clone, PartialEq, Debug)]
pub struct KeptLeak {
    pub leak: PersistedLeak,
    /// It was posted as an Event.
    pub is_posted: bool,
}

/// A report that is due for export.
#[derive(Clone, PartialEq, Debug)]
pub struct Unsent {
    pub id: i64,
    pub item: Kept,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Kept {
    Termination(Box<PodTermination>),
    Death(Box<ContainerDeath>),
}

/// Handle of the thread, which ends with the last one.
#[derive(Clone, Debug)]
pub struct History {
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    room: Arc<Semaphore>,
    due: Notify,
    faults: [AtomicU64; Fault::ALL.len()],
    bytes: AtomicU64,
    /// When the oldest termination or death ended, ns; 0: there is none.
    oldest: AtomicI64,
}

impl Shared {
    fn count(&self, why: Fault, by: u64) {
        self.faults[why as usize].fetch_add(by, Relaxed);
    }
}

enum Job {
    Write(Write, OwnedSemaphorePermit),
    /// True: the database is corrupt.
    Read(Box<dyn FnOnce(&mut Database) -> bool + Send>),
    /// The database is closed when this is dropped.
    End(oneshot::Sender<()>),
}

enum Write {
    /// `is_final`: it was counted, so it is due for export.
    Termination {
        report: Box<PodTermination>,
        is_final: bool,
    },
    /// `is_of_termination`: it is exported with that.
    Death {
        report: Box<ContainerDeath>,
        is_final: bool,
        is_of_termination: bool,
    },
    LeakOpened {
        leak: Arc<Leak>,
        is_posted: bool,
    },
    LeakResolved(Arc<Leak>),
    /// Leaks of an earlier run were not found again.
    LeaksGone(Vec<LeakKey>),
}

impl History {
    /// Starts the thread, and returns the leaks of this boot that an earlier run found. The error has the remedy.
    pub fn open(options: HistoryOptions) -> anyhow::Result<(Self, Vec<KeptLeak>)> {
        let (jobs, from_jobs) = mpsc::channel();
        let shared = Arc::new(Shared {
            room: Arc::new(Semaphore::new(ROOM)),
            due: Notify::new(),
            faults: Default::default(),
            bytes: AtomicU64::new(0),
            oldest: AtomicI64::new(0),
        });
        let leaks = thread::start(options, from_jobs, Arc::clone(&shared), OPEN_TIMEOUT)?;
        Ok((Self { jobs, shared }, leaks))
    }

    /// For what keeps nothing on disk.
    #[expect(clippy::expect_used, clippy::missing_panics_doc, reason = "memory is enough")]
    pub fn in_memory() -> Self {
        Self::open(HistoryOptions::default()).expect("a history in memory").0
    }

    /// Takes the first report of a pod's incarnation, or a later one, which replaces it.
    pub fn terminated(&self, report: Box<PodTermination>, is_final: bool) {
        let room = 1 + report.containers.len();
        self.write(Write::Termination { report, is_final }, room);
    }

    pub fn died(&self, report: Box<ContainerDeath>, is_final: bool) {
        self.write(Write::Death { report, is_final, is_of_termination: false }, 1);
    }

    /// Takes the final report of a death that is part of a termination.
    pub fn died_with_pod(&self, report: Box<ContainerDeath>) {
        self.write(Write::Death { report, is_final: true, is_of_termination: true }, 1);
    }

    pub fn leak_opened(&self, leak: Arc<Leak>, is_posted: bool) {
        self.write(Write::LeakOpened { leak, is_posted }, 1);
    }

    pub fn leak_resolved(&self, leak: Arc<Leak>) {
        self.write(Write::LeakResolved(leak), 1);
    }

    pub fn leaks_gone(&self, keys: Vec<LeakKey>) {
        self.write(Write::LeaksGone(keys), 1);
    }

    fn write(&self, write: Write, room: usize) {
        let room = u32::try_from(room.min(ROOM)).unwrap_or(u32::MAX);
        // The thread ends after this handle.
        match Arc::clone(&self.shared.room).try_acquire_many_owned(room) {
            Ok(permit) => drop(self.jobs.send(Job::Write(write, permit))),
            Err(_) => self.shared.count(Fault::NoRoom, 1),
        }
    }

    /// Asks the thread, after what was reported before. An error is the text for readers.
    async fn ask<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Database) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let (reply, answer) = oneshot::channel();
        let read = move |database: &mut Database| {
            // Many who ask and do not wait keep nobody else waiting.
            if reply.is_closed() {
                return false;
            }
            let found = read(database);
            let is_corrupt = found.as_ref().is_err_and(database::is_corrupt);
            // An error: nobody waits for it any more.
            let _ = reply.send(found.map_err(|error| format!("cannot read the history: {error}")));
            is_corrupt
        };
        let _ = self.jobs.send(Job::Read(Box::new(read)));
        answer.await.unwrap_or_else(|_| Err("the history has ended".to_owned()))
    }

    /// The rows that match, to be read with [`History::stored`]. `clock` maps the times of this boot.
    pub async fn select(
        &self,
        kind: Kind,
        filter: Filter,
        clock: Anchor,
    ) -> Result<Selected, String> {
        self.ask(move |database| query::select(database, kind, &filter, &clock)).await
    }

    /// What these rows hold; those that were removed meanwhile are left out.
    pub async fn stored(&self, ids: Vec<i64>) -> Result<Vec<Stored>, String> {
        self.ask(move |database| query::stored(database, &ids)).await
    }

    /// Counts what could not be read.
    pub fn unreadable(&self) {
        self.shared.count(Fault::Unreadable, 1);
    }

    /// The oldest reports that are due for export.
    pub async fn unsent(&self, limit: usize) -> Vec<Unsent> {
        let found = self.ask(move |database| query::unsent(database, limit)).await;
        let mut unsent = Vec::new();
        for stored in found.unwrap_or_default() {
            let item = match stored.kind {
                Kind::Termination => stored.read().map(Box::new).map(Kept::Termination),
                Kind::Death => stored.read().map(Box::new).map(Kept::Death),
                Kind::Leak => None,
            };
            match item {
                Some(item) => unsent.push(Unsent { id: stored.id, item }),
                None => {
                    self.unreadable();
                    self.sent(vec![stored.id]).await; // else it would be found again
                }
            }
        }
        unsent
    }

    /// Marks what was exported, or is not to be. False: the disk does not take it, and they are still due.
    pub async fn sent(&self, ids: Vec<i64>) -> bool {
        self.ask(move |database| database.sent(&ids)).await.is_ok()
    }

    /// Number of reports that are due for export.
    pub async fn unsent_count(&self) -> u64 {
        self.ask(query::unsent_count).await.unwrap_or_default()
    }

    /// Returns when a report has become due since the last call.
    pub async fn until_due(&self) {
        self.shared.due.notified().await;
    }

    /// Returns when all that was reported is stored, or could not be.
    pub async fn flush(&self) {
        let _ = self.ask(|_| Ok(())).await;
    }

    /// Stores all that was reported, and closes the database. Other handles find nothing from then on.
    pub async fn end(self) {
        let (reply, is_closed) = oneshot::channel();
        let _ = self.jobs.send(Job::End(reply));
        let _ = is_closed.await;
    }

    pub fn faults(&self) -> BTreeMap<Fault, u64> {
        Fault::ALL
            .iter()
            .map(|why| (*why, self.shared.faults[*why as usize].load(Relaxed)))
            .collect()
    }

    /// Bytes of the database's files.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Relaxed)
    }

    /// When the oldest termination or death ended.
    pub fn oldest(&self) -> Option<WallTime> {
        Some(self.shared.oldest.load(Relaxed)).filter(|at| *at != 0).map(WallTime)
    }
}

#[cfg(test)]
mod tests;
