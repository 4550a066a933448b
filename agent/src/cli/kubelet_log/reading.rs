//! Reads a log line by line: which lines are the kubelet's own.
//!
//! Two kinds of lines are not, whatever they contain. Between `=<` and ` >` stands a value, for example what a probe
//! printed. After a line that is no structured message its text may go on, and that text may be a tenant's: the path of
//! an NFS volume with a line break, in the error of its mount. Such a line needs the process id of the kubelet and a time
//! between those of the lines around it, and no line without a header may follow.

use super::line::{self, LineTime, Statement, TextPlace};
use anyhow::Context;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    path::Path,
};

/// The longest line that is read, bytes; the rest of it is left out.
const MAX_LINE: usize = 64 << 10;
/// Lines that are kept; of more, the older half goes.
const MAX_ENTRIES: usize = 16_384;
/// Lines below a message that are quoted with it.
const MAX_BELOW: usize = 4;
/// The longest text that is quoted, bytes.
const MAX_QUOTE: usize = 3_000;
/// How far the lines of several threads may be out of order, µs.
const OUT_OF_ORDER: i64 = 1_000_000;

/// A line of the table.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct LogEntry {
    pub(super) time: LineTime,
    pub(super) statement: Statement,
}

/// What was read of a log.
#[derive(Debug, Default)]
pub(super) struct KubeletLog {
    /// Lines of the table that were wanted, in order.
    pub(super) entries: Vec<LogEntry>,
    /// Lines with a header.
    pub(super) lines: u64,
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
    let mut reading = Reading {
        wanted,
        log: KubeletLog::default(),
        value: None,
        loose: None,
        processes: Vec::new(),
    };
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if from.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(reading.log);
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
    place: TextPlace,
    /// Entries up to it.
    kept: usize,
    /// Lines below it that may still be quoted with it.
    below: usize,
}

struct Reading<F> {
    wanted: F,
    log: KubeletLog,
    /// In a value, of a message at this place.
    value: Option<TextPlace>,
    loose: Option<Loose>,
    /// The processes of the kubelet, one after the other, each with the number of entries before it.
    processes: Vec<(u64, usize)>,
}

impl<F: FnMut(LineTime, &Statement) -> bool> Reading<F> {
    fn line(&mut self, text: &str) {
        let parsed = line::parse(text);
        if let Some(place) = self.value.take() {
            // Its last lines may be missing in an excerpt: a message at the very same place ends it.
            let is_cut = parsed.as_ref().is_some_and(|line| line.place == place);
            let last = || line::text_at(text, &place).is_some_and(|text| text.starts_with(" >"));
            if !is_cut && !last() {
                self.value = Some(place);
            }
            if !is_cut {
                return;
            }
        }
        let Some(line) = parsed else { return self.without_header(text) };
        let since = |earlier: LineTime| line.time.since(earlier);
        if self.loose.as_ref().is_some_and(|loose| since(loose.time) < -OUT_OF_ORDER) {
            return;
        }
        self.log.lines += 1;
        let late = |entry: &LogEntry| since(entry.time) < -OUT_OF_ORDER;
        let in_order = self.log.entries.iter().rposition(|entry| !late(entry));
        self.truncate(in_order.map_or(0, |at| at + 1));
        if line.opens_value() {
            self.value = Some(line.place.clone());
        }
        if let Some(statement) = line::statement(&line) {
            self.of_process(line.process);
            if (self.wanted)(line.time, &statement) {
                self.keep(LogEntry { time: line.time, statement });
            }
        }
        if !line.is_structured() {
            let kept = self.log.entries.len();
            let (time, place) = (line.time, line.place);
            self.loose = Some(Loose { time, place, kept, below: MAX_BELOW });
        }
    }

    /// A process that has ended logs no more: what seemed to be the next one's is not the kubelet's.
    fn of_process(&mut self, process: u64) {
        match self.processes.iter().position(|(known, _)| *known == process) {
            None => self.processes.push((process, self.log.entries.len())),
            Some(at) => {
                if let Some((_, before)) = self.processes.get(at + 1) {
                    self.truncate(*before);
                }
                self.processes.truncate(at + 1);
            }
        }
    }

    fn truncate(&mut self, count: usize) {
        self.log.entries.truncate(count);
        self.processes.iter_mut().for_each(|(_, before)| *before = count.min(*before));
        self.loose.iter_mut().for_each(|loose| loose.kept = count.min(loose.kept));
    }

    fn keep(&mut self, entry: LogEntry) {
        self.log.entries.push(entry);
        if self.log.entries.len() > MAX_ENTRIES {
            let dropped = MAX_ENTRIES / 2;
            self.log.entries.drain(..dropped);
            let less = |at: &mut usize| *at = at.saturating_sub(dropped);
            self.processes.iter_mut().for_each(|(_, before)| less(before));
            self.loose.iter_mut().for_each(|loose| less(&mut loose.kept));
        }
    }

    /// The text of a line before goes on: no line since then is the kubelet's own.
    fn without_header(&mut self, line: &str) {
        let Some(loose) = &mut self.loose else { return };
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
