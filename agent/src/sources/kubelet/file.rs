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
use rustix::fs::Stat;
use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// How far back a live log is read at the start, bytes.
pub(super) const LOOK_BACK: u64 = 4 << 20;
/// Bytes of a read.
const BLOCK: usize = 64 * 1024;
/// Bytes that show that a file is still the one that was read: no line of klog is there twice in the same microsecond.
const MARK: usize = 128;
/// Bytes of a poll: what is left is read in the next one.
const MAX_POLL: u64 = 16 << 20;
/// A file that was not looked at for longer may have been rotated twice.
const UNWATCHED: Duration = Duration::from_secs(10);

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
struct OpenLog {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    /// Read so far.
    offset: u64,
    /// The last bytes that were read: if they are not there any more, the file was truncated. Empty at the beginning only.
    mark: Vec<u8>,
}

impl OpenLog {
    /// What follows, as far as it fits into the block. `None`: the file was truncated. The mark is read with what follows it:
    /// nothing can be truncated in between.
    fn read<'b>(&mut self, block: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        let from = self.offset.saturating_sub(self.mark.len() as u64);
        let length = self.file.read_at(block, from)?;
        let bytes = &block[..length];
        let Some(new) = bytes.strip_prefix(&*self.mark) else { return Ok(None) };
        self.offset += new.len() as u64;
        self.mark = bytes[bytes.len().saturating_sub(MARK)..].to_vec();
        Ok(Some(new))
    }

    /// Leaves out what is before `from`, up to the end of a line. A file that has no line's end behind `from`, or was
    /// truncated just now, is read from its beginning.
    fn skip(&mut self, from: u64) -> io::Result<()> {
        let mut block = vec![0; BLOCK];
        self.offset = from;
        while self.offset > 0 {
            let at = self.offset;
            let new = self.read(&mut block)?.unwrap_or_default();
            if let Some(end) = memchr::memchr(b'\n', new) {
                self.offset = at + end as u64 + 1;
                self.mark = new[(end + 1).saturating_sub(MARK)..=end].to_vec();
                break;
            }
            if new.is_empty() {
                (self.offset, self.mark) = (0, Vec::new());
            }
        }
        Ok(())
    }
}

/// A log in a file.
#[derive(Debug)]
pub(super) struct LogFile {
    root: PathBuf,
    /// Below the root.
    path: PathBuf,
    open: Option<OpenLog>,
    /// It was empty when it was opened first: until its first line the kubelet may write into the one before.
    is_empty: bool,
    /// The last poll failed.
    failed: bool,
    /// The file that is open was the one at the path until then, or the one at the path was still empty.
    watched: BootTime,
    lines: Lines,
    /// The node's zone, ns ahead of UTC.
    zone: Option<i64>,
}

impl LogFile {
    pub(super) fn new(root: &Path, path: &Path) -> Self {
        let (root, path) = (root.to_owned(), path.to_owned());
        let (open, watched, lines) = (None, BootTime(0), Lines::default());
        Self { root, path, open, is_empty: false, failed: false, watched, lines, zone: None }
    }

    /// Reads of the file that is open fail from now on.
    #[cfg(test)]
    pub(super) fn break_reads(&mut self) {
        let unreadable = File::options().write(true).open(self.root.join(&self.path));
        self.open.as_mut().unwrap().file = unreadable.unwrap();
    }

    fn unread(&self, error: io::Error) -> FileError {
        FileError::Unread { path: self.path.clone(), error }
    }

    /// Opens the file, to read on at its beginning.
    fn open(&self) -> Result<OpenLog, FileError> {
        let file = below::open_plain(&self.root, &self.path).map_err(|error| self.unread(error))?;
        let file = file.ok_or_else(|| FileError::NotPlain(self.path.clone()))?;
        let found = file.metadata().map_err(|error| self.unread(error))?;
        Ok(OpenLog { file, identity: (found.dev(), found.ino()), offset: 0, mark: Vec::new() })
    }

    /// Opens the file for the first time. Its beginning is left out, up to the end of a line, if it is longer than
    /// `look_back`.
    fn begin(&mut self, look_back: u64, now: &Anchor) -> Result<(), FileError> {
        let mut open = self.open()?;
        let found = open.file.metadata().map_err(|error| self.unread(error))?;
        self.zone = zone_at_end(&open.file, now);
        self.is_empty = found.len() == 0;
        open.skip(found.len().saturating_sub(look_back)).map_err(|error| self.unread(error))?;
        self.open = Some(open);
        Ok(())
    }

    /// Opens the file again where it could not be read.
    fn resume(
        &mut self,
        now: &Anchor,
        reading: &mut Reading,
        counters: &LineCounters,
    ) -> Result<(), FileError> {
        let fresh = self.open()?;
        match &mut self.open {
            Some(open) if open.identity == fresh.identity => open.file = fresh.file,
            // It was rotated: what cannot be read of it is missing.
            _ => {
                if self.read_on(now, reading, counters).is_err() {
                    self.lines.restart();
                    reading.gap(BootTime(now.boot_ns), 0, KubeletLogGap::Rotated);
                    self.open = Some(fresh);
                }
            }
        }
        Ok(())
    }

    /// Goes on with another file, after the end of the one that is open, whose last line may never end.
    fn replace(
        &mut self,
        now: &Anchor,
        reading: &mut Reading,
        counters: &LineCounters,
    ) -> Result<(), FileError> {
        let boot = BootTime(now.boot_ns);
        let fresh = self.open()?;
        self.finish(now, reading, counters);
        let is_torn = self.lines.restart();
        if boot.since(self.watched) > UNWATCHED {
            reading.gap(boot, 0, KubeletLogGap::Rotated);
        } else if is_torn {
            reading.gap(boot, 1, KubeletLogGap::Rotated);
        }
        self.open = Some(fresh);
        self.read_on(now, reading, counters)?;
        Ok(())
    }

    /// Reads what is new. `look_back` is for the first time only. After an error it is read on where it was.
    pub(super) fn poll(
        &mut self,
        look_back: u64,
        reading: &mut Reading,
        counters: &LineCounters,
    ) -> Result<Vec<KubeletEvent>, FileError> {
        let now = clock::anchor();
        if self.open.is_none() {
            self.begin(look_back, &now)?;
        } else if self.failed {
            self.resume(&now, reading, counters)?;
        }
        self.failed = true;
        let is_at_end = self.read_on(&now, reading, counters)?;
        let is_open = |found: &Stat| {
            let open = self.open.as_ref().map(|open| open.identity);
            open == Some((found.st_dev, found.st_ino))
        };
        match below::stat(&self.root, &self.path).ok().filter(below::is_plain) {
            // After logrotate's `create` the kubelet writes into the old file until it opens the new one. Which file was
            // at the path while nobody looked is not known.
            Some(found) if is_open(&found) || found.st_size == 0 => {
                let boot = BootTime(now.boot_ns);
                if is_open(&found) || boot.since(self.watched) <= UNWATCHED {
                    self.watched = boot;
                }
            }
            // What the old file got until the new one got its first line is read.
            Some(_) if is_at_end && self.read_on(&now, reading, counters)? => {
                self.replace(&now, reading, counters)?;
            }
            _ => {}
        }
        self.failed = false;
        Ok(reading.events(BootTime(now.boot_ns)))
    }

    /// Reads on. Returns true if that is all, and false if more is left for the next poll.
    fn read_on(
        &mut self,
        now: &Anchor,
        reading: &mut Reading,
        counters: &LineCounters,
    ) -> Result<bool, FileError> {
        let path = &self.path;
        let unread = |error| FileError::Unread { path: path.clone(), error };
        let Some(open) = &mut self.open else { return Ok(true) };
        let found = open.file.metadata().map_err(unread)?;
        let near = near(&found, now);
        let mut left = MAX_POLL;
        let mut block = vec![0; BLOCK];
        while left > 0 {
            let Some(new) = open.read(&mut block).map_err(unread)? else {
                // logrotate's copytruncate: what was written in between and cut off is not known.
                (open.offset, open.mark) = (0, Vec::new());
                self.lines.restart();
                reading.gap(BootTime(now.boot_ns), 0, KubeletLogGap::Rotated);
                continue;
            };
            if new.is_empty() {
                return Ok(true);
            }
            if std::mem::take(&mut self.is_empty) {
                reading.gap(BootTime(now.boot_ns), 0, KubeletLogGap::Rotated);
            }
            left = left.saturating_sub(new.len() as u64);
            let lines = self.lines.feed(new);
            // The last line of the file is about as old as its last change; the node's zone may have changed.
            if open.offset >= found.len() {
                self.zone = zone_of(&lines, near).or(self.zone);
            }
            let receipt = Receipt::File { anchor: *now, near, zone: self.zone.unwrap_or(0) };
            for line in &lines {
                reading.take(line, &receipt, BootTime(now.boot_ns), counters);
            }
        }
        Ok(false)
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
fn zone_of(lines: &[super::lines::FoundLine], near: WallTime) -> Option<i64> {
    let time = lines.iter().rev().find_map(|found| match found {
        super::lines::FoundLine::Line(line) => time_of(line),
        super::lines::FoundLine::TooLong => None,
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
    fn a_rotated_file_is_read_on_until_the_new_one_has_a_line() {
        let mut tail = Tail::new(&line("a"));
        assert_eq!(tail.poll(u64::MAX), ["a"]);
        let path = tail.folder.path().join("kubelet.log");
        let old = path.with_extension("1");
        fs::rename(&path, &old).unwrap();
        fs::write(&path, "").unwrap();
        let write_old = |pod| {
            let file = OpenOptions::new().append(true).open(&old);
            file.unwrap().write_all(line(pod).as_bytes()).unwrap();
        };
        assert_eq!(tail.poll(0), [""; 0]);
        // However long the kubelet takes.
        for pod in ["x", "y", "b"] {
            write_old(pod);
            tail.log.watched = tail.log.watched - UNWATCHED / 2;
            assert_eq!(tail.poll(0), [pod]);
        }
        write_old("c");
        tail.write(&line("d"));
        assert_eq!(tail.poll(0), ["c", "d"]);
        tail.write(&line("e"));
        assert_eq!(tail.poll(0), ["e"]);
    }

    #[test]
    fn an_empty_file_that_is_found_after_a_stall_may_be_the_second_new_one() {
        let mut tail = Tail::new(&line("a"));
        assert_eq!(tail.poll(u64::MAX), ["a"]);
        let path = tail.folder.path().join("kubelet.log");
        for number in ["1", "2"] {
            fs::rename(&path, path.with_extension(number)).unwrap();
            fs::write(&path, "").unwrap();
        }
        tail.log.watched = BootTime(0);
        assert_eq!(tail.poll(0), [""; 0]);
        tail.write(&line("b"));
        assert_eq!(tail.poll(0), ["gap", "b"]);
        tail.write(&line("c"));
        assert_eq!(tail.poll(0), ["c"]);
    }

    #[test]
    fn before_the_first_line_of_an_empty_file_lines_may_be_missing() {
        let mut tail = Tail::new("");
        assert_eq!(tail.poll(0), [""; 0]);
        tail.write(&line("a"));
        assert_eq!(tail.poll(0), ["gap", "a"]);
        tail.write(&line("b"));
        assert_eq!(tail.poll(0), ["b"]);
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

    /// Truncated after it was read and before it is looked at again, and longer than before by then.
    #[test]
    fn a_file_that_was_truncated_while_it_was_read_is_read_from_its_beginning() {
        let tail = Tail::new(&(line("a") + &line("b")));
        let mut open = tail.log.open().unwrap();
        let mut block = vec![0; BLOCK];
        let one = line("a").len();
        assert_eq!(open.read(&mut block[..one]).unwrap().unwrap().len(), one);
        fs::write(tail.folder.path().join("kubelet.log"), line("c").repeat(9)).unwrap();
        assert_eq!(open.read(&mut block).unwrap(), None);
    }

    #[test]
    fn after_an_error_it_is_read_on_where_it_was() {
        let path = |tail: &Tail| tail.folder.path().join("kubelet.log");
        let rotate = |tail: &Tail| fs::rename(path(tail), path(tail).with_extension("1")).unwrap();
        let truncate = |tail: &Tail| fs::write(path(tail), "").unwrap();
        let nothing = |_: &Tail| {};
        let cases = [
            (&nothing as &dyn Fn(&Tail), ["b", "c"]),
            (&rotate, ["gap", "c"]),
            (&truncate, ["gap", "c"]),
        ];
        for (happens, wanted) in cases {
            let mut tail = Tail::new(&line("a"));
            assert_eq!(tail.poll(u64::MAX), ["a"]);
            let b = line("b");
            tail.write(&b[..50]);
            assert_eq!(tail.poll(0), [""; 0]);
            tail.log.break_reads();
            let failed = tail.log.poll(0, &mut tail.reading, &tail.counters);
            assert!(matches!(failed, Err(FileError::Unread { .. })), "{failed:?}");
            tail.write(&b[50..]);
            happens(&tail);
            tail.write(&line("c"));
            assert_eq!(tail.poll(u64::MAX), wanted);
            tail.write(&line("d"));
            assert_eq!(tail.poll(0), ["d"]);
        }
    }

    #[test]
    fn a_rotated_file_is_read_to_its_end_however_much_is_left_of_it() {
        let mut tail = Tail::new(&line("a"));
        assert_eq!(tail.poll(u64::MAX), ["a"]);
        let other = "x".repeat(15_999) + "\n";
        tail.write(&(other.repeat(3_200) + &line("b")));
        let path = tail.folder.path().join("kubelet.log");
        fs::rename(&path, path.with_extension("1")).unwrap();
        tail.write(&line("c"));
        let poll = |_| {
            // However slow the machine is.
            tail.log.watched = crate::linux::clock::boot_now();
            tail.poll(0)
        };
        let found: Vec<_> = (0..5).map(poll).collect();
        assert_eq!(found.concat(), ["b", "c"]);
        assert!(found[0].is_empty(), "it takes more than one poll");
    }

    #[test]
    fn a_file_that_may_have_been_rotated_twice_has_a_gap() {
        for (watched, wanted) in [(true, vec!["b", "d"]), (false, vec!["b", "gap", "d"])] {
            let mut tail = Tail::new(&line("a"));
            assert_eq!(tail.poll(u64::MAX), ["a"]);
            tail.write(&line("b"));
            let path = tail.folder.path().join("kubelet.log");
            fs::rename(&path, path.with_extension("2")).unwrap();
            if !watched {
                tail.log.watched = BootTime(0);
                tail.write(&line("c"));
                fs::rename(&path, path.with_extension("1")).unwrap();
            }
            tail.write(&line("d"));
            assert_eq!(tail.poll(0), wanted);
        }
    }

    #[test]
    fn a_file_that_is_truncated_while_it_is_opened_is_read_from_its_beginning() {
        let mut tail = Tail::new(&line("a"));
        let mut open = tail.log.open().unwrap();
        open.skip(1 << 20).unwrap();
        tail.log.open = Some(open);
        assert_eq!(tail.poll(0), ["a"]);
        // The last line is torn, and longer than what is read at the start.
        let b = line("b");
        let mut tail = Tail::new(&(line("a") + &b[..50]));
        assert_eq!(tail.poll(9), ["a"]);
        tail.write(&b[50..]);
        assert_eq!(tail.poll(0), ["b"]);
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
