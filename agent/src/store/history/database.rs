//! The database: its schema, its bounds, and what is written to it.

use super::{
    FILE, Fault, HistoryOptions, IN_MEMORY, KeptLeak, Kind, Shared, Write,
    row::{Row, leak_key, parse_leak_key},
};
use crate::linux::clock;
use coroner_core::{
    input::PersistedLeak,
    time::{BootTime, Moment},
};
use rusqlite::{
    Connection, Error, ErrorCode, OpenFlags, OptionalExtension, Transaction, named_params, params,
};
use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tracing::{error, warn};

/// Version of the schema. An older one is migrated here, a newer one set aside.
const VERSION: i64 = 1;
/// Marks the file as ours ("coro").
const APPLICATION: i64 = 0x636f_726f;
const PAGE: u64 = 4096;
/// The file of another agent is waited for: the one before may be about to end.
const BUSY: Duration = Duration::from_secs(1);
/// The log of changes (WAL) is at most about as large, and a quarter of the history.
const LOG: u64 = 2 << 20;
/// Numbers of changes that are left out at each start.
const SKIPPED: u64 = 1 << 20;
/// Rows that are removed together.
const REMOVED: u64 = 64;

const SCHEMA: &str = "
CREATE TABLE meta (database INTEGER NOT NULL, change INTEGER NOT NULL);
CREATE TABLE items (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind INTEGER NOT NULL, key TEXT NOT NULL, change INTEGER NOT NULL, boot TEXT NOT NULL,
    namespace TEXT, pod TEXT, uid TEXT, life INTEGER, workload TEXT, ended INTEGER, ended_boot INTEGER, took INTEGER,
    cause TEXT NOT NULL, findings TEXT NOT NULL, parts TEXT NOT NULL,
    export INTEGER NOT NULL DEFAULT 0, state INTEGER NOT NULL DEFAULT 0, first INTEGER, posted INTEGER NOT NULL DEFAULT 0,
    UNIQUE (kind, key));
CREATE INDEX changed ON items (kind, change);
CREATE INDEX due ON items (export) WHERE export = 1;
CREATE TABLE reports (id INTEGER PRIMARY KEY, report BLOB NOT NULL);
CREATE TRIGGER removed AFTER DELETE ON items BEGIN DELETE FROM reports WHERE id = old.id; END;
";

/// The column `export`.
const NOT_FINAL: i64 = 0;
const DUE: i64 = 1;
const SENT: i64 = 2;

/// The column `state`, of leaks.
const OPEN: i64 = 0;
pub(super) const RESOLVED: i64 = 1;

#[derive(Debug)]
pub(super) struct Database {
    pub(super) connection: Connection,
    /// Random: a cursor of another database begins again.
    pub(super) id: u32,
    pub(super) boot: String,
    /// The last change that is stored.
    pub(super) change: u64,
    file: Option<PathBuf>,
    age: Duration,
    exports: bool,
    /// Bytes of the database without its log.
    most: u64,
    shared: Arc<Shared>,
}

pub(super) fn is_corrupt(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// The disk is at fault, so that the same write may succeed later.
pub(super) fn is_of_disk(error: &Error) -> bool {
    use ErrorCode::*;
    matches!(
        error.sqlite_error_code(),
        Some(
            DiskFull
                | SystemIoFailure
                | ReadOnly
                | CannotOpen
                | OutOfMemory
                | DatabaseBusy
                | DatabaseLocked
                | PermissionDenied
        )
    )
}

impl Database {
    /// Opens the file, or sets it aside and begins a new one. The directory exists.
    pub(super) fn open(
        directory: Option<&Path>,
        options: &HistoryOptions,
        shared: &Arc<Shared>,
    ) -> rusqlite::Result<Self> {
        let file = directory.map(|directory| directory.join(FILE));
        let open = || Self::connect(file.clone(), options, Arc::clone(shared));
        match (open(), &file) {
            (Err(error), Some(file)) if is_corrupt(&error) => {
                set_aside(file, &error.to_string(), shared);
                open()
            }
            (opened, _) => opened,
        }
    }

    fn connect(
        file: Option<PathBuf>,
        options: &HistoryOptions,
        shared: Arc<Shared>,
    ) -> rusqlite::Result<Self> {
        let bytes = if file.is_some() { options.bytes } else { IN_MEMORY };
        let log = if file.is_some() { LOG.min(bytes / 4) } else { 0 };
        let most = bytes - log;
        let mut connection = match &file {
            Some(file) => {
                // With its permissions before SQLite has it.
                let made = OpenOptions::new().create(true).append(true).mode(0o600).open(file);
                made.map_err(cannot_open)?;
                let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                Connection::open_with_flags(file, flags)?
            }
            None => Connection::open_in_memory()?,
        };
        connection.busy_timeout(BUSY)?;
        let is_new =
            file.as_ref().is_none_or(|file| fs::metadata(file).is_ok_and(|it| it.len() == 0));
        if is_new {
            // Of an existing one it would write, for which there may be no room.
            connection.execute_batch(&format!(
                "PRAGMA page_size = {PAGE}; PRAGMA auto_vacuum = INCREMENTAL;"
            ))?;
        }
        connection.execute_batch(&format!(
            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -512;
             PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF; PRAGMA journal_size_limit = {log};
             PRAGMA wal_autocheckpoint = {}; PRAGMA max_page_count = {};",
            (log / PAGE / 2).max(1),
            most / PAGE,
        ))?;
        let (id, change) = prepare(&mut connection)?;
        // What is in memory is of this boot, whichever it is.
        let boot = if file.is_some() { options.boot_id.clone() } else { "this".to_owned() };
        let (age, exports) = (options.age, options.exports);
        Ok(Self { connection, id, boot, change, file, age, exports, most, shared })
    }

    /// Begins again, as the file is corrupt: in memory if nothing else works.
    pub(super) fn begin_again(&mut self, options: &HistoryOptions, why: &str) {
        let Some(file) = self.file.clone() else { return };
        if let Ok(nothing) = Connection::open_in_memory() {
            self.connection = nothing; // closes the file
        }
        set_aside(&file, why, &self.shared);
        let shared = Arc::clone(&self.shared);
        let begun = Self::connect(Some(file), options, Arc::clone(&shared)).or_else(|failure| {
            error!(%failure, "cannot begin the history again; it is in memory until the next start");
            Self::connect(None, options, shared)
        });
        if let Ok(begun) = begun {
            *self = begun;
        }
    }

    /// The leaks of this boot that were not resolved.
    pub(super) fn open_leaks(&self) -> rusqlite::Result<Vec<KeptLeak>> {
        let mut open = self.connection.prepare(
            "SELECT key, first, posted FROM items WHERE kind = ?1 AND state <> ?2 AND boot = ?3 AND boot <> '' ORDER BY key",
        )?;
        let leaks = open.query_map(params![Kind::Leak as i64, RESOLVED, self.boot], |row| {
            let key = parse_leak_key(&row.get::<_, String>(0)?);
            let first_observed = BootTime(row.get::<_, i64>(1)?.cast_unsigned());
            let leak = key.map(|key| PersistedLeak { key, first_observed });
            Ok(leak.zip(Some(row.get(2)?)))
        })?;
        let leaks = leaks.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten();
        Ok(leaks.map(|(leak, is_posted)| KeptLeak { leak, is_posted }).collect())
    }

    /// At the start: what an earlier run had not counted is due now, and leaks of another boot are gone with it.
    pub(super) fn take_over(&mut self) -> rusqlite::Result<()> {
        let change = self.connection.transaction()?;
        if self.exports {
            let finish = "UPDATE items SET export = ?1 WHERE export = ?2 AND kind <> ?3";
            change.execute(finish, params![DUE, NOT_FINAL, Kind::Leak as i64])?;
        }
        change.execute(
            "UPDATE items SET state = ?1, ended = ?2 WHERE kind = ?3 AND state <> ?1 AND (boot <> ?4 OR boot = '')",
            params![RESOLVED, now().time.0, Kind::Leak as i64, self.boot],
        )?;
        change.commit()?;
        self.measure()
    }

    pub(super) fn sent(&mut self, ids: &[i64]) -> rusqlite::Result<()> {
        let marked = self.connection.transaction().and_then(|change| {
            for id in ids {
                let sent = "UPDATE items SET export = ?1 WHERE id = ?2";
                change.execute(sent, params![SENT, id])?;
            }
            change.commit()
        });
        marked.inspect_err(|_| self.shared.count(Fault::WriteFailed, 1))
    }

    /// Writes all or, if the disk does not take it, nothing.
    pub(super) fn write<'a>(
        &mut self,
        writes: impl Iterator<Item = &'a Write>,
    ) -> rusqlite::Result<()> {
        let (mut last, mut lost, mut is_due) = (self.change, 0, false);
        let rows: Vec<_> = writes.map(|write| (write, self.row(write))).collect();
        let room = |(_, row): &(&Write, Option<Row>)| {
            row.as_ref().map_or(0, |row| (row.report.len() + row.parts.len()) as u64) + PAGE
        };
        let room: u64 = rows.iter().map(room).sum();
        let begun = self.connection.transaction()?;
        let unsent = make_room(&begun, self.most.saturating_sub(2 * room))?;
        for (write, row) in &rows {
            let written = match (write, row) {
                (Write::LeaksGone(keys), _) => keys.iter().try_for_each(|key| {
                    let gone = "UPDATE items SET state = ?1, ended = ?2, ended_boot = ?3
                                WHERE kind = ?4 AND key = ?5";
                    let (now, key) = (now(), leak_key(key, &self.boot));
                    let kind = Kind::Leak as i64;
                    let boot = now.boot.0.cast_signed();
                    begun.execute(gone, params![RESOLVED, now.time.0, boot, kind, key])?;
                    Ok(())
                }),
                (_, None) => Ok(()),
                // One that is out of all proportion would displace the others.
                (_, Some(row)) if row.report.len() as u64 > self.most / 16 => {
                    lost += 1;
                    Ok(())
                }
                (write, Some(row)) => {
                    let marks = Marks::of(write, self.exports);
                    is_due |= marks.export == DUE;
                    put(&begun, row, &marks, &self.boot, &mut last)
                }
            };
            match written {
                Err(error) if is_of_disk(&error) || is_corrupt(&error) => return Err(error),
                Err(error) => {
                    warn!(%error, "a report is not stored in the history");
                    lost += 1;
                }
                Ok(()) => {}
            }
        }
        begun.execute("UPDATE meta SET change = ?1", [last.cast_signed()])?;
        begun.commit()?;
        self.change = last;
        self.shared.count(Fault::NotStored, lost);
        self.removed(unsent);
        if is_due {
            self.shared.due.notify_one();
        }
        self.measure()
    }

    fn row(&self, write: &Write) -> Option<Row> {
        match write {
            Write::Termination { report, .. } => Some(Row::of_termination(report)),
            Write::Death { report, .. } => {
                let mut report = report.clone();
                report.date(&clock::anchor());
                Some(Row::of_death(&report))
            }
            Write::LeakOpened { leak, .. } | Write::LeakResolved(leak) => {
                Some(Row::of_leak(leak, &self.boot))
            }
            Write::LeaksGone(_) => None,
        }
    }

    /// Removes what is too old, and gives pages back if the bound is lower than it was.
    pub(super) fn shrink(&mut self) -> rusqlite::Result<()> {
        let age = i64::try_from(self.age.as_nanos()).unwrap_or(i64::MAX);
        let now = now();
        let (wall, boot) =
            (now.time.0.saturating_sub(age), now.boot.0.cast_signed().saturating_sub(age));
        let mut unsent = 0;
        loop {
            let old = "SELECT id FROM items WHERE (kind <> :leak OR state = :resolved)
                       AND iif(boot = :own AND boot <> '', ended_boot < :boot, ended < :wall) LIMIT :most";
            let (leak, most) = (Kind::Leak as i64, REMOVED.cast_signed());
            let own = &self.boot;
            let params = named_params! {
                ":leak": leak, ":resolved": RESOLVED, ":own": own, ":boot": boot, ":wall": wall, ":most": most,
            };
            let (removed, of_them) = remove(&self.connection, old, params)?;
            unsent += of_them;
            if removed < REMOVED {
                break;
            }
        }
        unsent += make_room(&self.connection, self.most)?;
        self.removed(unsent);
        let pages = pragma(&self.connection, "page_count")?;
        if pages > self.most / PAGE {
            self.connection
                .execute_batch("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE);")?;
        }
        self.measure()
    }

    fn measure(&self) -> rusqlite::Result<()> {
        let bytes = match &self.file {
            Some(file) => [file.clone(), with_suffix(file, "-wal")]
                .iter()
                .filter_map(|file| Some(fs::metadata(file).ok()?.len()))
                .sum(),
            None => pragma(&self.connection, "page_count")? * PAGE,
        };
        self.shared.bytes.store(bytes, Relaxed);
        let oldest = "SELECT ended FROM items WHERE kind <> ?1 ORDER BY id LIMIT 1";
        let oldest: Option<Option<i64>> =
            self.connection.query_row(oldest, [Kind::Leak as i64], |row| row.get(0)).optional()?;
        self.shared.oldest.store(oldest.flatten().unwrap_or(0), Relaxed);
        Ok(())
    }

    fn removed(&self, unsent: u64) {
        if self.exports {
            self.shared.count(Fault::NotExported, unsent);
        }
    }
}

/// What a write says beside the report.
struct Marks {
    export: i64,
    state: i64,
    first: Option<i64>,
    is_posted: bool,
}

impl Marks {
    fn of(write: &Write, exports: bool) -> Self {
        let mut marks = Self { export: NOT_FINAL, state: OPEN, first: None, is_posted: false };
        match write {
            Write::Death { is_of_termination: true, .. } => marks.export = SENT,
            Write::Termination { is_final, .. } | Write::Death { is_final, .. } => {
                marks.export = match (is_final, exports) {
                    (false, _) => NOT_FINAL,
                    (true, true) => DUE,
                    (true, false) => SENT,
                };
            }
            Write::LeakOpened { leak, is_posted } => {
                marks.first = Some(leak.first_observed.boot.0.cast_signed());
                marks.is_posted = *is_posted;
            }
            Write::LeakResolved(leak) => {
                marks.first = Some(leak.first_observed.boot.0.cast_signed());
                marks.state = RESOLVED;
            }
            Write::LeaksGone(_) => {}
        }
        marks
    }
}

/// Stores a row, or replaces what is known by its key. What is the same is no change.
fn put(
    to: &Transaction<'_>,
    row: &Row,
    marks: &Marks,
    boot: &str,
    last: &mut u64,
) -> rusqlite::Result<()> {
    let kind = row.kind as i64;
    if let Some(began) = row.began {
        // A static pod's UID comes back, and an agent that was restarted counts its lives from the start.
        let earlier =
            "UPDATE items SET key = key || ' ' || id WHERE kind = ?1 AND key = ?2 AND export <> ?3
                       AND iif(boot = ?4 AND boot <> '', ended_boot < ?5, ended < ?6)";
        let (at, time) = (began.boot.0.cast_signed(), began.time.0);
        to.execute(earlier, params![kind, row.key, NOT_FINAL, boot, at, time])?;
    }
    let known: Option<(i64, bool)> = to
        .query_row(
            "SELECT id, report = ?3 AND state = ?4 FROM items JOIN reports USING (id) WHERE kind = ?1 AND key = ?2",
            params![kind, row.key, row.report, marks.state],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    if let Some((id, true)) = known {
        let marked =
            "UPDATE items SET export = max(export, ?2), posted = max(posted, ?3) WHERE id = ?1";
        return to.execute(marked, params![id, marks.export, marks.is_posted]).map(drop);
    }
    *last += 1;
    let pod = row.pod.as_ref();
    let took = row.took.map(|took| i64::try_from(took.as_nanos()).unwrap_or(i64::MAX));
    let id: i64 = to.query_row(
        "INSERT INTO items (kind, key, change, boot, namespace, pod, uid, life, workload, ended, ended_boot, took, cause,
                            findings, parts, export, state, first, posted)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
         ON CONFLICT (kind, key) DO UPDATE SET change = excluded.change, boot = excluded.boot,
             namespace = excluded.namespace, pod = excluded.pod, uid = excluded.uid, workload = excluded.workload,
             ended = excluded.ended, ended_boot = excluded.ended_boot, took = excluded.took, cause = excluded.cause,
             findings = excluded.findings, parts = excluded.parts, export = max(export, excluded.export),
             state = excluded.state, first = excluded.first, posted = max(posted, excluded.posted)
         RETURNING id",
        params![
            kind,
            row.key,
            last.cast_signed(),
            boot,
            pod.map(|pod| &pod.namespace),
            pod.map(|pod| &pod.name),
            pod.map(|pod| pod.uid.as_str()),
            row.life,
            row.workload,
            row.ended.map(|ended| ended.time.0),
            row.ended.map(|ended| ended.boot.0.cast_signed()),
            took,
            row.cause,
            row.findings,
            row.parts,
            marks.export,
            marks.state,
            marks.first,
            marks.is_posted,
        ],
        |row| row.get(0),
    )?;
    to.execute("INSERT OR REPLACE INTO reports VALUES (?1, ?2)", params![id, row.report]).map(drop)
}

/// Removes the oldest rows, leaks that exist last, until so many bytes suffice. The number of those that were due.
fn make_room(from: &Connection, bytes: u64) -> rusqlite::Result<u64> {
    let mut unsent = 0;
    while (pragma(from, "page_count")? - pragma(from, "freelist_count")?) * PAGE > bytes {
        let oldest = "SELECT id FROM items ORDER BY kind = ?1 AND state <> ?2, id LIMIT ?3";
        let params = params![Kind::Leak as i64, RESOLVED, REMOVED.cast_signed()];
        let (removed, of_them) = remove(from, oldest, params)?;
        unsent += of_them;
        if removed == 0 {
            break;
        }
    }
    Ok(unsent)
}

/// Removes the selected rows: how many, and how many of them were due.
fn remove(
    from: &Connection,
    selected: &str,
    params: impl rusqlite::Params,
) -> rusqlite::Result<(u64, u64)> {
    let remove = format!("DELETE FROM items WHERE id IN ({selected}) RETURNING export = {DUE}");
    let mut statement = from.prepare(&remove)?;
    let due = statement.query_map(params, |row| row.get::<_, bool>(0))?;
    due.into_iter().try_fold((0, 0), |(all, unsent), due| Ok((all + 1, unsent + u64::from(due?))))
}

fn pragma(of: &Connection, name: &str) -> rusqlite::Result<u64> {
    let value: i64 = of.pragma_query_value(None, name, |row| row.get(0))?;
    Ok(u64::try_from(value).unwrap_or_default())
}

/// Makes the schema where there is none. The database's id and its last change.
fn prepare(connection: &mut Connection) -> rusqlite::Result<(u32, u64)> {
    let begun = connection.transaction()?;
    let version: i64 = begun.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let application: i64 = begun.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 =
        begun.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, version, tables) {
        (0, 0, 0) => {
            begun.execute_batch(SCHEMA)?;
            let id = fastrand::u32(1..);
            begun.execute("INSERT INTO meta VALUES (?1, 0)", [id])?;
            // Ids that the exporter still has of another database mean nothing in this one.
            let first = "INSERT INTO sqlite_sequence (name, seq) VALUES ('items', ?1)";
            begun.execute(first, [i64::from(id) << 24])?;
            begun.pragma_update(None, "user_version", VERSION)?;
            begun.pragma_update(None, "application_id", APPLICATION)?;
        }
        (APPLICATION, VERSION, _) => {}
        _ => {
            let why = format!(
                "not a history of version {VERSION}: application {application:x}, version {version}"
            );
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB);
            return Err(Error::SqliteFailure(code, Some(why)));
        }
    }
    let (id, change): (u32, i64) =
        begun.query_row("SELECT database, change FROM meta", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    begun.commit()?;
    // A reader may have seen changes that a loss of power took.
    Ok((id, change.cast_unsigned() + SKIPPED))
}

/// Renames a database that cannot be used, in place of an earlier one.
fn set_aside(file: &Path, why: &str, shared: &Shared) {
    let aside = with_suffix(file, ".bad");
    for suffix in ["", "-wal"] {
        let (from, to) = (with_suffix(file, suffix), with_suffix(&aside, suffix));
        let _ = fs::remove_file(&to); // there may be none
        if let Err(failure) = fs::rename(&from, &to)
            && failure.kind() != io::ErrorKind::NotFound
        {
            error!(%failure, file = %from.display(), "cannot set the history aside");
        }
    }
    shared.count(Fault::SetAside, 1);
    warn!(
        why, file = %file.display(), aside = %aside.display(),
        "cannot use the history; renamed it, and begin a new one. Remove the renamed file if you do not need it"
    );
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn cannot_open(error: io::Error) -> Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
    Error::SqliteFailure(code, Some(error.to_string()))
}

fn now() -> Moment {
    Moment::of_boot(clock::boot_now(), &clock::anchor())
}
