//! Reads a log line by line: which lines are the kubelet's own.
//!
//! Two kinds of lines are not, whatever they contain. Between `=<` and ` >` stands a value, for example what a probe
//! printed. After a line that is no structured message its text may go on, and that text may be a tenant's: the path of
//! an NFS volume with a line break, in the error of its mount. The tenant can write any header there, but not the end of
//! the text: a line without a header takes back all that was read since its message. Which message that is, the time in
//! the prefix shows, which the tenant does not write: the first one of those that were written together.

use super::line::{self, KlogLine, LineTime, Statement, TextPlace};
use anyhow::Context;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    path::Path,
};

/// The longest line that is read, bytes; the rest of it is left out.
const MAX_LINE: usize = 64 << 10;
/// Lines that are kept from the beginning, where the pod ends, and as many from the end.
const MAX_ENTRIES: usize = 8_192;
/// Lines below a message that are quoted with it.
const MAX_BELOW: usize = 4;
/// The longest text that is quoted, bytes.
const MAX_QUOTE: usize = 3_000;
/// How far the lines of several threads may be out of order, µs.
const OUT_OF_ORDER: i64 = 1_000_000;
/// The lines of one text are written within this time, s.
const TOGETHER: i64 = 5;

/// A line of the table.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct LogEntry {
    pub(super) time: LineTime,
    pub(super) statement: Statement,
}

#[derive(Debug, Default)]
pub(super) struct KubeletLog {
    /// Lines of the table that were wanted, as they stand in the log.
    pub(super) entries: Vec<LogEntry>,
    /// Lines with a header.
    pub(super) lines: u64,
    /// The time of the last one.
    pub(super) last: Option<LineTime>,
    /// Lines that are later and earlier than the one before.
    steps: (u64, u64),
    /// Entries that were left out between the first ones and the last ones.
    left_out: usize,
}

impl KubeletLog {
    /// What a reader should know of what was not read.
    pub(super) fn gaps(&self) -> String {
        let back = match self.steps.1 {
            0 => String::new(),
            back => format!("; {back} lines are out of order: sort the log by time"),
        };
        match self.left_out {
            0 => back,
            count => format!("{back}; {count} lines in its middle are left out"),
        }
    }
}

/// Reads a file; `-` is standard input.
pub(super) fn open(
    path: &Path,
    wanted: impl FnMut(LineTime, &Statement) -> bool,
) -> anyhow::Result<KubeletLog> {
    let failed = || format!("cannot read the kubelet's log {}", path.display());
    let log = match path.to_str() {
        Some("-") => read(io::stdin().lock(), wanted),
        _ => File::open(path).and_then(|file| read(BufReader::new(file), wanted)),
    };
    log.with_context(failed)
}

/// Reads all lines, and keeps those of the table that are wanted.
pub(super) fn read(
    mut from: impl BufRead,
    wanted: impl FnMut(LineTime, &Statement) -> bool,
) -> io::Result<KubeletLog> {
    let mut reading = Reading { wanted, log: KubeletLog::default(), value: None, loose: None };
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if from.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(reading.done());
        }
        if bytes.last() != Some(&b'\n') && bytes.len() == MAX_LINE {
            from.skip_until(b'\n')?;
        }
        reading.line(String::from_utf8_lossy(&bytes).trim_end());
    }
}

/// A line that is no structured message: its text may go on.
struct Loose {
    time: LineTime,
    clock: Option<i64>,
    place: TextPlace,
    /// Entries up to it.
    kept: usize,
    /// Its text is the kubelet's alone.
    is_own: bool,
    /// Lines below it that may still be quoted with it.
    below: usize,
}

impl Loose {
    /// Whether a line was written later than its text, as the prefixes show, or else its own time.
    fn is_over(&self, clock: Option<i64>, time: LineTime) -> bool {
        match (self.clock, clock) {
            (Some(then), Some(now)) => (now - then).rem_euclid(86_400) > TOGETHER,
            _ => time.since(self.time).abs() > TOGETHER * 1_000_000,
        }
    }
}

struct Reading<F> {
    wanted: F,
    log: KubeletLog,
    /// In a value of a message at this place. If its end is missing, entries from this one on may be forged.
    value: Option<(TextPlace, usize)>,
    loose: Option<Loose>,
}

impl<F: FnMut(LineTime, &Statement) -> bool> Reading<F> {
    fn line(&mut self, text: &str) {
        let parsed = line::parse(text);
        if let Some((place, kept)) = self.value.take() {
            // Its last lines may be missing in an excerpt: a message at the very same place ends it.
            let Some(line) = parsed.as_ref().filter(|line| line.place == place) else {
                let last = line::text_at(text, &place).filter(|text| text.starts_with(" >"));
                if last.is_none_or(|text| text.ends_with("=<")) {
                    self.value = Some((place, kept));
                }
                return;
            };
            // Or that message is a line of the value, whose whitespace was trimmed.
            self.truncate(kept);
            self.loosen(line, false);
        }
        let Some(line) = parsed else { return self.without_header(text) };
        self.log.lines += 1;
        let since = self.log.last.replace(line.time).map_or(0, |last| line.time.since(last));
        self.log.steps.0 += u64::from(since > 0);
        self.log.steps.1 += u64::from(since < -OUT_OF_ORDER);
        let statement = line::statement(&line);
        let is_own = statement.is_some();
        let entry = statement.filter(|one| (self.wanted)(line.time, one));
        let count = usize::from(entry.is_some());
        if let Some(statement) = entry {
            self.keep(LogEntry { time: line.time, statement });
        }
        let text = self.loose.as_ref().filter(|one| !one.is_over(line.clock, line.time));
        if line.opens_value() && text.is_none_or(|loose| loose.place == line.place) {
            let kept = text.map_or(self.log.entries.len() - count, |loose| loose.kept);
            self.value = Some((line.place.clone(), kept));
        }
        if !line.is_structured() {
            self.loosen(&line, is_own);
        }
    }

    /// The text of this line may go on, if it is not itself the text of another one.
    fn loosen(&mut self, line: &KlogLine<'_>, is_own: bool) {
        let (time, clock, place) = (line.time, line.clock, line.place.clone());
        if self.loose.as_ref().is_none_or(|old| old.is_own || old.is_over(clock, time)) {
            let kept = self.log.entries.len();
            self.loose = Some(Loose { time, clock, place, kept, is_own, below: MAX_BELOW });
        }
    }

    fn truncate(&mut self, count: usize) {
        self.log.entries.truncate(count);
        self.loose.iter_mut().for_each(|loose| loose.kept = count.min(loose.kept));
    }

    fn keep(&mut self, entry: LogEntry) {
        self.log.entries.push(entry);
        if self.log.entries.len() > 2 * MAX_ENTRIES {
            let dropped = MAX_ENTRIES / 2;
            self.log.entries.drain(MAX_ENTRIES..MAX_ENTRIES + dropped);
            self.log.left_out += dropped;
            let less = |at: usize| at.saturating_sub(dropped).max(at.min(MAX_ENTRIES));
            self.loose.iter_mut().for_each(|loose| loose.kept = less(loose.kept));
        }
    }

    fn done(mut self) -> KubeletLog {
        if let Some((_, kept)) = self.value.take() {
            self.truncate(kept);
        }
        // With the newest line first, the end of a text comes before it.
        if self.log.steps.1 > self.log.steps.0 {
            self.log.entries.clear();
        }
        self.log
    }

    /// The text of a line before goes on: no line since then is the kubelet's own.
    fn without_header(&mut self, line: &str) {
        let Some(loose) = &mut self.loose else { return };
        if loose.is_over(line::clock(line), loose.time) {
            return;
        }
        let Some(text) = line::text_at(line, &loose.place) else { return };
        // A line of another program in the same unit (k3s).
        if text.starts_with("time=") || text.starts_with('{') {
            return;
        }
        if text.trim().is_empty() {
            loose.below = 0;
            return;
        }
        let (kept, time) = (loose.kept, loose.time);
        if self.log.entries.len() > kept {
            return self.truncate(kept);
        }
        let last = self.log.entries.last_mut().filter(|entry| entry.time == time);
        if let Some((_, quote)) = last.and_then(|entry| entry.statement.why.as_mut())
            && loose.below > 0
            && quote.len() + text.len() < MAX_QUOTE
        {
            loose.below -= 1;
            quote.push('\n');
            quote.push_str(&text);
        }
    }
}
