//! A plain file with rotation. It is looked at again and again: its end, its inode and its size say what happened.

use super::{
    lines::Lines,
    parser::time_of,
    reading::{LineCounters, Reading},
    time::{Receipt, zone},
};
use crate::linux::clock;
use coroner_core::{
    input::{KubeletEvent, KubeletLogGap},
    time::{Anchor, BootTime, WallTime},
};
use rustix::fs::{Mode, OFlags};
use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// How far back a live log is read at the start, bytes.
pub(super) const LOOK_BACK: u64 = 4 << 20;
/// Bytes of a read.
const BLOCK: usize = 64 * 1024;
/// Bytes of a poll: what is left is read in the next one.
const MAX_POLL: u64 = 16 << 20;

/// Why a log is not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("cannot read {} ({error})", path.display())]
    Unread { path: PathBuf, error: io::Error },
    #[error(
        "{} is no plain file, and the kubelet's log is read from plain files only; for a FIFO or a \
         program's output use --kubelet-log -", .0.display()
    )]
    NotPlain(PathBuf),
}

/// A file that is open.
#[derive(Debug)]
struct Open {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    /// Read so far.
    offset: u64,
}

/// A log in a file.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    open: Option<Open>,
    lines: Lines,
    /// The node's zone, ns ahead of UTC.
    zone: Option<i64>,
}

impl LogFile {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), open: None, lines: Lines::default(), zone: None }
    }

    fn unread(&self, error: io::Error) -> FileError {
        FileError::Unread { path: self.path.clone(), error }
    }

    /// Opens the file, whose beginning is left out if it is longer than `look_back`. A FIFO or a device would block,
    /// or do something: it is refused before it is read.
    fn open(&self, look_back: u64) -> Result<Open, FileError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        // A device is not even opened.
        let found = fs::metadata(&self.path).map_err(|error| self.unread(error))?;
        if !found.is_file() {
            return Err(FileError::NotPlain(self.path.clone()));
        }
        let file = rustix::fs::open(&self.path, flags, Mode::empty());
        let mut file = File::from(file.map_err(|error| self.unread(error.into()))?);
        let found = file.metadata().map_err(|error| self.unread(error))?;
        if !found.is_file() {
            return Err(FileError::NotPlain(self.path.clone()));
        }
        let offset = found.len().saturating_sub(look_back);
        file.seek(SeekFrom::Start(offset)).map_err(|error| self.unread(error))?;
        Ok(Open { file, identity: (found.dev(), found.ino()), offset })
    }

    /// Reads what is new. `look_back` is for the first time only.
    pub(super) fn poll(
        &mut self,
        look_back: u64,
        reading: &mut Reading,
        counters: &LineCounters,
    ) -> Result<Vec<KubeletEvent>, FileError> {
        let now = clock::anchor();
        let first = self.open.is_none();
        if first {
            let open = self.open(look_back)?;
            // The first line is a part of one, if the file's beginning was left out.
            let torn = open.offset > 0;
            self.zone = zone_at_end(&open.file, &now);
            self.open = Some(open);
            self.lines.restart();
            if torn {
                self.skip_a_line()?;
            }
        }
        self.read_on(&now, reading, counters)?;
        // Another file of that name: what the old one still gets is read first, and its last line may never end.
        let current = fs::metadata(&self.path).ok().filter(fs::Metadata::is_file);
        let identity = current.map(|found| (found.dev(), found.ino()));
        if identity.is_some() && identity != self.open.as_ref().map(|open| open.identity) {
            self.read_on(&now, reading, counters)?;
            self.finish(&now, reading, counters);
            if self.lines.restart() {
                reading.gap(BootTime(now.boot_ns), 1, KubeletLogGap::Rotated);
            }
            self.open = Some(self.open(u64::MAX)?);
            self.read_on(&now, reading, counters)?;
        }
        Ok(reading.events(Some(BootTime(now.boot_ns))))
    }

    /// Leaves out the rest of a line.
    fn skip_a_line(&mut self) -> Result<(), FileError> {
        let path = &self.path;
        let unread = |error| FileError::Unread { path: path.clone(), error };
        let Some(open) = &mut self.open else { return Ok(()) };
        let mut block = vec![0; BLOCK];
        loop {
            let length = open.file.read(&mut block).map_err(unread)?;
            let end = memchr::memchr(b'\n', &block[..length]);
            open.offset += end.map_or(length, |end| end + 1) as u64;
            if end.is_some() || length == 0 {
                open.file.seek(SeekFrom::Start(open.offset)).map_err(unread)?;
                return Ok(());
            }
        }
    }

    /// Reads the open file to its end, or as far as a poll goes.
    fn read_on(
        &mut self,
        now: &Anchor,
        reading: &mut Reading,
        counters: &LineCounters,
    ) -> Result<(), FileError> {
        let path = &self.path;
        let unread = |error| FileError::Unread { path: path.clone(), error };
        let Some(open) = &mut self.open else { return Ok(()) };
        let found = open.file.metadata().map_err(unread)?;
        if found.len() < open.offset {
            // Truncated (logrotate's copytruncate): what was written in between and cut off is not known.
            open.offset = 0;
            open.file.seek(SeekFrom::Start(0)).map_err(unread)?;
            self.lines.restart();
            reading.gap(BootTime(now.boot_ns), 0, KubeletLogGap::Rotated);
        }
        let near = near(&found, now);
        let mut left = MAX_POLL;
        let mut block = vec![0; BLOCK];
        while left > 0 {
            let length = open.file.read(&mut block).map_err(unread)?;
            if length == 0 {
                break;
            }
            open.offset += length as u64;
            left = left.saturating_sub(length as u64);
            let lines = self.lines.feed(&block[..length]);
            // The last line of the file is about as old as its last change; the node's zone may have changed.
            if open.offset >= found.len() {
                self.zone = zone_of(&lines, near).or(self.zone);
            }
            let receipt = Receipt::File { anchor: *now, near, zone: self.zone.unwrap_or(0) };
            for line in &lines {
                reading.take(line, &receipt, BootTime(now.boot_ns), counters);
            }
        }
        Ok(())
    }

    /// The line that waits for its continuation: there is none.
    fn finish(&mut self, now: &Anchor, reading: &mut Reading, counters: &LineCounters) {
        let zone = self.zone.unwrap_or(0);
        let receipt = Receipt::File { anchor: *now, near: WallTime(now.wall_ns), zone };
        if let Some(line) = self.lines.end() {
            reading.take(&line, &receipt, BootTime(now.boot_ns), counters);
        }
    }
}

/// The file's last change: its last line is not older by much.
fn near(found: &fs::Metadata, now: &Anchor) -> WallTime {
    let changed = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
    // A file from a machine whose clock is ahead.
    WallTime(changed.min(now.wall_ns.saturating_add(86_400_000_000_000)))
}

/// The zone by the file's last line.
fn zone_at_end(file: &File, now: &Anchor) -> Option<i64> {
    let found = file.metadata().ok()?;
    let mut block = vec![0; BLOCK];
    let length = file.read_at(&mut block, found.len().saturating_sub(BLOCK as u64)).ok()?;
    zone_of(&Lines::default().feed(&block[..length]), near(&found, now))
}

/// The zone by the last of these lines that has a time.
fn zone_of(lines: &[super::lines::Found], near: WallTime) -> Option<i64> {
    let time = lines.iter().rev().find_map(|found| match found {
        super::lines::Found::Line(line) => time_of(line),
        super::lines::Found::TooLong => None,
    });
    zone(time?, near)
}

/// How often a file is looked at.
pub(super) const POLL: Duration = Duration::from_millis(500);
