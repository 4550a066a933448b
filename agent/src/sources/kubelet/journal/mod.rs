//! The systemd journal: the system's files, followed across rotations. Only entries of the kubelet's units are read.

mod follow;
mod object;

pub(crate) use follow::{FollowError, Follower, JournalLine};

use super::{
    lines::{FoundLine, Lines},
    reading::{LineCounters, Reading},
    time::Receipt,
};
use crate::linux::below::{self, Root};
use coroner_core::{
    input::{KubeletEvent, KubeletLogGap},
    time::{Anchor, BootTime, WallTime},
};
use rustix::fs::{AtFlags, Dir, OFlags, statat};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    ffi::{CStr, OsStr},
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// The units that the kubelet runs in: its own, k3s', RKE2's, microk8s', Amazon's snap.
pub(super) const UNITS: [&str; 7] = [
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "snap.microk8s.daemon-kubelite.service",
    "snap.kubelet-eks.daemon.service",
];

/// Journal files that are looked at.
const MAX_FILES: usize = 256;

/// Where the journal's files are.
const FOLDERS: [&str; 2] = ["/var/log/journal", "/run/log/journal"];
/// The file that is written.
const CURRENT: &str = "system.journal";
/// A file that cannot be read on is tried again after this, and then after twice as long each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(64);
/// So many attempts in a row fail before the next file is read.
const ATTEMPTS: u32 = 4;
/// The clocks of an entry and of the machine differ by less, or it is of another boot: no kubelet starts, logs and ends
/// with its machine in less.
const SAME_BOOT: Duration = Duration::from_secs(10);

/// Why no journal is read.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoJournal {
    #[error("{} has no journal of the system; mount the host's / and set --host-root", .0.display())]
    Absent(PathBuf),
    #[error("cannot read the journal {} ({error})", path.display())]
    Unread { path: PathBuf, error: FollowError },
}

/// A machine's clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    /// The boot clock and the wall clock.
    pub(super) anchor: Anchor,
    /// How far the boot clock is ahead of the monotonic one: the time that the machine was suspended.
    pub(super) suspended_ns: u64,
}

/// A file that is read.
#[derive(Debug)]
struct OpenJournal {
    follower: Follower,
    /// Attempts in a row that failed.
    failures: u32,
    /// It is opened again then.
    retry: Option<BootTime>,
}

impl OpenJournal {
    fn failed(&mut self, now: BootTime, reading: &mut Reading) {
        let pause = FIRST_RETRY * (1 << self.failures.min(6));
        self.failures += 1;
        self.retry = Some(now + pause.min(LONGEST_RETRY));
        reading.gap(now, 0, KubeletLogGap::Damaged);
    }
}

/// The system's journal.
#[derive(Debug)]
pub(super) struct Journal {
    host_root: PathBuf,
    /// The ids of the files that are there, which need not be opened again. No path is that of two files with the same
    /// inode: rotated files have names of their own, and the file that is written is open until it is known to have been
    /// rotated.
    ids: HashMap<PathBuf, (Identity, [u8; 16])>,
    /// Files that are read, oldest first; the last one is the one that the journal writes into.
    open: VecDeque<OpenJournal>,
    /// Files that are there and were read, or are too old.
    done: HashSet<[u8; 16]>,
    /// When the file that is written could not be opened while another one is read.
    unread_at: BootTime,
    entries: Entries,
}

/// Whether there is a journal of the system below this root.
pub(super) fn exists(root: &Path) -> bool {
    Root::new(root).is_ok_and(|root| !Journal::files(&root).is_empty())
}

/// Device and inode.
type Identity = (u64, u64);

/// What a folder below the root has, with what the plain files there are.
fn list(root: &Root, folder: &Path, most: usize) -> Vec<(PathBuf, Option<Identity>)> {
    let opened = root.open(folder, OFlags::RDONLY | OFlags::DIRECTORY);
    let Some(mut entries) = opened.ok().and_then(|folder| Dir::new(folder).ok()) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next()
        && names.len() < most + 2
    {
        names.push(entry.file_name().to_owned());
    }
    names.retain(|name| ![&b"."[..], b".."].contains(&name.to_bytes()));
    let identity = |name: &CStr| {
        let found = statat(entries.fd().ok()?, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        below::is_plain(&found).then_some((found.st_dev, found.st_ino))
    };
    let path = |name: &CStr| folder.join(OsStr::from_bytes(name.to_bytes()));
    names.iter().map(|name| (path(name), identity(name))).collect()
}

impl Journal {
    /// Below the host's root. Lines of another boot than this are left out.
    pub(super) fn new(root: &Path, boot: Option<[u8; 16]>) -> Self {
        Self {
            host_root: root.to_owned(),
            ids: HashMap::new(),
            open: VecDeque::new(),
            done: HashSet::new(),
            unread_at: BootTime(0),
            entries: Entries::new(boot),
        }
    }

    /// The system's files: the one that is written, and those that were rotated away.
    fn files(root: &Root) -> Vec<(PathBuf, Option<Identity>)> {
        let is_systems = |(path, _): &(PathBuf, _)| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name == CURRENT || name.starts_with("system@") && name.ends_with(".journal")
        };
        let machines = FOLDERS.iter().flat_map(|folder| list(root, Path::new(folder), MAX_FILES));
        let found = machines.flat_map(|(machine, _)| list(root, &machine, 16 * MAX_FILES));
        let mut found: Vec<_> = found.filter(is_systems).collect();
        // Rotated files have their number and time in their names; the newest come last, `system.journal` first.
        found.sort();
        if let Some(rest) = found.len().checked_sub(MAX_FILES) {
            let mut left_out = 0;
            found.retain(|(path, _)| {
                let keep = path.ends_with(CURRENT) || left_out >= rest;
                left_out += usize::from(!keep);
                keep
            });
        }
        found
    }

    /// Opens files that are new, those at the start that reach beyond `since` (µs since the epoch), and those that could
    /// not be read on.
    fn open_new(
        &mut self,
        since: u64,
        reading: &mut Reading,
        now: BootTime,
    ) -> Result<(), NoJournal> {
        let root = Root::new(&self.host_root).ok();
        let files = root.as_ref().map(Self::files).unwrap_or_default();
        let (mut new, mut failed, mut present) = (Vec::new(), None, HashSet::new());
        let is_empty = files.is_empty();
        let mut before = std::mem::take(&mut self.ids);
        for (path, identity) in files {
            let known = before.remove(&path).filter(|(seen, _)| Some(*seen) == identity);
            let due = |id| {
                let open = self.open.iter().find(|open| open.follower.id() == id);
                open.is_some_and(|open| open.retry.is_some_and(|at| at <= now))
            };
            if let Some((identity, id)) = known.filter(|(_, id)| !due(*id)) {
                present.insert(id);
                self.ids.insert(path, (identity, id));
                continue;
            }
            let file = root.as_ref().map(|root| root.open_plain(&path)).transpose();
            let follower = file.map_err(FollowError::from).and_then(|file| {
                file.flatten().map(|file| Follower::open(file, &UNITS)).transpose()
            });
            let follower = match follower {
                Ok(Some(follower)) => follower,
                Ok(None) => continue,
                // Rotated or removed just now.
                Err(FollowError::Io(error)) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    failed = Some(NoJournal::Unread { path, error });
                    continue;
                }
            };
            let id = follower.id();
            present.insert(id);
            let is_current = path.ends_with(CURRENT);
            // It may have been replaced since it was listed.
            if let Some(identity) = identity.filter(|identity| follower.is(*identity)) {
                self.ids.insert(path, (identity, id));
            }
            if let Some(open) = self.open.iter_mut().find(|open| open.follower.id() == id) {
                let mut follower = follower;
                if open.retry.is_some_and(|at| at <= now)
                    && follower.resume(&open.follower, since).is_ok()
                {
                    (open.follower, open.retry) = (follower, None);
                }
            } else if self.done.insert(id) && (is_current || follower.tail_realtime() >= since) {
                new.push((is_current, follower.tail_realtime(), follower));
            }
        }
        if is_empty && self.open.is_empty() {
            return Err(NoJournal::Absent(self.host_root.clone()));
        }
        for open in self.open.iter_mut().filter(|open| open.retry.is_some_and(|at| at <= now)) {
            open.failed(now, reading);
        }
        // Where a file was not seen, others may have been overlooked, too.
        let all = self.open.iter().all(|open| present.contains(&open.follower.id()));
        if all && failed.is_none() {
            self.done.retain(|id| present.contains(id));
        }
        new.sort_by_key(|(is_current, tail, _)| (*is_current, *tail));
        for (_, _, follower) in new {
            let mut open = OpenJournal { follower, failures: 0, retry: None };
            if self.open.is_empty() && open.follower.seek(since).is_err() {
                open.failed(now, reading);
            }
            self.open.push_back(open);
        }
        match failed {
            Some(failed) if self.open.is_empty() => Err(failed),
            Some(NoJournal::Unread { path, .. })
                if path.ends_with(CURRENT) && self.unread_at + FIRST_RETRY <= now =>
            {
                self.unread_at = now;
                reading.gap(now, 0, KubeletLogGap::Damaged);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reads what is new. `since` is for the first time only: µs since the epoch.
    pub(super) fn poll(
        &mut self,
        since: u64,
        clocks: Clocks,
        reading: &mut Reading,
        counters: &LineCounters,
    ) -> Result<Vec<KubeletEvent>, NoJournal> {
        let now = BootTime(clocks.anchor.boot_ns);
        self.open_new(since, reading, now)?;
        while let Some(open) = self.open.front_mut() {
            let mut lines = Vec::new();
            let result = match open.retry {
                Some(_) => Ok(open.failures < ATTEMPTS),
                None => open.follower.poll(&mut lines),
            };
            for line in lines {
                self.entries.take(&line, clocks, reading, counters);
            }
            match &result {
                Ok(_) if open.retry.is_none() => open.failures = 0,
                Ok(_) => {}
                Err(_) => {
                    open.failed(now, reading);
                    self.entries.lines.restart();
                }
            }
            match result {
                Ok(false) if self.open.len() > 1 => {
                    // What it had until its rotation is read by now. A damaged one has its gap.
                    let last = self.open.pop_front().filter(|last| last.retry.is_none());
                    let missing = last
                        .zip(self.open.front())
                        .and_then(|(last, next)| last.follower.missing_before(&next.follower));
                    if missing.is_some_and(|missing| missing > 0) {
                        reading.gap(now, 0, KubeletLogGap::Rotated);
                        self.entries.lines.restart();
                    }
                }
                // The rest comes with the next poll.
                _ => break,
            }
        }
        Ok(reading.events(now))
    }
}

/// The kubelet's entries of a journal, in order, from whichever of its forms.
#[derive(Debug)]
pub(super) struct Entries {
    /// Entries of another boot are left out. Where it is not known, it is that of the first entry whose clocks are the
    /// machine's.
    boot: Option<[u8; 16]>,
    lines: Lines,
}

impl Entries {
    pub(super) fn new(boot: Option<[u8; 16]>) -> Self {
        Self { boot, lines: Lines::default() }
    }

    pub(super) fn take(
        &mut self,
        line: &JournalLine,
        clocks: Clocks,
        reading: &mut Reading,
        counters: &LineCounters,
    ) {
        let suppressed = line.message.as_deref().filter(|_| line.is_journalds).and_then(suppressed);
        if line.is_journalds && suppressed.is_none() {
            return;
        }
        if !self.is_of_this_boot(line, clocks) {
            reading.of_another_boot(counters);
            return;
        }
        if let Some(lines) = suppressed {
            // A value of several lines may have lost its end: what follows is none of it.
            let begun = self.lines.restart();
            let lines = lines + u64::from(begun);
            reading.gap(boot_of(line, clocks), lines, KubeletLogGap::RateLimit);
            return;
        }
        let mut found = Vec::new();
        self.lines.line(line.message.as_deref(), &mut found);
        for one in &found {
            self.read(one, line, clocks, reading, counters);
        }
    }

    /// The line that waits for the next ones: there are none.
    pub(super) fn end(
        &mut self,
        last: &JournalLine,
        clocks: Clocks,
        reading: &mut Reading,
        counters: &LineCounters,
    ) {
        if let Some(one) = self.lines.end() {
            self.read(&one, last, clocks, reading, counters);
        }
    }

    fn read(
        &self,
        found: &FoundLine,
        line: &JournalLine,
        clocks: Clocks,
        reading: &mut Reading,
        counters: &LineCounters,
    ) {
        let receipt = Receipt::Journal {
            wall: wall_of(line),
            boot: boot_of(line, clocks),
            // When the machine was suspended is not known. The difference of two readings is a few µs without that.
            uncertainty_ns: clocks.suspended_ns.max(1_000),
        };
        reading.take(found, &receipt, BootTime(clocks.anchor.boot_ns), counters);
    }

    fn is_of_this_boot(&mut self, line: &JournalLine, clocks: Clocks) -> bool {
        if let (Some(this), Some(other)) = (self.boot, line.boot) {
            return this == other;
        }
        let Anchor { boot_ns, wall_ns } = clocks.anchor;
        let wall = i128::from(wall_of(line).0) - i128::from(wall_ns);
        let boot = i128::from(boot_of(line, clocks).0) - i128::from(boot_ns);
        let fits = (wall - boot).unsigned_abs() < SAME_BOOT.as_nanos();
        if fits && self.boot.is_none() {
            self.boot = line.boot;
        }
        fits
    }
}

fn wall_of(line: &JournalLine) -> WallTime {
    WallTime(i64::try_from(line.realtime.saturating_mul(1_000)).unwrap_or(i64::MAX))
}

/// The monotonic clock stands still while the machine is suspended.
fn boot_of(line: &JournalLine, clocks: Clocks) -> BootTime {
    BootTime(line.monotonic.saturating_mul(1_000).saturating_add(clocks.suspended_ns))
}

/// How many messages of one of the units journald's rate limit has suppressed since the last one (manager_dispatch_message,
/// MESSAGE_ID a596d6fe7bfa4994828e72309e95d61e). `OBJECT_SYSTEMD_UNIT` has the unit, too, but not where the process is
/// gone; before systemd 236 only the text has it, as a path.
fn suppressed(message: &[u8]) -> Option<u64> {
    let text = str::from_utf8(message).ok()?.strip_prefix("Suppressed ")?;
    let (count, unit) = text.split_once(" messages from ")?;
    let unit = unit.rsplit('/').next()?;
    UNITS.contains(&unit).then(|| count.parse().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::kubelet::budget::Budget;
    use flate2::read::GzDecoder;
    use std::{fs, io::Read as _, os::unix::fs::FileExt as _};

    const PACKED: &[u8] =
        include_bytes!("../../../../tests/fixtures/journal/plain-zstd.journal.gz");
    const COMPACT: &[u8] =
        include_bytes!("../../../../tests/fixtures/journal/compact-zstd.journal.gz");

    fn unpacked(packed: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        GzDecoder::new(packed).read_to_end(&mut whole).unwrap();
        whole
    }

    /// Appends an entry with these fields, 10 s after the last one of the file.
    fn append(whole: &mut Vec<u8>, fields: &[&str]) {
        let is_compact = object::u32_at(whole, 12) & 16 != 0;
        let tail = object::u64_at(whole, 136);
        let last = object::ObjectHeader::parse(&whole[usize::try_from(tail).unwrap()..]).unwrap();
        let mut at = last.next(tail);
        let mut add = |kind: u8, rest: &[u8]| {
            let (start, size) = (at, 16 + rest.len() as u64);
            let head = [u64::from(kind).to_le_bytes(), size.to_le_bytes()].concat();
            let start_byte = usize::try_from(start).unwrap();
            whole.resize(start_byte, 0);
            whole.extend([&head, rest].concat());
            whole[136..144].copy_from_slice(&start.to_le_bytes());
            at = (start + size + 7) & !7;
            start
        };
        let before = vec![0; if is_compact { 56 } else { 48 }];
        let data = fields.iter().map(|field| add(1, &[&before, field.as_bytes()].concat()));
        let data: Vec<u64> = data.collect();
        let items = data.iter().flat_map(|at| {
            let item = u128::from(*at).to_le_bytes();
            item[..if is_compact { 4 } else { 16 }].to_vec()
        });
        let items: Vec<u8> = items.collect();
        let times: [u64; 3] = [1_000_000, 0, DRIVER_MONOTONIC];
        let times = times.map(u64::to_le_bytes).concat();
        add(3, &[times, BOOT.to_vec(), vec![0; 8], items].concat());
    }

    /// µs, of the entries that are appended.
    const DRIVER_MONOTONIC: u64 = 7_000_000;
    const BOOT: [u8; 16] = [9; 16];

    #[test]
    fn what_journald_suppressed_is_read_from_its_own_entries_only() {
        let suppressed = |unit: &str| format!("MESSAGE=Suppressed 7 messages from {unit}");
        let (kubelets, others) = (suppressed("kubelet.service"), suppressed("ssh.service"));
        for packed in [PACKED, COMPACT] {
            for (fields, wanted) in [
                (["_TRANSPORT=driver", &*kubelets], Some(7)),
                (["_TRANSPORT=driver", &*others], None),
                (["_TRANSPORT=driver", "MESSAGE=Journal started"], None),
                // Anyone may log that.
                (["_TRANSPORT=journal", &*kubelets], None),
            ] {
                let mut system = System::new();
                system.journal = Journal::new(system.root.path(), Some(BOOT));
                let mut whole = unpacked(packed);
                append(&mut whole, &fields);
                system.write("system.journal", &whole);
                let gap = system.events(0).0.into_iter().find_map(|event| match event {
                    KubeletEvent::Gap { to, lines, cause: KubeletLogGap::RateLimit, .. } => {
                        Some((to, lines))
                    }
                    _ => None,
                });
                let wanted = wanted.map(|lines| (BootTime(1_000 * DRIVER_MONOTONIC), lines));
                assert_eq!(gap, wanted, "{fields:?}");
            }
        }
    }

    struct System {
        root: tempfile::TempDir,
        journal: Journal,
        reading: Reading,
        whole: Vec<u8>,
        now: u64,
    }

    impl System {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("var/log/journal/m")).unwrap();
            let whole = unpacked(PACKED);
            let journal = Journal::new(root.path(), None);
            let reading = Reading::new(Budget::unlimited(), BootTime(0));
            Self { root, journal, reading, whole, now: 1_000 }
        }

        fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.root.path().join("var/log/journal/m").join(name);
            fs::write(&path, bytes).unwrap();
            path
        }

        /// The file that is written is another from now on.
        fn rotate(&self, new: &[u8]) {
            let path = self.root.path().join("var/log/journal/m/system.journal");
            fs::rename(&path, path.with_file_name("system@1.journal")).unwrap();
            self.write("system.journal", new);
        }

        /// What is found some seconds later.
        fn events(&mut self, seconds: u64) -> (Vec<KubeletEvent>, LineCounters) {
            self.now += seconds;
            let anchor = Anchor { boot_ns: self.now * 1_000_000_000, wall_ns: 0 };
            let clocks = Clocks { anchor, suspended_ns: 0 };
            let counters = LineCounters::default();
            let events = self.journal.poll(0, clocks, &mut self.reading, &counters);
            (events.unwrap(), counters)
        }

        /// How many entries were found, of whichever boot, and how many gaps, some seconds later.
        fn poll(&mut self, seconds: u64) -> (u64, usize) {
            let (events, counters) = self.events(seconds);
            let is_gap = |event: &&KubeletEvent| matches!(event, KubeletEvent::Gap { .. });
            let lines = counters.of(crate::sources::kubelet::LineResult::OtherBoot);
            (lines, events.iter().filter(is_gap).count())
        }
    }

    /// Where an entry behind the middle of the file begins: the search for the first one does not look at it.
    fn middle(whole: &[u8]) -> u64 {
        let (mut at, tail) = (object::u64_at(whole, 88), object::u64_at(whole, 136));
        let mut entries = Vec::new();
        while at <= tail {
            let object =
                object::ObjectHeader::parse(&whole[usize::try_from(at).unwrap()..]).unwrap();
            entries.extend((object.kind == object::ObjectKind::Entry).then_some(at));
            at = object.next(at);
        }
        entries[entries.len() * 3 / 5]
    }

    #[test]
    fn a_file_that_cannot_be_read_on_is_opened_again() {
        let mut system = System::new();
        let whole = system.whole.clone();
        let at = middle(&whole);
        let mut damaged = whole.clone();
        damaged[usize::try_from(at).unwrap()] = 99;
        let path = system.write("system.journal", &damaged);
        let (first, gaps) = system.poll(1);
        assert!(first > 0 && first < 81, "{first}");
        assert_eq!(gaps, 1);
        assert_eq!(system.poll(0), (0, 0), "not before its time");
        // It can be read by now: every line comes once.
        fs::File::options().write(true).open(&path).unwrap().write_all_at(&whole, 0).unwrap();
        let (rest, gaps) = system.poll(1);
        assert_eq!((first + rest, gaps), (81, 0));
        assert_eq!(system.poll(99), (0, 0));
        assert_eq!(system.journal.open[0].failures, 0);
    }

    #[test]
    fn the_next_file_is_read_where_one_stays_damaged() {
        let mut system = System::new();
        let mut damaged = system.whole.clone();
        let at = usize::try_from(middle(&damaged)).unwrap();
        damaged[at] = 99;
        // Nor can entries be looked for.
        let array = usize::try_from(object::u64_at(&damaged, 176)).unwrap();
        let mut new = system.whole.clone();
        new[24] ^= 1;
        damaged[array] = 99;
        system.write("system.journal", &damaged);
        system.journal.open_new(0, &mut system.reading, BootTime(0)).unwrap();
        assert_eq!(system.journal.open[0].failures, 1, "it cannot be looked through");
        system.rotate(&new);
        let polls: Vec<_> = [0, 1, 2, 4, 8, 8].map(|seconds| system.poll(seconds)).into();
        assert!(polls.iter().any(|(lines, _)| *lines == 81), "{polls:?}");
        assert!(polls.iter().any(|(_, gaps)| *gaps > 0), "{polls:?}");
        assert_eq!(system.journal.open.len(), 1);
    }

    /// The seqnum of a file's first and last entry are in its header.
    #[test]
    fn a_rotation_is_a_gap_only_where_entries_lie_between_the_files() {
        for (between, wanted) in [(0, 0), (1, 1)] {
            let mut system = System::new();
            let old = system.whole.clone();
            system.write("system.journal", &old);
            let last = object::u64_at(&old, 160);
            // It was rotated before it was read to its end.
            let mut new = old.clone();
            new[24] ^= 1;
            new[168..176].copy_from_slice(&(last + 1 + between).to_le_bytes());
            system.journal.open_new(0, &mut system.reading, BootTime(0)).unwrap();
            system.rotate(&new);
            assert_eq!(system.poll(1), (2 * 81, wanted));
        }
    }

    #[test]
    fn a_new_file_that_cannot_be_opened_is_a_gap() {
        let mut system = System::new();
        let whole = system.whole.clone();
        system.write("system.journal", &whole);
        assert_eq!(system.poll(1), (81, 0));
        system.rotate(b"no journal");
        assert_eq!(system.poll(1), (0, 1));
        assert_eq!(system.poll(0), (0, 0), "no more than one a second");
        assert_eq!(system.poll(1), (0, 1));
    }

    #[test]
    fn a_root_that_is_mounted_again_is_read() {
        let mut system = System::new();
        system.write("system.journal", &system.whole);
        assert_eq!(system.poll(1), (81, 0));
        // Something else is there from now on.
        let (root, aside) = (system.root.path(), system.root.path().with_extension("old"));
        fs::rename(root, &aside).unwrap();
        fs::create_dir_all(root.join("var/log/journal/m")).unwrap();
        fs::rename(aside, root.join("old")).unwrap();
        let mut new = system.whole.clone();
        new[24] ^= 1;
        system.write("system.journal", &new);
        assert_eq!(system.poll(1).0, 81);
    }

    #[test]
    fn a_file_that_is_gone_is_not_remembered() {
        let mut system = System::new();
        let whole = system.whole.clone();
        system.write("system.journal", &whole);
        assert_eq!(system.poll(0), (81, 0));
        for id in 1..9 {
            let mut new = whole.clone();
            new[24] ^= id;
            system.rotate(&new);
            assert_eq!(system.poll(1).0, 81);
            system.poll(1);
        }
        assert_eq!(system.journal.done.len(), 2);
        let mut known: Vec<_> =
            system.journal.ids.keys().filter_map(|path| path.file_name()).collect();
        known.sort();
        assert_eq!(known, ["system.journal", "system@1.journal"]);
    }
}
