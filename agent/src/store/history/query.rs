//! What is read from the database.

use super::{
    Kind,
    database::{Database, RESOLVED},
};
use coroner_core::time::{Anchor, BootTime, Moment, WallTime};
use flate2::read::DeflateDecoder;
use rusqlite::{OptionalExtension, Row, named_params, params};
use serde::de::DeserializeOwned;
use std::{io::BufReader, time::Duration};

/// Which items are wanted: all that is set must match.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub namespace: Option<String>,
    /// Name or UID.
    pub pod: Option<String>,
    pub life: Option<u32>,
    /// NAME or KIND/NAME.
    pub workload: Option<String>,
    pub container: Option<String>,
    pub verdict: Option<&'static str>,
    pub cause: Option<&'static str>,
    pub finding: Option<&'static str>,
    pub since: Option<WallTime>,
    pub until: Option<WallTime>,
    pub over: Option<Duration>,
    /// What took longest first, instead of what ended last.
    pub by_took: bool,
    pub limit: Option<usize>,
    /// Only what has changed since the answer with this cursor, oldest change first.
    pub after: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Selected {
    pub ids: Vec<i64>,
    pub cursor: String,
    /// The question had no cursor, or one of another database.
    pub is_complete: bool,
    /// More match than the limit.
    pub is_cut: bool,
}

#[derive(Clone, Debug)]
pub struct Stored {
    pub id: i64,
    pub(super) kind: Kind,
    /// Its times are of this boot's clock.
    pub is_of_this_boot: bool,
    /// As of when it was stored.
    pub ended: Option<Moment>,
    deflated: Vec<u8>,
}

impl Stored {
    /// `None`: it cannot be read.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_reader(BufReader::new(DeflateDecoder::new(&*self.deflated))).ok()
    }
}

/// The end by this answer's clock, or as it was stored if it is of another boot.
const ENDED: &str = "iif(boot = :boot AND boot <> '', ended_boot + :offset, ended)";

/// What must be true of an item; `ENDED` stands for that.
const MATCHES: &str = "kind = :kind AND change > :after AND (kind <> :leak OR state = :resolved)
         AND (:namespace IS NULL OR namespace = :namespace) AND (:pod IS NULL OR pod = :pod OR uid = :pod)
         AND (:life IS NULL OR life = :life)
         AND (:workload IS NULL OR :workload IN (workload, substr(workload, instr(workload, '/') + 1)))
         AND (:since IS NULL OR ENDED >= :since OR ended IS NULL) AND (:until IS NULL OR ENDED < :until)
         AND (:over IS NULL OR took > :over)
         AND (coalesce(:container, :verdict, :cause, :finding) IS NULL OR EXISTS (
             SELECT 1 FROM json_each(parts) AS part
             WHERE (:container IS NULL OR part.value ->> 'n' = :container)
             AND (:verdict IS NULL OR part.value ->> 'v' = :verdict)
             AND (:cause IS NULL OR :cause IN (cause, part.value ->> 'c'))
             AND (:finding IS NULL OR :finding IN (
                 SELECT value FROM json_each(findings) UNION ALL SELECT value FROM json_each(part.value, '$.f')))))";

pub(super) fn select(
    database: &Database,
    kind: Kind,
    filter: &Filter,
    clock: &Anchor,
) -> rusqlite::Result<Selected> {
    let after = filter.after.as_deref().and_then(|cursor| parse_cursor(cursor, database.id));
    let after = after.filter(|after| *after <= database.change);
    let order = match (after, filter.by_took) {
        (Some(_), _) => "change".to_owned(),
        (None, true) => "took DESC, id DESC".to_owned(),
        (None, false) => format!("{ENDED} DESC, id DESC"),
    };
    // What begins again for a reader who has another database's items is whole.
    let limit = filter.limit.filter(|_| after.is_some() || filter.after.is_none());
    let mut statement = database.connection.prepare(&format!(
        "SELECT id, change FROM items WHERE {} ORDER BY {order} LIMIT :limit",
        MATCHES.replace("ENDED", ENDED),
    ))?;
    let over = filter.over.map(|over| i64::try_from(over.as_nanos()).unwrap_or(i64::MAX));
    let limit_of = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let rows = statement.query_map(
        named_params! {
            ":kind": kind as i64,
            ":leak": Kind::Leak as i64,
            ":resolved": RESOLVED,
            ":after": after.unwrap_or(0).cast_signed(),
            ":boot": database.boot,
            ":offset": clock.wall(BootTime(0)).0,
            ":namespace": filter.namespace,
            ":pod": filter.pod,
            ":life": filter.life,
            ":workload": filter.workload,
            ":container": filter.container,
            ":verdict": filter.verdict,
            ":cause": filter.cause,
            ":finding": filter.finding,
            ":since": filter.since.map(|since| since.0),
            ":until": filter.until.map(|until| until.0),
            ":over": over,
            ":limit": limit.map_or(-1, limit_of),
        },
        |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)),
    )?;
    let mut rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    let is_cut = limit.is_some_and(|limit| rows.len() > limit);
    rows.truncate(limit.unwrap_or(usize::MAX));
    let cut_at = rows.last().filter(|_| is_cut && after.is_some());
    let seen = cut_at.map_or(database.change, |(_, change)| change.cast_unsigned());
    Ok(Selected {
        ids: rows.into_iter().map(|(id, _)| id).collect(),
        cursor: format!("{:x}-{seen:x}", database.id),
        is_complete: after.is_none(),
        is_cut,
    })
}

/// The last change before the answer with this cursor; `None`: it is of another database.
fn parse_cursor(cursor: &str, database: u32) -> Option<u64> {
    let (of, seen) = cursor.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    number(seen).filter(|_| number(of) == Some(database.into()))
}

/// Bytes of reports that are read together for export, deflated: a tenth of what they take in memory.
const UNSENT: usize = 256 << 10;

const STORED: &str = "SELECT id, boot = ?1 AND boot <> '', report, kind, ended, ended_boot FROM items JOIN reports USING (id)";

fn read_stored(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let kind: i64 = row.get(3)?;
    let kind = [Kind::Termination, Kind::Death].into_iter().find(|one| *one as i64 == kind);
    let boot = BootTime(row.get::<_, Option<i64>>(5)?.unwrap_or_default().cast_unsigned());
    let ended: Option<i64> = row.get(4)?;
    Ok(Stored {
        id: row.get(0)?,
        kind: kind.unwrap_or(Kind::Leak),
        is_of_this_boot: row.get(1)?,
        ended: ended.map(|at| Moment { boot, time: WallTime(at) }),
        deflated: row.get(2)?,
    })
}

pub(super) fn stored(database: &Database, ids: &[i64]) -> rusqlite::Result<Vec<Stored>> {
    let mut statement = database.connection.prepare(&format!("{STORED} WHERE id = ?2"))?;
    let one = |id: &i64| {
        statement.query_row(params![database.boot, id], read_stored).optional().transpose()
    };
    ids.iter().filter_map(one).collect()
}

/// So many, or as many as have [`UNSENT`] bytes.
pub(super) fn unsent(database: &Database, limit: usize) -> rusqlite::Result<Vec<Stored>> {
    let due = format!("{STORED} WHERE export = 1 ORDER BY id LIMIT ?2");
    let mut due = database.connection.prepare(&due)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut bytes = 0;
    let few = due.query_map(params![database.boot, limit], read_stored)?.take_while(|one| {
        let is_first = bytes == 0;
        bytes += one.as_ref().map_or(0, |one| one.deflated.len());
        is_first || bytes <= UNSENT
    });
    few.collect()
}

pub(super) fn unsent_count(database: &mut Database) -> rusqlite::Result<u64> {
    let count = "SELECT count(*) FROM items WHERE export = 1";
    let count: i64 = database.connection.query_row(count, [], |row| row.get(0))?;
    Ok(count.cast_unsigned())
}
