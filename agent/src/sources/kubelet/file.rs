//! A plain file with rotation. It is looked at again and again: its end, its inode and its size say what happened.

use super::{
    lines::Lines,
    parser::time_of,
    reading::{LineCounters, Reading},
    time::{Receipt, zone},
};
use crate::linux::{below, clock};
use coroner_core::{
    input::{KubeletEvent, KubeletLogGap},
    time::{Anchor, BootTime, WallTime},
};
use std::{
    fs::{File, Metadata},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// How far back a live log is read at the start, bytes.
pub(super) const LOOK_BACK: u64 = 4 << 20;
/// Bytes of a read.
const BLOCK: usize = 64 * 1024;
/// Bytes that show that a file is still the one that was read: no line of klog is there twice in the same microsecond.
const MARK: u64 = 128;
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
    /// The last bytes that were read: if they are not there any more, the file was truncated and has grown again.
    mark: Vec<u8>,
}

impl Open {
    /// The last bytes before the offset, as they are now.
    fn before(&self) -> io::Result<Vec<u8>> {
        let length = self.offset.min(MARK);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        match self.file.read_exact_at(&mut bytes, self.offset - length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
            result => result.map(|()| bytes),
        }
    }
}

/// A log in a file.
#[derive(Debug)]
pub(super) struct LogFile {
    root: PathBuf,
    /// Below the root.
    path: PathBuf,
    open: Option<Open>,
    lines: Lines,
    /// The node's zone, ns ahead of UTC.
    zone: Option<i64>,
}

impl LogFile {
    pub(super) fn new(root: &Path, path: &Path) -> Self {
        let (root, path) = (root.to_owned(), path.to_owned());
        Self { root, path, open: None, lines: Lines::default(), zone: None }
    }

    fn unread(&self, error: io::Error) -> FileError {
        FileError::Unread { path: self.path.clone(), error }
    }

    /// Opens the file, whose beginning is left out if it is longer than `look_back`.
    fn open(&self, look_back: u64) -> Result<Open, FileError> {
        let file = below::open_plain(&self.root, &self.path).map_err(|error| self.unread(error))?;
        let mut file = file.ok_or_else(|| FileError::NotPlain(self.path.clone()))?;
        let found = file.metadata().map_err(|error| self.unread(error))?;
        let offset = found.len().saturating_sub(look_back);
        file.seek(SeekFrom::Start(offset)).map_err(|error| self.unread(error))?;
        Ok(Open { file, identity: (found.dev(), found.ino()), offset, mark: Vec::new() })
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
        let current = below::stat(&self.root, &self.path).ok().filter(below::is_plain);
        let identity = current.map(|found| (found.st_dev, found.st_ino));
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
        let truncated = found.len() < open.offset
            || !open.mark.is_empty() && open.before().map_err(unread)? != open.mark;
        if truncated {
            // logrotate's copytruncate: what was written in between and cut off is not known.
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
        open.mark = open.before().map_err(unread)?;
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
fn near(found: &Metadata, now: &Anchor) -> WallTime {
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

#[cfg(test)]
mod tests {
    use super::{
        super::{budget::Budget, parser::LineResult},
        *,
    };
    use std::{
        fs::{self, OpenOptions},
        io::Write as _,
    };

    struct Tail {
        folder: tempfile::TempDir,
        log: LogFile,
        reading: Reading,
        counters: LineCounters,
    }

    /// A line of this moment, about a pod of this name.
    fn line(pod: &str) -> String {
        let now = jiff::Timestamp::now().strftime("%m%d %H:%M:%S.000001");
        format!("I{now} 7 kubelet.go:1] \"SyncPod enter\" pod=\"default/{pod}\" podUID=\"u\"\n")
    }

    impl Tail {
        fn new(text: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("kubelet.log");
            fs::write(&path, text).unwrap();
            let reading = Reading::new(Budget::unlimited(), BootTime(0));
            let log = LogFile::new(folder.path(), Path::new("kubelet.log"));
            let counters = LineCounters::default();
            Self { folder, log, reading, counters }
        }

        fn write(&self, text: &str) {
            let path = self.folder.path().join("kubelet.log");
            let file = OpenOptions::new().append(true).create(true).open(path);
            file.unwrap().write_all(text.as_bytes()).unwrap();
        }

        /// The pods of the new lines, and `gap`s.
        fn poll(&mut self, look_back: u64) -> Vec<String> {
            let events = self.log.poll(look_back, &mut self.reading, &self.counters).unwrap();
            let name = |event| match event {
                KubeletEvent::Entry(entry) => entry.name,
                KubeletEvent::Gap { .. } => Some("gap".to_owned()),
                _ => None,
            };
            events.into_iter().filter_map(name).collect()
        }
    }

    #[test]
    fn what_is_appended_is_read_and_a_torn_line_waits() {
        let mut tail = Tail::new(&(line("old") + &line("a")));
        let one = line("a").len() as u64;
        assert_eq!(tail.poll(one + 3), ["a"], "the beginning is left out up to a line's end");
        let (b, c) = (line("b"), line("c"));
        tail.write(&(b + &c[..50]));
        assert_eq!(tail.poll(0), ["b"]);
        tail.write(&c[50..]);
        assert_eq!(tail.poll(0), ["c"]);
        assert_eq!(tail.counters.of(LineResult::Read), 3);
    }

    #[test]
    fn a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_beginning() {
        let mut tail = Tail::new(&line("a"));
        assert_eq!(tail.poll(u64::MAX), ["a"]);
        tail.write(&line("b"));
        let path = tail.folder.path().join("kubelet.log");
        fs::rename(&path, path.with_extension("1")).unwrap();
        assert_eq!(tail.poll(0), ["b"], "there is no new file yet");
        tail.write(&line("c"));
        assert_eq!(tail.poll(0), ["c"]);
        // Torn at the end of the old file: a gap.
        tail.write("I1122 12:00");
        fs::rename(&path, path.with_extension("2")).unwrap();
        tail.write(&line("d"));
        assert_eq!(tail.poll(0), ["gap", "d"]);
    }

    #[test]
    fn a_truncated_file_is_read_from_its_beginning_after_a_gap() {
        // It is shorter than before, as long, and longer.
        for after in [1, 2, 5] {
            let mut tail = Tail::new(&(line("a") + &line("b")));
            assert_eq!(tail.poll(u64::MAX), ["a", "b"]);
            let new = line("c").repeat(after);
            fs::write(tail.folder.path().join("kubelet.log"), new).unwrap();
            let mut wanted = vec!["c"; after];
            wanted.insert(0, "gap");
            assert_eq!(tail.poll(0), wanted);
            tail.write(&line("d"));
            assert_eq!(tail.poll(0), ["d"]);
        }
    }

    #[test]
    fn what_is_no_plain_file_is_refused() {
        for path in ["/dev/zero", "/dev"] {
            let mut reading = Reading::new(Budget::unlimited(), BootTime(0));
            let mut log = LogFile::new(Path::new("/"), Path::new(path));
            let polled = log.poll(0, &mut reading, &LineCounters::default());
            assert!(matches!(polled, Err(FileError::NotPlain(_))), "{path}");
        }
    }
}
